//! What PostgreSQL backups and their log are good for, from their records alone.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde_json::Value;

use super::control::CONTROL_FILE;
use super::history::History;
use super::lay_down;
use super::lsn::{Lsn, Timeline};
use super::record::{PostgresRecord, log_name, segment_name, timeline_of_branch};
use super::wal::{SegmentNumber, WalFileName, WalSegment, WalSegmentSize, segment_of};
use crate::engine::{
    Choice, Choose, Copies, EngineResult, Examine, Examined, Laid, LayDown, LogStock, Reached, Window,
};
use crate::logs::{LogName, LogNeeds};

/// PostgreSQL's [`Copies`].
#[derive(Debug, Clone, Copy)]
pub struct PostgresCopies;

impl Copies for PostgresCopies {
    fn log_needs(&self, kept: &[(Value, bool)]) -> EngineResult<Box<dyn LogNeeds>> {
        let mut needs = Needs::default();
        for (record, all_after) in kept {
            let record = PostgresRecord::parse(record)?;
            let (first, last) = record.segments();
            needs.size = Some(record.wal_segment_size);
            if *all_after {
                needs.from = Some(needs.from.map_or(first, |from| from.min(first)));
            }
            needs.stretches.push((first, last));
        }
        Ok(Box::new(needs))
    }

    fn windows(&self, backups: &[(String, Value)], stock: &LogStock) -> EngineResult<Vec<Window>> {
        let mut windows: Vec<Window> = Vec::new();
        for (name, record) in backups {
            let record = PostgresRecord::parse(record)?;
            let stored = Stored::new(stock, record.wal_segment_size);
            let window = stored.window(name, &record, stock);
            // A backup within a window that reaches as far adds nothing to it but a nearer start.
            match windows.iter_mut().find(|earlier| {
                (&earlier.until_position, &earlier.branch, &earlier.hole)
                    == (&window.until_position, &window.branch, &window.hole)
            }) {
                Some(earlier) => earlier.until_time = earlier.until_time.max(window.until_time),
                None => windows.push(window),
            }
        }
        Ok(windows)
    }

    fn log_of(&self, record: &Value) -> EngineResult<Vec<(LogName, u64)>> {
        let record = PostgresRecord::parse(record)?;
        let bytes = |segment: &WalSegment| record.stop_lsn.min(segment.end()).bytes_since(segment.start());
        Ok(record.needed_segments().map(|segment| (segment_name(&segment), bytes(&segment))).collect())
    }

    fn choose(&self, choose: &Choose<'_>) -> EngineResult<Choice> {
        super::choose::choose(choose)
    }

    fn last_file(&self) -> &'static str {
        CONTROL_FILE
    }

    fn links(&self, record: &Value, moved: &[(PathBuf, PathBuf)]) -> EngineResult<Vec<(String, PathBuf)>> {
        lay_down::links(&PostgresRecord::parse(record)?, moved)
    }

    fn check_target(&self, data_directory: &Path, system_id: &str) -> EngineResult<()> {
        lay_down::check_not_running(data_directory)?;
        lay_down::check_same_system(data_directory, system_id)
    }

    fn lay_down(&self, copy: &LayDown<'_>) -> EngineResult<Laid> {
        lay_down::lay_down(copy)
    }

    fn recover(&self, copy: &LayDown<'_>, bin_directory: Option<&Path>) -> EngineResult<Reached> {
        super::recover::recover(copy, bin_directory)
    }

    fn examine(&self, copy: &LayDown<'_>, examine: &Examine<'_>) -> EngineResult<Examined> {
        super::examine::examine(copy, examine)
    }
}

#[derive(Debug, Default)]
struct Needs {
    size: Option<WalSegmentSize>,
    from: Option<SegmentNumber>,
    stretches: Vec<(SegmentNumber, SegmentNumber)>,
}

impl LogNeeds for Needs {
    fn is_needed(&self, file: &LogName) -> bool {
        let Some(size) = self.size else {
            return true;
        };
        match WalFileName::parse(&file.name, size) {
            Ok(
                WalFileName::Segment(segment)
                | WalFileName::Partial(segment)
                | WalFileName::BackupHistory { segment, .. },
            ) => self.needs(segment.number),
            // Histories are small, and what is not ours is left alone.
            Ok(WalFileName::History(_)) | Err(_) => true,
        }
    }
}

impl Needs {
    fn needs(&self, number: SegmentNumber) -> bool {
        self.from.is_some_and(|from| number >= from)
            || self.stretches.iter().any(|(first, last)| (*first..=*last).contains(&number))
    }
}

/// Stored log as stretches without holes, by timeline.
pub(super) struct Stored {
    size: WalSegmentSize,
    /// First segment of a stretch to the one behind its last.
    stretches: BTreeMap<Timeline, BTreeMap<u64, u64>>,
    tails: BTreeMap<(Timeline, u64), u64>,
    histories: BTreeMap<Timeline, History>,
}

impl Stored {
    pub(super) fn new(stock: &LogStock, size: WalSegmentSize) -> Self {
        let mut numbers: BTreeMap<Timeline, BTreeSet<u64>> = BTreeMap::new();
        for file in &stock.files {
            if let Ok(WalFileName::Segment(segment)) = WalFileName::parse(&file.name, size) {
                numbers.entry(segment.timeline).or_default().insert(segment.number.0);
            }
        }
        let stretches = numbers.into_iter().map(|(timeline, numbers)| (timeline, stretches(&numbers))).collect();
        let tails = stock
            .tails
            .iter()
            .filter_map(|(file, end, _)| match WalFileName::parse(&file.name, size) {
                Ok(WalFileName::Segment(segment)) => Some(((segment.timeline, segment.number.0), *end)),
                _ => None,
            })
            .collect();
        let histories = stock
            .histories
            .iter()
            .filter_map(|(file, content)| {
                let timeline = timeline_of_branch(&file.branch)?;
                // A history that makes no sense leads nowhere; `verify` says that it is damaged.
                Some((timeline, History::parse(timeline, content).ok()?))
            })
            .collect();
        Self { size, stretches, tails, histories }
    }

    /// The newest history that what was consistent at `lsn` of `timeline` is a part of.
    pub(super) fn newest_history(&self, timeline: Timeline, lsn: Lsn) -> History {
        let newest = self.histories.values().rev().find(|history| history.contains(timeline, lsn));
        newest.cloned().or_else(|| self.histories.get(&timeline).cloned()).unwrap_or_else(|| History::first(timeline))
    }

    /// The history of a timeline, as far as it is stored.
    pub(super) fn history_of(&self, timeline: Timeline) -> History {
        self.histories.get(&timeline).cloned().unwrap_or_else(|| History::first(timeline))
    }

    /// The log from `start` of `timeline` on, along `history`: its end, and the missing file if later ones are there.
    pub(super) fn reach(
        &self,
        start: Lsn,
        timeline: Timeline,
        history: &History,
    ) -> (Lsn, Timeline, Option<WalSegment>) {
        let mut number = segment_of(start, self.size).0;
        let mut on = timeline;
        for stretch in history.stretches().into_iter().skip_while(|stretch| stretch.timeline != timeline) {
            on = stretch.timeline;
            let fork = stretch.end.map(|end| segment_of(end, self.size).0);
            let end = self.stored_until(on, number);
            number = fork.map_or(end, |fork| end.min(fork.max(number)));
            if fork.is_none_or(|fork| number < fork) {
                break;
            }
        }
        let missing = WalSegment { timeline: on, number: SegmentNumber(number), size: self.size };
        let tail = self.tails.get(&(on, number)).copied().unwrap_or(0);
        let later = self.stretches.get(&on).is_some_and(|stretches| stretches.keys().any(|&first| first > number));
        let later = later || self.tails.keys().any(|(timeline, tail)| *timeline == on && *tail > number);
        let beyond = on != history.timeline();
        (Lsn(missing.start().0 + tail), on, (later || beyond).then_some(missing))
    }

    fn stored_until(&self, timeline: Timeline, number: u64) -> u64 {
        let stretch = self.stretches.get(&timeline).and_then(|stretches| stretches.range(..=number).next_back());
        stretch.map_or(number, |(_, &end)| end.max(number))
    }

    fn window(&self, name: &str, record: &PostgresRecord, stock: &LogStock) -> Window {
        let history = self.newest_history(record.timeline, record.stop_lsn);
        let (end, branch, hole) = self.reach(record.start_lsn, record.timeline, &history);
        let hole = hole.map(|segment| segment_name(&segment)).or_else(|| self.lost(end, branch, &history, stock));
        Window {
            backup: name.to_owned(),
            from_time: record.stop_time,
            from_position: record.stop_lsn.to_string(),
            until_time: Some(known_until(record, end, branch, stock)),
            until_position: end.max(record.stop_lsn).to_string(),
            branch: branch.hex(),
            hole: hole.as_ref().map(|file| file.name.clone()),
            hole_file: hole,
        }
    }

    /// The file that must have been lost where log ends at `end` of `branch`: log up to the noted position was stored,
    /// and a timeline's history is stored before its log.
    fn lost(&self, end: Lsn, branch: Timeline, history: &History, stock: &LogStock) -> Option<LogName> {
        let noted = stock
            .position
            .as_ref()
            .and_then(|(branch, position, _)| Some((timeline_of_branch(branch)?, position.parse::<Lsn>().ok()?)));
        if noted.is_some_and(|(timeline, position)| timeline == branch && position > end) {
            return Some(segment_name(&WalSegment::at(branch, end, self.size)));
        }
        let on_tails = self.tails.keys().map(|(timeline, _)| *timeline);
        self.stretches
            .keys()
            .copied()
            .chain(on_tails)
            .chain(noted.map(|(timeline, _)| timeline))
            .filter(|timeline| *timeline > history.timeline() && !self.histories.contains_key(timeline))
            .min()
            .map(|timeline| log_name(timeline, &format!("{}.history", timeline.hex())))
    }
}

/// Until when everything committed is known to be before `end` of `timeline`.
fn known_until(record: &PostgresRecord, end: Lsn, timeline: Timeline, stock: &LogStock) -> Timestamp {
    let noted = stock.position.as_ref().and_then(|(branch, position, until)| {
        let position: Lsn = position.parse().ok()?;
        (timeline_of_branch(branch) == Some(timeline) && position <= end).then_some(*until)
    });
    noted.map_or(record.stop_time, |until| until.max(record.stop_time))
}

fn stretches(numbers: &BTreeSet<u64>) -> BTreeMap<u64, u64> {
    let mut stretches = BTreeMap::new();
    let mut open: Option<(u64, u64)> = None;
    for &number in numbers {
        open = match open {
            Some((first, end)) if end == number => Some((first, number + 1)),
            Some((first, end)) => {
                stretches.insert(first, end);
                Some((number, number + 1))
            }
            None => Some((number, number + 1)),
        };
    }
    stretches.extend(open);
    stretches
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SIZE: u64 = 1 << 20;

    fn segment(timeline: u32, number: u64) -> LogName {
        let size = WalSegmentSize::new(1 << 20).unwrap();
        segment_name(&WalSegment { timeline: Timeline(timeline), number: SegmentNumber(number), size })
    }

    /// A backup that lies within one segment.
    fn record(timeline: u32, number: u64) -> Value {
        let at = |offset: u64| Lsn(number * SIZE + offset);
        serde_json::to_value(PostgresRecord {
            superuser: "postgres".to_owned(),
            version_num: 150_000,
            start_lsn: at(0x28),
            stop_lsn: at(0x100),
            timeline: Timeline(timeline),
            start_time: Timestamp::UNIX_EPOCH,
            stop_time: Timestamp::UNIX_EPOCH,
            wal_segment_size: WalSegmentSize::new(1 << 20).unwrap(),
            data_checksums: true,
            from_standby: false,
            backup_label: String::new(),
            tablespace_map: String::new(),
            tablespaces: Vec::new(),
            databases: Vec::new(),
        })
        .unwrap()
    }

    fn stock(files: impl IntoIterator<Item = LogName>) -> LogStock {
        LogStock { files: files.into_iter().collect(), ..LogStock::default() }
    }

    fn window(record: &Value, stock: &LogStock) -> Window {
        PostgresCopies.windows(&[("b".to_owned(), record.clone())], stock).unwrap().remove(0)
    }

    proptest! {
        #[test]
        fn stretches_are_the_numbers_and_nothing_else(numbers in prop::collection::btree_set(0..60_u64, 0..40)) {
            let stretches = stretches(&numbers);
            let back: BTreeSet<u64> = stretches.iter().flat_map(|(&first, &end)| first..end).collect();
            prop_assert_eq!(&back, &numbers);
            let bounds: Vec<_> = stretches.into_iter().collect();
            prop_assert!(bounds.iter().all(|(first, end)| first < end));
            prop_assert!(bounds.windows(2).all(|pair| pair[0].1 < pair[1].0), "{bounds:?}");
        }

        #[test]
        fn a_window_ends_at_the_first_missing_byte(
            numbers in prop::collection::btree_set(1..12_u64, 0..12),
            tails in prop::collection::btree_map(1..14_u64, 1..SIZE, 0..3),
            start in 1..12_u64,
        ) {
            let mut stock = stock(numbers.iter().map(|&number| segment(1, number)));
            stock.tails = tails.iter().map(|(&number, &end)| (segment(1, number), end, None)).collect();
            let window = window(&record(1, start), &stock);
            let missing = (start..100).find(|number| !numbers.contains(number)).unwrap();
            let end = Lsn(missing * SIZE + tails.get(&missing).copied().unwrap_or(0));
            prop_assert_eq!(window.until_position, end.max(Lsn(start * SIZE + 0x100)).to_string());
            let later = numbers.iter().chain(tails.keys()).any(|&number| number > missing);
            prop_assert_eq!(window.hole, later.then(|| segment(1, missing).name));
        }

        #[test]
        fn log_that_was_stored_and_is_not_is_a_hole(last in 2..8_u64, tail in 0..SIZE, noted in 0..9 * SIZE) {
            let mut stock = stock((1..=last).map(|number| segment(1, number)));
            if tail > 0 {
                stock.tails.push((segment(1, last + 1), tail, None));
            }
            stock.position = Some(("00000001".to_owned(), Lsn(noted).to_string(), Timestamp::UNIX_EPOCH));
            let end = (last + 1) * SIZE + tail;
            let hole = window(&record(1, 1), &stock).hole;
            prop_assert_eq!(hole, (noted > end).then(|| segment(1, last + 1).name));
        }

        #[test]
        fn log_is_needed_from_the_first_backup_on_and_no_other(
            backups in prop::collection::vec((1..30_u64, any::<bool>()), 1..5),
            number in 1..40_u64,
        ) {
            let kept: Vec<(Value, bool)> = backups.iter().map(|&(at, after)| (record(1, at), after)).collect();
            let needed = PostgresCopies.log_needs(&kept).unwrap().is_needed(&segment(1, number));
            let expected = backups.iter().any(|&(at, after)| number == at || (after && number > at));
            prop_assert_eq!(needed, expected);
        }
    }

    #[test]
    fn log_of_a_timeline_without_its_history_is_a_hole() {
        let mut stock = stock([segment(1, 1), segment(1, 2), segment(2, 3)]);
        assert_eq!(window(&record(1, 1), &stock).hole.as_deref(), Some("00000002.history"));
        let history = LogName { branch: "00000002".to_owned(), name: "00000002.history".to_owned() };
        stock.histories.push((history, b"1\t0/300000\tno recovery target specified\n".to_vec()));
        let window = window(&record(1, 1), &stock);
        assert_eq!(
            (window.hole, window.branch.as_str(), window.until_position.as_str()),
            (None, "00000002", "0/400000")
        );
    }
}
