//! `backup`

use std::path::PathBuf;

use clap::Args;
use jiff::SignedDuration;
use serde_json::Value;

use super::exit::{Failure, Found};
use super::options::{Connection, Global};
use super::output::{self, Block, Format};
use super::units::{Bytes, Rate, Seconds, count, share};
use super::{probe, progress, values};
use crate::backup::{self, BackupError, BackupReport, BackupRequest};
use crate::engine::postgres::PostgresServer;
use crate::probe::ProbeAnswer;
use crate::repository::writer::Compression;

/// Makes a backup of a running server
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// The server's data directory, on this machine
    #[arg(long, value_name = "DIR", env = "HOLDFAST_DATA_DIR")]
    data_dir: PathBuf,

    /// Reads every file again at least this often, however unchanged it looks; 0s reads all now
    #[arg(long, value_name = "TIME", env = "HOLDFAST_REREAD_WITHIN", default_value = "7d", value_parser = values::duration)]
    reread_within: SignedDuration,

    /// auto, or a zstd level from 1 to 19
    #[arg(long, value_name = "LEVEL", env = "HOLDFAST_COMPRESSION", default_value = "auto", value_parser = values::compression)]
    compression: Compression,

    /// fast begins at once and costs the server a burst of writing; spread waits for its next checkpoint, in minutes
    #[arg(long, value_name = "KIND", env = "HOLDFAST_CHECKPOINT", default_value = "fast", value_parser = ["fast", "spread"],
          hide_possible_values = true)]
    checkpoint: String,

    /// Asks the server these questions and keeps the answers, for drills to compare with
    #[arg(long, value_name = "FILE", env = "HOLDFAST_PROBES")]
    probes: Option<PathBuf>,

    /// Begins a lineage of its own for a server that is a copy of one that is backed up here
    #[arg(long, conflicts_with = "lineage")]
    new_lineage: bool,

    #[command(flatten)]
    connection: Connection,
}

const EXAMPLES: &str = "\
Examples:
  holdfast-agent --repository /backup backup --data-dir /var/lib/postgresql/16/main
  holdfast-agent --repository s3://backups/shop backup --data-dir /srv/pg --user backup
  holdfast-agent backup --service shop --probes /etc/holdfast/probes.toml --output json

It must be allowed to read the data directory, and in the server to call pg_backup_start: as a superuser, or as a role \
with EXECUTE on pg_backup_start and pg_backup_stop that is a member of pg_monitor. Passwords come from a password file, \
a service or PGPASSWORD.

Exit codes: 0 there is a backup; 1 there is one, but pages of the server itself are damaged; 2 wrong usage; 3 there is \
none.";

impl Arguments {
    pub(super) fn run(self, global: &Global) -> Result<Found, Failure> {
        let connection = self.connection.options()?;
        let store = global.store()?;
        let probes = match &self.probes {
            Some(file) => probe::answers(&connection, file)?,
            None => Vec::<ProbeAnswer>::new(),
        };
        let request = BackupRequest {
            choice: global.choice(true, self.new_lineage),
            threads: global.threads(),
            compression: self.compression,
            reread_within: self.reread_within,
            fast_checkpoint: self.checkpoint == "fast",
            probes,
        };
        let mut server = PostgresServer::new(connection, self.data_dir);
        let report = progress::shown(global.output, "backing up", |progress| {
            backup::backup(&mut server, store, &request, progress)
        })?;
        match global.output {
            Format::Text => output::print_text(&text(&report))?,
            Format::Json => output::print_json(&json(&report)?)?,
        }
        Ok(Found::wrong_if(!report.bad_pages.is_empty()))
    }
}

/// The report with the positions beside the sizes.
fn json(report: &BackupReport) -> Result<Value, Failure> {
    let mut value = serde_json::to_value(report).map_err(|error| Failure::undone(&error))?;
    for name in ["start_lsn", "stop_lsn"] {
        if let Some(position) = report.record.get(name) {
            value[name] = position.clone();
        }
    }
    Ok(value)
}

fn text(report: &BackupReport) -> String {
    let sizes = &report.sizes;
    let position = |name: &str| report.record.get(name).and_then(Value::as_str);
    let positions = position("start_lsn").zip(position("stop_lsn")).map(|(start, stop)| format!("{start} to {stop}"));
    let seconds = report.duration_seconds;
    let new = match report.previous {
        None => format!("{} (the first backup of its lineage)", Bytes(sizes.new_bytes)),
        Some(_) => format!("{} ({})", Bytes(sizes.new_bytes), share(sizes.new_bytes, sizes.database_bytes)),
    };
    let block = Block::new(format!("backup {}", report.backup_id))
        .fact("database", format!("{} in {}", Bytes(sizes.database_bytes), count(sizes.files, "file")))
        .fact("new", new)
        .fact("stored", Bytes(sizes.stored_bytes))
        .fact("took", format!("{}, {}", Seconds(seconds), Rate(sizes.database_bytes, seconds)))
        .maybe("log", positions)
        .fact("lineage", format!("{} of system {}", report.lineage, report.system_id))
        .fact("in", &report.repository)
        .bad(report.bad_pages.iter().map(|bad| format!("page {} of {} in the server's own data", bad.page, bad.path)))
        .notes(&report.notes);
    if report.bad_pages.is_empty() {
        block.next(format!("holdfast-agent verify {}", report.backup_id)).to_string()
    } else {
        let bad = count(report.bad_pages.len() as u64, "page");
        block.next(format!(
            "{bad} did not match the checksum that PostgreSQL wrote: this backup cannot become a verified one; find out \
             what damaged the server's disk or memory, and keep the older backups (`pin`)"
        ))
        .to_string()
    }
}

impl From<BackupError> for Failure {
    fn from(error: BackupError) -> Self {
        match error {
            BackupError::Engine(error) => error.into(),
            BackupError::Store(error) => error.into(),
            BackupError::Repository(error) => error.into(),
            error => Self::undone(&error),
        }
    }
}
