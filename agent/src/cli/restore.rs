//! `restore`

use std::path::PathBuf;

use clap::Args;
use serde_json::Value;

use super::exit::{Failure, Found};
use super::options::Global;
use super::output::{self, Block};
use super::units::{Bytes, Rate, Seconds, count};
use super::{progress, shell, target, values};
use crate::restore::{self, RestoreError, RestoreReport, RestoreRequest};

/// Brings a database back, as of a point of your choice
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    #[command(flatten)]
    recovery: target::Recovery,

    /// Where the data directory is to be: empty, or not there yet, unless --delta is given
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,

    /// Puts the tablespace that was at OLD into NEW; may be given several times
    #[arg(long, value_name = "OLD=NEW", value_parser = values::tablespace)]
    tablespace_map: Vec<(PathBuf, PathBuf)>,

    /// Overwrites a data directory that is there, and writes only what differs
    #[arg(long)]
    delta: bool,

    /// Starts the server in isolation, recovers to the target, promotes, checks what was reached, and stops it
    #[arg(long)]
    recover: bool,
}

const EXAMPLES: &str = "\
Examples:
  holdfast-agent --repository /backup restore --data-dir /srv/restored
  holdfast-agent restore --data-dir /srv/restored --target-time 2026-01-31T12:00:00Z --recover
  holdfast-agent restore 20260131T235959Z-0a1b2c --data-dir /srv/restored --target-immediate
  holdfast-agent restore --data-dir /srv/pg --delta --tablespace-map /mnt/old=/mnt/new

Without --recover the files are laid down, and the command that starts the server and recovers it is printed.

Exit codes: 0 done; 1 something is wrong with the data, and it is named; 2 wrong usage; 3 could not be done.";

impl Arguments {
    pub(super) fn run(self, global: &Global) -> Result<Found, Failure> {
        let home = global.home()?;
        let decided = self.recovery.decided();
        let request = RestoreRequest {
            backup: decided.backup,
            data_directory: self.data_dir,
            target: decided.target,
            timeline: decided.timeline,
            delta: self.delta,
            tablespaces: self.tablespace_map,
            threads: global.threads(),
            recover: self.recover,
            bin_directory: decided.bin_directory,
            fetch_command: shell::fetch_command(global, &home)?,
        };
        let report =
            progress::shown(global.output, "restoring", |progress| restore::restore(&home, &request, progress))?;
        output::report(global.output, &report, || text(&request, &report))?;
        Ok(Found::Sound)
    }
}

fn text(request: &RestoreRequest, report: &RestoreReport) -> String {
    let seconds = report.duration_seconds;
    let restored = &report.restored;
    let took = match report.reached {
        Some(_) => format!("{}, recovery included", Seconds(seconds)),
        None => format!("{}, {}", Seconds(seconds), Rate(restored.restored_bytes, seconds)),
    };
    let kept = (restored.kept_bytes > 0).then(|| format!("{} were right already", Bytes(restored.kept_bytes)));
    let removed = (restored.removed_files > 0).then(|| count(restored.removed_files, "file"));
    let block = Block::new(format!("restored {} into {}", report.backup_id, report.data_directory.display()))
        .fact("database", format!("{} in {}", Bytes(restored.restored_bytes), count(restored.files, "file")))
        .fact("written", Bytes(restored.written_bytes))
        .maybe("kept", kept)
        .fact("took", took)
        .fact("target", target::told(&request.target))
        .maybe("removed", removed)
        .maybe("reached", report.reached.as_ref().map(reached))
        .notes(&report.notes);
    if report.reached.is_some() {
        block.next("start the server as usual; it is stopped, and writes a history of its own from here on").to_string()
    } else {
        block.next(format!("start it, and it recovers:\n\n{}", shell::line(&report.start_command))).to_string()
    }
}

/// What recovery reached, in the engine's words: those that say something.
fn reached(record: &Value) -> String {
    let Value::Object(facts) = record else { return record.to_string() };
    let told = facts.iter().filter(|(_, value)| !value.is_null()).map(|(name, value)| {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        format!("{} {value}", name.replace('_', " "))
    });
    told.collect::<Vec<_>>().join(", ")
}

impl From<RestoreError> for Failure {
    fn from(error: RestoreError) -> Self {
        match error {
            RestoreError::Repository(error) => error.into(),
            RestoreError::Engine(error) => error.into(),
            RestoreError::Place(error) => Self::undone(&error),
        }
    }
}
