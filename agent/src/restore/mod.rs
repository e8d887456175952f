//! Lays a backup down in a directory: every file, every page checked; what recovery needs beside them; the file that
//! makes it a database last.
//!
//! Ended at any point, it leaves a directory that no server starts on, and that the same command completes.

mod files;
mod marker;
mod place;

use std::path::PathBuf;
use std::time::Instant;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use crate::engine::{self, Choose, EngineError, Laid, LayDown, Target};
use crate::home::Home;
use crate::progress::Progress;
use crate::repository::{BackupId, Damage, Manifest, RepositoryError, Standing};
use crate::stock::stock;

pub use files::Restored;
pub use place::PlaceError;

/// What is asked for.
#[derive(Debug, Clone)]
pub struct RestoreRequest {
    /// The backup; else the newest that can reach the target.
    pub backup: Option<BackupId>,
    /// Where it goes.
    pub data_directory: PathBuf,
    /// Where recovery is to stop.
    pub target: Target,
    /// The branch of the log to follow, where it is not the newest.
    pub timeline: Option<u32>,
    /// Use what is in the directory already, and rewrite only what differs.
    pub delta: bool,
    /// Tablespaces that go to another place than they were at.
    pub tablespaces: Vec<(PathBuf, PathBuf)>,
    /// Workers.
    pub threads: usize,
    /// What fetches log: put before `wal-fetch %f %p`.
    pub fetch_command: String,
    /// Recover at once, with a server of our own.
    pub recover: bool,
    /// Where that server's programs are.
    pub bin_directory: Option<PathBuf>,
}

/// What was laid down.
#[derive(Debug, Serialize)]
pub struct RestoreReport {
    /// The backup.
    pub backup_id: BackupId,
    /// Its lineage.
    pub lineage: String,
    /// Where it is now.
    pub data_directory: PathBuf,
    /// Files, and bytes written, kept and left as holes.
    #[serde(flatten)]
    pub restored: Restored,
    /// What starts a server on it that recovers to the target.
    pub start_command: Vec<String>,
    /// What recovery reached, if it was asked for; the engine's words.
    pub reached: Option<Value>,
    /// What people should know.
    pub notes: Vec<String>,
    /// How long it took.
    pub duration_seconds: f64,
}

/// Why it was not restored.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The repository's side.
    #[error(transparent)]
    Repository(#[from] RepositoryError),
    /// The engine's side.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The place where it was to go.
    #[error(transparent)]
    Place(#[from] PlaceError),
}

/// A backup that was chosen, and how it is recovered.
#[derive(Debug, Clone)]
pub struct Chosen {
    /// Its name.
    pub id: BackupId,
    /// Its manifest, and the SHA-256 of that.
    pub manifest: Manifest,
    /// See `manifest`.
    pub sha256: String,
    /// The branch to follow.
    pub timeline: u32,
    /// The position behind which nothing is known, as the engine writes positions.
    pub log_end: String,
    /// Everything that was committed up to then is known to be stored.
    pub complete_until: Timestamp,
    /// Whether log behind that position is stored too.
    pub hole: bool,
}

/// Restores a backup.
///
/// # Errors
/// Where it is not, or not completely: the same command goes on where it was.
pub fn restore(home: &Home, request: &RestoreRequest, progress: &Progress) -> Result<RestoreReport, RestoreError> {
    let clock = Instant::now();
    let chosen = choose(home, request)?;
    let copies = engine::copies(&chosen.manifest.engine)?;
    let (restored, laid) = lay_chosen(home, &chosen, request, progress)?;
    let mut notes = laid.notes;
    let reached = if request.recover {
        let reached = copies.recover(&lay_down(&chosen, request), request.bin_directory.as_deref())?;
        notes.extend(reached.notes);
        Some(reached.record)
    } else {
        None
    };
    Ok(RestoreReport {
        backup_id: chosen.id,
        lineage: home.lineage.lineage.clone(),
        data_directory: request.data_directory.clone(),
        restored,
        start_command: laid.start_command,
        reached,
        notes,
        duration_seconds: clock.elapsed().as_secs_f64(),
    })
}

/// Lays a backup down, with all that recovery needs; the file that makes it a database last.
pub(crate) fn lay_chosen(
    home: &Home,
    chosen: &Chosen,
    request: &RestoreRequest,
    progress: &Progress,
) -> Result<(Restored, Laid), RestoreError> {
    let copies = engine::copies(&chosen.manifest.engine)?;
    let links = copies.links(&chosen.manifest.engine_record, &request.tablespaces)?;
    copies.check_target(&request.data_directory, &chosen.manifest.system_id)?;
    let prepared = place::prepare(request, chosen, &links, copies.last_file())?;
    let restored = files::write(home, chosen, request, &prepared, copies.last_file(), progress)?;
    let laid = copies.lay_down(&lay_down(chosen, request))?;
    place::finish(&request.data_directory, copies.last_file())?;
    Ok((restored, laid))
}

/// What the engine needs to know to lay down its own files and to recover.
pub(crate) fn lay_down<'a>(chosen: &'a Chosen, request: &'a RestoreRequest) -> LayDown<'a> {
    LayDown {
        data_directory: &request.data_directory,
        record: &chosen.manifest.engine_record,
        tablespaces: &request.tablespaces,
        target: &request.target,
        timeline: chosen.timeline,
        log_end: &chosen.log_end,
        complete_until: chosen.complete_until,
        hole: chosen.hole,
        fetch_command: &request.fetch_command,
    }
}

/// Chooses the backup from which the target can be reached, and says which points are possible where none can.
///
/// # Errors
/// Where there is none; the store's.
pub fn choose(home: &Home, request: &RestoreRequest) -> Result<Chosen, RestoreError> {
    let lineage = &home.lineage.lineage;
    let mut records = Vec::new();
    for id in home.system.backups(lineage)? {
        match (&request.backup, home.system.manifest(lineage, &id)) {
            (Some(wanted), _) if *wanted != id => {}
            (None, Ok((manifest, _))) if is_unfit(home, &manifest)? => {}
            (_, Ok((manifest, _))) => records.push((id.to_string(), manifest.engine_record)),
            (None, Err(error)) if error.as_damage().is_some() => {
                tracing::warn!(%error, "a backup cannot be used");
            }
            (_, Err(error)) => return Err(error.into()),
        }
    }
    if let (true, Some(id)) = (records.is_empty(), &request.backup)
        && home.system.lost_backups(lineage)?.contains(id)
    {
        let manifest = home.system.layout.manifest(lineage, id.as_str());
        return Err(RepositoryError::from(Damage::of(
            &manifest,
            "it is missing, although the backup was checked or pinned",
        ))
        .into());
    }
    if records.is_empty() {
        return Err(RepositoryError::Absent(match &request.backup {
            Some(id) => format!("there is no backup {id} in lineage {lineage}: see `list`"),
            None => format!("lineage {lineage} has no backup that could be restored: see `list`"),
        })
        .into());
    }
    let copies = engine::copies(&home.lineage.engine)?;
    let choice =
        Choose { target: &request.target, timeline: request.timeline, backups: &records, stock: &stock(home)? };
    let found = copies.choose(&choice)?;
    let id: BackupId = records[found.backup].0.parse().map_err(RepositoryError::Absent)?;
    let (manifest, sha256) = home.system.manifest(lineage, &id)?;
    let engine::Choice { timeline, log_end, complete_until, hole, .. } = found;
    Ok(Chosen { id, manifest, sha256, timeline, log_end, complete_until, hole })
}

/// Whether the newest check of a backup said that it is damaged.
fn is_unfit(home: &Home, manifest: &Manifest) -> Result<bool, RepositoryError> {
    // Evidence that cannot be read must not stop a restore, which checks every page itself.
    let (evidence, _) = home.system.sound_evidence(&manifest.lineage, &manifest.backup_id)?;
    let broken = evidence.iter().filter(|evidence| !evidence.damage.is_empty());
    Ok(Standing::of(broken).failed.is_some() && Standing::of(&evidence).failed.is_some())
}
