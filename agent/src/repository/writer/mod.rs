//! Writes the pages of a snapshot: only those that no earlier backup has, compressed, in packs, and maps of all.
//!
//! The pipeline: the planner (the calling thread) cuts files into chunks; workers read, hash, judge and compress; a
//! shared pack is filled with their frames; uploaders name full packs and store them; the finisher stores each map once
//! every pack it names is durable. Memory is bounded by the frames, packs and maps in flight, whatever the database's size.

mod finisher;
mod groups;
mod job;
mod packs;
mod planner;
mod worker;

use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crossbeam_channel::bounded;
use jiff::Timestamp;

use super::error::{RepositoryError, RepositoryResult};
use super::manifest::{Manifest, MapRow, Sizes};
use super::top::System;
use crate::progress::Progress;
use crate::snapshot::{BadPage, PageJudge, SourceFile};
use packs::Packs;

/// How pages are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// zstd level 1, or level 3 where samples of the data at hand gain by it.
    Auto,
    /// A zstd level.
    Level(i32),
}

/// How to write a snapshot.
#[derive(Debug, Clone)]
pub struct WriteOptions {
    /// Workers.
    pub threads: usize,
    /// How pages are compressed.
    pub compression: Compression,
    /// When reading begins, by the clock that file times are in.
    pub now: Timestamp,
    /// Files last read before this are read again, however unchanged they look.
    pub reread_before: Timestamp,
    /// Objects that a prune is about to delete: never used again.
    pub tombstones: HashSet<[u8; 32]>,
}

/// What was written.
#[derive(Debug)]
pub struct Written {
    /// The maps, in the order of the files.
    pub maps: Vec<MapRow>,
    /// How much it was.
    pub sizes: Sizes,
    /// Pages whose own checksum is wrong.
    pub bad_pages: Vec<BadPage>,
}

/// Gives the files that must be read after all others, once these have been read.
pub type LastFiles<'a> = dyn FnMut() -> RepositoryResult<Vec<SourceFile>> + 'a;

/// Everything the threads share.
pub(super) struct Shared<'a> {
    system: &'a System,
    judge: &'a dyn PageJudge,
    options: &'a WriteOptions,
    progress: &'a Progress,
    packs: Packs,
    bad_pages: Mutex<Vec<BadPage>>,
    /// Chunks that are planned and not yet read.
    unread: AtomicU64,
    new_bytes: AtomicU64,
    stored_bytes: AtomicU64,
    /// Files that were listed and gone before they could be read, and what they would have been.
    vanished_files: AtomicU64,
    vanished_bytes: AtomicU64,
    stopped: AtomicBool,
}

impl Shared<'_> {
    fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }
}

/// Stores the pages of `files` (sorted by path), then of `last`, reusing what `previous` has.
///
/// # Errors
/// The store's, and of files that cannot be read; what was stored until then is garbage that a prune removes.
pub fn write(
    system: &System,
    previous: Option<&Manifest>,
    files: &[SourceFile],
    last: &mut LastFiles<'_>,
    judge: &dyn PageJudge,
    options: &WriteOptions,
    progress: &Progress,
) -> RepositoryResult<Written> {
    let shared = Shared {
        system,
        judge,
        options,
        progress,
        packs: Packs::new(&options.tombstones),
        bad_pages: Mutex::default(),
        unread: AtomicU64::new(0),
        new_bytes: AtomicU64::new(0),
        stored_bytes: AtomicU64::new(0),
        vanished_files: AtomicU64::new(0),
        vanished_bytes: AtomicU64::new(0),
        stopped: AtomicBool::new(false),
    };
    let (planned, done) = run(&shared, previous, files, last)?;
    let mut rows: Vec<(usize, Option<MapRow>)> = planned.reused;
    rows.extend(done);
    if rows.len() != planned.groups {
        return Err(RepositoryError::Refused("the backup was stopped before everything was stored".to_owned()));
    }
    rows.sort_by_key(|(index, _)| *index);
    let maps = rows.into_iter().filter_map(|(_, row)| row).collect();
    let mut bad_pages = shared.bad_pages.into_inner().unwrap_or_default();
    bad_pages.sort();
    let (gone, gone_bytes) = (shared.vanished_files.into_inner(), shared.vanished_bytes.into_inner());
    let sizes = Sizes {
        files: planned.sizes.files.saturating_sub(gone),
        database_bytes: planned.sizes.database_bytes.saturating_sub(gone_bytes),
        read_bytes: planned.sizes.read_bytes.saturating_sub(gone_bytes),
        new_bytes: shared.new_bytes.into_inner(),
        stored_bytes: shared.stored_bytes.into_inner(),
        ..planned.sizes
    };
    Ok(Written { maps, sizes, bad_pages })
}

/// Runs the threads until all is stored, or one of them failed.
fn run(
    shared: &Shared<'_>,
    previous: Option<&Manifest>,
    files: &[SourceFile],
    last: &mut LastFiles<'_>,
) -> RepositoryResult<(planner::Planned, finisher::Rows)> {
    let threads = shared.options.threads.max(1);
    let (chunk_sender, chunks) = bounded(threads * 4);
    // Packs are handed over, never queued: each is memory.
    let (pack_sender, full_packs) = bounded(0);
    let (event_sender, events) = crossbeam_channel::unbounded();
    let filling = &packs::Filling::new(shared, pack_sender);
    std::thread::scope(|scope| {
        let finisher = scope.spawn(move || guarded(shared, || finisher::run(shared, &events)));
        let uploaders: Vec<_> = (0..threads.clamp(2, 3))
            .map(|_| {
                let (full_packs, events) = (full_packs.clone(), event_sender.clone());
                scope.spawn(move || guarded(shared, || packs::upload(shared, &full_packs, &events)))
            })
            .collect();
        drop(full_packs);
        let workers: Vec<_> = (0..threads)
            .map(|_| {
                let (chunks, events) = (chunks.clone(), event_sender.clone());
                scope.spawn(move || guarded(shared, || worker::run(shared, &chunks, filling, &events)))
            })
            .collect();
        drop(chunks);
        let planned = guarded(shared, || planner::plan(shared, previous, files, last, &chunk_sender, &event_sender));
        drop((chunk_sender, event_sender));
        let read = joined(workers);
        filling.close();
        let stored = joined(uploaders);
        let rows = finisher.join().unwrap_or_else(|_| Err(panicked()));
        read.and(stored)?;
        let rows = rows?;
        Ok((planned?, rows))
    })
}

/// Runs one thread's work; when it fails, tells the others to stop.
fn guarded<T>(shared: &Shared<'_>, work: impl FnOnce() -> RepositoryResult<T>) -> RepositoryResult<T> {
    let result = work();
    if result.is_err() {
        shared.stop();
    }
    result
}

fn joined(threads: Vec<std::thread::ScopedJoinHandle<'_, RepositoryResult<()>>>) -> RepositoryResult<()> {
    threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(panicked()))).fold(Ok(()), Result::and)
}

fn panicked() -> RepositoryError {
    RepositoryError::Refused("a thread of the backup panicked; this is a bug, please report it".to_owned())
}
