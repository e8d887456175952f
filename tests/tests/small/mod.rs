//! A small real database with a repository: one database, a table of more than 1,024 pages, segments of 1 MiB.
#![allow(dead_code, reason = "each suite uses a part of it")]

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use holdfast_tests::account::Scratch;
use holdfast_tests::agent::{Agent, Outcome};
use holdfast_tests::postgres::{Major, Options, Server};
use holdfast_tests::repository::{self, Kind};
use serde_json::Value;

pub const DEADLINE: Duration = Duration::from_mins(1);

/// A server that archives to the repository that [`Small::point_at`] names, and that keeps its log.
pub struct Small {
    pub server: Server,
    // Its script is archive_command.
    _archiver: Agent,
    pub scratch: Scratch,
}

impl Small {
    /// Makes the server and its data; what it archives goes nowhere until [`Small::point_at`] says where.
    pub fn new() -> Self {
        let scratch = Scratch::new();
        let archiver = Agent::new(scratch.path().join("current").display().to_string());
        let options = ["archive_mode = on", "wal_keep_size = 1GB", "autovacuum = off", "checkpoint_timeout = 1h"]
            .iter()
            .fold(Options::new().wal_segment_mib(1), |options, line| options.conf(*line))
            .conf(format!(
                "archive_command = 'test ! -e {}/holdfast.json || {}'",
                archiver.repository(),
                archiver.archive_command()
            ))
            .conf("restore_command = '/bin/false'");
        let server = Server::create(Major::V15, &options);
        server.sql("UPDATE pg_database SET datistemplate = false");
        server.sql("DROP DATABASE template1");
        server.sql("DROP DATABASE template0");
        server.sql(
            "CREATE TABLE large AS SELECT number, repeat(md5(number::text), 6) AS text
             FROM generate_series(1, 45000) AS number",
        );
        server.sql("CREATE TABLE small (number integer)");
        server.psql("VACUUM (FREEZE, ANALYZE)");
        server.sql("CHECKPOINT");
        let small = Self { server, _archiver: archiver, scratch };
        assert!(small.server.value::<i64>("SELECT pg_relation_size('large') / 8192") > 1024, "a map of its own");
        small.wait_archived();
        small
    }

    /// The path of a repository of this name.
    pub fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// An agent over the repository of this name, which connects to the server.
    pub fn agent(&self, name: &str) -> Agent {
        Agent::new(self.path(name).display().to_string()).connect_to(&self.server)
    }

    /// Makes the server archive to the repository of this name from now on.
    pub fn point_at(&self, name: &str) {
        // Before, so that no segment is lost between the two.
        self.wait_archived();
        let (link, new) = (self.path("current"), self.path("current.new"));
        symlink(name, &new).unwrap();
        std::fs::rename(new, link).unwrap();
    }

    /// Changes a few pages of the large table, and writes them.
    pub fn change(&self) {
        self.server.sql("UPDATE large SET text = text WHERE number IN (7, 20000); CHECKPOINT");
    }

    /// Waits until every complete segment is archived.
    pub fn wait_archived(&self) {
        // Of 0/3000000 this gives the segment before: the newest that is complete.
        let last: String = self.server.value("SELECT pg_walfile_name(pg_current_wal_lsn() - 1048576)");
        let waiting = self.server.value::<Option<String>>("SELECT last_archived_wal FROM pg_stat_archiver");
        if waiting.as_deref().and_then(|name| name.get(8..24)) < Some(&last[8..]) {
            self.server.wait_archived(&last);
        }
    }

    /// Ends the current segment, and waits until it is archived.
    pub fn switch(&self) {
        self.server.wait_archived(&self.server.switch_wal());
    }

    /// The arguments of `backup`.
    pub fn backup<'a>(&'a self, more: &[&'a str]) -> Vec<&'a str> {
        let data_directory = self.server.data_directory().to_str().unwrap();
        [&["backup", "--data-dir", data_directory], more].concat()
    }

    /// Makes a backup in the repository of this name, and gives its name.
    pub fn make_backup(&self, name: &str) -> String {
        let report = self.agent(name).json(&self.backup(&[]));
        self.wait_archived();
        report["backup_id"].as_str().unwrap().to_owned()
    }
}

/// What a backup leaves in the repository of this name that is killed once it has stored all but its manifest: at the
/// last of its steps at which there is none.
pub fn leave_garbage(small: &Small, name: &str, more: &[&str]) {
    let of_kind = |name: &str, kind: Kind| {
        let root = small.path(name);
        let objects = if root.exists() { repository::objects(&root) } else { Vec::new() };
        objects.into_iter().filter(|key| Kind::of(key) == Some(kind)).count()
    };
    let copy = |name: &str, to: &str| {
        if small.path(name).exists() {
            repository::copy(&small.path(name), &small.path(to));
        }
    };
    let remove = |name: &str| std::fs::remove_dir_all(small.path(name)).unwrap();
    copy(name, "counted");
    let (counted, steps) = small.agent("counted").step_log(&small.backup(more));
    assert_eq!(counted.code(), Some(0), "{}", told(&counted));
    remove("counted");
    let before = of_kind(name, Kind::Manifest);
    for step in (1..=steps.len() as u64 + 8).rev() {
        copy(name, "tried");
        small.agent("tried").kill_at_step(step, &small.backup(more));
        if of_kind("tried", Kind::Manifest) == before {
            assert!(of_kind("tried", Kind::Map) > of_kind(name, Kind::Map), "step {step} is too early");
            if small.path(name).exists() {
                remove(name);
            }
            std::fs::rename(small.path("tried"), small.path(name)).unwrap();
            return;
        }
        remove("tried");
    }
    panic!("a backup writes a manifest");
}

/// The names of the backups that `list` shows, whatever else it finds.
pub fn there(agent: &Agent) -> Vec<String> {
    ids(&agent.run(&["--output", "json", "list"]).json())
}

/// The names of the backups that `list` shows; it must find nothing wrong.
pub fn listed(agent: &Agent) -> Vec<String> {
    ids(&agent.json(&["list"]))
}

pub fn ids(list: &Value) -> Vec<String> {
    list["backups"].as_array().unwrap().iter().map(|line| line["id"].as_str().unwrap().to_owned()).collect()
}

/// Demands that every backup is verified, and that every object is whole.
#[track_caller]
pub fn expect_sound(agent: &Agent, what: &str) {
    let verified = agent.run(&["verify", "all"]);
    assert_eq!(verified.code(), Some(0), "{what}: {}", told(&verified));
    let scraps = repository::scraps(Path::new(agent.repository()));
    assert!(scraps.is_empty(), "{what}: not whole: {scraps:?}");
}

pub fn told(outcome: &Outcome) -> String {
    format!("{}\n{}{}", outcome.status, outcome.stdout, outcome.stderr)
}

/// Runs `work` for each of `items` in two threads; the first that fails fails the test.
pub fn in_two_threads<T: Sync>(items: &[T], work: impl Fn(&T) + Sync) {
    let next = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(item) = items.get(next.fetch_add(1, std::sync::atomic::Ordering::SeqCst)) {
                    if let Err(panic) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(item))) {
                        // Nobody takes another item.
                        next.store(items.len(), std::sync::atomic::Ordering::SeqCst);
                        std::panic::resume_unwind(panic);
                    }
                }
            });
        }
    });
}
