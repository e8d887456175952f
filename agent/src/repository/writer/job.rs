//! A map in the making: what its pages were, and what becomes known of them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crossbeam_channel::Sender;

use super::finisher::Event;
use crate::repository::map::{FilePart, PageTable, Place};
use crate::repository::pack::PageHash;
use crate::snapshot::SourceFile;

/// The [`Place::pack`] of a page that has no place that could be used.
pub(super) const NO_PACK: u32 = u32::MAX - 1;

/// A complete map that this one may patch; its places are in this backup's numbers.
#[derive(Debug)]
pub(super) struct Base {
    pub(super) sha256: [u8; 32],
    pub(super) size: u64,
    pub(super) table: PageTable,
}

/// One map, while its pages are read.
#[derive(Debug)]
pub(super) struct Job {
    /// Its number among the maps.
    pub(super) index: usize,
    pub(super) parts: Vec<FilePart>,
    pub(super) files: Vec<SourceFile>,
    /// What the previous backup had for each page, if it had any.
    previous: Option<PageTable>,
    pub(super) base: Option<Base>,
    /// What this backup has, as far as known.
    table: Mutex<PageTable>,
    /// Parts whose file was gone before it could be read.
    vanished: Mutex<Vec<usize>>,
    /// Chunks not read, and pages read that have no place.
    outstanding: AtomicUsize,
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Job {
    pub(super) fn new(
        index: usize,
        parts: Vec<FilePart>,
        files: Vec<SourceFile>,
        previous: Option<PageTable>,
        base: Option<Base>,
    ) -> Self {
        let pages = parts.iter().map(|part| part.pages as usize).sum();
        let table = Mutex::new(previous.clone().unwrap_or_else(|| PageTable::zeros(pages)));
        Self {
            index,
            parts,
            files,
            previous,
            base,
            table,
            vanished: Mutex::default(),
            outstanding: AtomicUsize::new(1),
        }
    }

    /// What the previous backup had for a page.
    pub(super) fn previous(&self, page: usize) -> Option<(PageHash, Place)> {
        self.previous.as_ref().map(|table| (table.hashes[page], table.places[page]))
    }

    pub(super) fn expect(&self, more: usize) {
        self.outstanding.fetch_add(more, Ordering::SeqCst);
    }

    /// Says that so many outstanding things are done; after the last of them the finisher gets the job.
    pub(super) fn settle(self: &Arc<Self>, done: usize, events: &Sender<Event>) {
        if self.outstanding.fetch_sub(done, Ordering::SeqCst) == done {
            // A finisher that has failed is not waiting any more.
            let _ = events.send(Event::Read(Arc::clone(self)));
        }
    }

    pub(super) fn table(&self) -> MutexGuard<'_, PageTable> {
        held(&self.table)
    }

    pub(super) fn place(&self, pages: impl Iterator<Item = (u32, PageHash, Place)>) {
        let mut table = self.table();
        for (page, hash, place) in pages {
            table.hashes[page as usize] = hash;
            table.places[page as usize] = place;
        }
    }

    pub(super) fn vanish(&self, part: usize) {
        held(&self.vanished).push(part);
    }

    /// Parts and pages of the files that did not vanish.
    pub(super) fn remains(&self) -> (Vec<FilePart>, PageTable) {
        let vanished = std::mem::take(&mut *held(&self.vanished));
        let table = std::mem::take(&mut *self.table());
        if vanished.is_empty() {
            return (self.parts.clone(), table);
        }
        let mut kept = (Vec::new(), PageTable::default());
        let mut at = 0;
        for (index, part) in self.parts.iter().enumerate() {
            let pages = at..at + part.pages as usize;
            at = pages.end;
            if !vanished.contains(&index) {
                kept.0.push(part.clone());
                kept.1.hashes.extend_from_slice(&table.hashes[pages.clone()]);
                kept.1.places.extend_from_slice(&table.places[pages]);
            }
        }
        kept
    }
}
