//! Writing, replacing and removing objects.

use std::fs;
use std::io;
use std::path::Path;

use rustix::fs::{CWD, RenameFlags};
use rustix::io::Errno;

use super::lock::{self, Lock};
use super::temp::Temp;
use super::{FileStore, dirs, is_absence, read};
use crate::repository::store::{Created, Key, StoreError, StoreFault, Swapped, Version};
use crate::steps::step;

/// The ways to give a file a name that nothing has, best first. Not every file system knows every one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Naming {
    /// `renameat2(RENAME_NOREPLACE)`: local file systems.
    Rename,
    /// `link` and `unlink`: NFS.
    Link,
    /// Look, then rename, under the lock of the store: the rest (some in user space).
    Locked,
}

const WAYS: [Naming; 3] = [Naming::Rename, Naming::Link, Naming::Locked];

impl FileStore {
    pub(super) fn write_new(&self, key: &Key, body: &[u8]) -> io::Result<Created> {
        self.write_new_by(&WAYS, key, body)
    }

    pub(super) fn write_new_by(&self, ways: &[Naming], key: &Key, body: &[u8]) -> io::Result<Created> {
        let path = self.path(key);
        if fs::symlink_metadata(&path).is_ok() {
            return existed(&path);
        }
        let temp = Temp::holding(self.scratch()?, body)?;
        self.name(ways, temp, &path)
    }

    /// Gives `temp` its name, durably, unless something has it.
    pub(super) fn name(&self, ways: &[Naming], temp: Temp, path: &Path) -> io::Result<Created> {
        let dir = parent(path)?;
        self.dirs.ensure(dir)?;
        let mut named = self.try_to_name(ways, &temp, path);
        if named.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            // The directory was removed by somebody who found it empty.
            self.dirs.forget();
            self.dirs.ensure(dir)?;
            named = self.try_to_name(ways, &temp, path);
        }
        match named? {
            None => existed(path),
            Some(way) => {
                if way != Naming::Link {
                    temp.renamed();
                }
                dirs::sync(dir)?;
                Ok(Created::New)
            }
        }
    }

    /// Tells which way worked; none where the name is taken.
    fn try_to_name(&self, ways: &[Naming], temp: &Temp, path: &Path) -> io::Result<Option<Naming>> {
        let mut last = io::Error::from(Errno::NOTSUP);
        for way in ways {
            match self.name_by(*way, temp, path) {
                Ok(()) => return Ok(Some(*way)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(None),
                Err(error) if is_unsupported(&error) => last = error,
                Err(error) => return Err(error),
            }
        }
        Err(last)
    }

    fn name_by(&self, way: Naming, temp: &Temp, path: &Path) -> io::Result<()> {
        match way {
            Naming::Rename => {
                step("file.rename-new");
                rustix::fs::renameat_with(CWD, temp.path(), CWD, path, RenameFlags::NOREPLACE).map_err(Into::into)
            }
            Naming::Link => {
                step("file.link");
                fs::hard_link(temp.path(), path)
            }
            Naming::Locked => {
                let _lock = Lock::take(&self.root)?;
                if fs::symlink_metadata(path).is_ok() {
                    return Err(Errno::EXIST.into());
                }
                step("file.rename-locked");
                fs::rename(temp.path(), path)
            }
        }
    }

    pub(super) fn swap(&self, key: &Key, expected: Option<&Version>, body: &[u8]) -> io::Result<Swapped> {
        let done = Swapped::Done(read::version(body));
        let Some(expected) = expected else {
            // Needs no lock: creating is one step by itself.
            return Ok(if self.write_new(key, body)? == Created::New { done } else { Swapped::Conflict });
        };
        let path = self.path(key);
        let _lock = Lock::take(&self.root)?;
        match fs::read(&path) {
            Ok(found) if read::version(&found) == *expected => {}
            Ok(_) => return Ok(Swapped::Conflict),
            Err(error) if is_absence(&error) => return Ok(Swapped::Conflict),
            Err(error) => return Err(error),
        }
        let temp = Temp::holding(self.scratch()?, body)?;
        step("file.rename-over");
        fs::rename(temp.path(), &path)?;
        temp.renamed();
        dirs::sync(parent(&path)?)?;
        Ok(done)
    }

    /// Removes an object, durably. The lock keeps a swap from bringing it back.
    pub(super) fn remove(&self, key: &Key) -> io::Result<()> {
        let path = self.path(key);
        let lock = match Lock::take(&self.root) {
            // Then nothing can be swapped here either.
            Err(error) if lock::is_unsupported(&error) => None,
            other => Some(other?),
        };
        step("file.delete");
        let removed = fs::remove_file(&path);
        drop(lock);
        match removed {
            Ok(()) => dirs::sync(parent(&path)?),
            Err(error) if is_absence(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// As [`FileStore::failed`]; but what is missing when writing is never the object.
    pub(super) fn failed_write(&self, action: &'static str, key: &Key, error: &io::Error) -> StoreError {
        match self.failed(action, key, error) {
            StoreError { fault: StoreFault::NotFound, .. } => {
                let reason = format!(
                    "{error}: a directory was removed meanwhile, or another object's name is the beginning of this one's"
                );
                self.error(action, key, StoreFault::Refused(reason))
            }
            other => other,
        }
    }
}

/// There is an object of that name. Whoever made it may have been killed before it was durable.
fn existed(path: &Path) -> io::Result<Created> {
    if !fs::metadata(path)?.is_file() {
        return Err(Errno::ISDIR.into());
    }
    dirs::sync(parent(path)?)?;
    Ok(Created::Existed)
}

fn parent(path: &Path) -> io::Result<&Path> {
    path.parent().ok_or_else(|| Errno::INVAL.into())
}

/// Whether the file system cannot do that, as opposed to not now or not here.
fn is_unsupported(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP | Errno::PERM | Errno::MLINK)
    )
}
