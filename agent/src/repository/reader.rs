//! Reads the pages of a backup: pack by pack, each frame once, every page checked against its hash in the map.
//!
//! Maps are taken in batches of a bounded number of pages, so that memory does not grow with the database.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bytes::Bytes;
use sha2::{Digest as _, Sha256};

use super::error::{Damage, RepositoryResult};
use super::manifest::MapRow;
use super::map::{FilePart, PackRef, PageTable, Place, ZERO_PACK};
use super::pack::{
    self, Frame, PAGE_SIZE, PAGES_PER_FRAME, PageHash, frame_digest, has_header, page_hash, parse_index,
};
use super::store::Key;
use super::top::System;
use crate::aligned::Aligned;

/// Pages of one batch: 4 GiB.
const BATCH_PAGES: usize = 512 << 10;
/// Frames that are near each other are read at once, up to so many bytes.
const READ_AT_ONCE: u64 = 4 << 20;
/// Reading so many bytes that are not needed is cheaper than asking twice.
const READ_OVER: u64 = 128 << 10;
/// The index of most packs is within so many bytes of their end.
const INDEX_GUESS: u64 = 8 << 10;

/// The files and pages of some maps.
#[derive(Debug, Default)]
pub struct Batch {
    /// Parts of files, each with the number its first page has in the batch.
    pub parts: Vec<(FilePart, usize)>,
    /// The packs that the table numbers.
    pub packs: Vec<PackRef>,
    /// All pages.
    pub table: PageTable,
}

/// Pages that follow one another both in the batch and in a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Run {
    /// Where the first of them is stored.
    pub place: Place,
    /// The number of the first of them in the batch.
    pub first: u32,
    /// How many.
    pub pages: u16,
}

/// The batches of the maps `rows`, in order.
pub fn batches<'a>(system: &'a System, rows: &'a [MapRow]) -> impl Iterator<Item = RepositoryResult<Batch>> + 'a {
    let mut rest = rows;
    std::iter::from_fn(move || {
        let mut pages = 0;
        let count = rest
            .iter()
            .take_while(|row| {
                let fits = pages == 0 || pages + row.pages <= BATCH_PAGES as u64;
                pages += row.pages;
                fits
            })
            .count();
        let (now, later) = rest.split_at(count);
        rest = later;
        (!now.is_empty()).then(|| Batch::load(system, now))
    })
}

impl Batch {
    fn load(system: &System, rows: &[MapRow]) -> RepositoryResult<Self> {
        let mut batch = Self::default();
        let mut numbers: HashMap<PackRef, u32> = HashMap::new();
        for row in rows {
            let map = system.load_map(row)?.map;
            let renumbered: Vec<u32> = map
                .packs
                .iter()
                .map(|pack| {
                    *numbers.entry(*pack).or_insert_with(|| {
                        batch.packs.push(*pack);
                        batch.packs.len() as u32 - 1
                    })
                })
                .collect();
            let mut first = batch.table.len();
            for part in map.files {
                let pages = part.pages as usize;
                batch.parts.push((part, first));
                first += pages;
            }
            batch.table.hashes.extend_from_slice(&map.table.hashes);
            batch.table.places.extend(map.table.places.iter().map(|place| match place.pack {
                ZERO_PACK => *place,
                pack => Place { pack: renumbered[pack as usize], ..*place },
            }));
        }
        Ok(batch)
    }

    /// The pages for which `wanted` says so and that are stored anywhere, in the order in which they are stored.
    pub fn runs(&self, wanted: impl Fn(usize) -> bool) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        for (page, place) in self.table.places.iter().enumerate() {
            if place.pack == ZERO_PACK || !wanted(page) {
                continue;
            }
            if let Some(run) = runs.last_mut() {
                let next = Place { slot: run.place.slot.wrapping_add(run.pages), ..run.place };
                if next == *place && run.first as usize + usize::from(run.pages) == page {
                    run.pages += 1;
                    continue;
                }
            }
            runs.push(Run { place: *place, first: page as u32, pages: 1 });
        }
        runs.sort_unstable();
        runs
    }

    /// The part a page is in.
    pub fn part_of(&self, page: usize) -> &(FilePart, usize) {
        &self.parts[self.part_index(page)]
    }

    /// The number of the part a page is in.
    pub fn part_index(&self, page: usize) -> usize {
        // Parts without pages begin where the next one does: the last that begins at or before the page holds it.
        self.parts.partition_point(|(_, first)| *first <= page).saturating_sub(1)
    }

    /// The file and page number within it, for messages.
    pub fn describe(&self, page: usize) -> String {
        let (part, first) = self.part_of(page);
        format!("page {} of {}", part.first_page + (page - first) as u64, part.path)
    }
}

/// What takes the pages that were read.
pub trait PageSink: Sync {
    /// Takes `bytes`, whole pages of which the first is number `first` of `batch`. Called from several threads.
    ///
    /// # Errors
    /// Ends the reading.
    fn take(&self, batch: &Batch, first: usize, bytes: &[u8]) -> RepositoryResult<()>;
}

/// Reads `runs` (sorted) of `batch` and hands every page, once it is checked, to `sink`.
///
/// # Errors
/// The first failure: the store's, the sink's, or damage.
pub fn read_pages(
    system: &System,
    batch: &Batch,
    runs: &[Run],
    threads: usize,
    sink: &dyn PageSink,
) -> RepositoryResult<()> {
    let packs: Vec<&[Run]> = runs.chunk_by(|a, b| a.place.pack == b.place.pack).collect();
    in_parallel(threads, packs.len(), Decoder::new, |decoder, number| {
        let runs = packs[number];
        PackReading::open(system, batch.packs[runs[0].place.pack as usize])?.pages(batch, runs, decoder, sink)
    })
}

/// Does `count` pieces of work in `threads` threads, each with a tool of its own; the first failure ends it.
pub(crate) fn in_parallel<T, E: Send>(
    threads: usize,
    count: usize,
    tool: impl Fn() -> T + Sync,
    work: impl Fn(&mut T, usize) -> Result<(), E> + Sync,
) -> Result<(), E> {
    let next = AtomicUsize::new(0);
    let stopped = AtomicBool::new(false);
    let failure: Mutex<Option<E>> = Mutex::new(None);
    let run = || {
        let mut tool = tool();
        while !stopped.load(Ordering::Relaxed) {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                return;
            }
            if let Err(error) = work(&mut tool, number) {
                stopped.store(true, Ordering::Relaxed);
                failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.min(count) {
            scope.spawn(run);
        }
        run();
    });
    match failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

/// Decompresses frames.
pub(super) struct Decoder {
    zstd: Option<zstd::bulk::Decompressor<'static>>,
    plain: Aligned,
}

impl Decoder {
    pub(super) fn new() -> Self {
        Self { zstd: zstd::bulk::Decompressor::new().ok(), plain: Aligned::zeros(PAGES_PER_FRAME * PAGE_SIZE) }
    }

    /// The pages of a frame, or what is wrong with it.
    fn frame(&mut self, compressed: &[u8], pages: u16) -> Result<&[u8], String> {
        let expected = usize::from(pages) * PAGE_SIZE;
        let zstd = self.zstd.as_mut().ok_or_else(|| "there is no memory to decompress it".to_owned())?;
        let length = zstd
            .decompress_to_buffer(compressed, &mut self.plain.as_mut()[..expected])
            .map_err(|error| format!("a frame does not decompress ({error})"))?;
        if length == expected {
            Ok(&self.plain.as_ref()[..expected])
        } else {
            Err(format!("a frame holds {length} bytes instead of {expected}"))
        }
    }
}

/// A pack whose index was read.
struct PackReading<'a> {
    system: &'a System,
    key: Key,
    frames: Vec<Frame>,
}

impl<'a> PackReading<'a> {
    fn open(system: &'a System, pack: PackRef) -> RepositoryResult<Self> {
        let key = system.layout.pack(&pack.digest);
        let size = u64::from(pack.size);
        let mut tail = system.store.get_range(&key, size.saturating_sub(INDEX_GUESS)..size)?;
        let bad = || Damage::of(&key, "it has no index of a pack at its end");
        let length = pack::index_length(&tail).ok_or_else(bad)? as u64;
        if length > tail.len() as u64 && length < size {
            tail = system.store.get_range(&key, size - length..size)?;
        }
        let frames = parse_index(&tail, size).ok_or_else(bad)?;
        Ok(Self { system, key, frames })
    }

    fn pages(&self, batch: &Batch, runs: &[Run], decoder: &mut Decoder, sink: &dyn PageSink) -> RepositoryResult<()> {
        let mut rest = runs;
        while !rest.is_empty() {
            let (range, count) = self.reading(rest)?;
            let (now, later) = rest.split_at(count);
            rest = later;
            let bytes = self.system.store.get_range(&self.key, range.clone())?;
            for runs in now.chunk_by(|a, b| a.place.frame == b.place.frame) {
                let frame = &self.frames[usize::from(runs[0].place.frame)];
                let within = (frame.range.start - range.start) as usize..(frame.range.end - range.start) as usize;
                self.frame(batch, frame, &bytes[within], runs, decoder, sink)?;
            }
        }
        Ok(())
    }

    /// The bytes that hold the frames of the first runs, and of how many runs these are.
    fn reading(&self, runs: &[Run]) -> RepositoryResult<(Range<u64>, usize)> {
        let mut range: Option<Range<u64>> = None;
        let mut count = 0;
        for run in runs {
            let frame = self.frames.get(usize::from(run.place.frame)).ok_or_else(|| {
                Damage::of(&self.key, format!("it has no frame {}, which a map names", run.place.frame))
            })?;
            let joined = match &range {
                None => frame.range.clone(),
                Some(range) => range.start..frame.range.end,
            };
            let apart = range.as_ref().is_some_and(|range| frame.range.start > range.end + READ_OVER);
            if count > 0 && (apart || joined.end - joined.start > READ_AT_ONCE) {
                break;
            }
            range = Some(joined);
            count += 1;
        }
        Ok((range.unwrap_or(0..0), count))
    }

    fn frame(
        &self,
        batch: &Batch,
        frame: &Frame,
        compressed: &[u8],
        runs: &[Run],
        decoder: &mut Decoder,
        sink: &dyn PageSink,
    ) -> RepositoryResult<()> {
        let damaged = |what: String| Damage::of(&self.key, what);
        let plain = decoder.frame(compressed, frame.pages).map_err(damaged)?;
        for run in runs {
            let start = usize::from(run.place.slot) * PAGE_SIZE;
            let end = start + usize::from(run.pages) * PAGE_SIZE;
            let Some(bytes) = plain.get(start..end) else {
                return Err(damaged(format!("frame {} is shorter than a map says", run.place.frame)).into());
            };
            let first = run.first as usize;
            for (number, page) in bytes.chunks_exact(PAGE_SIZE).enumerate() {
                if page_hash(page) != batch.table.hashes[first + number] {
                    return Err(damaged(format!("{} is not what was backed up", batch.describe(first + number))).into());
                }
            }
            sink.take(batch, first, bytes)?;
        }
        Ok(())
    }
}

/// Reads a whole pack, checks every byte of it and every page, and that the pages `runs` of `batch` are where their
/// maps say. What is damaged is returned; errors are only those that say nothing about the pack.
///
/// # Errors
/// The store's, other than that the pack is missing or cut.
pub fn check_pack(
    system: &System,
    pack: PackRef,
    batch: &Batch,
    runs: &[Run],
    checker: &mut PackChecker,
) -> RepositoryResult<Option<Damage>> {
    let key = system.layout.pack(&pack.digest);
    // Whether it is longer than that is for whoever lists the packs to see.
    let body = match system.store.get_range(&key, 0..u64::from(pack.size)) {
        Ok(body) => body,
        Err(error) => {
            let error = super::RepositoryError::from(error);
            return error.as_damage().map_or(Err(error), |damage| Ok(Some(damage)));
        }
    };
    Ok(checker.check(pack, &body, batch, runs).err().map(|what| Damage::of(&key, what)))
}

/// Checks packs; holds the memory for one frame.
pub struct PackChecker(Decoder);

impl Default for PackChecker {
    fn default() -> Self {
        Self(Decoder::new())
    }
}

impl PackChecker {
    fn check(&mut self, pack: PackRef, body: &Bytes, batch: &Batch, runs: &[Run]) -> Result<(), String> {
        if body.len() as u64 != u64::from(pack.size) {
            return Err(format!("it has {} bytes, its maps say {}", body.len(), pack.size));
        }
        let digest = Sha256::digest(body);
        if digest.as_slice() != pack.digest {
            return Err(format!("its content has sha256 {}, which is not its name", hex::encode(digest)));
        }
        let frames = parse_index(body, u64::from(pack.size)).filter(|_| has_header(body));
        let frames = frames.ok_or_else(|| "it is no pack of version 1".to_owned())?;
        let mut by_frame = runs.chunk_by(|a, b| a.place.frame == b.place.frame).peekable();
        for (number, frame) in frames.iter().enumerate() {
            let compressed = &body[frame.range.start as usize..frame.range.end as usize];
            let plain = self.0.frame(compressed, frame.pages)?;
            let hashes: Vec<PageHash> = plain.chunks_exact(PAGE_SIZE).map(page_hash).collect();
            if frame_digest(hashes.iter()) != frame.digest {
                return Err(format!("the pages of frame {number} are not those that were backed up"));
            }
            if let Some(runs) = by_frame.next_if(|runs| usize::from(runs[0].place.frame) == number) {
                compare(batch, runs, &hashes)?;
            }
        }
        match by_frame.next() {
            Some(runs) => Err(format!("it has no frame {}, which a map names", runs[0].place.frame)),
            None => Ok(()),
        }
    }
}

fn compare(batch: &Batch, runs: &[Run], hashes: &[PageHash]) -> Result<(), String> {
    for run in runs {
        for number in 0..usize::from(run.pages) {
            let page = run.first as usize + number;
            if hashes.get(usize::from(run.place.slot) + number) != Some(&batch.table.hashes[page]) {
                return Err(format!("{} is not what was backed up", batch.describe(page)));
            }
        }
    }
    Ok(())
}
