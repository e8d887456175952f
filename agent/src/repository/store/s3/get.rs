//! Reading objects.

use std::ops::Range;
use std::time::Duration;

use aws_sdk_s3::operation::get_object::GetObjectOutput;
use aws_sdk_s3::operation::get_object::builders::GetObjectFluentBuilder;
use aws_sdk_s3::primitives::{ByteStream, ByteStreamError};
use bytes::Bytes;
use jiff::Timestamp;

use super::{S3Store, client, fault};
use crate::repository::store::{Entry, Key, Object, StoreFault, Version};

/// Room that is reserved on a server's word.
const MOST_RESERVED: u64 = 64 << 20;

/// Why an answer could not be used.
enum Failed {
    /// The connection broke in the middle: ask again.
    Midway(String),
    /// Anything else, which the SDK has tried often enough.
    For(StoreFault),
}

impl From<StoreFault> for Failed {
    fn from(fault: StoreFault) -> Self {
        Self::For(fault)
    }
}

impl S3Store {
    pub(super) async fn get_whole(&self, key: &Key, limit: u64) -> Result<Object, StoreFault> {
        self.patiently(async || {
            let answer = self.request(key).send().await.map_err(|error| fault::of(&error, &self.bucket))?;
            self.bucket_was_seen();
            let size = length(&answer)?;
            if size > limit {
                return Err(StoreFault::TooLarge { size, limit }.into());
            }
            let version = answer.e_tag.ok_or_else(|| StoreFault::Refused("the server gives no ETag".to_owned()))?;
            let body = read(answer.body, size).await?;
            Ok(Object { body, version: Version(version) })
        })
        .await
    }

    pub(super) async fn get_part(&self, key: &Key, range: &Range<u64>) -> Result<Bytes, StoreFault> {
        // Servers hold offsets in signed numbers.
        let last = (range.end - 1).min(i64::MAX.cast_unsigned());
        self.patiently(async || {
            let request = self.request(key).range(format!("bytes={}-{last}", range.start));
            let answer = match request.send().await {
                Ok(answer) => answer,
                Err(error) if fault::is_past_the_end(&error) => return Err(self.short(key, range.end).await?.into()),
                Err(error) => return Err(fault::of(&error, &self.bucket).into()),
            };
            self.bucket_was_seen();
            let ignored = || StoreFault::Refused("the server ignores what range was asked for".to_owned());
            let (start, size) = answer.content_range().and_then(start_and_size).ok_or_else(ignored)?;
            if range.end > size {
                return Err(StoreFault::Short { size, wanted: range.end }.into());
            }
            let length = length(&answer)?;
            if start != range.start || length != range.end - range.start {
                return Err(ignored().into());
            }
            read(answer.body, length).await
        })
        .await
    }

    /// Nothing of an object, if it is there and has so many bytes.
    pub(super) async fn get_nothing(&self, key: &Key, wanted: u64) -> Result<Bytes, StoreFault> {
        match self.ask(key).await? {
            None => Err(StoreFault::NotFound),
            Some(Entry { size, .. }) if size < wanted => Err(StoreFault::Short { size, wanted }),
            Some(_) => Ok(Bytes::new()),
        }
    }

    /// The object ends before the range begins: by how much?
    async fn short(&self, key: &Key, wanted: u64) -> Result<StoreFault, StoreFault> {
        let found = self.ask(key).await?;
        Ok(found.map_or(StoreFault::NotFound, |Entry { size, .. }| StoreFault::Short { size, wanted }))
    }

    pub(super) async fn ask(&self, key: &Key) -> Result<Option<Entry>, StoreFault> {
        match self.client.head_object().bucket(&self.bucket).key(self.name(key)).send().await {
            Ok(found) => {
                self.bucket_was_seen();
                let size = size_of(found.content_length())?;
                let modified = modified(found.last_modified())?;
                Ok(Some(Entry { key: key.clone(), size, modified }))
            }
            Err(error) => match fault::of(&error, &self.bucket) {
                StoreFault::NotFound => self.ensure_bucket().await.map(|()| None),
                other => Err(other),
            },
        }
    }

    fn request(&self, key: &Key) -> GetObjectFluentBuilder {
        self.client.get_object().bucket(&self.bucket).key(self.name(key))
    }

    /// Asks again where a connection broke while a body was on its way: the SDK leaves that to its callers.
    async fn patiently<T>(&self, call: impl AsyncFn() -> Result<T, Failed>) -> Result<T, StoreFault> {
        let mut pause = Duration::from_millis(100);
        for _ in 1..client::ATTEMPTS {
            match call().await {
                Ok(done) => return Ok(done),
                Err(Failed::For(fault)) => return Err(fault),
                Err(Failed::Midway(_)) => tokio::time::sleep(pause).await,
            }
            pause *= 2;
        }
        call().await.map_err(|failed| match failed {
            Failed::For(fault) => fault,
            Failed::Midway(reason) => {
                StoreFault::Unavailable(format!("the connection broke {} times: {reason}", client::ATTEMPTS))
            }
        })
    }
}

/// All of a body, which is `length` bytes.
async fn read(mut body: ByteStream, length: u64) -> Result<Bytes, Failed> {
    let broke = |error: ByteStreamError| Failed::Midway(fault::chain(&error));
    let mut whole = Vec::with_capacity(length.min(MOST_RESERVED) as usize);
    while let Some(part) = body.try_next().await.map_err(broke)? {
        whole.extend_from_slice(&part);
    }
    if whole.len() as u64 != length {
        return Err(Failed::Midway(format!("{} of {length} bytes came", whole.len())));
    }
    Ok(whole.into())
}

fn length(answer: &GetObjectOutput) -> Result<u64, StoreFault> {
    size_of(answer.content_length())
}

pub(super) fn size_of(size: Option<i64>) -> Result<u64, StoreFault> {
    let size = size.and_then(|size| u64::try_from(size).ok());
    size.ok_or_else(|| StoreFault::Refused("the server gives no size".to_owned()))
}

pub(super) fn modified(time: Option<&aws_sdk_s3::primitives::DateTime>) -> Result<Timestamp, StoreFault> {
    let time = time.and_then(|time| Timestamp::new(time.secs(), time.subsec_nanos().cast_signed()).ok());
    time.ok_or_else(|| StoreFault::Refused("the server gives no time of the last change".to_owned()))
}

/// Reads `bytes 5-9/1234` (RFC 9110, 14.4).
fn start_and_size(header: &str) -> Option<(u64, u64)> {
    let (range, size) = header.strip_prefix("bytes ")?.split_once('/')?;
    let (start, _) = range.split_once('-')?;
    Some((start.parse().ok()?, size.parse().ok()?))
}
