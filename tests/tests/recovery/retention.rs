//! Case D3, and clocks that are off (N5): what retention removes is what it said, and nothing that is needed.

use std::collections::BTreeSet;
use std::path::PathBuf;

use holdfast_tests::agent::Agent;
use holdfast_tests::postgres::Major;
use rstest::rstest;
use serde_json::Value;

use crate::site::{Site, assert_names, files_below, refused, text};

const COUNT: &str = "SELECT count(*) FROM kept";

/// A site with so many backups, each with a row more than the one before and with log of its own behind it.
fn backups(site: &Site, number: usize) -> Vec<String> {
    site.server.sql("CREATE TABLE IF NOT EXISTS kept (n int)");
    let one = |_| {
        site.server.sql("INSERT INTO kept VALUES (1)");
        let id = text(&site.backup()["backup_id"]);
        site.archive_all();
        id
    };
    (0..number).map(one).collect()
}

fn decisions(plan: &Value) -> Vec<String> {
    plan["backups"].as_array().unwrap().iter().map(|backup| text(&backup["decision"])).collect()
}

/// The keys of everything that a plan removes by itself.
fn removed(plan: &Value) -> BTreeSet<PathBuf> {
    let lists = ["log", "delete", "mark", "scraps"].map(|name| plan[name].as_array().unwrap());
    lists.into_iter().flatten().map(|object| text(&object["key"]).into()).collect()
}

fn stored_log(site: &Site) -> Vec<String> {
    let is_log = |file: &PathBuf| file.to_str().unwrap().contains("/log/");
    let names = files_below(site.repository()).into_iter().filter(is_log);
    names.map(|file| file.file_name().unwrap().to_str().unwrap().to_owned()).collect()
}

/// Case D3 (a).
#[rstest]
fn a_pinned_backup_stays_beside_the_newest_two_and_each_can_be_restored(
    #[values(Major::V15, Major::V17)] major: Major,
) {
    let site = Site::new(major);
    let ids = backups(&site, 5);
    site.agent.run(&["verify", "all"]).expect_code(0);
    site.agent.run(&["pin", &ids[0]]).expect_code(0);

    let prune = ["prune", "--keep", "2", "--grace", "0s"];
    let before = files_below(site.repository());
    let said = site.agent.json(&[&prune[..], &["--dry-run"]].concat());
    assert_eq!(decisions(&said), ["pinned", "remove", "remove", "counted", "counted"]);
    assert_eq!(said["executed"], false);
    assert_eq!(files_below(site.repository()), before, "a dry run changes nothing");
    let done = site.agent.json(&prune);
    assert_eq!((decisions(&done), removed(&done)), (decisions(&said), removed(&said)));
    // What was only marked goes with the next one, and then nothing is left to do.
    site.agent.json(&prune);
    let gone: BTreeSet<PathBuf> = {
        let after: BTreeSet<PathBuf> = files_below(site.repository()).into_iter().collect();
        before.into_iter().filter(|file| !after.contains(file)).collect()
    };
    assert!(removed(&said).is_subset(&gone), "{:?} stay", removed(&said).difference(&gone));

    assert_eq!(site.backups(), [&ids[0], &ids[3], &ids[4]].map(Clone::clone));
    for (id, rows) in [(&ids[0], "1"), (&ids[3], "4"), (&ids[4], "5")] {
        assert_eq!(site.recover(&[id, "--target-immediate"]).server.psql(COUNT), rows);
    }
    assert_eq!(site.recover(&[&ids[3]]).server.psql(COUNT), "5");
    site.agent.run(&["verify", "all"]).expect_code(0);
    // The log between the pinned one and the next is gone: its end can no longer be reached from there.
    let error = site.try_restore(&[&ids[0], "--recover"]);
    assert_names(&refused(&error, 1), &["is missing in the archive"]);
}

/// Case D3 (b): with fewer good backups than are to be kept nothing goes, least of all the log.
#[test]
fn with_no_verified_backup_or_one_nothing_is_removed() {
    let site = Site::new(Major::V16);
    let ids = backups(&site, 3);
    let log = stored_log(&site);
    let prune = ["prune", "--keep", "2", "--grace", "0s"];
    let plan = site.agent.json(&prune);
    assert_eq!(decisions(&plan), ["too-few-verified"; 3]);
    // Only log from before the first backup goes: nothing could be made of it.
    let gone: Vec<_> = removed(&plan).iter().map(|key| key.file_name().unwrap().to_owned()).collect();
    assert_eq!(gone, ["000000010000000000000001"]);
    let log: Vec<_> = log.into_iter().filter(|name| name != "000000010000000000000001").collect();
    site.agent.run(&["verify", &ids[0]]).expect_code(0);
    assert_eq!(decisions(&site.agent.json(&prune)), ["too-few-verified"; 3]);
    assert_eq!((site.backups(), stored_log(&site)), (ids.clone(), log));
    assert_eq!(site.recover(&[&ids[0]]).server.psql(COUNT), "3");
}

/// Case D3 (c): what was never verified does not push out what was.
#[test]
fn unverified_backups_never_count() {
    let site = Site::new(Major::V18);
    let ids = backups(&site, 5);
    for id in &ids[..3] {
        site.agent.run(&["verify", id]).expect_code(0);
    }
    let plan = site.agent.json(&["prune", "--keep", "2", "--grace", "0s"]);
    assert_eq!(decisions(&plan), ["remove", "counted", "counted", "newer", "newer"]);
    assert_eq!(site.backups(), ids[1..]);
    assert_eq!(site.recover(&[&ids[1]]).server.psql(COUNT), "5");
}

#[test]
fn the_last_verified_backup_is_not_forgotten_and_others_are() {
    let site = Site::new(Major::V15);
    let ids = backups(&site, 2);
    site.agent.run(&["verify", &ids[0]]).expect_code(0);
    let error = refused(&site.agent.run(&["--output", "json", "forget", &ids[0]]), 3);
    assert_names(&error, &[&ids[0], "last verified", "verify"]);
    site.agent.run(&["forget", &ids[1]]).expect_code(0);
    assert_eq!(site.backups(), ids[..1]);
    assert_eq!(site.recover(&[]).server.psql(COUNT), "2");
}

fn with_clock(site: &Site, offset: &str) -> Agent {
    site.second_agent()
        .env("LD_PRELOAD", "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")
        .env("FAKETIME", offset)
        .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
        .env("NO_FAKE_STAT", "1")
}

/// Case N5 (b): the agent's clock is off. It says so, and nothing is judged by it.
#[rstest]
#[case::ahead("+20m", 20 * 60)]
#[case::behind("-2h", -2 * 60 * 60)]
fn a_wrong_clock_is_reported_and_removes_nothing(#[case] offset: &str, #[case] seconds: i32) {
    let site = Site::new(Major::V17);
    let ids = backups(&site, 2);
    let wrong = with_clock(&site, offset);
    let third = text(&wrong.json(&["backup", "--data-dir", site.data()])["backup_id"]);
    // By its own clock this one would be the oldest, or minutes too young.
    assert!(third > ids[1] && third.as_str() < "9", "{third} after {}", ids[1]);
    let all = [&ids[..], std::slice::from_ref(&third)].concat();
    assert_eq!(site.backups(), all);
    let skew = wrong.json(&["list"])["clock_skew_seconds"].as_f64().unwrap();
    assert!((skew - f64::from(seconds)).abs() < 60.0, "{skew}");
    assert_names(
        &wrong.run(&["list"]).stdout,
        &["this machine's clock is", if seconds > 0 { "ahead" } else { "behind" }],
    );
    assert!(site.list()["clock_skew_seconds"].as_f64().unwrap().abs() < 5.0);

    wrong.run(&["verify", "all"]).expect_code(0);
    let plan = wrong.json(&["prune", "--keep-within", "10m"]);
    assert_eq!(decisions(&plan), ["young"; 3]);
    assert_eq!(site.backups(), all);
    // Marks wait by the store's clock, too: what was marked a moment ago is not deleted by a clock that is ahead.
    site.agent.run(&["forget", &ids[0], "--grace", "10m"]).expect_code(0);
    let plan = wrong.json(&["prune", "--grace", "10m"]);
    assert_eq!(plan["delete"].as_array().unwrap().len(), 0, "{plan}");
    assert_eq!(site.recover(&[&third]).server.psql(COUNT), "2");
}
