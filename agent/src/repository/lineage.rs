//! Lineages: one history of one data directory's writers.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::document::Document;

/// Who writes a history: copies that share a system identifier never share a lineage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lineage {
    /// Its own name.
    pub lineage: String,
    /// The repository it is in.
    pub repository_id: String,
    /// The system it is of.
    pub system_id: String,
    /// `postgresql` or `mysql`.
    pub engine: String,
    /// When it was begun, by the store's clock.
    pub created: Timestamp,
    /// Whose it is.
    pub owner: Owner,
    /// Where it left another, if it is a copy.
    pub parent: Option<Fork>,
}

impl Document for Lineage {
    const KIND: &'static str = "lineage";
}

/// The data directory that a lineage is the history of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// The machine's name.
    pub host: String,
    /// The data directory on it.
    pub data_directory: String,
}

impl std::fmt::Display for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.host, self.data_directory)
    }
}

/// Where a lineage left its parent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fork {
    /// The parent.
    pub lineage: String,
    /// The branch of the parent's log that it was on.
    pub branch: String,
    /// The position it left it at, as the engine writes positions.
    pub position: String,
}
