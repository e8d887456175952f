//! Files of the write-ahead log: their names, and what their first page says they are.
//!
//! The name of a segment depends on the segment size, which `initdb` fixes for a cluster: 24 hexadecimal digits, eight
//! each for the timeline, the upper half of the position and the segment within those 4 GiB (`xlog_internal.h`).

use std::fmt;

use serde::{Deserialize, Serialize};

use super::lsn::{Lsn, Timeline};
pub use super::wal_page::{FIRST_PAGE_HEADER_BYTES, FirstPage, FirstPageError, check_first_page};

const MIB: u32 = 1024 * 1024;

/// The size of a cluster's log segments: a power of two from 1 MiB to 1 GiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "u32", try_from = "u32")]
pub struct WalSegmentSize(u32);

impl WalSegmentSize {
    /// What `initdb` chooses unless it is told otherwise.
    pub const DEFAULT: Self = Self(16 * MIB);

    /// Checks a size in bytes.
    ///
    /// # Errors
    /// If it is no power of two from 1 MiB to 1 GiB.
    pub fn new(bytes: u32) -> Result<Self, WalError> {
        if bytes.is_power_of_two() && (MIB..=1024 * MIB).contains(&bytes) {
            Ok(Self(bytes))
        } else {
            Err(WalError::SegmentSize(bytes))
        }
    }

    /// The size in bytes.
    pub fn bytes(self) -> u32 {
        self.0
    }

    /// How many segments share the middle eight digits of their names.
    fn per_log_id(self) -> u64 {
        0x1_0000_0000 / u64::from(self.0)
    }
}

impl From<WalSegmentSize> for u32 {
    fn from(size: WalSegmentSize) -> Self {
        size.0
    }
}

impl TryFrom<u32> for WalSegmentSize {
    type Error = WalError;

    fn try_from(bytes: u32) -> Result<Self, Self::Error> {
        Self::new(bytes)
    }
}

/// A segment's place in the log: its start divided by the segment size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SegmentNumber(pub u64);

impl SegmentNumber {
    /// The segment after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

/// The segment that holds the byte at `lsn`.
pub fn segment_of(lsn: Lsn, size: WalSegmentSize) -> SegmentNumber {
    SegmentNumber(lsn.0 / u64::from(size.0))
}

/// The segment that holds the last byte before `lsn`: the one needed to have the log up to there.
pub fn segment_before(lsn: Lsn, size: WalSegmentSize) -> SegmentNumber {
    segment_of(Lsn(lsn.0.saturating_sub(1)), size)
}

/// Where a segment begins.
pub fn start_lsn(number: SegmentNumber, size: WalSegmentSize) -> Lsn {
    Lsn(number.0.saturating_mul(u64::from(size.0)))
}

/// One segment of one timeline's log, in a cluster with a known segment size. Displayed as its file's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WalSegment {
    /// The timeline that wrote it.
    pub timeline: Timeline,
    /// Its place in the log.
    pub number: SegmentNumber,
    /// The cluster's segment size.
    pub size: WalSegmentSize,
}

impl WalSegment {
    /// The segment of `timeline` that holds the byte at `lsn`.
    pub fn at(timeline: Timeline, lsn: Lsn, size: WalSegmentSize) -> Self {
        Self { timeline, number: segment_of(lsn, size), size }
    }

    /// The position of its first byte.
    pub fn start(&self) -> Lsn {
        start_lsn(self.number, self.size)
    }

    /// The position behind its last byte.
    pub fn end(&self) -> Lsn {
        start_lsn(self.number.next(), self.size)
    }

    /// The next segment on the same timeline.
    #[must_use]
    pub fn next(&self) -> Self {
        Self { number: self.number.next(), ..*self }
    }

    fn parse(digits: &str, size: WalSegmentSize) -> Option<Self> {
        let (timeline, log_id, within) = segment_parts(digits)?;
        if u64::from(within) >= size.per_log_id() {
            return None;
        }
        let number = u64::from(log_id) * size.per_log_id() + u64::from(within);
        Some(Self { timeline, number: SegmentNumber(number), size })
    }
}

impl fmt::Display for WalSegment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (log_id, within) = (self.number.0 / self.size.per_log_id(), self.number.0 % self.size.per_log_id());
        write!(f, "{:08X}{log_id:08X}{within:08X}", self.timeline.0)
    }
}

/// The name of a file that `archive_command` may be asked to archive, understood. Displayed as that name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WalFileName {
    /// A complete segment.
    Segment(WalSegment),
    /// The last segment of a timeline that was left within it: `.partial`.
    Partial(WalSegment),
    /// A timeline's history: `.history`.
    History(Timeline),
    /// What a backup noted when it ended: `.backup`.
    BackupHistory {
        /// The segment in which the backup began.
        segment: WalSegment,
        /// Where in that segment.
        offset: u32,
    },
}

impl WalFileName {
    /// Understands a name, in a cluster with segments of `size`.
    ///
    /// # Errors
    /// If PostgreSQL gives no file of the log such a name.
    pub fn parse(name: &str, size: WalSegmentSize) -> Result<Self, WalError> {
        let error = || WalError::Name { name: name.to_owned(), size };
        let name = WalName::parse(name).map_err(|_| error())?;
        let segment = || WalSegment::parse(name.as_str().get(..24).unwrap_or_default(), size).ok_or_else(error);
        Ok(match name.kind() {
            WalNameKind::Segment => Self::Segment(segment()?),
            WalNameKind::Partial => Self::Partial(segment()?),
            WalNameKind::History => Self::History(name.timeline()),
            WalNameKind::BackupHistory => {
                let offset = name.as_str().get(25..33).and_then(hex8).ok_or_else(error)?;
                Self::BackupHistory { segment: segment()?, offset }
            }
        })
    }

    /// The timeline in the name.
    pub fn timeline(&self) -> Timeline {
        match self {
            Self::Segment(segment) | Self::Partial(segment) | Self::BackupHistory { segment, .. } => segment.timeline,
            Self::History(timeline) => *timeline,
        }
    }
}

impl fmt::Display for WalFileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Segment(segment) => write!(f, "{segment}"),
            Self::Partial(segment) => write!(f, "{segment}.partial"),
            Self::History(timeline) => write!(f, "{:08X}.history", timeline.0),
            Self::BackupHistory { segment, offset } => write!(f, "{segment}.{offset:08X}.backup"),
        }
    }
}

/// A well-formed name of a file of the log, where the segment size is not known (or does not matter).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct WalName(String);

/// What kind of file a [`WalName`] names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WalNameKind {
    /// A complete segment: 24 digits.
    Segment,
    /// 24 digits and `.partial`.
    Partial,
    /// 8 digits and `.history`.
    History,
    /// 24 digits, a point, 8 digits and `.backup`.
    BackupHistory,
}

impl WalName {
    /// Checks a name's form.
    ///
    /// # Errors
    /// If PostgreSQL gives no file of the log such a name, whatever the segment size.
    pub fn parse(name: &str) -> Result<Self, WalError> {
        kind_of(name).map(|_| Self(name.to_owned())).ok_or_else(|| WalError::NotOfTheLog(name.to_owned()))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// What it names.
    pub fn kind(&self) -> WalNameKind {
        kind_of(&self.0).unwrap_or(WalNameKind::Segment)
    }

    /// The timeline in the name.
    pub fn timeline(&self) -> Timeline {
        Timeline(self.0.get(..8).and_then(hex8).unwrap_or_default())
    }
}

impl fmt::Display for WalName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<WalName> for String {
    fn from(name: WalName) -> Self {
        name.0
    }
}

impl TryFrom<String> for WalName {
    type Error = WalError;

    fn try_from(name: String) -> Result<Self, Self::Error> {
        Self::parse(&name)
    }
}

/// What is wrong with a file of the log or its name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WalError {
    /// No cluster has segments of that size.
    #[error("{0} bytes is no size for log segments: it must be a power of two from 1 MiB to 1 GiB")]
    SegmentSize(u32),
    /// No file of the log is named so, whatever the segment size.
    #[error("{0:?} is not the name of a file of the write-ahead log")]
    NotOfTheLog(String),
    /// No file of this cluster's log is named so.
    #[error("{name:?} is not the name of a file of the write-ahead log with segments of {} bytes", size.bytes())]
    Name {
        /// The name.
        name: String,
        /// The cluster's segment size.
        size: WalSegmentSize,
    },
}

fn kind_of(name: &str) -> Option<WalNameKind> {
    let (digits, rest) = name.split_once('.').map_or((name, None), |(digits, rest)| (digits, Some(rest)));
    match rest {
        Some("history") => (hex8(digits)? != 0).then_some(WalNameKind::History),
        Some("partial") => segment_parts(digits).map(|_| WalNameKind::Partial),
        Some(rest) => {
            segment_parts(digits)?;
            hex8(rest.strip_suffix(".backup")?)?;
            Some(WalNameKind::BackupHistory)
        }
        None => segment_parts(digits).map(|_| WalNameKind::Segment),
    }
}

/// The three numbers of a segment's name. Timeline 0 never exists.
fn segment_parts(digits: &str) -> Option<(Timeline, u32, u32)> {
    if digits.len() != 24 {
        return None;
    }
    let part = |from: usize| digits.get(from..from + 8).and_then(hex8);
    let timeline = part(0)?;
    (timeline != 0).then_some((Timeline(timeline), part(8)?, part(16)?))
}

/// Exactly eight hexadecimal digits, upper case as PostgreSQL writes them.
fn hex8(digits: &str) -> Option<u32> {
    let plain = digits.len() == 8 && digits.bytes().all(|b| b.is_ascii_digit() || (b'A'..=b'F').contains(&b));
    if plain { u32::from_str_radix(digits, 16).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size(mib: u32) -> WalSegmentSize {
        WalSegmentSize::new(mib * MIB).unwrap()
    }

    // What `pg_walfile_name('16/B374D848')` says in clusters made with each --wal-segsize.
    #[rstest::rstest]
    #[case(1, "000000010000001600000B37")]
    #[case(16, "0000000100000016000000B3")]
    #[case(64, "00000001000000160000002C")]
    #[case(1024, "000000010000001600000002")]
    fn a_segments_name_depends_on_the_segment_size(#[case] mib: u32, #[case] name: &str) {
        let segment = WalSegment::at(Timeline(1), Lsn(0x16_B374_D848), size(mib));
        assert_eq!(segment.to_string(), name);
        assert_eq!(WalFileName::parse(name, size(mib)), Ok(WalFileName::Segment(segment)));
        assert!(segment.start() <= Lsn(0x16_B374_D848) && Lsn(0x16_B374_D848) < segment.end());
    }

    #[test]
    fn the_segment_after_the_last_of_a_log_id_is_the_first_of_the_next() {
        let last = WalSegment::at(Timeline(2), Lsn(0x1_FFFF_FFFF), size(16));
        assert_eq!(last.to_string(), "0000000200000001000000FF");
        assert_eq!(last.next().to_string(), "000000020000000200000000");
        assert_eq!(last.next().start(), Lsn(0x2_0000_0000));
    }

    #[test]
    fn a_position_at_a_boundary_needs_only_the_segment_before_it() {
        assert_eq!(segment_of(Lsn(0x300_0000), size(16)), SegmentNumber(3));
        assert_eq!(segment_before(Lsn(0x300_0000), size(16)), SegmentNumber(2));
        assert_eq!(segment_before(Lsn(0x300_0001), size(16)), SegmentNumber(3));
    }

    #[rstest::rstest]
    #[case("00000002.history", WalNameKind::History)]
    #[case("000000010000001600000003", WalNameKind::Segment)]
    #[case("000000010000001600000003.partial", WalNameKind::Partial)]
    #[case("000000010000001600000003.0000002A.backup", WalNameKind::BackupHistory)]
    fn every_kind_of_name_is_written_as_it_was_read(#[case] text: &str, #[case] kind: WalNameKind) {
        assert_eq!(WalFileName::parse(text, size(16)).unwrap().to_string(), text);
        let name = WalName::parse(text).unwrap();
        assert_eq!((name.kind(), name.to_string()), (kind, text.to_owned()));
        assert_eq!(name.timeline(), WalFileName::parse(text, size(16)).unwrap().timeline());
    }

    #[rstest::rstest]
    #[case("")]
    #[case("00000000.history")]
    #[case("000000000000001600000003")]
    #[case("00000001000000160000000")]
    #[case("0000000100000016000000b3")]
    #[case("000000010000001600000003.gz")]
    #[case("000000010000001600000003.0000002A.backup.gz")]
    #[case("00000001000000160000000€")]
    #[case("../0000010000001600000003")]
    fn other_names_are_refused(#[case] name: &str) {
        assert_eq!(WalName::parse(name), Err(WalError::NotOfTheLog(name.into())));
        assert_eq!(WalFileName::parse(name, size(16)), Err(WalError::Name { name: name.into(), size: size(16) }));
    }

    #[test]
    fn a_name_of_a_cluster_with_smaller_segments_is_refused() {
        let error = WalFileName::parse("000000010000001600000B37", size(16)).unwrap_err();
        assert!(error.to_string().ends_with("with segments of 16777216 bytes"), "{error}");
    }

    #[test]
    fn only_powers_of_two_from_one_mib_to_one_gib_are_segment_sizes() {
        assert_eq!(WalSegmentSize::new(MIB / 2), Err(WalError::SegmentSize(524_288)));
        assert_eq!(WalSegmentSize::new(3 * MIB), Err(WalError::SegmentSize(3 * MIB)));
        assert_eq!(WalSegmentSize::new(2048 * MIB), Err(WalError::SegmentSize(2048 * MIB)));
        assert_eq!(serde_json::to_string(&size(64)).unwrap(), "67108864");
        assert!(serde_json::from_str::<WalSegmentSize>("5").is_err());
    }
}
