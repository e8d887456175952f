//! `drill`

use std::path::PathBuf;

use clap::Args;

use super::exit::{Failure, Found};
use super::options::Global;
use super::output::{self, Block};
use super::units::{Bytes, Seconds};
use super::{progress, shell, target};
use crate::drill::{self, DrillError, DrillReport, DrillRequest};
use crate::probe;
use crate::repository::Verdict;

/// Proves that a backup comes back: restores it aside, recovers it, checks it, asks it
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    #[command(flatten)]
    recovery: target::Recovery,

    /// Below which directory the copy is made, and removed; it takes as much room as the database [default: the
    /// directory for temporary files]
    #[arg(long, value_name = "DIR", env = "HOLDFAST_SCRATCH")]
    scratch: Option<PathBuf>,

    /// Asks the copy these questions, and compares with what the source said while the backup was made
    #[arg(long, value_name = "FILE", env = "HOLDFAST_PROBES")]
    probes: Option<PathBuf>,

    /// Leaves the copy there, stopped
    #[arg(long)]
    keep: bool,
}

const EXAMPLES: &str = "\
Examples:
  holdfast-agent --repository /backup drill
  holdfast-agent drill --scratch /srv/drill --probes /etc/holdfast/probes.toml
  holdfast-agent drill --target-time 2026-01-31T12:00:00Z --keep

The copy archives nothing, listens on no network and has its own port. What was seen is kept beside the backup as \
evidence; `list` then calls the backup proven.

Exit codes: 0 it comes back, and answers rightly; 1 it does not, and why; 2 wrong usage; 3 could not be tried.";

impl Arguments {
    pub(super) fn run(self, global: &Global) -> Result<Found, Failure> {
        let probes = match &self.probes {
            Some(file) => probe::load(file)?,
            None => Vec::new(),
        };
        let home = global.home()?;
        let decided = self.recovery.decided();
        let request = DrillRequest {
            backup: decided.backup,
            target: decided.target,
            timeline: decided.timeline,
            threads: global.threads(),
            bin_directory: decided.bin_directory,
            fetch_command: shell::fetch_command(global, &home)?,
            scratch: self.scratch.unwrap_or_else(std::env::temp_dir),
            probes,
            keep: self.keep,
        };
        let report = progress::shown(global.output, "drilling", |progress| drill::drill(&home, &request, progress))?;
        output::report(global.output, &report, || text(&request, &report))?;
        Ok(Found::wrong_if(report.evidence.verdict == Verdict::Failed))
    }
}

fn text(request: &DrillRequest, report: &DrillReport) -> String {
    let evidence = &report.evidence;
    let failed = evidence.verdict == Verdict::Failed;
    let verdict = if failed { "FAILED" } else { "it comes back" };
    let took = evidence.finished.duration_since(evidence.started).as_secs_f64();
    let steps = evidence.steps.iter();
    let steps = steps.map(|step| (format!("  {}", step.name), Seconds(step.duration_ms as f64 / 1000.0).to_string()));
    let block = Block::new(format!("drill {}: {verdict}", evidence.backup_id))
        .fact("target", target::told(&request.target))
        .fact("database", Bytes(evidence.bytes))
        .fact("answers", format!("{} after it was begun", Seconds(report.measured_rto_seconds)))
        .fact("took", Seconds(took))
        .facts(steps)
        .maybe("kept in", report.kept.as_ref().map(|kept| kept.display()))
        .fact("evidence", &report.evidence_key)
        .bad(&evidence.damage)
        .bad(&evidence.failures)
        .notes(&evidence.notes);
    if failed {
        block.next("do not count on this backup before you know why; then drill it, or a new one, again").to_string()
    } else {
        block.to_string()
    }
}

impl From<DrillError> for Failure {
    fn from(error: DrillError) -> Self {
        match error {
            DrillError::Repository(error) => error.into(),
            DrillError::Engine(error) => error.into(),
            DrillError::Store(_) | DrillError::Scratch { .. } => Self::undone(&error),
            DrillError::Restore(error) => error.into(),
        }
    }
}
