//! Reading objects.

use std::fs::{self, File, Metadata};
use std::io::{self, Read as _};
use std::ops::Range;
use std::path::Path;

use bytes::Bytes;
use jiff::Timestamp;
use rustix::buffer::spare_capacity;

use super::{FileStore, is_absence};
use crate::repository::store::{Entry, Key, StoreFault, StoreResult, Version, range_length};

impl FileStore {
    /// Opens an object and tells its size.
    fn open_object(&self, action: &'static str, key: &Key) -> StoreResult<(File, u64)> {
        let opened = File::open(self.path(key)).and_then(|file| file.metadata().map(|meta| (file, meta)));
        match opened {
            Ok((file, meta)) if meta.is_file() => Ok((file, meta.len())),
            Ok(_) => Err(self.error(action, key, StoreFault::NotFound)),
            Err(error) => Err(self.failed(action, key, &error)),
        }
    }

    pub(super) fn read_whole(&self, action: &'static str, key: &Key, limit: u64) -> StoreResult<Bytes> {
        let (file, size) = self.open_object(action, key)?;
        if size > limit {
            return Err(self.error(action, key, StoreFault::TooLarge { size, limit }));
        }
        let mut body = Vec::with_capacity(size as usize);
        file.take(size).read_to_end(&mut body).map_err(|error| self.failed(action, key, &error))?;
        if (body.len() as u64) < size {
            return Err(self.error(action, key, StoreFault::Short { size: body.len() as u64, wanted: size }));
        }
        Ok(body.into())
    }

    pub(super) fn read_range(&self, key: &Key, range: Range<u64>) -> StoreResult<Bytes> {
        const ACTION: &str = "get a range of";
        let length = range_length(&range).map_err(|fault| self.error(ACTION, key, fault))?;
        let (file, size) = self.open_object(ACTION, key)?;
        let short = |size| self.error(ACTION, key, StoreFault::Short { size, wanted: range.end });
        if range.end > size {
            return Err(short(size));
        }
        let mut body = Vec::with_capacity(length as usize);
        read_at(&file, range.start, &mut body, length as usize).map_err(|error| self.failed(ACTION, key, &error))?;
        if (body.len() as u64) < length { Err(short(range.start + body.len() as u64)) } else { Ok(body.into()) }
    }
}

/// Appends up to `length` bytes from `offset`; fewer only where the file ends.
fn read_at(file: &File, offset: u64, body: &mut Vec<u8>, length: usize) -> io::Result<()> {
    while body.len() < length {
        let from = offset + body.len() as u64;
        let read = rustix::io::retry_on_intr(|| rustix::io::pread(file, spare_capacity(body), from))?;
        if read == 0 {
            break;
        }
    }
    // A vector may have more room than was asked for.
    body.truncate(length);
    Ok(())
}

/// The version of an object is what it holds: it survives copying the repository elsewhere.
pub(super) fn version(body: &[u8]) -> Version {
    Version(blake3::hash(body).to_hex().to_string())
}

/// What there is at `path`, if that is an object.
pub(super) fn entry(path: &Path, key: &Key) -> io::Result<Option<Entry>> {
    match fs::metadata(path) {
        Ok(meta) if meta.is_file() => {
            Ok(Some(Entry { key: key.clone(), size: meta.len(), modified: modified(&meta)? }))
        }
        Ok(_) => Ok(None),
        Err(error) if is_absence(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// When a file was last written.
pub(super) fn modified(meta: &Metadata) -> io::Result<Timestamp> {
    Timestamp::try_from(meta.modified()?).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}
