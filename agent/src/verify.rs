//! Verifies backups: that everything is there, or that every byte is right; and keeps what it saw as evidence.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use crate::engine::{self, EngineError};
use crate::home::Home;
use crate::logs::LogName;
use crate::progress::Progress;
use crate::repository::reader::{self, Batch, PackChecker, PageSink, Run, check_pack};
use crate::repository::store::Walk;
use crate::repository::{
    BackupId, Damage, Evidence, Level, Manifest, MapRow, PackRef, RepositoryError, RepositoryResult, Verdict,
};
use crate::stock::{lost_position, stock};

/// What a verification saw.
#[derive(Debug, Clone, Serialize)]
pub struct VerifyReport {
    /// The backup.
    pub backup_id: BackupId,
    /// Its lineage.
    pub lineage: String,
    /// How thorough it was.
    pub level: Level,
    /// How it ended.
    pub verdict: Verdict,
    /// Objects looked at.
    pub objects: u64,
    /// Bytes read.
    pub bytes: u64,
    /// What is damaged.
    pub damage: Vec<Damage>,
    /// What else speaks against the backup.
    pub failures: Vec<String>,
    /// What is worth knowing.
    pub notes: Vec<String>,
    /// How long it took.
    pub duration_seconds: f64,
    /// Where the evidence is; none is kept of a backup whose manifest cannot be read.
    pub evidence: Option<String>,
}

/// Why nothing can be said about a backup.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// The repository's side.
    #[error(transparent)]
    Repository(#[from] RepositoryError),
    /// The store, directly.
    #[error(transparent)]
    Store(#[from] crate::repository::store::StoreError),
    /// What the engine says of the manifest.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// Verifies backups of one lineage; what several of them share is read once.
#[derive(Debug)]
pub struct Verifier<'a> {
    home: &'a Home,
    level: Level,
    threads: usize,
    packs: HashMap<PackRef, Option<Damage>>,
    maps: HashSet<[u8; 32]>,
    logs: HashMap<LogName, Option<Damage>>,
}

/// What is being found out about one backup.
#[derive(Debug, Default)]
struct Findings {
    objects: u64,
    bytes: u64,
    damage: BTreeSet<Damage>,
    failures: Vec<String>,
    notes: Vec<String>,
}

impl Findings {
    /// Notes a result; only errors that say nothing about the data are passed on.
    fn note<T>(&mut self, result: RepositoryResult<T>) -> RepositoryResult<Option<T>> {
        self.objects += 1;
        match result {
            Ok(value) => Ok(Some(value)),
            Err(error) => match error.as_damage() {
                Some(damage) => {
                    self.damage.insert(damage);
                    Ok(None)
                }
                None => Err(error),
            },
        }
    }
}

impl Findings {
    /// Log that the backup cannot be restored without is a part of it (`own`); other log only says how far one can
    /// recover from it.
    fn note_log(&mut self, own: bool, damage: Option<Damage>) {
        match damage {
            Some(damage) if own => _ = self.damage.insert(damage),
            Some(damage) if !self.failures.contains(&damage.to_string()) => self.failures.push(damage.to_string()),
            _ => {}
        }
    }
}

/// The damage that a check found; only errors that say nothing about the data are passed on.
fn damage_in<T>(checked: RepositoryResult<T>) -> RepositoryResult<Option<Damage>> {
    match checked {
        Ok(_) => Ok(None),
        Err(error) => error.as_damage().ok_or(error).map(Some),
    }
}

impl<'a> Verifier<'a> {
    /// Verifies to `level`: objects or data.
    pub fn new(home: &'a Home, level: Level, threads: usize) -> Self {
        Self { home, level, threads, packs: HashMap::new(), maps: HashSet::new(), logs: HashMap::new() }
    }

    /// Verifies one backup and keeps the evidence.
    ///
    /// # Errors
    /// Where nothing can be said about it: the store's. A damaged backup is no error, but a failed verdict.
    pub fn verify(&mut self, id: &BackupId, progress: &Progress) -> Result<VerifyReport, VerifyError> {
        let clock = Instant::now();
        let (home, mut findings) = (self.home, Findings::default());
        let started = home.system.store().now()?;
        let manifest = findings.note(home.system.manifest(&home.lineage.lineage, id))?;
        let mut evidence_key = None;
        if let Some((manifest, sha256)) = manifest {
            let rows = self.good_maps(&manifest, &mut findings)?;
            match self.level {
                Level::Objects => self.packs_exist(&rows, &mut findings)?,
                Level::Data | Level::Drill => {
                    self.packs_exist(&rows, &mut findings)?;
                    self.pages(&rows, &mut findings, progress)?;
                }
            }
            self.log(&manifest, &mut findings)?;
            self.documents(&mut findings)?;
            judge_source(&manifest, &mut findings);
            let evidence = self.evidence(id, sha256, started, &findings, clock)?;
            evidence_key = Some(home.system.write_evidence(&home.lineage.lineage, &evidence)?.to_string());
        }
        Ok(VerifyReport {
            backup_id: id.clone(),
            lineage: home.lineage.lineage.clone(),
            level: self.level,
            verdict: verdict(&findings),
            objects: findings.objects,
            bytes: findings.bytes,
            damage: findings.damage.into_iter().collect(),
            failures: findings.failures,
            notes: findings.notes,
            duration_seconds: clock.elapsed().as_secs_f64(),
            evidence: evidence_key,
        })
    }

    /// The maps that can be read.
    fn good_maps(&self, manifest: &Manifest, findings: &mut Findings) -> RepositoryResult<Vec<MapRow>> {
        let mut good = Vec::new();
        for row in &manifest.maps {
            findings.bytes += row.size + row.base.as_ref().map_or(0, |base| base.size);
            if findings.note(self.home.system.load_map(row))?.is_some() {
                good.push(row.clone());
            } else if row.base.is_some() {
                // Of a patch and the map it patches, only the first that is damaged was named.
                findings.note(self.home.system.check_map(row))?;
            }
        }
        Ok(good)
    }

    fn packs_exist(&self, rows: &[MapRow], findings: &mut Findings) -> Result<(), VerifyError> {
        let system = &self.home.system;
        let mut stored: HashMap<String, u64> = HashMap::new();
        system.store().list(&system.layout.packs(), &mut |entry| {
            stored.insert(entry.key.to_string(), entry.size);
            Walk::On
        })?;
        let mut seen = HashSet::new();
        for row in rows {
            for pack in system.packs_of(row)? {
                if !seen.insert(pack) {
                    continue;
                }
                findings.objects += u64::from(self.level == Level::Objects);
                let key = system.layout.pack(&pack.digest);
                match stored.get(key.as_str()) {
                    Some(size) if *size == u64::from(pack.size) => {}
                    Some(size) => {
                        let what = format!("it has {size} bytes, its maps say {}", pack.size);
                        findings.damage.insert(Damage::of(&key, what));
                    }
                    None => {
                        findings.damage.insert(Damage::of(&key, "it is missing"));
                    }
                }
            }
        }
        Ok(())
    }

    /// Reads every pack whole, once; and of packs that were read before, what these maps say is in them.
    fn pages(&mut self, rows: &[MapRow], findings: &mut Findings, progress: &Progress) -> RepositoryResult<()> {
        progress.expect(rows.iter().map(|row| row.pages * crate::repository::PAGE_SIZE as u64).sum());
        let (seen, unseen): (Vec<&MapRow>, Vec<&MapRow>) = rows.iter().partition(|row| self.maps.contains(&row.sha256));
        for row in seen {
            self.known_damage(&self.home.system.packs_of(row)?, findings);
            progress.advance(row.pages * crate::repository::PAGE_SIZE as u64);
        }
        let unseen: Vec<MapRow> = unseen.into_iter().cloned().collect();
        for batch in reader::batches(&self.home.system, &unseen) {
            self.batch(&batch?, findings, progress)?;
        }
        self.maps.extend(unseen.iter().map(|row| row.sha256));
        Ok(())
    }

    fn known_damage(&self, packs: &[PackRef], findings: &mut Findings) {
        findings.damage.extend(packs.iter().filter_map(|pack| self.packs.get(pack)?.clone()));
    }

    fn batch(&mut self, batch: &Batch, findings: &mut Findings, progress: &Progress) -> RepositoryResult<()> {
        let system = &self.home.system;
        let runs = batch.runs(|_| true);
        let mut by_pack: HashMap<u32, &[Run]> = HashMap::new();
        for runs in runs.chunk_by(|a, b| a.place.pack == b.place.pack) {
            by_pack.insert(runs[0].place.pack, runs);
        }
        // Packs that a base map names and no page needs any more are read too: they must not be missed when they rot.
        let (old, new): (Vec<u32>, Vec<u32>) =
            (0..batch.packs.len() as u32).partition(|&pack| self.packs.contains_key(&batch.packs[pack as usize]));
        let outcomes: Mutex<Vec<(PackRef, Option<Damage>)>> = Mutex::default();
        reader::in_parallel(self.threads, new.len(), PackChecker::default, |checker, number| {
            let pack = batch.packs[new[number] as usize];
            let runs = by_pack.get(&new[number]).copied().unwrap_or_default();
            let damage = check_pack(system, pack, batch, runs, checker)?;
            progress.advance(runs.iter().map(|run| u64::from(run.pages) * crate::repository::PAGE_SIZE as u64).sum());
            outcomes.lock().unwrap_or_else(PoisonError::into_inner).push((pack, damage));
            Ok::<(), RepositoryError>(())
        })?;
        for (pack, damage) in outcomes.into_inner().unwrap_or_else(PoisonError::into_inner) {
            findings.objects += 1;
            findings.bytes += u64::from(pack.size);
            findings.damage.extend(damage.clone());
            self.packs.insert(pack, damage);
        }
        for pack in old {
            self.known_damage(&[batch.packs[pack as usize]], findings);
            if let Some(runs) = by_pack.get(&pack) {
                findings.note(reader::read_pages(system, batch, runs, 1, &Discard(progress)))?;
            }
        }
        Ok(())
    }

    fn log(&mut self, manifest: &Manifest, findings: &mut Findings) -> Result<(), VerifyError> {
        let copies = engine::copies(&manifest.engine)?;
        let log = self.home.system.log(&self.home.lineage.lineage);
        for (file, bytes) in copies.log_of(&manifest.engine_record)? {
            if log.has(&file)? {
                continue;
            }
            let tail = findings.note(log.tail_end(&file))?.flatten();
            if tail.is_none_or(|(end, _)| end < bytes) {
                let object = self.home.system.layout.log(&self.home.lineage.lineage);
                let object = format!("{object}/{}/{}", file.branch, file.name);
                findings.damage.insert(Damage { object, what: "it is missing, and the backup needs it".to_owned() });
            }
        }
        if self.level == Level::Objects {
            return Ok(());
        }
        let needs = copies.log_needs(&[(manifest.engine_record.clone(), true)])?;
        let own: HashSet<LogName> = copies.log_of(&manifest.engine_record)?.into_iter().map(|(file, _)| file).collect();
        self.log_content(&|file| needs.is_needed(file), &own, findings)?;
        let stock = match stock(self.home) {
            Ok(stock) => stock,
            Err(error) => {
                findings.note_log(false, Some(error.as_damage().ok_or(error)?));
                return Ok(());
            }
        };
        findings.note_log(false, lost_position(self.home, &stock)?);
        let windows = copies.windows(&[(manifest.backup_id.to_string(), manifest.engine_record.clone())], &stock)?;
        for hole in windows.iter().filter_map(|window| window.hole_file.as_ref()) {
            let (whole, piece) = (log.key(hole)?, log.next_piece(hole)?);
            if !own.contains(hole) && self.was_let_go(manifest, hole)? {
                findings
                    .notes
                    .push(format!("the backup is pinned, and recovers only to {hole}: later log was not kept"));
                continue;
            }
            findings.failures.push(format!(
                "the log has a hole: {hole} is missing, although later log is there or was: neither {whole} nor {piece} \
                 is stored"
            ));
        }
        Ok(())
    }

    /// Whether retention may have let go of log after a backup: one that is pinned and past retention keeps only its own
    /// (see `pin`), and what is from before a later backup is for nobody then.
    fn was_let_go(&self, manifest: &Manifest, hole: &LogName) -> Result<bool, VerifyError> {
        let (system, lineage) = (&self.home.system, &self.home.lineage.lineage);
        if !system.is_pinned(lineage, &manifest.backup_id)? {
            return Ok(false);
        }
        let copies = engine::copies(&manifest.engine)?;
        for id in system.backups(lineage)?.iter().filter(|id| **id > manifest.backup_id) {
            // What is known of later backups by manifests that are damaged excuses nothing.
            if let Ok((later, _)) = system.manifest(lineage, id)
                && !copies.log_needs(&[(later.engine_record, true)])?.is_needed(hole)
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Reads every log file and tail that is needed and was not read before.
    /// Damage of what the backup itself cannot do without (`own`) is damage of the backup.
    fn log_content(
        &mut self,
        is_needed: &dyn Fn(&LogName) -> bool,
        own: &HashSet<LogName>,
        findings: &mut Findings,
    ) -> RepositoryResult<()> {
        let log = self.home.system.log(&self.home.lineage.lineage);
        let (mut needed, mut unread) = (Vec::new(), Vec::new());
        for branch in log.branches()? {
            for (name, size) in log.names(&branch)? {
                let file = LogName { branch: branch.clone(), name };
                if !is_needed(&file) {
                    continue;
                }
                needed.push(file.clone());
                if !self.logs.contains_key(&file) {
                    findings.bytes += size;
                    unread.push(file);
                }
            }
        }
        findings.objects += unread.len() as u64;
        let read: Mutex<Vec<(LogName, Option<Damage>)>> = Mutex::default();
        reader::in_parallel(
            self.threads,
            unread.len(),
            || (),
            |(), number| {
                let damage = damage_in(log.check(&unread[number]))?;
                read.lock().unwrap_or_else(PoisonError::into_inner).push((unread[number].clone(), damage));
                Ok::<(), RepositoryError>(())
            },
        )?;
        self.logs.extend(read.into_inner().unwrap_or_else(PoisonError::into_inner));
        for file in &needed {
            findings.note_log(own.contains(file), self.logs.get(file).cloned().flatten());
        }
        for branch in log.tail_branches()? {
            for name in log.tails(&branch)? {
                let file = LogName { branch: branch.clone(), name };
                findings.objects += 1;
                findings.note_log(own.contains(&file), damage_in(log.check_tail(&file))?);
            }
        }
        Ok(())
    }

    fn documents(&self, findings: &mut Findings) -> RepositoryResult<()> {
        let (checked, damage) = self.home.system.check_documents(&self.home.lineage.lineage)?;
        findings.objects += checked;
        // The backup can be restored without them.
        findings.failures.extend(damage.iter().map(Damage::to_string));
        Ok(())
    }

    fn evidence(
        &self,
        id: &BackupId,
        manifest_sha256: String,
        started: Timestamp,
        findings: &Findings,
        clock: Instant,
    ) -> Result<Evidence, VerifyError> {
        Ok(Evidence {
            backup_id: id.clone(),
            manifest_sha256,
            level: self.level,
            verdict: verdict(findings),
            started,
            finished: self.home.system.store().now()?,
            agent_version: env!("CARGO_PKG_VERSION").to_owned(),
            objects: findings.objects,
            bytes: findings.bytes,
            damage: findings.damage.iter().cloned().collect(),
            failures: findings.failures.clone(),
            notes: findings.notes.clone(),
            steps: vec![crate::repository::Step {
                name: "verify".to_owned(),
                duration_ms: clock.elapsed().as_millis() as u64,
            }],
            details: Value::Null,
        })
    }
}

fn verdict(findings: &Findings) -> Verdict {
    if findings.damage.is_empty() && findings.failures.is_empty() { Verdict::Passed } else { Verdict::Failed }
}

/// A page that was bad in the source is bad in the backup.
fn judge_source(manifest: &Manifest, findings: &mut Findings) {
    for bad in &manifest.bad_pages {
        findings.failures.push(format!(
            "page {} of {} had a wrong checksum in the source when it was backed up: the database was damaged, repair it \
             or restore the page from an earlier backup",
            bad.page, bad.path
        ));
    }
}

/// Pages whose hash was right are all that is wanted.
struct Discard<'a>(&'a Progress);

impl PageSink for Discard<'_> {
    fn take(&self, _batch: &Batch, _first: usize, bytes: &[u8]) -> RepositoryResult<()> {
        self.0.advance(bytes.len() as u64);
        Ok(())
    }
}
