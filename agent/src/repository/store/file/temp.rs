//! Files that have no name yet.

use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use rustix::fs::{OFlags, Timespec, Timestamps, UTIME_NOW};

use super::read;
use crate::aligned::{BLOCK, is_aligned};
use crate::steps::step;

/// Smaller bodies are not worth it.
const DIRECT_FROM: usize = 1 << 20;

/// A file in the scratch directory; removed when dropped, unless it got its name.
#[derive(Debug)]
pub(super) struct Temp {
    path: PathBuf,
    file: File,
    is_there: bool,
}

impl Temp {
    /// A new, empty file.
    pub(super) fn new(scratch: &Path) -> io::Result<Self> {
        // Hosts that share the volume can have processes of the same number; `create_new` catches the rest.
        let path = scratch.join(format!("{}-{:016x}", std::process::id(), RandomState::new().build_hasher().finish()));
        step("file.create-temporary");
        let file = OpenOptions::new().write(true).create_new(true).mode(0o640).open(&path)?;
        Ok(Self { path, file, is_there: true })
    }

    /// A new file of these bytes, durable but for its name.
    pub(super) fn holding(scratch: &Path, body: &[u8]) -> io::Result<Self> {
        let mut temp = Self::new(scratch)?;
        step("file.write");
        let direct = temp.write_direct(body)?;
        temp.file.write_all(&body[direct..])?;
        step("file.sync");
        temp.file.sync_data()?;
        Ok(temp)
    }

    /// Writes the whole blocks of a large, aligned body past the page cache, where the file system can: it saves a copy,
    /// and a backup does not push the database's own pages out of memory. Says how much was written.
    fn write_direct(&mut self, body: &[u8]) -> io::Result<usize> {
        let whole = body.len() / BLOCK * BLOCK;
        if whole < DIRECT_FROM || !is_aligned(&body[..whole], 0) {
            return Ok(0);
        }
        let flags = rustix::fs::fcntl_getfl(&self.file)?;
        if rustix::fs::fcntl_setfl(&self.file, flags | OFlags::DIRECT).is_err() {
            return Ok(0);
        }
        let mut written = 0;
        while written < whole {
            match self.file.write(&body[written..whole]) {
                Ok(0) => break,
                Ok(more) => written += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => break,
                Err(error) => return Err(error),
            }
            if !written.is_multiple_of(BLOCK) {
                break;
            }
        }
        rustix::fs::fcntl_setfl(&self.file, flags)?;
        Ok(written)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The file was renamed: there is nothing left to remove.
    pub(super) fn renamed(mut self) {
        self.is_there = false;
    }
}

impl Drop for Temp {
    fn drop(&mut self) {
        if self.is_there {
            step("file.remove-temporary");
            // If this fails the sweep of a later day will do it.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// What time the file system thinks it is.
pub(super) fn file_system_clock(scratch: &Path) -> io::Result<Timestamp> {
    let temp = Temp::new(scratch)?;
    // "Now" is filled in by whoever keeps the file, which on a network file system is the server.
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    rustix::fs::futimens(&temp.file, &Timestamps { last_access: now, last_modification: now })?;
    read::modified(&temp.file.metadata()?)
}
