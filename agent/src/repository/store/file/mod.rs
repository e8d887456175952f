//! A directory, local or mounted.
//!
//! | path | what it is |
//! |---|---|
//! | `<root>/<key>` | an object, complete from the moment it has that name |
//! | `<root>/.tmp/` | what is being written; a crash leaves scraps here, swept once they are a day old |
//! | `<root>/.lock` | locked (`flock`) while a compare-and-swap decides |

use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};

use self::dirs::Dirs;
use self::fault::fault_of;
use super::{Created, Entry, Key, Object, Store, StoreError, StoreFault, StoreResult, Swapped, Version, Walk};
use crate::steps::step;

mod dirs;
mod fault;
mod lock;
mod read;
mod temp;
mod walk;
mod write;

/// Where things are written before they get their name. No key can begin with a dot.
const SCRATCH: &str = ".tmp";
/// Scraps older than this belong to no running process.
const SCRAP_AGE: SignedDuration = SignedDuration::from_hours(24);

/// A directory of objects.
#[derive(Debug)]
pub struct FileStore {
    root: PathBuf,
    scratch: PathBuf,
    /// Exists as long as the volume that was opened is mounted, so that an unmounted one is not taken for an empty one.
    marker: PathBuf,
    dirs: Dirs,
}

impl FileStore {
    /// Opens the directory, which is made if it is not there. One on a read-only volume can be read.
    ///
    /// # Errors
    /// Where it can neither be found nor made.
    pub fn open(path: impl AsRef<Path>) -> StoreResult<Self> {
        let path = path.as_ref();
        let failed = |error: &io::Error| {
            let location = format!("file://{}", path.display());
            let fault = match fault_of(error) {
                StoreFault::NotFound => StoreFault::Refused(error.to_string()),
                other => other,
            };
            StoreError::new("open", &Key::root(), location, fault)
        };
        let root = make_root(path).map_err(|error| failed(&error))?;
        let scratch = root.join(SCRATCH);
        let marker = match dirs::make_durably(&scratch) {
            Ok(()) => scratch.clone(),
            Err(error) if fault::is_denied(&error) => root.clone(),
            Err(error) => return Err(failed(&error)),
        };
        let store = Self { dirs: Dirs::below(root.clone()), root, scratch, marker };
        store.sweep();
        Ok(store)
    }

    /// Removes what crashed processes left. What cannot be removed costs room and nothing else, so it is left.
    fn sweep(&self) {
        let Ok(mut scraps) = fs::read_dir(&self.scratch).map(Iterator::peekable) else { return };
        if scraps.peek().is_none() {
            return;
        }
        let Ok(now) = temp::file_system_clock(&self.scratch) else { return };
        for scrap in scraps.flatten() {
            let Ok(modified) = scrap.metadata().and_then(|meta| read::modified(&meta)) else { continue };
            if now.duration_since(modified) > SCRAP_AGE {
                step("file.sweep");
                let _ = fs::remove_file(scrap.path());
            }
        }
    }

    /// Where to write what has no name yet. A volume that was read-only when it was opened may not be any more.
    fn scratch(&self) -> io::Result<&Path> {
        if self.marker == self.root {
            dirs::make_durably(&self.scratch)?;
        }
        Ok(&self.scratch)
    }

    fn path(&self, key: &Key) -> PathBuf {
        self.root.join(key.as_str())
    }

    fn error(&self, action: &'static str, key: &Key, fault: StoreFault) -> StoreError {
        StoreError::new(action, key, self.location(), fault)
    }

    /// The error to report for `error`: "not found" is believed only while the volume is there.
    fn failed(&self, action: &'static str, key: &Key, error: &io::Error) -> StoreError {
        if is_absence(error) && !self.marker.exists() {
            self.gone(action, key)
        } else {
            self.error(action, key, fault_of(error))
        }
    }

    fn gone(&self, action: &'static str, key: &Key) -> StoreError {
        let reason = format!("{} is gone: is the volume still mounted?", self.marker.display());
        self.error(action, key, StoreFault::Unavailable(reason))
    }

    /// `T` where there is nothing, unless there is nothing because the whole volume is gone.
    fn absent<T>(&self, action: &'static str, key: &Key, nothing: T) -> StoreResult<T> {
        if self.marker.exists() { Ok(nothing) } else { Err(self.gone(action, key)) }
    }
}

/// Makes the directory of a repository, and gives its absolute path.
fn make_root(path: &Path) -> io::Result<PathBuf> {
    if !path.is_dir() {
        dirs::make_all_durably(&std::path::absolute(path)?)?;
    }
    fs::canonicalize(path)
}

/// Whether this says that there is no object of the name: nothing, nothing below a file, or a mere directory.
fn is_absence(error: &io::Error) -> bool {
    use io::ErrorKind::{IsADirectory, NotADirectory, NotFound};
    matches!(error.kind(), NotFound | NotADirectory | IsADirectory)
}

impl Store for FileStore {
    fn location(&self) -> String {
        format!("file://{}", self.root.display())
    }

    fn create(&self, key: &Key, body: Bytes) -> StoreResult<Created> {
        self.write_new(key, &body).map_err(|error| self.failed_write("create", key, &error))
    }

    fn get(&self, key: &Key, limit: u64) -> StoreResult<Object> {
        let body = self.read_whole("get", key, limit)?;
        let version = read::version(&body);
        Ok(Object { body, version })
    }

    fn get_range(&self, key: &Key, range: Range<u64>) -> StoreResult<Bytes> {
        self.read_range(key, range)
    }

    fn head(&self, key: &Key) -> StoreResult<Option<Entry>> {
        match read::entry(&self.path(key), key) {
            Ok(Some(entry)) => Ok(Some(entry)),
            Ok(None) => self.absent("head", key, None),
            Err(error) => Err(self.failed("head", key, &error)),
        }
    }

    fn list(&self, prefix: &Key, each: &mut dyn FnMut(Entry) -> Walk) -> StoreResult<()> {
        match walk::walk(&self.path(prefix), prefix, each) {
            Ok(_) => self.absent("list", prefix, ()),
            Err(error) => Err(self.failed("list", prefix, &error)),
        }
    }

    fn children(&self, prefix: &Key) -> StoreResult<Vec<String>> {
        match walk::names(&self.path(prefix), prefix.as_str().is_empty()) {
            Ok(names) => self.absent("list", prefix, names),
            Err(error) => Err(self.failed("list", prefix, &error)),
        }
    }

    fn delete(&self, key: &Key) -> StoreResult<()> {
        match self.remove(key) {
            Ok(()) => self.absent("delete", key, ()),
            Err(error) => Err(self.failed("delete", key, &error)),
        }
    }

    fn compare_and_swap(&self, key: &Key, expected: Option<&Version>, body: Bytes) -> StoreResult<Swapped> {
        self.swap(key, expected, &body).map_err(|error| self.failed_write("swap", key, &error))
    }

    /// The clock of the file system: for one on a server, the server's.
    fn now(&self) -> StoreResult<Timestamp> {
        match self.scratch().and_then(temp::file_system_clock) {
            // Nothing can be written or deleted here, so nothing can be deleted too early by a clock that is off.
            Err(error) if fault::is_denied(&error) => Ok(Timestamp::now()),
            other => other.map_err(|error| self.failed("read the clock of", &Key::root(), &error)),
        }
    }
}

#[cfg(test)]
mod tests;
