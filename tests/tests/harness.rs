//! The harness itself: servers of every version come up, die and come back; the ledger tells a right database from a
//! wrong one; damage is done and undone; the agent is run as the servers' user.

use std::time::{Duration, SystemTime};

use holdfast_tests::account::{self, Scratch};
use holdfast_tests::agent::Agent;
use holdfast_tests::faults::{self, SmallDisk};
use holdfast_tests::ledger::{self, Discrepancy, Load, Mark, Pace, Target};
use holdfast_tests::postgres::{Major, Options, Server, Shutdown};
use holdfast_tests::wait;
use rstest::rstest;

#[rstest]
fn every_major_version_starts_stops_and_starts_again(
    #[values(Major::V15, Major::V16, Major::V17, Major::V18)] major: Major,
) {
    let mut server = Server::create(major, &Options::new());
    let number: i32 = server.value("SELECT current_setting('server_version_num')::integer / 10000");
    assert_eq!(u32::try_from(number), Ok(major.number()));
    assert_eq!(server.psql("SHOW data_checksums"), "on");
    server.sql("CREATE TABLE kept AS SELECT 42 AS answer");
    server.stop(Shutdown::Immediate);
    server.start();
    server.restart();
    assert_eq!(server.psql("SELECT answer FROM kept"), "42");
}

#[rstest]
fn amcheck_is_where_the_harness_says_it_is(#[values(Major::V15, Major::V16, Major::V17, Major::V18)] major: Major) {
    let server = Server::create(major, &Options::new());
    let found: i64 = server.value("SELECT count(*) FROM pg_available_extensions WHERE name = 'amcheck'");
    assert_eq!(found == 1, major.has_amcheck());
}

#[rstest]
fn a_ledger_survives_a_kill_and_the_check_passes(
    #[values(Major::V15, Major::V16, Major::V17, Major::V18)] major: Major,
) {
    let mut server = Server::create(major, &Options::new());
    ledger::create_table(&mut server.client("postgres"));
    let load = Load::start(&server.config("postgres"), Pace { rows_per_second: None, ..Pace::default() });
    load.wait_for(200);
    server.kill();
    let at_kill = load.acknowledged();
    server.start();
    // The writers come back by themselves and go on where they were.
    load.wait_for(100);
    server.kill();
    let record = load.stop();
    assert!(record.rows.len() > at_kill && record.unanswered.len() <= 4, "{:?}", record.unanswered);

    server.start();
    let verified = record.check(&mut server.client("postgres"), &Target::Latest).unwrap();
    assert_eq!((verified.required, verified.excluded), (record.rows.len(), 0));
}

#[test]
fn the_check_names_a_row_that_was_deleted_changed_or_made_up() {
    let server = Server::create(Major::V15, &Options::new());
    let mut client = server.client("postgres");
    ledger::create_table(&mut client);
    let load = Load::start(&server.config("postgres"), Pace { writers: 2, ..Pace::default() });
    load.wait_for(20);
    let record = load.stop();
    assert_eq!(record.check(&mut client, &Target::Latest).unwrap().present, record.rows.len());

    let wrong_after = |client: &mut postgres::Client, change: &str| -> Discrepancy {
        let mut change_and_back = client.transaction().unwrap();
        change_and_back.batch_execute(change).unwrap();
        change_and_back.commit().unwrap();
        record.check(client, &Target::Latest).unwrap_err()
    };
    let last = record.rows.iter().rfind(|row| row.writer == 1).unwrap().sequence;
    let deleted = wrong_after(&mut client, &format!("DELETE FROM ledger WHERE writer = 1 AND sequence = {last}"));
    assert_eq!(deleted, Discrepancy { missing: vec![(1, last)], ..Discrepancy::default() });

    let changed = wrong_after(&mut client, "UPDATE ledger SET payload = 'x' WHERE writer = 0 AND sequence = 3");
    assert_eq!((changed.missing, changed.broken), (vec![(1, last)], vec![(0, 3)]));

    let made_up = wrong_after(&mut client, "INSERT INTO ledger VALUES (7, 1, 'y', '\\x00')");
    assert_eq!((made_up.unexpected, made_up.broken), (vec![(7, 1)], vec![(0, 3), (7, 1)]));
}

#[test]
fn a_mark_tells_the_rows_before_it_from_those_after() {
    let server = Server::create(Major::V17, &Options::new());
    let mut client = server.client("postgres");
    ledger::create_table(&mut client);
    let load = Load::start(&server.config("postgres"), Pace { rows_per_second: None, ..Pace::default() });
    load.wait_for(50);
    let mark = load.mark(&mut client, "between");
    let before = load.so_far().rows.len();
    load.wait_for(50);
    let record = load.stop();

    // The whole database is later than the mark: exactly the rows acknowledged since are one too many, by time as by
    // position; `before` may have missed rows that were written between the mark and the count.
    for target in [Target::Time(mark.time), Target::Position(mark.position)] {
        let wrong = record.check(&mut client, &target).unwrap_err();
        let after = record.rows.iter().filter(|row| row.committed.unwrap() > mark.time).count();
        assert_eq!((wrong.missing.len(), wrong.unexpected.len()), (0, after), "{target:?}");
        assert!(record.rows.len() - after <= before);
    }
    let late = Target::Time(SystemTime::now());
    assert_eq!(record.check(&mut client, &late).unwrap().required, record.rows.len());
}

/// PostgreSQL's own base backup and recovery, as the measure of what the check calls exact.
#[rstest]
#[case::time(Major::V16, |mark: &Mark| Target::Time(mark.time))]
#[case::position(Major::V18, |mark: &Mark| Target::Position(mark.position))]
fn a_copy_recovered_to_a_mark_holds_exactly_the_rows_before_it(
    #[case] major: Major,
    #[case] target: fn(&Mark) -> Target,
) {
    let scratch = Scratch::new();
    let (log, copy) = (scratch.directory("log"), scratch.path().join("copy"));
    let archive = format!("archive_command = 'cp %p {}/%f'", log.display());
    let server = Server::create(major, &Options::new().conf("archive_mode = on").conf(archive));
    let mut client = server.client("postgres");
    ledger::create_table(&mut client);
    let load = Load::start(&server.config("postgres"), Pace { rows_per_second: None, ..Pace::default() });
    load.wait_for(50);
    server.run("pg_basebackup", &["--pgdata", copy.to_str().unwrap(), "--checkpoint=fast", "--no-sync"]);
    load.wait_for(50);
    let mark = load.mark(&mut client, "between");
    load.wait_for(50);
    let record = load.stop();
    server.wait_archived(&server.switch_wal());

    let target = target(&mark);
    let [option, value] = <[String; 2]>::try_from(target.arguments()).unwrap();
    // The server knows no "Z" yet when it reads its command line (case E3).
    let value = value.replace('Z', "+00");
    let setting = format!("recovery_{}={value}", option.trim_start_matches('-').replace('-', "_"));
    let recovery = Options::new().setting(setting).setting(format!("restore_command=cp {}/%f %p", log.display()));
    std::fs::write(copy.join("recovery.signal"), "").unwrap();
    let mut recovered = Server::over(major, &copy, &recovery.setting("recovery_target_action=promote"));
    recovered.start();
    wait::until(Duration::from_secs(30), "the end of recovery", || {
        (!recovered.value::<bool>("SELECT pg_is_in_recovery()")).then_some(())
    });
    let verified = record.check(&mut recovered.client("postgres"), &target).unwrap();
    assert_eq!(verified.required, verified.present);
    assert_eq!(verified.required + verified.excluded, record.rows.len());
    assert!(verified.required >= 100 && verified.excluded >= 50, "{verified:?}");
}

#[rstest]
fn a_standby_streams_and_is_promoted(#[values(Major::V15, Major::V16, Major::V17, Major::V18)] major: Major) {
    let primary = Server::create(major, &Options::new().password("open sesame"));
    let standby = Server::standby_of(&primary, &Options::new());
    primary.sql("CREATE TABLE sent AS SELECT 1 AS one");
    standby.wait_replayed(primary.flushed());
    assert_eq!(standby.psql("SELECT pg_is_in_recovery(), one FROM sent"), "t|1");
    standby.promote();
    standby.sql("INSERT INTO sent VALUES (2)");
    assert_eq!(standby.psql("SELECT sum(one) FROM sent"), "3");
}

#[test]
fn a_server_has_the_segment_size_the_address_and_the_password_asked_for() {
    let options = Options::new().wal_segment_mib(64).tcp().password("it's secret").conf("archive_mode = on");
    let server = Server::create(Major::V16, &options.conf("archive_command = 'true'"));
    assert_eq!(server.psql("SHOW wal_segment_size"), "64MB");
    let segment = server.switch_wal();
    server.wait_archived(&segment);

    let mut by_address = postgres::Config::new();
    by_address.host("127.0.0.1").port(server.port()).user("postgres").connect_timeout(Duration::from_secs(5));
    assert!(by_address.connect(postgres::NoTls).is_err());
    assert!(by_address.password("it's secret").connect(postgres::NoTls).is_ok());
}

#[test]
fn a_server_by_a_wrong_clock_commits_at_wrong_times() {
    let server = Server::create(Major::V15, &Options::new().clock_offset("-2h"));
    let time: SystemTime = server.value("SELECT clock_timestamp()");
    let behind = SystemTime::now().duration_since(time).unwrap();
    assert_eq!((behind.as_secs() + 60) / 120, 60, "about two hours behind, not {behind:?}");
}

#[test]
fn a_server_that_cannot_start_says_why() {
    let mut server = Server::create(Major::V17, &Options::new());
    server.stop(Shutdown::Fast);
    let over = |setting: &str| Server::over(Major::V17, server.data_directory(), &Options::new().setting(setting));
    let error = over("max_connections=none").try_start().unwrap_err();
    assert!(error.contains("invalid value for parameter \"max_connections\""), "{error}");
    let mut other = over("cluster_name=other");
    other.start();
    assert_eq!(other.psql("SELECT current_setting('cluster_name'), current_setting('archive_mode')"), "other|off");
}

#[test]
fn damage_is_done_and_undone_without_a_trace() {
    let scratch = Scratch::new();
    let (one, two) = (scratch.path().join("one"), scratch.path().join("two"));
    std::fs::write(&one, b"abc").unwrap();
    std::fs::write(&two, b"xyz").unwrap();
    let mut read_only = one.metadata().unwrap().permissions();
    read_only.set_readonly(true);
    std::fs::set_permissions(&one, read_only).unwrap();
    let modified = one.metadata().unwrap().modified().unwrap();
    let content = || (std::fs::read(&one).unwrap_or_default(), std::fs::read(&two).unwrap_or_default());

    let damage = faults::flip_bit(&one, 1, 0);
    assert_eq!(content(), (b"acc".into(), b"xyz".into()));
    assert_eq!(one.metadata().unwrap().modified().unwrap(), modified);
    damage.undo();
    let damage = faults::truncate(&one, 1);
    assert_eq!(content(), (b"a".into(), b"xyz".into()));
    damage.undo();
    let damage = faults::delete(&one);
    assert!(!one.exists());
    damage.undo();
    let damage = faults::swap(&one, &two);
    assert_eq!(content(), (b"xyz".into(), b"abc".into()));
    damage.undo();
    assert_eq!(content(), (b"abc".into(), b"xyz".into()));
    assert!(one.metadata().unwrap().permissions().readonly());
    assert_eq!(one.metadata().unwrap().modified().unwrap(), modified);
}

#[test]
fn a_small_disk_fills_up_grows_and_goes_away() {
    let disk = SmallDisk::mount(64 * 1024);
    let path = disk.path().to_owned();
    let write = || account::command("/bin/dd").args(["if=/dev/zero", "bs=1k", "count=100"]).arg(of(&path)).output();
    let full = write().unwrap();
    assert!(String::from_utf8_lossy(&full.stderr).contains("No space left on device"), "{full:?}");
    disk.resize(1024 * 1024);
    assert!(write().unwrap().status.success());
    drop(disk);
    assert!(!std::fs::read_to_string("/proc/mounts").unwrap().contains(path.to_str().unwrap()));
    assert!(!path.exists());
}

fn of(directory: &std::path::Path) -> String {
    format!("of={}", directory.join("file").display())
}

#[test]
fn the_agent_runs_as_the_user_of_the_servers() {
    let agent = Agent::new("memory://").env("SECRET", "it's $HOME");
    agent.run(&["--version"]).expect_code(0);
    assert_eq!(agent.spawn(&["--version"]).wait(Duration::from_secs(10)).code(), Some(0));
    let user = account::run(account::command("/usr/bin/id").arg("-u"));
    assert_ne!(user.trim(), "0", "PostgreSQL's files must stay its user's");
    let script = std::fs::read_to_string(agent.script()).unwrap();
    assert!(script.contains(r"export SECRET='it'\''s $HOME'"), "{script}");
    assert!(agent.archive_command().ends_with("/agent wal-push %p"));
}
