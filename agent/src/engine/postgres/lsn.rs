//! Positions in the write-ahead log, and the timelines they belong to.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A position in the write-ahead log: a byte offset from the log's beginning.
///
/// Written as PostgreSQL does, `16/B374D848`: the upper and the lower 32 bits in hexadecimal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Lsn(pub u64);

impl Lsn {
    /// The position that PostgreSQL calls invalid: no record starts there.
    pub const INVALID: Self = Self(0);

    /// Whether this is a position at all.
    pub fn is_valid(self) -> bool {
        self.0 != 0
    }

    /// How many bytes of log lie between `earlier` and this position; zero if `earlier` is not earlier.
    pub fn bytes_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xFFFF_FFFF)
    }
}

/// What is wrong with a text that should be a log position or a timeline.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParsePositionError {
    /// Not two hexadecimal numbers with a slash between them.
    #[error("{0:?} is not a log position: PostgreSQL writes one as two hexadecimal numbers, for example 16/B374D848")]
    Lsn(String),
    /// Not a positive decimal number.
    #[error("{0:?} is not a timeline: it must be a whole number from 1 to 4294967295")]
    Timeline(String),
}

impl FromStr for Lsn {
    type Err = ParsePositionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ParsePositionError::Lsn(text.to_owned());
        let (high, low) = text.split_once('/').ok_or_else(error)?;
        let high = parse_hex32(high).ok_or_else(error)?;
        let low = parse_hex32(low).ok_or_else(error)?;
        Ok(Self((u64::from(high) << 32) | u64::from(low)))
    }
}

impl From<Lsn> for String {
    fn from(lsn: Lsn) -> Self {
        lsn.to_string()
    }
}

impl TryFrom<String> for Lsn {
    type Error = ParsePositionError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

/// A timeline: one history of a cluster, begun by `initdb` (1) or by a promotion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Timeline(pub u32);

impl Timeline {
    /// As in the names of log files: eight hexadecimal digits, upper case.
    pub fn hex(self) -> String {
        format!("{:08X}", self.0)
    }
}

impl fmt::Display for Timeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl FromStr for Timeline {
    type Err = ParsePositionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.parse() {
            Ok(number) if number > 0 => Ok(Self(number)),
            _ => Err(ParsePositionError::Timeline(text.to_owned())),
        }
    }
}

/// One to eight hexadecimal digits and nothing else (`from_str_radix` would take a sign too).
fn parse_hex32(digits: &str) -> Option<u32> {
    let plain = (1..=8).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_hexdigit());
    if plain { u32::from_str_radix(digits, 16).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_written_and_read_as_postgresql_does() {
        let lsn = Lsn(0x16_B374_D848);
        assert_eq!(lsn.to_string(), "16/B374D848");
        assert_eq!("16/B374D848".parse(), Ok(lsn));
        assert_eq!("16/b374d848".parse(), Ok(lsn));
        assert_eq!(Lsn(0x28).to_string(), "0/28");
        assert_eq!("FFFFFFFF/FFFFFFFF".parse(), Ok(Lsn(u64::MAX)));
    }

    #[test]
    fn positions_are_ordered_by_value_not_by_text() {
        let (earlier, later) = (Lsn(0x9_0000_0000), Lsn(0x10_0000_0000));
        assert!(earlier < later && earlier.to_string() > later.to_string());
        assert_eq!(later.bytes_since(earlier), 0x7_0000_0000);
        assert_eq!(earlier.bytes_since(later), 0);
    }

    #[rstest::rstest]
    #[case("")]
    #[case("16")]
    #[case("16/")]
    #[case("/16")]
    #[case("16/B374D848/1")]
    #[case("16/+374D848")]
    #[case("16/B374D8480")]
    #[case("g/0")]
    #[case(" 16/0")]
    fn other_text_is_not_a_position(#[case] text: &str) {
        assert_eq!(text.parse::<Lsn>(), Err(ParsePositionError::Lsn(text.to_owned())));
    }

    #[test]
    fn json_has_the_position_as_text_and_the_timeline_as_number() {
        let json = serde_json::to_string(&(Lsn(0x16_B374_D848), Timeline(12))).unwrap();
        assert_eq!(json, r#"["16/B374D848",12]"#);
        assert_eq!(serde_json::from_str::<(Lsn, Timeline)>(&json).unwrap(), (Lsn(0x16_B374_D848), Timeline(12)));
        let error = serde_json::from_str::<Lsn>(r#""nonsense""#).unwrap_err().to_string();
        assert!(error.contains(r#""nonsense" is not a log position"#), "{error}");
    }

    #[test]
    fn a_timeline_is_decimal_for_people_and_hexadecimal_in_names() {
        assert_eq!(Timeline(26).to_string(), "26");
        assert_eq!(Timeline(26).hex(), "0000001A");
        assert_eq!("26".parse(), Ok(Timeline(26)));
        assert_eq!("0".parse::<Timeline>(), Err(ParsePositionError::Timeline("0".into())));
    }
}
