//! Standbys: backups from them, promotions, and which history recovery follows.

use holdfast_tests::agent::Agent;
use holdfast_tests::postgres::{Major, Options, Server, Shutdown};
use rstest::rstest;

use crate::site::{PATIENCE, Site, assert_names, files_below, refused, text};

const ROWS: &str = "SELECT string_agg(name, ',' ORDER BY name) FROM history";

/// A standby of the site's server that will archive into the same lineage, and an agent beside it.
struct Follower {
    server: Server,
    agent: Agent,
}

impl Follower {
    #[track_caller]
    fn of(site: &Site) -> Self {
        let lineage = text(&site.list()["lineage"]);
        let agent = site.second_agent().argument("--lineage").argument(lineage);
        let archive = format!("archive_command = '{}'", agent.archive_command());
        let server = Server::standby_of(&site.server, &Options::new().conf(archive));
        let agent = agent.connect_to(&server);
        Self { server, agent }
    }

    fn data(&self) -> &str {
        self.server.data_directory().to_str().unwrap()
    }

    #[track_caller]
    fn caught_up_with(&self, primary: &Server) {
        self.server.wait_replayed(primary.flushed());
    }
}

fn site(major: Major) -> Site {
    let site = Site::new(major);
    site.server.sql("CREATE TABLE history (name text)");
    site
}

fn insert(server: &Server, name: &str) {
    server.sql(&format!("INSERT INTO history VALUES ('{name}')"));
}

#[rstest]
fn a_backup_from_a_standby_restores_to_its_end_and_to_the_end_of_the_log(
    #[values(Major::V15, Major::V16, Major::V17, Major::V18)] major: Major,
) {
    let site = site(major);
    site.backup();
    let follower = Follower::of(&site);
    insert(&site.server, "a");
    follower.caught_up_with(&site.server);
    // A standby cannot make its primary checkpoint: its backups begin at the last restart point.
    site.server.sql("CHECKPOINT");
    follower.caught_up_with(&site.server);
    let backup = follower.agent.json(&["backup", "--data-dir", follower.data()]);
    assert_eq!(backup["record"]["from_standby"], true);
    insert(&site.server, "b");
    site.archive_all();

    let id = text(&backup["backup_id"]);
    let copy = site.recover(&[&id, "--target-immediate"]);
    assert_eq!(copy.server.psql(ROWS), "a");
    assert_eq!(site.recover(&[&id]).server.psql(ROWS), "a,b");
    site.agent.run(&["verify", "all"]).expect_code(0);
}

#[rstest]
fn a_standby_that_is_promoted_during_its_backup_has_none(#[values(Major::V15, Major::V18)] major: Major) {
    let site = site(major);
    site.backup();
    let before = site.backups();
    let follower = Follower::of(&site);
    follower.caught_up_with(&site.server);
    let command = ["--output", "json", "backup", "--data-dir", follower.data()];
    let backup = follower.agent.pause_at_step("end the backup in the server", &command);
    follower.server.promote();
    backup.resume();
    let error = refused(&backup.wait(PATIENCE), 3);
    assert_names(&error, &["void", "was a standby when it began and was a primary when it ended"]);
    assert_eq!(site.backups(), before);
}

/// The old primary lives on beside the promoted standby, and archives what nobody may follow any more.
#[rstest]
fn recovery_follows_the_promoted_standby_and_not_the_old_primary(
    #[values(Major::V15, Major::V16, Major::V17, Major::V18)] major: Major,
) {
    let mut site = site(major);
    insert(&site.server, "a");
    let before = text(&site.backup()["backup_id"]);
    let follower = Follower::of(&site);
    insert(&site.server, "b");
    follower.caught_up_with(&site.server);
    site.server.stop(Shutdown::Immediate);
    follower.server.promote();
    insert(&follower.server, "promoted-c");
    follower.server.wait_archived(&follower.server.switch_wal());
    // The one that was thought dead comes back, for a while.
    site.server.start();
    insert(&site.server, "stray-d");
    site.archive_all();
    site.server.stop(Shutdown::Fast);

    // What only a promotion makes is archived: the history, and the last segment of the old timeline, unfinished.
    let archived = files_below(site.repository());
    let named = |end: &str| archived.iter().any(|file| file.to_str().unwrap().ends_with(end));
    assert!(named("00000002.history"), "{archived:?}");
    assert!(named(".partial"), "{archived:?}");

    let copy = site.recover(&[&before]);
    assert_eq!(copy.server.psql(ROWS), "a,b,promoted-c");
    assert_eq!(copy.report["reached"]["timeline"], 3, "{}", copy.report);
    let stray = site.recover(&[&before, "--target-timeline", "1"]);
    assert_eq!(stray.server.psql(ROWS), "a,b,stray-d");

    let after = follower.agent.json(&["backup", "--data-dir", follower.data()]);
    assert_eq!(after["record"]["timeline"], 2);
    insert(&follower.server, "promoted-e");
    follower.server.wait_archived(&follower.server.switch_wal());
    let copy = site.recover(&[]);
    assert_eq!(
        (copy.backup_id(), copy.server.psql(ROWS)),
        (text(&after["backup_id"]), "a,b,promoted-c,promoted-e".into())
    );
    assert_eq!(site.recover(&[&before]).server.psql(ROWS), "a,b,promoted-c,promoted-e");
    site.agent.run(&["verify", "all"]).expect_code(0);
}

/// A copy that was restored, promoted and put to use in the place of the original is a new timeline of the same lineage.
#[test]
fn a_restored_server_in_the_place_of_the_old_one_goes_on_in_its_lineage() {
    let mut site = site(Major::V17);
    insert(&site.server, "a");
    let first = text(&site.backup()["backup_id"]);
    site.archive_all();
    insert(&site.server, "lost");
    site.server.stop(Shutdown::Fast);
    let old = site.server.data_directory().with_extension("old");
    std::fs::rename(site.server.data_directory(), old).unwrap();
    site.agent.json(&["restore", "--recover", "--target-immediate", "--data-dir", site.data()]);
    site.server.start();
    insert(&site.server, "b");
    site.archive_all();
    let second = text(&site.backup()["backup_id"]);
    insert(&site.server, "c");
    site.archive_all();
    assert_eq!(site.backups(), [first.clone(), second]);
    assert_eq!(site.recover(&[]).server.psql(ROWS), "a,b,c");
    assert_eq!(site.recover(&[&first]).server.psql(ROWS), "a,b,c");
}
