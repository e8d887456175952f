//! Directories that stay where they were made.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::io::Errno;

use crate::steps::step;

/// Directories below a root, made as they are needed.
///
/// One that was there when this process first looked is taken as durable. That is so even if its maker was killed
/// before it synced the parent: syncing a directory that was never written also writes the entry that leads to it,
/// on every journaling file system.
#[derive(Debug)]
pub(super) struct Dirs {
    root: PathBuf,
    known: Mutex<HashSet<PathBuf>>,
}

impl Dirs {
    pub(super) fn below(root: PathBuf) -> Self {
        Self { root, known: Mutex::default() }
    }

    /// Makes `dir` durably. Another thread that needs it waits until it is durable, not merely there.
    pub(super) fn ensure(&self, dir: &Path) -> io::Result<()> {
        // The set is whole after every instruction, so a thread that panicked cannot have left it broken.
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        self.ensure_known(&mut known, dir)
    }

    fn ensure_known(&self, known: &mut HashSet<PathBuf>, dir: &Path) -> io::Result<()> {
        // The root is never made here: if it is gone, so is the volume, and what is below it now is another one.
        if dir == self.root || known.contains(dir) {
            return Ok(());
        }
        match make_durably(dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if let Some(parent) = dir.parent().filter(|parent| *parent != self.root) {
                    self.ensure_known(known, parent)?;
                }
                make_durably(dir)?;
            }
            other => other?,
        }
        known.insert(dir.to_owned());
        Ok(())
    }

    /// Forgets everything: a directory turned out to be gone.
    pub(super) fn forget(&self) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// Makes one directory, if it is not there, and its entry durable.
pub(super) fn make_durably(dir: &Path) -> io::Result<()> {
    if dir.is_dir() {
        return Ok(());
    }
    step("file.make-directory");
    match fs::DirBuilder::new().mode(0o750).create(dir) {
        // Another process was faster; it may be killed before it syncs, so that is done here too.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Err(Errno::NOTDIR.into()),
        other => other?,
    }
    dir.parent().map_or(Ok(()), sync)
}

/// Makes a directory and all above it that are not there, durably.
pub(super) fn make_all_durably(dir: &Path) -> io::Result<()> {
    if let Some(parent) = dir.parent().filter(|parent| !parent.is_dir()) {
        make_all_durably(parent)?;
    }
    make_durably(dir)
}

/// Makes the entries of a directory durable.
pub(super) fn sync(dir: &Path) -> io::Result<()> {
    step("file.sync-directory");
    match File::open(dir)?.sync_all() {
        // So say file systems that have no such notion (CIFS, some in user space): there is nothing more to be done.
        Err(error) if Errno::from_io_error(&error) == Some(Errno::INVAL) => Ok(()),
        other => other,
    }
}
