//! Values of arguments that are more than text: durations, moments, positions, compression.

use std::path::PathBuf;

use jiff::{SignedDuration, Timestamp};

use crate::engine::postgres::lsn::Lsn;
use crate::repository::writer::Compression;

/// A duration: whole numbers with units, largest first or not, such as `7d`, `12h`, `1h30m`, `5s`.
pub(super) fn duration(text: &str) -> Result<SignedDuration, String> {
    let refused =
        || format!("{text:?} is not a duration: write a number and a unit (w, d, h, m or s), such as 7d, 12h or 1h30m");
    let too_long = || format!("{text:?} is too long a time");
    let mut total = SignedDuration::ZERO;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(refused)?;
        let (number, tail) = rest.split_at(digits);
        let unit = tail.chars().next().ok_or_else(refused)?;
        let seconds: i64 = match unit {
            's' => 1,
            'm' => 60,
            'h' => 3600,
            'd' => 86400,
            'w' => 7 * 86400,
            _ => return Err(refused()),
        };
        if number.is_empty() {
            return Err(refused());
        }
        let number: i64 = number.parse().map_err(|_| too_long())?;
        let part = number.checked_mul(seconds).map(SignedDuration::from_secs).ok_or_else(too_long)?;
        total = total.checked_add(part).ok_or_else(too_long)?;
        rest = &tail[unit.len_utf8()..];
    }
    match () {
        () if text.is_empty() => Err(refused()),
        // Times are counted from now, and a calendar ends.
        () if total > SignedDuration::from_hours(24 * 366 * 1000) => Err(too_long()),
        () => Ok(total),
    }
}

/// A duration that is not zero.
pub(super) fn some_time(text: &str) -> Result<SignedDuration, String> {
    match duration(text)? {
        zero if zero.is_zero() => Err("it must be longer than nothing".to_owned()),
        some => Ok(some),
    }
}

/// A moment, which must say its zone: without one, whoever wrote it and whoever reads it may mean different moments.
pub(super) fn moment(text: &str) -> Result<Timestamp, String> {
    if let Ok(time) = text.parse::<Timestamp>() {
        return Ok(time);
    }
    if let Ok(local) = text.parse::<jiff::civil::DateTime>() {
        let example = local.strftime("%Y-%m-%dT%H:%M:%S");
        return Err(format!("{text:?} does not say in which zone: write {example}Z for UTC, or {example}+09:00"));
    }
    Err(format!("{text:?} is not a time: write it as 2026-01-31T23:59:59Z or 2026-01-31T23:59:59.5+09:00"))
}

/// A log position, as the engine writes it.
pub(super) fn position(text: &str) -> Result<String, String> {
    lsn(text).map(|lsn| lsn.to_string())
}

/// A log position of PostgreSQL's.
pub(super) fn lsn(text: &str) -> Result<Lsn, String> {
    match text.parse::<Lsn>() {
        Ok(lsn) if lsn.is_valid() => Ok(lsn),
        Ok(_) => Err(format!("{text:?} is no position in any log: the first is at 0/1000000 or later")),
        Err(error) => Err(error.to_string()),
    }
}

/// The name of a restore point.
pub(super) fn restore_point(text: &str) -> Result<String, String> {
    // `pg_create_restore_point` takes up to 63 bytes.
    if text.is_empty() || text.len() >= 64 || text.contains(['\n', '\0']) {
        return Err("the name of a restore point has 1 to 63 bytes".to_owned());
    }
    Ok(text.to_owned())
}

/// `auto` or a zstd level.
pub(super) fn compression(text: &str) -> Result<Compression, String> {
    match (text, text.parse()) {
        ("auto", _) => Ok(Compression::Auto),
        (_, Ok(level @ 1..=19)) => Ok(Compression::Level(level)),
        _ => Err("it is auto or a zstd level from 1 to 19".to_owned()),
    }
}

/// Where a tablespace was, and where it is to go.
pub(super) fn tablespace(text: &str) -> Result<(PathBuf, PathBuf), String> {
    let refused = || "it is two absolute paths, as in /old/place=/new/place".to_owned();
    let (old, new) = text.split_once('=').ok_or_else(refused)?;
    if !old.starts_with('/') || !new.starts_with('/') {
        return Err(refused());
    }
    Ok((old.into(), new.into()))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("7d", 7 * 86400)]
    #[case("12h", 12 * 3600)]
    #[case("30m", 1800)]
    #[case("5s", 5)]
    #[case("2w", 14 * 86400)]
    #[case("1h30m", 5400)]
    #[case("0s", 0)]
    fn a_duration_is_numbers_with_units(#[case] text: &str, #[case] seconds: i64) {
        assert_eq!(duration(text), Ok(SignedDuration::from_secs(seconds)));
    }

    #[rstest]
    #[case("")]
    #[case("7")]
    #[case("d")]
    #[case("-7d")]
    #[case("7 d")]
    #[case("1.5h")]
    #[case("7é")]
    #[case("7days")]
    fn other_text_is_not_a_duration(#[case] text: &str) {
        let reason = duration(text).unwrap_err();
        assert!(reason.contains("is not a duration") && reason.contains("such as 7d"), "{reason}");
    }

    #[rstest]
    #[case("99999999999999999999s")]
    #[case("9999999999999999w")]
    #[case("2000000w")]
    fn no_duration_outlives_the_calendar(#[case] text: &str) {
        assert_eq!(duration(text), Err(format!("{text:?} is too long a time")));
    }

    #[test]
    fn an_interval_is_not_zero() {
        assert_eq!(some_time("0s"), Err("it must be longer than nothing".to_owned()));
        assert_eq!(some_time("5s"), Ok(SignedDuration::from_secs(5)));
    }

    #[rstest]
    #[case("2026-01-31T14:59:59Z")]
    #[case("2026-01-31T23:59:59+09:00")]
    #[case("2026-01-31 23:59:59+09")]
    #[case("2026-01-31T23:59:59.000000+09:00")]
    #[case("2026-01-31T23:59:59+09:00[Asia/Seoul]")]
    fn all_zoned_forms_of_a_moment_are_the_same(#[case] text: &str) {
        assert_eq!(moment(text).unwrap().to_string(), "2026-01-31T14:59:59Z");
    }

    #[rstest]
    #[case("2026-01-31T23:59:59")]
    #[case("2026-01-31 23:59:59")]
    fn a_moment_without_a_zone_is_refused_with_how_to_write_it(#[case] text: &str) {
        assert_eq!(
            moment(text).unwrap_err(),
            format!(
                "{text:?} does not say in which zone: write 2026-01-31T23:59:59Z for UTC, or 2026-01-31T23:59:59+09:00"
            )
        );
    }

    #[test]
    fn other_text_is_not_a_moment() {
        let reason = moment("yesterday").unwrap_err();
        assert_eq!(
            reason,
            "\"yesterday\" is not a time: write it as 2026-01-31T23:59:59Z or 2026-01-31T23:59:59.5+09:00"
        );
    }

    #[test]
    fn a_position_is_checked_and_written_as_the_engine_does() {
        assert_eq!(position("16/b374d848"), Ok("16/B374D848".to_owned()));
        assert!(position("16").unwrap_err().contains("is not a log position"));
        assert!(position("0/0").unwrap_err().contains("no position in any log"));
    }

    #[rstest]
    #[case("auto", Some(Compression::Auto))]
    #[case("1", Some(Compression::Level(1)))]
    #[case("19", Some(Compression::Level(19)))]
    #[case("0", None)]
    #[case("20", None)]
    #[case("fast", None)]
    fn compression_is_auto_or_a_level(#[case] text: &str, #[case] wanted: Option<Compression>) {
        assert_eq!(compression(text).ok(), wanted);
    }

    #[test]
    fn a_tablespace_moves_between_absolute_paths() {
        assert_eq!(tablespace("/a=/b=c"), Ok(("/a".into(), "/b=c".into())));
        for text in ["/a", "a=/b", "/a=b"] {
            assert_eq!(tablespace(text), Err("it is two absolute paths, as in /old/place=/new/place".to_owned()));
        }
    }
}
