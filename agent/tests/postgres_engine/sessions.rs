//! What the running server says, and the session of a backup.

use std::process::Stdio;

use holdfast_agent::engine::postgres::connection::{ConnectOptions, connect};
use holdfast_agent::engine::postgres::control;
use holdfast_agent::engine::postgres::inventory::inventory;
use holdfast_agent::engine::postgres::lsn::Timeline;
use holdfast_agent::engine::postgres::session::{BackupSession, Checkpoint, SessionError, facts};

use crate::cluster::{Cluster, bin, command, succeed, text, until};

#[test]
fn the_facts_are_those_of_the_control_file() {
    let cluster = Cluster::started();
    let facts = facts(&mut cluster.client()).unwrap();
    let control = control::read(&cluster.data()).unwrap();
    assert_eq!(facts.system_identifier, control.system_identifier);
    assert_eq!(facts.catalog_version, control.catalog_version);
    assert_eq!(facts.data_directory, cluster.data());
    assert_eq!(facts.wal_segment_size, control.wal_segment_size);
    assert_eq!(facts.wal_segment_size.bytes(), 1024 * 1024);
    assert_eq!((facts.in_recovery, facts.timeline), (false, Timeline(1)));
    assert_eq!((facts.wal_level.as_str(), facts.archive_mode.as_str()), ("replica", "on"));
    assert!(facts.archive_command.ends_with("/archive/%f"), "{}", facts.archive_command);
    assert_eq!((facts.data_checksums, facts.block_size, facts.full_page_writes), (true, 8192, true));
    assert_eq!(facts.superuser, "postgres");
    assert_eq!(facts.major(), control::major_version(&cluster.data()).unwrap());
    assert!(facts.started <= facts.now);
}

#[test]
fn a_session_looks_names_up_in_the_catalog_only() {
    let cluster = Cluster::started();
    cluster.run(
        "ALTER ROLE postgres SET search_path = public, pg_catalog; ALTER ROLE postgres SET timezone = 'Asia/Tokyo'",
    );
    let mut client = cluster.client();
    assert_eq!(text(&mut client, "current_setting('search_path')"), "pg_catalog");
    assert_eq!(text(&mut client, "current_setting('timezone')"), "UTC");
    assert_eq!(text(&mut client, "current_setting('application_name')"), "holdfast-agent");
}

#[test]
fn a_cluster_without_the_usual_database_is_asked_in_another() {
    let cluster = Cluster::started();
    let mut other = connect(&cluster.options(), Some("template1")).unwrap();
    other.batch_execute("DROP DATABASE postgres").unwrap();
    assert_eq!(text(&mut cluster.client(), "current_database()"), "template1");
    let error = connect(&cluster.options(), Some("postgres")).err().unwrap();
    assert!(error.to_string().contains("database \"postgres\" does not exist"), "{error}");
}

#[test]
fn a_backup_has_a_label_and_a_tablespace_map_and_ends_later_than_it_began() {
    let cluster = Cluster::started();
    let (mut session, started) = BackupSession::start(cluster.client(), "hold fast", Checkpoint::Fast).unwrap();
    assert!(session.is_alive());
    assert_eq!((started.on_standby, started.timeline), (false, Timeline(1)));
    cluster.run("CREATE TABLE t AS SELECT 1");
    let stopped = session.stop(false).unwrap();
    assert!(stopped.stop_lsn > started.start_lsn && stopped.at > started.at);
    assert_eq!((stopped.timeline, stopped.tablespace_map.as_slice()), (Timeline(1), b"".as_slice()));
    let label = String::from_utf8(stopped.backup_label).unwrap();
    assert!(label.starts_with(&format!("START WAL LOCATION: {} (file ", started.start_lsn)), "{label}");
    assert!(label.contains("\nLABEL: hold fast\n") && label.ends_with("START TIMELINE: 1\n"), "{label}");
    assert!(!cluster.data().join("backup_label").exists());
}

#[test]
fn a_backup_whose_session_was_ended_is_void() {
    let cluster = Cluster::started();
    let (mut session, _) = BackupSession::start(cluster.client(), "x", Checkpoint::Fast).unwrap();
    cluster.run(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
         WHERE application_name = 'holdfast-agent' AND pid <> pg_backend_pid()",
    );
    until("the session is gone", || (!session.is_alive()).then_some(()));
    let error = session.stop(false).unwrap_err();
    assert!(matches!(error, SessionError::Lost { .. }), "{error:?}");
    assert!(error.to_string().ends_with("the backup is void"), "{error}");
    assert!(error.is_transient());
}

#[test]
fn a_role_without_rights_is_told_which_it_lacks_and_they_are_enough() {
    let cluster = Cluster::started();
    cluster.run("CREATE ROLE \"Keeper\" LOGIN");
    let options = ConnectOptions { user: Some("Keeper".into()), ..cluster.options() };
    let open = || connect(&options, None).unwrap();
    let error = facts(&mut open()).unwrap_err().to_string();
    let expected = "role Keeper may not see data_directory: it is not shown. A superuser can change that with: ";
    assert_eq!(error, format!("{expected}GRANT pg_read_all_settings TO \"Keeper\""));
    let Err(error) = BackupSession::start(open(), "x", Checkpoint::Fast) else { panic!("it may") };
    let error = error.to_string();
    let (_, grants) = error.split_once("A superuser can change that with: ").unwrap();
    cluster.run(grants);
    assert_eq!(facts(&mut open()).unwrap().data_directory, cluster.data());
    let (session, _) = BackupSession::start(open(), "x", Checkpoint::Fast).unwrap();
    session.stop(false).unwrap();
}

#[test]
fn a_server_that_keeps_too_little_log_is_refused() {
    let mut cluster = Cluster::new();
    cluster.start(&["wal_level=minimal", "archive_mode=off", "max_wal_senders=0"]);
    let Err(error) = BackupSession::start(cluster.client(), "x", Checkpoint::Fast) else { panic!("it began") };
    assert!(matches!(error, SessionError::WalLevel), "{error:?}");
}

#[test]
fn a_backup_from_a_standby_that_is_promoted_meanwhile_is_void() {
    let primary = Cluster::started();
    let mut standby = Cluster::new();
    std::fs::remove_dir_all(standby.data()).unwrap();
    let mut copy = command(bin().join("pg_basebackup"));
    copy.arg("-h").arg(primary.root.path()).args(["-U", "postgres", "--no-sync", "-c", "fast", "-R", "-D"]);
    succeed(copy.arg(standby.data()).stdout(Stdio::null()));
    standby.start(&["hot_standby=on", "archive_mode=off"]);
    assert!(facts(&mut standby.client()).unwrap().in_recovery);
    // A standby can begin a backup only at a checkpoint of its primary.
    primary.run("CREATE TABLE t AS SELECT 1; CHECKPOINT");

    let (session, started) = BackupSession::start(standby.client(), "x", Checkpoint::Fast).unwrap();
    assert!(started.on_standby);
    let stopped = session.stop(false).unwrap();
    assert_eq!(stopped.timeline, Timeline(1));

    let (session, _) = BackupSession::start(standby.client(), "x", Checkpoint::Fast).unwrap();
    standby.run("SELECT pg_promote()");
    let error = session.stop(false).unwrap_err();
    assert!(matches!(error, SessionError::Promoted { .. }), "{error:?}");
    let expected = "the backup is void: the server was a standby when it began and was a primary when it ended";
    assert!(error.to_string().starts_with(expected), "{error}");
    assert_eq!(facts(&mut standby.client()).unwrap().timeline, Timeline(2));
}

#[test]
fn the_inventory_counts_relations_in_every_database() {
    let cluster = Cluster::started();
    let before = inventory(&cluster.options()).unwrap();
    let names: Vec<_> = before.databases.iter().map(|database| database.name.as_str()).collect();
    assert_eq!(names, ["postgres", "template1"]);
    cluster.run(
        "CREATE TABLE t (i int PRIMARY KEY, x text); CREATE VIEW v AS SELECT 1; CREATE ROLE r; CREATE DATABASE \"a b\"",
    );
    let mut session = cluster.person();
    session.batch_execute("CREATE TEMP TABLE gone (i int)").unwrap();
    let after = inventory(&cluster.options()).unwrap();
    let relations = |name| {
        let count = |all: &[_], name| {
            all.iter()
                .find(|d: &&holdfast_agent::engine::postgres::inventory::DatabaseInventory| d.name == name)
                .map(|d| d.relations)
        };
        (count(&before.databases, name), count(&after.databases, name))
    };
    // The table, its primary key, its TOAST table and that one's index.
    let (Some(old), Some(new)) = relations("postgres") else { panic!() };
    assert_eq!(new, old + 4);
    assert_eq!(relations("a b"), (None, relations("template1").1));
    assert_eq!(after.roles, before.roles + 1);
    assert_eq!(after.tablespaces, ["pg_default", "pg_global"]);
    let database = &after.databases[0];
    assert_eq!(database.collation_version, database.collation_actual);
    assert_eq!(after.databases[1].extensions, [("plpgsql".to_owned(), "1.0".to_owned())]);
}
