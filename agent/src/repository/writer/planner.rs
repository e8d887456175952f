//! Decides which files are read and what they are compared with, and feeds the workers.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crossbeam_channel::Sender;
use jiff::{SignedDuration, Timestamp};

use super::finisher::Event;
use super::groups::{Group, group};
use super::job::{Base, Job};
use super::worker::Chunk;
use super::{LastFiles, Shared};
use crate::repository::error::RepositoryResult;
use crate::repository::manifest::{Manifest, MapRow, Sizes};
use crate::repository::map::{FilePart, PageTable, files_digest};
use crate::repository::pack::{PAGE_SIZE, PageHash};
use crate::repository::top::LoadedMap;
use crate::snapshot::SourceFile;

/// Pages that one worker takes at a time: 16 MiB.
const CHUNK_PAGES: usize = 2048;
/// A file changed this shortly before it was read may have changed again within the same tick of the clock.
const RACY: SignedDuration = SignedDuration::from_secs(3);

/// What the planner found.
#[derive(Debug, Default)]
pub(super) struct Planned {
    /// Maps taken over, by their numbers.
    pub(super) reused: Vec<(usize, Option<MapRow>)>,
    /// How many maps there are in all.
    pub(super) groups: usize,
    pub(super) sizes: Sizes,
}

/// Plans all files, then, once these have been read, the last ones.
pub(super) fn plan(
    shared: &Shared<'_>,
    previous: Option<&Manifest>,
    files: &[SourceFile],
    last: &mut LastFiles<'_>,
    chunks: &Sender<Chunk>,
    events: &Sender<Event>,
) -> RepositoryResult<Planned> {
    let mut planner =
        Planner { shared, previous: Previous::new(previous), chunks, events, planned: Planned::default() };
    shared.progress.expect(files.iter().map(|file| file.size).sum());
    planner.files(files)?;
    planner.wait_until_read();
    if !shared.is_stopped() {
        planner.files(&last()?)?;
    }
    Ok(planner.planned)
}

struct Planner<'a> {
    shared: &'a Shared<'a>,
    previous: Previous<'a>,
    chunks: &'a Sender<Chunk>,
    events: &'a Sender<Event>,
    planned: Planned,
}

impl Planner<'_> {
    fn files(&mut self, files: &[SourceFile]) -> RepositoryResult<()> {
        for group in group(files) {
            if self.shared.is_stopped() {
                return Ok(());
            }
            let index = self.planned.groups;
            self.planned.groups += 1;
            self.count(&group);
            let bytes = group.parts.iter().map(bytes_of).sum::<u64>();
            if let Some(row) = self.unchanged(&group)? {
                self.planned.reused.push((index, Some(row)));
                self.planned.sizes.skipped_bytes += bytes;
                self.shared.progress.advance(bytes);
            } else {
                self.planned.sizes.read_bytes += bytes;
                self.read(index, group, files)?;
            }
        }
        Ok(())
    }

    fn count(&mut self, group: &Group) {
        let (files, bytes) = counted(&group.parts);
        self.planned.sizes.files += files;
        self.planned.sizes.database_bytes += bytes;
    }

    /// The map of the previous backup, where it covers exactly these files and none was written to since.
    fn unchanged(&self, group: &Group) -> RepositoryResult<Option<MapRow>> {
        let Some(row) = self.previous.by_digest.get(&files_digest(&group.parts)) else {
            return Ok(None);
        };
        let newest = group.parts.iter().map(|part| part.stamp.mtime_ns.max(part.stamp.ctime_ns)).max().unwrap_or(0);
        let settled = Timestamp::from_nanosecond(i128::from(newest))
            .and_then(|newest| newest.checked_add(RACY))
            .is_ok_and(|settled| settled < row.read_at);
        if !settled || row.read_at < self.shared.options.reread_before || self.is_tombstoned(row)? {
            return Ok(None);
        }
        Ok(Some(MapRow { reused: true, ..(*row).clone() }))
    }

    fn is_tombstoned(&self, row: &MapRow) -> RepositoryResult<bool> {
        let packs = &self.shared.packs;
        if !packs.has_tombstones() {
            return Ok(false);
        }
        let base = row.base.as_ref().is_some_and(|base| packs.is_tombstoned(&base.sha256));
        Ok(base
            || packs.is_tombstoned(&row.sha256)
            || self.shared.system.packs_of(row)?.iter().any(|pack| packs.is_tombstoned(&pack.digest)))
    }

    fn read(&mut self, index: usize, group: Group, files: &[SourceFile]) -> RepositoryResult<()> {
        let (previous, base) = self.previous.pages(self.shared, &group.parts)?;
        let sources = group.files.iter().map(|&file| files[file].clone()).collect();
        let job = Arc::new(Job::new(index, group.parts, sources, previous, base));
        let mut first = 0;
        for (part, covered) in job.parts.iter().enumerate() {
            let pages = covered.pages as usize;
            for at in (0..pages).step_by(CHUNK_PAGES) {
                let chunk = Chunk {
                    job: Arc::clone(&job),
                    part,
                    first: first + at,
                    file_page: covered.first_page + at as u64,
                    pages: CHUNK_PAGES.min(pages - at),
                };
                job.expect(1);
                self.shared.unread.fetch_add(1, Ordering::SeqCst);
                if self.chunks.send(chunk).is_err() {
                    self.shared.stop();
                    return Ok(());
                }
            }
            first += pages;
        }
        job.settle(1, self.events);
        Ok(())
    }

    /// Workers say nothing when they are done with a chunk; this happens once a backup.
    fn wait_until_read(&self) {
        while self.shared.unread.load(Ordering::SeqCst) > 0 && !self.shared.is_stopped() {
            std::thread::park_timeout(Duration::from_millis(1));
        }
    }
}

/// How many files begin among `parts`, and their bytes.
pub(super) fn counted(parts: &[FilePart]) -> (u64, u64) {
    let files = parts.iter().filter(|part| part.first_page == 0).count() as u64;
    (files, parts.iter().map(bytes_of).sum())
}

fn bytes_of(part: &FilePart) -> u64 {
    let start = part.first_page * PAGE_SIZE as u64;
    (part.size - start.min(part.size)).min(u64::from(part.pages) * PAGE_SIZE as u64)
}

/// The maps of the previous backup, found by what they cover.
struct Previous<'a> {
    by_digest: HashMap<PageHash, &'a MapRow>,
    by_first: HashMap<(&'a str, u64), &'a MapRow>,
    /// Maps of several files, sorted by their first path.
    shared: Vec<&'a MapRow>,
    /// The map of several files that was used last.
    recent: Option<([u8; 32], LoadedMap)>,
}

impl<'a> Previous<'a> {
    fn new(manifest: Option<&'a Manifest>) -> Self {
        let rows = manifest.map(|manifest| manifest.maps.as_slice()).unwrap_or_default();
        let mut shared: Vec<&MapRow> = rows.iter().filter(|row| row.files > 1).collect();
        shared.sort_by(|a, b| a.first.cmp(&b.first));
        Self {
            by_digest: rows.iter().map(|row| (row.files_digest, row)).collect(),
            by_first: rows
                .iter()
                .filter(|row| row.files == 1)
                .map(|row| ((row.first.as_str(), row.first_page), row))
                .collect(),
            shared,
            recent: None,
        }
    }

    /// What the previous backup had for the pages of these parts, and what a map of them could be a patch of.
    fn pages(
        &mut self,
        shared: &Shared<'_>,
        parts: &[FilePart],
    ) -> RepositoryResult<(Option<PageTable>, Option<Base>)> {
        if self.by_digest.is_empty() {
            return Ok((None, None));
        }
        if let [part] = parts
            && let Some(&row) = self.by_first.get(&(part.path.as_str(), part.first_page))
        {
            let loaded = load(shared, row)?;
            let table = fitted(&shared.packs.renumber(&loaded.map), part.pages as usize);
            return Ok((Some(table), base(shared, row, &loaded)));
        }
        let mut table = PageTable::default();
        for part in parts {
            let found = self.pages_of(shared, part)?;
            table.hashes.extend_from_slice(&found.hashes);
            table.places.extend_from_slice(&found.places);
        }
        Ok((Some(table), None))
    }

    fn pages_of(&mut self, shared: &Shared<'_>, part: &FilePart) -> RepositoryResult<PageTable> {
        let pages = part.pages as usize;
        let row = match self.by_first.get(&(part.path.as_str(), part.first_page)) {
            Some(&row) => Some(row),
            None => self.shared.partition_point(|row| row.first <= part.path).checked_sub(1).map(|at| self.shared[at]),
        };
        let Some(row) = row else {
            return Ok(PageTable::zeros(pages));
        };
        if self.recent.as_ref().is_none_or(|(sha256, _)| *sha256 != row.sha256) {
            self.recent = Some((row.sha256, load(shared, row)?));
        }
        let Some((_, loaded)) = &self.recent else {
            return Ok(PageTable::zeros(pages));
        };
        let mut at = 0;
        for covered in &loaded.map.files {
            let end = at + covered.pages as usize;
            if covered.path == part.path && covered.first_page == part.first_page {
                let table = PageTable {
                    hashes: loaded.map.table.hashes[at..end].to_vec(),
                    places: loaded.map.table.places[at..end].to_vec(),
                };
                let map = crate::repository::map::PageMap { files: Vec::new(), packs: loaded.map.packs.clone(), table };
                return Ok(fitted(&shared.packs.renumber(&map), pages));
            }
            at = end;
        }
        Ok(PageTable::zeros(pages))
    }
}

/// A damaged map of an earlier backup must not stop new ones: without it, its pages are stored again.
fn load(shared: &Shared<'_>, row: &MapRow) -> RepositoryResult<LoadedMap> {
    match shared.system.load_map(row) {
        Err(error) if error.as_damage().is_some() => {
            tracing::warn!(%error, "a map of the previous backup cannot be used: what it covers is stored again");
            Ok(LoadedMap {
                map: crate::repository::map::PageMap {
                    files: Vec::new(),
                    packs: Vec::new(),
                    table: PageTable::default(),
                },
                base: None,
            })
        }
        loaded => loaded,
    }
}

fn base(shared: &Shared<'_>, row: &MapRow, loaded: &LoadedMap) -> Option<Base> {
    if loaded.map.files.is_empty() {
        return None;
    }
    let (sha256, size, map) = match (&row.base, &loaded.base) {
        (Some(base), Some(map)) => (base.sha256, base.size, map),
        _ => (row.sha256, row.size, &loaded.map),
    };
    (!shared.packs.is_tombstoned(&sha256)).then(|| Base { sha256, size, table: shared.packs.renumber(map) })
}

fn fitted(table: &PageTable, pages: usize) -> PageTable {
    let mut fitted = PageTable::zeros(pages);
    let known = pages.min(table.len());
    fitted.hashes[..known].copy_from_slice(&table.hashes[..known]);
    fitted.places[..known].copy_from_slice(&table.places[..known]);
    fitted
}
