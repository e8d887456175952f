//! The first page of a log segment, which says whose it is.
//!
//! Archiving trusts no name: a segment is what its first page says (`XLogLongPageHeaderData` in `xlog_internal.h`).

use super::lsn::{Lsn, Timeline};
use super::wal::{WalSegment, WalSegmentSize};

/// How many bytes of a segment [`check_first_page`] needs.
pub const FIRST_PAGE_HEADER_BYTES: usize = 40;

/// `XLP_LONG_HEADER`: the page is the first of its file and carries the cluster's identity.
const LONG_HEADER: u16 = 0x0002;

/// What the first page of a segment says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstPage {
    /// The version of the log's format: `0xD110` for PostgreSQL 15, `0xD113` for 16, `0xD116` for 17, `0xD118` for 18.
    pub magic: u16,
    /// The cluster.
    pub system_identifier: u64,
    /// The timeline on which the page was written. In the first segment of a timeline this is an ancestor: the server
    /// copies the beginning of that segment from the timeline it leaves.
    pub timeline: Timeline,
    /// The page's own position, which is the segment's start.
    pub page_address: Lsn,
    /// The cluster's segment size.
    pub segment_size: WalSegmentSize,
    /// The size of a page of the log, in bytes.
    pub block_size: u32,
}

impl FirstPage {
    /// Whether this page begins `segment` of the cluster `system_identifier`.
    ///
    /// # Errors
    /// If the segment is another cluster's, or is not what its name says.
    pub fn belongs_to(&self, system_identifier: u64, segment: &WalSegment) -> Result<(), FirstPageError> {
        if self.system_identifier != system_identifier {
            return Err(FirstPageError::Foreign {
                segment: *segment,
                found: self.system_identifier,
                expected: system_identifier,
            });
        }
        let misnamed = self.segment_size != segment.size
            || self.page_address != segment.start()
            || self.timeline > segment.timeline;
        if misnamed {
            return Err(FirstPageError::Misnamed {
                segment: *segment,
                found: WalSegment::at(self.timeline, self.page_address, self.segment_size),
            });
        }
        Ok(())
    }
}

/// What is wrong with the first page of a segment.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FirstPageError {
    /// The file ends within the header.
    #[error("the log segment is cut off: it has {0} bytes, its header alone has 40")]
    Short(usize),
    /// Not a page of the log.
    #[error("this is no log segment: it begins with {0:04X}, a page of PostgreSQL's log with D1xx")]
    Magic(u16),
    /// A page of the log, but from the middle of a segment.
    #[error("the log segment does not begin with its identity: its first page has no long header")]
    NoIdentity,
    /// The identity cannot be right.
    #[error("the log segment is damaged: its first page says {0}")]
    Damaged(String),
    /// Another cluster's.
    #[error("log segment {segment} is of another cluster: its system identifier is {found}, expected {expected}")]
    Foreign {
        /// What its name says.
        segment: WalSegment,
        /// The system identifier in it.
        found: u64,
        /// The system identifier it should have.
        expected: u64,
    },
    /// The content is another segment's.
    #[error("log segment {segment} is not what its name says: its first page is that of {found} ({} bytes)", found.size.bytes())]
    Misnamed {
        /// What its name says.
        segment: WalSegment,
        /// What its first page says.
        found: WalSegment,
    },
}

/// Reads what the first bytes of a segment (at least [`FIRST_PAGE_HEADER_BYTES`]) say about it.
///
/// # Errors
/// If this is not the beginning of a segment.
pub fn check_first_page(bytes: &[u8]) -> Result<FirstPage, FirstPageError> {
    let header = bytes.first_chunk::<FIRST_PAGE_HEADER_BYTES>().ok_or(FirstPageError::Short(bytes.len()))?;
    let magic = u16::from_le_bytes(field(header, 0));
    if magic >> 8 != 0xD1 {
        return Err(FirstPageError::Magic(magic));
    }
    if u16::from_le_bytes(field(header, 2)) & LONG_HEADER == 0 {
        return Err(FirstPageError::NoIdentity);
    }
    let segment_size = WalSegmentSize::new(u32::from_le_bytes(field(header, 32)))
        .map_err(|error| FirstPageError::Damaged(error.to_string()))?;
    let timeline = Timeline(u32::from_le_bytes(field(header, 4)));
    if timeline == Timeline(0) {
        return Err(FirstPageError::Damaged("timeline 0, which never exists".into()));
    }
    let page_address = Lsn(u64::from_le_bytes(field(header, 8)));
    if !page_address.0.is_multiple_of(u64::from(segment_size.bytes())) {
        return Err(FirstPageError::Damaged(format!("position {page_address}, which is no segment's start")));
    }
    Ok(FirstPage {
        magic,
        system_identifier: u64::from_le_bytes(field(header, 24)),
        timeline,
        page_address,
        segment_size,
        block_size: u32::from_le_bytes(field(header, 36)),
    })
}

/// `N` bytes from `at`; all callers stay within the header, so the zeros are never seen.
fn field<const N: usize>(header: &[u8; FIRST_PAGE_HEADER_BYTES], at: usize) -> [u8; N] {
    header.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
}

#[cfg(test)]
mod tests {
    use super::*;

    // The first 40 bytes of 000000010000000000000003 of a PostgreSQL 15 cluster.
    const HEADER: [u8; 40] = [
        0x10, 0xD1, 0x06, 0x00, 0x01, 0, 0, 0, 0, 0, 0, 0x03, 0, 0, 0, 0, 0x2A, 0, 0, 0, 0, 0, 0, 0, 0x15, 0x81, 0xE9,
        0x7D, 0xEF, 0xCD, 0xAB, 0x68, 0, 0, 0, 0x01, 0, 0x20, 0, 0,
    ];
    const SYSTEM: u64 = 0x68AB_CDEF_7DE9_8115;

    fn third(timeline: u32) -> WalSegment {
        WalSegment::at(Timeline(timeline), Lsn(0x300_0000), WalSegmentSize::DEFAULT)
    }

    fn with(at: usize, byte: u8) -> [u8; 40] {
        let mut header = HEADER;
        header[at] = byte;
        header
    }

    #[test]
    fn the_first_page_says_whose_the_segment_is() {
        let page = check_first_page(&HEADER).unwrap();
        let expected = FirstPage {
            magic: 0xD110,
            system_identifier: SYSTEM,
            timeline: Timeline(1),
            page_address: Lsn(0x300_0000),
            segment_size: WalSegmentSize::DEFAULT,
            block_size: 8192,
        };
        assert_eq!(page, expected);
        assert_eq!(page.belongs_to(SYSTEM, &third(1)), Ok(()));
    }

    #[test]
    fn the_first_segment_of_a_timeline_begins_with_a_page_of_its_parent() {
        assert_eq!(check_first_page(&HEADER).unwrap().belongs_to(SYSTEM, &third(2)), Ok(()));
        let newer = check_first_page(&with(4, 5)).unwrap();
        let error = newer.belongs_to(SYSTEM, &third(2)).unwrap_err();
        assert_eq!(error, FirstPageError::Misnamed { segment: third(2), found: third(5) });
    }

    #[test]
    fn a_segment_of_another_cluster_is_refused_with_both_identifiers() {
        let error = check_first_page(&HEADER).unwrap().belongs_to(7, &third(1)).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "log segment 000000010000000000000003 is of another cluster: its system identifier is {SYSTEM}, \
                 expected 7"
            )
        );
    }

    #[test]
    fn a_misnamed_segment_is_refused_with_both_names() {
        let error = check_first_page(&HEADER).unwrap().belongs_to(SYSTEM, &third(1).next()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "log segment 000000010000000000000004 is not what its name says: its first page is that of \
             000000010000000000000003 (16777216 bytes)"
        );
    }

    #[rstest::rstest]
    #[case(1, 0xD0, "this is no log segment: it begins with D010, a page of PostgreSQL's log with D1xx")]
    #[case(2, 0, "the log segment does not begin with its identity: its first page has no long header")]
    #[case(4, 0, "the log segment is damaged: its first page says timeline 0, which never exists")]
    #[case(9, 0x20, "the log segment is damaged: its first page says position 0/3002000, which is no segment's start")]
    #[case(
        34,
        1,
        "the log segment is damaged: its first page says 16842752 bytes is no size for log segments: it must be a \
         power of two from 1 MiB to 1 GiB"
    )]
    fn damage_is_named(#[case] at: usize, #[case] byte: u8, #[case] reason: &str) {
        assert_eq!(check_first_page(&with(at, byte)).unwrap_err().to_string(), reason);
    }

    #[test]
    fn a_cut_off_file_is_refused() {
        assert_eq!(check_first_page(&HEADER[..39]), Err(FirstPageError::Short(39)));
    }
}
