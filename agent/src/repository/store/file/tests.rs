use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, SystemTime};

use tempfile::TempDir;

use super::write::Naming;
use super::*;
use crate::repository::store::conformance;

fn store() -> (TempDir, FileStore) {
    let dir = tempfile::tempdir().unwrap();
    let store = FileStore::open(dir.path().join("new/repository")).unwrap();
    (dir, store)
}

fn key(text: &str) -> Key {
    Key::parse(text).unwrap()
}

fn scraps(store: &FileStore) -> usize {
    fs::read_dir(&store.scratch).unwrap().count()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn a_directory_conforms() {
    let (_dir, store) = store();
    conformance::conforms(&store);
    assert_eq!(scraps(&store), 0);
}

#[test]
fn others_have_no_access() {
    let (_dir, store) = store();
    store.create(&key("a/b"), "body".into()).unwrap();
    assert_eq!(mode(&store.root), 0o750);
    assert_eq!(mode(&store.root.join("a")), 0o750);
    assert_eq!(mode(&store.root.join("a/b")), 0o640);
}

#[test]
fn every_way_of_naming_creates_and_never_overwrites() {
    for way in [Naming::Rename, Naming::Link, Naming::Locked] {
        let (_dir, store) = store();
        assert_eq!(store.write_new_by(&[way], &key("a/b"), b"first").unwrap(), Created::New, "{way:?}");
        // Straight at the name, as if nobody had been there when this process looked.
        let temp = temp::Temp::holding(&store.scratch, b"second").unwrap();
        assert_eq!(store.name(&[way], temp, &store.root.join("a/b")).unwrap(), Created::Existed, "{way:?}");
        assert_eq!(fs::read(store.root.join("a/b")).unwrap(), b"first", "{way:?}");
        assert_eq!(scraps(&store), 0, "{way:?}");
    }
}

#[test]
fn old_scraps_are_swept_and_young_ones_are_not() {
    let (_dir, store) = store();
    for (name, hours) in [("old", 25), ("young", 23)] {
        let file = fs::File::create(store.scratch.join(name)).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(hours * 3600)).unwrap();
    }
    let again = FileStore::open(&store.root).unwrap();
    assert!(!again.scratch.join("old").exists());
    assert!(again.scratch.join("young").exists());
    assert_eq!(again.children(&Key::root()).unwrap(), [""; 0], "scraps are never listed");
}

#[test]
fn what_is_no_object_of_ours_is_not_listed() {
    let (_dir, store) = store();
    store.create(&key("a/b"), "body".into()).unwrap();
    fs::write(store.root.join("a/.nfs0001"), "").unwrap();
    fs::write(store.root.join("a/read me"), "").unwrap();
    fs::create_dir(store.root.join("lost+found")).unwrap();
    std::os::unix::fs::symlink("/", store.root.join("a/elsewhere")).unwrap();
    let mut keys = Vec::new();
    let mut each = |entry: Entry| {
        keys.push(entry.key.to_string());
        Walk::On
    };
    store.list(&Key::root(), &mut each).unwrap();
    assert_eq!(keys, ["a/b"]);
    assert_eq!(store.children(&Key::root()).unwrap(), ["a"]);
}

#[test]
fn an_unmounted_volume_is_not_an_empty_one() {
    let (_dir, store) = store();
    store.create(&key("a/b"), "body".into()).unwrap();
    fs::rename(&store.root, store.root.with_file_name("elsewhere")).unwrap();
    fs::create_dir(&store.root).unwrap();
    let reason =
        format!("the store is unavailable ({}/.tmp is gone: is the volume still mounted?)", store.root.display());
    let mut each = |_: Entry| Walk::On;
    let errors = [
        store.get(&key("a/b"), 10).unwrap_err(),
        store.head(&key("a/b")).unwrap_err(),
        store.list(&key("a"), &mut each).unwrap_err(),
        store.children(&Key::root()).unwrap_err(),
        store.delete(&key("a/b")).unwrap_err(),
        store.create(&key("a/c"), "body".into()).unwrap_err(),
        store.now().unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.fault.to_string(), reason, "{error}");
        assert!(error.is_transient());
    }
    assert!(!store.root.join("a").exists(), "something was written beside the volume");
}

#[test]
fn an_object_below_an_object_is_refused() {
    let (_dir, store) = store();
    store.create(&key("a/b"), "body".into()).unwrap();
    for below in ["a/b/c", "a/b/c/d"] {
        let error = store.create(&key(below), "body".into()).unwrap_err();
        assert!(error.to_string().contains("another object's name is the beginning of this one's"), "{error}");
        assert!(!error.is_transient());
    }
    let error = store.create(&key("a"), "body".into()).unwrap_err();
    assert_eq!(error.fault.to_string(), "Is a directory (os error 21)");
    assert_eq!(scraps(&store), 0);
}

#[test]
fn a_removed_directory_is_made_again() {
    let (_dir, store) = store();
    store.create(&key("a/b/c"), "body".into()).unwrap();
    fs::remove_dir_all(store.root.join("a")).unwrap();
    assert_eq!(store.create(&key("a/b/d"), "body".into()).unwrap(), Created::New);
}

#[test]
fn a_full_disk_leaves_nothing_behind() {
    // A limit on the size of files would kill the process; a device that is always full does not.
    let error =
        fs::OpenOptions::new().write(true).open("/dev/full").and_then(|mut file| io::Write::write_all(&mut file, b"x"));
    assert!(matches!(fault_of(&error.unwrap_err()), StoreFault::Full));
}

#[test]
fn a_file_is_no_store() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    fs::write(&path, "").unwrap();
    let error = FileStore::open(&path).unwrap_err();
    assert_eq!(error.to_string(), format!("open - in file://{}: Not a directory (os error 20)", path.display()));
    assert!(!error.is_transient());
}

#[test]
fn the_location_is_a_url() {
    let (dir, store) = store();
    let root = fs::canonicalize(dir.path()).unwrap();
    assert_eq!(store.location(), format!("file://{}/new/repository", root.display()));
}
