//! One server: made, started, stopped, killed, asked.

use std::fs::{File, Permissions};
use std::io::Write as _;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use ::postgres::types::{FromSqlOwned, PgLsn};
use ::postgres::{Client, Config, NoTls};
use rustix::process::Signal;

use super::{Major, Options, processes};
use crate::account::{self, Scratch};
use crate::wait;

/// How long a start, a stop or a promotion may take.
const DEADLINE: Duration = Duration::from_secs(90);

/// How a server is asked to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shutdown {
    /// Sessions are ended, a checkpoint is written.
    Fast,
    /// Everything is dropped at once; the next start recovers.
    Immediate,
}

/// A server with its data directory and its socket. Dropped, it is stopped, and what it made is removed.
#[derive(Debug)]
pub struct Server {
    major: Major,
    options: Options,
    data_directory: PathBuf,
    port: u16,
    process: Option<Child>,
    // Last, so that it is removed after the process has ended.
    scratch: Scratch,
}

impl Server {
    /// Makes a new cluster and starts it.
    #[track_caller]
    pub fn create(major: Major, options: &Options) -> Self {
        let mut server = Self::stopped(major, options);
        let mut initdb = account::command(major.bin().join("initdb"));
        initdb.args(["--username=postgres", "--locale=C", "--encoding=UTF8", "--no-sync", "--no-instructions"]);
        initdb.arg("--pgdata").arg(&server.data_directory).args(&options.initdb);
        initdb.arg(match (options.without_checksums, major) {
            (true, Major::V18) => "--no-data-checksums",
            (true, _) => "--no-sync",
            (false, _) => "--data-checksums",
        });
        match &options.password {
            Some(password) => initdb.arg("--auth=scram-sha-256").arg("--pwfile").arg(server.secret("pwfile", password)),
            None => initdb.arg("--auth=trust"),
        };
        account::run(&mut initdb);
        server.configure();
        server.start();
        server
    }

    /// A server over a data directory made by others, such as a restored one; not started. It archives nothing, unless
    /// the options say so.
    pub fn over(major: Major, data_directory: &Path, options: &Options) -> Self {
        let mut server = Self::stopped(major, options);
        server.options.settings.insert(0, "archive_mode=off".into());
        server.data_directory = data_directory.into();
        server
    }

    /// A hot standby that streams from `primary`, made and started.
    #[track_caller]
    pub fn standby_of(primary: &Self, options: &Options) -> Self {
        let mut server = Self::stopped(primary.major, options);
        server.options.password.clone_from(&primary.options.password);
        let data = server.data_directory.display().to_string();
        primary.run("pg_basebackup", &["--pgdata", &data, "--write-recovery-conf", "--checkpoint=fast", "--no-sync"]);
        server.configure();
        server.start();
        wait::until_seen(DEADLINE, "the standby to stream", || {
            let state: Option<String> = server.value("SELECT min(status) FROM pg_catalog.pg_stat_wal_receiver");
            if state.as_deref() == Some("streaming") { Ok(()) } else { Err(format!("receiver {state:?}")) }
        });
        server
    }

    fn stopped(major: Major, options: &Options) -> Self {
        let scratch = Scratch::new();
        let port = if options.tcp { free_port() } else { 5432 };
        let data_directory = scratch.path().join("data");
        Self { major, options: options.clone(), data_directory, port, process: None, scratch }
    }

    fn configure(&self) {
        let path = self.data_directory.join("postgresql.conf");
        let mut file = File::options().append(true).open(path).expect("initdb wrote postgresql.conf");
        // No test takes the power away, so nothing needs to be on the disk for good; the rest keeps a server small.
        let lines = ["fsync = off", "track_commit_timestamp = on", "shared_buffers = 32MB", "max_connections = 50"];
        for line in lines.into_iter().chain(self.options.configuration.iter().map(String::as_str)) {
            writeln!(file, "{line}").expect("postgresql.conf is writable");
        }
    }

    /// A file that only the servers' user can read.
    fn secret(&self, name: &str, content: &str) -> PathBuf {
        let path = self.scratch.path().join(name);
        let mut file = File::create(&path).expect("the scratch directory is writable");
        file.set_permissions(Permissions::from_mode(0o600)).expect("mode can be set");
        file.write_all(content.as_bytes()).expect("the scratch directory is writable");
        account::hand_over(&path);
        path
    }

    /// Starts it and waits until it accepts sessions, as a primary or as a standby.
    #[track_caller]
    pub fn start(&mut self) {
        self.try_start().unwrap_or_else(|log| panic!("PostgreSQL {} does not start:\n{log}", self.major));
    }

    /// Starts it; the error is what it logged before it ended.
    ///
    /// # Errors
    /// When the server ends by itself before it is ready.
    #[track_caller]
    pub fn try_start(&mut self) -> Result<(), String> {
        assert!(self.process.is_none(), "the server runs already");
        let log = File::create(self.log_path()).expect("the scratch directory is writable");
        let mut command = account::command(self.major.bin().join("postgres"));
        command.arg("-D").arg(&self.data_directory).arg("-k").arg(self.socket_directory());
        command.args(["-p", &self.port.to_string(), "-h", if self.options.tcp { "127.0.0.1" } else { "" }]);
        for setting in &self.options.settings {
            command.arg("-c").arg(setting);
        }
        command.envs(self.options.environment.iter().cloned()).stdin(Stdio::null());
        command.stdout(log.try_clone().expect("a file can be shared")).stderr(log);
        self.process = Some(command.spawn().expect("postgres is executable"));
        wait::until(DEADLINE, "the server to be ready", || self.readiness())
    }

    /// Ready, ended, or neither yet.
    fn readiness(&mut self) -> Option<Result<(), String>> {
        let process = self.process.as_mut()?;
        if process.try_wait().expect("a child can be waited for").is_some() {
            self.process = None;
            return Some(Err(self.log()));
        }
        // The eighth line of postmaster.pid is the state (miscadmin.h: LOCK_FILE_LINE_PM_STATUS).
        let file = std::fs::read_to_string(self.data_directory.join("postmaster.pid")).ok()?;
        let lines: Vec<&str> = file.lines().map(str::trim).collect();
        let ours = *lines.first()? == process.id().to_string();
        (ours && matches!(*lines.get(7)?, "ready" | "standby")).then_some(Ok(()))
    }

    /// Stops it and waits for its end.
    #[track_caller]
    pub fn stop(&mut self, shutdown: Shutdown) {
        let signal = match shutdown {
            Shutdown::Fast => Signal::INT,
            Shutdown::Immediate => Signal::QUIT,
        };
        processes::signal(self.pid(), signal);
        let process = self.process.as_mut().expect("the server runs");
        wait::until(DEADLINE, "the server to stop", || process.try_wait().expect("a child can be waited for"));
        self.process = None;
    }

    /// Ends every process of it at once (SIGKILL), the commands it runs as well.
    #[track_caller]
    pub fn kill(&mut self) {
        processes::kill_tree(self.pid());
        self.process.take().expect("the server runs").wait().expect("a child can be waited for");
    }

    /// Stops and starts it.
    #[track_caller]
    pub fn restart(&mut self) {
        self.stop(Shutdown::Fast);
        self.start();
    }

    /// Makes a standby a primary and waits until it is one.
    #[track_caller]
    pub fn promote(&self) {
        assert!(self.value::<bool>("SELECT pg_catalog.pg_promote(true, 90)"), "the promotion takes too long");
    }

    /// Ends the current log segment, and gives back the name of the file that is now complete.
    #[track_caller]
    pub fn switch_wal(&self) -> String {
        // Without a record in it a segment is not ended.
        self.value::<PgLsn>("SELECT pg_catalog.pg_logical_emit_message(false, 'holdfast', 'switch')");
        self.value("SELECT pg_catalog.pg_walfile_name(pg_catalog.pg_switch_wal())")
    }

    /// Waits until the archiver has reported success for this segment or a later one of its timeline.
    #[track_caller]
    pub fn wait_archived(&self, segment: &str) {
        let query = "SELECT pg_catalog.concat(last_archived_wal, ' after ', failed_count, ' failures, the last of ',
            last_failed_wal) FROM pg_catalog.pg_stat_archiver";
        wait::until_seen(DEADLINE, &format!("{segment} to be archived"), || {
            let seen: String = self.value(query);
            let last = seen.get(..24).filter(|last| last[..8] == segment[..8]);
            if last.is_some_and(|last| last >= segment) { Ok(()) } else { Err(seen) }
        });
    }

    /// Waits until a standby has replayed all up to a position.
    #[track_caller]
    pub fn wait_replayed(&self, position: PgLsn) {
        wait::until_seen(DEADLINE, &format!("{position} to be replayed"), || {
            let replayed: Option<PgLsn> = self.value("SELECT pg_catalog.pg_last_wal_replay_lsn()");
            if replayed >= Some(position) { Ok(()) } else { Err(format!("{replayed:?}")) }
        });
    }

    /// Up to where the log is durable.
    #[track_caller]
    pub fn flushed(&self) -> PgLsn {
        self.value("SELECT pg_catalog.pg_current_wal_flush_lsn()")
    }

    /// Its major version.
    pub fn major(&self) -> Major {
        self.major
    }

    /// Its data directory.
    pub fn data_directory(&self) -> &Path {
        &self.data_directory
    }

    /// The directory of its socket, and the servers' user's to use.
    pub fn socket_directory(&self) -> &Path {
        self.scratch.path()
    }

    /// Its port, on the socket and on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The postmaster's process.
    #[track_caller]
    pub fn pid(&self) -> u32 {
        self.process.as_ref().expect("the server runs").id()
    }

    /// What it logged since its last start.
    pub fn log(&self) -> String {
        std::fs::read(self.log_path()).map(|log| String::from_utf8_lossy(&log).into_owned()).unwrap_or_default()
    }

    fn log_path(&self) -> PathBuf {
        self.scratch.path().join("log")
    }

    /// How a client reaches it.
    pub fn config(&self, database: &str) -> Config {
        let mut config = Config::new();
        config.host_path(self.socket_directory()).port(self.port).user("postgres").dbname(database);
        if let Some(password) = &self.options.password {
            config.password(password);
        }
        config
    }

    /// The same as libpq's environment variables.
    pub fn client_environment(&self) -> Vec<(String, String)> {
        let host = self.socket_directory().display().to_string();
        let port = self.port.to_string();
        let plain =
            [("PGHOST", host), ("PGPORT", port), ("PGUSER", "postgres".into()), ("PGDATABASE", "postgres".into())];
        let password = self.options.password.clone().map(|password| ("PGPASSWORD", password));
        plain.into_iter().chain(password).map(|(name, value)| (name.into(), value)).collect()
    }

    /// The password in a file as libpq reads it, of the servers' user.
    #[track_caller]
    pub fn password_file(&self) -> PathBuf {
        let password = self.options.password.as_ref().expect("the server has a password");
        self.secret("pgpass", &format!("*:*:*:*:{password}\n"))
    }

    /// A session of the superuser.
    #[track_caller]
    pub fn client(&self, database: &str) -> Client {
        self.config(database).connect(NoTls).unwrap_or_else(|error| panic!("no session: {error:?}\n{}", self.log()))
    }

    /// Runs statements in the database `postgres`.
    #[track_caller]
    pub fn sql(&self, statements: &str) {
        let result = self.client("postgres").batch_execute(statements);
        result.unwrap_or_else(|error| panic!("{statements}: {error:?}"));
    }

    /// The one value that a query in the database `postgres` gives.
    #[track_caller]
    pub fn value<T: FromSqlOwned>(&self, query: &str) -> T {
        let row = self.client("postgres").query_one(query, &[]);
        row.unwrap_or_else(|error| panic!("{query}: {error:?}")).get(0)
    }

    /// Runs one of this version's client programs, and gives back what it printed.
    #[track_caller]
    pub fn run(&self, program: &str, arguments: &[&str]) -> String {
        let mut command = account::command(self.major.bin().join(program));
        account::run(command.envs(self.client_environment()).args(arguments))
    }

    /// What `psql` prints for a command, bare.
    #[track_caller]
    pub fn psql(&self, command: &str) -> String {
        self.run("psql", &["-XAtq", "-v", "ON_ERROR_STOP=1", "-c", command]).trim_end().into()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            if std::thread::panicking() {
                eprintln!("log of PostgreSQL {}:\n{}", self.major, self.log());
            }
            processes::kill_tree(process.id());
            let _ = process.wait();
        }
    }
}

/// A port of 127.0.0.1 that nobody listens on.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("127.0.0.1 is there");
    listener.local_addr().expect("it is bound").port()
}
