//! The log of a lineage: whole files (WAL segments, histories, binlogs), and the container they are stored in.
//!
//! A container holds the bytes of one file, or of a piece of it, in frames that are compressed and hashed by
//! themselves, behind a header that says what it is and before the SHA-256 of all that comes before.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Mutex;
use std::sync::PoisonError;

use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::codec::Cursor;
use super::error::{Damage, RepositoryError, RepositoryResult};
use super::reader::in_parallel;
use super::store::{Created, Key, Walk};
use super::top::System;
use crate::logs::LogName;
use crate::steps::step;

const MAGIC: &[u8; 8] = b"HFLOG\0\0\x01";
/// Plain bytes of a frame.
const FRAME: u64 = 4 << 20;
const HEADER_LIMIT: usize = 1 << 20;
/// No container is larger, in bytes: a WAL segment of 1 GiB that does not compress.
const CONTAINER_LIMIT: u64 = (1 << 30) + (64 << 20);
const LEVEL: i32 = 1;

/// What a container says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogHeader {
    /// The system it is of.
    pub system_id: String,
    /// The lineage it is in.
    pub lineage: String,
    /// The branch of the log: a timeline, a server UUID.
    pub branch: String,
    /// The file's name.
    pub name: String,
    /// Number of the first byte that is in here.
    pub from: u64,
    /// How many bytes are in here.
    pub size: u64,
    /// How many bytes the file has on the server; of one that is still being written, more than are known.
    pub file_size: u64,
    /// When it was stored, by the agent's clock.
    pub stored_at: Timestamp,
    /// For a piece: which attempt at this file it belongs to, and what was before it.
    pub piece: Option<Piece>,
    /// The frames, in order.
    pub frames: Vec<LogFrame>,
}

/// What ties a piece of a file to the pieces before it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// Pieces of different generations do not belong together; the newest counts.
    pub generation: u32,
    /// BLAKE3 of all bytes of the file before this piece.
    pub before: String,
    /// Up to when everything that was committed is in the log up to this piece's end, if that is known.
    pub complete_until: Option<Timestamp>,
}

/// A frame of a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogFrame {
    /// Bytes as stored.
    pub stored: u32,
    /// Bytes of content.
    pub size: u32,
    /// BLAKE3 of the content.
    pub blake3: String,
}

impl LogHeader {
    /// One digest of the content, for people and for comparing: BLAKE3 of the frames' digests.
    pub fn digest(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        for frame in &self.frames {
            hasher.update(frame.blake3.as_bytes());
        }
        format!("blake3 {}", &hasher.finalize().to_hex()[..32])
    }

    fn same_content(&self, other: &Self) -> bool {
        let content = |header: &Self| -> Vec<(u32, String)> {
            header.frames.iter().map(|frame| (frame.size, frame.blake3.clone())).collect()
        };
        (self.size, self.from) == (other.size, other.from) && content(self) == content(other)
    }
}

/// Where a container belongs: what its header must say.
pub(super) struct Address<'a> {
    pub(super) system: &'a System,
    pub(super) lineage: &'a str,
    pub(super) file: &'a LogName,
}

/// Reads bytes `from..from + size` of a file into frames.
pub(super) fn pack(
    address: &Address<'_>,
    source: &Path,
    range: std::ops::Range<u64>,
    piece: Option<Piece>,
    threads: usize,
) -> RepositoryResult<(LogHeader, Bytes)> {
    let failed =
        |error| RepositoryError::Local { action: "reading", path: source.display().to_string(), source: error };
    let file = File::open(source).map_err(failed)?;
    let size = range.end - range.start;
    let frames = Mutex::new(vec![None::<(LogFrame, Vec<u8>)>; size.div_ceil(FRAME) as usize]);
    in_parallel(threads, size.div_ceil(FRAME) as usize, Vec::new, |plain: &mut Vec<u8>, number| {
        let offset = number as u64 * FRAME;
        plain.resize((size - offset).min(FRAME) as usize, 0);
        file.read_exact_at(plain, range.start + offset)?;
        let stored = zstd::bulk::compress(plain, LEVEL)?;
        let blake3 = blake3::hash(plain).to_hex().to_string();
        let frame = LogFrame { stored: stored.len() as u32, size: plain.len() as u32, blake3 };
        frames.lock().unwrap_or_else(PoisonError::into_inner)[number] = Some((frame, stored));
        Ok(())
    })
    .map_err(failed)?;
    let frames: Vec<(LogFrame, Vec<u8>)> =
        frames.into_inner().unwrap_or_else(PoisonError::into_inner).into_iter().flatten().collect();
    let header = LogHeader {
        system_id: address.system.id.clone(),
        lineage: address.lineage.to_owned(),
        branch: address.file.branch.clone(),
        name: address.file.name.clone(),
        from: range.start,
        size,
        file_size: file.metadata().map_err(failed)?.len(),
        stored_at: Timestamp::now(),
        piece,
        frames: frames.iter().map(|(frame, _)| frame.clone()).collect(),
    };
    let bytes = container(&header, frames.iter().map(|(_, stored)| stored.as_slice()));
    Ok((header, bytes))
}

fn container<'a>(header: &LogHeader, frames: impl Iterator<Item = &'a [u8]>) -> Bytes {
    // A plain structure with text keys: writing it to memory cannot fail.
    let json = serde_json::to_vec(header).unwrap_or_default();
    let mut out = Vec::with_capacity(64 + json.len() + header.size as usize / 4);
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&(json.len() as u32).to_le_bytes());
    out.extend_from_slice(&json);
    for frame in frames {
        out.extend_from_slice(frame);
    }
    let digest = Sha256::digest(&out);
    out.extend_from_slice(&digest);
    Bytes::from(out)
}

/// A container that was read and whose bytes are whole.
#[derive(Debug)]
pub(super) struct Container {
    key: Key,
    pub(super) header: LogHeader,
    body: Bytes,
    frames_at: usize,
}

impl Container {
    /// Reads the container at `key`, which must be what `address` says.
    pub(super) fn read(address: &Address<'_>, key: &Key) -> RepositoryResult<Self> {
        let body = address.system.store.get(key, CONTAINER_LIMIT)?.body;
        let damaged = |what: String| Damage::of(key, what);
        let (header, frames_at) = take_apart(&body).map_err(damaged)?;
        let says = (header.system_id.as_str(), header.lineage.as_str(), &header.branch, &header.name);
        if says != (address.system.id.as_str(), address.lineage, &address.file.branch, &address.file.name) {
            let found = format!(
                "it holds {}/{} of lineage {} of system {}",
                header.branch, header.name, header.lineage, header.system_id
            );
            return Err(damaged(found).into());
        }
        Ok(Self { key: key.clone(), header, body, frames_at })
    }

    /// Decompresses and checks every frame, and hands it on with its offset in the container's content.
    pub(super) fn content(
        &self,
        threads: usize,
        each: &(dyn Fn(u64, &[u8]) -> io::Result<()> + Sync),
    ) -> RepositoryResult<()> {
        let mut starts = Vec::with_capacity(self.header.frames.len());
        let (mut stored_at, mut plain_at) = (self.frames_at, 0_u64);
        for frame in &self.header.frames {
            starts.push((stored_at, plain_at));
            stored_at += frame.stored as usize;
            plain_at += u64::from(frame.size);
        }
        in_parallel(
            threads,
            starts.len(),
            || (),
            |(), number| {
                let (frame, (stored_at, plain_at)) = (&self.header.frames[number], starts[number]);
                let stored = &self.body[stored_at..stored_at + frame.stored as usize];
                let plain = zstd::bulk::decompress(stored, frame.size as usize)
                    .map_err(|error| Damage::of(&self.key, format!("frame {number} does not decompress ({error})")))?;
                if blake3::hash(&plain).to_hex().as_str() != frame.blake3 || plain.len() != frame.size as usize {
                    return Err(Damage::of(&self.key, format!("frame {number} is not what was archived")).into());
                }
                each(plain_at, &plain).map_err(|error| RepositoryError::Local {
                    action: "writing",
                    path: self.header.name.clone(),
                    source: error,
                })
            },
        )
    }
}

fn take_apart(body: &Bytes) -> Result<(LogHeader, usize), String> {
    let content = body.len().checked_sub(32).ok_or("it was cut")?;
    let found = Sha256::digest(&body[..content]);
    if found.as_slice() != &body[content..] {
        return Err("its content does not have the sha256 at its end: it was changed or cut".to_owned());
    }
    let mut cursor = Cursor::new(&body[..content]);
    if cursor.take(MAGIC.len()) != Some(MAGIC) {
        return Err("it does not start as a log file of version 1".to_owned());
    }
    let length = cursor.u32().ok_or("it was cut")? as usize;
    let json = cursor.take(length.min(HEADER_LIMIT)).ok_or("it was cut")?;
    let header: LogHeader = serde_json::from_slice(json).map_err(|error| format!("its header: {error}"))?;
    let frames_at = MAGIC.len() + 4 + length;
    let stored: u64 = header.frames.iter().map(|frame| u64::from(frame.stored)).sum();
    let plain: u64 = header.frames.iter().map(|frame| u64::from(frame.size)).sum();
    let sane = header.frames.iter().all(|frame| u64::from(frame.size) <= FRAME);
    if !sane || frames_at as u64 + stored != content as u64 || plain != header.size {
        return Err("its frames are not as large as its header says".to_owned());
    }
    Ok((header, frames_at))
}

/// How a push ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pushed {
    /// It was stored.
    New,
    /// It was there already, with the same content.
    Same,
}

/// The log of one lineage.
#[derive(Debug, Clone)]
pub struct Log<'a> {
    system: &'a System,
    lineage: &'a str,
}

impl System {
    /// The log of a lineage.
    pub fn log<'a>(&'a self, lineage: &'a str) -> Log<'a> {
        Log { system: self, lineage }
    }
}

impl Log<'_> {
    /// The key of a whole file.
    ///
    /// # Errors
    /// Where its name is none of a log file.
    pub fn key(&self, file: &LogName) -> RepositoryResult<Key> {
        let bad = |error: super::store::BadKey| RepositoryError::Refused(error.to_string());
        self.system
            .layout
            .log(self.lineage)
            .child(&file.branch)
            .and_then(|branch| branch.child(&file.name))
            .map_err(bad)
    }

    pub(super) fn address<'b>(&'b self, file: &'b LogName) -> Address<'b> {
        Address { system: self.system, lineage: self.lineage, file }
    }

    /// Stores the file at `source` under `file`, durably. One that is there with the same content is success; one with
    /// other content is never overwritten.
    ///
    /// # Errors
    /// [`RepositoryError::Conflict`] for other content; the store's.
    pub fn push(&self, file: &LogName, source: &Path, threads: usize) -> RepositoryResult<Pushed> {
        let failed =
            |error| RepositoryError::Local { action: "reading", path: source.display().to_string(), source: error };
        let size = std::fs::metadata(source).map_err(failed)?.len();
        let (header, bytes) = pack(&self.address(file), source, 0..size, None, threads)?;
        let key = self.key(file)?;
        if self.system.store.create(&key, bytes)? == Created::New {
            return Ok(Pushed::New);
        }
        let there = Container::read(&self.address(file), &key)?.header;
        if there.same_content(&header) {
            return Ok(Pushed::Same);
        }
        Err(RepositoryError::Conflict {
            object: key.to_string(),
            there: there.digest(),
            here: header.digest(),
            advice: "Two servers are writing one history: find out which of them is the right one. A server that is a \
                     copy archives to a lineage of its own (--new-lineage).",
        })
    }

    /// Whether `file` is stored, without reading it.
    ///
    /// # Errors
    /// The store's.
    pub fn has(&self, file: &LogName) -> RepositoryResult<bool> {
        Ok(self.system.store.head(&self.key(file)?)?.is_some())
    }

    /// Reads `file`, checks all of it, and says what it is.
    ///
    /// # Errors
    /// The store's, and damage.
    pub fn check(&self, file: &LogName) -> RepositoryResult<LogHeader> {
        let container = Container::read(&self.address(file), &self.key(file)?)?;
        container.content(1, &|_, _| Ok(()))?;
        Ok(container.header)
    }

    /// The content of a small file.
    ///
    /// # Errors
    /// The store's, and damage.
    pub fn read(&self, file: &LogName) -> RepositoryResult<Vec<u8>> {
        let container = Container::read(&self.address(file), &self.key(file)?)?;
        let content = Mutex::new(vec![0; container.header.size as usize]);
        container.content(1, &|at, bytes| {
            content.lock().unwrap_or_else(PoisonError::into_inner)[at as usize..at as usize + bytes.len()]
                .copy_from_slice(bytes);
            Ok(())
        })?;
        Ok(content.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    /// Writes `file` to `target`, whole or not at all.
    ///
    /// # Errors
    /// The store's, damage, and of the target.
    pub fn fetch(&self, file: &LogName, target: &Path, threads: usize) -> RepositoryResult<LogHeader> {
        let container = Container::read(&self.address(file), &self.key(file)?)?;
        write_whole(target, |out| container.content(threads, &|at, bytes| out.write_all_at(bytes, at)))?;
        Ok(container.header)
    }

    /// All files of a branch, by name.
    ///
    /// # Errors
    /// The store's.
    pub fn names(&self, branch: &str) -> RepositoryResult<Vec<(String, u64)>> {
        let prefix = self.system.layout.log(self.lineage).child(branch);
        let prefix = prefix.map_err(|error| RepositoryError::Refused(error.to_string()))?;
        let mut names = Vec::new();
        self.system.store.list(&prefix, &mut |entry| {
            names.push((entry.key.name().to_owned(), entry.size));
            Walk::On
        })?;
        Ok(names)
    }

    /// The branches that have any files.
    ///
    /// # Errors
    /// The store's.
    pub fn branches(&self) -> RepositoryResult<Vec<String>> {
        Ok(self.system.store.children(&self.system.layout.log(self.lineage))?)
    }

    pub(super) fn system(&self) -> &System {
        self.system
    }

    pub(super) fn lineage(&self) -> &str {
        self.lineage
    }
}

/// Writes a file beside `target` and renames it there once `fill` is done.
pub(super) fn write_whole(target: &Path, fill: impl FnOnce(&File) -> RepositoryResult<()>) -> RepositoryResult<()> {
    let failed =
        |error| RepositoryError::Local { action: "writing", path: target.display().to_string(), source: error };
    let mut part_name = target.file_name().unwrap_or_default().to_owned();
    part_name.push(".holdfast-part");
    let part = target.with_file_name(part_name);
    step("write the log file beside its place");
    let mut out = File::options().write(true).create(true).truncate(true).mode(0o600).open(&part).map_err(failed)?;
    let filled = fill(&out).and_then(|()| {
        out.flush().map_err(failed)?;
        step("rename the log file into its place");
        std::fs::rename(&part, target).map_err(failed)
    });
    if filled.is_err() {
        // Already failing; a scrap that stays is truncated by the next try.
        let _ = std::fs::remove_file(&part);
    }
    filled
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::repository::Repository;
    use crate::repository::store::memory::MemoryStore;

    fn system() -> System {
        Repository::open_or_create(Arc::new(MemoryStore::new())).unwrap().system("7")
    }

    fn file() -> LogName {
        LogName { branch: "00000001".to_owned(), name: "000000010000000000000001".to_owned() }
    }

    fn pushed(content: &[u8]) -> (System, Key) {
        let (system, source) = (system(), tempfile::NamedTempFile::new().unwrap());
        std::fs::write(source.path(), content).unwrap();
        let log = system.log("a0");
        assert_eq!(log.push(&file(), source.path(), 2).unwrap(), Pushed::New);
        assert_eq!(log.push(&file(), source.path(), 1).unwrap(), Pushed::Same);
        let key = log.key(&file()).unwrap();
        (system, key)
    }

    /// Puts other bytes at `key`.
    fn replace(system: &System, key: &Key, body: Vec<u8>) {
        system.store().delete(key).unwrap();
        system.store().create(key, Bytes::from(body)).unwrap();
    }

    fn content() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            prop::collection::vec(any::<u8>(), 0..5000),
            // More than one frame.
            (any::<u8>(), (FRAME as usize)..(2 * FRAME as usize + 3)).prop_map(|(byte, size)| vec![byte; size]),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn a_file_comes_back(content in content()) {
            let (system, _) = pushed(&content);
            let log = system.log("a0");
            prop_assert_eq!(log.check(&file()).unwrap().size, content.len() as u64);
            prop_assert!(log.read(&file()).unwrap() == content);
            let target = tempfile::tempdir().unwrap();
            log.fetch(&file(), &target.path().join("log"), 2).unwrap();
            prop_assert!(std::fs::read(target.path().join("log")).unwrap() == content);
        }

        #[test]
        fn a_changed_or_cut_container_is_damaged(content in content(), at: prop::sample::Index, bit in 0..8_u8) {
            let (system, key) = pushed(&content);
            let whole = system.store().get(&key, u64::MAX).unwrap().body.to_vec();
            let at = at.index(whole.len());
            let mut changed = whole.clone();
            changed[at] ^= 1 << bit;
            for body in [changed, whole[..at].to_vec()] {
                replace(&system, &key, body);
                let error = system.log("a0").check(&file()).unwrap_err();
                prop_assert_eq!(error.as_damage().map(|damage| damage.object), Some(key.to_string()));
            }
        }

        #[test]
        fn other_content_is_never_stored_over_a_file(one in content(), other in content()) {
            prop_assume!(one != other);
            let (system, _) = pushed(&one);
            let source = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(source.path(), &other).unwrap();
            let refused = system.log("a0").push(&file(), source.path(), 1);
            let is_conflict = matches!(refused, Err(RepositoryError::Conflict { .. }));
            prop_assert!(is_conflict);
            prop_assert!(system.log("a0").read(&file()).unwrap() == one);
        }
    }

    #[test]
    fn a_container_in_the_place_of_another_is_damaged() {
        let (system, key) = pushed(b"content");
        let body = system.store().get(&key, u64::MAX).unwrap().body.to_vec();
        let other = LogName { name: "000000010000000000000002".to_owned(), ..file() };
        let place = system.log("a0").key(&other).unwrap();
        system.store().create(&place, Bytes::from(body)).unwrap();
        let error = system.log("a0").check(&other).unwrap_err().to_string();
        assert!(error.contains("it holds 00000001/000000010000000000000001 of lineage a0"), "{error}");
    }
}
