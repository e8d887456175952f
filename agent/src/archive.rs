//! Archives WAL files and gives them back: what `archive_command` and `restore_command` call.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;

use crate::engine::EngineError;
use crate::engine::postgres::control::ControlFile;
use crate::engine::postgres::engine::identity_of_directory;
use crate::engine::postgres::history::History;
use crate::engine::postgres::lsn::{Lsn, Timeline};
use crate::engine::postgres::record::{PostgresRecord, log_name};
use crate::engine::postgres::wal::{WalFileName, WalName, WalNameKind, WalSegmentSize, segment_of};
use crate::engine::postgres::wal_page::check_first_page;
use crate::home::{self, Choice, Home};
use crate::logs::LogName;
use crate::repository::log::{Log, Pushed};
use crate::repository::store::Store;
use crate::repository::{Lineage, RepositoryError};

/// Why a WAL file was not archived or not given back.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// The repository's side.
    #[error(transparent)]
    Repository(#[from] RepositoryError),
    /// The data directory's side.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The file is not what its name says, or not of this server.
    #[error("{path} is not archived: {reason}")]
    Unsound {
        /// The file.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A standby may let go of log only once its primary has stored it.
    #[error("{0} is not stored yet: this server is a standby, and waits until its primary has archived it")]
    NotYet(String),
    /// It is not stored, and nothing after it is.
    #[error("{0} is not in the archive: it is past its end")]
    PastTheEnd(String),
    /// It is not stored, but later log is: to go on without it would lose transactions.
    #[error(
        "{missing} is missing in the archive, although {later} is there: recovery cannot pass this hole; \
             recover to a point before it (see `list`), or restore a backup that was made after it"
    )]
    Hole {
        /// What was asked for.
        missing: String,
        /// What is there.
        later: String,
    },
}

impl ArchiveError {
    /// The exit code that makes PostgreSQL do the right thing: 1 ends recovery (or makes a standby stream), above 125 is fatal.
    pub fn fetch_exit_code(&self, standby: bool) -> u8 {
        match self {
            Self::PastTheEnd(_) => 1,
            Self::Repository(error) if standby && error.is_transient() => 1,
            _ => 126,
        }
    }
}

/// What became of a file that was to be archived.
#[derive(Debug, Serialize)]
pub struct PushReport {
    /// The file.
    pub file: String,
    /// The lineage.
    pub lineage: String,
    /// Whether it was there already, with the same content.
    pub already_stored: bool,
}

/// Archives the file at `path` of the server whose data directory is the working directory (or two levels above it).
///
/// # Errors
/// Where it is not, durably, in the repository afterwards. Calling again is always safe.
pub fn push(store: Arc<dyn Store>, choice: &Choice, path: &Path, threads: usize) -> Result<PushReport, ArchiveError> {
    let data_directory = data_directory_of(path)?;
    let (identity, control) = identity_of_directory(&data_directory)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let unsound = |reason: String| ArchiveError::Unsound { path: path.display().to_string(), reason };
    let wal = WalName::parse(&name).map_err(|error| unsound(error.to_string()))?;
    if matches!(wal.kind(), WalNameKind::Segment | WalNameKind::Partial) {
        check_segment(path, &wal, &control).map_err(unsound)?;
    }
    let home = home::of_server(store, &identity, choice)?;
    let file = log_name(wal.timeline(), &wal);
    let log = home.system.log(&home.lineage.lineage);
    if !identity.is_writer && !log.has(&file)? {
        return Err(ArchiveError::NotYet(file.name));
    }
    let pushed = log.push(&file, path, threads)?;
    if pushed == Pushed::New && wal.kind() == WalNameKind::Segment {
        log.drop_tail(&file)?;
    }
    Ok(PushReport { file: file.name, lineage: home.lineage.lineage, already_stored: pushed == Pushed::Same })
}

fn data_directory_of(path: &Path) -> Result<PathBuf, ArchiveError> {
    let above = path.parent().and_then(Path::parent).map(Path::to_path_buf);
    let candidates = above.into_iter().filter(|_| path.is_absolute()).chain([PathBuf::from(".")]);
    for candidate in candidates {
        if candidate.join("global/pg_control").exists() {
            return Ok(candidate);
        }
    }
    Err(EngineError::Refused(format!(
        "{} is in no data directory: call this from archive_command, with %p as PostgreSQL gives it",
        path.display()
    ))
    .into())
}

fn check_segment(path: &Path, wal: &WalName, control: &ControlFile) -> Result<(), String> {
    let mut page = Vec::with_capacity(8192);
    File::open(path).and_then(|file| file.take(8192).read_to_end(&mut page)).map_err(|error| error.to_string())?;
    let first = check_first_page(&page).map_err(|error| error.to_string())?;
    let size = control.wal_segment_size;
    let (WalFileName::Segment(segment) | WalFileName::Partial(segment)) =
        WalFileName::parse(wal.as_str(), size).map_err(|error| error.to_string())?
    else {
        return Err("its name is not that of a segment".to_owned());
    };
    first.belongs_to(control.system_identifier, &segment).map_err(|error| error.to_string())?;
    let length = std::fs::metadata(path).map_err(|error| error.to_string())?.len();
    if length != u64::from(size.bytes()) {
        return Err(format!("it has {length} bytes, a segment of this server has {}", size.bytes()));
    }
    Ok(())
}

/// What is asked of the archive.
#[derive(Debug, Clone)]
pub struct FetchRequest {
    /// The system; may be left out where the repository has only one.
    pub system_id: Option<String>,
    /// The lineage; may be left out where the system has only one.
    pub lineage: Option<String>,
    /// The file's name, `%f`.
    pub name: String,
    /// Where it goes, `%p`.
    pub target: PathBuf,
    /// Log past this position is not given out.
    pub until: Option<Lsn>,
    /// Workers.
    pub threads: usize,
}

/// Gives a file back, whole and checked; of a segment that was never finished, as much as is known, with zeros behind it.
///
/// # Errors
/// Where it is not there, with what that means; damage; the store's.
pub fn fetch(store: Arc<dyn Store>, request: &FetchRequest) -> Result<(), ArchiveError> {
    let home = home::to_read(store, request.system_id.as_deref(), request.lineage.as_deref())?;
    let wal = WalName::parse(&request.name).map_err(|error| EngineError::Refused(error.to_string()))?;
    let file = log_name(wal.timeline(), &wal);
    let segments = wal.kind() == WalNameKind::Segment;
    let until = Until::of(&home, request.until.filter(|_| segments))?;
    if until.as_ref().is_some_and(|until| until.ends_before(&request.name)) {
        return Err(ArchiveError::PastTheEnd(request.name.clone()));
    }
    for lineage in ancestry(&home)? {
        let log = home.system.log(&lineage.lineage);
        match log.fetch(&file, &request.target, request.threads) {
            Err(RepositoryError::Store(error)) if error.is_not_found() => {}
            Err(error) => return Err(error.into()),
            Ok(_) => return until.map_or(Ok(()), |until| until.cut(&request.name, &request.target)),
        }
        if segments && log.fetch_tail(&file, &request.target)? {
            return until.map_or(Ok(()), |until| until.cut(&request.name, &request.target));
        }
    }
    if segments && let Some(later) = later_log(&home, &file)? {
        return Err(ArchiveError::Hole { missing: request.name.clone(), later });
    }
    Err(ArchiveError::PastTheEnd(request.name.clone()))
}

/// The lineage and those it came from, nearest first.
fn ancestry(home: &Home) -> Result<Vec<Lineage>, RepositoryError> {
    let mut chain = vec![home.lineage.clone()];
    if home.lineage.parent.is_some() {
        let all: BTreeMap<String, Lineage> = home.system.lineages_by_name()?;
        while let Some(parent) =
            chain.last().and_then(|last| last.parent.as_ref()).and_then(|fork| all.get(&fork.lineage))
        {
            if chain.iter().any(|seen| seen.lineage == parent.lineage) {
                break;
            }
            chain.push(parent.clone());
        }
    }
    Ok(chain)
}

/// Whether log after `file`, of its own history, is stored: then the end was not reached, `file` is missing.
fn later_log(home: &Home, file: &LogName) -> Result<Option<String>, RepositoryError> {
    let log = home.system.log(&home.lineage.lineage);
    if let Some(later) = later_on(&log, &file.branch, &file.name)? {
        return Ok(Some(later));
    }
    let Some(size) = segment_size(home)? else {
        return Ok(None);
    };
    let (Ok(WalFileName::Segment(segment)), Ok(timeline)) =
        (WalFileName::parse(&file.name, size), u32::from_str_radix(&file.branch, 16))
    else {
        return Ok(None);
    };
    for branch in log.branches()?.into_iter().filter(|branch| *branch > file.branch) {
        let history = LogName { branch: branch.clone(), name: format!("{branch}.history") };
        let child = Timeline(u32::from_str_radix(&branch, 16).unwrap_or(0));
        let (true, true) = (log.has(&history)?, child.0 > timeline) else {
            continue;
        };
        // A history that makes no sense is no descendant; `verify` says that it is damaged.
        let Ok(history) = History::parse(child, &log.read(&history)?) else {
            continue;
        };
        if history.fork_point(Timeline(timeline)).is_some_and(|fork| segment_of(fork, size) > segment.number) {
            return Ok(later_on(&log, &branch, "")?.or(Some(format!("{branch}.history"))));
        }
    }
    Ok(None)
}

fn later_on(log: &Log<'_>, branch: &str, name: &str) -> Result<Option<String>, RepositoryError> {
    let stored = log.names(branch)?.into_iter().map(|(name, _)| name);
    let is_segment = |name: &String| WalName::parse(name).is_ok_and(|name| name.kind() == WalNameKind::Segment);
    Ok(stored.chain(log.tails(branch)?).filter(is_segment).find(|stored| stored.as_str() > name))
}

/// The segment size of the lineage's newest backup that can be read.
///
/// # Errors
/// The store's.
pub fn segment_size(home: &Home) -> Result<Option<WalSegmentSize>, RepositoryError> {
    for id in home.system.backups(&home.lineage.lineage)?.iter().rev() {
        if let Ok((manifest, _)) = home.system.manifest(&home.lineage.lineage, id)
            && let Ok(record) = PostgresRecord::parse(&manifest.engine_record)
        {
            return Ok(Some(record.wal_segment_size));
        }
    }
    Ok(None)
}

/// The position behind which no log is given out.
struct Until {
    lsn: Lsn,
    size: WalSegmentSize,
}

impl Until {
    fn of(home: &Home, lsn: Option<Lsn>) -> Result<Option<Self>, ArchiveError> {
        let Some(lsn) = lsn else {
            return Ok(None);
        };
        let size = segment_size(home)?.ok_or_else(|| {
            RepositoryError::Absent(
                "no backup tells the WAL segment size, so log cannot be cut at a position".to_owned(),
            )
        })?;
        Ok(Some(Self { lsn, size }))
    }

    fn segment(&self, name: &str) -> Option<crate::engine::postgres::wal::WalSegment> {
        match WalFileName::parse(name, self.size) {
            Ok(WalFileName::Segment(segment)) => Some(segment),
            _ => None,
        }
    }

    fn ends_before(&self, name: &str) -> bool {
        self.segment(name).is_some_and(|segment| segment.start() >= self.lsn)
    }

    /// Zeros behind the position: the server takes them for the end of the log.
    fn cut(&self, name: &str, target: &Path) -> Result<(), ArchiveError> {
        let Some(segment) = self.segment(name).filter(|segment| segment.end() > self.lsn) else {
            return Ok(());
        };
        let failed = |error| EngineError::local("cutting", target, error);
        let file = File::options().write(true).open(target).map_err(failed)?;
        file.set_len(self.lsn.0 - segment.start().0).map_err(failed)?;
        file.set_len(u64::from(self.size.bytes())).map_err(failed)?;
        Ok(())
    }
}
