//! A copy, recovered by a server of our own.

use std::path::{Path, PathBuf};
use std::time::Instant;

use holdfast_agent::engine::postgres::control::{self, ClusterState};
use holdfast_agent::engine::postgres::listing::list;
use holdfast_agent::engine::postgres::lsn::{Lsn, Timeline};
use holdfast_agent::engine::postgres::recovery_options::{RecoveryTarget, TargetAction, recovery_arguments};
use holdfast_agent::engine::postgres::server::{Goal, LocalServer, Reached, ServerError, StopMode, find_bin};
use holdfast_agent::engine::postgres::session::{BackupSession, Checkpoint};
use jiff::Timestamp;

use crate::cluster::{Cluster, bin, command, give, soon, succeed, text, until};

/// A cluster, a copy of it with its label, and log after the copy: ten rows, a named point, ten rows more.
struct Source {
    cluster: Cluster,
    named: Lsn,
    /// Between the two lots of rows, by the server's clock.
    between: Timestamp,
    end: Lsn,
}

impl Source {
    fn new() -> Self {
        let cluster = Cluster::started();
        cluster.run("CREATE TABLE t (i int)");
        copy(&cluster);
        cluster.run("INSERT INTO t SELECT generate_series(1, 10)");
        let named = cluster.ask("pg_create_restore_point('halfway')").parse().unwrap();
        let between = cluster.ask("(extract(epoch FROM clock_timestamp()) * 1000000)::int8").parse().unwrap();
        cluster.run("INSERT INTO t SELECT generate_series(11, 20)");
        let end = cluster.ask("pg_current_wal_insert_lsn()").parse().unwrap();
        let last = cluster.ask("pg_walfile_name(pg_switch_wal())");
        until("the log is archived", || cluster.path("archive").join(&last).exists().then_some(()));
        Self { cluster, named, between: Timestamp::from_microsecond(between).unwrap(), end }
    }

    fn copy(&self) -> PathBuf {
        self.cluster.path("copy")
    }

    fn start(&self, target: &RecoveryTarget, extra: &[(&str, &str)]) -> Result<LocalServer, ServerError> {
        let restore = format!("cp {}/%f %p", self.cluster.path("archive").display());
        let mut options = recovery_arguments(target, &restore, Timeline(1), TargetAction::Pause);
        options.extend(extra.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        std::fs::write(self.copy().join("recovery.signal"), "").unwrap();
        give(&self.copy());
        LocalServer::start(&bin(), &self.copy(), &self.cluster.path("own"), &options, &self.cluster.path("own.log"))
    }

    fn recover(&self, target: &RecoveryTarget, goal: Goal) -> Result<(LocalServer, Reached), ServerError> {
        let mut server = self.start(target, &[])?;
        let reached = server.wait_for(goal, soon(), &mut |_| {})?;
        Ok((server, reached))
    }
}

fn rows(server: &LocalServer) -> String {
    text(&mut server.connect(None).unwrap(), "SELECT count(*) FROM public.t")
}

/// What a backup and a restore would do between them.
fn copy(cluster: &Cluster) {
    let (session, _) = BackupSession::start(cluster.client(), "copy", Checkpoint::Fast).unwrap();
    let listing = list(&cluster.data()).unwrap();
    let target = cluster.path("copy");
    std::fs::create_dir(&target).unwrap();
    std::fs::set_permissions(&target, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    for directory in &listing.directories {
        std::fs::create_dir(target.join(&directory.path)).unwrap();
    }
    for file in &listing.files {
        std::fs::copy(cluster.data().join(&file.path), target.join(&file.path)).unwrap();
    }
    let stopped = session.stop(false).unwrap();
    std::fs::write(target.join("backup_label"), stopped.backup_label).unwrap();
    give(&target);
}

#[test]
fn recovery_pauses_at_a_named_point_and_goes_on_to_a_timeline_of_its_own() {
    let source = Source::new();
    let (mut server, reached) = source.recover(&RecoveryTarget::Name("halfway".into()), Goal::Paused).unwrap();
    assert_eq!(reached.lsn, source.named);
    assert_eq!((reached.in_recovery, reached.paused, reached.timeline), (true, true, Timeline(1)));
    assert!(reached.last_transaction.unwrap() < source.between);
    assert_eq!(rows(&server), "10");
    assert_eq!(server.reached().unwrap(), reached);

    let promoted = server.promote(soon()).unwrap();
    assert_eq!((promoted.in_recovery, promoted.paused, promoted.timeline), (false, false, Timeline(2)));
    assert_eq!((promoted.lsn, promoted.last_transaction), (reached.lsn, reached.last_transaction));
    server.stop(StopMode::Fast, soon()).unwrap();
    let control = control::read(&source.copy()).unwrap();
    assert_eq!((control.state, control.timeline), (ClusterState::ShutDown, Timeline(2)));
    assert!(!source.cluster.path("archive").join("00000002.history").exists(), "a copy archived");
}

#[test]
fn a_time_a_position_and_the_end_are_reached_as_they_were() {
    let source = Source::new();
    let (server, reached) = source.recover(&RecoveryTarget::Time(source.between), Goal::Paused).unwrap();
    assert!(reached.last_transaction.unwrap() <= source.between);
    assert_eq!(rows(&server), "10");
    drop(server);

    let (server, reached) = source.recover(&RecoveryTarget::Lsn(source.end), Goal::Paused).unwrap();
    assert!(reached.lsn >= source.end && reached.last_transaction.unwrap() > source.between, "{reached:?}");
    assert_eq!(rows(&server), "20");
    drop(server);

    let (server, reached) = source.recover(&RecoveryTarget::Latest, Goal::Ended).unwrap();
    assert_eq!((reached.in_recovery, reached.timeline), (false, Timeline(2)));
    assert!(reached.last_transaction.unwrap() > source.between);
    assert_eq!(rows(&server), "20");
}

#[test]
fn a_target_past_the_archive_is_an_error_with_the_last_reachable_point() {
    let source = Source::new();
    let far = RecoveryTarget::Time("2099-01-01T00:00:00Z".parse().unwrap());
    let mut server = source.start(&far, &[]).unwrap();
    let error = server.wait_for(Goal::Paused, soon(), &mut |_| {}).unwrap_err();
    let ServerError::TargetMissed(last) = &error else { panic!("{error}") };
    assert!(last.lsn.unwrap() >= source.named, "{last:?}");
    assert!(last.transaction.unwrap() > source.between, "{last:?}");
    let expected = "the target lies past what can be recovered: the archived log ends at ";
    assert!(error.to_string().starts_with(expected), "{error}");
}

#[test]
fn a_copy_without_its_log_says_what_is_missing() {
    let source = Source::new();
    for entry in std::fs::read_dir(source.cluster.path("archive")).unwrap() {
        std::fs::remove_file(entry.unwrap().path()).unwrap();
    }
    let error = source.recover(&RecoveryTarget::Latest, Goal::Ended).unwrap_err();
    assert!(matches!(error, ServerError::Ended { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("FATAL:  could not locate required checkpoint record"), "{text}");
    let meaning = "The archive (restore_command) did not give the log with the backup's first checkpoint";
    assert!(text.ends_with(meaning), "{text}");
}

#[test]
fn a_library_that_is_not_here_is_explained() {
    let source = Source::new();
    let conf = source.copy().join("postgresql.conf");
    let content = std::fs::read_to_string(&conf).unwrap();
    std::fs::write(&conf, format!("{content}\nshared_preload_libraries = 'pg_nothing'\n")).unwrap();
    let error = match source.recover(&RecoveryTarget::Latest, Goal::Ended) {
        Err(error) => error.to_string(),
        Ok(_) => panic!("it started"),
    };
    assert!(error.contains("could not access file \"pg_nothing\""), "{error}");
    assert!(error.contains("A library of shared_preload_libraries is not installed here"), "{error}");
}

#[test]
fn a_configuration_with_a_mistake_is_refused_before_anything_starts() {
    let source = Source::new();
    std::fs::write(source.copy().join("postgresql.conf"), "max_connections = many\n").unwrap();
    let error = source.start(&RecoveryTarget::Latest, &[]).unwrap_err();
    assert!(matches!(error, ServerError::Configuration(_)), "{error:?}");
    assert!(error.to_string().contains("max_connections"), "{error}");
    assert!(!source.copy().join("postmaster.pid").exists());
}

#[test]
fn a_copy_without_a_configuration_recovers_with_what_the_source_had_at_least() {
    let mut cluster = Cluster::new();
    cluster.start(&["max_connections=133", "max_prepared_transactions=7"]);
    cluster.run("CREATE TABLE t (i int)");
    copy(&cluster);
    cluster.run("SELECT pg_switch_wal()");
    for name in ["postgresql.conf", "pg_hba.conf", "pg_ident.conf"] {
        std::fs::remove_file(cluster.path("copy").join(name)).unwrap();
    }
    let source = Source { cluster, named: Lsn(0), between: Timestamp::UNIX_EPOCH, end: Lsn(0) };
    let (server, _) = source.recover(&RecoveryTarget::Immediate, Goal::Paused).unwrap();
    let mut client = server.connect(None).unwrap();
    assert_eq!(text(&mut client, "current_setting('max_connections')"), "133");
    assert_eq!(text(&mut client, "current_setting('max_prepared_transactions')"), "7");
    assert_eq!(text(&mut client, "current_setting('archive_mode')"), "off");
    assert_eq!(text(&mut client, "current_setting('listen_addresses')"), "");
    assert_eq!(text(&mut client, "current_setting('data_directory')"), source.copy().display().to_string());
}

#[test]
fn a_deadline_that_passes_says_what_was_seen() {
    let source = Source::new();
    let mut server = source.start(&RecoveryTarget::Immediate, &[]).unwrap();
    server.wait_for(Goal::Paused, soon(), &mut |_| {}).unwrap();
    let mut asked = 0;
    let error = server.wait_for(Goal::Ended, Instant::now(), &mut |_| asked += 1).unwrap_err();
    assert_eq!(asked, 1);
    assert!(matches!(error, ServerError::Deadline { .. }), "{error:?}");
    assert!(error.to_string().contains("was not done with recovery in time: it is at "), "{error}");
}

#[test]
fn a_server_that_is_dropped_is_gone_and_its_directory_free() {
    let source = Source::new();
    let (server, _) = source.recover(&RecoveryTarget::Immediate, Goal::Consistent).unwrap();
    let pid = server.pid();
    drop(server);
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
    let (server, _) = source.recover(&RecoveryTarget::Immediate, Goal::Paused).unwrap();
    server.stop(StopMode::Immediate, soon()).unwrap();
}

#[test]
fn the_programs_of_the_clusters_version_are_found() {
    let cluster = Cluster::new();
    let major = control::major_version(&cluster.data()).unwrap();
    let found = find_bin(major, Some(bin().as_path())).unwrap();
    let output = succeed(command(found.join("pg_ctl")).arg("--version"));
    assert!(String::from_utf8(output.stdout).unwrap().contains(&format!(" {major}.")));
}
