//! Memory that begins at a block's start, as writes past the page cache need it.

/// What such writes are aligned to, in bytes: no less than any file system's block.
pub(crate) const BLOCK: usize = 4096;

/// Bytes of which the first is at a block's start.
#[derive(Debug)]
pub(crate) struct Aligned {
    bytes: Vec<u8>,
    start: usize,
}

impl Aligned {
    /// Memory for `capacity` bytes; holds none yet.
    pub(crate) fn with_capacity(capacity: usize) -> Self {
        let mut aligned = Self { bytes: Vec::with_capacity(capacity + BLOCK), start: 0 };
        aligned.clear();
        aligned
    }

    /// `length` zeros.
    pub(crate) fn zeros(length: usize) -> Self {
        let mut aligned = Self::with_capacity(length);
        aligned.bytes.resize(aligned.start + length, 0);
        aligned
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        // Appending up to the capacity moves nothing, so the start stays where it is.
        self.start = self.bytes.as_ptr().align_offset(BLOCK) % BLOCK;
        self.bytes.resize(self.start, 0);
    }

    pub(crate) fn extend(&mut self, more: &[u8]) {
        self.bytes.extend_from_slice(more);
    }

    pub(crate) fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..]
    }
}

impl AsRef<[u8]> for Aligned {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[self.start..]
    }
}

/// Whether bytes can be written past the page cache at `offset`, as far as their place goes.
pub(crate) fn is_aligned(bytes: &[u8], offset: u64) -> bool {
    (bytes.as_ptr() as usize).is_multiple_of(BLOCK)
        && bytes.len().is_multiple_of(BLOCK)
        && offset.is_multiple_of(BLOCK as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_begin_at_a_block_however_many_are_added() {
        let mut aligned = Aligned::with_capacity(3 * BLOCK);
        for _ in 0..3 {
            aligned.extend(&[7; BLOCK]);
            assert!(is_aligned(aligned.as_ref(), 0));
        }
        assert_eq!(aligned.as_ref().len(), 3 * BLOCK);
        aligned.clear();
        assert_eq!(aligned.as_ref().len(), 0);
        assert!(is_aligned(Aligned::zeros(BLOCK).as_ref(), 8192));
        assert!(!is_aligned(&Aligned::zeros(BLOCK).as_ref()[1..], 0));
    }
}
