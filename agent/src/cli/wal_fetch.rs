//! `wal-fetch`

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;

use super::exit::{self, Failure, Found};
use super::options::Global;
use super::output::{self, Format};
use super::values;
use crate::archive::{self, ArchiveError, FetchRequest};
use crate::engine::postgres::lsn::Lsn;

/// The name of the command.
pub(super) const NAME: &str = "wal-fetch";

/// Gives a WAL file back: this is restore_command
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// The file's name, %f in restore_command
    #[arg(value_name = "NAME")]
    name: String,

    /// Where it goes, %p in restore_command
    #[arg(value_name = "DEST")]
    target: PathBuf,

    /// Gives out no log past this position
    #[arg(long, value_name = "LSN", value_parser = values::lsn)]
    until: Option<Lsn>,
}

const EXAMPLES: &str = "\
Examples, in postgresql.conf:
  restore_command = 'holdfast-agent --repository /backup wal-fetch %f %p'

The file is given back whole and checked. `restore` writes the whole command for you.

Exit codes: 0 given back; 1 it is past the end of the archive (a standby, known by its standby.signal, is told so too \
while the store cannot be reached, and streams on); 126 anything else, wrong usage included: PostgreSQL then stops with \
an error, instead of taking damage, a hole, or a store that is away for the end of the log.";

impl Arguments {
    pub(super) fn run(self, global: &Global) -> Result<Found, Failure> {
        // The server calls this in its data directory.
        let standby = Path::new("standby.signal").exists();
        // Only `fetch` knows that the log ends; whatever else goes wrong must never be taken for that.
        let fatal = |failure: Failure| Failure { code: exit::NO_END_OF_LOG, ..failure };
        let request = FetchRequest {
            system_id: global.system_id.clone(),
            lineage: global.lineage.clone(),
            name: self.name,
            target: self.target,
            until: self.until,
            threads: global.threads(),
        };
        let store = global.store().map_err(fatal)?;
        match archive::fetch(store, &request) {
            Ok(()) => {}
            // Every recovery comes to the end of the log: no reason to alarm whoever reads the server's log.
            Err(error @ ArchiveError::PastTheEnd(_)) if global.output == Format::Text => {
                tracing::info!("{error}");
                return Ok(Found::Wrong);
            }
            Err(error) => {
                let code = error.fetch_exit_code(standby);
                return Err(Failure { code, ..Failure::from(error) });
            }
        }
        if global.output == Format::Json {
            output::print_json(&json!({ "file": request.name, "target": request.target })).map_err(fatal)?;
        }
        Ok(Found::Sound)
    }
}
