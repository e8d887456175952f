//! Options that several commands share, and what they open.

use std::path::PathBuf;
use std::sync::Arc;

use clap::{Args, ValueEnum};

use super::exit::Failure;
use super::output::Format;
use super::secrets;
use crate::engine::postgres::ConnectOptions;
use crate::home::{self, Choice, Home};
use crate::repository::BackupId;
use crate::repository::store::s3::S3Settings;
use crate::repository::store::{self, Store};

/// More threads than this bring little on the machines that databases run on, and take memory.
const MOST_THREADS_BY_DEFAULT: usize = 8;

/// Options that every command has, before or after its name.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Options of all commands")]
pub(super) struct Global {
    /// Where backups are: /path, file:///path, s3://bucket/prefix or memory://name
    #[arg(long, global = true, value_name = "URL", env = "HOLDFAST_REPOSITORY")]
    pub(super) repository: Option<String>,

    /// A file of settings (TOML), instead of /etc/holdfast/agent.toml
    #[arg(long, global = true, value_name = "FILE", env = "HOLDFAST_CONFIG")]
    pub(super) config: Option<PathBuf>,

    /// How results and errors are printed
    #[arg(long, global = true, value_enum, value_name = "FORMAT", env = "HOLDFAST_OUTPUT", default_value = "text")]
    pub(super) output: Format,

    /// Threads that read, hash and compress [default: one for each core, at most 4]
    #[arg(long, global = true, value_name = "N", env = "HOLDFAST_THREADS", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(super) threads: Option<u16>,

    /// The system whose backups are meant, where the repository holds several
    #[arg(long, global = true, value_name = "ID", env = "HOLDFAST_SYSTEM_ID")]
    pub(super) system_id: Option<String>,

    /// The lineage that is meant, where the system has several
    #[arg(long, global = true, value_name = "ID", env = "HOLDFAST_LINEAGE")]
    pub(super) lineage: Option<String>,

    /// What is logged on stderr
    #[arg(long, global = true, value_enum, value_name = "LEVEL", env = "HOLDFAST_LOG", default_value = "warn")]
    pub(super) log_level: LogLevel,

    #[command(flatten)]
    pub(super) s3: S3,
}

/// How much is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum LogLevel {
    Off,
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

/// How S3 is reached.
#[derive(Debug, Clone, Args)]
#[expect(clippy::struct_field_names, reason = "they are the names of options")]
pub(super) struct S3 {
    /// The S3 server, unless it is Amazon's
    #[arg(
        long,
        global = true,
        value_name = "URL",
        env = "HOLDFAST_S3_ENDPOINT",
        help_heading = "S3",
        hide_short_help = true
    )]
    pub(super) s3_endpoint: Option<String>,

    /// The region of the bucket
    #[arg(
        long,
        global = true,
        value_name = "REGION",
        env = "HOLDFAST_S3_REGION",
        help_heading = "S3",
        hide_short_help = true
    )]
    pub(super) s3_region: Option<String>,

    /// Puts the bucket into the path instead of the host name, as most servers but Amazon's need it
    #[arg(long, global = true, env = "HOLDFAST_S3_PATH_STYLE", help_heading = "S3", hide_short_help = true,
          value_parser = clap::builder::BoolishValueParser::new())]
    pub(super) s3_path_style: bool,

    /// Certificates (PEM) to trust besides the system's
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "HOLDFAST_S3_CA_FILE",
        help_heading = "S3",
        hide_short_help = true
    )]
    pub(super) s3_ca_file: Option<PathBuf>,

    /// A file of credentials in AWS' shared format; without it, AWS_ACCESS_KEY_ID and the like
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "HOLDFAST_S3_CREDENTIALS_FILE",
        help_heading = "S3",
        hide_short_help = true
    )]
    pub(super) s3_credentials_file: Option<PathBuf>,

    /// The profile in that file
    #[arg(
        long,
        global = true,
        value_name = "NAME",
        env = "HOLDFAST_S3_PROFILE",
        help_heading = "S3",
        hide_short_help = true
    )]
    pub(super) s3_profile: Option<String>,
}

impl Global {
    /// How many threads are to work.
    pub(super) fn threads(&self) -> usize {
        let cores = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        self.threads.map_or_else(|| cores().min(MOST_THREADS_BY_DEFAULT), usize::from)
    }

    /// The URL of the repository.
    ///
    /// # Errors
    /// Where none is named.
    pub(super) fn repository(&self) -> Result<&str, Failure> {
        self.repository.as_deref().filter(|url| !url.is_empty()).ok_or_else(|| {
            Failure::usage(
                "no repository is named: give --repository, set HOLDFAST_REPOSITORY, or put repository = \"...\" \
                 into the configuration",
            )
        })
    }

    /// Opens the repository's store.
    ///
    /// # Errors
    /// Where none is named, or it cannot be opened.
    pub(super) fn store(&self) -> Result<Arc<dyn Store>, Failure> {
        let url = self.repository()?;
        // What is refused here is not repeated.
        secrets::refuse_in("the repository's URL", url)?;
        if let Some(endpoint) = &self.s3.s3_endpoint {
            secrets::refuse_in("the S3 endpoint's URL", endpoint)?;
        }
        Ok(store::open(url, &self.s3_settings())?)
    }

    fn s3_settings(&self) -> S3Settings {
        let s3 = self.s3.clone();
        let text = |text: Option<String>| text.filter(|text| !text.is_empty());
        S3Settings {
            endpoint: text(s3.s3_endpoint),
            region: text(s3.s3_region),
            path_style: s3.s3_path_style,
            ca_file: s3.s3_ca_file,
            credentials_file: s3.s3_credentials_file,
            profile: text(s3.s3_profile),
        }
    }

    /// The lineage to read from.
    ///
    /// # Errors
    /// Where there is none, or several.
    pub(super) fn home(&self) -> Result<Home, Failure> {
        Ok(home::to_read(self.store()?, self.system_id.as_deref(), self.lineage.as_deref())?)
    }

    /// Which lineage a server's backup or log goes to.
    pub(super) fn choice(&self, begin: bool, new_lineage: bool) -> Choice {
        Choice { lineage: self.lineage.clone(), new_lineage, may_begin: begin }
    }
}

/// Where the server is, and as whom to connect.
#[derive(Debug, Clone, Args)]
pub(super) struct Connection {
    /// Host name, address, or directory of the socket [env: PGHOST]
    #[arg(long, value_name = "HOST", help_heading = "Connection")]
    host: Option<String>,

    /// Port [env: PGPORT]
    #[arg(long, value_name = "PORT", help_heading = "Connection", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,

    /// User [env: PGUSER]
    #[arg(long, value_name = "NAME", help_heading = "Connection")]
    user: Option<String>,

    /// Database to connect to [env: PGDATABASE] [default: postgres]
    #[arg(long, value_name = "NAME", help_heading = "Connection")]
    dbname: Option<String>,

    /// Service of the connection service file [env: PGSERVICE]
    #[arg(long, value_name = "NAME", help_heading = "Connection")]
    service: Option<String>,

    /// Password file, in the format of .pgpass [env: PGPASSFILE]
    #[arg(long, value_name = "FILE", help_heading = "Connection")]
    passfile: Option<PathBuf>,

    /// disable, prefer, require, verify-ca or verify-full [env: PGSSLMODE] [default: prefer]
    #[arg(long, value_name = "MODE", help_heading = "Connection", hide_short_help = true,
          value_parser = ["disable", "allow", "prefer", "require", "verify-ca", "verify-full"], hide_possible_values = true)]
    sslmode: Option<String>,

    /// Root certificates (PEM), or "system" [env: PGSSLROOTCERT]
    #[arg(long, value_name = "FILE", help_heading = "Connection", hide_short_help = true)]
    sslrootcert: Option<String>,

    /// Client certificate (PEM) [env: PGSSLCERT]
    #[arg(long, value_name = "FILE", help_heading = "Connection", hide_short_help = true)]
    sslcert: Option<PathBuf>,

    /// Key of the client certificate (PEM) [env: PGSSLKEY]
    #[arg(long, value_name = "FILE", help_heading = "Connection", hide_short_help = true)]
    sslkey: Option<PathBuf>,
}

impl Connection {
    /// What the engine connects by.
    ///
    /// # Errors
    /// Where an option holds a connection string, which can hold a password.
    pub(super) fn options(self) -> Result<ConnectOptions, Failure> {
        for (option, value) in [("--host", &self.host), ("--dbname", &self.dbname)] {
            if value.as_ref().is_some_and(|value| value.contains("://") || value.contains('=')) {
                return Err(Failure::usage(format!(
                    "{option} is a connection string, and those can hold a password: give --host, --port, --user and \
                     --dbname one by one, or --service"
                )));
            }
        }
        Ok(ConnectOptions {
            host: self.host,
            port: self.port,
            user: self.user,
            dbname: self.dbname,
            service: self.service,
            passfile: self.passfile,
            sslmode: self.sslmode,
            sslrootcert: self.sslrootcert,
            sslcert: self.sslcert,
            sslkey: self.sslkey,
            connect_timeout: None,
        })
    }
}

/// Which of several backups is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Which {
    /// The newest.
    Latest,
    /// That one.
    Named(BackupId),
}

impl std::str::FromStr for Which {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "latest" => Ok(Self::Latest),
            name => name.parse().map(Self::Named),
        }
    }
}

impl Which {
    /// Its name; `None` leaves it to the target.
    pub(super) fn name(self) -> Option<BackupId> {
        match self {
            Self::Latest => None,
            Self::Named(id) => Some(id),
        }
    }

    /// The backup of `home` that is meant.
    ///
    /// # Errors
    /// Where there is none.
    pub(super) fn resolve(self, home: &Home) -> Result<BackupId, Failure> {
        match self {
            Self::Named(id) => Ok(id),
            Self::Latest => home.system.backups(&home.lineage.lineage)?.pop().ok_or_else(|| {
                Failure::because(format!("lineage {} has no backup yet: make one with `backup`", home.lineage.lineage))
            }),
        }
    }
}
