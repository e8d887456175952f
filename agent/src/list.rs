//! Lists what a lineage has, and what one can recover to.

use jiff::Timestamp;
use serde::Serialize;

use crate::engine::{self, EngineError, Window};
use crate::home::Home;
use crate::repository::{BackupId, Damage, RepositoryError, Sizes, Standing};
use crate::stock::{lost_position, stock};

/// What a lineage has.
#[derive(Debug, Serialize)]
pub struct ListReport {
    /// Where it is.
    pub repository: String,
    /// The system.
    pub system_id: String,
    /// The lineage.
    pub lineage: String,
    /// Whose it is.
    pub owner: String,
    /// Its backups, oldest first.
    pub backups: Vec<BackupLine>,
    /// What one can recover to.
    pub windows: Vec<Window>,
    /// What could not be read.
    pub damaged: Vec<Damage>,
    /// How far ahead of the store's clock this machine's is, in seconds.
    pub clock_skew_seconds: f64,
}

/// A backup in short.
#[derive(Debug, Serialize)]
pub struct BackupLine {
    /// Its name.
    pub id: BackupId,
    /// When it was begun, by the store's clock.
    pub started: Timestamp,
    /// When it was done, by the store's clock.
    pub completed: Timestamp,
    /// The server's version.
    pub engine_version: String,
    /// How much it is.
    #[serde(flatten)]
    pub sizes: Sizes,
    /// How many pages were bad in the source.
    pub bad_pages: usize,
    /// What verifications and drills said.
    #[serde(flatten)]
    pub standing: Standing,
    /// Whether it stays whatever retention says.
    pub pinned: bool,
}

/// Why nothing can be listed.
#[derive(Debug, thiserror::Error)]
pub enum ListError {
    /// The repository's side.
    #[error(transparent)]
    Repository(#[from] RepositoryError),
    /// The store, directly.
    #[error(transparent)]
    Store(#[from] crate::repository::store::StoreError),
    /// What the engine says of a manifest.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// Lists a lineage. What is damaged is named, and the rest is listed.
///
/// # Errors
/// The store's.
pub fn list(home: &Home) -> Result<ListReport, ListError> {
    let lineage = &home.lineage.lineage;
    let mut report = ListReport {
        repository: home.repository.store().location(),
        system_id: home.system.id.clone(),
        lineage: lineage.clone(),
        owner: home.lineage.owner.to_string(),
        backups: Vec::new(),
        windows: Vec::new(),
        damaged: Vec::new(),
        clock_skew_seconds: Timestamp::now().duration_since(home.system.store().now()?).as_secs_f64(),
    };
    let mut records = Vec::new();
    for id in home.system.backups(lineage)? {
        match line(home, &id, &mut report.damaged) {
            Ok((line, record)) => {
                records.push((id.to_string(), record));
                report.backups.push(line);
            }
            Err(error) => report.damaged.push(error.as_damage().ok_or(error)?),
        }
    }
    for id in home.system.lost_backups(lineage)? {
        report.damaged.push(Damage::of(&home.system.layout.manifest(lineage, id.as_str()), "it is missing"));
    }
    if let Err(error) = home.system.log(lineage).position() {
        report.damaged.push(error.as_damage().ok_or(error)?);
    }
    match stock(home) {
        Ok(stock) => {
            report.damaged.extend(lost_position(home, &stock)?);
            report.windows = engine::copies(&home.lineage.engine)?.windows(&records, &stock)?;
        }
        Err(error) => report.damaged.push(error.as_damage().ok_or(error)?),
    }
    Ok(report)
}

fn line(
    home: &Home,
    id: &BackupId,
    damaged: &mut Vec<Damage>,
) -> Result<(BackupLine, serde_json::Value), RepositoryError> {
    let lineage = &home.lineage.lineage;
    let (manifest, _) = home.system.manifest(lineage, id)?;
    let (evidence, unreadable) = home.system.sound_evidence(lineage, id)?;
    damaged.extend(unreadable);
    let line = BackupLine {
        id: id.clone(),
        started: manifest.started,
        completed: manifest.completed,
        engine_version: manifest.engine_version,
        sizes: manifest.sizes,
        bad_pages: manifest.bad_pages.len(),
        standing: Standing::of(&evidence),
        pinned: home.system.is_pinned(lineage, id)?,
    };
    Ok((line, manifest.engine_record))
}
