//! What can go wrong with a repository.

use serde::{Deserialize, Serialize};

use super::store::{Key, StoreError};

/// The outcome of reading or writing a repository.
pub type RepositoryResult<T> = Result<T, RepositoryError>;

/// A failure of the repository: the store's, or of what the store holds.
#[derive(Debug, thiserror::Error)]
pub enum RepositoryError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// An object is there, but is not what it must be.
    #[error(transparent)]
    Damaged(#[from] Damage),
    /// An object with that name is there and holds something else.
    #[error(
        "{object} already exists with other content (there {there}, here {here}): nothing was overwritten. {advice}"
    )]
    Conflict {
        /// The object's key.
        object: String,
        /// The digest of what is stored.
        there: String,
        /// The digest of what was to be stored.
        here: String,
        /// The way out.
        advice: &'static str,
    },
    /// What was asked for is not in the repository.
    #[error("{0}")]
    Absent(String),
    /// The repository, or the part of it, belongs to somebody else, or to a newer version.
    #[error("{0}")]
    Refused(String),
    /// Somebody else is at work.
    #[error("{0}")]
    Busy(String),
    /// A local file could not be read or written while the repository was being used.
    #[error("{action} {path}: {source}")]
    Local {
        /// What was being done.
        action: &'static str,
        /// The file.
        path: String,
        /// Why it failed.
        source: std::io::Error,
    },
    /// Compression failed.
    #[error("compressing pages: {0}")]
    Compression(std::io::Error),
}

/// An object that is not what its name, its digest or the format say it is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, thiserror::Error)]
#[error("{object} is damaged: {what}")]
pub struct Damage {
    /// The object's key.
    pub object: String,
    /// What is wrong with it.
    pub what: String,
}

impl Damage {
    /// Damage of the object at `key`.
    pub fn of(key: &Key, what: impl Into<String>) -> Self {
        Self { object: key.to_string(), what: what.into() }
    }
}

impl RepositoryError {
    /// Whether the same call can succeed later with nothing changed but time.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Store(error) => error.is_transient(),
            Self::Busy(_) => true,
            _ => false,
        }
    }

    /// The damage, where an object is truncated or missing as well as where its content is wrong.
    pub fn as_damage(&self) -> Option<Damage> {
        use super::store::StoreFault::{NotFound, Short, TooLarge};
        match self {
            Self::Damaged(damage) => Some(damage.clone()),
            Self::Store(error) => match error.fault {
                NotFound => Some(Damage { object: error.key.clone(), what: "it is missing".to_owned() }),
                Short { .. } | TooLarge { .. } => {
                    Some(Damage { object: error.key.clone(), what: error.fault.to_string() })
                }
                _ => None,
            },
            _ => None,
        }
    }
}
