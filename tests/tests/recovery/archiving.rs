//! The archive: nothing is acknowledged that is not stored, nothing stored is ever overwritten.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;

use holdfast_tests::account::{self, Scratch};
use holdfast_tests::ledger::{self, Load, Pace, Target};
use holdfast_tests::postgres::{Major, Options, Server, Shutdown};
use holdfast_tests::wait;
use rstest::rstest;

use crate::site::{PATIENCE, Site, assert_names, recover, refused, text};

fn failures(server: &Server) -> i64 {
    server.value("SELECT failed_count FROM pg_stat_archiver")
}

/// Where a segment of timeline 1 is stored.
fn stored(site: &Site, segment: &str) -> PathBuf {
    let list = site.list();
    let (system, lineage) = (text(&list["system_id"]), text(&list["lineage"]));
    site.repository().join(system).join("lineages").join(lineage).join("log/00000001").join(segment)
}

/// Makes the first try of each segment die at another step of it, each time a later one.
fn dying_archiver(site: &Site) -> PathBuf {
    let (tries, script) = (site.scratch.directory("tries"), site.scratch.path().join("dying"));
    let text = format!(
        "#!/bin/sh\n\
         if [ ! -e {tries}/$(basename \"$1\") ]; then\n\
         \x20 touch {tries}/$(basename \"$1\")\n\
         \x20 HOLDFAST_KILL_AT_STEP=$(ls {tries} | wc -l) {agent} wal-push \"$1\"\n\
         \x20 exit 1\n\
         fi\n\
         exec {agent} wal-push \"$1\"\n",
        tries = tries.display(),
        agent = site.agent.script().display()
    );
    fs::write(&script, text).unwrap();
    fs::set_permissions(&script, Permissions::from_mode(0o755)).unwrap();
    script
}

/// Case B1: the store is away under load, and wal-push dies at every step; no row that was acknowledged is missing
/// afterwards, and the log has no hole.
#[test]
fn a_store_that_was_away_and_a_killed_archiver_leave_no_gap() {
    let site = Site::new(Major::V15);
    ledger::create_table(&mut site.server.client("postgres"));
    site.backup();
    let load = Load::start(&site.server.config("postgres"), Pace::default());
    load.wait_for(50);

    let closed = |mode| fs::set_permissions(site.repository(), Permissions::from_mode(mode)).unwrap();
    closed(0o000);
    let before = failures(&site.server);
    let missed: Vec<String> = (0..3)
        .map(|_| {
            load.wait_for(50);
            site.server.switch_wal()
        })
        .collect();
    wait::until_seen(PATIENCE, "wal-push to fail", || match failures(&site.server) - before {
        failed if failed >= 2 => Ok(()),
        failed => Err(failed),
    });
    assert!(!site.server.value::<bool>(&format!("SELECT last_archived_wal >= '{}' FROM pg_stat_archiver", missed[0])));
    assert!(site.server.data_directory().join("pg_wal/archive_status").join(format!("{}.ready", missed[0])).exists());
    closed(0o700);

    let script = dying_archiver(&site);
    site.server.psql(&format!("ALTER SYSTEM SET archive_command = '{} %p'", script.display()));
    site.server.sql("SELECT pg_reload_conf()");
    for _ in 0..6 {
        load.wait_for(30);
        site.archive_all();
    }
    let record = load.stop();
    site.archive_all();
    let tries = fs::read_dir(site.scratch.path().join("tries")).unwrap().count();
    assert!(tries >= 7, "{tries} segments had a first try that was killed");

    site.agent.run(&["verify", "all"]).expect_code(0);
    assert!(site.list()["windows"].as_array().unwrap().iter().all(|window| window["hole"].is_null()));
    let seen = site.recover(&[]).check(&record, &Target::Latest);
    assert_eq!(seen.required, record.rows.len());
}

/// Case B1: an empty mount point is not the store.
#[test]
fn an_archive_that_is_not_mounted_is_not_begun_anew() {
    let site = Site::new(Major::V16);
    site.backup();
    site.archive_all();
    let away = site.repository().with_extension("away");
    fs::rename(site.repository(), &away).unwrap();
    fs::create_dir(site.repository()).unwrap();
    account::hand_over(site.repository());
    let segment = site.server.switch_wal();
    let before = failures(&site.server);
    wait::until_seen(PATIENCE, "wal-push to fail", || {
        let archived: String = site.server.value("SELECT last_archived_wal FROM pg_stat_archiver");
        assert_ne!(archived, segment, "it was acknowledged into an empty directory");
        if failures(&site.server) > before { Ok(()) } else { Err(archived) }
    });
    assert_names(&site.server.log(), &[site.agent.repository(), "mounted"]);
    fs::remove_dir_all(site.repository()).unwrap();
    fs::rename(&away, site.repository()).unwrap();
    site.archive_all();
    assert!(stored(&site, &segment).exists());
}

/// Case B2 (a): the answer to a push was lost, and PostgreSQL pushes again.
#[test]
fn the_same_segment_may_be_archived_again() {
    let site = Site::new(Major::V18);
    site.backup();
    let segment = site.server.switch_wal();
    site.server.wait_archived(&segment);
    let path = site.server.data_directory().join("pg_wal").join(&segment);
    for _ in 0..2 {
        let report = site.agent.json(&["wal-push", path.to_str().unwrap()]);
        assert_eq!((&report["file"], &report["already_stored"]), (&segment.clone().into(), &true.into()));
    }
}

/// Case B2 (b): two servers had the same past and go on under the same name. The second is refused, says both digests,
/// and nothing of the first is lost.
#[test]
fn another_segment_of_the_same_name_is_refused_and_never_overwrites() {
    let mut site = Site::new(Major::V15);
    site.server.sql("CREATE TABLE who (name text)");
    site.backup();
    site.server.stop(Shutdown::Fast);
    let twin = site.server.data_directory().with_extension("twin");
    account::run(Command::new("cp").arg("-a").arg(site.server.data_directory()).arg(&twin));
    site.server.start();
    site.server.sql("INSERT INTO who VALUES ('first')");
    let segment = site.server.switch_wal();
    site.server.wait_archived(&segment);
    site.server.stop(Shutdown::Fast);
    let kept = fs::read(stored(&site, &segment)).unwrap();

    fs::rename(site.server.data_directory(), twin.with_extension("first")).unwrap();
    fs::rename(&twin, site.server.data_directory()).unwrap();
    site.server.start();
    site.server.sql("INSERT INTO who VALUES ('second')");
    assert_eq!(site.server.switch_wal(), segment);
    wait::until_seen(PATIENCE, "the archiver to be refused", || {
        let log = site.server.log();
        if log.contains("never overwritten") || log.contains("other content") { Ok(()) } else { Err(log) }
    });
    let path = site.server.data_directory().join("pg_wal").join(&segment);
    let error = refused(&site.agent.run(&["--output", "json", "wal-push", path.to_str().unwrap()]), 3);
    assert_eq!(error.matches("blake3 ").count(), 2, "{error}");
    assert_names(&error, &[&segment, "--new-lineage"]);
    assert_eq!(fs::read(stored(&site, &segment)).unwrap(), kept);
    assert!(path.exists(), "the refused segment stays with the server");
    assert_eq!(site.recover(&[]).server.psql("SELECT name FROM who"), "first");
}

/// Case B5: a cluster that was made anew writes to the repository of the old one.
#[test]
fn a_new_cluster_does_not_write_over_the_old_one_and_may_live_beside_it() {
    let old = Site::new(Major::V16);
    ledger::create_table(&mut old.server.client("postgres"));
    let load = Load::start(&old.server.config("postgres"), Pace::default());
    load.wait_for(50);
    old.backup();
    load.wait_for(50);
    let record = load.stop();
    old.archive_all();
    let system = text(&old.list()["system_id"]);
    let Site { server, agent: old_agent, scratch } = old;
    drop(server);

    let repository = scratch.path().join("repository");
    let new = Site::in_repository(Major::V16, Options::new(), Scratch::new(), &repository);
    new.server.sql("CREATE TABLE who AS SELECT 'new'::text AS name");
    let error = refused(&new.agent.run(&["--output", "json", "backup", "--data-dir", new.data()]), 3);
    let own: String = new.server.value("SELECT system_identifier::text FROM pg_control_system()");
    assert_names(&error, &[&system, &own, "nothing was written", "--new-lineage"]);
    let segment = new.server.switch_wal();
    let path = new.server.data_directory().join("pg_wal").join(&segment);
    let error = refused(&new.agent.run(&["--output", "json", "wal-push", path.to_str().unwrap()]), 3);
    assert_names(&error, &[&system, &own, "nothing was written"]);
    assert!(!repository.join(&own).exists(), "nothing was written");

    new.agent.json(&["backup", "--new-lineage", "--data-dir", new.data()]);
    new.archive_all();
    let ambiguous = refused(&new.agent.run(&["--output", "json", "list"]), 3);
    assert_names(&ambiguous, &["--system-id", &system, &own]);
    let copy = recover(&new.agent, Major::V16, &["--system-id", &own]);
    assert_eq!(copy.server.psql("SELECT name FROM who"), "new");
    let copy = recover(&old_agent, Major::V16, &["--system-id", &system]);
    assert_eq!(copy.check(&record, &Target::Latest).required, record.rows.len());
    for id in [&system, &own] {
        new.agent.run(&["--system-id", id, "verify", "all"]).expect_code(0);
    }
}

/// A copy of a server, running beside it, is another history: its log is not mixed with that of its original.
#[rstest]
fn a_copy_that_is_put_to_use_archives_to_a_lineage_of_its_own(#[values(Major::V17)] major: Major) {
    let site = Site::new(major);
    site.server.sql("CREATE TABLE who AS SELECT 'original'::text AS name");
    site.backup();
    let copy = site.recover(&["--target-immediate"]);
    let data = copy.server.data_directory().to_str().unwrap().to_owned();
    let Copied { mut server, agent } = Copied::of(&site, &copy.server);
    drop(copy.report);
    let mut first = copy.server;
    first.stop(Shutdown::Fast);
    server.start();
    server.sql("UPDATE who SET name = 'copy'");
    let original = text(&site.list()["lineage"]);
    let error = refused(&agent.run(&["--output", "json", "backup", "--data-dir", &data]), 3);
    assert_names(&error, &["nothing was written", "--new-lineage", "--lineage"]);
    let report = agent.json(&["backup", "--new-lineage", "--data-dir", &data]);
    server.wait_archived(&server.switch_wal());
    site.server.sql("UPDATE who SET name = 'changed'");
    site.archive_all();

    let lineage = text(&report["lineage"]);
    let restored = recover(&agent, major, &["--lineage", &lineage]);
    assert_eq!(restored.server.psql("SELECT name FROM who"), "copy");
    let restored = recover(&agent, major, &["--lineage", &original]);
    assert_eq!(restored.server.psql("SELECT name FROM who"), "changed");
}

struct Copied {
    server: Server,
    agent: holdfast_tests::agent::Agent,
}

impl Copied {
    /// A server over the copy's data directory that archives.
    fn of(site: &Site, copy: &Server) -> Self {
        let agent = site.second_agent();
        let archive = format!("archive_command={}", agent.archive_command());
        let options = Options::new().setting("archive_mode=on").setting(archive);
        let server = Server::over(site.server.major(), copy.data_directory(), &options);
        let agent = agent.connect_to(&server);
        Self { server, agent }
    }
}
