//! Finds the lineage that a server writes, and refuses those that are not its own.

use std::sync::Arc;

use crate::engine::Identity;
use crate::repository::store::Store;
use crate::repository::{Fork, Lineage, Owner, Repository, RepositoryError, RepositoryResult, System};

/// How a lineage is chosen.
#[derive(Debug, Clone, Default)]
pub struct Choice {
    /// Exactly this one.
    pub lineage: Option<String>,
    /// A new one is begun where none belongs to the server.
    pub new_lineage: bool,
    /// The repository, and the first lineage of a system, are made where there are none. Only a backup does that: log that
    /// goes to a place that merely looks empty, as a volume does that is not mounted, would be missed later.
    pub may_begin: bool,
}

/// A lineage, and the system it is of.
#[derive(Debug)]
pub struct Home {
    /// The repository.
    pub repository: Repository,
    /// The system.
    pub system: System,
    /// The lineage.
    pub lineage: Lineage,
}

/// Opens the repository on `store` and finds the lineage of `identity`, or begins it.
///
/// # Errors
/// Where the repository holds other systems only, or the system's history belongs to another data directory.
pub fn of_server(store: Arc<dyn Store>, identity: &Identity, choice: &Choice) -> RepositoryResult<Home> {
    let repository = if choice.may_begin { Repository::open_or_create(store)? } else { Repository::open(store)? };
    let systems = repository.systems()?;
    let system = repository.system(&identity.system_id);
    if !systems.contains(&identity.system_id) {
        if let (Some(other), false) = (systems.first(), choice.new_lineage) {
            return Err(foreign(&repository, identity, other));
        }
        if !choice.may_begin {
            return Err(RepositoryError::Absent(format!(
                "the repository {} has no backup of system {} yet: nothing was stored. Run `backup` first",
                repository.store().location(),
                identity.system_id
            )));
        }
        let lineage = system.begin_lineage(identity.engine, owner(identity), None)?;
        return Ok(Home { repository, system, lineage });
    }
    let lineages = system.lineages()?;
    if let Some(lineage) = choose(&lineages, identity, choice)? {
        return Ok(Home { repository, system, lineage });
    }
    let parent = lineages.last().map(|parent| Fork {
        lineage: parent.lineage.clone(),
        branch: identity.branch.clone(),
        position: identity.position.clone(),
    });
    let lineage = system.begin_lineage(identity.engine, owner(identity), parent)?;
    Ok(Home { repository, system, lineage })
}

fn owner(identity: &Identity) -> Owner {
    Owner {
        host: hostname::get().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default(),
        data_directory: identity.data_directory.display().to_string(),
    }
}

/// The lineage to write to; `None` where a new one is to be begun.
fn choose(lineages: &[Lineage], identity: &Identity, choice: &Choice) -> RepositoryResult<Option<Lineage>> {
    if let Some(name) = &choice.lineage {
        let found = lineages.iter().find(|lineage| lineage.lineage == *name).cloned();
        return found.map(Some).ok_or_else(|| no_such_lineage(name, lineages));
    }
    let here = owner(identity);
    if let Some(own) = lineages.iter().rev().find(|lineage| lineage.owner == here) {
        return Ok(Some(own.clone()));
    }
    match lineages {
        [] => Ok(None),
        // A standby writes no history of its own: it belongs to whom it follows.
        [only] if !identity.is_writer => Ok(Some(only.clone())),
        _ if choice.new_lineage => Ok(None),
        _ => Err(RepositoryError::Refused(format!(
            "system {} is archived here by {}, and this is {here}: nothing was written. \
             If this server is a copy with a history of its own, run `backup --new-lineage` once; \
             if it is the same database, moved or a standby, name its lineage with --lineage {}",
            identity.system_id,
            names(lineages),
            lineages.iter().map(|lineage| lineage.lineage.as_str()).collect::<Vec<_>>().join(" or "),
        ))),
    }
}

fn names(lineages: &[Lineage]) -> String {
    lineages
        .iter()
        .map(|lineage| format!("{} (lineage {})", lineage.owner, lineage.lineage))
        .collect::<Vec<_>>()
        .join(", ")
}

fn no_such_lineage(name: &str, lineages: &[Lineage]) -> RepositoryError {
    RepositoryError::Absent(format!("there is no lineage {name:?} of this system; there is {}", names(lineages)))
}

fn foreign(repository: &Repository, identity: &Identity, other: &str) -> RepositoryError {
    RepositoryError::Refused(format!(
        "the repository {} is of system {other}, and this server is system {}: nothing was written. \
         Name another repository; or, to keep both in this one, run `backup --new-lineage` once",
        repository.store().location(),
        identity.system_id
    ))
}

/// A lineage to read from: named, or the only one there is, or that of the newest backup.
///
/// # Errors
/// Where there is none, or several systems to choose from.
pub fn to_read(store: Arc<dyn Store>, system_id: Option<&str>, lineage: Option<&str>) -> RepositoryResult<Home> {
    let repository = Repository::open(store)?;
    let systems = repository.systems()?;
    let system_id = match (system_id, systems.as_slice()) {
        (Some(named), _) if systems.iter().any(|system| system == named) => named.to_owned(),
        (Some(named), _) => {
            return Err(RepositoryError::Absent(format!(
                "there is no system {named} in {}",
                repository.store().location()
            )));
        }
        (None, [only]) => only.clone(),
        (None, []) => {
            return Err(RepositoryError::Absent(format!(
                "the repository {} is empty: run `backup` first",
                repository.store().location()
            )));
        }
        (None, several) => {
            return Err(RepositoryError::Refused(format!(
                "the repository holds several systems: say which with --system-id: {}",
                several.join(", ")
            )));
        }
    };
    let system = repository.system(&system_id);
    let lineages = system.lineages()?;
    let found = match lineage {
        Some(name) => lineages.iter().find(|lineage| lineage.lineage == name).cloned(),
        None if lineages.len() == 1 => lineages.first().cloned(),
        None => newest(&system, &lineages)?,
    };
    let lineage = found.ok_or_else(|| match lineage {
        Some(name) => no_such_lineage(name, &lineages),
        None => {
            RepositoryError::Absent(format!("system {system_id} has no backup in {}", repository.store().location()))
        }
    })?;
    Ok(Home { repository, system, lineage })
}

fn newest(system: &System, lineages: &[Lineage]) -> RepositoryResult<Option<Lineage>> {
    let mut newest = None;
    for lineage in lineages {
        if let Some(id) = system.backups(&lineage.lineage)?.pop()
            && newest.as_ref().is_none_or(|(newest, _)| id > *newest)
        {
            newest = Some((id, lineage.clone()));
        }
    }
    Ok(newest.map(|(_, lineage)| lineage))
}
