//! A real cluster below a temporary directory, with a server that ends with the test.

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use holdfast_agent::engine::postgres::connection::{ConnectOptions, connect};
use holdfast_agent::engine::postgres::server::find_bin;
use postgres::Client;
use rustix::process::{Pid, Signal, kill_process};

pub(crate) const PATIENCE: Duration = Duration::from_mins(1);
pub(crate) const PORT: u16 = 5432;

/// The programs to test with: those in `HOLDFAST_TEST_PG_BIN`, or the oldest version installed.
pub(crate) fn bin() -> PathBuf {
    if let Some(named) = std::env::var_os("HOLDFAST_TEST_PG_BIN") {
        return named.into();
    }
    (15..=18).find_map(|major| find_bin(major, None).ok()).expect("PostgreSQL is not installed")
}

/// Who runs servers here: PostgreSQL refuses to be root.
fn user() -> Option<(u32, u32)> {
    static USER: OnceLock<Option<(u32, u32)>> = OnceLock::new();
    let id = |flag| {
        let output = Command::new("id").args([flag, "postgres"]).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().parse::<u32>().expect("there is no user postgres")
    };
    *USER.get_or_init(|| rustix::process::geteuid().is_root().then(|| (id("-u"), id("-g"))))
}

/// A command that runs as that user.
pub(crate) fn command(program: impl AsRef<Path>) -> Command {
    let mut command = Command::new(program.as_ref());
    if let Some((uid, gid)) = user() {
        command.uid(uid).gid(gid);
    }
    command.current_dir("/").stdin(Stdio::null()).env("LC_ALL", "C");
    command
}

pub(crate) fn succeed(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}{}", String::from_utf8_lossy(&output.stdout));
    output
}

/// Gives everything below `path` to the user that runs servers.
pub(crate) fn give(path: &Path) {
    let Some((uid, gid)) = user() else { return };
    std::os::unix::fs::lchown(path, Some(uid), Some(gid)).unwrap();
    if path.is_dir() && !path.is_symlink() {
        for entry in std::fs::read_dir(path).unwrap() {
            give(&entry.unwrap().path());
        }
    }
}

/// `initdb` costs a second of processor time, so it is run once and copied from then on.
fn template() -> &'static Path {
    static TEMPLATE: OnceLock<PathBuf> = OnceLock::new();
    TEMPLATE.get_or_init(|| {
        let version = succeed(Command::new(bin().join("postgres")).arg("--version")).stdout;
        let version: String = String::from_utf8(version).unwrap().chars().filter(char::is_ascii_alphanumeric).collect();
        let template = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("template-{version}"));
        if !template.exists() {
            let cluster = Cluster::made_with(&["--wal-segsize=1"]);
            let unfinished = template.with_extension(std::process::id().to_string());
            succeed(Command::new("cp").arg("-a").arg(cluster.data()).arg(&unfinished));
            // Another process may have been as fast; its template is as good.
            let _ = std::fs::rename(&unfinished, &template);
        }
        template
    })
}

pub(crate) struct Cluster {
    pub(crate) root: tempfile::TempDir,
    server: Option<Child>,
}

impl Cluster {
    /// A new cluster with page checksums and segments of 1 MiB, not started.
    pub(crate) fn new() -> Self {
        let cluster = Self::empty();
        succeed(Command::new("cp").arg("-a").arg(template()).arg(cluster.data()));
        give(&cluster.data());
        cluster
    }

    /// A new cluster of its own kind, not started.
    pub(crate) fn made_with(initdb: &[&str]) -> Self {
        let cluster = Self::empty();
        let mut program = command(bin().join("initdb"));
        program.args(["--no-sync", "-k", "-A", "trust", "-U", "postgres", "-D"]).arg(cluster.data());
        succeed(program.args(initdb));
        cluster
    }

    fn empty() -> Self {
        let root = tempfile::Builder::new().prefix("hf-pg-").tempdir().unwrap();
        std::fs::set_permissions(root.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let cluster = Self { root, server: None };
        std::fs::create_dir(cluster.path("archive")).unwrap();
        give(cluster.root.path());
        cluster
    }

    /// As `new`, started, archiving into `archive`.
    pub(crate) fn started() -> Self {
        let mut cluster = Self::new();
        cluster.start(&[]);
        cluster
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.path("data")
    }

    pub(crate) fn start(&mut self, settings: &[&str]) {
        self.start_at(&self.options(), settings);
    }

    /// As `start`, where the settings say that the server is to be reached otherwise.
    pub(crate) fn start_at(&mut self, options: &ConnectOptions, settings: &[&str]) {
        let archive = self.path("archive").display().to_string();
        let copy = format!("archive_command=test ! -f {archive}/%f && cp %p {archive}/%f");
        let socket = format!("unix_socket_directories={}", self.root.path().display());
        let log = std::fs::File::create(self.path("log")).unwrap();
        let mut command = command(bin().join("postgres"));
        command.arg("-D").arg(self.data());
        for setting in ["listen_addresses=", &socket, &copy, "archive_mode=on", "fsync=off", "wal_level=replica"] {
            command.args(["-c", setting]);
        }
        for setting in settings {
            command.args(["-c", setting]);
        }
        self.server = Some(command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap());
        until("the server takes sessions", || connect(options, None).ok());
    }

    pub(crate) fn stop(&mut self) {
        if let Some(mut server) = self.server.take() {
            kill_process(Pid::from_child(&server), Signal::INT).unwrap();
            server.wait().unwrap();
        }
    }

    pub(crate) fn options(&self) -> ConnectOptions {
        ConnectOptions {
            host: Some(self.root.path().display().to_string()),
            port: Some(PORT),
            user: Some("postgres".into()),
            ..ConnectOptions::default()
        }
    }

    pub(crate) fn client(&self) -> Client {
        connect(&self.options(), None).unwrap()
    }

    /// A session as a person has it: the agent's own look names up in the catalog only.
    pub(crate) fn person(&self) -> Client {
        let mut client = self.client();
        client.batch_execute("SET search_path = public").unwrap();
        client
    }

    pub(crate) fn run(&self, sql: &str) {
        for statement in sql.split(';').filter(|statement| !statement.trim().is_empty()) {
            self.person().batch_execute(statement).unwrap_or_else(|error| panic!("{statement}: {error:?}"));
        }
    }

    /// The first column of the first row, as text.
    pub(crate) fn ask(&self, sql: &str) -> String {
        text(&mut self.person(), sql)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Some(mut server) = self.server.take() {
            let _ = kill_process(Pid::from_child(&server), Signal::QUIT);
            let _ = server.wait();
        }
    }
}

pub(crate) fn text(client: &mut Client, sql: &str) -> String {
    let row = client.query_one(&format!("SELECT ({sql})::text"), &[]).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
    row.get(0)
}

/// Waits for a condition.
pub(crate) fn until<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub(crate) fn soon() -> Instant {
    Instant::now() + PATIENCE
}
