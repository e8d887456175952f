//! Sessions with the server: one way in, the same settings for all, and errors that say what to do.

use std::error::Error as _;
use std::time::Duration;

use postgres::config::SslMode;
use postgres::error::SqlState;
use postgres::{Client, Config, NoTls};

pub use super::connect_options::{ConnectOptions, SettingsError, TlsMode};
use super::connect_options::{Endpoint, Environment, Target};
pub use super::service::ServiceError;
use super::tls;
pub use super::tls::TlsError;

/// How sessions of this program are named in `pg_stat_activity`.
pub const APPLICATION_NAME: &str = "holdfast-agent";

/// What every session runs with, whatever the role or the database has set: names are looked up in the catalog only,
/// so that nothing a user made can take a function's or an operator's place, and times are in UTC. A checkpoint or a
/// backup takes as long as it takes; waiting for a lock, which nothing here should do, does not.
const SESSION_SETTINGS: &str = "\
    SET search_path = pg_catalog; \
    SET statement_timeout = 0; \
    SET lock_timeout = '60s'; \
    SET idle_in_transaction_session_timeout = 0; \
    SET idle_session_timeout = 0; \
    SET default_transaction_isolation = 'read committed'; \
    SET default_transaction_deferrable = off; \
    SET TimeZone = 'UTC'; \
    SET DateStyle = 'ISO'; \
    SET client_min_messages = warning";

const KEEPALIVES_IDLE: Duration = Duration::from_secs(30);
const KEEPALIVES_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVES_RETRIES: u32 = 3;

/// Why there is no session. Each names what was tried, and never a password.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The settings themselves.
    #[error("cannot tell how to connect to PostgreSQL: {0}")]
    Settings(#[from] SettingsError),
    /// TLS could not be set up.
    #[error("cannot connect to PostgreSQL ({tried}): {source}")]
    TlsSetup {
        /// What was tried.
        tried: String,
        /// Why.
        source: TlsError,
    },
    /// The TLS handshake failed.
    #[error("cannot connect to PostgreSQL ({tried}): TLS failed: {reason}{hint}")]
    Tls {
        /// What was tried.
        tried: String,
        /// Why.
        reason: String,
        /// What to do.
        hint: &'static str,
    },
    /// Nothing answered.
    #[error(
        "cannot reach PostgreSQL ({tried}): {reason}. Is the server running, and does it listen there? See --host and \
         --port"
    )]
    Unreachable {
        /// What was tried.
        tried: String,
        /// Why.
        reason: String,
    },
    /// The server does not let this user in.
    #[error("PostgreSQL refuses the login ({tried}): {reason}. {hint}")]
    Refused {
        /// What was tried.
        tried: String,
        /// What the server said.
        reason: String,
        /// What to do.
        hint: String,
    },
    /// There is no such database.
    #[error("PostgreSQL refuses the connection ({tried}): {reason}. Give another with --dbname")]
    NoDatabase {
        /// What was tried.
        tried: String,
        /// What the server said.
        reason: String,
    },
    /// The server is there, but takes no session now.
    #[error("PostgreSQL takes no session now ({tried}): {reason}")]
    NotNow {
        /// What was tried.
        tried: String,
        /// What the server said.
        reason: String,
    },
    /// Anything else the server said.
    #[error("cannot open a session with PostgreSQL ({tried}): {reason}")]
    Server {
        /// What was tried.
        tried: String,
        /// What it said.
        reason: String,
    },
}

impl ConnectError {
    /// Whether trying again later can help with nothing changed here.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::NotNow { .. })
    }
}

/// Opens a session in `dbname`, or in the database of `options` (or of the environment, or `postgres`).
///
/// # Errors
/// If the server cannot be reached or does not let us in.
pub fn connect(options: &ConnectOptions, dbname: Option<&str>) -> Result<Client, ConnectError> {
    resolve_and_open(options, dbname, &|name| std::env::var(name).ok())
}

/// Opens a session with a server of our own: what the environment says is about another one.
pub(super) fn connect_to_own(options: &ConnectOptions, dbname: Option<&str>) -> Result<Client, ConnectError> {
    resolve_and_open(options, dbname, &|_| None)
}

fn resolve_and_open(
    options: &ConnectOptions,
    dbname: Option<&str>,
    environment: Environment<'_>,
) -> Result<Client, ConnectError> {
    let mut target = options.resolve(dbname, environment)?;
    match open(&target) {
        // The usual database can be dropped; this one cannot, and nobody asked for either.
        Err(ConnectError::NoDatabase { .. }) if target.is_default_database => {
            "template1".clone_into(&mut target.dbname);
            open(&target)
        }
        result => result,
    }
}

fn open(target: &Target) -> Result<Client, ConnectError> {
    let failed = |error: &postgres::Error| classify(target, error);
    let mut client = match (&target.endpoint, target.tls) {
        // A socket is not encrypted, as in libpq.
        (Endpoint::Socket(_), _) | (_, TlsMode::Disable) => {
            config(target, SslMode::Disable).connect(NoTls).map_err(|e| failed(&e))?
        }
        (Endpoint::Tcp { .. }, TlsMode::Prefer) => prefer_tls(target)?,
        (Endpoint::Tcp { .. }, _) => {
            config(target, SslMode::Require).connect(connector(target)?).map_err(|e| failed(&e))?
        }
    };
    client.batch_execute(SESSION_SETTINGS).map_err(|e| failed(&e))?;
    Ok(client)
}

/// With TLS if that works, else without, as the mode says: also where the server's `pg_hba.conf` takes no TLS.
fn prefer_tls(target: &Target) -> Result<Client, ConnectError> {
    let error = match config(target, SslMode::Prefer).connect(connector(target)?) {
        Ok(client) => return Ok(client),
        Err(error) => error,
    };
    let not_by_hba = error.code() == Some(&SqlState::INVALID_AUTHORIZATION_SPECIFICATION);
    let error = classify(target, &error);
    if not_by_hba || matches!(error, ConnectError::Tls { .. }) {
        // The first error is the one to tell: it is about what was asked for.
        return config(target, SslMode::Disable).connect(NoTls).map_err(|_| error);
    }
    Err(error)
}

fn connector(target: &Target) -> Result<tokio_postgres_rustls::MakeRustlsConnect, ConnectError> {
    tls::connector(target).map_err(|source| ConnectError::TlsSetup { tried: target.to_string(), source })
}

fn config(target: &Target, mode: SslMode) -> Config {
    let mut config = Config::new();
    config
        .port(target.port)
        .user(&target.user)
        .dbname(&target.dbname)
        .application_name(APPLICATION_NAME)
        .connect_timeout(target.timeout)
        .keepalives(true)
        .keepalives_idle(KEEPALIVES_IDLE)
        .keepalives_interval(KEEPALIVES_INTERVAL)
        .keepalives_retries(KEEPALIVES_RETRIES)
        .ssl_mode(mode);
    match &target.endpoint {
        Endpoint::Socket(directory) => config.host_path(directory),
        Endpoint::Tcp { host, address: None } => config.host(host),
        Endpoint::Tcp { host, address: Some(address) } => config.host(host).hostaddr(*address),
    };
    if let Some(password) = &target.password {
        config.password(password.reveal());
    }
    if let Some(options) = &target.options {
        config.options(options);
    }
    config
}

fn classify(target: &Target, error: &postgres::Error) -> ConnectError {
    let tried = target.to_string();
    if let Some(answer) = error.as_db_error() {
        return classify_answer(target, tried, answer);
    }
    let reason = innermost(error);
    if error.to_string().contains("TLS") || is_rustls(error) {
        let hint = tls_hint(&reason);
        return ConnectError::Tls { tried, reason, hint };
    }
    if reason.contains("password missing") {
        let reason = "it asks for a password, and none was given".into();
        return ConnectError::Refused { tried, reason, hint: password_hint(target) };
    }
    if error.to_string() == "authentication error" {
        return ConnectError::Refused { tried, reason, hint: password_hint(target) };
    }
    ConnectError::Unreachable { tried, reason }
}

fn classify_answer(target: &Target, tried: String, answer: &postgres::error::DbError) -> ConnectError {
    let reason = answer.message().to_owned();
    let code = answer.code();
    if *code == SqlState::INVALID_PASSWORD {
        ConnectError::Refused { tried, reason, hint: password_hint(target) }
    } else if *code == SqlState::INVALID_AUTHORIZATION_SPECIFICATION {
        let hint = "Give the right --user, or let pg_hba.conf admit it; with peer authentication, run this program as \
                    that user";
        ConnectError::Refused { tried, reason, hint: hint.into() }
    } else if *code == SqlState::INVALID_CATALOG_NAME {
        ConnectError::NoDatabase { tried, reason }
    } else if *code == SqlState::CANNOT_CONNECT_NOW || *code == SqlState::TOO_MANY_CONNECTIONS {
        ConnectError::NotNow { tried, reason }
    } else {
        ConnectError::Server { tried, reason }
    }
}

fn password_hint(target: &Target) -> String {
    let note = target.passfile_note.as_ref().map(|note| format!("; {note}")).unwrap_or_default();
    match target.password {
        Some(_) => format!("The password from PGPASSWORD, the service file or the password file is not right{note}"),
        None => format!("Put the password into ~/.pgpass (mode 0600), --passfile or PGPASSWORD{note}"),
    }
}

fn tls_hint(reason: &str) -> &'static str {
    if reason.contains("does not support TLS") {
        ". Turn ssl on in the server, or choose --sslmode disable"
    } else if reason.contains("NotValidForName") || reason.contains("not valid for name") {
        ". Use the name that is in the certificate's subjectAltName as --host, or --sslmode verify-ca"
    } else if reason.contains("UnknownIssuer") || reason.contains("BadSignature") {
        // The latter is what an authority of the same name with another key looks like.
        ". Give the authority that signed the server's certificate with --sslrootcert"
    } else if reason.contains("CaUsedAsEndEntity") {
        ". The server shows an authority's own certificate; give it one that is signed by the authority"
    } else {
        ""
    }
}

/// The last cause, which is the one that means something: the others only say that something failed.
pub(super) fn innermost(error: &postgres::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = cause.to_string();
        source = cause.source();
    }
    text
}

fn is_rustls(error: &postgres::Error) -> bool {
    let mut source = error.source();
    while let Some(cause) = source {
        let within = cause.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        if cause.is::<rustls::Error>() || within.is_some_and(<dyn std::error::Error + Send + Sync>::is::<rustls::Error>)
        {
            return true;
        }
        source = cause.source();
    }
    false
}
