//! What can go wrong with a server of our own.

use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;

use super::connection::ConnectError;
use super::control::ControlError;
use super::lsn::Lsn;
use super::server_log::{Ending, LastReachable};
use super::server_settings::DirectoryError;

/// What went wrong with a server of our own.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The data directory's control file.
    #[error("cannot start a server: {0}")]
    Control(#[from] ControlError),
    /// Directories and their owners.
    #[error("cannot start a server: {0}")]
    Directory(#[from] DirectoryError),
    /// The program could not be run.
    #[error("cannot run {}: {source}", program.display())]
    Run {
        /// The program.
        program: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The configuration of the copy is refused.
    #[error("the server refuses the copy's configuration: {0}")]
    Configuration(String),
    /// It ended before it should.
    #[error("the server on {} ended ({status}): {}", data_dir.display(), describe(ending))]
    Ended {
        /// Its data directory.
        data_dir: PathBuf,
        /// Its exit status.
        status: ExitStatus,
        /// What its log says.
        ending: Box<Ending>,
        /// Its log.
        log: PathBuf,
    },
    /// Recovery came to the end of the log before its target.
    #[error("the target lies past what can be recovered: {0}")]
    TargetMissed(LastReachable),
    /// Recovery stands still for want of settings.
    #[error(
        "recovery stands still at {0}: after this backup the source was given higher max_connections, \
         max_worker_processes, max_wal_senders, max_prepared_transactions or max_locks_per_transaction. Raise them for \
         the copy and recover again"
    )]
    LacksSettings(Lsn),
    /// It took too long.
    #[error("the server on {} was not {wanted} in time: {seen}", data_dir.display())]
    Deadline {
        /// Its data directory.
        data_dir: PathBuf,
        /// What was waited for.
        wanted: &'static str,
        /// What was seen instead.
        seen: String,
        /// Its log.
        log: PathBuf,
    },
    /// It takes no session.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A question was not answered.
    #[error("{doing} failed: {reason}")]
    Query {
        /// What was being done.
        doing: &'static str,
        /// What the server said.
        reason: String,
    },
    /// It could not be watched or signalled.
    #[error("cannot {doing} the server: {source}")]
    Process {
        /// What was being done.
        doing: &'static str,
        /// Why not.
        source: io::Error,
    },
}

fn describe(ending: &Ending) -> String {
    let lines = if ending.lines.is_empty() { "it says nothing about why".into() } else { ending.lines.join("; ") };
    let meaning = if ending.meaning.is_empty() { String::new() } else { format!(". {}", ending.meaning) };
    format!("{lines}{meaning}")
}
