//! `probe`

use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;

use super::exit::{Failure, Found};
use super::options::{Connection, Global};
use super::output;
use super::units::Seconds;
use crate::engine::postgres::ConnectOptions;
use crate::engine::postgres::connection::connect;
use crate::engine::postgres::probing::ask_all;
use crate::probe::{self, Probe, ProbeAnswer, ProbeError, ProbeResult};

/// Asks a running server questions, and checks the answers
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// The questions (TOML)
    #[arg(long, value_name = "FILE", env = "HOLDFAST_PROBES")]
    probes: PathBuf,

    #[command(flatten)]
    connection: Connection,
}

const EXAMPLES: &str = "\
Examples:
  holdfast-agent probe --probes /etc/holdfast/probes.toml --service shop
  holdfast-agent probe --probes probes.toml --host db.example --user probe

The file has a table for each question, whose answer is one value:
  [[probe]]
  name = \"orders\"
  database = \"shop\"
  query = \"select count(*) from public.orders\"
  expect = { min = 1.0 }

expect may hold equals, min, max, and matches_source = true for the answer that the source gave when it was backed up \
with --probes. Questions are asked read-only, by the user that is given, who need not be a superuser; tables must be \
named with their schema.

Exit codes: 0 all answers are as expected; 1 some are not; 2 wrong usage; 3 could not be asked.";

/// All answers, as JSON.
#[derive(Serialize)]
struct Report<'a> {
    passed: bool,
    probes: &'a [ProbeResult],
}

impl Arguments {
    pub(super) fn run(self, global: &Global) -> Result<Found, Failure> {
        let connection = self.connection.options()?;
        let questions = probe::load(&self.probes)?;
        reach(&connection, &questions)?;
        let probes = ask_all(&connection, &questions, &[]);
        let passed = probes.iter().all(|probe| probe.passed);
        output::report(global.output, &Report { passed, probes: &probes }, || text(&probes))?;
        Ok(Found::wrong_if(!passed))
    }
}

/// A server that cannot be reached at all has answered nothing wrongly.
fn reach(connection: &ConnectOptions, probes: &[Probe]) -> Result<(), Failure> {
    let mut reasons = Vec::new();
    for probe in probes {
        match connect(connection, Some(&probe.database)) {
            Ok(_) => return Ok(()),
            Err(error) => reasons.push(Failure::undone(&error)),
        }
    }
    reasons.into_iter().next().map_or(Ok(()), Err)
}

fn text(probes: &[ProbeResult]) -> String {
    let rows = probes.iter().map(|probe| {
        vec![
            probe.name.clone(),
            if probe.passed { "ok".to_owned() } else { "FAILED".to_owned() },
            probe.answer.clone().unwrap_or_else(|| "NULL".to_owned()),
            Seconds(probe.duration_ms as f64 / 1000.0).to_string(),
            probe.reason.clone().unwrap_or_default(),
        ]
    });
    output::table(&["probe", "", "answer", ">took", ""], rows)
}

/// What a server answers now, to be kept with a backup.
///
/// # Errors
/// Where it cannot be asked.
pub(super) fn answers(connection: &ConnectOptions, file: &Path) -> Result<Vec<ProbeAnswer>, Failure> {
    // What the answers must be is for drills to judge; here they only have to be answers.
    let questions: Vec<_> = probe::load(file)?
        .into_iter()
        .map(|probe| probe::Probe { expect: probe::Expect::default(), ..probe })
        .collect();
    let mut answers = Vec::new();
    for result in ask_all(connection, &questions, &[]) {
        if let Some(reason) = result.reason {
            return Err(Failure::because(format!("probe {} of {}: {reason}", result.name, file.display())));
        }
        answers.push(ProbeAnswer { name: result.name, answer: result.answer });
    }
    Ok(answers)
}

impl From<ProbeError> for Failure {
    fn from(error: ProbeError) -> Self {
        Self::undone(&error)
    }
}
