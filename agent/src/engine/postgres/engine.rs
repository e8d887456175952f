//! A running PostgreSQL as an [`Engine`].

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::checksum::{PageVerdict, judge};
use super::connect_options::ConnectOptions;
use super::connection::{ConnectError, connect};
use super::control::{self, CONTROL_FILE, ControlFile};
use super::facts::{ServerFacts, facts};
use super::flush::Flushing;
use super::inventory::{InventoryError, inventory};
use super::listing::{self, Listing};
use super::lsn::{Lsn, Timeline};
use super::record::{PostgresRecord, TablespaceRecord, encode, log_name, segment_name};
use super::session::{BackupSession, Checkpoint, Started};
use super::session_error::SessionError;
use crate::engine::{Engine, EngineError, EngineResult, Identity, Snapshot, SnapshotEnd, SnapshotRequest};
use crate::logs::LogNeed;
use crate::snapshot::{Directory, PageJudge, Source, SourceFile, Stamp};

/// The oldest version that the agent backs up.
const OLDEST: u32 = 150_000;

/// A server is ready to serve at most so long after its postmaster began.
const START_UP_SECONDS: i64 = 300;

/// A running server and its data directory.
#[derive(Debug)]
pub struct PostgresServer {
    options: ConnectOptions,
    data_directory: PathBuf,
}

impl PostgresServer {
    /// The server that `options` reach, whose files are at `data_directory`.
    pub fn new(options: ConnectOptions, data_directory: PathBuf) -> Self {
        Self { options, data_directory }
    }

    /// Opens a session that asks how far the log is flushed.
    ///
    /// # Errors
    /// Where the server cannot be asked, or the data directory is not its own.
    pub fn flushing(&self) -> EngineResult<Flushing> {
        let (client, _, _) = self.ask()?;
        Ok(Flushing::new(client))
    }

    /// Asks the server who it is, and whether the data directory really is its own.
    fn ask(&self) -> EngineResult<(postgres::Client, ServerFacts, ControlFile)> {
        let control = control::read(&self.data_directory).map_err(|error| EngineError::Refused(error.to_string()))?;
        let mut client = connect(&self.options, None).map_err(EngineError::from)?;
        let facts = facts(&mut client).map_err(EngineError::from)?;
        if facts.system_identifier != control.system_identifier {
            return Err(EngineError::Refused(format!(
                "{} is of system {}, but the server that answers is system {} with the data directory {}: \
                 give the data directory of that server (--data-dir), or connect to the right one (--host, --port)",
                self.data_directory.display(),
                control.system_identifier,
                facts.system_identifier,
                facts.data_directory.display()
            )));
        }
        check_runs_here(&self.data_directory, &facts)?;
        Ok((client, facts, control))
    }
}

/// A copy has the system identifier of its original. Reading the one while the other is in backup mode would give a
/// backup of nothing that ever was; `postmaster.pid` is only where a server runs, and tells when it was started.
fn check_runs_here(data_directory: &Path, facts: &ServerFacts) -> EngineResult<()> {
    let file = fs::read_to_string(data_directory.join("postmaster.pid")).unwrap_or_default();
    // The third line is the time at which the postmaster began, the server's own is when it was ready to serve.
    let began = file.lines().nth(2).and_then(|line| line.trim().parse::<i64>().ok());
    let between = began.map(|began| facts.started.as_second() - began);
    if between.is_some_and(|seconds| (-START_UP_SECONDS..=START_UP_SECONDS).contains(&seconds)) {
        return Ok(());
    }
    Err(EngineError::Refused(format!(
        "the server that answers does not run on {}, by the postmaster.pid there, although the system is the same: it \
         says that its data directory is {}; give that (--data-dir), or connect to the right server (--host, --port)",
        data_directory.display(),
        facts.data_directory.display()
    )))
}

/// What a data directory says of itself, with no server asked.
///
/// # Errors
/// Where it is none.
pub fn identity_of_directory(data_directory: &Path) -> EngineResult<(Identity, ControlFile)> {
    let control = control::read(data_directory).map_err(|error| EngineError::Refused(error.to_string()))?;
    let standby = data_directory.join("standby.signal").exists();
    let identity = Identity {
        engine: "postgresql",
        version: String::new(),
        system_id: control.system_identifier.to_string(),
        data_directory: canonical(data_directory)?,
        is_writer: !standby,
        branch: control.timeline.hex(),
        position: control.checkpoint.to_string(),
    };
    Ok((identity, control))
}

fn canonical(data_directory: &Path) -> EngineResult<PathBuf> {
    fs::canonicalize(data_directory).map_err(|error| EngineError::local("opening", data_directory, error))
}

/// What has to be set on the server for its backups to be restorable to any time.
fn check_settings(facts: &ServerFacts) -> EngineResult<()> {
    let refuse = |what: String| Err(EngineError::Refused(what));
    if facts.version_num < OLDEST {
        return refuse(format!(
            "the server is PostgreSQL {}: version 15 is the oldest that is backed up",
            facts.version
        ));
    }
    if facts.wal_level == "minimal" {
        return refuse(
            "the server runs with wal_level = minimal, so its log cannot bring a backup back: \
                       set wal_level = replica and restart it"
                .to_owned(),
        );
    }
    if facts.archive_mode == "off" {
        return refuse("the server runs with archive_mode = off, so log that a backup needs can be lost while it runs: set \
                       archive_mode = on and archive_command = 'holdfast-agent --repository ... wal-push %p', and restart it".to_owned());
    }
    if facts.archive_command.is_empty() && facts.archive_library.is_empty() && !facts.in_recovery {
        return refuse(
            "the server archives nothing (archive_command is empty): set \
                       archive_command = 'holdfast-agent --repository ... wal-push %p' and reload it"
                .to_owned(),
        );
    }
    Ok(())
}

impl Engine for PostgresServer {
    fn identify(&mut self) -> EngineResult<Identity> {
        let (_, facts, control) = self.ask()?;
        Ok(Identity {
            engine: "postgresql",
            version: facts.version,
            system_id: facts.system_identifier.to_string(),
            data_directory: canonical(&self.data_directory)?,
            is_writer: !facts.in_recovery,
            branch: facts.timeline.hex(),
            position: control.checkpoint.to_string(),
        })
    }

    fn begin_snapshot(&mut self, request: &SnapshotRequest) -> EngineResult<Box<dyn Snapshot>> {
        let (client, facts, control) = self.ask()?;
        check_settings(&facts)?;
        let checkpoint = if request.fast { Checkpoint::Fast } else { Checkpoint::Spread };
        let (session, started) = BackupSession::start(client, &request.label, checkpoint).map_err(EngineError::from)?;
        // Listed after the start: a file that is made later is made again by the log.
        let listing = listing::list(&self.data_directory).map_err(|error| EngineError::Refused(error.to_string()))?;
        let files = files_of(&self.data_directory, &listing, &control, facts.data_checksums);
        let directories = listing
            .directories
            .iter()
            .map(|directory| Directory { path: directory.path.clone(), mode: directory.mode })
            .collect();
        let judge = Checksums { start: started.start_lsn, enabled: facts.data_checksums };
        Ok(Box::new(OpenSnapshot {
            options: self.options.clone(),
            data_directory: self.data_directory.clone(),
            session,
            started,
            facts,
            control,
            listing,
            directories,
            files,
            judge,
        }))
    }
}

/// All files but the control file, which is read last.
fn files_of(data_directory: &Path, listing: &Listing, control: &ControlFile, checksums: bool) -> Vec<SourceFile> {
    let files = listing.files.iter().filter(|file| file.path != CONTROL_FILE);
    files
        .map(|file| SourceFile {
            path: file.path.clone(),
            source: Source::File(data_directory.join(&file.path)),
            size: file.size,
            stamp: Stamp { mtime_ns: file.mtime_ns, ctime_ns: file.ctime_ns, inode: file.inode },
            mode: file.mode,
            first_block: file
                .relation
                .as_ref()
                .filter(|_| checksums)
                .map(|relation| relation.segment.wrapping_mul(control.blocks_per_segment)),
        })
        .collect()
}

/// Judges pages by their checksums.
struct Checksums {
    start: Lsn,
    enabled: bool,
}

impl PageJudge for Checksums {
    fn is_sound(&self, block: u32, page: &[u8]) -> bool {
        !self.enabled || !matches!(judge(page, block, self.start), PageVerdict::Bad { .. })
    }
}

struct OpenSnapshot {
    options: ConnectOptions,
    data_directory: PathBuf,
    session: BackupSession,
    started: Started,
    facts: ServerFacts,
    control: ControlFile,
    listing: Listing,
    directories: Vec<Directory>,
    files: Vec<SourceFile>,
    judge: Checksums,
}

impl Snapshot for OpenSnapshot {
    fn directories(&self) -> &[Directory] {
        &self.directories
    }

    fn files(&self) -> &[SourceFile] {
        &self.files
    }

    fn judge(&self) -> &dyn PageJudge {
        &self.judge
    }

    fn last_files(&self) -> EngineResult<Vec<SourceFile>> {
        let path = self.data_directory.join(CONTROL_FILE);
        let failed = |error| EngineError::local("reading", &path, error);
        // The server writes it in one go, but a reader can still see half of that: then its CRC is wrong.
        let mut fault = String::new();
        for _ in 0..10 {
            let bytes = fs::read(&path).map_err(failed)?;
            match control::parse(&bytes) {
                Ok(_) => {
                    let listed = self.listing.files.iter().find(|file| file.path == CONTROL_FILE);
                    let stamp = listed.map_or(Stamp { mtime_ns: 0, ctime_ns: 0, inode: 0 }, |file| Stamp {
                        mtime_ns: file.mtime_ns,
                        ctime_ns: file.ctime_ns,
                        inode: file.inode,
                    });
                    return Ok(vec![SourceFile {
                        path: CONTROL_FILE.to_owned(),
                        size: bytes.len() as u64,
                        source: Source::Bytes(bytes),
                        stamp,
                        mode: listed.map_or(0o600, |file| file.mode),
                        first_block: None,
                    }]);
                }
                Err(error) => fault = error.to_string(),
            }
        }
        Err(EngineError::Void(format!("{} could not be read whole: {fault}", path.display())))
    }

    fn finish(self: Box<Self>) -> EngineResult<SnapshotEnd> {
        let stopped = self.session.stop(false).map_err(EngineError::from)?;
        let databases = inventory(&self.options).map_err(EngineError::from)?.databases;
        let record = PostgresRecord {
            version_num: self.facts.version_num,
            superuser: self.facts.superuser.clone(),
            start_lsn: self.started.start_lsn,
            stop_lsn: stopped.stop_lsn,
            timeline: self.started.timeline,
            start_time: self.started.at,
            stop_time: stopped.at,
            wal_segment_size: self.control.wal_segment_size,
            data_checksums: self.facts.data_checksums,
            from_standby: self.started.on_standby,
            backup_label: encode(&stopped.backup_label),
            tablespace_map: encode(&stopped.tablespace_map),
            tablespaces: self
                .listing
                .tablespaces
                .iter()
                .map(|tablespace| TablespaceRecord { oid: tablespace.oid, location: tablespace.location.clone() })
                .collect(),
            databases,
        };
        let mut notes = self.listing.notes.clone();
        if !self.facts.archive_command.contains("wal-push") && !self.facts.in_recovery {
            notes.push(
                "archive_command does not call `holdfast-agent wal-push`: this backup is complete, but times after it can \
                 only be recovered if the log is archived here"
                    .to_owned(),
            );
        }
        let log = log_needs(&self.data_directory, &record);
        Ok(SnapshotEnd { record: json!(record), log, notes })
    }
}

fn log_needs(data_directory: &Path, record: &PostgresRecord) -> Vec<LogNeed> {
    let wal = data_directory.join("pg_wal");
    let mut needs: Vec<LogNeed> = record
        .needed_segments()
        .map(|segment| LogNeed { file: segment_name(&segment), source: wal.join(segment.to_string()), bytes: None })
        .collect();
    if let Some(last) = needs.last_mut().filter(|_| record.from_standby) {
        // A standby cannot make the primary finish a segment; what it has replayed up to the backup's end is enough.
        let start = record.segment(record.segments().1).start();
        last.bytes = Some(record.stop_lsn.0 - start.0);
    }
    if record.timeline > Timeline(1) {
        let history = format!("{}.history", record.timeline.hex());
        needs.push(LogNeed { file: log_name(record.timeline, &history), source: wal.join(history), bytes: None });
    }
    needs
}

impl From<ConnectError> for EngineError {
    fn from(error: ConnectError) -> Self {
        Self::Unreachable(error.to_string())
    }
}

impl From<SessionError> for EngineError {
    fn from(error: SessionError) -> Self {
        if error.is_transient() { Self::Void(error.to_string()) } else { Self::Refused(error.to_string()) }
    }
}

impl From<InventoryError> for EngineError {
    fn from(error: InventoryError) -> Self {
        if error.is_transient() { Self::Unreachable(error.to_string()) } else { Self::Refused(error.to_string()) }
    }
}
