//! What a PostgreSQL backup's manifest says that only this engine understands.

use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::inventory::DatabaseInventory;
use super::lsn::{Lsn, Timeline};
use super::wal::{SegmentNumber, WalSegment, WalSegmentSize, segment_before, segment_of};
use crate::engine::{EngineError, EngineResult};
use crate::logs::LogName;

/// A backup, as PostgreSQL needs to know it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PostgresRecord {
    /// The server's version number, as `server_version_num`.
    pub version_num: u32,
    /// The role that `initdb` made: it can always look into a copy.
    #[serde(default = "usual_superuser")]
    pub superuser: String,
    /// Where recovery begins.
    pub start_lsn: Lsn,
    /// Where the copy becomes consistent.
    pub stop_lsn: Lsn,
    /// The timeline it was made on.
    pub timeline: Timeline,
    /// When it was begun, by the server's clock.
    pub start_time: Timestamp,
    /// When it ended, by the server's clock: it can be recovered to any time from then on.
    pub stop_time: Timestamp,
    /// Bytes of a WAL segment.
    pub wal_segment_size: WalSegmentSize,
    /// Whether the server's pages carry checksums.
    pub data_checksums: bool,
    /// Whether it was made from a standby.
    pub from_standby: bool,
    /// `backup_label`, byte for byte, in Base64.
    pub backup_label: String,
    /// `tablespace_map`, byte for byte, in Base64.
    pub tablespace_map: String,
    /// The tablespaces outside of the data directory.
    pub tablespaces: Vec<TablespaceRecord>,
    /// What was in the databases when it ended.
    pub databases: Vec<DatabaseInventory>,
}

/// A tablespace outside of the data directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TablespaceRecord {
    /// Its number.
    pub oid: u32,
    /// Where it was.
    pub location: PathBuf,
}

fn usual_superuser() -> String {
    "postgres".to_owned()
}

/// Bytes as a record holds them.
pub(super) fn encode(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

fn decode(what: &str, text: &str) -> EngineResult<Vec<u8>> {
    STANDARD.decode(text).map_err(|error| EngineError::Data(format!("the backup's {what} is not Base64: {error}")))
}

impl PostgresRecord {
    /// Reads a record.
    ///
    /// # Errors
    /// Where it is none of this engine.
    pub fn parse(record: &Value) -> EngineResult<Self> {
        Self::deserialize(record)
            .map_err(|error| EngineError::Data(format!("the manifest's PostgreSQL record cannot be read: {error}")))
    }

    /// The server's major version.
    pub fn major(&self) -> u32 {
        self.version_num / 10_000
    }

    /// `backup_label`.
    ///
    /// # Errors
    /// Where the record is damaged.
    pub fn backup_label(&self) -> EngineResult<Vec<u8>> {
        decode("backup_label", &self.backup_label)
    }

    /// `tablespace_map`.
    ///
    /// # Errors
    /// Where the record is damaged.
    pub fn tablespace_map(&self) -> EngineResult<Vec<u8>> {
        decode("tablespace_map", &self.tablespace_map)
    }

    /// The first and the last segment that it cannot be restored without.
    pub fn segments(&self) -> (SegmentNumber, SegmentNumber) {
        let first = segment_of(self.start_lsn, self.wal_segment_size);
        (first, segment_before(self.stop_lsn, self.wal_segment_size).max(first))
    }

    /// The segment with a number, on the backup's timeline.
    pub fn segment(&self, number: SegmentNumber) -> WalSegment {
        WalSegment { timeline: self.timeline, number, size: self.wal_segment_size }
    }

    /// All segments that it cannot be restored without.
    pub fn needed_segments(&self) -> impl Iterator<Item = WalSegment> + '_ {
        let (first, last) = self.segments();
        (first.0..=last.0).map(|number| self.segment(SegmentNumber(number)))
    }
}

/// A log file's name in the repository: its branch is its timeline.
pub fn log_name(timeline: Timeline, name: &(impl ToString + ?Sized)) -> LogName {
    LogName { branch: timeline.hex(), name: name.to_string() }
}

/// A segment's name in the repository.
pub fn segment_name(segment: &WalSegment) -> LogName {
    log_name(segment.timeline, segment)
}

/// The timeline a branch of the log stands for.
pub fn timeline_of_branch(branch: &str) -> Option<Timeline> {
    (branch.len() == 8).then(|| u32::from_str_radix(branch, 16).ok()).flatten().map(Timeline)
}
