//! The vocabulary that engines and the repository share about logs.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// One file of a log.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LogName {
    /// The branch: a timeline, a server UUID.
    pub branch: String,
    /// The file's name.
    pub name: String,
}

impl std::fmt::Display for LogName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)
    }
}

/// A log file that a backup cannot be restored without.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogNeed {
    /// Its name.
    pub file: LogName,
    /// Where the server keeps it, until it is archived.
    pub source: PathBuf,
    /// How much of it is needed: all, once it is complete, or this many bytes.
    pub bytes: Option<u64>,
}

/// What decides which log files the kept backups need. Engines know.
pub trait LogNeeds {
    /// Whether any of the kept backups needs the file.
    fn is_needed(&self, file: &LogName) -> bool;
}
