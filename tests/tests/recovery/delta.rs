//! Restoring onto an old copy: what is right stays, and is not written again.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use holdfast_tests::account::{self, Scratch};
use holdfast_tests::faults;
use holdfast_tests::postgres::{Major, Server, Shutdown};
use rstest::rstest;
use serde_json::Value;

use crate::site::{Site, assert_names, files_below, refused};

const PAGE: u64 = 8192;

fn bytes(report: &Value, name: &str) -> u64 {
    report[name].as_u64().unwrap()
}

/// The largest file of a table that the tests below make: some hundred pages of it.
fn relation(server: &Server, root: &Path) -> std::path::PathBuf {
    root.join(server.psql("SELECT pg_relation_filepath('filler')"))
}

#[rstest]
fn a_delta_restore_writes_only_the_pages_that_differ_and_removes_what_does_not_belong(
    #[values(Major::V15, Major::V18)] major: Major,
) {
    let site = Site::new(major);
    site.server.sql("CREATE TABLE filler AS SELECT n, md5(n::text) AS text FROM generate_series(1, 20000) n");
    // Pages that were only reserved are gone: a hole needs no writing.
    site.server.psql("VACUUM filler");
    site.backup();
    let scratch = Scratch::new();
    let copy = scratch.path().join("copy");
    let path = copy.to_str().unwrap();
    site.agent.json(&["restore", "--target-immediate", "--data-dir", path]);
    let again = ["restore", "--target-immediate", "--delta", "--data-dir", path];

    // The control file is always taken away first and put back last: no server starts on half a restore.
    let untouched = site.agent.json(&again);
    assert_eq!((bytes(&untouched, "written_bytes"), bytes(&untouched, "removed_files")), (PAGE, 2), "{untouched}");
    let right = files_below(&copy);

    let file = relation(&site.server, &copy);
    let whole = fs::read(&file).unwrap();
    faults::flip_bit(&file, 5 * PAGE + 100, 3).undo();
    fs::write(copy.join("base/foreign"), "not of this database").unwrap();
    fs::create_dir(copy.join("base/77777")).unwrap();
    fs::write(copy.join("base/77777/1259"), "not of this database").unwrap();
    account::hand_over(&copy.join("base/77777"));
    let out = File::options().write(true).open(&file).unwrap();
    out.write_all_at(b"damaged", 3 * PAGE).unwrap();
    out.write_all_at(b"damaged", 9 * PAGE).unwrap();
    out.set_len(whole.len() as u64 - 2 * PAGE).unwrap();
    let report = site.agent.json(&again);
    assert_eq!(bytes(&report, "written_bytes"), 5 * PAGE, "{report}");
    assert_eq!(bytes(&report, "removed_files"), 4, "{report}");
    assert_eq!(fs::read(&file).unwrap(), whole);
    assert_eq!(files_below(&copy), right);
}

#[rstest]
fn a_copy_that_lived_on_is_brought_back_by_a_delta_restore(#[values(Major::V16, Major::V17)] major: Major) {
    let site = Site::new(major);
    site.server.sql("CREATE TABLE filler AS SELECT n, md5(n::text) AS text FROM generate_series(1, 50000) n");
    let backup = site.backup();
    site.server.sql("UPDATE filler SET text = 'later' WHERE n <= 10");
    site.archive_all();
    let scratch = Scratch::new();
    let copy = scratch.path().join("copy");
    let path = copy.to_str().unwrap();
    site.agent.json(&["restore", "--recover", "--data-dir", path]);
    let mut server = Server::over(major, &copy, &holdfast_tests::postgres::Options::new());
    server.start();
    server.sql("UPDATE filler SET text = 'strayed' WHERE n > 49990; CREATE TABLE strayed AS SELECT 1 AS one");

    let error = refused(&site.agent.run(&["--output", "json", "restore", "--delta", "--data-dir", path]), 3);
    assert_names(&error, &["a server runs on", path, "nothing was touched", "Stop it first"]);
    assert_eq!(server.psql("SELECT count(*) FROM strayed"), "1");

    server.stop(Shutdown::Fast);
    let report = site.agent.json(&["restore", "--recover", "--delta", "--data-dir", path]);
    let whole = bytes(&backup, "database_bytes");
    assert!(bytes(&report, "written_bytes") < whole / 4, "{report}");
    assert!(bytes(&report, "kept_bytes") > whole / 2, "{report}");
    server.start();
    assert_eq!(server.psql("SELECT count(*), count(*) FILTER (WHERE text = 'later') FROM filler"), "50000|10");
    assert_eq!(server.psql("SELECT to_regclass('strayed') IS NULL"), "t");
}

/// What is not a database is never taken for an old copy of one.
#[test]
fn a_delta_restore_onto_something_else_is_refused_and_touches_nothing() {
    let site = Site::new(Major::V15);
    site.backup();
    let scratch = Scratch::new();
    let home = scratch.directory("home");
    fs::write(home.join("letters"), "dear").unwrap();
    let command = ["--output", "json", "restore", "--target-immediate", "--data-dir", home.to_str().unwrap()];
    let error = refused(&site.agent.run(&command), 3);
    assert_names(&error, &["is not empty", "letters", "nothing was touched", "--delta"]);
    let error = refused(&site.agent.run(&[&command[..], &["--delta"]].concat()), 3);
    assert_names(&error, &["letters", "no copy of a database", "nothing was touched"]);
    assert_eq!(files_below(&home), [Path::new("letters")]);
}
