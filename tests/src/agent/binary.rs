//! Finding the program under test.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use serde_json::Value;

use crate::{account, tools};

/// How long a copy of the program may be in use by somebody else's test run.
const KEPT: Duration = Duration::from_hours(24);

/// `holdfast-agent` with fault injection: the one `HOLDFAST_AGENT` names, else built here, once a process. As root it
/// is a copy that the servers' user can reach, named by its content, so that a build meanwhile disturbs nobody.
#[track_caller]
pub fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        let built = std::env::var_os("HOLDFAST_AGENT").map_or_else(build, PathBuf::from);
        if account::is_root() { reachable_copy(&built) } else { built }
    })
}

fn build() -> PathBuf {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("this crate is in a workspace");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(workspace).stderr(Stdio::piped());
    command.args(["build", "--release", "-p", "holdfast-agent", "--bin", "holdfast-agent"]);
    command.args(["--features", "holdfast-agent/fault-injection", "--message-format", "json"]);
    account::run(&mut command)
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
        .expect("cargo names the program it built")
}

fn reachable_copy(built: &Path) -> PathBuf {
    let content = std::fs::read(built).unwrap_or_else(|error| panic!("cannot read {built:?}: {error}"));
    let copies = tools::shared().join("agents");
    let directory = copies.join(&blake3::hash(&content).to_hex()[..16]);
    let copy = directory.join("holdfast-agent");
    if !copy.exists() {
        std::fs::create_dir_all(&directory).unwrap_or_else(|error| panic!("cannot make {directory:?}: {error}"));
        remove_old(&copies);
        // Whole or not at all, also for a test that starts at the same moment.
        let partial = tempfile::NamedTempFile::new_in(&directory).expect("the directory is writable");
        std::fs::write(&partial, content).expect("the directory is writable");
        std::fs::set_permissions(&partial, Permissions::from_mode(0o755)).expect("mode can be set");
        partial.persist(&copy).expect("a file can be renamed");
    }
    copy
}

fn remove_old(copies: &Path) {
    let old = |path: &PathBuf| {
        let modified = path.metadata().and_then(|metadata| metadata.modified());
        modified.is_ok_and(|modified| modified.elapsed().is_ok_and(|age| age > KEPT))
    };
    let entries = std::fs::read_dir(copies).expect("the directory is readable");
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())).filter(old) {
        // Another test may be removing it too.
        let _ = std::fs::remove_dir_all(path);
    }
}
