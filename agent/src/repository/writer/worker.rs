//! Reads pages, keeps those that are new, and compresses them into frames.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use crossbeam_channel::{Receiver, Sender};

use super::finisher::Event;
use super::job::{Job, NO_PACK};
use super::packs::Filling;
use super::{Compression, Shared};
use crate::repository::error::{RepositoryError, RepositoryResult};
use crate::repository::map::{Place, ZERO_PACK};
use crate::repository::pack::{PAGE_SIZE, PAGES_PER_FRAME, PageHash, frame_digest, page_hash};
use crate::snapshot::{BadPage, Source, SourceFile};

/// Some pages of one part of a map's files.
#[derive(Debug)]
pub(super) struct Chunk {
    pub(super) job: Arc<Job>,
    /// Index of the part.
    pub(super) part: usize,
    /// The first page, counted in the map.
    pub(super) first: usize,
    /// The same page, counted in the file.
    pub(super) file_page: u64,
    pub(super) pages: usize,
}

/// Works until there are no more chunks, then stores what is left in its frame.
pub(super) fn run(
    shared: &Shared<'_>,
    chunks: &Receiver<Chunk>,
    filling: &Filling<'_>,
    events: &Sender<Event>,
) -> RepositoryResult<()> {
    let mut frame = Frame::new(shared.options.compression).map_err(RepositoryError::Compression)?;
    for chunk in chunks {
        if shared.is_stopped() {
            return Ok(());
        }
        read(shared, &chunk, &mut frame, filling, events)?;
        shared.unread.fetch_sub(1, Ordering::SeqCst);
        chunk.job.settle(1, events);
    }
    while frame.used > 0 && !shared.is_stopped() {
        frame.flush(shared, filling, events)?;
    }
    Ok(())
}

fn read(
    shared: &Shared<'_>,
    chunk: &Chunk,
    frame: &mut Frame,
    filling: &Filling<'_>,
    events: &Sender<Event>,
) -> RepositoryResult<()> {
    let source = &chunk.job.files[chunk.part];
    let failed =
        |error: io::Error| RepositoryError::Local { action: "reading", path: source.path.clone(), source: error };
    let input = match &source.source {
        Source::Bytes(bytes) => Input::Bytes(bytes),
        Source::File(path) => match File::open(path) {
            Ok(file) => Input::File(file),
            // It was dropped since it was listed; the log says so too.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                chunk.job.vanish(chunk.part);
                shared.progress.advance((chunk.pages * PAGE_SIZE) as u64);
                return Ok(());
            }
            Err(error) => return Err(failed(error)),
        },
    };
    let mut done = 0;
    while done < chunk.pages {
        let pages = (chunk.pages - done).min(PAGES_PER_FRAME);
        let piece = Piece { chunk, source, first: chunk.first + done, file_page: chunk.file_page + done as u64, pages };
        frame.take(shared, &input, &piece).map_err(failed)?;
        while frame.used >= PAGES_PER_FRAME {
            frame.flush(shared, filling, events)?;
        }
        done += pages;
        shared.progress.advance((pages * PAGE_SIZE) as u64);
    }
    Ok(())
}

enum Input<'a> {
    File(File),
    Bytes(&'a [u8]),
}

impl Input<'_> {
    /// Fills `buffer` from `offset`; what the file, up to `size`, does not have is zeros.
    fn read(&self, buffer: &mut [u8], offset: u64, size: u64) -> io::Result<()> {
        let wanted = (size.saturating_sub(offset)).min(buffer.len() as u64) as usize;
        let mut have = 0;
        while have < wanted {
            let read = match self {
                Self::File(file) => match file.read_at(&mut buffer[have..wanted], offset + have as u64) {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    read => read?,
                },
                Self::Bytes(bytes) => {
                    let from = bytes.get(offset as usize + have..).unwrap_or_default();
                    let length = from.len().min(wanted - have);
                    buffer[have..have + length].copy_from_slice(&from[..length]);
                    length
                }
            };
            if read == 0 {
                break;
            }
            have += read;
        }
        buffer[have..].fill(0);
        Ok(())
    }
}

/// Up to a frame's worth of pages, read at once.
struct Piece<'a> {
    chunk: &'a Chunk,
    source: &'a SourceFile,
    first: usize,
    file_page: u64,
    pages: usize,
}

struct New {
    job: Arc<Job>,
    page: u32,
    hash: PageHash,
}

/// New pages, waiting until there are enough of them for a frame.
struct Frame {
    bytes: Vec<u8>,
    used: usize,
    new: Vec<New>,
    compressor: Compressor,
}

impl Frame {
    fn new(compression: Compression) -> io::Result<Self> {
        Ok(Self {
            bytes: vec![0; 2 * PAGES_PER_FRAME * PAGE_SIZE],
            used: 0,
            new: Vec::with_capacity(2 * PAGES_PER_FRAME),
            compressor: Compressor::new(compression)?,
        })
    }

    /// Reads a piece behind the pages that are waiting, and closes up over those of it that are not new.
    fn take(&mut self, shared: &Shared<'_>, input: &Input<'_>, piece: &Piece<'_>) -> io::Result<()> {
        let start = self.used * PAGE_SIZE;
        let offset = piece.file_page * PAGE_SIZE as u64;
        input.read(&mut self.bytes[start..start + piece.pages * PAGE_SIZE], offset, piece.source.size)?;
        let first_kept = self.used;
        for number in 0..piece.pages {
            let at = start + number * PAGE_SIZE;
            let hash = self.settled(shared, input, piece, number, at)?;
            let page = piece.first + number;
            let previous = piece.chunk.job.previous(page);
            let Some(hash) = hash else {
                if previous.is_some_and(|(_, place)| place.pack != ZERO_PACK) {
                    piece.chunk.job.place(std::iter::once((page as u32, PageHash::default(), Place::ZERO)));
                }
                continue;
            };
            if previous.is_some_and(|(before, place)| before == hash && place.pack < NO_PACK) {
                continue;
            }
            let to = self.used * PAGE_SIZE;
            if to != at {
                self.bytes.copy_within(at..at + PAGE_SIZE, to);
            }
            self.used += 1;
            self.new.push(New { job: Arc::clone(&piece.chunk.job), page: page as u32, hash });
        }
        piece.chunk.job.expect(self.used - first_kept);
        Ok(())
    }

    /// The hash of a page once it is judged, after a second reading where the first did not look sound; `None` for zeros.
    fn settled(
        &mut self,
        shared: &Shared<'_>,
        input: &Input<'_>,
        piece: &Piece<'_>,
        number: usize,
        at: usize,
    ) -> io::Result<Option<PageHash>> {
        let file_page = piece.file_page + number as u64;
        if let Some(first_block) = piece.source.first_block {
            let block = first_block.wrapping_add(file_page as u32);
            let page = &mut self.bytes[at..at + PAGE_SIZE];
            if !shared.judge.is_sound(block, page) {
                // The server may have been writing it.
                input.read(page, file_page * PAGE_SIZE as u64, piece.source.size)?;
                if !shared.judge.is_sound(block, page) {
                    let bad = BadPage { path: piece.source.path.clone(), page: file_page };
                    shared.bad_pages.lock().unwrap_or_else(PoisonError::into_inner).push(bad);
                }
            }
        }
        let page = &self.bytes[at..at + PAGE_SIZE];
        Ok((!is_zero(page)).then(|| page_hash(page)))
    }

    /// Compresses up to a frame's worth of pages, and tells their maps where they are.
    fn flush(&mut self, shared: &Shared<'_>, filling: &Filling<'_>, events: &Sender<Event>) -> RepositoryResult<()> {
        let pages = self.used.min(PAGES_PER_FRAME);
        let bytes = pages * PAGE_SIZE;
        let subject = self.new.first().map_or(0, |new| new.job.index);
        let compressed =
            self.compressor.compress(subject, &self.bytes[..bytes]).map_err(RepositoryError::Compression)?;
        let digest = frame_digest(self.new[..pages].iter().map(|new| &new.hash));
        let (pack, frame) = filling.push(compressed, pages, digest);
        shared.new_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        let mut slot = 0_u16;
        for run in self.new[..pages].chunk_by(|a, b| Arc::ptr_eq(&a.job, &b.job)) {
            let job = &run[0].job;
            job.place(run.iter().map(|new| {
                slot += 1;
                (new.page, new.hash, Place { pack, frame, slot: slot - 1 })
            }));
            job.settle(run.len(), events);
        }
        self.new.drain(..pages);
        self.bytes.copy_within(bytes..self.used * PAGE_SIZE, 0);
        self.used -= pages;
        Ok(())
    }
}

fn is_zero(page: &[u8]) -> bool {
    page.iter().take(64).all(|&byte| byte == 0)
        && page.chunks(64).all(|part| part.iter().fold(0, |or, byte| or | byte) == 0)
}

/// Compresses frames, at the level that suits the file they are of: level 1 is quicker and often smaller, but on some
/// files, B-tree indexes above all, level 3 stores a fifth less.
struct Compressor {
    quick: zstd::bulk::Compressor<'static>,
    thorough: Option<zstd::bulk::Compressor<'static>>,
    out: Vec<u8>,
    trial: Vec<u8>,
    /// The map of the last frame, how many frames of it there were, and what samples of it took at both levels.
    subject: usize,
    frames: u64,
    sampled: (usize, usize),
}

impl Compressor {
    const QUICK: i32 = 1;
    const THOROUGH: i32 = 3;
    /// One frame in so many is compressed at both levels, the first of each file included.
    const SAMPLE: u64 = 32;

    fn new(compression: Compression) -> io::Result<Self> {
        let (quick, thorough) = match compression {
            Compression::Auto => (Self::QUICK, Some(zstd::bulk::Compressor::new(Self::THOROUGH)?)),
            Compression::Level(level) => (level, None),
        };
        let out = vec![0; zstd::zstd_safe::compress_bound(PAGES_PER_FRAME * PAGE_SIZE)];
        let trial = if thorough.is_some() { out.clone() } else { Vec::new() };
        let quick = zstd::bulk::Compressor::new(quick)?;
        Ok(Self { quick, thorough, out, trial, subject: usize::MAX, frames: 0, sampled: (0, 0) })
    }

    fn compress(&mut self, subject: usize, plain: &[u8]) -> io::Result<&[u8]> {
        if self.subject != subject {
            (self.subject, self.frames, self.sampled) = (subject, 0, (0, 0));
        }
        let sample = self.frames.is_multiple_of(Self::SAMPLE);
        self.frames += 1;
        // The slower level has to store at least a fortieth less.
        let gains = self.sampled.1 + self.sampled.0 / 40 < self.sampled.0;
        match &mut self.thorough {
            Some(thorough) if sample => {
                let quick = self.quick.compress_to_buffer(plain, &mut self.trial)?;
                let thorough = thorough.compress_to_buffer(plain, &mut self.out)?;
                self.sampled = (self.sampled.0 + quick, self.sampled.1 + thorough);
                Ok(if quick <= thorough { &self.trial[..quick] } else { &self.out[..thorough] })
            }
            Some(thorough) if gains => {
                let length = thorough.compress_to_buffer(plain, &mut self.out)?;
                Ok(&self.out[..length])
            }
            _ => {
                let length = self.quick.compress_to_buffer(plain, &mut self.out)?;
                Ok(&self.out[..length])
            }
        }
    }
}
