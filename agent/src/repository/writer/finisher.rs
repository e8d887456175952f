//! Stores maps, each once every pack that it names is durable.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use crossbeam_channel::Receiver;
use sha2::{Digest as _, Sha256};

use super::Shared;
use super::job::Job;
use super::planner::counted;
use crate::repository::error::{RepositoryError, RepositoryResult};
use crate::repository::manifest::{BaseRow, MapRow};
use crate::repository::map::{Draft, FilePart, PackRef, files_digest};
use crate::repository::store::Created;

/// What the finisher waits for.
#[derive(Debug)]
pub(super) enum Event {
    /// Every page of a map has a place.
    Read(Arc<Job>),
    /// A pack has a name and is durable.
    PackStored,
}

struct Waiting {
    index: usize,
    files: Vec<FilePart>,
    pages: u64,
    base: Option<BaseRow>,
    draft: Draft,
}

/// What became of each map, by number; nothing where all of its files vanished.
pub(super) type Rows = Vec<(usize, Option<MapRow>)>;

/// Stores maps until every thread that could send another has ended.
pub(super) fn run(shared: &Shared<'_>, events: &Receiver<Event>) -> RepositoryResult<Rows> {
    let mut waiting: Vec<Waiting> = Vec::new();
    let mut rows = Vec::new();
    for event in events {
        if shared.is_stopped() {
            continue;
        }
        if let Event::Read(job) = event {
            let map = draft(&job).map_err(RepositoryError::Compression)?;
            let ((listed, listed_bytes), (there, bytes)) = (counted(&job.parts), counted(&map.files));
            shared.vanished_files.fetch_add(listed - there, Ordering::Relaxed);
            shared.vanished_bytes.fetch_add(listed_bytes - bytes, Ordering::Relaxed);
            waiting.push(map);
        }
        let mut still = Vec::new();
        for mut map in waiting {
            if map.draft.packs.iter().all(|&pack| shared.packs.get(pack).is_some()) {
                rows.push((map.index, store(shared, &mut map)?));
            } else {
                still.push(map);
            }
        }
        waiting = still;
    }
    Ok(rows)
}

/// A patch where that is worth it, else a complete map.
fn draft(job: &Job) -> std::io::Result<Waiting> {
    let (files, table) = job.remains();
    let pages = table.len() as u64;
    let mut chosen = None;
    if let Some(base) = &job.base {
        let patch = Draft::patch(&files, &table, base.sha256, &base.table)?;
        // A patch keeps its base and all its packs alive: it has to be much smaller than a complete map.
        if patch.size() < table.len() * 16 / 2 {
            chosen = Some((patch, Some(BaseRow { sha256: base.sha256, size: base.size })));
        }
    }
    let (draft, base) = match chosen {
        Some(chosen) => chosen,
        None => (Draft::complete(&files, &table)?, None),
    };
    Ok(Waiting { index: job.index, files, pages, base, draft })
}

/// A map's bytes and its name; of a map that a prune is about to delete, or that is damaged, not even the name is used again.
fn named(shared: &Shared<'_>, draft: &mut Draft) -> RepositoryResult<(Bytes, [u8; 32])> {
    const NONE: PackRef = PackRef { digest: [0; 32], size: 0 };
    let finish = |draft: &Draft| {
        let bytes = draft.finish(|pack| shared.packs.get(pack).unwrap_or(NONE));
        let sha256: [u8; 32] = Sha256::digest(&bytes).into();
        (bytes, sha256)
    };
    let mut named = finish(draft);
    // Were all variants taken, the backup would be withdrawn at its end.
    for variant in 0..40 {
        if !shared.packs.is_tombstoned(&named.1) {
            break;
        }
        draft.vary(variant).map_err(RepositoryError::Compression)?;
        named = finish(draft);
    }
    Ok(named)
}

/// Stores a map; there is nothing to store where all of its files vanished.
fn store(shared: &Shared<'_>, map: &mut Waiting) -> RepositoryResult<Option<MapRow>> {
    if map.files.is_empty() {
        return Ok(None);
    }
    let (bytes, sha256) = named(shared, &mut map.draft)?;
    let first = &map.files[0];
    if shared.system.create_exactly(&shared.system.layout.map(&sha256), &bytes)? == Created::New {
        shared.stored_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
    }
    Ok(Some(MapRow {
        sha256,
        size: bytes.len() as u64,
        base: map.base.clone(),
        first: first.path.clone(),
        first_page: first.first_page,
        files: map.files.len() as u64,
        pages: map.pages,
        files_digest: files_digest(&map.files),
        read_at: shared.options.now,
        reused: false,
    }))
}
