//! What the use cases need from a database, whichever it is.
//!
//! [`Engine`] is a running server; [`Copies`] is what an engine knows about copies of it, with no server at all.

use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::logs::{LogName, LogNeed, LogNeeds};
use crate::probe::{Probe, ProbeAnswer, ProbeResult};
use crate::snapshot::{Directory, PageJudge, SourceFile};

pub mod postgres;

/// The outcome of asking an engine.
pub type EngineResult<T> = Result<T, EngineError>;

/// Why an engine could not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The server cannot be reached, or does not let us in.
    #[error("{0}")]
    Unreachable(String),
    /// The server or its files are not as they have to be; somebody has to change that.
    #[error("{0}")]
    Refused(String),
    /// What was being done was made void by what the server did meanwhile; it can be done again.
    #[error("{0}")]
    Void(String),
    /// The copy does not come back as it should: something is wrong with the data.
    #[error("{0}")]
    Data(String),
    /// A file or a program of this machine failed.
    #[error("{action} {path}: {source}")]
    Local {
        /// What was being done.
        action: &'static str,
        /// To what.
        path: String,
        /// Why it failed.
        source: std::io::Error,
    },
}

impl EngineError {
    /// An error with a file.
    pub fn local(action: &'static str, path: &Path, source: std::io::Error) -> Self {
        Self::Local { action, path: path.display().to_string(), source }
    }

    /// Whether the same can succeed later with nothing changed but time.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Unreachable(_) | Self::Void(_))
    }
}

/// Who a server is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// `postgresql` or `mysql`.
    pub engine: &'static str,
    /// The server's version, as it says.
    pub version: String,
    /// What copies of it share.
    pub system_id: String,
    /// Its data directory.
    pub data_directory: PathBuf,
    /// Whether it writes its own history, as a standby does not.
    pub is_writer: bool,
    /// The branch of the log it is on.
    pub branch: String,
    /// How far it has come, as the engine writes positions.
    pub position: String,
}

/// How a snapshot is begun.
#[derive(Debug, Clone)]
pub struct SnapshotRequest {
    /// What the server calls it meanwhile.
    pub label: String,
    /// Whether the server should hurry to a consistent point, at the price of more I/O.
    pub fast: bool,
}

/// A running server.
pub trait Engine {
    /// Who it is.
    ///
    /// # Errors
    /// Where it cannot be asked.
    fn identify(&mut self) -> EngineResult<Identity>;

    /// Opens a consistent physical snapshot. Checks first that the server is set up so that it can be restored.
    ///
    /// # Errors
    /// Where it is not, or the server refuses.
    fn begin_snapshot(&mut self, request: &SnapshotRequest) -> EngineResult<Box<dyn Snapshot>>;
}

/// A snapshot that is open on a server.
pub trait Snapshot {
    /// Directories to keep, parents first.
    fn directories(&self) -> &[Directory];
    /// Files to keep, sorted by path.
    fn files(&self) -> &[SourceFile];
    /// What judges their pages.
    fn judge(&self) -> &dyn PageJudge;
    /// Files that must be read after all others.
    ///
    /// # Errors
    /// Where they cannot be read whole.
    fn last_files(&self) -> EngineResult<Vec<SourceFile>>;
    /// Closes the snapshot: only then is it known what it is.
    ///
    /// # Errors
    /// Where what was copied is void.
    fn finish(self: Box<Self>) -> EngineResult<SnapshotEnd>;
}

/// A snapshot that was closed.
#[derive(Debug)]
pub struct SnapshotEnd {
    /// What the engine must know to bring it back. Only the engine looks into it.
    pub record: Value,
    /// The log without which it cannot be brought back.
    pub log: Vec<LogNeed>,
    /// What people should know.
    pub notes: Vec<String>,
}

/// Where recovery stops.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// At the end of the log.
    Latest,
    /// As soon as the backup is consistent.
    Immediate,
    /// After everything committed up to this time.
    Time(Timestamp),
    /// At this position, as the engine writes positions.
    Position(String),
    /// At a point that was named on the server.
    Name(String),
}

/// One stored log file, with its size in the store; and tails.
#[derive(Debug, Clone, Default)]
pub struct LogStock {
    /// Whole files by branch, sorted.
    pub files: Vec<LogName>,
    /// Files of which a tail is stored: up to which byte, and until when everything committed is before that.
    pub tails: Vec<(LogName, u64, Option<Timestamp>)>,
    /// The content of the files that say how branches descend from one another.
    pub histories: Vec<(LogName, Vec<u8>)>,
    /// The noted position: branch, position, and until when everything committed is before it.
    pub position: Option<(String, String, Timestamp)>,
}

/// A stretch of time and log that one can recover to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    /// The backup it begins with.
    pub backup: String,
    /// The first point: time, by the server's clock, and position.
    pub from_time: Timestamp,
    /// See `from_time`.
    pub from_position: String,
    /// Everything committed up to this time is there, as far as is known.
    pub until_time: Option<Timestamp>,
    /// The last position that is there.
    pub until_position: String,
    /// The branch it ends on.
    pub branch: String,
    /// The log file that is missing, where the window ends although there is later log.
    pub hole: Option<String>,
    /// The same, as the repository knows it.
    #[serde(skip)]
    pub hole_file: Option<LogName>,
}

/// What an engine knows of copies of its databases, from records alone.
pub trait Copies {
    /// Which log the kept backups need; for each record, whether it needs all log after it or only what makes it consistent.
    ///
    /// # Errors
    /// Where a record makes no sense.
    fn log_needs(&self, kept: &[(Value, bool)]) -> EngineResult<Box<dyn LogNeeds>>;

    /// What one can recover to, from each backup on: name, record. Newest last.
    ///
    /// # Errors
    /// Where a record makes no sense.
    fn windows(&self, backups: &[(String, Value)], stock: &LogStock) -> EngineResult<Vec<Window>>;

    /// The log files that must all be there for a backup to be consistent, and how many bytes of each.
    ///
    /// # Errors
    /// Where a record makes no sense.
    fn log_of(&self, record: &Value) -> EngineResult<Vec<(LogName, u64)>>;

    /// The backup from which a target can be reached.
    ///
    /// # Errors
    /// Where none can, with the points that are possible.
    fn choose(&self, choose: &Choose<'_>) -> EngineResult<Choice>;

    /// The file without which no server starts on a copy: it gets its name last.
    fn last_file(&self) -> &'static str;

    /// Links that a copy needs: where, relative to it, and where to.
    ///
    /// # Errors
    /// Where a tablespace has no place.
    fn links(&self, record: &Value, moved: &[(PathBuf, PathBuf)]) -> EngineResult<Vec<(String, PathBuf)>>;

    /// Makes sure that no server runs on a directory, and that what is in it, if anything, is a copy of the same system.
    ///
    /// # Errors
    /// Where one does, or may; where it is another system's.
    fn check_target(&self, data_directory: &Path, system_id: &str) -> EngineResult<()>;

    /// Adds to a copy what recovery needs beside its files, durably.
    ///
    /// # Errors
    /// Of the directory.
    fn lay_down(&self, copy: &LayDown<'_>) -> EngineResult<Laid>;

    /// Recovers a copy to its target with a server that nobody else can reach, makes it a database of its own, and stops it.
    ///
    /// # Errors
    /// Where the target is not reached.
    fn recover(&self, copy: &LayDown<'_>, bin_directory: Option<&Path>) -> EngineResult<Reached>;

    /// Recovers a copy to its target with a server that nobody else can reach, looks into it, and stops it.
    ///
    /// # Errors
    /// Where it does not come up at its target; what is found in it is no error, but a failure in the result.
    fn examine(&self, copy: &LayDown<'_>, examine: &Examine<'_>) -> EngineResult<Examined>;
}

/// What one wants to recover to, and from what.
#[derive(Debug, Clone, Copy)]
pub struct Choose<'a> {
    /// The point.
    pub target: &'a Target,
    /// The branch to follow, where it is not the newest.
    pub timeline: Option<u32>,
    /// Backups by name, with their records; oldest first.
    pub backups: &'a [(String, Value)],
    /// The log.
    pub stock: &'a LogStock,
}

/// The backup to recover from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// Which of the backups.
    pub backup: usize,
    /// The branch to follow.
    pub timeline: u32,
    /// The end of the log that is stored, as the engine writes positions.
    pub log_end: String,
    /// Everything that was committed up to then is known to be stored.
    pub complete_until: Timestamp,
    /// Whether log behind that end is stored too: then what lies between is missing.
    pub hole: bool,
}

/// A copy whose files are in place, and where it is to be recovered to.
#[derive(Debug, Clone, Copy)]
pub struct LayDown<'a> {
    /// Where it is.
    pub data_directory: &'a Path,
    /// The backup's record.
    pub record: &'a Value,
    /// Tablespaces that are at another place than they were: old, new.
    pub tablespaces: &'a [(PathBuf, PathBuf)],
    /// Where recovery stops.
    pub target: &'a Target,
    /// The branch to follow.
    pub timeline: u32,
    /// The end of the log that is stored.
    pub log_end: &'a str,
    /// Everything that was committed up to then is known to be stored.
    pub complete_until: Timestamp,
    /// Whether log behind that end is stored too.
    pub hole: bool,
    /// What fetches log: put before `wal-fetch %f %p`.
    pub fetch_command: &'a str,
}

/// What the engine added to a copy.
#[derive(Debug, Clone, Default)]
pub struct Laid {
    /// What starts a server on it that recovers to the target.
    pub start_command: Vec<String>,
    /// What people should know.
    pub notes: Vec<String>,
}

/// What recovery reached, asked of the server.
#[derive(Debug, Clone)]
pub struct Reached {
    /// Position, time, branch; the engine's words.
    pub record: Value,
    /// What people should know.
    pub notes: Vec<String>,
}

/// How a copy is looked into.
#[derive(Debug, Clone, Copy)]
pub struct Examine<'a> {
    /// Where the server's programs are.
    pub bin_directory: Option<&'a Path>,
    /// What is asked of it.
    pub probes: &'a [Probe],
    /// What the source answered when the backup was made.
    pub source: &'a [ProbeAnswer],
}

/// What was found in a copy.
#[derive(Debug, Default)]
pub struct Examined {
    /// What recovery reached; the engine's words.
    pub reached: Value,
    /// What was looked at; the engine's words.
    pub structure: Value,
    /// What the probes answered.
    pub probes: Vec<ProbeResult>,
    /// Named steps with how long they took.
    pub steps: Vec<(String, Duration)>,
    /// What speaks against the copy.
    pub failures: Vec<String>,
    /// What people should know.
    pub notes: Vec<String>,
}

/// What is known of the engine named in a manifest.
///
/// # Errors
/// Where this agent does not know it.
pub fn copies(engine: &str) -> EngineResult<&'static dyn Copies> {
    match engine {
        "postgresql" => Ok(&postgres::PostgresCopies),
        other => Err(EngineError::Refused(format!(
            "this agent does not know the engine {other:?}: use an agent at least as new as the one that made the backup"
        ))),
    }
}
