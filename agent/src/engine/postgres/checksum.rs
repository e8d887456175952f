//! Page checksums: whether a page is what PostgreSQL wrote.
//!
//! The algorithm is PostgreSQL's own (`storage/checksum_impl.h`, README in `storage/page`): the page is seen as rows of
//! 32 words, each column runs through a variant of FNV-1a of its own, and the 32 results are folded. The columns are
//! independent of each other so that a compiler can give each a lane of a vector register; here it does.

use multiversion::multiversion;

use super::lsn::Lsn;

/// Columns that are summed independently.
const LANES: usize = 32;
/// Bytes of one row of all columns.
const ROW: usize = LANES * 4;
/// The multiplier of FNV-1a with 32 bits.
const PRIME: u32 = 16_777_619;
/// What each column begins with: arbitrary, but part of the format.
const START: [u32; LANES] = [
    0x5B1F_36E9,
    0xB852_5960,
    0x02AB_50AA,
    0x1DE6_6D2A,
    0x79FF_467A,
    0x9BB9_F8A3,
    0x217E_7CD2,
    0x83E1_3D2C,
    0xF8D4_474F,
    0xE39E_B970,
    0x42C6_AE16,
    0x9932_16FA,
    0x7B09_3B5D,
    0x98DA_FF3C,
    0xF718_902A,
    0x0B1C_9CDB,
    0xE58F_764B,
    0x1876_36BC,
    0x5D7B_3BB1,
    0xE73D_E7DE,
    0x92BE_C979,
    0xCCA6_C0B2,
    0x304A_0979,
    0x85AA_43D4,
    0x7831_25BB,
    0x6CA8_EAA2,
    0xE407_EAC6,
    0x4B5C_FC3E,
    0x9FBF_8C76,
    0x15CA_20BE,
    0xF2CA_9FD3,
    0x959B_D756,
];

/// What a page's checksum says about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageVerdict {
    /// The page is what PostgreSQL wrote.
    Good,
    /// All zeros: the file was extended and the page never written.
    New,
    /// The checksum does not fit, but the page says it was written at or after the backup's start: it may have been
    /// read while it was written, and recovery writes it anew from the log.
    Newer,
    /// The page is not what PostgreSQL wrote.
    Bad {
        /// The checksum in the page.
        stored: u16,
        /// The checksum of the page.
        computed: u16,
    },
}

/// Judges a page of a relation's file.
///
/// `block` counts through all segments of the relation's fork. `start` is where the backup began; [`Lsn::INVALID`]
/// would excuse every page, so for a data directory at rest give `Lsn(u64::MAX)`.
///
/// A page whose checksum fits is good whatever position it carries; only one whose checksum does not fit can be newer.
/// A page that is not all zeros although it says it is new is judged by its checksum, as the server does when it reads
/// the page (`PageIsVerified` in `bufpage.c`).
pub fn judge(page: &[u8], block: u32, start: Lsn) -> PageVerdict {
    let stored = u16::from_le_bytes(bytes(page, 8));
    let computed = checksum(page, block);
    if stored == computed {
        return PageVerdict::Good;
    }
    if is_zero(page) {
        PageVerdict::New
    } else if page_lsn(page) >= start {
        PageVerdict::Newer
    } else {
        PageVerdict::Bad { stored, computed }
    }
}

/// The position behind the last log record that changed the page.
pub fn page_lsn(page: &[u8]) -> Lsn {
    let (high, low) = (u32::from_le_bytes(bytes(page, 0)), u32::from_le_bytes(bytes(page, 4)));
    Lsn((u64::from(high) << 32) | u64::from(low))
}

/// The checksum that `page` must carry as block `block` of its fork. Never zero: zero means that there is none.
pub fn checksum(page: &[u8], block: u32) -> u16 {
    let mixed = columns(page) ^ block;
    (mixed % 65_535 + 1) as u16
}

/// Whether a page was never written.
pub fn is_zero(page: &[u8]) -> bool {
    // Nearly every page differs in its first bytes, so this costs nothing for them.
    page.iter().all(|&byte| byte == 0)
}

/// The checksum before the block number is mixed in, with the page's checksum field taken as zero.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn columns(page: &[u8]) -> u32 {
    let mut sums = START;
    let mut rows = page.chunks_exact(ROW);
    if let Some(first) = rows.next() {
        let mut words = row(first);
        // The checksum stands in the lower half of the third word.
        words[2] &= 0xFFFF_0000;
        mix(&mut sums, &words);
    }
    for chunk in rows {
        mix(&mut sums, &row(chunk));
    }
    // Two rounds of zeros, so that the last row is as well mixed as the others.
    mix(&mut sums, &[0; LANES]);
    mix(&mut sums, &[0; LANES]);
    sums.iter().fold(0, |folded, sum| folded ^ sum)
}

#[inline(always)]
#[expect(clippy::inline_always, reason = "a call in the innermost loop would keep it from being vectorised")]
fn row(chunk: &[u8]) -> [u32; LANES] {
    let mut words = [0; LANES];
    for (word, raw) in words.iter_mut().zip(chunk.as_chunks::<4>().0) {
        *word = u32::from_le_bytes(*raw);
    }
    words
}

#[inline(always)]
#[expect(clippy::inline_always, reason = "a call in the innermost loop would keep it from being vectorised")]
fn mix(sums: &mut [u32; LANES], words: &[u32; LANES]) {
    for (sum, word) in sums.iter_mut().zip(words) {
        let mixed = *sum ^ word;
        *sum = mixed.wrapping_mul(PRIME) ^ (mixed >> 17);
    }
}

/// `N` bytes of the page's header; zeros where a page is too short to have one.
fn bytes<const N: usize>(page: &[u8], at: usize) -> [u8; N] {
    page.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: usize = 8192;

    /// The definition, word by word, without rows or lanes.
    fn slow(page: &[u8], block: u32) -> u16 {
        let mut sums = START;
        for (index, raw) in page.chunks_exact(4).enumerate() {
            let mut word = u32::from_le_bytes(raw.try_into().unwrap());
            if index == 2 {
                word &= 0xFFFF_0000;
            }
            let lane = &mut sums[index % LANES];
            *lane = (*lane ^ word).wrapping_mul(PRIME) ^ ((*lane ^ word) >> 17);
        }
        for _ in 0..2 {
            for lane in &mut sums {
                *lane = lane.wrapping_mul(PRIME) ^ (*lane >> 17);
            }
        }
        ((sums.into_iter().fold(0, |a, b| a ^ b) ^ block) % 65_535 + 1) as u16
    }

    /// A page with content, written at 0/3000000, as block 7.
    fn page() -> Vec<u8> {
        let mut page: Vec<u8> = (0..SIZE as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        page[..8].copy_from_slice(&[0, 0, 0, 0, 0, 0, 0, 3]);
        seal(&mut page, 7);
        page
    }

    fn seal(page: &mut [u8], block: u32) {
        let sum = slow(page, block);
        page[8..10].copy_from_slice(&sum.to_le_bytes());
    }

    #[test]
    fn a_page_as_written_is_good() {
        assert_eq!(page_lsn(&page()), Lsn(0x300_0000));
        assert_eq!(judge(&page(), 7, Lsn(u64::MAX)), PageVerdict::Good);
    }

    #[test]
    fn the_checksum_in_the_page_is_no_part_of_what_is_summed() {
        let mut other = page();
        other[8..10].copy_from_slice(&[0xAB, 0xCD]);
        assert_eq!(checksum(&other, 7), checksum(&page(), 7));
    }

    #[test]
    fn any_changed_byte_is_bad() {
        let stored = u16::from_le_bytes([page()[8], page()[9]]);
        for at in (0..SIZE).filter(|at| !(8..10).contains(at)).step_by(97) {
            let mut damaged = page();
            damaged[at] ^= 0x10;
            let computed = slow(&damaged, 7);
            assert_eq!(judge(&damaged, 7, Lsn(u64::MAX)), PageVerdict::Bad { stored, computed }, "byte {at}");
        }
    }

    #[test]
    fn a_page_in_another_place_is_bad() {
        assert!(matches!(judge(&page(), 8, Lsn(u64::MAX)), PageVerdict::Bad { .. }));
    }

    #[test]
    fn a_page_without_a_checksum_is_bad() {
        let mut page = page();
        page[8..10].fill(0);
        assert!(matches!(judge(&page, 7, Lsn(u64::MAX)), PageVerdict::Bad { stored: 0, .. }));
    }

    #[test]
    fn a_page_of_zeros_is_new_and_a_nearly_new_one_is_bad() {
        let mut page = vec![0; SIZE];
        assert_eq!(judge(&page, 0, Lsn(1)), PageVerdict::New);
        page[5000] = 1;
        assert!(matches!(judge(&page, 0, Lsn(1)), PageVerdict::Bad { stored: 0, .. }));
    }

    #[test]
    fn a_page_written_at_or_after_the_start_is_not_judged_unless_it_fits() {
        let mut torn = page();
        torn[6000] ^= 1;
        assert_eq!(judge(&torn, 7, Lsn(0x300_0000)), PageVerdict::Newer);
        assert!(matches!(judge(&torn, 7, Lsn(0x300_0001)), PageVerdict::Bad { .. }));
        assert_eq!(judge(&page(), 7, Lsn(1)), PageVerdict::Good);
    }

    #[test]
    fn pages_of_every_size_are_summed_by_the_definition() {
        for size in [1024, 4096, 8192, 32_768] {
            let page: Vec<u8> = (0..size).map(|i: usize| (i * 31 + i / 251) as u8).collect();
            assert_eq!(checksum(&page, 123_456), slow(&page, 123_456), "{size}");
        }
    }
}
