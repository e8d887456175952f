//! The account that servers and the agent run as. PostgreSQL refuses root, so as root it is the user `postgres`;
//! otherwise it is whoever runs the tests.

use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use tempfile::TempDir;

/// Whether the tests run as root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// User and group of the servers, where they are not those of the tests.
pub fn server_ids() -> Option<(u32, u32)> {
    static IDS: OnceLock<Option<(u32, u32)>> = OnceLock::new();
    *IDS.get_or_init(|| is_root().then(ids_of_postgres))
}

fn ids_of_postgres() -> (u32, u32) {
    let accounts = std::fs::read_to_string("/etc/passwd").expect("/etc/passwd is readable");
    let fields: Vec<&str> = accounts
        .lines()
        .map(|line| line.split(':').collect::<Vec<_>>())
        .find(|fields| fields.first() == Some(&"postgres"))
        .expect("the user postgres exists: run tests/env/install.sh");
    (fields[2].parse().expect("a user id"), fields[3].parse().expect("a group id"))
}

/// A command that will run as the servers' user, from `/`, without the caller's PostgreSQL settings.
pub fn command(program: impl AsRef<Path>) -> Command {
    let mut command = Command::new(program.as_ref());
    command.current_dir("/").env("HOME", "/");
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"PG")) {
        command.env_remove(name);
    }
    if let Some((user, group)) = server_ids() {
        command.uid(user).gid(group);
    }
    command
}

/// Runs a command to its end and gives back what it printed; panics with its errors when it fails.
#[track_caller]
pub fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?} does not start: {error}"));
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?} ended with {}:\n{stdout}{stderr}", output.status);
    stdout.into_owned()
}

/// Gives a path to the servers' user.
pub fn hand_over(path: &Path) {
    if let Some((user, group)) = server_ids() {
        chown(path, Some(user), Some(group)).unwrap_or_else(|error| panic!("cannot give away {path:?}: {error}"));
    }
}

/// A directory of the servers' user, removed with all it holds when this is dropped.
#[derive(Debug)]
pub struct Scratch(TempDir);

impl Scratch {
    /// Makes a directory below `/tmp`: short enough a path for a socket (107 bytes), and open to the servers' user.
    pub fn new() -> Self {
        let directory = tempfile::Builder::new().prefix("holdfast-").tempdir_in("/tmp").expect("/tmp is writable");
        hand_over(directory.path());
        Self(directory)
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// A directory below it, made when it is not there.
    pub fn directory(&self, name: &str) -> PathBuf {
        let path = self.path().join(name);
        if !path.exists() {
            std::fs::create_dir(&path).expect("the scratch directory is writable");
            hand_over(&path);
        }
        path
    }
}

impl Default for Scratch {
    fn default() -> Self {
        Self::new()
    }
}
