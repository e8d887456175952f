//! Tails: what is known so far of a log file that the server is still writing.
//!
//! A tail is a row of pieces. Those of the newest generation, one after the other, are the file up to some point.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Mutex;
use std::sync::PoisonError;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::document::{self, Document};
use super::error::{Damage, RepositoryError, RepositoryResult};
use super::log::{Container, Log, Piece, pack, write_whole};
use super::store::{Created, Key, Swapped, Walk};
use crate::logs::LogName;

/// A tail of more pieces is shipped anew as one.
const PIECES: u32 = 64;

/// How far the log of a lineage reaches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// The lineage.
    pub lineage: String,
    /// The branch of the log.
    pub branch: String,
    /// The position up to which everything is stored, as the engine writes positions.
    pub position: String,
    /// Everything committed up to this time, by the server's clock, is stored.
    pub complete_until: Timestamp,
}

impl Document for Position {
    const KIND: &'static str = "position";
}

/// What the shipper of a tail remembers of it.
#[derive(Debug)]
pub struct Shipping {
    file: LogName,
    sequence: u32,
    generation: u32,
    first_of_generation: u32,
    shipped: u64,
    hasher: blake3::Hasher,
}

impl Shipping {
    /// How many bytes of the file are stored.
    pub fn shipped(&self) -> u64 {
        self.shipped
    }

    /// The file.
    pub fn file(&self) -> &LogName {
        &self.file
    }

    fn begin_generation(&mut self) {
        self.generation = self.sequence;
        self.first_of_generation = self.sequence;
        self.shipped = 0;
        self.hasher = blake3::Hasher::new();
    }

    /// Forgets what was shipped, so that the next piece begins at the start of the file: to be called whenever the
    /// server may have written over bytes that it had flushed, as it does after a crash.
    pub fn distrust(&mut self) {
        self.begin_generation();
    }
}

impl Log<'_> {
    fn tail_directory(&self, file: &LogName) -> RepositoryResult<Key> {
        let bad = |error: super::store::BadKey| RepositoryError::Refused(error.to_string());
        let tails = self.system().layout.tails(self.lineage());
        tails.child(&file.branch).and_then(|branch| branch.child(&file.name)).map_err(bad)
    }

    fn piece_key(directory: &Key, sequence: u32) -> Key {
        directory.child(&format!("{sequence:08x}")).unwrap_or_else(|_| directory.clone())
    }

    fn pieces(&self, file: &LogName) -> RepositoryResult<Vec<Key>> {
        let mut keys = Vec::new();
        self.system().store().list(&self.tail_directory(file)?, &mut |entry| {
            keys.push(entry.key);
            Walk::On
        })?;
        Ok(keys)
    }

    /// Begins to ship the tail of `file`.
    ///
    /// # Errors
    /// The store's.
    pub fn begin_tail(&self, file: &LogName) -> RepositoryResult<Shipping> {
        let last = self.pieces(file)?.last().and_then(|key| u32::from_str_radix(key.name(), 16).ok());
        let mut shipping = Shipping {
            file: file.clone(),
            sequence: last.map_or(0, |last| last + 1),
            generation: 0,
            first_of_generation: 0,
            shipped: 0,
            hasher: blake3::Hasher::new(),
        };
        shipping.begin_generation();
        Ok(shipping)
    }

    /// Stores what `source` has between what was shipped and `end`, durably. `complete_until` is the time up to which
    /// every commit is before `end`.
    ///
    /// # Errors
    /// The store's, and of the source. Calling again is safe.
    pub fn ship_tail(
        &self,
        shipping: &mut Shipping,
        source: &Path,
        end: u64,
        complete_until: Option<Timestamp>,
    ) -> RepositoryResult<()> {
        if end <= shipping.shipped {
            return Ok(());
        }
        if shipping.sequence - shipping.first_of_generation >= PIECES {
            shipping.begin_generation();
        }
        let before = shipping.hasher.finalize().to_hex().to_string();
        let piece = Piece { generation: shipping.generation, before, complete_until };
        let file = shipping.file.clone();
        let (_, bytes) = pack(&self.address(&file), source, shipping.shipped..end, Some(piece), 1)?;
        let key = Self::piece_key(&self.tail_directory(&file)?, shipping.sequence);
        if self.system().store().create(&key, bytes.clone())? == Created::Existed
            && self.system().store().get(&key, u64::MAX)?.body != bytes
        {
            *shipping = self.begin_tail(&file)?;
            return Err(RepositoryError::Busy(format!(
                "another agent is shipping the tail of {}/{} too",
                file.branch, file.name
            )));
        }
        hash_range(&mut shipping.hasher, source, shipping.shipped..end)?;
        shipping.shipped = end;
        shipping.sequence += 1;
        if shipping.first_of_generation == shipping.sequence - 1 {
            self.drop_pieces_before(&file, shipping.first_of_generation)?;
        }
        Ok(())
    }

    fn drop_pieces_before(&self, file: &LogName, sequence: u32) -> RepositoryResult<()> {
        let first = format!("{sequence:08x}");
        for key in self.pieces(file)?.iter().filter(|key| key.name() < first.as_str()) {
            self.system().store().delete(key)?;
        }
        Ok(())
    }

    /// The key that the next piece of a tail would have.
    ///
    /// # Errors
    /// The store's.
    pub fn next_piece(&self, file: &LogName) -> RepositoryResult<Key> {
        let last = self.pieces(file)?.last().and_then(|key| u32::from_str_radix(key.name(), 16).ok());
        Ok(Self::piece_key(&self.tail_directory(file)?, last.map_or(0, |last| last + 1)))
    }

    /// The files of a branch that have a tail.
    ///
    /// # Errors
    /// The store's.
    pub fn tails(&self, branch: &str) -> RepositoryResult<Vec<String>> {
        let prefix = self.system().layout.tails(self.lineage()).child(branch);
        let prefix = prefix.map_err(|error| RepositoryError::Refused(error.to_string()))?;
        let mut names = self.system().store().children(&prefix)?;
        names.sort();
        Ok(names)
    }

    /// The branches that have any tails.
    ///
    /// # Errors
    /// The store's.
    pub fn tail_branches(&self) -> RepositoryResult<Vec<String>> {
        Ok(self.system().store().children(&self.system().layout.tails(self.lineage()))?)
    }

    /// Removes the tail of a file, which is stored whole by now.
    ///
    /// # Errors
    /// The store's.
    pub fn drop_tail(&self, file: &LogName) -> RepositoryResult<()> {
        for key in self.pieces(file)? {
            self.system().store().delete(&key)?;
        }
        Ok(())
    }

    /// The pieces of the newest generation, checked to follow one another; `None` if there is no tail.
    fn newest_pieces(&self, file: &LogName) -> RepositoryResult<Option<Vec<Container>>> {
        let mut newest: Vec<Container> = Vec::new();
        let mut generation = None;
        for key in self.pieces(file)? {
            let container = Container::read(&self.address(file), &key)?;
            let Some(piece) = &container.header.piece else {
                return Err(Damage::of(&key, "it is no piece of a tail").into());
            };
            if Some(piece.generation) != generation {
                generation = Some(piece.generation);
                newest.clear();
            }
            let expected: u64 = newest.iter().map(|piece| piece.header.size).sum();
            if container.header.from != expected {
                let from = container.header.from;
                // The pieces of a generation are numbered from its own number on, without a gap.
                let wanted = Self::piece_key(&self.tail_directory(file)?, piece.generation + newest.len() as u32);
                let what = if wanted == key {
                    format!("it begins at byte {from} instead of {expected}")
                } else {
                    format!("it is missing: the next piece begins at byte {from} instead of {expected}")
                };
                return Err(Damage::of(&wanted, what).into());
            }
            newest.push(container);
        }
        Ok((!newest.is_empty()).then_some(newest))
    }

    /// Up to which byte the tail of a file reaches, and up to when everything committed is before that.
    ///
    /// # Errors
    /// The store's, and damage.
    pub fn tail_end(&self, file: &LogName) -> RepositoryResult<Option<(u64, Option<Timestamp>)>> {
        let Some(pieces) = self.newest_pieces(file)? else {
            return Ok(None);
        };
        let end = pieces.iter().map(|piece| piece.header.size).sum();
        let until = pieces.iter().filter_map(|piece| piece.header.piece.as_ref()?.complete_until).max();
        Ok(Some((end, until)))
    }

    /// Reads and checks every byte of a tail; says how many there are.
    ///
    /// # Errors
    /// The store's, and damage.
    pub fn check_tail(&self, file: &LogName) -> RepositoryResult<Option<u64>> {
        let Some(pieces) = self.newest_pieces(file)? else {
            return Ok(None);
        };
        self.pour(&pieces, &|_, _| Ok(())).map(Some)
    }

    /// Writes the tail of `file` to `target`, as large as the file was on the server, with zeros behind the tail's end.
    /// `false` where there is none.
    ///
    /// # Errors
    /// The store's, damage, and of the target.
    pub fn fetch_tail(&self, file: &LogName, target: &Path) -> RepositoryResult<bool> {
        let Some(pieces) = self.newest_pieces(file)? else {
            return Ok(false);
        };
        let failed =
            |error| RepositoryError::Local { action: "writing", path: target.display().to_string(), source: error };
        let size = pieces.iter().map(|piece| piece.header.file_size).max().unwrap_or(0);
        write_whole(target, |out| {
            self.pour(&pieces, &|at, bytes| out.write_all_at(bytes, at))?;
            out.set_len(size).map_err(failed)
        })?;
        Ok(true)
    }

    fn pour(
        &self,
        pieces: &[Container],
        each: &(dyn Fn(u64, &[u8]) -> std::io::Result<()> + Sync),
    ) -> RepositoryResult<u64> {
        let hasher = Mutex::new(blake3::Hasher::new());
        let mut at = 0;
        for container in pieces {
            let before = hasher.lock().unwrap_or_else(PoisonError::into_inner).finalize().to_hex().to_string();
            if container.header.piece.as_ref().is_some_and(|piece| piece.before != before) {
                let directory = self.tail_directory(&LogName {
                    branch: container.header.branch.clone(),
                    name: container.header.name.clone(),
                })?;
                return Err(Damage::of(
                    &directory,
                    format!("the pieces before byte {at} are not those that were shipped"),
                )
                .into());
            }
            container.content(1, &|offset, bytes| {
                hasher.lock().unwrap_or_else(PoisonError::into_inner).update(bytes);
                each(at + offset, bytes)
            })?;
            at += container.header.size;
        }
        Ok(at)
    }

    /// Notes how far the log reaches; a newer note of another agent stays.
    ///
    /// # Errors
    /// The store's.
    pub fn note_position(&self, position: &Position) -> RepositoryResult<()> {
        let key = self.system().layout.position(self.lineage());
        let store = self.system().store();
        loop {
            let current = match document::read::<Position>(store, &key) {
                Ok((current, _)) if current.complete_until >= position.complete_until => return Ok(()),
                Ok((_, version)) => Some(version),
                Err(RepositoryError::Store(error)) if error.is_not_found() => None,
                // It can be had again from the server at any time, so a damaged one is replaced.
                Err(RepositoryError::Damaged(_)) => {
                    store.delete(&key)?;
                    None
                }
                Err(error) => return Err(error),
            };
            if let Swapped::Done(_) = store.compare_and_swap(&key, current.as_ref(), document::sealed(position))? {
                return Ok(());
            }
        }
    }

    /// How far the log reaches, as last noted.
    ///
    /// # Errors
    /// The store's, and damage.
    pub fn position(&self) -> RepositoryResult<Option<Position>> {
        let key = self.system().layout.position(self.lineage());
        match document::read::<Position>(self.system().store(), &key) {
            Ok((position, _)) if position.lineage == self.lineage() => Ok(Some(position)),
            Ok((position, _)) => {
                Err(Damage::of(&key, format!("it is the position of lineage {}", position.lineage)).into())
            }
            Err(RepositoryError::Store(error)) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn hash_range(hasher: &mut blake3::Hasher, source: &Path, range: std::ops::Range<u64>) -> RepositoryResult<()> {
    let failed =
        |error| RepositoryError::Local { action: "reading", path: source.display().to_string(), source: error };
    let mut file = File::open(source).map_err(failed)?;
    std::io::Seek::seek(&mut file, std::io::SeekFrom::Start(range.start)).map_err(failed)?;
    let mut rest = file.take(range.end - range.start);
    let mut buffer = vec![0; 1 << 20];
    loop {
        match rest.read(&mut buffer).map_err(failed)? {
            0 => return Ok(()),
            read => hasher.update(&buffer[..read]),
        };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::repository::store::memory::MemoryStore;
    use crate::repository::{Repository, System};

    const SIZE: usize = 20_000;

    fn file() -> LogName {
        LogName { branch: "00000001".to_owned(), name: "000000010000000000000001".to_owned() }
    }

    /// A file that is being written, and its tail.
    struct Written {
        system: System,
        source: tempfile::NamedTempFile,
    }

    impl Written {
        fn new() -> Self {
            let source = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(source.path(), content()).unwrap();
            Self { system: Repository::open_or_create(Arc::new(MemoryStore::new())).unwrap().system("7"), source }
        }

        fn log(&self) -> Log<'_> {
            self.system.log("a0")
        }

        fn fetched(&self) -> Vec<u8> {
            let target = tempfile::tempdir().unwrap();
            let path = target.path().join("log");
            if self.log().fetch_tail(&file(), &path).unwrap() { std::fs::read(path).unwrap() } else { Vec::new() }
        }
    }

    fn content() -> Vec<u8> {
        (0..SIZE).map(|number| (number % 251) as u8 + 1).collect()
    }

    /// What happens to a tail.
    #[derive(Debug, Clone)]
    enum Event {
        Ship(u64),
        Distrust,
        /// The shipper ends; another one begins.
        Restart,
    }

    fn events() -> impl Strategy<Value = Vec<Event>> {
        let event = prop_oneof![
            6 => (1..300_u64).prop_map(Event::Ship),
            1 => Just(Event::Distrust),
            1 => Just(Event::Restart),
        ];
        prop::collection::vec(event, 1..120)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_tail_never_gets_shorter_and_is_always_what_was_written(events in events()) {
            let written = Written::new();
            let log = written.log();
            let mut shipping = log.begin_tail(&file()).unwrap();
            let (mut position, mut stored) = (0, 0);
            for event in events {
                match event {
                    Event::Ship(more) => {
                        position = (position + more).min(SIZE as u64);
                        log.ship_tail(&mut shipping, written.source.path(), position, None).unwrap();
                        stored = position;
                    }
                    Event::Distrust => shipping.distrust(),
                    Event::Restart => shipping = log.begin_tail(&file()).unwrap(),
                }
                prop_assert_eq!(log.tail_end(&file()).unwrap().map_or(0, |(end, _)| end), stored);
            }
            let fetched = written.fetched();
            let expected = content();
            if stored > 0 {
                prop_assert_eq!(fetched.len(), SIZE);
                prop_assert!(fetched[..stored as usize] == expected[..stored as usize]);
                prop_assert!(fetched[stored as usize..].iter().all(|&byte| byte == 0));
            }
            // Few pieces, however long it went on.
            prop_assert!(log.pieces(&file()).unwrap().len() <= PIECES as usize);
        }

        #[test]
        fn a_piece_that_is_lost_is_named_unless_it_is_the_last(ends in prop::collection::btree_set(1..SIZE as u64, 2..10), lost: prop::sample::Index) {
            let written = Written::new();
            let log = written.log();
            let mut shipping = log.begin_tail(&file()).unwrap();
            for &end in &ends {
                log.ship_tail(&mut shipping, written.source.path(), end, None).unwrap();
            }
            let keys = log.pieces(&file()).unwrap();
            prop_assert_eq!(keys.len(), ends.len());
            let lost = lost.index(keys.len());
            written.system.store().delete(&keys[lost]).unwrap();
            let found = log.check_tail(&file());
            if lost + 1 == keys.len() {
                // Only the noted position tells.
                prop_assert_eq!(found.unwrap(), ends.iter().rev().nth(1).copied());
                prop_assert_eq!(log.next_piece(&file()).unwrap(), keys[lost].clone());
            } else {
                let damage = found.unwrap_err().as_damage().unwrap();
                prop_assert_eq!(&damage.object, keys[lost].as_str());
                prop_assert!(damage.what.starts_with("it is missing"), "{}", damage.what);
            }
        }
    }

    #[test]
    fn pieces_of_another_shipper_do_not_fit() {
        let written = Written::new();
        let log = written.log();
        let (mut one, mut other) = (log.begin_tail(&file()).unwrap(), log.begin_tail(&file()).unwrap());
        log.ship_tail(&mut one, written.source.path(), 100, None).unwrap();
        let busy = log.ship_tail(&mut other, written.source.path(), 200, None).unwrap_err();
        assert!(busy.is_transient(), "{busy}");
        log.ship_tail(&mut other, written.source.path(), 200, None).unwrap();
        assert_eq!(log.check_tail(&file()).unwrap(), Some(200));
    }

    #[test]
    fn a_changed_byte_before_a_piece_shows() {
        let written = Written::new();
        let log = written.log();
        let mut shipping = log.begin_tail(&file()).unwrap();
        log.ship_tail(&mut shipping, written.source.path(), 100, None).unwrap();
        let mut changed = content();
        changed[50] = 0;
        std::fs::write(written.source.path(), changed).unwrap();
        let mut forged = log.begin_tail(&file()).unwrap();
        // A piece that claims to go on where the first ended, of a file that was another.
        forged.generation = 0;
        forged.first_of_generation = 0;
        forged.shipped = 100;
        hash_range(&mut forged.hasher, written.source.path(), 0..100).unwrap();
        log.ship_tail(&mut forged, written.source.path(), 200, None).unwrap();
        let error = log.check_tail(&file()).unwrap_err().to_string();
        assert!(error.contains("the pieces before byte 100 are not those that were shipped"), "{error}");
    }
}
