//! Maps: which pages the files of a snapshot consist of, and where each page is stored.
//!
//! A map covers one part (at most 1 GiB) of a large file, or a group of small files. It is complete, or a patch of
//! one complete map.

use std::collections::HashMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::codec::{Cursor, put_varint};
use super::pack::{PACK_LIMIT, PAGE_SIZE, PAGES_PER_FRAME, PageHash};
use crate::snapshot::Stamp;

/// A part of a file covers at most this many pages: 1 GiB.
pub(super) const PART_PAGES: u32 = 1 << 17;
/// No map covers more pages.
pub(super) const MAP_PAGES_LIMIT: u32 = 1 << 18;
/// No map is larger, in bytes.
pub(super) const MAP_LIMIT: u64 = 64 << 20;
/// The value of [`Place::pack`] for a page of zeros, which is stored nowhere.
pub const ZERO_PACK: u32 = u32::MAX;

const MAGIC: &[u8; 8] = b"HFMAP\0\0\x01";
const HEADER: usize = 72;
const PLAIN_LIMIT: usize = 64 << 20;

/// A whole file, or up to 1 GiB of one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilePart {
    /// The file, relative to the data directory.
    pub path: String,
    /// Bytes of the whole file.
    pub size: u64,
    /// Number of this part's first page in the file.
    pub first_page: u64,
    /// Pages in this part; the file's last page may end before the page does.
    pub pages: u32,
    /// Permission bits.
    pub mode: u32,
    /// The file's stamp when it was read.
    #[serde(flatten)]
    pub stamp: Stamp,
}

/// Where a page is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// Index of the pack, or [`ZERO_PACK`].
    pub pack: u32,
    /// Number of the frame in the pack.
    pub frame: u16,
    /// Number of the page in the frame.
    pub slot: u16,
}

impl Place {
    /// Of a page of zeros.
    pub const ZERO: Self = Self { pack: ZERO_PACK, frame: 0, slot: 0 };

    fn follows(self, before: Self) -> bool {
        self.pack == before.pack
            && (self.pack == ZERO_PACK || (self.frame == before.frame && self.slot == before.slot.wrapping_add(1)))
    }
}

/// A pack as a map names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PackRef {
    /// SHA-256: its name.
    pub digest: [u8; 32],
    /// Bytes.
    pub size: u32,
}

/// One entry a page: hash and place.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PageTable {
    /// The page's hash; of a page of zeros, zeros.
    pub hashes: Vec<PageHash>,
    /// Where it is.
    pub places: Vec<Place>,
}

impl PageTable {
    /// A table of `pages` pages of zeros.
    pub(super) fn zeros(pages: usize) -> Self {
        Self { hashes: vec![PageHash::default(); pages], places: vec![Place::ZERO; pages] }
    }

    /// How many pages it has.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    fn same(&self, other: &Self, page: usize) -> bool {
        page < other.len() && self.hashes[page] == other.hashes[page] && self.places[page] == other.places[page]
    }
}

/// A map as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageMap {
    /// What it covers, in the order of its pages.
    pub files: Vec<FilePart>,
    /// The packs that its places number.
    pub packs: Vec<PackRef>,
    /// All pages of all files, one file after the other.
    pub table: PageTable,
}

/// A map whose new packs have no names yet.
#[derive(Debug)]
pub(super) struct Draft {
    base: Option<[u8; 32]>,
    pages: u32,
    files: Section,
    /// The packs, by the numbers the tables use.
    pub(super) packs: Vec<u32>,
    runs: Section,
    hashes: Vec<u8>,
}

#[derive(Debug)]
struct Section {
    stored: Vec<u8>,
    plain: usize,
}

impl Section {
    fn compress(plain: &[u8]) -> std::io::Result<Self> {
        Ok(Self { stored: zstd::bulk::compress(plain, 3)?, plain: plain.len() })
    }
}

/// The bytes of the files section: also what tells, by its digest, that nothing a map covers has changed.
pub(super) fn files_section(files: &[FilePart]) -> Vec<u8> {
    // Plain structures with text keys: writing them to memory cannot fail.
    serde_json::to_vec(files).unwrap_or_default()
}

/// The digest of the files section.
pub(super) fn files_digest(files: &[FilePart]) -> PageHash {
    super::pack::page_hash(&files_section(files))
}

impl Draft {
    /// A complete map.
    pub(super) fn complete(files: &[FilePart], table: &PageTable) -> std::io::Result<Self> {
        Self::build(files, table, None)
    }

    /// A patch of the complete map named `base`, whose pages are `base_table`.
    pub(super) fn patch(
        files: &[FilePart],
        table: &PageTable,
        base: [u8; 32],
        base_table: &PageTable,
    ) -> std::io::Result<Self> {
        Self::build(files, table, Some((base, base_table)))
    }

    fn build(files: &[FilePart], table: &PageTable, base: Option<([u8; 32], &PageTable)>) -> std::io::Result<Self> {
        let mut encoder = RunEncoder::default();
        let mut page = 0;
        while page < table.len() {
            if base.is_some_and(|(_, base)| table.same(base, page)) {
                encoder.gap += 1;
                page += 1;
                continue;
            }
            let mut end = page + 1;
            while end < table.len()
                && table.places[end].follows(table.places[end - 1])
                && !base.is_some_and(|(_, base)| table.same(base, end))
            {
                end += 1;
            }
            encoder.push(table, page..end, base.is_some());
            page = end;
        }
        Ok(Self {
            base: base.map(|(digest, _)| digest),
            pages: table.len() as u32,
            files: Section::compress(&files_section(files))?,
            packs: encoder.packs,
            runs: Section::compress(&encoder.runs)?,
            hashes: encoder.hashes,
        })
    }

    /// Stores the same in other bytes, so that the map gets another name. There are a few dozen variants.
    pub(super) fn vary(&mut self, variant: u8) -> std::io::Result<()> {
        let plain = zstd::bulk::decompress(&self.files.stored, self.files.plain)?;
        let mut compressor = zstd::bulk::Compressor::new(1 + i32::from(variant / 4))?;
        compressor.include_checksum(variant & 1 != 0)?;
        compressor.include_contentsize(variant & 2 == 0)?;
        self.files.stored = compressor.compress(&plain)?;
        Ok(())
    }

    /// Roughly how large it will be, in bytes.
    pub(super) fn size(&self) -> usize {
        HEADER + self.files.stored.len() + self.packs.len() * 36 + self.runs.stored.len() + self.hashes.len()
    }

    /// The map's bytes, once every pack has a name.
    pub(super) fn finish(&self, mut name: impl FnMut(u32) -> PackRef) -> Bytes {
        let mut out = Vec::with_capacity(self.size());
        out.extend_from_slice(MAGIC);
        let words = [
            u32::from(self.base.is_some()),
            self.pages,
            self.files.stored.len() as u32,
            self.files.plain as u32,
            self.packs.len() as u32,
            self.runs.stored.len() as u32,
            self.runs.plain as u32,
            (self.hashes.len() / 16) as u32,
        ];
        for word in words {
            out.extend_from_slice(&word.to_le_bytes());
        }
        out.extend_from_slice(&self.base.unwrap_or_default());
        out.extend_from_slice(&self.files.stored);
        for &pack in &self.packs {
            let pack = name(pack);
            out.extend_from_slice(&pack.digest);
            out.extend_from_slice(&pack.size.to_le_bytes());
        }
        out.extend_from_slice(&self.runs.stored);
        out.extend_from_slice(&self.hashes);
        Bytes::from(out)
    }
}

/// How a run says where its first page is.
mod kind {
    pub(super) const ZERO: u64 = 0;
    pub(super) const EXPLICIT: u64 = 1;
    pub(super) const NEXT_SLOT: u64 = 2;
    pub(super) const NEXT_FRAME: u64 = 3;
}

#[derive(Debug, Default)]
struct RunEncoder {
    gap: u64,
    packs: Vec<u32>,
    numbers: HashMap<u32, u32>,
    runs: Vec<u8>,
    hashes: Vec<u8>,
    last: Option<Place>,
}

impl RunEncoder {
    fn push(&mut self, table: &PageTable, pages: std::ops::Range<usize>, gaps: bool) {
        if gaps {
            put_varint(&mut self.runs, std::mem::take(&mut self.gap));
        }
        let length = (pages.len() as u64) << 2;
        let first = table.places[pages.start];
        if first.pack == ZERO_PACK {
            put_varint(&mut self.runs, length | kind::ZERO);
            return;
        }
        match self.last {
            Some(last) if first.follows(last) => put_varint(&mut self.runs, length | kind::NEXT_SLOT),
            Some(last) if first.pack == last.pack && first.frame == last.frame.wrapping_add(1) && first.slot == 0 => {
                put_varint(&mut self.runs, length | kind::NEXT_FRAME);
            }
            _ => self.put_explicit(length, first),
        }
        self.last = Some(table.places[pages.end - 1]);
        for hash in &table.hashes[pages] {
            self.hashes.extend_from_slice(hash);
        }
    }

    fn put_explicit(&mut self, length: u64, place: Place) {
        let next = self.packs.len() as u32;
        let number = *self.numbers.entry(place.pack).or_insert_with(|| {
            self.packs.push(place.pack);
            next
        });
        put_varint(&mut self.runs, length | kind::EXPLICIT);
        put_varint(&mut self.runs, u64::from(number));
        put_varint(&mut self.runs, u64::from(place.frame));
        put_varint(&mut self.runs, u64::from(place.slot));
    }
}

/// A map's bytes, taken apart.
#[derive(Debug)]
pub(super) struct Parsed<'a> {
    /// The complete map that this one patches.
    pub(super) base: Option<[u8; 32]>,
    /// What it covers.
    pub(super) files: Vec<FilePart>,
    /// The packs it names itself.
    pub(super) packs: Vec<PackRef>,
    pages: usize,
    runs: Vec<u8>,
    hashes: &'a [u8],
}

/// Takes a map apart; says what is wrong with it otherwise.
pub(super) fn parse(bytes: &[u8]) -> Result<Parsed<'_>, String> {
    let cut = || "it ends too early".to_owned();
    let mut cursor = Cursor::new(bytes);
    if cursor.take(MAGIC.len()).ok_or_else(cut)? != MAGIC {
        return Err("it does not start as a map of version 1".to_owned());
    }
    let mut word = || cursor.u32().ok_or_else(cut);
    let (patch, pages) = (word()?, word()?);
    let (files_stored, files_plain) = (word()? as usize, word()? as usize);
    let packs = word()? as usize;
    let (runs_stored, runs_plain) = (word()? as usize, word()? as usize);
    let hashes = word()? as usize;
    let base: [u8; 32] = cursor.array().ok_or_else(cut)?;
    if pages > MAP_PAGES_LIMIT || files_plain > PLAIN_LIMIT || runs_plain > PLAIN_LIMIT || hashes > pages as usize {
        return Err(format!("it claims absurd sizes: {pages} pages, {files_plain} bytes of files"));
    }
    let files = expand(cursor.take(files_stored).ok_or_else(cut)?, files_plain)?;
    let files: Vec<FilePart> = serde_json::from_slice(&files).map_err(|error| format!("its list of files: {error}"))?;
    let packs = cursor.take(packs.checked_mul(36).ok_or_else(cut)?).ok_or_else(cut)?;
    let runs = expand(cursor.take(runs_stored).ok_or_else(cut)?, runs_plain)?;
    let hashes = cursor.take(hashes * 16).ok_or_else(cut)?;
    if !cursor.is_empty() {
        return Err("it goes on after its end".to_owned());
    }
    check_files(&files, pages)?;
    let packs: Vec<PackRef> = packs.chunks_exact(36).map(pack_ref).collect();
    if let Some(pack) = packs.iter().find(|pack| u64::from(pack.size) > PACK_LIMIT) {
        return Err(format!("it claims a pack of {} bytes", pack.size));
    }
    Ok(Parsed { base: (patch == 1).then_some(base), files, packs, pages: pages as usize, runs, hashes })
}

fn pack_ref(entry: &[u8]) -> PackRef {
    let (mut digest, mut size) = ([0; 32], [0; 4]);
    digest.copy_from_slice(&entry[..32]);
    size.copy_from_slice(&entry[32..]);
    PackRef { digest, size: u32::from_le_bytes(size) }
}

fn expand(stored: &[u8], plain: usize) -> Result<Vec<u8>, String> {
    let bytes =
        zstd::bulk::decompress(stored, plain).map_err(|error| format!("a section does not decompress: {error}"))?;
    if bytes.len() == plain { Ok(bytes) } else { Err("a section is shorter than stated".to_owned()) }
}

/// Whether a path stays below the directory it is joined to.
pub(super) fn is_safe_path(path: &str) -> bool {
    !path.is_empty()
        && path.len() <= 4096
        && !path.contains('\0')
        && path.split('/').all(|part| !part.is_empty() && part != "." && part != ".." && part.len() <= 255)
}

fn check_files(files: &[FilePart], pages: u32) -> Result<(), String> {
    let mut sum = 0_u64;
    for part in files {
        if !is_safe_path(&part.path) {
            return Err(format!("it names the file {:?}, which is not below the data directory", part.path));
        }
        let whole = part.size.div_ceil(PAGE_SIZE as u64);
        let end = part.first_page.checked_add(u64::from(part.pages));
        if part.pages > PART_PAGES
            || end.is_none_or(|end| end > whole)
            || (part.pages < PART_PAGES && end != Some(whole))
        {
            return Err(format!("it claims {} pages of {} with {} bytes", part.pages, part.path, part.size));
        }
        sum += u64::from(part.pages);
    }
    if sum == u64::from(pages) { Ok(()) } else { Err(format!("its files have {sum} pages, it states {pages}")) }
}

impl Parsed<'_> {
    /// The whole map: itself, or itself applied to the complete map it patches.
    pub(super) fn resolve(self, base: Option<&PageMap>) -> Result<PageMap, String> {
        if self.base.is_some() != base.is_some() {
            return Err("it is a patch where a complete map belongs, or the other way round".to_owned());
        }
        let mut packs = base.map(|base| base.packs.clone()).unwrap_or_default();
        let offset = packs.len() as u32;
        let mut table = PageTable::zeros(self.pages);
        let mut known = 0;
        if let Some(base) = base {
            known = base.table.len().min(self.pages);
            table.hashes[..known].copy_from_slice(&base.table.hashes[..known]);
            table.places[..known].copy_from_slice(&base.table.places[..known]);
        }
        let own = u32::try_from(self.packs.len()).map_err(|_| "too many packs".to_owned())?;
        let mut decoder =
            RunDecoder { runs: Cursor::new(&self.runs), hashes: Cursor::new(self.hashes), offset, own, last: None };
        let covered = decoder.fill(&mut table, known, base.is_some())?;
        if covered < self.pages {
            return Err(format!("it places {covered} of its {} pages", self.pages));
        }
        packs.extend(self.packs);
        Ok(PageMap { files: self.files, packs, table })
    }
}

struct RunDecoder<'a> {
    runs: Cursor<'a>,
    hashes: Cursor<'a>,
    offset: u32,
    own: u32,
    last: Option<Place>,
}

impl RunDecoder<'_> {
    /// Fills the table, of which the first `known` pages may be left out where `gaps` are; says how far it came.
    fn fill(&mut self, table: &mut PageTable, known: usize, gaps: bool) -> Result<usize, String> {
        let bad = || "its runs of pages make no sense".to_owned();
        let mut page = 0_usize;
        while !self.runs.is_empty() {
            if gaps {
                let gap = usize::try_from(self.runs.varint().ok_or_else(bad)?).map_err(|_| bad())?;
                page = page.checked_add(gap).filter(|&to| to <= known || gap == 0).ok_or_else(bad)?;
            }
            let tag = self.runs.varint().ok_or_else(bad)?;
            let length = usize::try_from(tag >> 2).map_err(|_| bad())?;
            let end = page.checked_add(length).filter(|&end| length > 0 && end <= table.len()).ok_or_else(bad)?;
            self.run(table, page..end, tag & 3).ok_or_else(bad)?;
            page = end;
        }
        if !self.hashes.is_empty() {
            return Err("it has more hashes than pages".to_owned());
        }
        Ok(if gaps { page.max(known) } else { page })
    }

    fn run(&mut self, table: &mut PageTable, pages: std::ops::Range<usize>, kind: u64) -> Option<()> {
        if kind == kind::ZERO {
            table.places[pages.clone()].fill(Place::ZERO);
            table.hashes[pages].fill(PageHash::default());
            return Some(());
        }
        let mut place = match kind {
            kind::EXPLICIT => self.explicit()?,
            kind::NEXT_SLOT => self.last.map(|last| Place { slot: last.slot.wrapping_add(1), ..last })?,
            _ => self.last.and_then(|last| Some(Place { frame: last.frame.checked_add(1)?, slot: 0, ..last }))?,
        };
        if usize::from(place.slot) + pages.len() > PAGES_PER_FRAME {
            return None;
        }
        for page in pages {
            table.hashes[page] = self.hashes.array()?;
            table.places[page] = place;
            self.last = Some(place);
            place.slot += 1;
        }
        Some(())
    }

    fn explicit(&mut self) -> Option<Place> {
        let number = u32::try_from(self.runs.varint()?).ok().filter(|&number| number < self.own)?;
        let frame = u16::try_from(self.runs.varint()?).ok()?;
        let slot = u16::try_from(self.runs.varint()?).ok()?;
        Some(Place { pack: self.offset + number, frame, slot })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PACKS: u32 = 4;

    fn pack(number: u32) -> PackRef {
        PackRef { digest: [number as u8 + 1; 32], size: 1000 + number }
    }

    fn part(pages: usize) -> FilePart {
        FilePart {
            path: "base/5/16384".to_owned(),
            size: (pages * PAGE_SIZE) as u64,
            first_page: 0,
            pages: pages as u32,
            mode: 0o600,
            stamp: Stamp { mtime_ns: 1, ctime_ns: 2, inode: 3 },
        }
    }

    fn a_place() -> impl Strategy<Value = Place> {
        prop_oneof![
            1 => Just(Place::ZERO),
            4 => (0..PACKS, 0..6_u16, 0..PAGES_PER_FRAME as u16).prop_map(|(pack, frame, slot)| Place { pack, frame, slot }),
        ]
    }

    /// Tables with runs in them, as backups make them, and with single pages.
    fn a_table() -> impl Strategy<Value = PageTable> {
        proptest::collection::vec((a_place(), 1..200_usize, any::<u8>()), 0..12).prop_map(|runs| {
            let mut table = PageTable::default();
            for (first, length, seed) in runs {
                let mut place = first;
                for at in 0..length {
                    let zero = place.pack == ZERO_PACK;
                    table.places.push(place);
                    table.hashes.push(if zero { [0; 16] } else { [seed ^ at as u8; 16] });
                    if !zero {
                        place.slot += 1;
                        if usize::from(place.slot) == PAGES_PER_FRAME {
                            place = Place { frame: place.frame + 1, slot: 0, ..place };
                        }
                    }
                }
            }
            table
        })
    }

    type Named = (PageHash, Option<(PackRef, u16, u16)>);

    fn named(map: &PageMap) -> Vec<Named> {
        map.table
            .hashes
            .iter()
            .zip(&map.table.places)
            .map(|(hash, place)| {
                (*hash, (place.pack != ZERO_PACK).then(|| (map.packs[place.pack as usize], place.frame, place.slot)))
            })
            .collect()
    }

    fn of_table(table: PageTable) -> PageMap {
        PageMap { files: vec![part(table.len())], packs: (0..PACKS).map(pack).collect(), table }
    }

    proptest! {
        #[test]
        fn a_complete_map_comes_back(table in a_table()) {
            let bytes = Draft::complete(&[part(table.len())], &table).unwrap().finish(pack);
            let map = parse(&bytes).unwrap().resolve(None).unwrap();
            prop_assert_eq!(named(&map), named(&of_table(table)));
        }

        #[test]
        fn a_patch_applied_to_its_base_is_the_new_map(base in a_table(), change in a_table(), at in 0..400_usize) {
            // The new table: the base with `change` laid over it somewhere, longer, as long or shorter.
            let mut table = base.clone();
            let at = at.min(base.len());
            for (offset, (hash, place)) in change.hashes.iter().zip(&change.places).enumerate() {
                if at + offset < table.len() {
                    table.hashes[at + offset] = *hash;
                    table.places[at + offset] = *place;
                } else {
                    table.hashes.push(*hash);
                    table.places.push(*place);
                }
            }
            if at % 3 == 0 {
                table.hashes.truncate(at + 1);
                table.places.truncate(at + 1);
            }
            let base_bytes = Draft::complete(&[part(base.len())], &base).unwrap().finish(pack);
            let base_map = parse(&base_bytes).unwrap().resolve(None).unwrap();
            let bytes = Draft::patch(&[part(table.len())], &table, [9; 32], &base).unwrap().finish(pack);
            let parsed = parse(&bytes).unwrap();
            prop_assert_eq!(parsed.base, Some([9; 32]));
            let map = parsed.resolve(Some(&base_map)).unwrap();
            prop_assert_eq!(named(&map), named(&of_table(table)));
        }

        #[test]
        fn damaged_bytes_never_panic(table in a_table(), at: prop::sample::Index, value: u8) {
            let mut bytes = Draft::complete(&[part(table.len())], &table).unwrap().finish(pack).to_vec();
            let at = at.index(bytes.len());
            bytes[at] = value;
            let _ = parse(&bytes).and_then(|parsed| parsed.resolve(None));
            let _ = parse(&bytes[..at]).map(|_| ());
        }
    }

    #[test]
    fn a_path_that_leads_out_is_refused() {
        for path in ["../etc/passwd", "/etc/passwd", "base/../../x", "base//x", "", "base/./x", "a\0b"] {
            let files = [FilePart { path: path.to_owned(), ..part(1) }];
            let bytes = Draft::complete(&files, &PageTable::zeros(1)).unwrap().finish(pack);
            let refused = parse(&bytes).unwrap_err();
            assert_eq!(refused, format!("it names the file {path:?}, which is not below the data directory"));
        }
    }

    #[test]
    fn absurd_sizes_are_refused() {
        let files = [FilePart { size: u64::MAX, ..part(1) }];
        let bytes = Draft::complete(&files, &PageTable::zeros(1)).unwrap().finish(pack);
        assert_eq!(parse(&bytes).unwrap_err(), format!("it claims 1 pages of base/5/16384 with {} bytes", u64::MAX));
        let mut bytes = Draft::complete(&[part(1)], &PageTable::zeros(1)).unwrap().finish(pack).to_vec();
        bytes[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(parse(&bytes).unwrap_err().starts_with("it claims absurd sizes"));
    }
}
