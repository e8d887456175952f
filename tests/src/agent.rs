//! The agent as its users run it: the program, as the servers' user.

mod binary;

use std::fmt::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::account::{self, Scratch};
use crate::postgres::Server;
use crate::wait;

pub use binary::binary;

/// The agent, with a repository and an environment.
#[derive(Debug)]
pub struct Agent {
    repository: String,
    environment: Vec<(String, String)>,
    arguments: Vec<String>,
    scratch: Scratch,
}

/// How a run of the agent ended.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The exit code and, where it was killed, the signal.
    pub status: ExitStatus,
    /// What it printed.
    pub stdout: String,
    /// Its messages and errors.
    pub stderr: String,
}

impl Agent {
    /// The agent over the repository at a URL.
    pub fn new(repository: impl Into<String>) -> Self {
        Self { repository: repository.into(), environment: Vec::new(), arguments: Vec::new(), scratch: Scratch::new() }
    }

    /// Sets a variable of its environment: a secret, or what has no option.
    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Adds an argument to every run (and to the archive and restore commands).
    #[must_use]
    pub fn argument(mut self, argument: impl Into<String>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// Connects to this server.
    #[must_use]
    pub fn connect_to(mut self, server: &Server) -> Self {
        self.environment.retain(|(name, _)| !name.starts_with("PG"));
        self.environment.extend(server.client_environment());
        self
    }

    /// The repository's URL.
    pub fn repository(&self) -> &str {
        &self.repository
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = account::command(binary());
        command.args(["--repository", &self.repository]).args(&self.arguments).args(arguments);
        command.envs(self.environment.iter().cloned()).stdin(Stdio::null());
        command
    }

    /// Runs it to its end.
    #[track_caller]
    pub fn run(&self, arguments: &[&str]) -> Outcome {
        Outcome::of(&mut self.command(arguments))
    }

    /// Runs it with `--output json`, demands success, and gives back the document.
    #[track_caller]
    pub fn json(&self, arguments: &[&str]) -> Value {
        let outcome = self.run(&[&["--output", "json"], arguments].concat());
        outcome.expect_code(0);
        outcome.json()
    }

    /// Runs it and kills it at its n-th step (from 1) that changes anything outside it.
    #[track_caller]
    pub fn kill_at_step(&self, step: u64, arguments: &[&str]) -> Outcome {
        Outcome::of(self.command(arguments).env("HOLDFAST_KILL_AT_STEP", step.to_string()))
    }

    /// Runs it to its end, and gives back the names of its steps, in order.
    #[track_caller]
    pub fn step_log(&self, arguments: &[&str]) -> (Outcome, Vec<String>) {
        let path = self.scratch.path().join("steps");
        let _ = std::fs::remove_file(&path);
        let outcome = Outcome::of(self.command(arguments).env("HOLDFAST_STEP_LOG", &path));
        let log = std::fs::read_to_string(&path).unwrap_or_default();
        let names = log.lines().map(|line| line.split_once(' ').map_or(line, |(_, name)| name).to_owned());
        (outcome, names.collect())
    }

    /// Starts it and lets it run beside the test.
    #[track_caller]
    pub fn spawn(&self, arguments: &[&str]) -> Running {
        self.start(self.command(arguments))
    }

    /// Starts it, and waits until it has come to a step of this name, where it stays until [`Running::resume`].
    #[track_caller]
    pub fn pause_at_step(&self, step: &str, arguments: &[&str]) -> Running {
        let mut command = self.command(arguments);
        command.env("HOLDFAST_PAUSE_AT_STEP", step);
        let running = self.start(command);
        wait::until_seen(Duration::from_mins(1), &format!("the agent to pause at {step:?}"), || {
            match running.state() {
                Some('T') => Ok(()),
                state => Err(format!("state {state:?}\n{}", running.stderr())),
            }
        });
        running
    }

    /// Starts it and lets it run until just before its n-th step (from 1), where it stays until [`Running::resume`].
    ///
    /// # Errors
    /// How it ended, where it did before.
    #[track_caller]
    pub fn pause_before(&self, step: u64, arguments: &[&str]) -> Result<Running, Outcome> {
        let mut command = self.command(arguments);
        command.env("HOLDFAST_PAUSE_AT_STEP", step.to_string());
        let running = self.start(command);
        let state = wait::until(Duration::from_mins(1), "the agent to pause or to end", || {
            running.state().filter(|state| matches!(state, 'T' | 'Z'))
        });
        if state == 'T' { Ok(running) } else { Err(running.wait(Duration::from_secs(1))) }
    }

    #[track_caller]
    fn start(&self, mut command: Command) -> Running {
        let (stdout, stderr) = (self.scratch.path().join("stdout"), self.scratch.path().join("stderr"));
        let create = |path: &PathBuf| std::fs::File::create(path).expect("the scratch directory is writable");
        command.stdout(create(&stdout)).stderr(create(&stderr));
        let process = command.spawn().unwrap_or_else(|error| panic!("{command:?} does not start: {error}"));
        Running { process, stdout, stderr }
    }

    /// `archive_command`, with the repository and the environment in a script, as a line would show its secrets.
    #[track_caller]
    pub fn archive_command(&self) -> String {
        format!("{} wal-push %p", self.script().display())
    }

    /// `restore_command`, likewise.
    #[track_caller]
    pub fn restore_command(&self) -> String {
        format!("{} wal-fetch %f %p", self.script().display())
    }

    /// A program that runs the agent with this repository and environment, for servers to call. It lives as long as
    /// this agent does.
    #[track_caller]
    pub fn script(&self) -> PathBuf {
        use std::os::unix::fs::PermissionsExt as _;
        let mut text = String::from("#!/bin/sh\n");
        for (name, value) in self.environment.iter().filter(|(name, _)| !name.starts_with("PG")) {
            writeln!(text, "export {name}={}", quoted(value)).expect("text grows");
        }
        let words = [&binary().display().to_string(), "--repository", &self.repository].map(quoted).join(" ");
        let more: Vec<String> = self.arguments.iter().map(|argument| quoted(argument)).collect();
        writeln!(text, "exec {words} {} \"$@\"", more.join(" ")).expect("text grows");
        let path = self.scratch.path().join("agent");
        std::fs::write(&path, text).expect("the scratch directory is writable");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).expect("mode can be set");
        account::hand_over(&path);
        path
    }
}

/// A word for the shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

impl Outcome {
    #[track_caller]
    fn of(command: &mut Command) -> Self {
        let Output { status, stdout, stderr } =
            command.output().unwrap_or_else(|error| panic!("{command:?} does not start: {error}"));
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Self { status, stdout: text(stdout), stderr: text(stderr) }
    }

    /// The exit code; none if it was killed.
    pub fn code(&self) -> Option<i32> {
        self.status.code()
    }

    /// Whether it was killed as by [`Agent::kill_at_step`].
    pub fn was_killed(&self) -> bool {
        self.status.signal() == Some(Signal::KILL.as_raw())
    }

    /// Demands an exit code: 0 done and true, 1 something is wrong with the data, 2 usage, 3 could not be done.
    #[track_caller]
    pub fn expect_code(&self, code: i32) -> &Self {
        assert_eq!(self.code(), Some(code), "{}:\n{}\n{}", self.status, self.stdout, self.stderr);
        self
    }

    /// The one JSON document it printed.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|error| panic!("not one JSON document ({error}):\n{}\n{}", self.stdout, self.stderr))
    }

    /// The error it printed with `--output json`: the last line of its messages that is one.
    #[track_caller]
    pub fn error(&self) -> Value {
        let documents = self.stderr.lines().rev().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let mut errors = documents.filter(|document| document.get("error").is_some());
        errors.next().unwrap_or_else(|| panic!("no JSON error in:\n{}", self.stderr))
    }
}

/// An agent that runs beside the test; killed when dropped.
#[derive(Debug)]
pub struct Running {
    process: Child,
    stdout: PathBuf,
    stderr: PathBuf,
}

impl Running {
    /// Its process.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Lets one that was paused go on.
    #[track_caller]
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// The state of its process (proc(5)): `T` while it is paused.
    fn state(&self) -> Option<char> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).ok()?;
        stat.rsplit_once(')')?.1.trim_start().chars().next()
    }

    /// What it printed so far.
    pub fn stdout(&self) -> String {
        std::fs::read_to_string(&self.stdout).unwrap_or_default()
    }

    /// Its messages so far.
    pub fn stderr(&self) -> String {
        std::fs::read_to_string(&self.stderr).unwrap_or_default()
    }

    /// Asks it to end (SIGTERM), and waits until it has.
    #[track_caller]
    pub fn stop(self) -> Outcome {
        self.end(Signal::TERM)
    }

    /// Kills it.
    #[track_caller]
    pub fn kill(self) -> Outcome {
        self.end(Signal::KILL)
    }

    /// Waits until it ends by itself.
    #[track_caller]
    pub fn wait(mut self, deadline: Duration) -> Outcome {
        let process = &mut self.process;
        let status =
            wait::until(deadline, "the agent to end", || process.try_wait().expect("a child can be waited for"));
        Outcome { status, stdout: self.stdout(), stderr: self.stderr() }
    }

    #[track_caller]
    fn end(self, signal: Signal) -> Outcome {
        self.signal(signal);
        self.wait(Duration::from_secs(30))
    }

    #[track_caller]
    fn signal(&self, signal: Signal) {
        let raw = self.pid().try_into().expect("process ids are small");
        kill_process(Pid::from_raw(raw).expect("a process id is not 0"), signal).expect("a child can be signalled");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
