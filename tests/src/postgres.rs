//! PostgreSQL servers of every supported major version.

mod options;
mod processes;
mod server;

use std::fmt;
use std::path::PathBuf;

pub use options::Options;
pub use server::{Server, Shutdown};

use crate::tools;

/// A supported major version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Major {
    /// Debian 12's own build.
    V15,
    /// A plain build: no amcheck or other contributed extension, no TLS, no ICU.
    V16,
    /// Debian 13's build.
    V17,
    /// A plain build, as 16.
    V18,
}

impl Major {
    /// All that Holdfast supports; tests run on each.
    pub const ALL: [Self; 4] = [Self::V15, Self::V16, Self::V17, Self::V18];

    /// The version as people say it.
    pub fn number(self) -> u32 {
        match self {
            Self::V15 => 15,
            Self::V16 => 16,
            Self::V17 => 17,
            Self::V18 => 18,
        }
    }

    /// The directory of its programs.
    #[track_caller]
    pub fn bin(self) -> PathBuf {
        tools::tool(&format!("postgresql/{self}")).join("bin")
    }

    /// Whether this build brings the extension that `pg_amcheck` needs.
    pub fn has_amcheck(self) -> bool {
        matches!(self, Self::V15 | Self::V17)
    }
}

impl fmt::Display for Major {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.number())
    }
}
