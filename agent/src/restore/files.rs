//! Writes the files of a backup: only the pages that are not there already.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _, fchown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;

use super::place::{PlaceError, Prepared, sync_directory, unfinished};
use super::{Chosen, RestoreError, RestoreRequest, marker};
use rustix::fs::OFlags;

use crate::aligned::is_aligned;
use crate::home::Home;
use crate::progress::Progress;
use crate::repository::reader::{self, Batch, PageSink, in_parallel};
use crate::repository::{FilePart, PAGE_SIZE, RepositoryError, RepositoryResult, ZERO_PACK, page_hash};
use crate::steps::step;

/// Pages that are compared at a time.
const COMPARED: usize = 128;
/// Pages that one thread compares before it takes the next piece: 16 MiB.
const PIECE: usize = 2048;

/// How much was written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Restored {
    /// Files.
    pub files: u64,
    /// Bytes of all files.
    pub restored_bytes: u64,
    /// Bytes that were written.
    pub written_bytes: u64,
    /// Bytes that were there already, and right.
    pub kept_bytes: u64,
    /// Files that did not belong there, and were removed.
    pub removed_files: u64,
}

pub(super) fn write(
    home: &Home,
    chosen: &Chosen,
    request: &RestoreRequest,
    prepared: &Prepared,
    last_file: &str,
    progress: &Progress,
) -> Result<Restored, RestoreError> {
    let writing = Writing {
        root: &request.data_directory,
        prepared,
        last_file,
        progress,
        threads: request.threads,
        written: AtomicU64::new(0),
        kept: AtomicU64::new(0),
        open: (0..64).map(|_| Mutex::default()).collect(),
        direct: AtomicBool::new(true),
    };
    progress.expect(chosen.manifest.sizes.database_bytes);
    let mut names = HashSet::new();
    let mut restored = Restored::default();
    for batch in reader::batches(&home.system, &chosen.manifest.maps) {
        let batch = batch?;
        writing.batch(home, &batch)?;
        for (part, _) in &batch.parts {
            if part.first_page == 0 {
                restored.files += 1;
                restored.restored_bytes += part.size;
            }
            names.insert(part.path.clone());
        }
    }
    if prepared.reuse {
        restored.removed_files = remove_others(&request.data_directory, &names, last_file)?;
    }
    sync(&request.data_directory, &names, chosen, last_file, request.threads)?;
    restored.written_bytes = writing.written.into_inner();
    restored.kept_bytes = writing.kept.into_inner();
    Ok(restored)
}

/// A file that is being written: the number of its part, and the file as it was opened for the page cache and past it.
#[derive(Debug, Default)]
struct Open {
    number: Option<usize>,
    cached: Option<Arc<File>>,
    direct: Option<Arc<File>>,
}

/// Larger writes go past the page cache, where they can: it saves a copy, and dirty pages do not pile up until the end.
const DIRECT_FROM: usize = 128 << 10;

struct Writing<'a> {
    root: &'a Path,
    prepared: &'a Prepared,
    last_file: &'a str,
    progress: &'a Progress,
    threads: usize,
    written: AtomicU64,
    kept: AtomicU64,
    open: Vec<Mutex<Open>>,
    direct: AtomicBool,
}

impl Writing<'_> {
    fn path(&self, part: &FilePart) -> PathBuf {
        let path = self.root.join(&part.path);
        if part.path == self.last_file { unfinished(&path) } else { path }
    }

    fn batch(&self, home: &Home, batch: &Batch) -> Result<(), RestoreError> {
        for slot in &self.open {
            *slot.lock().unwrap_or_else(PoisonError::into_inner) = Open::default();
        }
        let old: Vec<bool> = batch.parts.iter().map(|(part, _)| self.create(part)).collect::<Result<_, _>>()?;
        let right: Vec<AtomicBool> = if old.contains(&true) {
            (0..batch.table.len()).map(|_| AtomicBool::new(false)).collect()
        } else {
            Vec::new()
        };
        self.compare(batch, &old, &right)?;
        let runs = batch.runs(|page| right.get(page).is_none_or(|right| !right.load(Ordering::Relaxed)));
        reader::read_pages(&home.system, batch, &runs, self.threads, self)?;
        Ok(())
    }

    /// Makes the file, or makes an old one as long as it must be; says whether it was there.
    fn create(&self, part: &FilePart) -> Result<bool, PlaceError> {
        let path = self.path(part);
        if part.first_page > 0 {
            return Ok(self.prepared.reuse);
        }
        let old = self.prepared.reuse && path.symlink_metadata().is_ok_and(|there| there.is_file());
        step("create a file");
        if self.prepared.reuse && !old {
            // A link or directory in the place of a file.
            let _ = fs::remove_dir_all(&path).or_else(|_| fs::remove_file(&path));
        }
        let file = File::options().write(true).create(true).truncate(!old).mode(part.mode & 0o7777).open(&path);
        let file = file.map_err(PlaceError::io("creating", &path))?;
        step("set the size of a file");
        file.set_len(part.size).map_err(PlaceError::io("setting the size of", &path))?;
        if old {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(part.mode & 0o7777);
            file.set_permissions(mode).map_err(PlaceError::io("setting the mode of", &path))?;
        }
        if let Some((uid, gid)) = self.prepared.owner {
            fchown(&file, Some(uid), Some(gid)).map_err(PlaceError::io("giving away", &path))?;
        }
        Ok(old)
    }

    /// Finds out which pages of old files are right, and writes zeros where they belong and are not.
    fn compare(&self, batch: &Batch, old: &[bool], right: &[AtomicBool]) -> Result<(), PlaceError> {
        let mut pieces = Vec::new();
        for (number, (part, _)) in batch.parts.iter().enumerate().filter(|(number, _)| old[*number]) {
            pieces.extend((0..part.pages as usize).step_by(PIECE).map(|at| (number, at)));
        }
        in_parallel(
            self.threads,
            pieces.len(),
            || vec![0; COMPARED * PAGE_SIZE],
            |buffer, piece| {
                let (number, at) = pieces[piece];
                let (part, first) = &batch.parts[number];
                let path = self.path(part);
                let pages = PIECE.min(part.pages as usize - at);
                self.compare_piece(batch, part, first + at, at, pages, buffer, right)
                    .map_err(PlaceError::io("comparing", &path))
            },
        )
    }

    #[expect(clippy::too_many_arguments, reason = "a piece is all of this")]
    fn compare_piece(
        &self,
        batch: &Batch,
        part: &FilePart,
        first: usize,
        at: usize,
        pages: usize,
        buffer: &mut [u8],
        right: &[AtomicBool],
    ) -> io::Result<()> {
        let file = File::options().read(true).write(true).open(self.path(part))?;
        for done in (0..pages).step_by(COMPARED) {
            let count = COMPARED.min(pages - done);
            let start = (part.first_page + (at + done) as u64) * PAGE_SIZE as u64;
            let wanted = (part.size.saturating_sub(start)).min((count * PAGE_SIZE) as u64) as usize;
            buffer[..count * PAGE_SIZE].fill(0);
            file.read_exact_at(&mut buffer[..wanted], start)?;
            for (number, page) in buffer[..count * PAGE_SIZE].chunks_exact(PAGE_SIZE).enumerate() {
                let index = first + done + number;
                let offset = start + (number * PAGE_SIZE) as u64;
                let length = (part.size - offset).min(PAGE_SIZE as u64);
                if batch.table.places[index].pack == ZERO_PACK {
                    if page.iter().any(|&byte| byte != 0) {
                        step("write zeros");
                        file.write_all_at(&vec![0; length as usize], offset)?;
                    }
                } else if page_hash(page) == batch.table.hashes[index] {
                    right[index].store(true, Ordering::Relaxed);
                    self.kept.fetch_add(length, Ordering::Relaxed);
                    self.progress.advance(length);
                }
            }
        }
        Ok(())
    }

    fn file(&self, batch: &Batch, number: usize, direct: bool) -> io::Result<Arc<File>> {
        let mut open = self.open[number % self.open.len()].lock().unwrap_or_else(PoisonError::into_inner);
        if open.number != Some(number) {
            *open = Open { number: Some(number), ..Open::default() };
        }
        let flags = if direct { OFlags::DIRECT } else { OFlags::empty() };
        let slot = if direct { &mut open.direct } else { &mut open.cached };
        if let Some(file) = slot {
            return Ok(Arc::clone(file));
        }
        let path = self.path(&batch.parts[number].0);
        let file = File::options().write(true).custom_flags(flags.bits().cast_signed()).open(path)?;
        Ok(Arc::clone(slot.insert(Arc::new(file))))
    }

    fn write(&self, batch: &Batch, number: usize, bytes: &[u8], offset: u64) -> io::Result<()> {
        let direct = bytes.len() >= DIRECT_FROM && is_aligned(bytes, offset) && self.direct.load(Ordering::Relaxed);
        if direct {
            match self.file(batch, number, true).and_then(|file| file.write_all_at(bytes, offset)) {
                // Not every file system knows such writes; whatever was written is written again.
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                    self.direct.store(false, Ordering::Relaxed);
                }
                written => return written,
            }
        }
        self.file(batch, number, false)?.write_all_at(bytes, offset)
    }
}

impl PageSink for Writing<'_> {
    /// Writes pages that follow one another in the batch; they may end one file and begin another.
    fn take(&self, batch: &Batch, first: usize, bytes: &[u8]) -> RepositoryResult<()> {
        let mut rest = bytes;
        let mut page = first;
        while !rest.is_empty() {
            let number = batch.part_index(page);
            let (part, start) = &batch.parts[number];
            let within = page - start;
            let pages = (part.pages as usize - within).min(rest.len() / PAGE_SIZE);
            let (now, later) = rest.split_at(pages * PAGE_SIZE);
            let offset = (part.first_page + within as u64) * PAGE_SIZE as u64;
            let length = (part.size - offset).min(now.len() as u64) as usize;
            step("write pages");
            self.write(batch, number, &now[..length], offset).map_err(|source| RepositoryError::Local {
                action: "writing",
                path: self.path(part).display().to_string(),
                source,
            })?;
            self.written.fetch_add(length as u64, Ordering::Relaxed);
            self.progress.advance(length as u64);
            rest = later;
            page += pages;
        }
        Ok(())
    }
}

/// Removes every file below the directory that the backup does not have.
fn remove_others(root: &Path, names: &HashSet<String>, last_file: &str) -> Result<u64, PlaceError> {
    let mut removed = 0;
    let mut directories = vec![PathBuf::new()];
    while let Some(directory) = directories.pop() {
        let path = root.join(&directory);
        for entry in fs::read_dir(&path).map_err(PlaceError::io("reading", &path))? {
            let entry = entry.map_err(PlaceError::io("reading", &path))?;
            let name = directory.join(entry.file_name());
            let there = fs::metadata(entry.path()).or_else(|_| entry.metadata());
            if there.map_err(PlaceError::io("looking at", &entry.path()))?.is_dir() {
                directories.push(name);
                continue;
            }
            let text = name.to_string_lossy();
            let own = marker::is_marker(name.as_os_str()) || root.join(&name) == unfinished(&root.join(last_file));
            if !own && !names.contains(text.as_ref()) {
                step("remove a file that does not belong");
                fs::remove_file(entry.path()).map_err(PlaceError::io("removing", &entry.path()))?;
                removed += 1;
            }
        }
    }
    Ok(removed)
}

/// Makes all files and directories durable.
fn sync(
    root: &Path,
    names: &HashSet<String>,
    chosen: &Chosen,
    last_file: &str,
    threads: usize,
) -> Result<(), PlaceError> {
    let mut names: Vec<&String> = names.iter().collect();
    names.sort();
    step("sync the files");
    in_parallel(
        threads.max(4),
        names.len(),
        || (),
        |(), number| {
            let path = root.join(names[number]);
            let path = if names[number] == last_file { unfinished(&path) } else { path };
            File::open(&path).and_then(|file| file.sync_all()).map_err(PlaceError::io("syncing", &path))
        },
    )?;
    for directory in &chosen.manifest.directories {
        sync_directory(&root.join(&directory.path))?;
    }
    sync_directory(root)
}
