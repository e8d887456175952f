//! Which backup a target is reached from.

use jiff::Timestamp;

use super::copies::Stored;
use super::history::History;
use super::lsn::{Lsn, Timeline};
use super::record::PostgresRecord;
use crate::engine::{Choice, Choose, EngineError, EngineResult, Target};

/// A backup with what the log after it reaches.
struct Candidate {
    index: usize,
    name: String,
    record: PostgresRecord,
    history: History,
    end: Lsn,
    hole: bool,
    /// Everything committed up to then is stored; and nothing is stored that is not known to be complete.
    until: Option<(Timestamp, bool)>,
}

pub(super) fn choose(choose: &Choose<'_>) -> EngineResult<Choice> {
    let candidates = candidates(choose)?;
    let fits = |candidate: &&Candidate| match choose.target {
        Target::Time(time) => candidate.record.stop_time <= *time,
        Target::Position(position) => position.parse::<Lsn>().is_ok_and(|lsn| candidate.record.stop_lsn <= lsn),
        Target::Latest | Target::Immediate | Target::Name(_) => true,
    };
    let Some(chosen) = candidates.iter().rev().find(fits) else {
        return Err(too_early(choose.target, &candidates));
    };
    check_end(choose.target, chosen)?;
    let timeline = match choose.target {
        Target::Immediate => choose.timeline.unwrap_or(chosen.record.timeline.0),
        _ => chosen.history.timeline().0,
    };
    let known = chosen.until.map_or(chosen.record.stop_time, |(until, _)| until.max(chosen.record.stop_time));
    Ok(Choice {
        backup: chosen.index,
        timeline,
        log_end: chosen.end.to_string(),
        complete_until: known,
        hole: chosen.hole,
    })
}

fn candidates(choose: &Choose<'_>) -> EngineResult<Vec<Candidate>> {
    let mut candidates = Vec::new();
    for (index, (name, record)) in choose.backups.iter().enumerate() {
        let record = PostgresRecord::parse(record)?;
        let stored = Stored::new(choose.stock, record.wal_segment_size);
        let history = match choose.timeline {
            Some(timeline) => stored.history_of(Timeline(timeline)),
            None => stored.newest_history(record.timeline, record.stop_lsn),
        };
        if !history.contains(record.timeline, record.stop_lsn) {
            continue;
        }
        let (end, on, missing) = stored.reach(record.start_lsn, record.timeline, &history);
        let until = choose.stock.position.as_ref().and_then(|(branch, position, until)| {
            let position: Lsn = position.parse().ok()?;
            (*branch == on.hex() && position <= end).then_some((*until, position == end))
        });
        candidates.push(Candidate { index, name: name.clone(), record, history, end, hole: missing.is_some(), until });
    }
    if candidates.is_empty() {
        return Err(EngineError::Refused(format!(
            "no backup is part of timeline {}: see `list` for the timelines that are stored",
            choose.timeline.unwrap_or_default()
        )));
    }
    Ok(candidates)
}

fn too_early(target: &Target, candidates: &[Candidate]) -> EngineError {
    let earliest = candidates.iter().map(|candidate| (candidate.record.stop_time, candidate.record.stop_lsn)).min();
    let (time, lsn) = earliest.unwrap_or((Timestamp::MIN, Lsn::INVALID));
    let asked = match target {
        Target::Time(time) => time.to_string(),
        Target::Position(position) => position.clone(),
        _ => "the target".to_owned(),
    };
    EngineError::Refused(format!(
        "{asked} is before the first point that can be recovered: that is {time} ({lsn}), where the first usable backup ended"
    ))
}

fn check_end(target: &Target, chosen: &Candidate) -> EngineResult<()> {
    match target {
        Target::Time(time) => match chosen.until {
            Some((until, true)) if *time > until => Err(EngineError::Refused(format!(
                "{time} is after the last point that can be recovered: everything up to {until} ({}) is stored. \
                 Choose that time or an earlier one, or recover to the latest point",
                chosen.end
            ))),
            _ => Ok(()),
        },
        Target::Position(position) => {
            let lsn: Lsn = position.parse().map_err(|_| {
                EngineError::Refused(format!("{position:?} is no log position; positions look like 0/3000060"))
            })?;
            if lsn > chosen.end {
                return Err(EngineError::Refused(format!(
                    "{lsn} is after the last position that is stored, which is {} (from backup {})",
                    chosen.end, chosen.name
                )));
            }
            Ok(())
        }
        Target::Latest | Target::Immediate | Target::Name(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::engine::LogStock;
    use crate::engine::postgres::record::segment_name;
    use crate::engine::postgres::wal::{SegmentNumber, WalSegment, WalSegmentSize};

    const SIZE: u64 = 1 << 20;

    /// A backup that lies within one segment, and is as many seconds old as its number.
    fn backup(number: u64) -> (String, serde_json::Value) {
        let time = Timestamp::from_second(number.cast_signed()).unwrap();
        let record = PostgresRecord {
            superuser: "postgres".to_owned(),
            version_num: 150_000,
            start_lsn: Lsn(number * SIZE + 0x28),
            stop_lsn: Lsn(number * SIZE + 0x100),
            timeline: Timeline(1),
            start_time: time,
            stop_time: time,
            wal_segment_size: WalSegmentSize::new(1 << 20).unwrap(),
            data_checksums: true,
            from_standby: false,
            backup_label: String::new(),
            tablespace_map: String::new(),
            tablespaces: Vec::new(),
            databases: Vec::new(),
        };
        (format!("b{number}"), serde_json::to_value(record).unwrap())
    }

    fn stock(last: u64) -> LogStock {
        let size = WalSegmentSize::new(1 << 20).unwrap();
        let segment = |number| segment_name(&WalSegment { timeline: Timeline(1), number: SegmentNumber(number), size });
        LogStock { files: (1..=last).map(segment).collect(), ..LogStock::default() }
    }

    proptest! {
        #[test]
        fn the_newest_backup_that_ended_before_the_target_is_chosen(
            numbers in prop::collection::btree_set(1..20_u64, 1..6),
            target in 0..24 * SIZE,
        ) {
            let backups: Vec<_> = numbers.iter().map(|&number| backup(number)).collect();
            let position = Target::Position(Lsn(target).to_string());
            let choose = Choose { target: &position, timeline: None, backups: &backups, stock: &stock(20) };
            let fitting = numbers.iter().rposition(|&number| number * SIZE + 0x100 <= target);
            match super::choose(&choose) {
                Ok(choice) => {
                    prop_assert_eq!(Some(choice.backup), fitting);
                    prop_assert!(target <= 21 * SIZE);
                    prop_assert_eq!(choice.log_end, Lsn(21 * SIZE).to_string());
                }
                Err(error) => {
                    let reason = if fitting.is_none() { "is before the first point" } else { "is after the last position" };
                    prop_assert!(fitting.is_none() || target > 21 * SIZE, "{error}");
                    prop_assert!(error.to_string().contains(reason), "{error}");
                }
            }
        }

        #[test]
        fn a_time_is_reached_from_the_newest_backup_before_it(
            numbers in prop::collection::btree_set(1..20_u64, 1..6),
            second in 0..30_i64,
            until in 20..30_i64,
        ) {
            let backups: Vec<_> = numbers.iter().map(|&number| backup(number)).collect();
            let time = Target::Time(Timestamp::from_second(second).unwrap());
            let mut stock = stock(20);
            let noted = Timestamp::from_second(until).unwrap();
            stock.position = Some(("00000001".to_owned(), Lsn(21 * SIZE).to_string(), noted));
            let chosen = super::choose(&Choose { target: &time, timeline: None, backups: &backups, stock: &stock });
            let fitting = numbers.iter().rposition(|&number| number.cast_signed() <= second);
            match chosen {
                Ok(choice) => prop_assert_eq!((Some(choice.backup), second <= until), (fitting, true)),
                Err(error) => prop_assert!(fitting.is_none() || second > until, "{error}"),
            }
        }
    }
}
