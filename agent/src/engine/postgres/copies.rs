//! What PostgreSQL backups and their log are good for, from their records alone.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde_json::Value;

use super::control::CONTROL_FILE;
use super::history::History;
use super::lay_down;
use super::lsn::{Lsn, Timeline};
use super::record::{PostgresRecord, segment_name, timeline_of_branch};
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

    fn check_not_running(&self, data_directory: &Path) -> EngineResult<()> {
        lay_down::check_not_running(data_directory)
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
            Ok(WalFileName::Segment(segment) | WalFileName::Partial(segment)) => self.needs(segment.number),
            Ok(WalFileName::BackupHistory { segment, .. }) => self.needs(segment.number),
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
        Window {
            backup: name.to_owned(),
            from_time: record.stop_time,
            from_position: record.stop_lsn.to_string(),
            until_time: Some(known_until(record, end, branch, stock)),
            until_position: end.max(record.stop_lsn).to_string(),
            branch: branch.hex(),
            hole: hole.map(|segment| segment.to_string()),
        }
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
