//! Where the settings of a connection come from when they are not given: service file, environment, defaults.

use std::collections::BTreeMap;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use super::connect_options::{ConnectOptions, Endpoint, Environment, Roots, SettingsError, Target, TlsMode, invalid};
use super::pgpass::{self, Found, Lookup, Password};
use super::service;

const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);

/// Where servers put their socket: Debian's packages, and PostgreSQL as it is distributed.
pub(super) const SOCKET_DIRECTORIES: [&str; 2] = ["/var/run/postgresql", "/tmp"];

/// Where settings come from, below the command line.
pub(super) struct Sources<'a> {
    service: BTreeMap<String, String>,
    environment: Environment<'a>,
}

impl<'a> Sources<'a> {
    pub(super) fn new(options: &ConnectOptions, environment: Environment<'a>) -> Result<Self, SettingsError> {
        let mut sources = Self { service: BTreeMap::new(), environment };
        if let Some(name) = options.service.clone().or_else(|| sources.variable("PGSERVICE")) {
            sources.service = service::look_up(&name, &sources.service_files())?;
            check_service(&sources.service)?;
        }
        Ok(sources)
    }

    /// Libpq takes an empty variable for one that is not set.
    fn variable(&self, name: &str) -> Option<String> {
        (self.environment)(name).filter(|value| !value.is_empty())
    }

    pub(super) fn text(&self, flag: Option<&str>, key: &str, variable: &str) -> Option<String> {
        flag.map(str::to_owned).or_else(|| self.service.get(key).cloned()).or_else(|| self.variable(variable))
    }

    pub(super) fn parsed<T: FromStr>(
        &self,
        key: &'static str,
        variable: &str,
        expected: &'static str,
    ) -> Result<Option<T>, SettingsError> {
        let Some(text) = self.text(None, key, variable) else { return Ok(None) };
        text.parse().map(Some).map_err(|_| invalid(key, &text, expected))
    }

    fn home(&self, name: &str) -> Option<PathBuf> {
        self.variable("HOME").map(|home| Path::new(&home).join(name))
    }

    fn service_files(&self) -> Vec<PathBuf> {
        let own = self.variable("PGSERVICEFILE").map(PathBuf::from).or_else(|| self.home(".pg_service.conf"));
        let system = self.variable("PGSYSCONFDIR").unwrap_or_else(|| "/etc/postgresql-common".into());
        own.into_iter().chain([Path::new(&system).join("pg_service.conf")]).collect()
    }

    pub(super) fn endpoint(&self, host: Option<&str>, port: u16) -> Result<Endpoint, SettingsError> {
        let address = self.parsed("hostaddr", "PGHOSTADDR", "an IP address")?;
        match (self.text(host, "host", "PGHOST"), address) {
            (Some(host), _) if host.contains(',') => Err(invalid("host", &host, "one host, not a list")),
            (Some(host), _) if host.starts_with('/') => Ok(Endpoint::Socket(host.into())),
            (Some(host), address) => Ok(Endpoint::Tcp { host, address }),
            (None, Some(address)) => Ok(Endpoint::Tcp { host: address.to_string(), address: Some(address) }),
            (None, None) => default_socket(port).map(Endpoint::Socket).ok_or(SettingsError::NoSocket { port }),
        }
    }

    pub(super) fn tls(&self, flag: Option<&str>) -> Result<TlsMode, SettingsError> {
        self.text(flag, "sslmode", "PGSSLMODE").map_or(Ok(TlsMode::Prefer), |text| text.parse())
    }

    pub(super) fn roots(&self, flag: Option<&str>) -> Roots {
        match self.text(flag, "sslrootcert", "PGSSLROOTCERT") {
            Some(system) if system == "system" => Roots::System,
            Some(file) => Roots::File(file.into()),
            None => {
                let usual = self.home(".postgresql/root.crt").filter(|file| file.exists());
                usual.map_or(Roots::None, Roots::File)
            }
        }
    }

    pub(super) fn identity(&self, options: &ConnectOptions) -> Option<(PathBuf, PathBuf)> {
        let path = |flag: &Option<PathBuf>, key, variable, usual: &str| {
            let given = flag.clone().or_else(|| self.text(None, key, variable).map(PathBuf::from));
            given.or_else(|| self.home(usual).filter(|file| file.exists()))
        };
        let certificate = path(&options.sslcert, "sslcert", "PGSSLCERT", ".postgresql/postgresql.crt")?;
        let key = path(&options.sslkey, "sslkey", "PGSSLKEY", ".postgresql/postgresql.key")?;
        Some((certificate, key))
    }

    pub(super) fn timeout(&self, flag: Option<Duration>) -> Result<Duration, SettingsError> {
        if let Some(timeout) = flag {
            return Ok(timeout);
        }
        let seconds = self.parsed("connect_timeout", "PGCONNECT_TIMEOUT", "a number of seconds")?;
        Ok(seconds.filter(|&seconds| seconds > 0).map_or(DEFAULT_TIMEOUT, Duration::from_secs))
    }

    pub(super) fn password(&self, passfile: Option<&Path>, target: &mut Target) {
        if let Some(password) = self.text(None, "password", "PGPASSWORD") {
            target.password = Some(Password::new(password));
            return;
        }
        let file = passfile.map(Path::to_owned);
        let file = file.or_else(|| self.text(None, "passfile", "PGPASSFILE").map(PathBuf::from));
        let Some(file) = file.or_else(|| self.home(".pgpass")) else { return };
        let host = match &target.endpoint {
            Endpoint::Socket(directory) if is_default_directory(directory) => "localhost".into(),
            Endpoint::Socket(directory) => directory.display().to_string(),
            Endpoint::Tcp { host, .. } => host.clone(),
        };
        let lookup = Lookup { host: &host, port: target.port, dbname: &target.dbname, user: &target.user };
        match pgpass::look_up(&file, lookup) {
            Found::Password(password) => target.password = Some(password),
            Found::Unusable(reason) => target.passfile_note = Some(reason),
            Found::Nothing => {}
        }
    }
}

/// Settings that change nothing here, or that change who is trusted, are told apart: the latter must not be ignored.
fn check_service(settings: &BTreeMap<String, String>) -> Result<(), SettingsError> {
    const USED: [&str; 13] = [
        "host",
        "hostaddr",
        "port",
        "user",
        "dbname",
        "password",
        "passfile",
        "sslmode",
        "sslrootcert",
        "sslcert",
        "sslkey",
        "connect_timeout",
        "options",
    ];
    const HARMLESS: [&str; 12] = [
        "application_name",
        "fallback_application_name",
        "client_encoding",
        "keepalives",
        "keepalives_idle",
        "keepalives_interval",
        "keepalives_count",
        "tcp_user_timeout",
        "sslcompression",
        "sslsni",
        "gssencmode",
        "krbsrvname",
    ];
    let known = |name: &str| USED.contains(&name) || HARMLESS.contains(&name);
    settings.keys().find(|name| !known(name)).map_or(Ok(()), |name| Err(SettingsError::Unsupported(name.clone())))
}

fn default_socket(port: u16) -> Option<PathBuf> {
    SOCKET_DIRECTORIES.into_iter().map(PathBuf::from).find(|directory| {
        let socket = directory.join(format!(".s.PGSQL.{port}"));
        std::fs::metadata(socket).is_ok_and(|metadata| metadata.file_type().is_socket())
    })
}

fn is_default_directory(directory: &Path) -> bool {
    SOCKET_DIRECTORIES.iter().chain(["/run/postgresql"].iter()).any(|usual| directory == Path::new(usual))
}

/// The name of this process's user.
pub(super) fn login_name() -> Option<String> {
    let uid = rustix::process::geteuid().as_raw().to_string();
    let passwd = std::fs::read_to_string("/etc/passwd").ok()?;
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)? == uid).then(|| name.to_owned())
    })
}
