//! What is refused: before anything is touched, with the reason, the thing and the next step.

use std::fs;
use std::time::Duration;

use holdfast_tests::account::Scratch;
use holdfast_tests::agent::Agent;
use holdfast_tests::postgres::{Major, Options, Server, Shutdown};
use rstest::rstest;

use crate::site::{PATIENCE, Site, assert_names, files_below, refused, rfc3339, text};

const MARKER: &str = "swordfish-7Qx";

#[test]
fn a_directory_that_is_no_data_directory_or_not_this_servers_is_refused() {
    let site = Site::new(Major::V16);
    let site_backup = |data: &str| refused(&site.agent.run(&["--output", "json", "backup", "--data-dir", data]), 3);
    let empty = Scratch::new();
    assert_names(&site_backup(empty.path().to_str().unwrap()), &[empty.path().to_str().unwrap(), "PG_VERSION"]);
    assert_names(&site_backup("/no/such/place"), &["/no/such/place", "No such file or directory"]);
    let other = Server::create(Major::V15, &Options::new());
    let id: String = other.value("SELECT system_identifier::text FROM pg_control_system()");
    let error = site_backup(other.data_directory().to_str().unwrap());
    assert_names(&error, &[&id, site.data(), "--data-dir", "--host"]);
    assert!(!site.repository().join(&id).exists(), "nothing was written for it");
}

/// A stale copy has the identity of the server that answers; to read it while the other is in backup mode gives nothing.
#[test]
fn a_copy_of_the_data_directory_is_not_taken_for_the_servers_own() {
    let mut site = Site::new(Major::V17);
    site.backup();
    let scratch = Scratch::new();
    let copy = scratch.path().join("copy");
    let path = copy.to_str().unwrap();
    site.agent.json(&["restore", "--recover", "--target-immediate", "--data-dir", path]);
    let lineage = text(&site.list()["lineage"]);
    for how in [&["--new-lineage"][..], &["--lineage", &lineage]] {
        let command = ["--output", "json", "backup", "--data-dir", path];
        let error = refused(&site.agent.run(&[&command[..], how].concat()), 3);
        assert_names(&error, &["does not run on", path, site.data()]);
    }
    assert_eq!(site.backups().len(), 1);
    site.server.restart();
    site.backup();
}

#[test]
fn a_server_that_is_down_or_elsewhere_is_named_with_how_it_was_sought() {
    let mut site = Site::new(Major::V15);
    let backup = ["--output", "json", "backup", "--data-dir", site.data()].map(str::to_owned);
    let backup: Vec<&str> = backup.iter().map(String::as_str).collect();
    site.server.stop(Shutdown::Fast);
    let error = refused(&site.agent.run(&backup), 3);
    let socket = site.server.socket_directory().join(".s.PGSQL.5432");
    assert_names(&error, &[socket.to_str().unwrap(), "user postgres", "--host"]);
    let error = refused(&site.agent.run(&[&backup[..], &["--host", "127.0.0.1", "--port", "1"]].concat()), 3);
    assert_names(&error, &["127.0.0.1", "1", "Connection refused"]);
    let error = refused(&site.agent.run(&[&backup[..], &["--host", "no-such-host.invalid"]].concat()), 3);
    assert_names(&error, &["no-such-host.invalid"]);
}

/// Passwords by every way they can come; and the wrong one, which is never repeated.
#[rstest]
fn a_password_comes_from_a_file_or_the_environment_and_is_never_shown(#[values(Major::V15, Major::V18)] major: Major) {
    let site = Site::with(major, Options::new().tcp().password(MARKER));
    let port = site.server.port().to_string();
    let address = ["--host", "127.0.0.1", "--port", &port, "--user", "postgres"];
    let command =
        [&["--output", "json", "--log-level", "trace", "backup", "--data-dir", site.data()], &address[..]].concat();
    let file = site.server.password_file();
    let home = Scratch::new();
    fs::copy(&file, home.path().join(".pgpass")).unwrap();
    holdfast_tests::account::hand_over(&home.path().join(".pgpass"));
    let plain = || Agent::new(site.agent.repository());
    let shown = |outcome: &holdfast_tests::agent::Outcome| {
        assert!(!format!("{}{}", outcome.stdout, outcome.stderr).contains(MARKER), "the password is shown");
    };
    let ways = [
        plain().env("PGPASSWORD", MARKER),
        plain().env("PGPASSFILE", file.to_str().unwrap()),
        plain().env("HOME", home.path().to_str().unwrap()),
    ];
    for way in &ways {
        let outcome = way.run(&command);
        outcome.expect_code(0);
        shown(&outcome);
    }
    let outcome = plain().run(&[&command[..], &["--passfile", file.to_str().unwrap()]].concat());
    outcome.expect_code(0);
    shown(&outcome);

    // By the socket, too, a password is demanded here.
    let outcome = plain().run(&command);
    assert_names(&refused(&outcome, 3), &["password", "127.0.0.1", "postgres"]);
    let wrong = format!("{MARKER}-but-wrong");
    let outcome = plain().env("PGPASSWORD", &wrong).run(&command);
    assert_names(&refused(&outcome, 3), &["password authentication failed", "postgres"]);
    shown(&outcome);
    let argument = format!("--password={MARKER}");
    let outcome = plain().run(&[&command[..], &[&argument]].concat());
    assert_names(&refused(&outcome, 2), &["gives a secret", "--passfile", "PGPASSWORD"]);
    shown(&outcome);
    let loose = site.scratch.path().join("loose");
    fs::copy(&file, &loose).unwrap();
    fs::set_permissions(&loose, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    let outcome = plain().run(&[&command[..], &["--passfile", loose.to_str().unwrap()]].concat());
    assert_names(&refused(&outcome, 3), &[loose.to_str().unwrap()]);
    shown(&outcome);
    // Nor is it in the repository or the server's log.
    for file in files_below(site.repository()) {
        let content = fs::read(site.repository().join(&file)).unwrap();
        assert!(!content.windows(MARKER.len()).any(|window| window == MARKER.as_bytes()), "{file:?}");
    }
    assert!(!site.server.log().contains(MARKER));
}

#[rstest]
#[case::minimal(&["wal_level=minimal", "max_wal_senders=0", "archive_mode=off"], &["wal_level = minimal", "wal_level = replica", "restart"])]
#[case::no_archive(&["archive_mode=off"], &["archive_mode = off", "archive_mode = on", "wal-push", "restart"])]
#[case::no_command(&["archive_command="], &["archive_command", "wal-push", "reload"])]
fn a_server_whose_backups_could_not_be_restored_is_refused_with_the_setting_to_change(
    #[case] settings: &[&str],
    #[case] words: &[&str],
) {
    let options = settings.iter().fold(Options::new(), |options, setting| options.setting(*setting));
    let site = Site::with(Major::V17, options);
    let error = refused(&site.agent.run(&["--output", "json", "backup", "--data-dir", site.data()]), 3);
    assert_names(&error, words);
    assert!(site.agent.run(&["--output", "json", "list"]).stdout.matches("\"id\"").next().is_none());
}

#[test]
fn targets_outside_of_what_is_stored_are_refused_with_what_is_possible() {
    let site = Site::new(Major::V18);
    let none = refused(&site.try_restore(&[]), 3);
    assert_names(&none, &[site.agent.repository(), "backup"]);
    let start = site.now();
    let backup = site.backup();
    let watch = site.watch();
    watch.wait_stored(site.server.flushed());
    watch.stop();
    let window = site.list()["windows"][0].clone();
    let [first_time, first_lsn, last_time, last_lsn] =
        ["from_time", "from_position", "until_time", "until_position"].map(|name| text(&window[name]));
    assert_eq!(Some(first_lsn.as_str()), backup["stop_lsn"].as_str());

    let early = rfc3339(start - Duration::from_mins(1));
    let late = rfc3339(site.now() + Duration::from_mins(1));
    let refused_by = |arguments: &[&str]| refused(&site.try_restore(&[&["--recover"], arguments].concat()), 3);
    assert_names(&refused_by(&["--target-time", &early]), &[&first_time, &first_lsn]);
    assert_names(&refused_by(&["--target-time", &late]), &[&last_time, &last_lsn, "latest"]);
    assert_names(&refused_by(&["--target-lsn", "0/100"]), &["0/100", &first_time, &first_lsn]);
    assert_names(&refused_by(&["--target-lsn", "FF/0"]), &["FF/0", &last_lsn]);
    assert_names(&refused_by(&["--target-timeline", "7"]), &["timeline 7"]);
    let id = text(&backup["backup_id"]);
    let no_such = format!("{}ffffff", &id[..id.len() - 6]);
    assert_names(&refused_by(&[&no_such]), &[&no_such, "list"]);
    for (target, value) in [("--target-lsn", "0/XYZ"), ("--target-lsn", "5000"), ("--target-timeline", "0")] {
        refused(&site.try_restore(&[target, value]), 2);
    }
    let two = ["--target-immediate", "--target-lsn", &first_lsn];
    refused(&site.try_restore(&two), 2);

    // Whether a restore point exists, only the log can tell.
    let outcome = site.try_restore(&["--recover", "--target-name", "no-such-point"]);
    assert_ne!(outcome.code(), Some(0));
    assert_names(&text(&outcome.error()["error"]), &["no-such-point"]);
}

/// A restore point older than the newest backup is in the log before it.
#[test]
fn a_restore_point_before_the_newest_backup_is_reached_from_an_older_one_that_is_named() {
    let site = Site::new(Major::V15);
    site.server.sql("CREATE TABLE steps AS SELECT 1 AS step");
    let first = text(&site.backup()["backup_id"]);
    site.server.value::<postgres::types::PgLsn>("SELECT pg_create_restore_point('release')");
    site.server.sql("INSERT INTO steps VALUES (2)");
    let second = text(&site.backup()["backup_id"]);
    site.archive_all();
    let copy = site.recover(&[&first, "--target-name", "release"]);
    assert_eq!(copy.server.psql("SELECT max(step) FROM steps"), "1");
    // From the newest it is not found, which must be said, with what to do.
    let outcome = site.try_restore(&[&second, "--recover", "--target-name", "release"]);
    assert_ne!(outcome.code(), Some(0), "{}", outcome.stdout);
    assert_names(&text(&outcome.error()["error"]), &["release", "backup"]);
}

#[test]
fn a_second_backup_is_told_that_one_runs_and_a_prune_too() {
    let site = Site::new(Major::V16);
    site.backup();
    let other = site.second_agent();
    let first = site.paused_backup(&other, "copy the server's files");
    let error = refused(&site.agent.run(&["--output", "json", "backup", "--data-dir", site.data()]), 3);
    assert_names(&error, &["another backup", "is running", &first.pid().to_string()]);
    let error = refused(&site.agent.run(&["--output", "json", "prune", "--keep", "1"]), 3);
    assert_names(&error, &["backup"]);
    // Reading goes on beside it.
    assert_eq!(site.backups().len(), 1);
    site.agent.run(&["verify"]).expect_code(0);
    first.resume();
    first.wait(PATIENCE).expect_code(0);
    assert_eq!(site.backups().len(), 2);
    site.backup();
}

/// A backup that died does not stop the next one, and leaves the server out of backup mode.
#[test]
fn a_backup_that_was_killed_does_not_stop_the_next_one() {
    let site = Site::new(Major::V15);
    let other = site.second_agent();
    let first = site.paused_backup(&other, "end the backup in the server");
    first.kill();
    site.backup();
    assert_eq!(site.backups().len(), 1);
}

#[test]
fn a_directory_that_is_in_use_is_not_restored_into() {
    let site = Site::new(Major::V17);
    site.backup();
    let command = ["--output", "json", "restore", "--recover", "--data-dir", site.data()];
    let before = site.server.psql("SELECT count(*) FROM pg_class");
    for more in [&[][..], &["--delta"]] {
        let error = refused(&site.agent.run(&[&command[..], more].concat()), 3);
        assert_names(&error, &["a server runs on", site.data(), &site.server.pid().to_string(), "nothing was touched"]);
    }
    assert_eq!(site.server.psql("SELECT count(*) FROM pg_class"), before);
}
