//! The packs of a backup: those earlier backups stored, the one being filled, and those on their way to the store.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crossbeam_channel::{Receiver, Sender};
use sha2::{Digest as _, Sha256};

use super::Shared;
use super::finisher::Event;
use super::job::NO_PACK;
use crate::repository::error::{RepositoryError, RepositoryResult};
use crate::repository::map::{PackRef, PageMap, PageTable, Place, ZERO_PACK};
use crate::repository::pack::{Buffers, PackBuilder, PageHash};
use crate::repository::store::Created;
use crate::repository::top::random_bytes;

/// Numbers for packs, valid within one backup.
#[derive(Debug)]
pub(super) struct Packs {
    known: Mutex<Known>,
    tombstones: HashSet<[u8; 32]>,
}

#[derive(Debug, Default)]
struct Known {
    packs: Vec<Option<PackRef>>,
    numbers: HashMap<[u8; 32], u32>,
}

impl Packs {
    pub(super) fn new(tombstones: &HashSet<[u8; 32]>) -> Self {
        Self { known: Mutex::default(), tombstones: tombstones.clone() }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The pages of a map that an earlier backup stored, in this backup's numbers.
    pub(super) fn renumber(&self, map: &PageMap) -> PageTable {
        let numbers: Vec<u32> = map.packs.iter().map(|pack| self.number(*pack)).collect();
        let places = map.table.places.iter().map(|place| match place.pack {
            ZERO_PACK => *place,
            pack => Place { pack: numbers[pack as usize], ..*place },
        });
        PageTable { hashes: map.table.hashes.clone(), places: places.collect() }
    }

    fn number(&self, pack: PackRef) -> u32 {
        if self.tombstones.contains(&pack.digest) {
            return NO_PACK;
        }
        let mut known = self.known();
        let next = known.packs.len() as u32;
        let number = *known.numbers.entry(pack.digest).or_insert(next);
        if number == next {
            known.packs.push(Some(pack));
        }
        number
    }

    fn reserve(&self) -> u32 {
        let mut known = self.known();
        known.packs.push(None);
        known.packs.len() as u32 - 1
    }

    fn name(&self, number: u32, pack: PackRef) {
        if let Some(reserved) = self.known().packs.get_mut(number as usize) {
            *reserved = Some(pack);
        }
    }

    /// The pack's name, once it is stored.
    pub(super) fn get(&self, number: u32) -> Option<PackRef> {
        self.known().packs.get(number as usize).copied().flatten()
    }

    pub(super) fn is_tombstoned(&self, digest: &[u8; 32]) -> bool {
        self.tombstones.contains(digest)
    }

    pub(super) fn has_tombstones(&self) -> bool {
        !self.tombstones.is_empty()
    }
}

/// A closed pack.
#[derive(Debug)]
pub(super) struct FullPack {
    number: u32,
    pack: PackBuilder,
}

/// The pack that the workers fill together.
pub(super) struct Filling<'a> {
    shared: &'a Shared<'a>,
    buffers: Arc<Buffers>,
    current: Mutex<Option<(u32, PackBuilder)>>,
    full: Mutex<Option<Sender<FullPack>>>,
}

impl<'a> Filling<'a> {
    pub(super) fn new(shared: &'a Shared<'a>, full: Sender<FullPack>) -> Self {
        Self { shared, buffers: Arc::default(), current: Mutex::default(), full: Mutex::new(Some(full)) }
    }

    /// Adds a frame and says where it is: pack and number.
    pub(super) fn push(&self, compressed: &[u8], pages: usize, digest: PageHash) -> (u32, u16) {
        let (place, full) = {
            let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
            let (number, pack) =
                current.get_or_insert_with(|| (self.shared.packs.reserve(), PackBuilder::new(&self.buffers)));
            let place = (*number, pack.push(compressed, pages as u16, digest));
            let is_full = pack.is_full();
            (place, current.take_if(|_| is_full))
        };
        if let Some((number, pack)) = full {
            self.send(number, pack);
        }
        place
    }

    fn send(&self, number: u32, pack: PackBuilder) {
        let sender = self.full.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(sender) = sender {
            // Uploaders that have failed are not waiting any more, and say why themselves.
            let _ = sender.send(FullPack { number, pack });
        }
    }

    /// Sends the last pack; there will be no more.
    pub(super) fn close(&self) {
        let last = self.current.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((number, pack)) = last.filter(|(_, pack)| !pack.is_empty() && !self.shared.is_stopped()) {
            self.send(number, pack);
        }
        self.full.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

/// Names packs by their SHA-256 and stores them, until there are no more.
pub(super) fn upload(shared: &Shared<'_>, packs: &Receiver<FullPack>, events: &Sender<Event>) -> RepositoryResult<()> {
    for FullPack { number, mut pack } in packs {
        if shared.is_stopped() {
            return Ok(());
        }
        // Of a pack that a prune is about to delete, or that is damaged, not even the name is used again.
        if shared.packs.has_tombstones() && shared.packs.is_tombstoned(&pack.sha256()) {
            pack.salt(random_bytes()).map_err(RepositoryError::Compression)?;
        }
        let bytes = pack.finish();
        let pack = PackRef { digest: Sha256::digest(&bytes).into(), size: bytes.len() as u32 };
        let created = shared.system.create_exactly(&shared.system.layout.pack(&pack.digest), &bytes)?;
        if created == Created::New {
            shared.stored_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        }
        shared.packs.name(number, pack);
        // A finisher that has failed is not waiting any more.
        let _ = events.send(Event::PackStored);
    }
    Ok(())
}
