//! A server that archives to a repository, and copies of it.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use holdfast_tests::account::Scratch;
use holdfast_tests::agent::{Agent, Outcome, Running};
use holdfast_tests::ledger::{Record, Target, Verified};
use holdfast_tests::postgres::{Major, Options, Server};
use holdfast_tests::wait;
use postgres::types::PgLsn;
use serde_json::Value;

/// How long anything may take that takes a moment.
pub const PATIENCE: Duration = Duration::from_secs(90);

/// A server whose log goes to a repository of its own.
pub struct Site {
    pub server: Server,
    pub agent: Agent,
    // After the server, which archives into it to the end.
    pub scratch: Scratch,
}

impl Site {
    pub fn new(major: Major) -> Self {
        Self::with(major, Options::new())
    }

    pub fn with(major: Major, options: Options) -> Self {
        let scratch = Scratch::new();
        let repository = scratch.path().join("repository");
        Self::in_repository(major, options, scratch, &repository)
    }

    /// A site whose repository is at a place that is there already.
    pub fn in_repository(major: Major, options: Options, scratch: Scratch, repository: &Path) -> Self {
        let agent = agent(major, repository);
        let archive = format!("archive_command = '{}'", agent.archive_command());
        let server = Server::create(major, &options.conf("archive_mode = on").conf(archive));
        let agent = agent.connect_to(&server);
        Self { server, agent, scratch }
    }

    /// Another agent over the same repository, for the same server.
    pub fn second_agent(&self) -> Agent {
        agent(self.server.major(), Path::new(self.agent.repository())).connect_to(&self.server)
    }

    pub fn repository(&self) -> &Path {
        Path::new(self.agent.repository())
    }

    pub fn data(&self) -> &str {
        self.server.data_directory().to_str().unwrap()
    }

    /// Makes a backup, which must be sound.
    #[track_caller]
    pub fn backup(&self) -> Value {
        self.agent.json(&["backup", "--data-dir", self.data()])
    }

    /// Begins a backup and holds it at a step.
    #[track_caller]
    pub fn paused_backup(&self, agent: &Agent, step: &str) -> Running {
        agent.pause_at_step(step, &["--output", "json", "backup", "--data-dir", self.data()])
    }

    /// Makes a backup and proves it to the level `data`.
    #[track_caller]
    pub fn verified_backup(&self) -> String {
        let id = text(&self.backup()["backup_id"]);
        self.agent.run(&["verify", &id]).expect_code(0);
        id
    }

    /// The names of all backups that are listed, oldest first.
    #[track_caller]
    pub fn backups(&self) -> Vec<String> {
        let list = self.list();
        list["backups"].as_array().unwrap().iter().map(|backup| text(&backup["id"])).collect()
    }

    /// What `list` prints, whatever it thinks of it.
    #[track_caller]
    pub fn list(&self) -> Value {
        self.agent.run(&["--output", "json", "list"]).json()
    }

    /// Starts shipping the tail of the log.
    #[track_caller]
    pub fn watch(&self) -> Watch {
        let agent = self.second_agent();
        let running = agent.spawn(&["--output", "json", "watch", "--interval", "1s", "--data-dir", self.data()]);
        Watch { running, _agent: agent }
    }

    /// Makes sure that all log up to now is in the repository, as whole segments.
    #[track_caller]
    pub fn archive_all(&self) {
        self.server.wait_archived(&self.server.switch_wal());
    }

    /// Restores and recovers a copy, and starts a server on it.
    #[track_caller]
    pub fn recover(&self, arguments: &[&str]) -> Copy {
        recover(&self.agent, self.server.major(), arguments)
    }

    /// Tries to restore a copy, and says how that ended; what was written is gone afterwards.
    #[track_caller]
    pub fn try_restore(&self, arguments: &[&str]) -> Outcome {
        let scratch = Scratch::new();
        let data = scratch.path().join("data");
        let command = ["--output", "json", "restore", "--data-dir", data.to_str().unwrap()];
        self.agent.run(&[&command, arguments].concat())
    }

    /// The server's clock.
    #[track_caller]
    pub fn now(&self) -> SystemTime {
        self.server.value("SELECT clock_timestamp()")
    }
}

fn agent(major: Major, repository: &Path) -> Agent {
    Agent::new(repository.to_str().unwrap()).env("HOLDFAST_PG_BIN", major.bin().to_str().unwrap())
}

/// A restored and recovered copy with its server.
pub struct Copy {
    /// What the agent said.
    pub report: Value,
    pub server: Server,
    _scratch: Scratch,
}

/// Restores with `--recover` and starts a server on the copy.
#[track_caller]
pub fn recover(agent: &Agent, major: Major, arguments: &[&str]) -> Copy {
    recover_with(agent, major, arguments, &Options::new())
}

/// The same, with options of the server.
#[track_caller]
pub fn recover_with(agent: &Agent, major: Major, arguments: &[&str], options: &Options) -> Copy {
    let scratch = Scratch::new();
    let data = scratch.path().join("data");
    let command = ["restore", "--recover", "--data-dir", data.to_str().unwrap()];
    let report = agent.json(&[&command, arguments].concat());
    let mut server = Server::over(major, &data, options);
    server.start();
    assert!(!server.value::<bool>("SELECT pg_is_in_recovery()"), "the copy was promoted: {report}");
    Copy { report, server, _scratch: scratch }
}

impl Copy {
    /// Holds the copy's ledger against what is remembered; nothing else may be there.
    #[track_caller]
    pub fn check(&self, record: &Record, target: &Target) -> Verified {
        let checked = record.check(&mut self.server.client("postgres"), target);
        checked.unwrap_or_else(|wrong| panic!("{wrong}\nof {target:?}, from {:#}", self.report))
    }

    /// From which backup it is.
    pub fn backup_id(&self) -> String {
        text(&self.report["backup_id"])
    }
}

/// `watch`, beside a server.
pub struct Watch {
    running: Running,
    _agent: Agent,
}

impl Watch {
    /// All its looks so far; the last line may be half written.
    pub fn ticks(&self) -> Vec<Value> {
        self.running.stdout().lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Waits until everything up to a position is stored.
    #[track_caller]
    pub fn wait_stored(&self, position: PgLsn) {
        wait::until_seen(PATIENCE, &format!("{position} to be stored"), || {
            let last = self.ticks().pop().unwrap_or_default();
            let stored = last["position"].as_str().and_then(|position| position.parse::<PgLsn>().ok());
            let stored = stored.filter(|_| last["error"].is_null());
            if stored >= Some(position) { Ok(()) } else { Err(format!("{last} {}", self.running.stderr())) }
        });
    }

    /// Waits until everything committed up to a time is stored.
    #[track_caller]
    pub fn wait_complete(&self, time: SystemTime) {
        wait::until_seen(PATIENCE, &format!("everything up to {time:?} to be stored"), || {
            let last = self.ticks().pop().unwrap_or_default();
            let until = last["complete_until"].as_str().map(instant).filter(|_| last["error"].is_null());
            if until >= Some(time) { Ok(()) } else { Err(format!("{last} {}", self.running.stderr())) }
        });
    }

    /// Asks it to end, which it must do well.
    #[track_caller]
    pub fn stop(self) -> Vec<Value> {
        let outcome = self.running.stop();
        outcome.expect_code(0);
        outcome.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// A JSON string.
#[track_caller]
pub fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("no text: {value}")).to_owned()
}

/// A time as the agent writes it.
#[track_caller]
pub fn instant(text: &str) -> SystemTime {
    let since_1970 = text.parse::<jiff::Timestamp>().unwrap().as_microsecond();
    SystemTime::UNIX_EPOCH + Duration::from_micros(since_1970.try_into().unwrap())
}

/// A time as `--target-time` takes it.
pub fn rfc3339(time: SystemTime) -> String {
    format!("{:.6}", jiff::Timestamp::try_from(time).unwrap())
}

/// What an outcome says in its JSON error, which must be of this exit code.
#[track_caller]
pub fn refused(outcome: &Outcome, code: i32) -> String {
    outcome.expect_code(code);
    let error = outcome.error();
    assert_eq!(error["exit_code"], code);
    text(&error["error"])
}

/// Demands that a text names all of these.
#[track_caller]
pub fn assert_names(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "{word:?} is not in {text:?}");
    }
}

/// All files below a directory, relative to it.
pub fn files_below(root: &Path) -> Vec<PathBuf> {
    let (mut files, mut directories) = (Vec::new(), vec![root.to_path_buf()]);
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            if path.symlink_metadata().unwrap().is_dir() {
                directories.push(path);
            } else {
                files.push(path.strip_prefix(root).unwrap().to_path_buf());
            }
        }
    }
    files.sort();
    files
}
