//! Where and as whom to connect: flags over service file over environment over defaults, as in libpq.
//!
//! The names and their meaning are libpq's (PostgreSQL documentation, "Database Connection Control Functions" and
//! "Environment Variables"). Two defaults differ: the database is `postgres`, not one named like the user, since a
//! cluster is what is backed up; and both usual socket directories are tried.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use super::connect_sources::{Sources, login_name};
use super::pgpass::Password;
use super::service::ServiceError;

const DEFAULT_PORT: u16 = 5432;
/// How a connection over TCP is protected. A socket needs no protection and has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsMode {
    /// Never TLS.
    Disable,
    /// TLS if the server offers it, without checking who it is; else none.
    Prefer,
    /// TLS, without checking who the server is unless root certificates are given (then as `VerifyCa`).
    Require,
    /// TLS, and the server's certificate is signed by a known authority.
    VerifyCa,
    /// As `VerifyCa`, and the certificate is for the host that was asked for.
    VerifyFull,
}

impl FromStr for TlsMode {
    type Err = SettingsError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            "disable" => Self::Disable,
            // `allow` tries without TLS first; both promise nothing, and with TLS first nothing is lost.
            "allow" | "prefer" => Self::Prefer,
            "require" => Self::Require,
            "verify-ca" => Self::VerifyCa,
            "verify-full" => Self::VerifyFull,
            _ => return Err(invalid("sslmode", text, "disable, prefer, require, verify-ca or verify-full")),
        })
    }
}

impl fmt::Display for TlsMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Disable => "disable",
            Self::Prefer => "prefer",
            Self::Require => "require",
            Self::VerifyCa => "verify-ca",
            Self::VerifyFull => "verify-full",
        })
    }
}

/// What was given on the command line. There is no password among it: arguments are visible to everyone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnectOptions {
    /// `--host`: a host name, an address, or the directory of a socket.
    pub host: Option<String>,
    /// `--port`
    pub port: Option<u16>,
    /// `--user`
    pub user: Option<String>,
    /// `--dbname`
    pub dbname: Option<String>,
    /// `--service`: a section of the service file.
    pub service: Option<String>,
    /// `--passfile`
    pub passfile: Option<PathBuf>,
    /// `--sslmode`
    pub sslmode: Option<String>,
    /// `--sslrootcert`: a file, or `system` for the machine's certificates.
    pub sslrootcert: Option<String>,
    /// `--sslcert`
    pub sslcert: Option<PathBuf>,
    /// `--sslkey`
    pub sslkey: Option<PathBuf>,
    /// How long to wait for a connection.
    pub connect_timeout: Option<Duration>,
}

/// What is wrong with the settings of a connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// A value that cannot be.
    #[error("{name} is {value:?}: it must be {expected}")]
    Invalid {
        /// The setting.
        name: &'static str,
        /// Its value.
        value: String,
        /// What it must be.
        expected: &'static str,
    },
    /// The service file.
    #[error(transparent)]
    Service(#[from] ServiceError),
    /// A setting of the service file that would be ignored, and must not be.
    #[error("the service file sets {0}, which is not supported here")]
    Unsupported(String),
    /// Nobody to connect as.
    #[error("no user to connect as: this process's user has no name in /etc/passwd; give --user or set PGUSER")]
    NoUser,
    /// No socket and no host.
    #[error(
        "no host given, and no server has a socket for port {port} in {}; is the server running? Give --host (a name, or \
         the socket's directory) or --port",
        super::connect_sources::SOCKET_DIRECTORIES.join(" or ")
    )]
    NoSocket {
        /// The port in the socket's name.
        port: u16,
    },
}

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Endpoint {
    Socket(PathBuf),
    Tcp { host: String, address: Option<IpAddr> },
}

/// Where root certificates are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Roots {
    None,
    System,
    File(PathBuf),
}

/// Everything decided.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) endpoint: Endpoint,
    pub(super) port: u16,
    pub(super) user: String,
    pub(super) dbname: String,
    /// Nobody named the database.
    pub(super) is_default_database: bool,
    pub(super) password: Option<Password>,
    /// Why a password file was not used.
    pub(super) passfile_note: Option<String>,
    pub(super) tls: TlsMode,
    pub(super) roots: Roots,
    pub(super) identity: Option<(PathBuf, PathBuf)>,
    pub(super) options: Option<String>,
    pub(super) timeout: Duration,
}

/// What was tried, for errors.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { port, user, dbname, .. } = self;
        match &self.endpoint {
            Endpoint::Socket(directory) => {
                let socket = directory.join(format!(".s.PGSQL.{port}"));
                write!(f, "socket {}, user {user}, database {dbname}", socket.display())
            }
            Endpoint::Tcp { host, .. } => {
                write!(f, "host {host}, port {port}, user {user}, database {dbname}, sslmode {}", self.tls)
            }
        }
    }
}

/// Looks a variable up; given, so that tests need not change the process's own environment.
pub(super) type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

impl ConnectOptions {
    /// Decides everything that was left open.
    pub(super) fn resolve(&self, dbname: Option<&str>, environment: Environment<'_>) -> Result<Target, SettingsError> {
        let sources = Sources::new(self, environment)?;
        let port = match self.port {
            Some(port) => port,
            None => sources.parsed("port", "PGPORT", "a number from 1 to 65535")?.unwrap_or(DEFAULT_PORT),
        };
        let user = match sources.text(self.user.as_deref(), "user", "PGUSER") {
            Some(user) => user,
            None => login_name().ok_or(SettingsError::NoUser)?,
        };
        let dbname = dbname.map(str::to_owned);
        let dbname = dbname.or_else(|| sources.text(self.dbname.as_deref(), "dbname", "PGDATABASE"));
        let mut target = Target {
            endpoint: sources.endpoint(self.host.as_deref(), port)?,
            port,
            user,
            is_default_database: dbname.is_none(),
            dbname: dbname.unwrap_or_else(|| "postgres".into()),
            password: None,
            passfile_note: None,
            tls: sources.tls(self.sslmode.as_deref())?,
            roots: sources.roots(self.sslrootcert.as_deref()),
            identity: sources.identity(self),
            options: sources.text(None, "options", "PGOPTIONS"),
            timeout: sources.timeout(self.connect_timeout)?,
        };
        sources.password(self.passfile.as_deref(), &mut target);
        Ok(target)
    }
}

pub(super) fn invalid(name: &'static str, value: &str, expected: &'static str) -> SettingsError {
    SettingsError::Invalid { name, value: value.to_owned(), expected }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(options: &ConnectOptions, environment: &[(&str, &str)]) -> Result<Target, SettingsError> {
        let look_up = |name: &str| environment.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned());
        options.resolve(None, &look_up)
    }

    fn service_file(content: &str) -> (tempfile::NamedTempFile, String) {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), content).unwrap();
        let path = file.path().display().to_string();
        (file, path)
    }

    #[test]
    fn flags_go_over_the_service_over_the_environment_over_defaults() {
        let (_file, path) = service_file("[shop]\nhost=from-service\nport=5433\nuser=from-service\n");
        let environment = [
            ("PGSERVICEFILE", path.as_str()),
            ("PGSERVICE", "shop"),
            ("PGHOST", "from-environment"),
            ("PGUSER", "from-environment"),
            ("PGDATABASE", "from-environment"),
            ("PGPASSWORD", "secret"),
        ];
        let options = ConnectOptions { user: Some("from-flag".into()), ..ConnectOptions::default() };
        let target = resolve(&options, &environment).unwrap();
        assert_eq!(
            target.to_string(),
            "host from-service, port 5433, user from-flag, database from-environment, sslmode prefer"
        );
        assert!(!format!("{target:?}").contains("secret"));
        assert_eq!(target.password, Some(Password::new("secret".into())));
        let plain = resolve(&options, &[("PGHOST", "db.example")]).unwrap();
        assert_eq!(plain.to_string(), "host db.example, port 5432, user from-flag, database postgres, sslmode prefer");
        assert_eq!(plain.timeout, Duration::from_secs(10));
    }

    #[test]
    fn a_host_with_a_slash_is_the_directory_of_a_socket() {
        let options = ConnectOptions { host: Some("/run/db".into()), user: Some("anna".into()), ..Default::default() };
        let target = resolve(&options, &[("PGPORT", "5440")]).unwrap();
        assert_eq!(target.to_string(), "socket /run/db/.s.PGSQL.5440, user anna, database postgres");
    }

    #[test]
    fn without_a_host_the_usual_places_are_named() {
        let error = resolve(&ConnectOptions::default(), &[("PGPORT", "1")]).unwrap_err();
        assert_eq!(error, SettingsError::NoSocket { port: 1 });
        assert!(error.to_string().contains("no server has a socket for port 1 in /var/run/postgresql or /tmp"));
    }

    #[rstest::rstest]
    #[case("PGPORT", "abc", "port is \"abc\": it must be a number from 1 to 65535")]
    #[case("PGHOST", "a,b", "host is \"a,b\": it must be one host, not a list")]
    #[case("PGSSLMODE", "on", "sslmode is \"on\": it must be disable, prefer, require, verify-ca or verify-full")]
    #[case("PGCONNECT_TIMEOUT", "soon", "connect_timeout is \"soon\": it must be a number of seconds")]
    fn a_value_that_cannot_be_is_named(#[case] variable: &str, #[case] value: &str, #[case] message: &str) {
        let error = resolve(&ConnectOptions::default(), &[(variable, value), ("PGHOST", "db")]);
        let error =
            if variable == "PGHOST" { resolve(&ConnectOptions::default(), &[(variable, value)]) } else { error };
        assert_eq!(error.unwrap_err().to_string(), message);
    }

    #[test]
    fn what_the_service_file_demands_is_not_ignored() {
        let (_file, path) = service_file("[shop]\nhost=db\nrequire_auth=scram-sha-256\n");
        let error = resolve(&ConnectOptions::default(), &[("PGSERVICEFILE", &path), ("PGSERVICE", "shop")]);
        assert_eq!(error.unwrap_err(), SettingsError::Unsupported("require_auth".into()));
    }

    #[test]
    fn a_password_file_is_asked_with_localhost_for_a_usual_socket() {
        let (file, path) = service_file("localhost:5432:postgres:anna:right\n/run/db:5432:postgres:anna:other\n");
        assert!(file.path().exists());
        let given = |host: &str| {
            let options =
                ConnectOptions { host: Some(host.into()), user: Some("anna".into()), ..ConnectOptions::default() };
            resolve(&options, &[("PGPASSFILE", &path)]).unwrap().password
        };
        assert_eq!(given("/tmp"), Some(Password::new("right".into())));
        assert_eq!(given("/var/run/postgresql"), Some(Password::new("right".into())));
        assert_eq!(given("/run/db"), Some(Password::new("other".into())));
        assert_eq!(given("elsewhere"), None);
    }
}
