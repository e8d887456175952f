//! `wal-push`

use std::path::PathBuf;

use clap::Args;

use super::exit::{Failure, Found};
use super::options::Global;
use super::output::{self, Format};
use crate::archive::{self, ArchiveError};

/// Archives a WAL file: this is archive_command
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// The file, %p in archive_command
    #[arg(value_name = "PATH")]
    path: PathBuf,
}

const EXAMPLES: &str = "\
Examples, in postgresql.conf:
  archive_mode = on
  archive_command = 'holdfast-agent --repository /backup wal-push %p'

It succeeds only once the file is durably stored, or was so already with the same content; nothing is printed then. \
After anything else PostgreSQL keeps the file and tries again.

Exit codes: 0 stored; 2 wrong usage; 3 not stored. None is above 125, which would end PostgreSQL's archiver.";

impl Arguments {
    pub(super) fn run(self, global: &Global) -> Result<Found, Failure> {
        let report = archive::push(global.store()?, &global.choice(false, false), &self.path, global.threads())
            .map_err(|error| Failure::from(error).undone_at_all())?;
        if global.output == Format::Json {
            output::print_json(&report)?;
        }
        Ok(Found::Sound)
    }
}

impl From<ArchiveError> for Failure {
    fn from(error: ArchiveError) -> Self {
        match error {
            ArchiveError::Repository(error) => error.into(),
            ArchiveError::Engine(error) => error.into(),
            error => Self::undone(&error),
        }
    }
}
