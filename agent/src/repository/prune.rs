//! Pruning: a plan first, then its execution.
//!
//! Objects are never deleted at once. A prune marks what no manifest names (a tombstone), waits the grace, reads all
//! manifests again, and deletes what still is named by none. A backup never uses what is marked, and looks at the marks
//! again after it has written its manifest: so either the prune sees the manifest, or the backup sees the mark.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::document::{self, Document};
use super::error::{Damage, RepositoryResult};
use super::manifest::{BackupId, Manifest, MapRow};
use super::retention::{Candidate, Decision, Policy, decide};
use super::store::{Key, Walk};
use super::top::{System, random_bytes};
use super::{RepositoryError, Standing};
use crate::logs::{LogName, LogNeeds};

/// How long a mark stays after what it marked was deleted, so that a backup that slept meanwhile sees it.
const REMEMBERED: SignedDuration = SignedDuration::from_hours(24 * 30);

/// Objects that are about to be deleted, or were.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Tombstone {
    name: String,
    marked_at: Timestamp,
    objects: Vec<Object>,
}

impl Document for Tombstone {
    const KIND: &'static str = "tombstone";
    const LIMIT: u64 = 64 << 20;
}

/// An object with its size.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Object {
    /// Its key.
    pub key: String,
    /// Bytes.
    pub bytes: u64,
}

/// A backup of a lineage, with what becomes of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decided {
    /// The lineage.
    pub lineage: String,
    /// The backup.
    pub backup_id: BackupId,
    /// What becomes of it.
    pub decision: Decision,
}

/// Everything a prune is going to do. It prints; it is carried out as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrunePlan {
    /// All backups, oldest first in each lineage.
    pub backups: Vec<Decided>,
    /// Log files that no kept backup needs.
    pub log: Vec<Object>,
    /// Objects marked long enough ago: deleted now.
    pub delete: Vec<Object>,
    /// Objects that no kept backup names: marked now, deleted by a prune after the grace.
    pub mark: Vec<Object>,
    /// Scraps: evidence of backups that are gone, marks that are old.
    pub scraps: Vec<Object>,
    /// When what is marked now may be deleted.
    pub deletable_from: Option<Timestamp>,
}

impl PrunePlan {
    /// The backups that go.
    pub fn removed(&self) -> impl Iterator<Item = &Decided> {
        self.backups.iter().filter(|backup| !backup.decision.keeps())
    }

    /// Bytes that are free afterwards, and bytes that are once the grace has passed.
    pub fn freed(&self) -> (u64, u64) {
        let sum = |objects: &[Object]| objects.iter().map(|object| object.bytes).sum::<u64>();
        (sum(&self.log) + sum(&self.delete) + sum(&self.scraps), sum(&self.mark))
    }
}

/// Makes a [`LogNeeds`] for one lineage, from the backups that stay and whether each keeps the log after it.
pub type NeedsOf<'a> = dyn Fn(&[(Manifest, Decision)]) -> RepositoryResult<Box<dyn LogNeeds>> + 'a;

/// What a prune is asked for.
#[derive(Debug, Clone)]
pub struct Request {
    /// The lineage whose backups retention is applied to; the others' stay.
    pub lineage: Option<String>,
    /// What to keep.
    pub policy: Policy,
    /// One backup that goes whatever the policy says.
    pub forget: Option<BackupId>,
    /// How long a mark must have been there before what it marks is deleted.
    pub grace: SignedDuration,
}

/// Plans a prune of a system.
///
/// # Errors
/// The store's; and damage of any manifest, as without it nothing can be known to be unneeded.
pub fn plan(system: &System, request: &Request, needs_of: &NeedsOf<'_>) -> RepositoryResult<PrunePlan> {
    let mut plan = PrunePlan::default();
    let mut live = Live::default();
    for lineage in system.lineages()? {
        let name = lineage.lineage;
        let lost = system.lost_backups(&name)?;
        if let Some(lost) = lost.iter().find(|id| request.forget.as_ref() != Some(id)) {
            let what = "it is missing, although the backup was checked or pinned: bring it back from a copy of the \
                        repository, or give the backup up with `forget`";
            return Err(Damage::of(&system.layout.manifest(&name, lost.as_str()), what).into());
        }
        let applies = request.lineage.as_ref().is_none_or(|wanted| *wanted == name);
        let policy = if applies { request.policy } else { Policy::default() };
        let mut decided = decide(&candidates(system, &name)?, policy);
        if let Some((_, decision)) = decided.iter_mut().find(|(id, _)| request.forget.as_ref() == Some(id)) {
            *decision = Decision::Remove;
        }
        let mut kept = Vec::new();
        for (id, decision) in decided.iter().filter(|(_, decision)| decision.keeps()) {
            let (manifest, _) = system.manifest(&name, id)?;
            live.add(system, &manifest)?;
            kept.push((manifest, *decision));
        }
        plan_log(system, &name, &kept, &decided, needs_of, &mut plan)?;
        plan_scraps(system, &name, &decided, &mut plan)?;
        plan.backups.extend(decided.into_iter().map(|(backup_id, decision)| Decided {
            lineage: name.clone(),
            backup_id,
            decision,
        }));
    }
    plan_objects(system, request, &live, &mut plan)?;
    Ok(plan)
}

/// The backups of a lineage, as retention sees them.
///
/// # Errors
/// The store's, and damage.
pub fn candidates(system: &System, lineage: &str) -> RepositoryResult<Vec<Candidate>> {
    let mut candidates = Vec::new();
    for id in system.backups(lineage)? {
        let (manifest, _) = system.manifest(lineage, &id)?;
        let standing = Standing::of(&system.evidence(lineage, &id)?);
        let clean = manifest.bad_pages.is_empty();
        candidates.push(Candidate {
            pinned: system.is_pinned(lineage, &id)?,
            started: manifest.started,
            verified: clean && (standing.verified.is_some() || standing.proven.is_some()),
            proven: clean && standing.proven.is_some(),
            id,
        });
    }
    Ok(candidates)
}

/// Everything that kept manifests name.
#[derive(Debug, Default)]
struct Live {
    maps: HashSet<[u8; 32]>,
    packs: HashSet<[u8; 32]>,
}

impl Live {
    fn add(&mut self, system: &System, manifest: &Manifest) -> RepositoryResult<()> {
        for row in &manifest.maps {
            if let Some(base) = &row.base {
                self.maps.insert(base.sha256);
            }
            if self.maps.insert(row.sha256) {
                self.packs.extend(system.packs_of(row)?.iter().map(|pack| pack.digest));
            }
        }
        Ok(())
    }

    /// `None` for an object whose name is not one of ours: it is left alone.
    fn has(&self, key: &Key) -> Option<bool> {
        let mut digest = [0; 32];
        hex::decode_to_slice(key.name(), &mut digest).ok()?;
        let of = if key.as_str().contains("/packs/") { &self.packs } else { &self.maps };
        Some(of.contains(&digest))
    }
}

fn plan_log(
    system: &System,
    lineage: &str,
    kept: &[(Manifest, Decision)],
    decided: &[(BackupId, Decision)],
    needs_of: &NeedsOf<'_>,
    plan: &mut PrunePlan,
) -> RepositoryResult<()> {
    // With no backup that stays, nothing says what log is for; with no retention, nothing is let go.
    if kept.is_empty() || decided.iter().all(|(_, decision)| *decision == Decision::NoPolicy) {
        return Ok(());
    }
    let needs = needs_of(kept)?;
    for prefix in [system.layout.log(lineage), system.layout.tails(lineage)] {
        let depth = prefix.as_str().split('/').count();
        system.store().list(&prefix, &mut |entry| {
            let parts: Vec<&str> = entry.key.as_str().split('/').skip(depth).collect();
            if let [branch, name, ..] = parts.as_slice()
                && !needs.is_needed(&LogName { branch: (*branch).to_owned(), name: (*name).to_owned() })
            {
                plan.log.push(Object { key: entry.key.to_string(), bytes: entry.size });
            }
            Walk::On
        })?;
    }
    Ok(())
}

fn plan_scraps(
    system: &System,
    lineage: &str,
    decided: &[(BackupId, Decision)],
    plan: &mut PrunePlan,
) -> RepositoryResult<()> {
    let kept: BTreeSet<&str> =
        decided.iter().filter(|(_, decision)| decision.keeps()).map(|(id, _)| id.as_str()).collect();
    let prefix = system.layout.backups(lineage);
    let depth = prefix.as_str().split('/').count();
    system.store().list(&prefix, &mut |entry| {
        let id = entry.key.as_str().split('/').nth(depth).unwrap_or_default();
        if id.parse::<BackupId>().is_ok() && !kept.contains(id) && entry.key.name() != "manifest.json" {
            plan.scraps.push(Object { key: entry.key.to_string(), bytes: entry.size });
        }
        Walk::On
    })?;
    Ok(())
}

fn plan_objects(system: &System, request: &Request, live: &Live, plan: &mut PrunePlan) -> RepositoryResult<()> {
    let now = system.store().now()?;
    plan.deletable_from = now.checked_add(request.grace).ok();
    let mut marked: BTreeMap<String, Timestamp> = BTreeMap::new();
    for (key, tombstone) in tombstones(system)? {
        if tombstone.marked_at.checked_add(REMEMBERED).is_ok_and(|end| end < now) {
            plan.scraps.push(Object { key: key.to_string(), bytes: 0 });
        }
        for object in tombstone.objects {
            marked.entry(object.key).or_insert(tombstone.marked_at);
        }
    }
    for prefix in [system.layout.packs(), system.layout.maps()] {
        system.store().list(&prefix, &mut |entry| {
            let object = Object { key: entry.key.to_string(), bytes: entry.size };
            if live.has(&entry.key) == Some(false) {
                match marked.get(&object.key) {
                    Some(at) if at.checked_add(request.grace).is_ok_and(|end| end <= now) => plan.delete.push(object),
                    Some(_) => {}
                    None => plan.mark.push(object),
                }
            }
            Walk::On
        })?;
    }
    if request.grace.is_zero() {
        plan.deletable_from = None;
    }
    Ok(())
}

/// Carries a plan out. Ended at any point, it leaves a repository in which every backup is whole or gone; the next
/// prune does the rest.
///
/// # Errors
/// The store's.
pub fn execute(system: &System, plan: &PrunePlan, grace: SignedDuration) -> RepositoryResult<()> {
    let store = system.store();
    // Manifests after all else that is known of their backups: what is left of a backup without one tells of a loss.
    delete_all(system, &plan.scraps)?;
    for backup in plan.removed() {
        store.delete(&system.layout.manifest(&backup.lineage, backup.backup_id.as_str()))?;
    }
    // From the oldest on, so that what is left never has a hole.
    delete_all(system, &plan.log)?;
    if !plan.mark.is_empty() {
        mark(system, &plan.mark)?;
    }
    let mut doomed = plan.delete.clone();
    if grace.is_zero() {
        doomed.extend(plan.mark.iter().cloned());
    }
    if doomed.is_empty() {
        return Ok(());
    }
    // Manifests written since the plan was made, or since the mark, count.
    let live = live(system)?;
    for object in &doomed {
        if let Ok(key) = Key::parse(&object.key)
            && live.has(&key) == Some(false)
        {
            store.delete(&key)?;
        }
    }
    Ok(())
}

fn delete_all(system: &System, objects: &[Object]) -> RepositoryResult<()> {
    for object in objects {
        if let Ok(key) = Key::parse(&object.key) {
            system.store().delete(&key)?;
        }
    }
    Ok(())
}

fn live(system: &System) -> RepositoryResult<Live> {
    let mut live = Live::default();
    for lineage in system.lineages()? {
        for id in system.backups(&lineage.lineage)? {
            live.add(system, &system.manifest(&lineage.lineage, &id)?.0)?;
        }
    }
    Ok(live)
}

fn mark(system: &System, objects: &[Object]) -> RepositoryResult<()> {
    let marked_at = system.store().now()?;
    let name = format!("{}-{}", marked_at.strftime("%Y%m%dT%H%M%SZ"), hex::encode(&random_bytes()[..4]));
    let key = system.layout.tombstones().child(&name).map_err(|error| RepositoryError::Refused(error.to_string()))?;
    let tombstone = Tombstone { name, marked_at, objects: objects.to_vec() };
    system.create_exactly(&key, &document::sealed(&tombstone))?;
    Ok(())
}

fn tombstones(system: &System) -> RepositoryResult<Vec<(Key, Tombstone)>> {
    let mut keys = Vec::new();
    system.store().list(&system.layout.tombstones(), &mut |entry| {
        keys.push(entry.key);
        Walk::On
    })?;
    keys.into_iter().map(|key| Ok((key.clone(), tombstone(system, &key)?))).collect()
}

fn tombstone(system: &System, key: &Key) -> RepositoryResult<Tombstone> {
    let (tombstone, _) = document::read::<Tombstone>(system.store(), key)?;
    if tombstone.name != key.name() {
        return Err(Damage::of(key, format!("it is the mark {}", tombstone.name)).into());
    }
    Ok(tombstone)
}

/// Reads a mark and says what is wrong with it, if anything.
pub(super) fn check(system: &System, key: &Key) -> RepositoryResult<()> {
    tombstone(system, key).map(|_| ())
}

/// The digests of everything that is marked.
///
/// # Errors
/// The store's, and damage.
pub fn tombstoned(system: &System) -> RepositoryResult<HashSet<[u8; 32]>> {
    let mut digests = HashSet::new();
    for (_, tombstone) in tombstones(system)? {
        for object in &tombstone.objects {
            let mut digest = [0; 32];
            if hex::decode_to_slice(object.key.rsplit('/').next().unwrap_or_default(), &mut digest).is_ok() {
                digests.insert(digest);
            }
        }
    }
    Ok(digests)
}

/// Whether a manifest names anything that is marked.
///
/// # Errors
/// The store's, and damage.
pub fn uses_marked(system: &System, manifest: &Manifest) -> RepositoryResult<bool> {
    let marked = tombstoned(system)?;
    if marked.is_empty() {
        return Ok(false);
    }
    let mut live = Live::default();
    let base = |row: &MapRow| row.base.as_ref().is_some_and(|base| marked.contains(&base.sha256));
    // A map that is marked may be gone already.
    if manifest.maps.iter().any(|row| marked.contains(&row.sha256) || base(row)) {
        return Ok(true);
    }
    live.add(system, manifest)?;
    Ok(live.maps.iter().chain(&live.packs).any(|digest| marked.contains(digest)))
}
