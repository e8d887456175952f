//! Lets go of backups that retention no longer wants, of log that none needs, and of objects that none names.

use jiff::SignedDuration;
use serde::Serialize;

use crate::engine::{self, EngineError};
use crate::home::Home;
use crate::logs::LogNeeds;
use crate::repository::lease::Lease;
use crate::repository::prune::{self, PrunePlan, Request};
use crate::repository::retention::{Decision, Policy};
use crate::repository::{BackupId, Manifest, RepositoryError, RepositoryResult};

/// What is asked for.
#[derive(Debug, Clone)]
pub struct PruneRequest {
    /// What to keep.
    pub policy: Policy,
    /// One backup that goes whatever the policy says.
    pub forget: Option<BackupId>,
    /// How long what no backup names stays before it is deleted.
    pub grace: SignedDuration,
    /// Only say what would be done.
    pub dry_run: bool,
}

/// What was done, or would be.
#[derive(Debug, Serialize)]
pub struct PruneReport {
    /// The plan.
    #[serde(flatten)]
    pub plan: PrunePlan,
    /// Whether it was carried out.
    pub executed: bool,
}

/// Why nothing was let go.
#[derive(Debug, thiserror::Error)]
pub enum PruneError {
    /// The repository's side.
    #[error(transparent)]
    Repository(#[from] RepositoryError),
    /// What the engine says of a manifest.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The last backup that is known to come back is not given up.
    #[error("{id} is the last {what} backup: it is not forgotten; make and {verb} another one first")]
    LastGood {
        /// The backup.
        id: BackupId,
        /// `proven`, `verified`.
        what: &'static str,
        /// `drill`, `verify`.
        verb: &'static str,
    },
}

/// Plans, and carries out unless it is a dry run.
///
/// # Errors
/// Where nothing, or not everything, was done; running it again does the rest.
pub fn prune(home: &Home, request: &PruneRequest) -> Result<PruneReport, PruneError> {
    let leases = if request.dry_run { Vec::new() } else { leases(home)? };
    if let Some(id) = &request.forget {
        check_forget(home, id)?;
    }
    let asked = Request {
        lineage: Some(home.lineage.lineage.clone()),
        policy: request.policy,
        forget: request.forget.clone(),
        grace: request.grace,
    };
    let copies = engine::copies(&home.lineage.engine)?;
    let needs_of = |kept: &[(Manifest, Decision)]| -> RepositoryResult<Box<dyn LogNeeds>> {
        let records: Vec<_> = kept
            .iter()
            .map(|(manifest, decision)| (manifest.engine_record.clone(), *decision != Decision::Pinned))
            .collect();
        copies.log_needs(&records).map_err(|error| RepositoryError::Refused(error.to_string()))
    };
    let plan = prune::plan(&home.system, &asked, &needs_of)?;
    if !request.dry_run {
        prune::execute(&home.system, &plan, request.grace)?;
    }
    drop(leases);
    Ok(PruneReport { plan, executed: !request.dry_run })
}

/// No backup runs while a prune does: what it has stored and no manifest names yet would look like garbage.
fn leases(home: &Home) -> RepositoryResult<Vec<Lease>> {
    let mut leases = Vec::new();
    for lineage in home.system.lineages()? {
        leases.push(Lease::take(&home.system, &lineage.lineage, "prune")?);
        leases.push(Lease::take(&home.system, &lineage.lineage, "backup")?);
    }
    Ok(leases)
}

fn check_forget(home: &Home, id: &BackupId) -> Result<(), PruneError> {
    let lineage = &home.lineage.lineage;
    if home.system.lost_backups(lineage)?.contains(id) {
        return Ok(());
    }
    if !home.system.backups(lineage)?.contains(id) {
        return Err(RepositoryError::Absent(format!("there is no backup {id} in lineage {lineage}: see `list`")).into());
    }
    let (mut proven, mut verified) = (Vec::new(), Vec::new());
    for candidate in prune::candidates(&home.system, lineage)? {
        if candidate.proven {
            proven.push(candidate.id.clone());
        }
        if candidate.verified {
            verified.push(candidate.id);
        }
    }
    if proven == [id.clone()] {
        return Err(PruneError::LastGood { id: id.clone(), what: "proven", verb: "drill" });
    }
    if verified == [id.clone()] {
        return Err(PruneError::LastGood { id: id.clone(), what: "verified", verb: "verify" });
    }
    Ok(())
}
