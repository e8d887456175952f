//! Writing, replacing and removing objects.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::time::Duration;

use aws_sdk_s3::config::timeout::TimeoutConfig;
use aws_sdk_s3::operation::put_object::PutObjectOutput;
use aws_sdk_s3::primitives::ByteStream;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use sha2::{Digest as _, Sha256};

use super::{S3Store, client, fault};
use crate::repository::store::{Key, StoreFault, Swapped, Version};

/// Tells one write from another, to know one's own where the answer was lost.
const WRITE_MARK: &str = "holdfast-write";
/// The slowest connection that is worth waiting for, in bytes a second.
const SLOWEST: u64 = 32 << 10;

/// What must be so for a write to happen.
#[derive(Debug, Clone)]
pub(super) enum Condition {
    /// There is no such object.
    IsAbsent,
    /// It still has this `ETag`.
    Is(String),
}

/// What a write did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Put {
    /// The object now has this `ETag`.
    Done(String),
    /// Nothing: the condition did not hold (or, where an answer was lost, held only before this very write).
    ConditionFailed,
}

impl S3Store {
    pub(super) async fn put(&self, key: &Key, body: Bytes, condition: &Condition) -> Result<Put, StoreFault> {
        self.put_marked(key, body, condition, None).await
    }

    async fn put_marked(
        &self,
        key: &Key,
        body: Bytes,
        condition: &Condition,
        mark: Option<&str>,
    ) -> Result<Put, StoreFault> {
        let size = body.len() as u64;
        let request = self.client.put_object().bucket(&self.bucket).key(self.name(key));
        let request = request.content_type("application/octet-stream").content_length(size.cast_signed());
        // The server checks what it received against this; servers that do not know it ignore it.
        let request = request.checksum_sha256(BASE64_STANDARD.encode(Sha256::digest(&body)));
        let request = match condition {
            Condition::IsAbsent => request.if_none_match("*"),
            Condition::Is(version) => request.if_match(version),
        };
        let request = match mark {
            Some(mark) => request.metadata(WRITE_MARK, mark),
            None => request,
        };
        let timeout = client::ATTEMPT_TIMEOUT + Duration::from_secs(size / SLOWEST);
        let timeouts = TimeoutConfig::builder()
            .connect_timeout(client::CONNECT_TIMEOUT)
            .operation_attempt_timeout(timeout)
            .build();
        let request = request.body(ByteStream::from(body)).customize();
        let request = request.config_override(aws_sdk_s3::config::Builder::new().timeout_config(timeouts));
        let request = if self.is_encrypted { request.disable_payload_signing() } else { request };
        match request.send().await {
            Ok(PutObjectOutput { e_tag, .. }) => {
                self.bucket_was_seen();
                let version = e_tag.ok_or_else(|| StoreFault::Refused("the server gives no ETag".to_owned()))?;
                Ok(Put::Done(version))
            }
            Err(error) if fault::is_condition_failed(&error) => Ok(Put::ConditionFailed),
            Err(error) => match (fault::of(&error, &self.bucket), condition) {
                // There is nothing that could have that version.
                (StoreFault::NotFound, Condition::Is(_)) => Ok(Put::ConditionFailed),
                (StoreFault::NotFound, Condition::IsAbsent) => Err(fault::no_bucket(&self.bucket)),
                (other, _) => Err(other),
            },
        }
    }

    pub(super) async fn swap(&self, key: &Key, condition: &Condition, body: Bytes) -> Result<Swapped, StoreFault> {
        let mark = format!("{:016x}", RandomState::new().build_hasher().finish());
        match self.put_marked(key, body, condition, Some(&mark)).await? {
            Put::Done(version) => Ok(Swapped::Done(Version(version))),
            // Perhaps it is this very write that was first, and its answer was lost on the way.
            Put::ConditionFailed => Ok(match self.marked(key, &mark).await? {
                Some(version) => Swapped::Done(version),
                None => Swapped::Conflict,
            }),
        }
    }

    /// The version of the object, if the write of that mark made it.
    async fn marked(&self, key: &Key, mark: &str) -> Result<Option<Version>, StoreFault> {
        match self.client.head_object().bucket(&self.bucket).key(self.name(key)).send().await {
            Ok(found) if found.metadata().and_then(|all| all.get(WRITE_MARK)).is_some_and(|found| found == mark) => {
                Ok(found.e_tag.map(Version))
            }
            Ok(_) => Ok(None),
            Err(error) => match fault::of(&error, &self.bucket) {
                StoreFault::NotFound => self.ensure_bucket().await.map(|()| None),
                other => Err(other),
            },
        }
    }

    pub(super) async fn remove(&self, key: &Key) -> Result<(), StoreFault> {
        match self.client.delete_object().bucket(&self.bucket).key(self.name(key)).send().await {
            Ok(_) => {
                self.bucket_was_seen();
                Ok(())
            }
            Err(error) => match fault::of(&error, &self.bucket) {
                StoreFault::NotFound => self.ensure_bucket().await,
                other => Err(other),
            },
        }
    }
}
