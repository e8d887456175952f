//! S3, and what speaks its protocol: Amazon, `MinIO`, Ceph, `SeaweedFS`, ...
//!
//! What is asked of a server beyond the basics is conditional writes: `If-None-Match: *` and `If-Match` on `PutObject`.

use std::future::Future;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use aws_sdk_s3::Client;
use bytes::Bytes;
use jiff::Timestamp;
use tokio::runtime::Runtime;

use self::put::{Condition, Put};
use super::{
    Created, Entry, Key, Object, Store, StoreError, StoreFault, StoreResult, Swapped, Version, Walk, range_length,
};
use crate::steps::step;

mod client;
mod clock;
mod credentials;
mod fault;
mod get;
mod list;
mod put;

/// How to reach S3, whatever the bucket.
#[derive(Debug, Clone, Default)]
pub struct S3Settings {
    /// The server's URL; without it, Amazon's of the region.
    pub endpoint: Option<String>,
    /// The region; without it `AWS_REGION` or `AWS_DEFAULT_REGION`, else `us-east-1`.
    pub region: Option<String>,
    /// Whether the bucket is in the path rather than in the host name.
    pub path_style: bool,
    /// Certificates (PEM) that are trusted besides the system's.
    pub ca_file: Option<PathBuf>,
    /// A file of keys in AWS' shared format, read again whenever it changes.
    pub credentials_file: Option<PathBuf>,
    /// The profile in that file, or in the default one.
    pub profile: Option<String>,
}

/// A bucket, a place in it, and how to reach it.
#[derive(Debug, Clone, Default)]
pub struct S3Options {
    /// The bucket, which must exist.
    pub bucket: String,
    /// What all keys begin with, without a `/` at its ends; empty for the whole bucket.
    pub prefix: String,
    /// How to reach it.
    pub settings: S3Settings,
}

/// Objects in a bucket.
pub struct S3Store {
    client: Client,
    bucket: String,
    prefix: String,
    location: String,
    /// The connection keeps bodies whole, so that signing need not hash them a second time.
    is_encrypted: bool,
    /// An answer has shown that the bucket exists; until then "not found" may be about the bucket.
    is_bucket_seen: AtomicBool,
    /// Last, so that the connections are gone before what drives them.
    runtime: Runtime,
}

impl std::fmt::Debug for S3Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("S3Store").field(&self.location).finish()
    }
}

impl S3Store {
    /// Prepares to use a bucket. Nothing is sent yet: whether it can be reached shows at the first call.
    ///
    /// # Errors
    /// Where a setting is wrong or a file it names cannot be read.
    pub fn open(options: S3Options) -> StoreResult<Self> {
        let S3Options { bucket, prefix, settings } = options;
        let below = if prefix.is_empty() { String::new() } else { format!("/{prefix}") };
        let place = format!("s3://{bucket}{below}");
        let failed = |fault| StoreError::new("open", &Key::root(), place.clone(), fault);
        let endpoint = client::endpoint(&settings).map_err(failed)?;
        let location = match &endpoint {
            Some(endpoint) => format!("{place} ({endpoint})"),
            None => place.clone(),
        };
        let is_encrypted = endpoint.as_ref().is_none_or(|endpoint| endpoint.starts_with("https:"));
        let client = client::build(settings, endpoint).map_err(failed)?;
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(2).thread_name("holdfast-s3").enable_all().build();
        let runtime = runtime.map_err(|error| failed(StoreFault::Refused(format!("cannot start threads: {error}"))))?;
        Ok(Self { client, bucket, prefix, location, is_encrypted, is_bucket_seen: AtomicBool::new(false), runtime })
    }

    /// The name of an object in the bucket.
    fn name(&self, key: &Key) -> String {
        if self.prefix.is_empty() { key.to_string() } else { format!("{}/{key}", self.prefix) }
    }

    /// Waits for an answer, on the caller's thread.
    fn run<T>(
        &self,
        action: &'static str,
        key: &Key,
        call: impl Future<Output = Result<T, StoreFault>>,
    ) -> StoreResult<T> {
        self.runtime.block_on(call).map_err(|fault| StoreError::new(action, key, self.location(), fault))
    }

    fn bucket_was_seen(&self) {
        self.is_bucket_seen.store(true, Ordering::Relaxed);
    }

    /// "Not found" without a word of what was not found: makes sure that it is not the bucket.
    async fn ensure_bucket(&self) -> Result<(), StoreFault> {
        if !self.is_bucket_seen.load(Ordering::Relaxed) {
            self.page("", None, None, Some(1)).await?;
        }
        Ok(())
    }
}

impl Store for S3Store {
    fn location(&self) -> String {
        self.location.clone()
    }

    fn create(&self, key: &Key, body: Bytes) -> StoreResult<Created> {
        step("s3.create");
        // Where an answer was lost this meets its own success and tells that the object was there: callers compare.
        match self.run("create", key, self.put(key, body, &Condition::IsAbsent))? {
            Put::Done(_) => Ok(Created::New),
            Put::ConditionFailed => Ok(Created::Existed),
        }
    }

    fn get(&self, key: &Key, limit: u64) -> StoreResult<Object> {
        self.run("get", key, self.get_whole(key, limit))
    }

    fn get_range(&self, key: &Key, range: Range<u64>) -> StoreResult<Bytes> {
        self.run("get a range of", key, async {
            match range_length(&range)? {
                // HTTP has no way to ask for no bytes.
                0 => self.get_nothing(key, range.end).await,
                _ => self.get_part(key, &range).await,
            }
        })
    }

    fn head(&self, key: &Key) -> StoreResult<Option<Entry>> {
        self.run("head", key, self.ask(key))
    }

    fn list(&self, prefix: &Key, each: &mut dyn FnMut(Entry) -> Walk) -> StoreResult<()> {
        self.list_each(prefix, each)
    }

    fn children(&self, prefix: &Key) -> StoreResult<Vec<String>> {
        self.list_names(prefix)
    }

    fn delete(&self, key: &Key) -> StoreResult<()> {
        step("s3.delete");
        self.run("delete", key, self.remove(key))
    }

    fn compare_and_swap(&self, key: &Key, expected: Option<&Version>, body: Bytes) -> StoreResult<Swapped> {
        step("s3.swap");
        let condition = expected.map_or(Condition::IsAbsent, |version| Condition::Is(version.0.clone()));
        self.run("swap", key, self.swap(key, &condition, body))
    }

    fn now(&self) -> StoreResult<Timestamp> {
        self.run("read the clock of", &Key::root(), self.server_clock())
    }
}

#[cfg(test)]
mod tests;
