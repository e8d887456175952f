//! Recovers a copy with a server of our own, which nobody else can reach.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::json;

use super::lay_down::{arguments, arguments_to_end, lsn};
use super::lsn::Lsn;
use super::record::PostgresRecord;
use super::recovery_options::TargetAction;
use super::server::{Goal, LocalServer, Reached, ServerError, StopMode, find_bin};
use super::server_log::LastReachable;
use crate::engine::{EngineError, EngineResult, LayDown, Reached as ReachedRecord, Target};

/// Recovery that does not move for so long has failed.
pub(super) const PATIENCE: Duration = Duration::from_mins(5);

/// A server on a copy that has reached its target.
pub(super) struct Recovered {
    pub(super) server: LocalServer,
    pub(super) reached: Reached,
    pub(super) notes: Vec<String>,
}

/// Where the server's socket and log go.
pub(super) struct Workplace {
    directory: PathBuf,
}

impl Workplace {
    /// A directory of its own, with a name short enough for a socket.
    pub(super) fn new() -> EngineResult<Self> {
        let name = format!(
            "holdfast-{}",
            &hex::encode(blake3::hash(format!("{:?}{}", Instant::now(), std::process::id()).as_bytes()).as_bytes())
                [..12]
        );
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir(&directory).map_err(|error| EngineError::local("making", &directory, error))?;
        Ok(Self { directory })
    }

    fn socket(&self) -> PathBuf {
        self.directory.join("socket")
    }

    /// The server's log.
    pub(super) fn log(&self) -> PathBuf {
        self.directory.join("server.log")
    }
}

impl Drop for Workplace {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.directory) {
            tracing::warn!(directory = %self.directory.display(), %error, "a scratch directory could not be removed");
        }
    }
}

/// Starts a server on the copy and waits until it has reached its target.
pub(super) fn to_target(
    copy: &LayDown<'_>,
    bin_directory: Option<&Path>,
    place: &Workplace,
    action: TargetAction,
) -> EngineResult<Recovered> {
    let record = PostgresRecord::parse(copy.record)?;
    let bin = find_bin(record.major(), bin_directory).map_err(|error| EngineError::Refused(error.to_string()))?;
    // Without a target recovery ends by itself, whatever the action says.
    let goal = match (copy.target, action) {
        (Target::Latest, _) | (_, TargetAction::Promote) => Goal::Ended,
        _ => Goal::Paused,
    };
    let settings = arguments(copy, action)?;
    let start = |settings: &[(String, String)]| {
        let server = LocalServer::start(&bin, copy.data_directory, &place.socket(), settings, &place.log())?;
        Ok(server.as_user(&record.superuser))
    };
    match start(&settings).and_then(|server| run(server, goal)) {
        Ok((server, reached)) => Ok(Recovered { server, reached, notes: Vec::new() }),
        Err(ServerError::TargetMissed(last)) => {
            let note = if_the_end_is_the_target(copy, &last)?;
            let server = start(&arguments_to_end(copy, action)?)?;
            let (server, reached) = run(server, Goal::Ended)?;
            check_end(copy, reached.lsn)?;
            Ok(Recovered { server, reached, notes: vec![note] })
        }
        Err(error) => Err(error.into()),
    }
}

/// The server came to the end of the log and saw nothing past the target: whether the end is what was asked for, and why.
fn if_the_end_is_the_target(copy: &LayDown<'_>, last: &LastReachable) -> EngineResult<String> {
    let (end, known) = (copy.log_end, copy.complete_until);
    match copy.target {
        Target::Time(time) if *time <= known => Ok(format!(
            "no transaction was committed after the target time up to {end}, the end of the stored log: recovered to there"
        )),
        Target::Time(time) => Err(EngineError::Refused(format!(
            "{time} cannot be reached: {last}, and only up to {known} everything that was committed is known to be \
             stored. Choose a time before the last transaction or up to {known}, or recover to the latest point"
        ))),
        // It is stored, but no record begins at or after it.
        Target::Position(position) => {
            Ok(format!("{position} is at {end}, the end of the stored log: recovered to there"))
        }
        Target::Name(name) => Err(EngineError::Refused(format!(
            "there is no restore point {name:?} in the log after this backup: {last}. See that the name is right; if it \
             was made before the backup ended, restore an earlier backup, by its name (see `list`)"
        ))),
        // Then the server itself refuses to end where it is not consistent yet.
        Target::Immediate => Ok(format!("the stored log ends at {end}, where the backup does: recovered to there")),
        Target::Latest => Err(EngineError::Data(last.to_string())),
    }
}

/// The log must not end before a position that is stored.
fn check_end(copy: &LayDown<'_>, reached: Lsn) -> EngineResult<()> {
    match copy.target {
        Target::Position(position) if position != copy.log_end && reached < lsn(position)? => Err(EngineError::Data(
            format!("recovery ended at {reached}, before {position}, although log up to {} is stored", copy.log_end),
        )),
        _ => Ok(()),
    }
}

/// Waits until the server has reached its goal, as long as it moves.
fn run(mut server: LocalServer, goal: Goal) -> Result<(LocalServer, Reached), ServerError> {
    let mut furthest = Lsn::INVALID;
    loop {
        let mut moved = false;
        let mut seen = |reached: &Reached| {
            moved |= reached.lsn > furthest;
            furthest = furthest.max(reached.lsn);
        };
        match server.wait_for(goal, Instant::now() + PATIENCE, &mut seen) {
            Err(ServerError::Deadline { .. }) if moved => {}
            Err(error) => return Err(error),
            Ok(reached) => return Ok((server, reached)),
        }
    }
}

/// What a server says it has reached, as a record.
pub(super) fn reached_record(reached: &Reached) -> serde_json::Value {
    json!({
        "lsn": reached.lsn,
        "timeline": reached.timeline,
        "last_transaction": reached.last_transaction,
    })
}

/// Recovers, promotes and stops.
pub(super) fn recover(copy: &LayDown<'_>, bin_directory: Option<&Path>) -> EngineResult<ReachedRecord> {
    let place = Workplace::new()?;
    let recovered = to_target(copy, bin_directory, &place, TargetAction::Pause)?;
    let (mut server, reached, notes) = (recovered.server, recovered.reached, recovered.notes);
    if reached.in_recovery {
        server.promote(Instant::now() + PATIENCE)?;
    }
    server.stop(StopMode::Fast, Instant::now() + PATIENCE)?;
    Ok(ReachedRecord { record: reached_record(&reached), notes })
}

impl From<ServerError> for EngineError {
    fn from(error: ServerError) -> Self {
        match error {
            ServerError::TargetMissed(_)
            | ServerError::Ended { .. }
            | ServerError::LacksSettings(_)
            | ServerError::Deadline { .. } => Self::Data(error.to_string()),
            other => Self::Refused(other.to_string()),
        }
    }
}
