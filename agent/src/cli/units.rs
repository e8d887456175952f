//! Bytes, rates, durations and times, as people read them.

use std::fmt;

use jiff::Timestamp;

/// So many bytes: `1.50 GiB`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bytes(pub(super) u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        if self.0 < 1024 {
            return f.pad(&format!("{} B", self.0));
        }
        let mut value = self.0 as f64 / 1024.0;
        let mut unit = 0;
        // What would be rounded to 1024 is one of the next unit.
        while value >= 1023.95 && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        let decimals = if value < 9.995 { 2 } else { usize::from(value < 99.95) };
        f.pad(&format!("{value:.decimals$} {}", UNITS[unit]))
    }
}

/// Bytes in so many seconds, as a rate: `125 MiB/s`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rate(pub(super) u64, pub(super) f64);

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Nothing is measured in less than a millisecond.
        let per_second = self.0 as f64 / self.1.max(0.001);
        f.pad(&format!("{}/s", Bytes(per_second as u64)))
    }
}

/// So many seconds: `850 ms`, `12.3 s`, `3 min 05 s`, `1 h 02 min`, `3 d 04 h`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seconds(pub(super) f64);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.max(0.0);
        let whole = seconds.round() as u64;
        f.pad(&match () {
            () if seconds < 0.9995 => format!("{:.0} ms", seconds * 1000.0),
            () if seconds < 59.95 => format!("{seconds:.1} s"),
            () if whole < 3600 => format!("{} min {:02} s", whole / 60, whole % 60),
            () if whole < 86400 => format!("{} h {:02} min", whole / 3600, whole % 3600 / 60),
            () => format!("{} d {:02} h", whole / 86400, whole % 86400 / 3600),
        })
    }
}

/// How long ago something was, in one unit: `3 h ago`.
pub(super) fn ago(time: Timestamp, now: Timestamp) -> String {
    match now.duration_since(time).as_secs() {
        ..0 => "ahead of the clock".to_owned(),
        seconds @ 0..60 => format!("{seconds} s ago"),
        seconds @ 60..3600 => format!("{} min ago", seconds / 60),
        seconds @ 3600..172_800 => format!("{} h ago", seconds / 3600),
        seconds => format!("{} d ago", seconds / 86400),
    }
}

/// A moment, as `--target-time` takes it too; parts of a second are cut.
pub(super) fn moment(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// A share, as a percentage that never says 100 or 0 where it is not.
pub(super) fn share(part: u64, whole: u64) -> String {
    if whole == 0 || part == 0 {
        return "0 %".to_owned();
    }
    let percent = part as f64 * 100.0 / whole as f64;
    match percent {
        _ if part == whole => "100 %".to_owned(),
        ..0.05 => "under 0.1 %".to_owned(),
        99.9.. => format!("{:.1} %", percent.min(99.9)),
        ..9.95 => format!("{percent:.1} %"),
        _ => format!("{percent:.0} %"),
    }
}

/// A number with its noun: `1 file`, `1,234 files`.
pub(super) fn count(number: u64, noun: &str) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3 + noun.len() + 2);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    let plural = if number == 1 { "" } else { "s" };
    format!("{text} {noun}{plural}")
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(0, "0 B")]
    #[case(1023, "1023 B")]
    #[case(1024, "1.00 KiB")]
    #[case(16 << 20, "16.0 MiB")]
    #[case((1 << 30) - 1, "1.00 GiB")]
    #[case(500 << 20, "500 MiB")]
    #[case(1023 << 20, "1023 MiB")]
    #[case(u64::MAX, "16.0 EiB")]
    fn sizes(#[case] bytes: u64, #[case] text: &str) {
        assert_eq!(Bytes(bytes).to_string(), text);
    }

    #[rstest]
    #[case(0.0004, "0 ms")]
    #[case(0.85, "850 ms")]
    #[case(0.9997, "1.0 s")]
    #[case(12.34, "12.3 s")]
    #[case(59.96, "1 min 00 s")]
    #[case(185.0, "3 min 05 s")]
    #[case(3725.0, "1 h 02 min")]
    #[case(273_600.0, "3 d 04 h")]
    fn durations(#[case] seconds: f64, #[case] text: &str) {
        assert_eq!(Seconds(seconds).to_string(), text);
    }

    #[test]
    fn rates() {
        assert_eq!(Rate(1 << 30, 2.0).to_string(), "512 MiB/s");
        assert_eq!(Rate(1024, 0.0).to_string(), "1000 KiB/s");
    }

    #[rstest]
    #[case(0, "0 s ago")]
    #[case(59, "59 s ago")]
    #[case(60, "1 min ago")]
    #[case(86400, "24 h ago")]
    #[case(172_800, "2 d ago")]
    #[case(-1, "ahead of the clock")]
    fn ages(#[case] seconds: i64, #[case] text: &str) {
        let then = Timestamp::from_second(1_700_000_000).unwrap();
        let now = Timestamp::from_second(1_700_000_000 + seconds).unwrap();
        assert_eq!(ago(then, now), text);
    }

    #[rstest]
    #[case(0, 0, "0 %")]
    #[case(0, 5, "0 %")]
    #[case(5, 5, "100 %")]
    #[case(1, 1_000_000, "under 0.1 %")]
    #[case(999_999, 1_000_000, "99.9 %")]
    #[case(58, 1000, "5.8 %")]
    #[case(1, 2, "50 %")]
    fn shares(#[case] part: u64, #[case] whole: u64, #[case] text: &str) {
        assert_eq!(share(part, whole), text);
    }

    #[test]
    fn counts() {
        assert_eq!(count(1, "file"), "1 file");
        assert_eq!(count(0, "file"), "0 files");
        assert_eq!(count(1_234_567, "page"), "1,234,567 pages");
    }
}
