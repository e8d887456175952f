//! A process that writes to a directory is killed just before each step that it takes, one after the other.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test: it panics where something is wrong"
)]

use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::Command;

use bytes::Bytes;
use holdfast_agent::repository::store::file::FileStore;
use holdfast_agent::repository::store::{Created, Entry, Key, Store, Swapped, Walk};

/// Tells the process that is to be killed where to write.
const ROOT: &str = "HOLDFAST_TEST_STORE";
const BODY: &[u8] = &[7; 100_000];

fn key(text: &str) -> Key {
    Key::parse(text).unwrap()
}

fn listed(store: &FileStore) -> Vec<String> {
    let mut keys = Vec::new();
    let mut each = |entry: Entry| {
        keys.push(entry.key.to_string());
        Walk::On
    };
    store.list(&Key::root(), &mut each).unwrap();
    keys
}

/// What the killed process does: everything that changes something, in the order of the letters.
fn write(root: &Path) {
    let store = FileStore::open(root).unwrap();
    store.create(&key("a/b"), Bytes::from_static(BODY)).unwrap();
    store.create(&key("c"), Bytes::from_static(BODY)).unwrap();
    let Swapped::Done(first) = store.compare_and_swap(&key("d"), None, Bytes::from_static(b"first")).unwrap() else {
        panic!("nobody else writes here");
    };
    let second = store.compare_and_swap(&key("d"), Some(&first), Bytes::from_static(b"second")).unwrap();
    assert_ne!(second, Swapped::Conflict);
    store.delete(&key("c")).unwrap();
    store.now().unwrap();
}

#[test]
#[ignore = "run by the next one, which kills it"]
fn writes_where_it_is_told() {
    let root = std::env::var_os(ROOT).expect("only run by the test that kills it");
    write(Path::new(&root));
}

/// Runs [`write`] in a process that is killed before the step of this number; tells whether that came.
fn killed_at(step: u32, root: &Path, log: &Path) -> bool {
    let this = std::env::current_exe().unwrap();
    let status = Command::new(this)
        .args(["--exact", "writes_where_it_is_told", "--ignored", "--quiet"])
        .env(ROOT, root)
        .env("HOLDFAST_KILL_AT_STEP", step.to_string())
        .env("HOLDFAST_STEP_LOG", log)
        .stdout(std::process::Stdio::null())
        .status()
        .unwrap();
    assert!(status.success() || status.signal() == Some(9), "{status}");
    !status.success()
}

/// Whatever was done, everything there is whole, and everything can be done again.
fn check(root: &Path, what: &str) {
    let store = FileStore::open(root).unwrap();
    let before = listed(&store);
    for name in &before {
        let body = store.get(&key(name), u64::MAX).unwrap().body;
        let is_whole = if name == "d" { body == "first" || body == "second" } else { body == BODY };
        assert!(is_whole, "{name} is {} bytes after {what}", body.len());
    }
    for name in ["a/b", "c"] {
        let expected = if before.iter().any(|there| there == name) { Created::Existed } else { Created::New };
        assert_eq!(store.create(&key(name), Bytes::from_static(BODY)).unwrap(), expected, "{name} after {what}");
    }
    let version = store.head(&key("d")).unwrap().map(|_| store.get(&key("d"), 10).unwrap().version);
    let swapped = store.compare_and_swap(&key("d"), version.as_ref(), Bytes::from_static(b"third")).unwrap();
    assert_ne!(swapped, Swapped::Conflict, "after {what}");
    store.delete(&key("c")).unwrap();
    assert_eq!(listed(&store), ["a/b", "d"], "after {what}");
    assert!(fs::read_dir(root.join(".tmp")).unwrap().count() <= 1, "one scrap at most after {what}");
}

#[test]
fn a_kill_at_any_step_leaves_only_whole_objects() {
    let dir = tempfile::tempdir().unwrap();
    let mut steps = Vec::new();
    for step in 1.. {
        let (root, log) = (dir.path().join(step.to_string()), dir.path().join(format!("{step}.log")));
        let was_killed = killed_at(step, &root, &log);
        let done = fs::read_to_string(log).unwrap();
        let last = done.lines().last().unwrap_or_default().split_once(' ').map_or("", |(_, name)| name).to_owned();
        if root.exists() {
            check(&root, &format!("a kill at {step} ({last})"));
        } else {
            // Killed before even the directory was made.
            assert!(was_killed && step == 1, "{done}");
        }
        steps = done.lines().filter_map(|line| line.split_once(' ')).map(|(_, name)| name.to_owned()).collect();
        if !was_killed {
            break;
        }
    }
    for name in [
        "file.make-directory",
        "file.create-temporary",
        "file.write",
        "file.sync",
        "file.rename-new",
        "file.sync-directory",
        "file.rename-over",
        "file.delete",
        "file.remove-temporary",
    ] {
        assert!(steps.iter().any(|step| step == name), "{name} was never reached: {steps:?}");
    }
}
