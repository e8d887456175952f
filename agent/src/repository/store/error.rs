//! What can go wrong with a store.

use super::Key;

/// The outcome of a call to a store.
pub type StoreResult<T> = Result<T, StoreError>;

/// A call to a store that failed: what was done, to which object, where, and why.
#[derive(Debug, thiserror::Error)]
#[error("{action} {key} in {location}: {fault}")]
pub struct StoreError {
    /// The call: `create`, `get`, ...
    pub action: &'static str,
    /// The object or prefix; `-` for the repository as a whole.
    pub key: String,
    /// The store, without credentials.
    pub location: String,
    /// Why.
    pub fault: StoreFault,
}

/// Why a call to a store failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreFault {
    /// There is no such object.
    #[error("there is no such object")]
    NotFound,
    /// The object ends before the bytes that were asked for.
    #[error("the object has {size} bytes, but bytes up to {wanted} were asked for: it was truncated")]
    Short {
        /// Its size.
        size: u64,
        /// The end of the range.
        wanted: u64,
    },
    /// The object is larger than it can rightly be.
    #[error("the object has {size} bytes, more than the {limit} it can rightly have")]
    TooLarge {
        /// Its size.
        size: u64,
        /// The most that was expected.
        limit: u64,
    },
    /// The store has no room.
    #[error("no space left: free some or enlarge it, then run the command again; what was stored so far will be used")]
    Full,
    /// The store knows us but does not let us, or does not know us.
    #[error("access was denied ({0}): check the credentials and what they are allowed to do")]
    Denied(String),
    /// The store could not be reached or asked to be left alone for a while: trying again can help.
    #[error("the store is unavailable ({0})")]
    Unavailable(String),
    /// Anything the store refuses for good.
    #[error("{0}")]
    Refused(String),
}

impl StoreError {
    /// An error of `action` on `key`.
    pub fn new(action: &'static str, key: &Key, location: String, fault: StoreFault) -> Self {
        let key = if key.as_str().is_empty() { "-".to_owned() } else { key.to_string() };
        Self { action, key, location, fault }
    }

    /// Whether the same call can succeed later with nothing changed but time.
    pub fn is_transient(&self) -> bool {
        matches!(self.fault, StoreFault::Unavailable(_))
    }

    /// Whether the object simply is not there.
    pub fn is_not_found(&self) -> bool {
        matches!(self.fault, StoreFault::NotFound)
    }
}
