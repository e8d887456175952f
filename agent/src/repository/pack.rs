//! Packs: frames of compressed pages, and an index of them at the end.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use sha2::{Digest as _, Sha256};

use super::codec::Cursor;
use crate::aligned::Aligned;

/// Bytes of a page.
pub const PAGE_SIZE: usize = 8192;
/// A frame holds at most this many pages: 1 MiB of them compresses as well as more would.
pub const PAGES_PER_FRAME: usize = 128;
/// A pack is closed once it is this large, in bytes.
pub const PACK_TARGET: usize = 16 << 20;
/// No pack is larger, in bytes: the target and one frame that does not compress, with its index.
pub(super) const PACK_LIMIT: u64 = 24 << 20;

const HEADER: &[u8; 16] = b"HFPACK\0\x01\0\x20\0\0\0\0\0\0";
const TRAILER_MAGIC: &[u8; 8] = b"HFINDEX\x01";
const INDEX_ENTRY: usize = 24;
const TRAILER: usize = 16;
/// A pack of more frames is closed, however small it is: they are numbered in 16 bits, and their index has to fit.
const FRAMES_LIMIT: usize = 32_000;
/// Room for a pack: the target, one frame over it, and the index.
const BUFFER: usize = PACK_TARGET + (2 << 20);

/// The first 128 bits of a page's BLAKE3 hash.
pub type PageHash = [u8; 16];

/// The hash by which pages are compared.
pub fn page_hash(page: &[u8]) -> PageHash {
    truncated(blake3::hash(page))
}

fn truncated(hash: blake3::Hash) -> PageHash {
    let mut short = PageHash::default();
    short.copy_from_slice(&hash.as_bytes()[..16]);
    short
}

/// The digest of a frame: that of its pages' hashes, one after the other.
pub(super) fn frame_digest<'a>(hashes: impl Iterator<Item = &'a PageHash>) -> PageHash {
    let mut digest = blake3::Hasher::new();
    for page in hashes {
        digest.update(page);
    }
    truncated(digest.finalize())
}

/// A pack that is being filled.
#[derive(Debug)]
pub(super) struct PackBuilder {
    buffer: Buffer,
    index: Vec<u8>,
    frames: usize,
}

impl PackBuilder {
    pub(super) fn new(buffers: &Arc<Buffers>) -> Self {
        let mut buffer = buffers.take();
        buffer.extend(HEADER);
        Self { buffer, index: Vec::new(), frames: 0 }
    }

    /// Adds a frame and says which number it has.
    pub(super) fn push(&mut self, compressed: &[u8], pages: u16, digest: PageHash) -> u16 {
        self.buffer.extend(compressed);
        self.index.extend_from_slice(&(compressed.len() as u32).to_le_bytes());
        self.index.extend_from_slice(&pages.to_le_bytes());
        self.index.extend_from_slice(&0_u16.to_le_bytes());
        self.index.extend_from_slice(&digest);
        self.frames += 1;
        (self.frames - 1) as u16
    }

    /// Adds a frame that no map names, so that the pack gets another name.
    pub(super) fn salt(&mut self, random: [u8; 16]) -> std::io::Result<()> {
        let mut page = vec![0; PAGE_SIZE];
        page[..16].copy_from_slice(&random);
        let compressed = zstd::bulk::compress(&page, 1)?;
        self.push(&compressed, 1, frame_digest(std::iter::once(&page_hash(&page))));
        Ok(())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.frames == 0
    }

    pub(super) fn is_full(&self) -> bool {
        self.buffer.as_ref().len() >= PACK_TARGET || self.frames >= FRAMES_LIMIT
    }

    /// The name that the pack has as it is.
    pub(super) fn sha256(&self) -> [u8; 32] {
        let mut hasher = Sha256::new();
        hasher.update(self.buffer.as_ref());
        hasher.update(&self.index);
        hasher.update(self.trailer());
        hasher.finalize().into()
    }

    fn trailer(&self) -> [u8; TRAILER] {
        let mut trailer = [0; TRAILER];
        trailer[..4].copy_from_slice(&(self.frames as u32).to_le_bytes());
        trailer[8..].copy_from_slice(TRAILER_MAGIC);
        trailer
    }

    pub(super) fn finish(mut self) -> Bytes {
        let trailer = self.trailer();
        self.buffer.extend(&self.index);
        self.buffer.extend(&trailer);
        Bytes::from_owner(self.buffer)
    }
}

/// Memory for packs, used again and again: so that it neither grows nor is cleared by the kernel each time.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    free: Mutex<Vec<Aligned>>,
}

impl Buffers {
    fn take(self: &Arc<Self>) -> Buffer {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let bytes = free.unwrap_or_else(|| Aligned::with_capacity(BUFFER));
        Buffer { bytes: Some(bytes), home: Arc::clone(self) }
    }
}

/// The memory of one pack, lent by [`Buffers`] until it is dropped.
#[derive(Debug)]
struct Buffer {
    bytes: Option<Aligned>,
    home: Arc<Buffers>,
}

impl Buffer {
    fn extend(&mut self, more: &[u8]) {
        if let Some(bytes) = &mut self.bytes {
            bytes.extend(more);
        }
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self.bytes.as_ref().map(Aligned::as_ref).unwrap_or_default()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(mut bytes) = self.bytes.take() {
            bytes.clear();
            self.home.free.lock().unwrap_or_else(PoisonError::into_inner).push(bytes);
        }
    }
}

/// A frame as the index of its pack describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Frame {
    /// Where its compressed bytes are in the pack.
    pub(super) range: Range<u64>,
    /// How many pages it holds.
    pub(super) pages: u16,
    /// The digest of its pages' hashes.
    pub(super) digest: PageHash,
}

/// How many bytes the index and trailer at the end of a pack take, from its last bytes; `None` if they are no pack's.
pub(super) fn index_length(tail: &[u8]) -> Option<usize> {
    let trailer = tail.len().checked_sub(TRAILER).map(|at| &tail[at..])?;
    let mut cursor = Cursor::new(trailer);
    let frames = cursor.u32()? as usize;
    if cursor.u32()? != 0 || cursor.take(8)? != TRAILER_MAGIC || frames > FRAMES_LIMIT {
        return None;
    }
    Some(frames * INDEX_ENTRY + TRAILER)
}

/// The frames of a pack of `size` bytes, from its last bytes; `None` if these are no pack's.
pub(super) fn parse_index(tail: &[u8], size: u64) -> Option<Vec<Frame>> {
    let length = index_length(tail)?;
    let index = tail.len().checked_sub(length).map(|at| &tail[at..tail.len() - TRAILER])?;
    let mut cursor = Cursor::new(index);
    let mut frames = Vec::with_capacity(index.len() / INDEX_ENTRY);
    let mut at = HEADER.len() as u64;
    while !cursor.is_empty() {
        let end = at + u64::from(cursor.u32()?);
        let pages = cursor.u16()?;
        if cursor.u16()? != 0 || usize::from(pages) > PAGES_PER_FRAME || pages == 0 {
            return None;
        }
        frames.push(Frame { range: at..end, pages, digest: cursor.array()? });
        at = end;
    }
    (at + length as u64 == size).then_some(frames)
}

/// Whether the pack's first bytes are those of a pack of a version this agent reads.
pub(super) fn has_header(pack: &[u8]) -> bool {
    pack.starts_with(HEADER)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_index_gives_back_what_was_pushed() {
        let mut pack = PackBuilder::new(&Arc::default());
        assert!(pack.is_empty());
        assert_eq!(pack.push(b"first", 3, [1; 16]), 0);
        assert_eq!(pack.push(b"second!", 128, [2; 16]), 1);
        let bytes = pack.finish();
        assert!(has_header(&bytes));
        let frames = parse_index(&bytes, bytes.len() as u64).unwrap();
        assert_eq!(frames.len(), 2);
        assert_eq!(&bytes[frames[1].range.start as usize..frames[1].range.end as usize], b"second!");
        assert_eq!((frames[0].pages, frames[0].digest), (3, [1; 16]));
        // The last bytes alone suffice.
        let length = index_length(&bytes).unwrap();
        assert_eq!(parse_index(&bytes[bytes.len() - length..], bytes.len() as u64).unwrap(), frames);
    }

    #[test]
    fn a_cut_or_grown_pack_has_no_index() {
        let mut pack = PackBuilder::new(&Arc::default());
        pack.push(b"frame", 1, [1; 16]);
        let bytes = pack.finish();
        for cut in 0..bytes.len() {
            assert_eq!(parse_index(&bytes[..cut], cut as u64), None, "cut to {cut}");
        }
        assert_eq!(parse_index(&bytes, bytes.len() as u64 + 1), None);
    }

    #[test]
    fn the_header_states_the_page_size() {
        assert_eq!(u32::from_le_bytes(HEADER[8..12].try_into().unwrap()) as usize, PAGE_SIZE);
    }

    fn built(frames: &[(Vec<u8>, u16, PageHash)]) -> PackBuilder {
        let mut pack = PackBuilder::new(&Arc::default());
        for (number, (bytes, pages, digest)) in frames.iter().enumerate() {
            assert_eq!(usize::from(pack.push(bytes, *pages, *digest)), number);
        }
        pack
    }

    fn some_frames() -> impl Strategy<Value = Vec<(Vec<u8>, u16, PageHash)>> {
        let frame = (prop::collection::vec(any::<u8>(), 1..60), 1..=PAGES_PER_FRAME as u16, any::<PageHash>());
        prop::collection::vec(frame, 1..20)
    }

    proptest! {
        #[test]
        fn every_frame_comes_back_from_the_index(frames in some_frames()) {
            let pack = built(&frames);
            let name = pack.sha256();
            let bytes = pack.finish();
            prop_assert_eq!(name, <[u8; 32]>::from(Sha256::digest(&bytes)));
            let parsed = parse_index(&bytes, bytes.len() as u64).unwrap();
            prop_assert_eq!(parsed.len(), frames.len());
            for (frame, (content, pages, digest)) in parsed.iter().zip(&frames) {
                prop_assert_eq!(&bytes[frame.range.start as usize..frame.range.end as usize], content.as_slice());
                prop_assert_eq!((frame.pages, &frame.digest), (*pages, digest));
            }
        }

        #[test]
        fn a_salted_pack_has_another_name_and_the_same_frames(frames in some_frames()) {
            let (plain, mut salted) = (built(&frames), built(&frames));
            salted.salt([7; 16]).unwrap();
            prop_assert_ne!(plain.sha256(), salted.sha256());
            let (plain, salted) = (plain.finish(), salted.finish());
            let index = |bytes: &Bytes| parse_index(bytes, bytes.len() as u64).unwrap();
            let (mut with_salt, without) = (index(&salted), index(&plain));
            with_salt.truncate(frames.len());
            prop_assert_eq!(with_salt, without);
        }

        #[test]
        fn damaged_bytes_never_give_frames_outside_of_the_pack(frames in some_frames(), at: prop::sample::Index, value: u8) {
            let mut bytes = built(&frames).finish().to_vec();
            let at = at.index(bytes.len());
            bytes[at] = value;
            if let Some(frames) = parse_index(&bytes, bytes.len() as u64) {
                prop_assert!(frames.windows(2).all(|pair| pair[0].range.end == pair[1].range.start));
                prop_assert!(frames.iter().all(|frame| frame.range.end <= bytes.len() as u64));
            }
        }
    }
}
