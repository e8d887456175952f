//! The repository as a whole, and one system's part of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::document::{self, Document};
use super::error::{Damage, RepositoryError, RepositoryResult};
use super::evidence::Evidence;
use super::layout::Layout;
use super::lineage::{Fork, Lineage, Owner};
use super::manifest::{BackupId, Manifest, MapRow};
use super::map::{self, MAP_LIMIT, PageMap};
use super::store::{Created, Key, Store, Walk};

/// Random bytes from the kernel, for names.
pub(super) fn random_bytes() -> [u8; 16] {
    let mut bytes = [0; 16];
    // The kernel gives up to 256 bytes whole; were it to fail, names would still differ by their time.
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    bytes
}

/// `holdfast.json`: what makes a place a repository.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Head {
    repository_id: String,
    created: Timestamp,
}

impl Document for Head {
    const KIND: &'static str = "repository";
}

/// A repository that was opened.
#[derive(Debug, Clone)]
pub struct Repository {
    store: Arc<dyn Store>,
    id: String,
}

impl Repository {
    /// Opens the repository on `store`.
    ///
    /// # Errors
    /// Where there is none, or it is damaged or of a newer format.
    pub fn open(store: Arc<dyn Store>) -> RepositoryResult<Self> {
        match document::read::<Head>(&*store, &Layout::repository()) {
            Ok((head, _)) => Ok(Self { store, id: head.repository_id }),
            Err(RepositoryError::Store(error)) if error.is_not_found() => Err(no_head(&*store)?),
            Err(error) => Err(error),
        }
    }

    /// Opens the repository on `store`, making it where there is none.
    ///
    /// # Errors
    /// As [`Repository::open`]; and where the place holds something else.
    pub fn open_or_create(store: Arc<dyn Store>) -> RepositoryResult<Self> {
        match Self::open(store.clone()) {
            Err(RepositoryError::Absent(_)) => {}
            done => return done,
        }
        let strangers = store.children(&Key::root())?;
        if let Some(stranger) = strangers.first() {
            return Err(RepositoryError::Refused(format!(
                "{} is not a repository and not empty (it holds {stranger:?}): nothing was written there; \
                 name an empty place, or restore its holdfast.json",
                store.location()
            )));
        }
        let head = Head { repository_id: hex::encode(random_bytes()), created: store.now()? };
        // Whoever was first, the repository is what is read back.
        store.create(&Layout::repository(), document::sealed(&head))?;
        Self::open(store)
    }

    /// The store below it.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Its name for itself.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The systems that have anything in it.
    ///
    /// # Errors
    /// The store's.
    pub fn systems(&self) -> RepositoryResult<Vec<String>> {
        let names = self.store.children(&Key::root())?;
        Ok(names
            .into_iter()
            .filter(|name| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-'))
            .collect())
    }

    /// One system's part.
    pub fn system(&self, system_id: &str) -> System {
        System {
            store: self.store.clone(),
            repository_id: self.id.clone(),
            id: system_id.to_owned(),
            layout: Layout::of_system(system_id),
        }
    }
}

/// What it means that there is no `holdfast.json`: that nobody made a repository yet, or that it was lost.
fn no_head(store: &dyn Store) -> RepositoryResult<RepositoryError> {
    for name in store.children(&Key::root())? {
        if !store.children(&Layout::of_system(&name).lineages())?.is_empty() {
            let what = format!(
                "it is missing, although the repository's system {name} is there: bring it back from a copy of the \
                 repository; its repository_id is that of every lineage.json"
            );
            return Ok(Damage::of(&Layout::repository(), what).into());
        }
    }
    Ok(RepositoryError::Absent(format!(
        "there is no repository at {}: is it mounted, and is --repository right? The first `backup` makes one",
        store.location()
    )))
}

/// What pins a backup.
#[derive(Debug, Serialize, Deserialize)]
struct Pin {
    backup_id: BackupId,
}

impl Document for Pin {
    const KIND: &'static str = "pin";
}

/// One system's part of a repository: packs and maps shared by its lineages, and the lineages.
#[derive(Debug, Clone)]
pub struct System {
    pub(super) store: Arc<dyn Store>,
    pub(super) repository_id: String,
    /// The system identifier, as text.
    pub id: String,
    /// Where its objects are.
    pub layout: Layout,
}

impl System {
    /// The store below it.
    pub fn store(&self) -> &dyn Store {
        &*self.store
    }

    /// Its lineages, oldest first.
    ///
    /// # Errors
    /// The store's, and damage.
    pub fn lineages(&self) -> RepositoryResult<Vec<Lineage>> {
        let mut lineages = Vec::new();
        for name in self.store.children(&self.layout.lineages())? {
            match self.lineage(&name) {
                // A directory of a store of files, whose maker was killed before it wrote anything into it.
                Err(RepositoryError::Store(error)) if error.is_not_found() && self.is_bare(&name)? => {}
                lineage => lineages.push(lineage?),
            }
        }
        lineages.sort_by(|a, b| (a.created, &a.lineage).cmp(&(b.created, &b.lineage)));
        Ok(lineages)
    }

    /// Whether there is no object at all of a lineage.
    fn is_bare(&self, lineage: &str) -> RepositoryResult<bool> {
        let mut bare = true;
        let below =
            self.layout.lineages().child(lineage).map_err(|error| RepositoryError::Refused(error.to_string()))?;
        self.store.list(&below, &mut |_| {
            bare = false;
            Walk::Stop
        })?;
        Ok(bare)
    }

    /// The lineage named `name`.
    ///
    /// # Errors
    /// Where there is none or its record is damaged.
    pub fn lineage(&self, name: &str) -> RepositoryResult<Lineage> {
        let key = self.layout.lineage(name);
        let (lineage, _) = document::read::<Lineage>(&*self.store, &key)?;
        if lineage.repository_id != self.repository_id {
            let what = format!(
                "it belongs to repository {}, and {} says that this is {}: one of them is not in its place",
                lineage.repository_id,
                Layout::repository(),
                self.repository_id
            );
            return Err(Damage::of(&key, what).into());
        }
        if lineage.lineage != name || lineage.system_id != self.id {
            return Err(Damage::of(
                &key,
                format!("it is the record of lineage {} of system {}", lineage.lineage, lineage.system_id),
            )
            .into());
        }
        Ok(lineage)
    }

    /// Begins a lineage of `owner`.
    ///
    /// # Errors
    /// The store's.
    pub fn begin_lineage(&self, engine: &str, owner: Owner, parent: Option<Fork>) -> RepositoryResult<Lineage> {
        let name = hex::encode(&random_bytes()[..6]);
        let lineage = Lineage {
            lineage: name.clone(),
            repository_id: self.repository_id.clone(),
            system_id: self.id.clone(),
            engine: engine.to_owned(),
            created: self.store.now()?,
            owner,
            parent,
        };
        self.store.create(&self.layout.lineage(&name), document::sealed(&lineage))?;
        self.lineage(&name)
    }

    /// The backups of a lineage, oldest first: every name below which there is a manifest.
    ///
    /// # Errors
    /// The store's.
    pub fn backups(&self, lineage: &str) -> RepositoryResult<Vec<BackupId>> {
        Ok(self.backups_and_traces(lineage)?.0)
    }

    /// Backups of which there is evidence or a pin, but no manifest any more: it was lost, as whoever removes a backup
    /// removes its manifest last.
    ///
    /// # Errors
    /// The store's.
    pub fn lost_backups(&self, lineage: &str) -> RepositoryResult<Vec<BackupId>> {
        let (backups, traces) = self.backups_and_traces(lineage)?;
        Ok(traces.into_iter().filter(|id| backups.binary_search(id).is_err()).collect())
    }

    fn backups_and_traces(&self, lineage: &str) -> RepositoryResult<(Vec<BackupId>, BTreeSet<BackupId>)> {
        let (mut found, mut traces) = (Vec::new(), BTreeSet::new());
        let prefix = self.layout.backups(lineage);
        let depth = prefix.as_str().split('/').count();
        self.store.list(&prefix, &mut |entry| {
            let mut parts = entry.key.as_str().split('/').skip(depth);
            if let (Some(Ok(id)), Some(name)) = (parts.next().map(str::parse::<BackupId>), parts.next()) {
                match name {
                    "manifest.json" => found.push(id),
                    "pin.json" | "evidence" => _ = traces.insert(id),
                    _ => {}
                }
            }
            Walk::On
        })?;
        found.sort();
        Ok((found, traces))
    }

    /// A backup's manifest, with the SHA-256 of its bytes.
    ///
    /// # Errors
    /// Where it is missing, damaged, or that of another backup.
    pub fn manifest(&self, lineage: &str, id: &BackupId) -> RepositoryResult<(Manifest, String)> {
        let key = self.layout.manifest(lineage, id.as_str());
        let object = self.store.get(&key, Manifest::LIMIT)?;
        let manifest: Manifest = document::unseal(&object.body).map_err(|fault| Damage::of(&key, fault.to_string()))?;
        let names = (&manifest.repository_id, &manifest.system_id, manifest.lineage.as_str(), &manifest.backup_id);
        if names != (&self.repository_id, &self.id, lineage, id) {
            return Err(Damage::of(
                &key,
                format!("it is the manifest of backup {} of lineage {}", manifest.backup_id, manifest.lineage),
            )
            .into());
        }
        if let Some(fault) = manifest.fault() {
            return Err(Damage::of(&key, fault).into());
        }
        Ok((manifest, hex::encode(Sha256::digest(&object.body))))
    }

    /// Writes a manifest, reads it back, and returns the SHA-256 of its bytes. From then on the backup exists.
    ///
    /// # Errors
    /// Where it was there already, or what is read back differs.
    pub fn write_manifest(&self, manifest: &Manifest) -> RepositoryResult<String> {
        let key = self.layout.manifest(&manifest.lineage, manifest.backup_id.as_str());
        self.create_exactly(&key, &document::sealed(manifest))?;
        Ok(self.manifest(&manifest.lineage, &manifest.backup_id)?.1)
    }

    /// Creates an object whose name is its own; one that is there already must hold the same bytes.
    pub(super) fn create_exactly(&self, key: &Key, body: &Bytes) -> RepositoryResult<Created> {
        let created = self.store.create(key, body.clone())?;
        if created == Created::Existed {
            let there = self.store.get(key, u64::MAX)?.body;
            if there != *body {
                return Err(RepositoryError::Conflict {
                    object: key.to_string(),
                    there: format!("sha256 {}", hex::encode(Sha256::digest(&there))),
                    here: format!("sha256 {}", hex::encode(Sha256::digest(body))),
                    advice: "Run `verify` to see whether it is damaged.",
                });
            }
        }
        Ok(created)
    }

    /// Whether somebody said that a backup stays.
    ///
    /// # Errors
    /// The store's.
    pub fn is_pinned(&self, lineage: &str, id: &BackupId) -> RepositoryResult<bool> {
        Ok(self.store.head(&self.layout.pin(lineage, id.as_str()))?.is_some())
    }

    /// Says that a backup stays whatever retention says, or no longer.
    ///
    /// # Errors
    /// The store's; and where there is no such backup.
    pub fn pin(&self, lineage: &str, id: &BackupId, pinned: bool) -> RepositoryResult<()> {
        self.manifest(lineage, id)?;
        let key = self.layout.pin(lineage, id.as_str());
        if pinned {
            self.store.create(&key, document::sealed(&Pin { backup_id: id.clone() }))?;
        } else {
            self.store.delete(&key)?;
        }
        Ok(())
    }

    /// All evidence of a backup, oldest first.
    ///
    /// # Errors
    /// The store's, and damage.
    pub fn evidence(&self, lineage: &str, id: &BackupId) -> RepositoryResult<Vec<Evidence>> {
        let keys = self.keys(&self.layout.evidence(lineage, id.as_str()))?;
        keys.iter().map(|key| self.evidence_at(key, id)).collect()
    }

    /// The evidence of a backup that can be read, oldest first, and what is damaged of it.
    ///
    /// # Errors
    /// The store's.
    pub fn sound_evidence(&self, lineage: &str, id: &BackupId) -> RepositoryResult<(Vec<Evidence>, Vec<Damage>)> {
        let (mut sound, mut damaged) = (Vec::new(), Vec::new());
        for key in self.keys(&self.layout.evidence(lineage, id.as_str()))? {
            match self.evidence_at(&key, id) {
                Ok(evidence) => sound.push(evidence),
                Err(error) => damaged.push(error.as_damage().ok_or(error)?),
            }
        }
        Ok((sound, damaged))
    }

    pub(super) fn evidence_at(&self, key: &Key, id: &BackupId) -> RepositoryResult<Evidence> {
        let (evidence, _) = document::read::<Evidence>(&*self.store, key)?;
        if evidence.backup_id != *id || Some(key.name()) != Some(evidence_name(&evidence).as_str()) {
            return Err(Damage::of(
                key,
                format!("it is evidence of backup {} from {}", evidence.backup_id, evidence.finished),
            )
            .into());
        }
        Ok(evidence)
    }

    /// Keeps `evidence`, and says where.
    ///
    /// # Errors
    /// The store's.
    pub fn write_evidence(&self, lineage: &str, evidence: &Evidence) -> RepositoryResult<Key> {
        let directory = self.layout.evidence(lineage, evidence.backup_id.as_str());
        let key = directory.child(&evidence_name(evidence)).unwrap_or(directory);
        self.create_exactly(&key, &document::sealed(evidence))?;
        self.evidence_at(&key, &evidence.backup_id)?;
        let manifest = self.layout.manifest(lineage, evidence.backup_id.as_str());
        if self.store.head(&manifest)?.is_none() {
            // Removed while it was looked at: evidence without a manifest would tell of a loss.
            self.store.delete(&key)?;
            let id = &evidence.backup_id;
            return Err(RepositoryError::Absent(format!("backup {id} was removed while it was being checked")));
        }
        Ok(key)
    }

    /// Reads a map, with the complete map below it if it is a patch; every byte is checked.
    ///
    /// # Errors
    /// The store's, and damage.
    pub fn load_map(&self, row: &MapRow) -> RepositoryResult<LoadedMap> {
        let base = match &row.base {
            Some(base) => {
                let (key, bytes) = self.map_bytes(&base.sha256, base.size)?;
                let parsed = map::parse(&bytes).and_then(|parsed| parsed.resolve(None));
                Some(parsed.map_err(|what| Damage::of(&key, what))?)
            }
            None => None,
        };
        let (key, bytes) = self.map_bytes(&row.sha256, row.size)?;
        let damaged = |what: String| Damage::of(&key, what);
        let parsed = map::parse(&bytes).map_err(damaged)?;
        if parsed.base != row.base.as_ref().map(|base| base.sha256) {
            return Err(damaged("it patches another map than the manifest says".to_owned()).into());
        }
        let map = parsed.resolve(base.as_ref()).map_err(damaged)?;
        let first = map.files.first().map(|part| (part.path.as_str(), part.first_page));
        if first != Some((row.first.as_str(), row.first_page)) || map.table.len() as u64 != row.pages {
            return Err(damaged(format!("it does not cover {} as the manifest says", row.first)).into());
        }
        Ok(LoadedMap { map, base })
    }

    /// The packs a map names, its base's included.
    ///
    /// # Errors
    /// As [`System::load_map`].
    pub fn packs_of(&self, row: &MapRow) -> RepositoryResult<Vec<map::PackRef>> {
        Ok(self.load_map(row)?.map.packs)
    }

    /// Reads a map's own bytes and checks them, whatever the map below it is like.
    ///
    /// # Errors
    /// The store's, and damage.
    pub fn check_map(&self, row: &MapRow) -> RepositoryResult<()> {
        self.map_bytes(&row.sha256, row.size).map(|_| ())
    }

    fn map_bytes(&self, digest: &[u8; 32], size: u64) -> RepositoryResult<(Key, Bytes)> {
        let key = self.layout.map(digest);
        let body = self.store.get(&key, MAP_LIMIT)?.body;
        if body.len() as u64 != size || Sha256::digest(&body).as_slice() != digest {
            let found = hex::encode(Sha256::digest(&body));
            return Err(Damage::of(
                &key,
                format!("it has {} bytes with sha256 {found}, the manifest says {size} bytes", body.len()),
            )
            .into());
        }
        Ok((key, body))
    }

    /// Reads every document of a lineage but the manifests, and the marks of prunes; says which are damaged.
    ///
    /// # Errors
    /// The store's.
    pub fn check_documents(&self, lineage: &str) -> RepositoryResult<(u64, Vec<Damage>)> {
        let (mut checked, mut damage) = (0, Vec::new());
        let mut note = |result: RepositoryResult<()>| {
            checked += 1;
            match result {
                Ok(()) => Ok(()),
                Err(error) => error.as_damage().map(|found| damage.push(found)).ok_or(error),
            }
        };
        note(self.lineage(lineage).map(|_| ()))?;
        note(self.log(lineage).position().map(|_| ()))?;
        for key in self.keys(&self.layout.leases(lineage))? {
            note(super::lease::check(self, lineage, &key))?;
        }
        for key in self.keys(&self.layout.tombstones())? {
            note(super::prune::check(self, &key))?;
        }
        for key in self.keys(&self.layout.backups(lineage))? {
            let mut parts = key.as_str().rsplit('/');
            let (name, above, id) = (parts.next(), parts.next(), parts.next());
            if name == Some("pin.json") {
                note(self.check_pin(&key, above.unwrap_or_default()))?;
            } else if let (Some("evidence"), Some(Ok(id))) = (above, id.map(str::parse::<BackupId>)) {
                note(self.evidence_at(&key, &id).map(|_| ()))?;
            }
        }
        Ok((checked, damage))
    }

    fn check_pin(&self, key: &Key, id: &str) -> RepositoryResult<()> {
        let (pin, _) = document::read::<Pin>(&*self.store, key)?;
        if pin.backup_id.as_str() == id {
            Ok(())
        } else {
            Err(Damage::of(key, format!("it pins {}", pin.backup_id)).into())
        }
    }

    fn keys(&self, prefix: &Key) -> RepositoryResult<Vec<Key>> {
        let mut keys = Vec::new();
        self.store.list(prefix, &mut |entry| {
            keys.push(entry.key);
            Walk::On
        })?;
        Ok(keys)
    }

    /// Lineages by name, for looking up parents.
    ///
    /// # Errors
    /// As [`System::lineages`].
    pub fn lineages_by_name(&self) -> RepositoryResult<BTreeMap<String, Lineage>> {
        Ok(self.lineages()?.into_iter().map(|lineage| (lineage.lineage.clone(), lineage)).collect())
    }
}

/// A map, and the complete map it patches if it does.
#[derive(Debug)]
pub struct LoadedMap {
    /// With every page in place.
    pub map: PageMap,
    /// What it is a patch of.
    pub base: Option<PageMap>,
}

fn evidence_name(evidence: &Evidence) -> String {
    let level = match evidence.level {
        super::Level::Objects => "objects",
        super::Level::Data => "data",
        super::Level::Drill => "drill",
    };
    format!("{}-{level}.json", evidence.finished.strftime("%Y%m%dT%H%M%S%.6fZ"))
}
