//! `pin` and `unpin`

use clap::Args;
use serde_json::json;

use super::exit::{Failure, Found};
use super::options::Global;
use super::output;
use crate::repository::BackupId;

/// Keeps a backup whatever retention says
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// The name of the backup
    #[arg(value_name = "BACKUP")]
    backup: BackupId,
}

const EXAMPLES: &str = "\
Examples:
  holdfast-agent --repository /backup pin 20260131T235959Z-0a1b2c

A pinned backup that is past retention keeps only the log that it cannot be restored without, and does not count.

Exit codes: 0 done; 1 the backup is damaged; 2 wrong usage; 3 could not be done.";

/// Lets retention decide about a backup again
#[derive(Debug, Args)]
#[command(after_help = UNPIN_EXAMPLES)]
pub(super) struct UnpinArguments {
    /// The name of the backup
    #[arg(value_name = "BACKUP")]
    backup: BackupId,
}

const UNPIN_EXAMPLES: &str = "\
Examples:
  holdfast-agent --repository /backup unpin 20260131T235959Z-0a1b2c

Exit codes: 0 done; 2 wrong usage; 3 could not be done.";

impl Arguments {
    pub(super) fn run(self, global: &Global) -> Result<Found, Failure> {
        pin(global, &self.backup, true)
    }
}

impl UnpinArguments {
    pub(super) fn run(self, global: &Global) -> Result<Found, Failure> {
        pin(global, &self.backup, false)
    }
}

fn pin(global: &Global, id: &BackupId, pinned: bool) -> Result<Found, Failure> {
    let home = global.home()?;
    let lineage = &home.lineage.lineage;
    if !home.system.backups(lineage)?.contains(id) {
        return Err(Failure::because(format!("lineage {lineage} has no backup {id}: see `list`")));
    }
    home.system.pin(lineage, id, pinned)?;
    let word = if pinned { "pinned" } else { "no longer pinned" };
    let report = json!({ "backup_id": id, "lineage": lineage, "pinned": pinned });
    output::report(global.output, &report, || format!("backup {id} is {word}\n"))?;
    Ok(Found::Sound)
}
