//! `verify`

use std::str::FromStr;

use clap::{Args, ValueEnum};
use serde::Serialize;

use super::exit::{Failure, Found};
use super::options::{Global, Which};
use super::output::{self, Block};
use super::progress;
use super::units::{Bytes, Rate, Seconds, count};
use crate::repository::{BackupId, Level, Verdict};
use crate::verify::{Verifier, VerifyError, VerifyReport};

/// Checks backups: that everything is there, or that every byte is right
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// The name of a backup, latest, or all
    #[arg(value_name = "BACKUP", default_value = "latest")]
    backup: Selection,

    /// How thorough the check is
    #[arg(long, value_enum, value_name = "LEVEL", env = "HOLDFAST_VERIFY_LEVEL", default_value = "data")]
    level: LevelName,
}

const EXAMPLES: &str = "\
Examples:
  holdfast-agent --repository /backup verify
  holdfast-agent --repository /backup verify all
  holdfast-agent --repository /backup verify 20260131T235959Z-0a1b2c --level objects

What was seen is kept beside the backup as evidence; `list` tells its outcome. A backup counts for retention once it \
is verified at the level data.

Exit codes: 0 all is right; 1 something is wrong with the data, and it is named; 2 wrong usage; 3 could not be checked.";

#[derive(Debug, Clone)]
enum Selection {
    One(Which),
    All,
}

impl FromStr for Selection {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "all" { Ok(Self::All) } else { text.parse().map(Self::One) }
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum LevelName {
    /// Everything is there, with its size and digest; quick
    Objects,
    /// Every byte is read and found right, and the log has no hole
    Data,
}

/// All backups of a lineage, as JSON.
#[derive(Serialize)]
struct Reports<'a> {
    verdict: Verdict,
    reports: &'a [VerifyReport],
}

impl Arguments {
    pub(super) fn run(self, global: &Global) -> Result<Found, Failure> {
        let home = global.home()?;
        let level = match self.level {
            LevelName::Objects => Level::Objects,
            LevelName::Data => Level::Data,
        };
        let ids: Vec<BackupId> = match &self.backup {
            Selection::One(which) => vec![which.clone().resolve(&home)?],
            // The newest first: it is the one that is most likely to be needed.
            Selection::All => {
                let lineage = &home.lineage.lineage;
                let lost = home.system.lost_backups(lineage)?;
                home.system.backups(lineage)?.into_iter().rev().chain(lost).collect()
            }
        };
        let mut verifier = Verifier::new(&home, level, global.threads());
        let mut reports = Vec::new();
        for id in &ids {
            let check = |progress: &_| verifier.verify(id, progress);
            reports.push(progress::shown(global.output, "verifying", check)?);
        }
        let failed = reports.iter().any(|report| report.verdict == Verdict::Failed);
        let text = || reports.iter().map(text).collect::<String>();
        if let (Selection::One(_), [report]) = (&self.backup, reports.as_slice()) {
            output::report(global.output, report, text)?;
        } else {
            let verdict = if failed { Verdict::Failed } else { Verdict::Passed };
            output::report(global.output, &Reports { verdict, reports: &reports }, text)?;
        }
        Ok(Found::wrong_if(failed))
    }
}

fn text(report: &VerifyReport) -> String {
    let verdict = match (report.verdict, report.level) {
        (Verdict::Failed, _) => "FAILED",
        (Verdict::Passed, Level::Objects) => "everything is there",
        (Verdict::Passed, _) => "every byte is right",
    };
    let seconds = report.duration_seconds;
    let read = format!("{}, {}", Bytes(report.bytes), count(report.objects, "object"));
    let block = Block::new(format!("verify {}: {verdict}", report.backup_id))
        .fact("read", read)
        .fact("took", format!("{}, {}", Seconds(seconds), Rate(report.bytes, seconds)))
        .maybe("evidence", report.evidence.as_ref())
        .bad(&report.damage)
        .bad(&report.failures)
        .notes(&report.notes);
    let next = match (report.verdict, report.level) {
        (Verdict::Failed, _) => {
            "do not count on this backup: make a new one (it stores again what is damaged) and verify that; `verify all` \
             tells which others are touched"
                .to_owned()
        }
        (Verdict::Passed, Level::Objects) => format!("holdfast-agent verify {}", report.backup_id),
        (Verdict::Passed, _) => format!("holdfast-agent drill {} proves that it comes back", report.backup_id),
    };
    block.next(next).to_string()
}

impl From<VerifyError> for Failure {
    fn from(error: VerifyError) -> Self {
        match error {
            VerifyError::Repository(error) => error.into(),
            VerifyError::Store(error) => error.into(),
            VerifyError::Engine(error) => error.into(),
        }
    }
}
