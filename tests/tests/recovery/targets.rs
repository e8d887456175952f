//! Every target, on every version: exactly the rows that were acknowledged at or before it.

use std::hash::{BuildHasher as _, RandomState};
use std::time::{Duration, SystemTime};

use holdfast_tests::ledger::{self, Load, Mark, Pace, Record, Target};
use holdfast_tests::postgres::Major;
use rstest::rstest;

use crate::site::{Site, assert_names, instant, refused, rfc3339, text};

/// Rows between two marks: at random, as the interesting places of a log are not known in advance.
fn some_rows() -> usize {
    usize::try_from(RandomState::new().hash_one(SystemTime::now()) % 150).unwrap() + 10
}

fn lively() -> Pace {
    Pace { writers: 4, rows_per_second: Some(150.0), payload_bytes: 400 }
}

/// A load over a full and an incremental backup, with marks before, between and after; log shipped to its end.
struct History {
    site: Site,
    record: Record,
    marks: Vec<Mark>,
    full: serde_json::Value,
    incremental: serde_json::Value,
}

fn history(major: Major, marks_after: usize) -> History {
    let site = Site::new(major);
    let mut client = site.server.client("postgres");
    ledger::create_table(&mut client);
    let load = Load::start(&site.server.config("postgres"), lively());
    load.wait_for(50);
    let full = site.backup();
    let watch = site.watch();
    load.wait_for(some_rows());
    let mut marks = vec![load.mark(&mut client, "mark-0")];
    load.wait_for(some_rows());
    let incremental = site.backup();
    for number in 1..=marks_after {
        load.wait_for(some_rows());
        marks.push(load.mark(&mut client, &format!("mark-{number}")));
        if number % 2 == 1 {
            site.server.switch_wal();
        }
    }
    load.wait_for(some_rows());
    let record = load.stop();
    watch.wait_stored(site.server.flushed());
    watch.stop();
    History { site, record, marks, full, incremental }
}

#[rstest]
fn every_target_gives_exactly_the_rows_acknowledged_before_it(
    #[values(Major::V15, Major::V16, Major::V17, Major::V18)] major: Major,
) {
    let History { site, record, marks, full, incremental } = history(major, 3);
    let (full, incremental) = (text(&full["backup_id"]), text(&incremental["backup_id"]));
    assert_eq!(site.backups(), [full.clone(), incremental.clone()]);

    for (number, mark) in marks.iter().enumerate() {
        let copy = site.recover(&["--target-time", &rfc3339(mark.time)]);
        let seen = copy.check(&record, &Target::Time(mark.time));
        assert!(seen.required > 0 && seen.excluded > 0, "{seen:?}");
        // The mark before the incremental backup is reached from the full one alone.
        assert_eq!(copy.backup_id(), if number == 0 { full.clone() } else { incremental.clone() });
        assert!(instant(copy.report["reached"]["last_transaction"].as_str().unwrap()) <= mark.time);
    }
    let mark = &marks[2];
    let copy = site.recover(&["--target-lsn", &mark.position.to_string()]);
    copy.check(&record, &Target::Position(mark.position));
    let copy = site.recover(&["--target-name", &mark.name]);
    copy.check(&record, &Target::Time(mark.time));
    // By name as well from a backup that was named.
    let copy = site.recover(&[&full, "--target-name", &marks[1].name]);
    copy.check(&record, &Target::Time(marks[1].time));

    let copy = site.recover(&["--target-immediate"]);
    let stop = text(&copy.report["reached"]["lsn"]).parse().unwrap();
    assert_eq!(copy.backup_id(), incremental);
    let seen = copy.check(&record, &Target::Position(stop));
    assert!(seen.required > 0 && seen.excluded > 0, "{seen:?}");

    let seen = site.recover(&[]).check(&record, &Target::Latest);
    assert_eq!((seen.required, seen.excluded), (record.rows.len(), 0));
    let seen = site.recover(&[&full]).check(&record, &Target::Latest);
    assert_eq!(seen.required, record.rows.len());
}

#[rstest]
fn an_incremental_backup_stores_only_what_changed(#[values(Major::V15, Major::V18)] major: Major) {
    let site = Site::new(major);
    site.server.sql("CREATE TABLE filler AS SELECT n, repeat('x', 1000) AS text FROM generate_series(1, 20000) n");
    site.server.psql("VACUUM (FREEZE) filler");
    site.server.sql("CREATE INDEX ON filler (n)");
    let full = site.backup();
    assert!(full["previous"].is_null());
    site.server.sql("UPDATE filler SET text = 'changed' WHERE n = 777; CHECKPOINT");
    let incremental = site.backup();
    assert_eq!(incremental["previous"], full["backup_id"]);
    let bytes = |report: &serde_json::Value, name: &str| report[name].as_u64().unwrap();
    assert!(bytes(&full, "new_bytes") > 20_000_000, "{full}");
    assert!(bytes(&incremental, "new_bytes") < 500_000, "{incremental}");
    let copy = site.recover(&["--target-immediate"]);
    assert_eq!(copy.server.psql("SELECT count(*), min(text) FROM filler"), "20000|changed");
}

/// Case E1: nothing may be reported as reached that is not known to be.
#[rstest]
fn a_target_on_an_idle_server_is_reached_and_one_past_the_log_is_refused(
    #[values(Major::V15, Major::V16, Major::V17, Major::V18)] major: Major,
) {
    let site = Site::new(major);
    let mut client = site.server.client("postgres");
    ledger::create_table(&mut client);
    site.backup();
    let watch = site.watch();
    let load = Load::start(&site.server.config("postgres"), lively());
    load.wait_for(100);
    let record = load.stop();
    // After the last commit: only the watch tells that nothing was committed up to then.
    let idle = record.rows.iter().filter_map(|row| row.committed).max().unwrap() + Duration::from_millis(500);
    watch.wait_complete(idle);
    watch.stop();

    let copy = site.recover(&["--target-time", &rfc3339(idle)]);
    let seen = copy.check(&record, &Target::Time(idle));
    assert_eq!((seen.required, seen.excluded), (record.rows.len(), 0));
    assert_names(&copy.report["notes"].to_string(), &["no transaction was committed after the target time"]);

    let late = site.now() + Duration::from_hours(1);
    let error = refused(&site.try_restore(&["--recover", "--target-time", &rfc3339(late)]), 3);
    let last = text(&site.list()["windows"][0]["until_time"]);
    assert_names(&error, &["is after the last point that can be recovered", &last]);
}

/// Case E1: with whole segments alone nobody knows what was committed between the last commit in them and the target.
#[test]
fn a_time_after_the_last_stored_commit_is_refused_where_nobody_knows_that_nothing_came_after() {
    let site = Site::new(Major::V16);
    ledger::create_table(&mut site.server.client("postgres"));
    site.backup();
    site.server.sql("INSERT INTO ledger VALUES (0, 1, 'x', '')");
    site.archive_all();
    let late = rfc3339(site.now() + Duration::from_mins(1));
    site.server.sql("INSERT INTO ledger VALUES (0, 2, 'never archived', '')");
    let outcome = site.try_restore(&["--recover", "--target-time", &late]);
    assert_ne!(outcome.code(), Some(0), "{}{}", outcome.stdout, outcome.stderr);
    assert_names(&text(&outcome.error()["error"]), &["last transaction"]);
}

/// Nothing is left of the server but its repository; what its log lacked at the end, a segment that was never finished
/// makes up for.
#[rstest]
fn a_lost_server_comes_back_with_every_row_acknowledged_before_the_last_look(
    #[values(Major::V15, Major::V16, Major::V17, Major::V18)] major: Major,
) {
    let mut site = Site::new(major);
    ledger::create_table(&mut site.server.client("postgres"));
    let load = Load::start(&site.server.config("postgres"), lively());
    load.wait_for(50);
    site.backup();
    let backed_up = site.now();
    let watch = site.watch();
    load.wait_for(400);
    site.server.kill();
    let ticks = watch.stop();
    std::fs::remove_dir_all(site.server.data_directory()).unwrap();
    let record = load.stop();

    let looked = ticks.iter().rfind(|tick| tick["error"].is_null()).unwrap();
    let until = instant(&text(&looked["complete_until"]));
    let copy = site.recover(&[]);
    // The last look may have shipped more than it lived to say.
    let reached = text(&copy.report["reached"]["lsn"]).parse().unwrap();
    copy.check(&record, &Target::Position(reached));
    let by_tail =
        record.rows.iter().filter(|row| row.committed.is_some_and(|at| backed_up < at && at <= until)).count();
    assert!(by_tail > 0, "no row was committed between the backup ({backed_up:?}) and the last look ({until:?})");
    let missing = record.check(&mut copy.server.client("postgres"), &Target::Time(until));
    assert_eq!(missing.err().unwrap_or_default().missing, []);
}

/// Hundreds of random points.
#[rstest]
#[ignore = "takes many minutes"]
fn soak_a_hundred_random_points_are_each_exact(#[values(Major::V15, Major::V16, Major::V17, Major::V18)] major: Major) {
    let History { site, record, marks, .. } = history(major, 100);
    for mark in &marks {
        site.recover(&["--target-time", &rfc3339(mark.time)]).check(&record, &Target::Time(mark.time));
        let position = mark.position.to_string();
        site.recover(&["--target-lsn", &position]).check(&record, &Target::Position(mark.position));
    }
}
