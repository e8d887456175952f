//! `list`

use clap::Args;
use jiff::Timestamp;

use super::exit::{Failure, Found};
use super::options::Global;
use super::output;
use super::units::{Bytes, ago, count, moment};
use crate::engine::Window;
use crate::list::{self, BackupLine, ListError, ListReport};

/// Lists the backups, and the times one can recover to
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {}

const EXAMPLES: &str = "\
Examples:
  holdfast-agent --repository /backup list
  holdfast-agent --repository s3://backups/shop list --output json

Verified: every byte was read and found right. Proven: it was restored, started and asked.

Exit codes: 0 all is well; 1 something is damaged, a check failed, or log is missing; 2 wrong usage; 3 could not be \
listed.";

impl Arguments {
    #[expect(clippy::unused_self, reason = "every command is run like this")]
    pub(super) fn run(self, global: &Global) -> Result<Found, Failure> {
        let report = list::list(&global.home()?)?;
        output::report(global.output, &report, || text(&report, Timestamp::now()))?;
        let failed = report.backups.iter().any(|backup| backup.standing.failed.is_some());
        let holes = report.windows.iter().any(|window| window.hole.is_some() && !ends_on_purpose(&report, window));
        Ok(Found::wrong_if(failed || holes || !report.damaged.is_empty()))
    }
}

/// A pinned backup past retention keeps only the log that makes it consistent.
fn ends_on_purpose(report: &ListReport, window: &Window) -> bool {
    report.backups.iter().any(|backup| backup.pinned && backup.id.as_str() == window.backup)
}

fn text(report: &ListReport, now: Timestamp) -> String {
    let mut text = format!(
        "{} in {}\nlineage {} of system {}, {}\n",
        count(report.backups.len() as u64, "backup"),
        report.repository,
        report.lineage,
        report.system_id,
        report.owner
    );
    if report.backups.is_empty() {
        text.push_str("next: holdfast-agent backup\n");
    } else {
        let titles = ["backup", ">age", ">database", ">new", ">stored", "verified", "proven", "remarks"];
        text.push('\n');
        text.push_str(&output::table(&titles, report.backups.iter().map(|backup| row(backup, now))));
    }
    if !report.windows.is_empty() {
        text.push_str("\none can recover to\n");
        text.push_str(&output::table(&["from", "until", "up to", "timeline", ""], report.windows.iter().map(window)));
    }
    text.extend(report.damaged.iter().map(|damage| format!("bad: {damage}\n")));
    text.push_str(&clock(report.clock_skew_seconds));
    text
}

/// A clock that is off by more than a few seconds makes ages and target times misleading.
fn clock(skew: f64) -> String {
    match skew {
        5.0.. => format!("note: this machine's clock is {skew:.0} s ahead of the store's\n"),
        ..=-5.0 => format!("note: this machine's clock is {:.0} s behind the store's\n", -skew),
        _ => String::new(),
    }
}

fn row(backup: &BackupLine, now: Timestamp) -> Vec<String> {
    let when = |time: Option<Timestamp>| time.map_or_else(|| "-".to_owned(), |time| ago(time, now));
    vec![
        backup.id.to_string(),
        ago(backup.completed, now),
        Bytes(backup.sizes.database_bytes).to_string(),
        Bytes(backup.sizes.new_bytes).to_string(),
        Bytes(backup.sizes.stored_bytes).to_string(),
        when(backup.standing.verified),
        when(backup.standing.proven),
        remarks(backup, now),
    ]
}

fn remarks(backup: &BackupLine, now: Timestamp) -> String {
    let mut remarks = Vec::new();
    if let Some(failed) = backup.standing.failed {
        remarks.push(format!("FAILED a check {}", ago(failed, now)));
    }
    if backup.bad_pages > 0 {
        remarks.push(format!("BAD {} in the source", count(backup.bad_pages as u64, "page")));
    }
    if backup.pinned {
        remarks.push("pinned".to_owned());
    }
    remarks.join(", ")
}

fn window(window: &Window) -> Vec<String> {
    vec![
        moment(window.from_time),
        window.until_time.map_or_else(|| "not known".to_owned(), moment),
        window.until_position.clone(),
        // PostgreSQL writes timelines in hexadecimal in names, and takes them in decimal.
        u32::from_str_radix(&window.branch, 16).map_or_else(|_| window.branch.clone(), |number| number.to_string()),
        window.hole.as_ref().map_or_else(String::new, |hole| format!("HOLE: {hole} is missing")),
    ]
}

impl From<ListError> for Failure {
    fn from(error: ListError) -> Self {
        match error {
            ListError::Repository(error) => error.into(),
            ListError::Store(error) => error.into(),
            ListError::Engine(error) => error.into(),
        }
    }
}
