//! Drills: restores a backup into a scratch directory, recovers it, looks into it, keeps what was seen, and removes it.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::json;

use crate::engine::{self, EngineError, Examine, Examined, Target};
use crate::home::Home;
use crate::probe::Probe;
use crate::progress::Progress;
use crate::repository::{BackupId, Evidence, Level, RepositoryError, Step, Verdict};
use crate::restore::{self, Chosen, RestoreError, RestoreRequest};

/// What is asked for.
#[derive(Debug, Clone)]
pub struct DrillRequest {
    /// The backup; else the newest that can reach the target.
    pub backup: Option<BackupId>,
    /// Where recovery is to stop.
    pub target: Target,
    /// The branch of the log to follow, where it is not the newest.
    pub timeline: Option<u32>,
    /// A directory below which the copy is made.
    pub scratch: PathBuf,
    /// What is asked of the copy.
    pub probes: Vec<Probe>,
    /// Where the server's programs are.
    pub bin_directory: Option<PathBuf>,
    /// Workers.
    pub threads: usize,
    /// What fetches log: put before `wal-fetch %f %p`.
    pub fetch_command: String,
    /// Leave the copy where it is.
    pub keep: bool,
}

/// What a drill saw, and where that is kept.
#[derive(Debug, Serialize)]
pub struct DrillReport {
    /// What it saw.
    #[serde(flatten)]
    pub evidence: Evidence,
    /// Where that is in the repository.
    pub evidence_key: String,
    /// Where the copy is, if it was kept.
    pub kept: Option<PathBuf>,
    /// From nothing to a database that answers, in seconds.
    pub measured_rto_seconds: f64,
}

/// Why there was no drill.
#[derive(Debug, thiserror::Error)]
pub enum DrillError {
    /// The restore's side.
    #[error(transparent)]
    Restore(#[from] RestoreError),
    /// The repository's side.
    #[error(transparent)]
    Repository(#[from] RepositoryError),
    /// The store, directly.
    #[error(transparent)]
    Store(#[from] crate::repository::store::StoreError),
    /// The engine's side.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The scratch directory.
    #[error("making a scratch directory in {}: {source}", path.display())]
    Scratch {
        /// Where.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

/// Drills a backup. A copy that does not come back, or answers wrongly, is no error, but a failed verdict, kept as evidence.
///
/// # Errors
/// Where nothing was found out about the backup.
pub fn drill(home: &Home, request: &DrillRequest, progress: &Progress) -> Result<DrillReport, DrillError> {
    let started = home.system.store().now()?;
    let clock = Instant::now();
    let scratch = Scratch::new(&request.scratch, request.keep)?;
    let mut restoring = restoring(request, &scratch);
    let chosen = restore::choose(home, &restoring)?;
    let copies = engine::copies(&chosen.manifest.engine)?;
    // Every tablespace goes into the scratch directory too: nothing outside of it is touched.
    for (number, (_, old)) in copies.links(&chosen.manifest.engine_record, &[])?.into_iter().enumerate() {
        restoring.tablespaces.push((old, scratch.path.join(format!("tablespace-{number}"))));
    }
    let mut steps: Vec<(String, Duration)> = Vec::new();
    let examined = run(home, &chosen, &restoring, request, progress, &mut steps);
    let measured_rto_seconds = clock.elapsed().as_secs_f64();
    let examined = match examined {
        Ok(examined) => examined,
        // What the repository or the copy holds is wrong: that is what a drill is there to find.
        Err(error) => Examined { failures: vec![describe(error)?], ..Examined::default() },
    };
    steps.extend(examined.steps.iter().cloned());
    let evidence = Evidence {
        backup_id: chosen.id.clone(),
        manifest_sha256: chosen.sha256.clone(),
        level: Level::Drill,
        verdict: if examined.failures.is_empty() { Verdict::Passed } else { Verdict::Failed },
        started,
        finished: home.system.store().now()?,
        agent_version: env!("CARGO_PKG_VERSION").to_owned(),
        objects: 0,
        bytes: chosen.manifest.sizes.database_bytes,
        damage: Vec::new(),
        failures: examined.failures,
        notes: examined.notes,
        steps: steps.into_iter().map(|(name, took)| Step { name, duration_ms: took.as_millis() as u64 }).collect(),
        details: json!({
            "target": format!("{:?}", request.target),
            "reached": examined.reached,
            "structure": examined.structure,
            "probes": examined.probes,
            "measured_rto_seconds": measured_rto_seconds,
        }),
    };
    let evidence_key = home.system.write_evidence(&home.lineage.lineage, &evidence)?.to_string();
    let kept = request.keep.then(|| scratch.path.clone());
    Ok(DrillReport { evidence, evidence_key, kept, measured_rto_seconds })
}

fn restoring(request: &DrillRequest, scratch: &Scratch) -> RestoreRequest {
    RestoreRequest {
        backup: request.backup.clone(),
        data_directory: scratch.path.join("data"),
        target: request.target.clone(),
        timeline: request.timeline,
        delta: false,
        tablespaces: Vec::new(),
        threads: request.threads,
        fetch_command: request.fetch_command.clone(),
        recover: false,
        bin_directory: request.bin_directory.clone(),
    }
}

fn run(
    home: &Home,
    chosen: &Chosen,
    restoring: &RestoreRequest,
    request: &DrillRequest,
    progress: &Progress,
    steps: &mut Vec<(String, Duration)>,
) -> Result<Examined, RestoreError> {
    let clock = Instant::now();
    restore::lay_chosen(home, chosen, restoring, progress)?;
    steps.push(("restore".to_owned(), clock.elapsed()));
    let copies = engine::copies(&chosen.manifest.engine)?;
    let examine = Examine {
        bin_directory: request.bin_directory.as_deref(),
        probes: &request.probes,
        source: &chosen.manifest.probes,
    };
    Ok(copies.examine(&restore::lay_down(chosen, restoring), &examine)?)
}

/// A failure that says something about the backup, in words; one that does not is passed on.
fn describe(error: RestoreError) -> Result<String, DrillError> {
    match error {
        RestoreError::Repository(error) => match error.as_damage() {
            Some(damage) => Ok(damage.to_string()),
            None => Err(error.into()),
        },
        RestoreError::Engine(EngineError::Data(what)) => Ok(what),
        // No room, no programs: the drill failed, and the gate stays shut; but it says nothing about the backup.
        other => Err(other.into()),
    }
}

/// A directory that is removed with all that is in it.
struct Scratch {
    path: PathBuf,
    keep: bool,
}

impl Scratch {
    fn new(parent: &Path, keep: bool) -> Result<Self, DrillError> {
        let failed = |source| DrillError::Scratch { path: parent.to_path_buf(), source };
        let name = format!("holdfast-drill-{}", std::process::id());
        let path = parent.join(name);
        std::fs::create_dir(&path).map_err(failed)?;
        let scratch = Self { path, keep };
        give_to_owner(parent, &scratch.path).map_err(failed)?;
        std::fs::create_dir(scratch.path.join("data")).map_err(failed)?;
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        std::fs::set_permissions(scratch.path.join("data"), mode).map_err(failed)?;
        give_to_owner(&scratch.path, &scratch.path.join("data")).map_err(failed)?;
        Ok(scratch)
    }
}

/// As root, the copy belongs to whoever owns the scratch directory: a server does not run as root.
fn give_to_owner(parent: &Path, path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::MetadataExt as _;
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let owner = std::fs::metadata(parent)?;
    std::os::unix::fs::chown(path, Some(owner.uid()), Some(owner.gid()))
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if self.keep {
            return;
        }
        if let Err(error) = std::fs::remove_dir_all(&self.path) {
            tracing::warn!(directory = %self.path.display(), %error, "the drill's scratch directory could not be removed");
        }
    }
}
