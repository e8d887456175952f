//! Stores and disks that fail, and pages that are damaged already where they come from.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;

use holdfast_tests::account::{self, Scratch};
use holdfast_tests::faults::SmallDisk;
use holdfast_tests::postgres::{Major, Options, Shutdown};
use rstest::rstest;
use serde_json::Value;

use crate::site::{PATIENCE, Site, assert_names, files_below, refused, text};

const MIB: u64 = 1 << 20;

fn remount(disk: &SmallDisk, how: &str) {
    account::run(Command::new("mount").args(["-o", &format!("remount,{how}")]).arg(disk.path()));
}

/// A table of random bytes, which do not compress.
fn noise(rows: u32) -> String {
    format!(
        "CREATE TABLE noise AS SELECT n, string_agg(sha512((n * 64 + m)::text::bytea), '') AS bytes
           FROM generate_series(1, {rows}) n, generate_series(1, 16) m GROUP BY n"
    )
}

/// Case A4: what could not be stored is not called a backup.
#[test]
fn a_backup_whose_store_fills_up_fails_and_is_not_listed() {
    let disk = SmallDisk::mount(24 * MIB);
    let repository = disk.path().join("repository");
    let site = Site::in_repository(Major::V15, Options::new(), Scratch::new(), &repository);
    let first = text(&site.backup()["backup_id"]);
    site.server.sql(&noise(40_000));
    let outcome = site.agent.run(&["--output", "json", "backup", "--data-dir", site.data()]);
    assert_names(&refused(&outcome, 3), &["no space left", repository.to_str().unwrap(), "run the command again"]);
    assert_eq!(site.backups(), [first.as_str()]);
    assert!(!site.server.value::<bool>(
        "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE query ~ 'pg_backup_start' AND pid <> pg_backend_pid())"
    ));

    // The next one succeeds by itself once there is room, and the old one was not harmed.
    disk.resize(256 * MIB);
    let second = text(&site.backup()["backup_id"]);
    assert_eq!(site.backups(), [first, second]);
    // A backup stores the log that it needs itself; what the archiver has yet to store before it is no hole any more then.
    site.archive_all();
    site.agent.run(&["verify", "all"]).expect_code(0);
    let copy = site.recover(&["--target-immediate"]);
    assert_eq!(copy.server.psql("SELECT count(*) FROM noise"), "40000");
}

/// Case A4: the store stops taking anything between the first object and the last.
#[rstest]
#[case::before_the_first_object("copy the server's files")]
#[case::before_the_manifest("end the backup in the server")]
fn a_backup_whose_store_becomes_read_only_fails_and_is_not_listed(#[case] step: &str) {
    let disk = SmallDisk::mount(128 * MIB);
    let repository = disk.path().join("repository");
    let site = Site::in_repository(Major::V17, Options::new(), Scratch::new(), &repository);
    let first = text(&site.backup()["backup_id"]);
    site.server.sql(&noise(1000));
    site.archive_all();
    let second = site.second_agent();
    let backup = site.paused_backup(&second, step);
    remount(&disk, "ro");
    backup.resume();
    let error = refused(&backup.wait(PATIENCE), 3);
    assert_names(&error, &["Read-only file system", repository.to_str().unwrap()]);
    assert_eq!(site.backups(), [first]);
    remount(&disk, "rw");
    site.verified_backup();
}

/// Case F1: how much is needed is known before the first byte is written.
#[test]
fn a_restore_onto_a_volume_that_is_too_small_is_refused_before_anything_is_written() {
    let site = Site::new(Major::V16);
    let whole = site.backup()["database_bytes"].as_u64().unwrap();
    let disk = SmallDisk::mount(8 * MIB);
    let data = disk.path().join("data");
    let command = ["--output", "json", "restore", "--recover", "--data-dir", data.to_str().unwrap()];
    let error = refused(&site.agent.run(&command), 3);
    assert_names(&error, &[data.to_str().unwrap(), &whole.to_string(), "bytes free", "nothing was written"]);
    assert_eq!(files_below(disk.path()), [] as [&Path; 0]);
    fs::remove_dir(&data).unwrap();

    let command = ["--output", "json", "drill", "--scratch", disk.path().to_str().unwrap()];
    assert_names(&refused(&site.agent.run(&command), 3), &[&whole.to_string(), "bytes free"]);
    assert_eq!(fs::read_dir(disk.path()).unwrap().count(), 0, "the drill leaves nothing behind");
    assert!(site.list()["backups"][0]["proven"].is_null());
}

/// Case F1: the files fit, but not the log that recovery needs beside them.
#[test]
fn a_drill_that_runs_out_of_space_proves_nothing_and_cleans_up() {
    let site = Site::new(Major::V15);
    let whole = site.backup()["database_bytes"].as_u64().unwrap();
    site.archive_all();
    let disk = SmallDisk::mount(whole + 8 * MIB);
    let outcome = site.agent.run(&["--output", "json", "drill", "--scratch", disk.path().to_str().unwrap()]);
    assert!(matches!(outcome.code(), Some(1 | 3)), "{outcome:?}");
    assert_names(&format!("{}{}", outcome.stdout, outcome.stderr), &["wal-fetch", "No space left on device"]);
    assert_eq!(fs::read_dir(disk.path()).unwrap().count(), 0, "the drill leaves nothing behind");
    assert!(site.list()["backups"][0]["proven"].is_null());

    disk.resize(whole + 128 * MIB);
    let drill = site.agent.json(&["drill", "--scratch", disk.path().to_str().unwrap()]);
    assert_eq!(drill["verdict"], "passed");
}

fn bad_pages(report: &Value) -> Vec<(String, u64)> {
    let bad = report["bad_pages"].as_array().unwrap();
    bad.iter().map(|bad| (text(&bad["path"]), bad["page"].as_u64().unwrap())).collect()
}

/// Case F3: damage that was there before the backup is found, named, and never becomes what retention counts on.
#[rstest]
fn damaged_pages_of_the_source_are_named_and_the_last_clean_backup_is_kept(
    #[values(Major::V15, Major::V18)] major: Major,
) {
    let mut site = Site::new(major);
    site.server.sql("CREATE TABLE filler AS SELECT n, md5(n::text) AS text FROM generate_series(1, 20000) n");
    site.server.sql("CREATE TABLE other AS SELECT 1 AS one");
    let clean = site.verified_backup();
    let path = site.server.psql("SELECT pg_relation_filepath('filler')");
    site.server.stop(Shutdown::Fast);
    let file = site.server.data_directory().join(&path);
    let file = fs::File::options().read(true).write(true).open(file).unwrap();
    for page in [7, 42] {
        let mut byte = [0];
        file.read_exact_at(&mut byte, page * 8192 + 5000).unwrap();
        file.write_all_at(&[byte[0] ^ 0x10], page * 8192 + 5000).unwrap();
    }
    drop(file);
    site.server.start();

    let mut damaged = Vec::new();
    for round in 0..3 {
        site.server.sql("UPDATE other SET one = one + 1");
        let outcome = site.agent.run(&["--output", "json", "backup", "--data-dir", site.data()]);
        outcome.expect_code(1);
        let report = outcome.json();
        assert_eq!(bad_pages(&report), [(path.clone(), 7), (path.clone(), 42)], "in round {round}");
        let id = text(&report["backup_id"]);
        site.agent.run(&["verify", &id]).expect_code(1);
        damaged.push(id);
    }
    // In words as well.
    let words = site.agent.run(&["backup", "--data-dir", site.data()]);
    words.expect_code(1);
    assert_names(&words.stdout, &[&format!("page 7 of {path}"), &format!("page 42 of {path}"), "pin"]);

    let list = site.list();
    let standing = |line: &Value| (line["verified"].is_null(), line["bad_pages"].as_u64().unwrap());
    let lines: Vec<_> = list["backups"].as_array().unwrap().iter().map(standing).collect();
    assert_eq!(lines, [(false, 0), (true, 2), (true, 2), (true, 2), (true, 2)]);

    let plan = site.agent.json(&["prune", "--keep", "1", "--grace", "0s"]);
    let decided: Vec<_> = plan["backups"]
        .as_array()
        .unwrap()
        .iter()
        .map(|backup| (text(&backup["backup_id"]), text(&backup["decision"])))
        .collect();
    assert_eq!(decided[0], (clean.clone(), "counted".into()), "{decided:?}");
    assert!(decided[1..].iter().all(|(_, decision)| decision == "newer"), "{decided:?}");
    let kept = site.agent.json(&["prune", "--keep-within", "0s", "--grace", "0s"]);
    assert_eq!(kept["backups"][0]["decision"], "last-verified", "{kept}");
    let copy = site.recover(&[&clean, "--target-immediate"]);
    assert_eq!(copy.server.psql("SELECT count(*) FROM filler"), "20000");
    assert_eq!(damaged.len(), 3);
}
