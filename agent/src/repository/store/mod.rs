//! Where objects are kept: one small trait, and the backends behind it.
//!
//! A store knows keys and bytes, nothing of backups. Every backend passes the suite in [`conformance`].

use std::fmt;
use std::ops::Range;

use bytes::Bytes;
use jiff::Timestamp;

#[cfg(any(test, feature = "fault-injection"))]
#[doc(hidden)]
pub mod conformance;
mod error;
pub mod file;
mod key;
pub mod memory;
mod open;
pub mod s3;

pub use error::{StoreError, StoreFault, StoreResult};
pub use key::{BadKey, Key};
pub use open::open;

/// Keys and bytes, with creation that never overwrites.
///
/// All calls block; callers that want parallelism use threads. Every call is safe to repeat.
///
/// # Errors
/// Every call can fail with every [`StoreFault`] that makes sense for it. [`StoreError::is_transient`] tells
/// whether to try again later.
#[expect(clippy::missing_errors_doc, reason = "told above, once for all calls")]
pub trait Store: Send + Sync + fmt::Debug {
    /// Where this is, for people: a URL without credentials.
    fn location(&self) -> String;

    /// Creates an object, durably, unless one of that name is there already.
    ///
    /// Nothing of the object can be seen before all of it is there.
    fn create(&self, key: &Key, body: Bytes) -> StoreResult<Created>;

    /// The whole object, with its version. Objects larger than `limit` bytes are refused, unread.
    fn get(&self, key: &Key, limit: u64) -> StoreResult<Object>;

    /// The bytes `range` of an object; it is an error if the object ends before.
    fn get_range(&self, key: &Key, range: Range<u64>) -> StoreResult<Bytes>;

    /// Size and age, or `None` where there is no such object.
    fn head(&self, key: &Key) -> StoreResult<Option<Entry>>;

    /// All objects below `prefix`, which ends at a separator: `db-1` does not list `db-10`. In the order of their keys.
    /// Calls `each` once per object, and stops early when that says so.
    fn list(&self, prefix: &Key, each: &mut dyn FnMut(Entry) -> Walk) -> StoreResult<()>;

    /// The names one level below `prefix`: `a/b` and `a/c/d` below `a` are `b` and `c`.
    fn children(&self, prefix: &Key) -> StoreResult<Vec<String>>;

    /// Removes an object. One that is not there is no error.
    fn delete(&self, key: &Key) -> StoreResult<()>;

    /// Replaces an object if it still is the `expected` version; `None` expects that there is none.
    fn compare_and_swap(&self, key: &Key, expected: Option<&Version>, body: Bytes) -> StoreResult<Swapped>;

    /// What time the store thinks it is: the clock for ages and leases.
    fn now(&self) -> StoreResult<Timestamp>;
}

/// What [`Store::create`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Created {
    /// The object was not there and now is.
    New,
    /// An object of that name was there; it was left as it is, and may hold other bytes.
    Existed,
}

/// What [`Store::compare_and_swap`] did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Swapped {
    /// The object now is this version.
    Done(Version),
    /// Somebody else was first; nothing was changed.
    Conflict,
}

/// Whether a listing goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Walk {
    /// Show me the next.
    On,
    /// I have seen enough.
    Stop,
}

/// An opaque mark that changes whenever an object does (S3: the `ETag`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version(pub String);

/// An object as it was read.
#[derive(Debug, Clone)]
pub struct Object {
    /// All of its bytes.
    pub body: Bytes,
    /// To be handed to [`Store::compare_and_swap`].
    pub version: Version,
}

/// An object as a listing shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its full key.
    pub key: Key,
    /// Bytes.
    pub size: u64,
    /// When it was last written, by the store's clock.
    pub modified: Timestamp,
}

/// How many bytes a range has; one that ends before it begins is a mistake.
fn range_length(range: &Range<u64>) -> Result<u64, StoreFault> {
    range.end.checked_sub(range.start).ok_or_else(|| StoreFault::Refused(format!("the range {range:?} is reversed")))
}
