//! Makes a backup of a running server: copy, close, secure the log, write the manifest.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use crate::engine::{Engine, EngineError, SnapshotRequest};
use crate::home::{self, Choice, Home};
use crate::logs::LogNeed;
use crate::progress::Progress;
use crate::repository::lease::Lease;
use crate::repository::store::Store;
use crate::repository::writer::{self, Compression, WriteOptions};
use crate::repository::{BackupId, Manifest, RepositoryError, Sizes, prune};
use crate::snapshot::BadPage;
use crate::steps::step;

/// How long a backup waits for the server to archive log that it no longer has itself.
const LOG_PATIENCE: Duration = Duration::from_mins(1);

/// What is asked for.
#[derive(Debug, Clone)]
pub struct BackupRequest {
    /// Which lineage it goes to.
    pub choice: Choice,
    /// Workers.
    pub threads: usize,
    /// How pages are compressed.
    pub compression: Compression,
    /// Files not read for so long are read again, however unchanged they look.
    pub reread_within: SignedDuration,
    /// Whether the server should hurry to its checkpoint.
    pub fast_checkpoint: bool,
    /// What the source answered to probes.
    pub probes: Vec<crate::probe::ProbeAnswer>,
}

/// What was made.
#[derive(Debug, Serialize)]
pub struct BackupReport {
    /// Its name.
    pub backup_id: BackupId,
    /// The lineage it is in.
    pub lineage: String,
    /// The system it is of.
    pub system_id: String,
    /// Where it is.
    pub repository: String,
    /// The backup it shares pages with, if any.
    pub previous: Option<BackupId>,
    /// How much it was.
    #[serde(flatten)]
    pub sizes: Sizes,
    /// What the engine says of it.
    pub record: serde_json::Value,
    /// Pages whose own checksum is wrong in the source.
    pub bad_pages: Vec<BadPage>,
    /// What people should know.
    pub notes: Vec<String>,
    /// SHA-256 of the manifest.
    pub manifest_sha256: String,
    /// How long it took.
    pub duration_seconds: f64,
}

/// Why there is no backup.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The server's side.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The store, directly.
    #[error(transparent)]
    Store(#[from] crate::repository::store::StoreError),
    /// The repository's side.
    #[error(transparent)]
    Repository(#[from] RepositoryError),
    /// Log that the backup needs is neither in the archive nor with the server.
    #[error("the backup needs {file}, which is neither in the repository nor in {source_path}: {advice}")]
    LogMissing {
        /// The log file.
        file: String,
        /// Where the server would keep it.
        source_path: String,
        /// What to do.
        advice: &'static str,
    },
    /// A prune marked what the backup shares with earlier ones.
    #[error("while the backup ran, a prune marked objects that it uses: the backup was withdrawn; run it again")]
    Pruned,
}

/// Makes a backup.
///
/// # Errors
/// Where there is none afterwards: what was stored until then is garbage that a later prune removes.
pub fn backup(
    engine: &mut dyn Engine,
    store: Arc<dyn Store>,
    request: &BackupRequest,
    progress: &Progress,
) -> Result<BackupReport, BackupError> {
    let clock = Instant::now();
    let identity = engine.identify()?;
    let home = home::of_server(store, &identity, &request.choice)?;
    let _lease = Lease::take(&home.system, &home.lineage.lineage, "backup")?;
    let previous = newest_manifest(&home)?;
    let started = home.system.store().now()?;
    let id = BackupId::after(home.system.backups(&home.lineage.lineage)?.last(), started);

    step("begin the backup in the server");
    let mut snapshot =
        engine.begin_snapshot(&SnapshotRequest { label: format!("holdfast {id}"), fast: request.fast_checkpoint })?;
    let options = write_options(&home, previous.as_ref(), request)?;
    step("copy the server's files");
    let written = {
        let snapshot = &mut *snapshot;
        let mut last = || snapshot.last_files().map_err(|error| RepositoryError::Refused(error.to_string()));
        writer::write(
            &home.system,
            previous.as_ref(),
            snapshot.files(),
            &mut last,
            snapshot.judge(),
            &options,
            progress,
        )?
    };
    let directories = snapshot.directories().to_vec();
    step("end the backup in the server");
    let end = snapshot.finish()?;
    for need in &end.log {
        secure(&home, need, request.threads)?;
    }

    let completed = home.system.store().now()?;
    let manifest = Manifest {
        repository_id: home.repository.id().to_owned(),
        system_id: home.system.id.clone(),
        lineage: home.lineage.lineage.clone(),
        backup_id: id.clone(),
        started,
        completed,
        clock_skew_ms: Timestamp::now().duration_since(completed).as_millis() as i64,
        agent_version: env!("CARGO_PKG_VERSION").to_owned(),
        engine: identity.engine.to_owned(),
        engine_version: identity.version,
        directories,
        maps: written.maps,
        sizes: written.sizes,
        bad_pages: written.bad_pages.clone(),
        engine_record: end.record.clone(),
        probes: request.probes.clone(),
    };
    let manifest_sha256 = home.system.write_manifest(&manifest)?;
    // Where it cannot be known, what the backup needs may be gone already.
    let marked = prune::uses_marked(&home.system, &manifest);
    if !matches!(marked, Ok(false)) {
        home.system.store().delete(&home.system.layout.manifest(&manifest.lineage, id.as_str()))?;
        return Err(marked.map_or_else(BackupError::from, |_| BackupError::Pruned));
    }
    Ok(BackupReport {
        backup_id: id,
        lineage: manifest.lineage,
        system_id: manifest.system_id,
        repository: home.repository.store().location(),
        previous: previous.map(|previous| previous.backup_id),
        sizes: written.sizes,
        record: end.record,
        bad_pages: written.bad_pages,
        notes: end.notes,
        manifest_sha256,
        duration_seconds: clock.elapsed().as_secs_f64(),
    })
}

/// The newest backup that can be read. One that is damaged is passed over: it must not stop new ones.
fn newest_manifest(home: &Home) -> Result<Option<Manifest>, RepositoryError> {
    for id in home.system.backups(&home.lineage.lineage)?.iter().rev() {
        match home.system.manifest(&home.lineage.lineage, id) {
            Ok((manifest, _)) => return Ok(Some(manifest)),
            Err(error) if error.as_damage().is_some() => {
                tracing::warn!(%error, "the manifest of an earlier backup cannot be used");
            }
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

fn write_options(
    home: &Home,
    previous: Option<&Manifest>,
    request: &BackupRequest,
) -> Result<WriteOptions, RepositoryError> {
    let now = Timestamp::now();
    let mut tombstones = prune::tombstoned(&home.system)?;
    if let Some(previous) = previous {
        tombstones.extend(known_damage(home, &previous.backup_id)?);
    }
    Ok(WriteOptions {
        threads: request.threads,
        compression: request.compression,
        now,
        reread_before: now.checked_sub(request.reread_within).unwrap_or(Timestamp::MIN),
        tombstones,
    })
}

/// What the newest check of a backup found damaged: the next backup stores it again instead of building on it.
fn known_damage(home: &Home, id: &BackupId) -> Result<HashSet<[u8; 32]>, RepositoryError> {
    let mut damaged = HashSet::new();
    // Evidence that cannot be read must not stop new backups.
    for evidence in home.system.sound_evidence(&home.lineage.lineage, id)?.0 {
        for damage in &evidence.damage {
            let mut digest = [0; 32];
            if hex::decode_to_slice(damage.object.rsplit('/').next().unwrap_or_default(), &mut digest).is_ok() {
                damaged.insert(digest);
            }
        }
    }
    Ok(damaged)
}

/// Makes sure that log which the backup needs is in the repository, whole, by reading it back.
fn secure(home: &Home, need: &LogNeed, threads: usize) -> Result<(), BackupError> {
    let log = home.system.log(&home.lineage.lineage);
    let deadline = Instant::now() + LOG_PATIENCE;
    loop {
        if log.has(&need.file)? {
            log.check(&need.file)?;
            return Ok(());
        }
        if let Some(bytes) = need.bytes {
            if log.tail_end(&need.file)?.is_some_and(|(end, _)| end >= bytes) {
                log.check_tail(&need.file)?;
                return Ok(());
            }
            if need.source.exists() {
                let mut shipping = log.begin_tail(&need.file)?;
                match log.ship_tail(&mut shipping, &need.source, bytes, None) {
                    Err(error) if error.is_transient() && Instant::now() < deadline => {}
                    shipped => shipped?,
                }
                continue;
            }
        } else if need.source.exists() {
            log.push(&need.file, &need.source, threads)?;
            continue;
        }
        if Instant::now() >= deadline {
            return Err(BackupError::LogMissing {
                file: need.file.to_string(),
                source_path: need.source.display().to_string(),
                advice: "set archive_command to `holdfast-agent wal-push %p` with this repository, see that the server \
                         archives, and run the backup again",
            });
        }
        // The server's own archiving may be about to store it.
        std::thread::park_timeout(Duration::from_millis(200));
    }
}
