//! What a data directory may hold, and what may happen to it while it is copied.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use holdfast_tests::account::{self, Scratch};
use holdfast_tests::postgres::{Major, Options, Server, Shutdown};
use rstest::rstest;

use crate::site::{Site, assert_names, files_below, recover, refused};

/// The sum over a table of 5000 rows that the tests below make.
const SUM: &str = "SELECT count(*), sum(n) FROM";
const SUMMED: &str = "5000|12502500";

fn table(name: &str, kind: &str, place: &str) -> String {
    format!("CREATE {kind} TABLE {name} {place} AS SELECT n FROM generate_series(1, 5000) n;")
}

#[rstest]
fn tablespaces_come_back_where_they_were_or_where_they_are_mapped(#[values(Major::V15, Major::V18)] major: Major) {
    let mut site = Site::new(major);
    let place = Scratch::new();
    let (far, elsewhere) = (place.directory("far"), place.path().join("else where"));
    site.server.sql(&format!("CREATE TABLESPACE far LOCATION '{}'", far.display()));
    let mut session = site.server.client("postgres");
    // One by one: a tablespace is made in no transaction.
    session.batch_execute("SET allow_in_place_tablespaces = on").unwrap();
    session.batch_execute("CREATE TABLESPACE near LOCATION ''").unwrap();
    site.server.sql(&table("distant", "", "TABLESPACE far"));
    site.server.sql(&table("inside", "", "TABLESPACE near"));
    site.backup();
    site.archive_all();

    // The original is in use: nothing may be written there, and nothing is.
    let before = files_below(&far);
    let error = refused(&site.try_restore(&[]), 3);
    assert_names(&error, &[far.to_str().unwrap(), "is not empty", "nothing was touched"]);
    assert_eq!(files_below(&far), before);

    let map = format!("{}={}", far.display(), elsewhere.display());
    let copy = site.recover(&["--tablespace-map", &map]);
    let places = "SELECT string_agg(pg_tablespace_location(oid), ',' ORDER BY spcname)
                    FROM pg_tablespace WHERE spcname IN ('far', 'near')";
    let [at_far, at_near] =
        <[String; 2]>::try_from(copy.server.psql(places).split(',').map(str::to_owned).collect::<Vec<_>>()).unwrap();
    assert_eq!(PathBuf::from(at_far), elsewhere);
    assert!(at_near.starts_with("pg_tblspc/"), "{at_near}");
    assert_eq!(copy.server.psql(&format!("{SUM} distant")), SUMMED);
    assert_eq!(copy.server.psql(&format!("{SUM} inside")), SUMMED);
    drop(copy);

    let unknown = refused(&site.try_restore(&["--tablespace-map", "/no/such=/tmp/x"]), 3);
    assert_names(&unknown, &["/no/such", far.to_str().unwrap()]);

    // A drill puts tablespaces into its scratch directory, never onto the original.
    let drill = site.agent.json(&["drill", "--scratch", place.directory("drill").to_str().unwrap()]);
    assert_eq!(drill["verdict"], "passed", "{drill}");
    assert_eq!(files_below(&far), before);

    site.server.stop(Shutdown::Fast);
    fs::remove_dir_all(&far).unwrap();
    place.directory("far");
    let copy = site.recover(&[]);
    assert_eq!(copy.server.psql(&format!("{SUM} distant")), SUMMED);
    assert!(!files_below(&far).is_empty());
}

#[rstest]
fn unlogged_tables_come_back_empty_and_temporary_ones_not_at_all(
    #[values(Major::V15, Major::V16, Major::V17, Major::V18)] major: Major,
) {
    let site = Site::new(major);
    site.server.sql(&table("fleeting", "UNLOGGED", ""));
    site.server.sql("CREATE INDEX fleeting_n ON fleeting (n)");
    let mut session = site.server.client("postgres");
    session.batch_execute(&table("passing", "TEMPORARY", "")).unwrap();
    site.server.sql(&table("lasting", "", ""));
    site.server.sql("CHECKPOINT");
    site.backup();
    site.archive_all();

    let copy = site.recover(&[]);
    assert_eq!(copy.server.psql(&format!("{SUM} lasting")), SUMMED);
    assert_eq!(copy.server.psql("SELECT count(*) FROM fleeting"), "0");
    copy.server.sql("INSERT INTO fleeting VALUES (1)");
    assert_eq!(copy.server.psql("SET enable_seqscan = off; SELECT n FROM fleeting WHERE n = 1"), "1");
    let base = copy.server.data_directory().join("base");
    let temporary = |file: &&PathBuf| file.file_name().unwrap().to_str().unwrap().starts_with('t');
    assert_eq!(files_below(&base).iter().filter(temporary).count(), 0);
    let source = files_below(&site.server.data_directory().join("base"));
    assert!(source.iter().filter(temporary).count() > 0, "the source has temporary files while the session lasts");
}

/// Case E7: names of segments follow from the size that the backup knows, whatever fetches them side by side.
#[test]
fn segments_of_64_mib_are_all_fetched() {
    let site = Site::with(Major::V17, Options::new().wal_segment_mib(64));
    site.server.sql("CREATE TABLE steps (step int)");
    let second = site.second_agent();
    let backup = site.paused_backup(&second, "end the backup in the server");
    for step in 1..=3 {
        site.server.sql(&format!("INSERT INTO steps VALUES ({step})"));
        site.archive_all();
    }
    backup.resume();
    let report = backup.wait(crate::site::PATIENCE);
    report.expect_code(0);
    assert_eq!(report.json()["record"]["wal_segment_size"], 64 << 20);
    for step in 4..=6 {
        site.server.sql(&format!("INSERT INTO steps VALUES ({step})"));
        site.archive_all();
    }
    let steps = "SELECT array_agg(step ORDER BY step) FROM steps";
    assert_eq!(site.recover(&["--threads", "4"]).server.psql(steps), "{1,2,3,4,5,6}");
    let immediate = site.recover(&["--threads", "4", "--target-immediate"]);
    assert_eq!(immediate.server.psql(steps), "{1,2,3}");
    assert_eq!(immediate.server.psql("SHOW wal_segment_size"), "64MB");
    site.agent.run(&["verify", "all"]).expect_code(0);
}

#[rstest]
fn what_is_dropped_truncated_grown_and_made_during_the_copy_is_as_it_was_at_the_end(
    #[values(Major::V15, Major::V16, Major::V17, Major::V18)] major: Major,
) {
    let site = Site::new(major);
    site.server.sql("CREATE DATABASE doomed");
    site.server.client("doomed").batch_execute(&table("lost", "", "")).unwrap();
    for name in ["dropped", "truncated", "grown", "rewritten"] {
        site.server.sql(&table(name, "", ""));
    }
    site.server.sql("CHECKPOINT");
    let second = site.second_agent();
    // The files are listed, and not one is read yet.
    let backup = site.paused_backup(&second, "copy the server's files");
    site.server.sql("DROP DATABASE doomed WITH (FORCE)");
    site.server.sql("DROP TABLE dropped; TRUNCATE truncated; INSERT INTO grown SELECT generate_series(5001, 200000)");
    site.server.sql(&table("made", "", ""));
    site.server.sql("VACUUM FULL rewritten");
    site.server.sql("CREATE DATABASE fresh STRATEGY file_copy");
    site.server.client("fresh").batch_execute(&table("first", "", "")).unwrap();
    site.server.sql("CHECKPOINT");
    backup.resume();
    backup.wait(crate::site::PATIENCE).expect_code(0);

    let copy = site.recover(&["--target-immediate"]);
    assert_eq!(copy.server.psql("SELECT datname FROM pg_database WHERE datname IN ('doomed', 'fresh')"), "fresh");
    assert_eq!(copy.server.psql("SELECT to_regclass('dropped') IS NULL, count(*) FROM truncated"), "t|0");
    assert_eq!(copy.server.psql("SELECT count(*), max(n) FROM grown"), "200000|200000");
    assert_eq!(copy.server.psql(&format!("{SUM} made")), SUMMED);
    assert_eq!(copy.server.psql(&format!("{SUM} rewritten")), SUMMED);
    let first: i64 = copy.server.client("fresh").query_one("SELECT sum(n) FROM first", &[]).unwrap().get(0);
    assert_eq!(first, 12_502_500);
    site.agent.run(&["verify"]).expect_code(0);
}

#[rstest]
fn a_database_without_checksums_is_backed_up_and_comes_back(#[values(Major::V15, Major::V18)] major: Major) {
    let site = Site::with(major, Options::new().without_checksums());
    site.server.sql(&table("lasting", "", ""));
    assert_eq!(site.backup()["record"]["data_checksums"], false);
    let copy = site.recover(&["--target-immediate"]);
    assert_eq!(copy.server.psql("SHOW data_checksums"), "off");
    assert_eq!(copy.server.psql(&format!("{SUM} lasting")), SUMMED);
}

#[test]
fn a_log_directory_on_another_disk_is_no_obstacle() {
    let mut site = Site::new(Major::V15);
    let disk = Scratch::new();
    site.server.stop(Shutdown::Fast);
    let (inside, outside) = (site.server.data_directory().join("pg_wal"), disk.path().join("wal"));
    account::run(Command::new("mv").arg(&inside).arg(&outside));
    symlink(&outside, &inside).unwrap();
    site.server.start();
    site.server.sql(&table("lasting", "", ""));
    site.backup();
    site.archive_all();
    let copy = site.recover(&[]);
    assert_eq!(copy.server.psql(&format!("{SUM} lasting")), SUMMED);
    assert!(is_directory(&copy.server, "pg_wal") && files_below(&outside).len() > 1);
}

fn is_directory(server: &Server, name: &str) -> bool {
    let path: &Path = &server.data_directory().join(name);
    path.symlink_metadata().unwrap().is_dir()
}

#[test]
fn large_values_and_strange_names_come_back_as_they_were() {
    let site = Site::new(Major::V16);
    site.server.sql(
        "CREATE TABLE \"ta ble'ü\" AS SELECT repeat(md5(n::text), 3000) AS wide FROM generate_series(1, 50) n;
         SELECT lo_from_bytea(4711, '\\x00ff00')",
    );
    site.server.sql("CREATE DATABASE \"Da ta\"");
    let digest = "SELECT md5(string_agg(wide, '' ORDER BY wide)) FROM \"ta ble'ü\"";
    let before = site.server.psql(digest);
    site.backup();
    let copy = recover(&site.agent, Major::V16, &["--target-immediate"]);
    assert_eq!(copy.server.psql(digest), before);
    assert_eq!(copy.server.psql("SELECT lo_get(4711)"), "\\x00ff00");
    assert_eq!(copy.server.psql("SELECT count(*) FROM pg_database WHERE datname = 'Da ta'"), "1");
}
