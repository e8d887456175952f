//! `prune` and `forget`

use clap::Args;
use jiff::SignedDuration;

use super::exit::{Failure, Found};
use super::options::Global;
use super::output::{self, Block};
use super::units::{Bytes, count, moment};
use super::values;
use crate::repository::BackupId;
use crate::repository::prune::{Object, PrunePlan};
use crate::repository::retention::Policy;
use crate::retire::{self, PruneError, PruneReport, PruneRequest};

/// Removes backups past retention, log that none needs, and what no backup names
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// Keeps so many of the newest verified backups
    #[arg(long, value_name = "N", env = "HOLDFAST_KEEP", value_parser = clap::value_parser!(u32).range(1..))]
    keep: Option<u32>,

    /// Keeps what is at most so much older than the newest
    #[arg(long, value_name = "TIME", env = "HOLDFAST_KEEP_WITHIN", value_parser = values::duration)]
    keep_within: Option<SignedDuration>,

    #[command(flatten)]
    how: How,
}

/// How it is removed.
#[derive(Debug, Args)]
struct How {
    /// How long what no backup names stays marked before it is deleted; 0s only where nothing else uses the repository
    #[arg(long, value_name = "TIME", env = "HOLDFAST_GRACE", default_value = "1h", value_parser = values::duration)]
    grace: SignedDuration,

    /// Only says what would be done
    #[arg(long)]
    dry_run: bool,
}

const EXAMPLES: &str = "\
Examples:
  holdfast-agent --repository /backup prune --keep 7 --dry-run
  holdfast-agent --repository /backup prune --keep 7 --keep-within 30d
  holdfast-agent --repository /backup prune

A backup stays if either option says so. Only verified backups count; the last verified and the last proven one always \
stay, as do pinned ones. Without --keep and --keep-within all backups stay, and only leftovers are removed. Objects are \
marked first, and deleted by a later prune once the grace has passed.

Exit codes: 0 done; 1 something is damaged, and nothing was removed; 2 wrong usage; 3 could not be done.";

/// Removes one backup
#[derive(Debug, Args)]
#[command(after_help = FORGET_EXAMPLES)]
pub(super) struct ForgetArguments {
    /// The name of the backup
    #[arg(value_name = "BACKUP")]
    backup: BackupId,

    #[command(flatten)]
    how: How,
}

const FORGET_EXAMPLES: &str = "\
Examples:
  holdfast-agent --repository /backup forget 20260131T235959Z-0a1b2c --dry-run
  holdfast-agent --repository /backup forget 20260131T235959Z-0a1b2c

What other backups share with it stays. The last verified and the last proven backup are not forgotten.

Exit codes: 0 done; 1 something is damaged, and nothing was removed; 2 wrong usage; 3 could not be done.";

impl Arguments {
    pub(super) fn run(self, global: &Global) -> Result<Found, Failure> {
        let policy = Policy { keep: self.keep, keep_within: self.keep_within };
        prune(global, "prune", policy, None, &self.how)
    }
}

impl ForgetArguments {
    pub(super) fn run(self, global: &Global) -> Result<Found, Failure> {
        prune(global, "forget", Policy::default(), Some(self.backup), &self.how)
    }
}

fn prune(
    global: &Global,
    command: &str,
    policy: Policy,
    forget: Option<BackupId>,
    how: &How,
) -> Result<Found, Failure> {
    let request = PruneRequest { policy, forget, grace: how.grace, dry_run: how.dry_run };
    let report = retire::prune(&global.home()?, &request)?;
    output::report(global.output, &report, || text(command, &report))?;
    Ok(Found::Sound)
}

fn text(command: &str, report: &PruneReport) -> String {
    let plan = &report.plan;
    let title = if report.executed { command.to_owned() } else { format!("{command}, dry run: nothing was changed") };
    let backups = plan.backups.iter().map(|backup| {
        let what = if backup.decision.keeps() { "stays" } else { "goes" };
        vec![backup.backup_id.to_string(), what.to_owned(), backup.decision.to_string()]
    });
    let table = if plan.backups.is_empty() {
        String::new()
    } else {
        format!("{}\n", output::table(&["backup", "", "why"], backups))
    };
    let (now, later) = plan.freed();
    let block = Block::new(title)
        .fact("backups", format!("{} of {} removed", plan.removed().count(), plan.backups.len()))
        .fact("log", amount(&plan.log))
        .fact("objects", amount(&plan.delete))
        .fact("freed", Bytes(now));
    let block = waiting(plan, later, block);
    let block = if report.executed { block } else { block.next("the same without --dry-run does it") };
    format!("{table}{block}")
}

/// What is only marked yet, and when the next prune deletes it.
fn waiting(plan: &PrunePlan, later: u64, block: Block) -> Block {
    match plan.deletable_from {
        Some(from) if !plan.mark.is_empty() => block
            .fact("marked", format!("{}, {}", count(plan.mark.len() as u64, "object"), Bytes(later)))
            .next(format!("a prune at or after {} deletes what is marked", moment(from))),
        _ => block,
    }
}

fn amount(objects: &[Object]) -> String {
    let bytes = objects.iter().map(|object| object.bytes).sum();
    format!("{}, {}", count(objects.len() as u64, "object"), Bytes(bytes))
}

impl From<PruneError> for Failure {
    fn from(error: PruneError) -> Self {
        match error {
            PruneError::Repository(error) => error.into(),
            PruneError::Engine(error) => error.into(),
            error @ PruneError::LastGood { .. } => Self::undone(&error),
        }
    }
}
