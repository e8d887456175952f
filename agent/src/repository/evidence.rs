//! Evidence: what a verification or a drill of a backup saw.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::document::Document;
use super::error::Damage;
use super::manifest::BackupId;

/// How thorough a check was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Everything the manifest names exists with its size and digest attributes.
    Objects,
    /// Every byte was read, decompressed and hashed again, and the log has no hole.
    Data,
    /// It was restored, started, recovered and asked.
    Drill,
}

/// How a check ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Everything was as it must be.
    Passed,
    /// Something is wrong with the data.
    Failed,
}

/// What one check of one backup saw.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    /// The backup.
    pub backup_id: BackupId,
    /// SHA-256 of the manifest that was checked.
    pub manifest_sha256: String,
    /// How thorough it was.
    pub level: Level,
    /// How it ended.
    pub verdict: Verdict,
    /// When it began and ended, by the store's clock.
    pub started: Timestamp,
    /// See `started`.
    pub finished: Timestamp,
    /// The version of the agent that checked.
    pub agent_version: String,
    /// Objects looked at.
    pub objects: u64,
    /// Bytes read.
    pub bytes: u64,
    /// What was damaged.
    pub damage: Vec<Damage>,
    /// What else spoke against the backup.
    pub failures: Vec<String>,
    /// What is worth knowing and speaks against nothing.
    pub notes: Vec<String>,
    /// Named steps with their durations in milliseconds.
    pub steps: Vec<Step>,
    /// What a drill reached and measured; the engine's words.
    pub details: serde_json::Value,
}

/// A step of a check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// What was done.
    pub name: String,
    /// How long it took, in milliseconds.
    pub duration_ms: u64,
}

impl Document for Evidence {
    const KIND: &'static str = "evidence";
    const LIMIT: u64 = 16 << 20;
}

/// What all evidence of a backup says together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing {
    /// The newest passed check of the level `data`, unless a later check failed.
    pub verified: Option<Timestamp>,
    /// The newest passed drill, unless a later check failed.
    pub proven: Option<Timestamp>,
    /// The newest check that failed, unless a later and at least as thorough one passed.
    pub failed: Option<Timestamp>,
}

impl Standing {
    /// Sums up `evidence`, oldest first.
    pub fn of<'a>(evidence: impl IntoIterator<Item = &'a Evidence>) -> Self {
        let mut standing = Self::default();
        let mut failed_level = None;
        for seen in evidence {
            match seen.verdict {
                Verdict::Failed => {
                    failed_level = failed_level.max(Some(seen.level));
                    standing = Self { failed: Some(seen.finished), ..Self::default() };
                }
                Verdict::Passed => {
                    if failed_level.is_some_and(|failed| seen.level < failed) {
                        continue;
                    }
                    failed_level = None;
                    standing.failed = None;
                    match seen.level {
                        Level::Objects => {}
                        Level::Data => standing.verified = Some(seen.finished),
                        Level::Drill => standing.proven = Some(seen.finished),
                    }
                }
            }
        }
        standing
    }
}
