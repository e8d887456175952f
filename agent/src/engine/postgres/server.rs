//! A server of our own on a restored copy: for drills, and to recover what was restored.
//!
//! It is a child of this process, listens on nothing but a socket in a directory of its own, and neither archives nor
//! replicates. What it has reached is what it says, never what it was told to reach.

use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use postgres::Client;
use rustix::process::{Pid, Signal, kill_process};

pub use super::binaries::{BinariesError, find_bin};
use super::connection::{ConnectOptions, connect_to_own, innermost};
use super::control;
use super::lsn::{Lsn, Timeline};
pub use super::server_error::ServerError;
use super::server_log;
pub use super::server_log::{Ending, LastReachable};
use super::server_program::Program;
pub use super::server_settings::DirectoryError;
use super::server_settings::{self, PORT};

/// How often a server is asked how far it is.
const ASK_EVERY: Duration = Duration::from_millis(100);

/// How long a server may take to stop before it is killed, when nobody waits for it.
const DROP_PATIENCE: Duration = Duration::from_secs(5);

/// How a server is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopMode {
    /// Sessions are ended, everything is written, the data directory is clean afterwards.
    Fast,
    /// At once, as in a crash.
    Immediate,
}

/// What [`LocalServer::wait_for`] waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// The copy is consistent and open for reading, wherever recovery is.
    Consistent,
    /// Recovery has reached its target and waits there.
    Paused,
    /// Recovery has ended: the server takes writes.
    Ended,
}

/// What a server says about how far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reached {
    /// The end of the log that was recovered; of a server that recovered nothing, the end of its log.
    pub lsn: Lsn,
    /// The timeline it is on. In recovery this is the newest that its control file has recorded, which may lag behind
    /// `lsn`; the history of the timeline that is followed says exactly which one `lsn` is on.
    pub timeline: Timeline,
    /// When the newest transaction that was recovered was committed; `None` if there was none.
    pub last_transaction: Option<Timestamp>,
    /// Whether it still recovers.
    pub in_recovery: bool,
    /// Whether recovery waits, as it does at its target.
    pub paused: bool,
}

/// A running server of our own. Dropped, it is stopped at once.
#[derive(Debug)]
pub struct LocalServer {
    child: Child,
    data_dir: PathBuf,
    socket_dir: PathBuf,
    log: PathBuf,
    /// Where in the log this server's lines begin.
    log_from: u64,
    user: String,
}

impl LocalServer {
    /// Starts a server of the programs in `bin_dir` on `data_dir`, and returns at once.
    ///
    /// If this process is root, the server runs as the owner of the data directory. `socket_dir` is made if need be and
    /// closed to others. `options` are settings by name and value and count over those that isolate the server.
    ///
    /// # Errors
    /// If the data directory or the socket's cannot be used, or the server refuses the copy's configuration.
    pub fn start(
        bin_dir: &Path,
        data_dir: &Path,
        socket_dir: &Path,
        options: &[(String, String)],
        log: &Path,
    ) -> Result<Self, ServerError> {
        let control = control::read(data_dir)?;
        let owner = server_settings::owner(data_dir)?;
        server_settings::prepare_socket_dir(socket_dir, owner)?;
        let major = control::major_version(data_dir)?;
        let mut settings = server_settings::arguments(data_dir, socket_dir, owner, major, options)?;
        let program = bin_dir.join("postgres");
        let server = Program { path: &program, data_dir, owner };
        settings.extend(server.raised_settings(&control, &settings)?);
        let (child, log_from) = server.run(&settings, log)?;
        Ok(Self {
            child,
            data_dir: data_dir.to_owned(),
            socket_dir: socket_dir.to_owned(),
            log: log.to_owned(),
            log_from,
            user: "postgres".into(),
        })
    }

    /// Asks as another role than `postgres`: the superuser that `initdb` made for the source.
    #[must_use]
    pub fn as_user(mut self, user: &str) -> Self {
        user.clone_into(&mut self.user);
        self
    }

    /// How to connect to this server.
    pub fn connect_options(&self) -> ConnectOptions {
        ConnectOptions {
            host: Some(self.socket_dir.display().to_string()),
            port: Some(PORT),
            user: Some(self.user.clone()),
            ..ConnectOptions::default()
        }
    }

    /// Opens a session.
    ///
    /// # Errors
    /// If the server takes none.
    pub fn connect(&self, dbname: Option<&str>) -> Result<Client, ServerError> {
        Ok(connect_to_own(&self.connect_options(), dbname)?)
    }

    /// Waits until `goal` is reached, and says what is reached then. `progress` is called with what the server says
    /// meanwhile, whenever it can be asked.
    ///
    /// # Errors
    /// If the server ends (with what its log says, and how far it came if it missed its target) or is not there by
    /// `deadline`.
    pub fn wait_for(
        &mut self,
        goal: Goal,
        deadline: Instant,
        progress: &mut dyn FnMut(&Reached),
    ) -> Result<Reached, ServerError> {
        let mut client = None;
        loop {
            self.must_run()?;
            let seen = match self.ask(&mut client) {
                Ok(reached) if goal.is_met(&reached) => return self.checked(reached),
                Ok(reached) => {
                    progress(&reached);
                    self.checked(reached)?;
                    let Reached { lsn, timeline, .. } = reached;
                    format!("it is at {lsn} on timeline {timeline}")
                }
                Err(ServerError::Connect(error)) if !error.is_transient() => return Err(error.into()),
                Err(error) => error.to_string(),
            };
            if Instant::now() >= deadline {
                return Err(self.late(goal.describe(), seen));
            }
            std::thread::sleep(ASK_EVERY);
        }
    }

    /// Asks the server how far it is.
    ///
    /// # Errors
    /// If it cannot be asked.
    pub fn reached(&self) -> Result<Reached, ServerError> {
        self.ask(&mut None)
    }

    /// Ends recovery, and waits until the server takes writes.
    ///
    /// # Errors
    /// If the server refuses, ends, or is not promoted by `deadline`.
    pub fn promote(&mut self, deadline: Instant) -> Result<Reached, ServerError> {
        let sent = self.connect(None)?.batch_execute("SELECT pg_promote(false)");
        sent.map_err(|error| query_error("promoting the server", &error))?;
        self.wait_for(Goal::Ended, deadline, &mut |_| {})
    }

    /// Stops the server.
    ///
    /// # Errors
    /// If it does not stop by `deadline`, or stops with an error.
    pub fn stop(mut self, mode: StopMode, deadline: Instant) -> Result<(), ServerError> {
        self.signal(match mode {
            StopMode::Fast => Signal::INT,
            StopMode::Immediate => Signal::QUIT,
        })?;
        let Some(status) = self.exited_by(deadline)? else {
            return Err(self.late("stopped", "it still runs".into()));
        };
        // Told to stop at once, it ends with an error by design.
        if status.success() || mode == StopMode::Immediate { Ok(()) } else { Err(self.ended(status)) }
    }

    /// The process, for tests that kill it.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    fn ask(&self, client: &mut Option<Client>) -> Result<Reached, ServerError> {
        let open = match client.take() {
            Some(open) => open,
            None => self.connect(None)?,
        };
        // One session is kept while it works, so that the server's log is not filled with ours.
        let open = client.insert(open);
        let reached = reached(open);
        if reached.is_err() {
            *client = None;
        }
        reached
    }

    /// Recovery that waits although its target is not reached waits for ever.
    fn checked(&self, reached: Reached) -> Result<Reached, ServerError> {
        if reached.paused && server_log::lacks_settings(&self.log, self.log_from) {
            return Err(ServerError::LacksSettings(reached.lsn));
        }
        Ok(reached)
    }

    fn must_run(&mut self) -> Result<(), ServerError> {
        let status = self.child.try_wait().map_err(|source| ServerError::Process { doing: "watch", source })?;
        status.map_or(Ok(()), |status| Err(self.ended(status)))
    }

    fn ended(&self, status: ExitStatus) -> ServerError {
        let ending = server_log::ending(&self.log, self.log_from);
        if let Some(last) = ending.target_missed {
            return ServerError::TargetMissed(last);
        }
        let (data_dir, log) = (self.data_dir.clone(), self.log.clone());
        ServerError::Ended { data_dir, status, ending: Box::new(ending), log }
    }

    fn late(&self, wanted: &'static str, seen: String) -> ServerError {
        ServerError::Deadline { data_dir: self.data_dir.clone(), wanted, seen, log: self.log.clone() }
    }

    fn signal(&self, signal: Signal) -> Result<(), ServerError> {
        match kill_process(Pid::from_child(&self.child), signal) {
            // It may have ended by itself this instant.
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(ServerError::Process { doing: "stop", source: error.into() }),
        }
    }

    fn exited_by(&mut self, deadline: Instant) -> Result<Option<ExitStatus>, ServerError> {
        loop {
            let status = self.child.try_wait().map_err(|source| ServerError::Process { doing: "watch", source })?;
            if status.is_some() || Instant::now() >= deadline {
                return Ok(status);
            }
            std::thread::sleep(ASK_EVERY / 4);
        }
    }
}

impl Drop for LocalServer {
    fn drop(&mut self) {
        // A process that was waited for has no id any more that a signal could be sent to.
        if matches!(self.child.try_wait(), Ok(Some(_))) {
            return;
        }
        let asked = self.signal(Signal::QUIT);
        let ended = asked.and_then(|()| self.exited_by(Instant::now() + DROP_PATIENCE));
        if !matches!(ended, Ok(Some(_))) {
            let killed = self.child.kill().and_then(|()| self.child.wait());
            if let Err(error) = killed {
                tracing::warn!(pid = self.child.id(), %error, "a server of our own could not be stopped");
            }
        }
    }
}

impl Goal {
    fn is_met(self, reached: &Reached) -> bool {
        match self {
            Self::Consistent => true,
            Self::Paused => reached.in_recovery && reached.paused,
            Self::Ended => !reached.in_recovery,
        }
    }

    fn describe(self) -> &'static str {
        match self {
            Self::Consistent => "consistent",
            Self::Paused => "at its target",
            Self::Ended => "done with recovery",
        }
    }
}

fn reached(client: &mut Client) -> Result<Reached, ServerError> {
    const DOING: &str = "asking how far recovery is";
    let failed = |error: &postgres::Error| query_error(DOING, error);
    let row = client
        .query_one(
            "SELECT r.in_recovery, \
             coalesce(pg_last_wal_replay_lsn(), CASE WHEN NOT r.in_recovery THEN pg_current_wal_flush_lsn() END)::text, \
             (extract(epoch FROM pg_last_xact_replay_timestamp()) * 1000000)::int8, \
             CASE WHEN r.in_recovery THEN pg_get_wal_replay_pause_state() = 'paused' ELSE false END, \
             CASE WHEN r.in_recovery \
             THEN (SELECT greatest(c.timeline_id, m.min_recovery_end_timeline)::int8 \
                   FROM pg_control_checkpoint() c, pg_control_recovery() m) \
             ELSE ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int8 END \
             FROM (SELECT pg_is_in_recovery() AS in_recovery) r",
            &[],
        )
        .map_err(|error| failed(&error))?;
    let nonsense = |what: &str| ServerError::Query { doing: DOING, reason: format!("it answered no {what}") };
    let lsn: Option<String> = row.try_get(1).map_err(|error| failed(&error))?;
    let microseconds: Option<i64> = row.try_get(2).map_err(|error| failed(&error))?;
    let timeline: i64 = row.try_get(4).map_err(|error| failed(&error))?;
    Ok(Reached {
        in_recovery: row.try_get(0).map_err(|error| failed(&error))?,
        lsn: lsn.and_then(|text| text.parse().ok()).ok_or_else(|| nonsense("position"))?,
        last_transaction: microseconds.and_then(|number| Timestamp::from_microsecond(number).ok()),
        paused: row.try_get(3).map_err(|error| failed(&error))?,
        timeline: Timeline(u32::try_from(timeline).map_err(|_| nonsense("timeline"))?),
    })
}

fn query_error(doing: &'static str, error: &postgres::Error) -> ServerError {
    let answer = error.as_db_error().map(|answer| answer.message().to_owned());
    ServerError::Query { doing, reason: answer.unwrap_or_else(|| innermost(error)) }
}
