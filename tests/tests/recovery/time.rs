//! Times as targets: which backup they choose, and how they may be written.

use std::time::Duration;

use holdfast_tests::ledger::{self, Load, Pace, Target};
use holdfast_tests::postgres::{Major, Options};
use jiff::Timestamp;
use rstest::rstest;

use crate::site::{PATIENCE, Site, assert_names, instant, recover_with, refused, rfc3339, text};

/// Case E2: a target that lies between the beginning and the end of a backup is reached from the one before it.
#[rstest]
fn a_target_within_a_backup_chooses_the_backup_before_it(#[values(Major::V15, Major::V18)] major: Major) {
    let site = Site::new(major);
    let mut client = site.server.client("postgres");
    ledger::create_table(&mut client);
    let load = Load::start(&site.server.config("postgres"), Pace::default());
    load.wait_for(20);
    let before = load.mark(&mut client, "before");
    load.wait_for(20);
    let first = site.backup();
    load.wait_for(50);
    let second_agent = site.second_agent();
    let slow = site.paused_backup(&second_agent, "copy the server's files");
    load.wait_for(50);
    let during = load.mark(&mut client, "during");
    load.wait_for(50);
    slow.resume();
    let second = slow.wait(PATIENCE);
    second.expect_code(0);
    load.wait_for(50);
    let after = load.mark(&mut client, "after");
    load.wait_for(20);
    let record = load.stop();
    site.archive_all();

    let (first_id, second) = (text(&first["backup_id"]), second.json());
    assert!(instant(&text(&second["record"]["start_time"])) < during.time);
    assert!(instant(&text(&second["record"]["stop_time"])) > during.time);
    let copy = site.recover(&["--target-time", &rfc3339(during.time)]);
    assert_eq!(copy.backup_id(), first_id);
    copy.check(&record, &Target::Time(during.time));
    let copy = site.recover(&["--target-lsn", &during.position.to_string()]);
    assert_eq!(copy.backup_id(), first_id);
    copy.check(&record, &Target::Position(during.position));
    let copy = site.recover(&["--target-time", &rfc3339(after.time)]);
    assert_eq!(copy.backup_id(), text(&second["backup_id"]));
    copy.check(&record, &Target::Time(after.time));
    let copy = site.recover(&[&first_id, "--target-name", &during.name]);
    copy.check(&record, &Target::Time(during.time));

    let earliest = text(&first["record"]["stop_time"]);
    let error = refused(&site.try_restore(&["--recover", "--target-time", &rfc3339(before.time)]), 3);
    assert_names(&error, &["before the first point that can be recovered", &earliest]);
    let named = [&text(&second["backup_id"]), "--recover", "--target-time", &rfc3339(during.time)];
    let error = refused(&site.try_restore(&named), 3);
    assert_names(&error, &["before the first point", &text(&second["record"]["stop_time"])]);
}

/// Case E3: a moment is a moment, however it is written, and wherever the agent and the server are.
#[rstest]
fn the_same_moment_in_any_zone_gives_the_same_rows(#[values(Major::V16, Major::V17)] major: Major) {
    let site = Site::new(major);
    let mut client = site.server.client("postgres");
    ledger::create_table(&mut client);
    site.backup();
    let load = Load::start(&site.server.config("postgres"), Pace { rows_per_second: None, ..Pace::default() });
    load.wait_for(60);
    let mark = load.mark(&mut client, "between");
    load.wait_for(60);
    let record = load.stop();
    site.archive_all();

    let moment = Timestamp::try_from(mark.time).unwrap();
    let in_zone = |hours: i64, zone: &str| {
        let there = moment + jiff::SignedDuration::from_hours(hours);
        there.strftime("%Y-%m-%dT%H:%M:%S%.6f").to_string() + zone
    };
    let forms = [
        format!("{moment:.6}"),
        format!("{moment:.9}").to_lowercase(),
        in_zone(9, "+09:00"),
        in_zone(0, "+00:00"),
        in_zone(-11, "-11:00"),
    ];
    let abroad = site.second_agent().env("TZ", "Asia/Seoul");
    let server_abroad = Options::new().environment("TZ", "Asia/Seoul").setting("timezone=Asia/Seoul");
    let mut reached = Vec::new();
    for form in &forms {
        for agent in [&site.agent, &abroad] {
            let copy = recover_with(agent, major, &["--target-time", form], &server_abroad);
            copy.check(&record, &Target::Time(mark.time));
            reached.push(text(&copy.report["reached"]["last_transaction"]));
        }
    }
    assert!(reached.iter().all(|time| *time == reached[0] && time.ends_with('Z')), "{reached:?}");

    let zoneless = in_zone(9, "");
    for form in [zoneless.as_str(), &zoneless.replace('T', " "), "yesterday", "1767225600"] {
        let error = refused(&site.try_restore(&["--recover", "--target-time", form]), 2);
        assert_names(&error, &["--target-time", form]);
    }
    assert_names(&refused(&site.try_restore(&["--target-time", &zoneless]), 2), &["does not say in which zone", "Z"]);
}

/// Case E3: a fraction of a second decides between two transactions.
#[test]
fn a_microsecond_before_a_commit_is_before_it() {
    let site = Site::new(Major::V15);
    site.server.sql("CREATE TABLE kept (n int)");
    site.backup();
    for n in 1..=3 {
        site.server.sql(&format!("INSERT INTO kept VALUES ({n})"));
    }
    let committed: std::time::SystemTime =
        site.server.value("SELECT pg_xact_commit_timestamp(xmin) FROM kept WHERE n = 2");
    site.archive_all();
    let rows = |time| site.recover(&["--target-time", &rfc3339(time)]).server.psql("SELECT array_agg(n) FROM kept");
    assert_eq!(rows(committed), "{1,2}");
    assert_eq!(rows(committed - Duration::from_micros(1)), "{1}");
}

/// Case N5: the times that count for recovery are the server's.
#[test]
fn a_server_with_a_wrong_clock_is_recovered_by_its_own_times() {
    let site = Site::with(Major::V16, Options::new().clock_offset("-2h"));
    let mut client = site.server.client("postgres");
    ledger::create_table(&mut client);
    site.backup();
    let load = Load::start(&site.server.config("postgres"), Pace::default());
    load.wait_for(40);
    let mark = load.mark(&mut client, "between");
    load.wait_for(40);
    let record = load.stop();
    site.archive_all();
    let copy = site.recover(&["--target-time", &rfc3339(mark.time)]);
    let seen = copy.check(&record, &Target::Time(mark.time));
    assert!(seen.required >= 40 && seen.excluded >= 40, "{seen:?}");
}
