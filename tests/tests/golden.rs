//! A repository that was made once and is kept (`tests/golden/synthetic/`): whatever this code becomes, it lists it, verifies it and
//! restores from it what was put in; and so does the second reader of the format (`tests/format/read.py`).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test: it panics where something is wrong"
)]

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use holdfast_agent::engine::postgres::lsn::{Lsn, Timeline};
use holdfast_agent::engine::postgres::record::PostgresRecord;
use holdfast_agent::engine::postgres::wal::WalSegmentSize;
use holdfast_agent::logs::LogName;
use holdfast_agent::progress::Progress;
use holdfast_agent::repository::store::file::FileStore;
use holdfast_agent::repository::tail::Position;
use holdfast_agent::repository::writer::{self, Compression, WriteOptions};
use holdfast_agent::repository::{BackupId, Lineage, Manifest, Owner, PAGE_SIZE, Repository, System};
use holdfast_agent::snapshot::{Directory, PageJudge, Source, SourceFile, Stamp};
use holdfast_tests::account::{self, Scratch};
use holdfast_tests::agent::Agent;
use holdfast_tests::repository::{self, Kind};
use holdfast_tests::tools;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

const SYSTEM: &str = "7000000000000000001";
const SEGMENT: u64 = 1 << 20;
/// What recovery needs beside the files; each restore writes its own.
const NOT_STORED: [&str; 2] = ["backup_label", "recovery.signal"];

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/synthetic")
}

/// A copy of the repository that the servers' user may write to, as leases and evidence are.
fn copy(scratch: &Scratch) -> PathBuf {
    let path = scratch.path().join("repository");
    repository::copy(&golden().join("repository"), &path);
    if let Some((user, group)) = account::server_ids() {
        account::run(Command::new("chown").arg("-R").arg(format!("{user}:{group}")).arg(&path));
    }
    path
}

fn expected() -> Value {
    serde_json::from_slice(&fs::read(golden().join("expected.json")).unwrap()).unwrap()
}

/// Path, size and digest of every file that a backup holds, a line each.
fn files(root: &Path) -> String {
    let mut text = String::new();
    for name in repository::objects(root).iter().filter(|name| !NOT_STORED.contains(&name.as_str())) {
        let content = fs::read(root.join(name)).unwrap();
        writeln!(text, "{name} {} {}", content.len(), blake3::hash(&content).to_hex()).unwrap();
    }
    text
}

#[test]
fn the_agent_lists_verifies_and_restores_what_was_stored_once() {
    let (scratch, expected) = (Scratch::new(), expected());
    let agent = Agent::new(copy(&scratch).display().to_string());
    let list = agent.json(&["list"]);
    let backups = list["backups"].as_array().unwrap();
    let seen: Vec<Value> =
        backups.iter().map(|line| json!([line["id"], line["files"], line["database_bytes"], line["pinned"]])).collect();
    assert_eq!(Value::from(seen), expected["list"]);
    assert_eq!(list["windows"][0]["until_position"], "0/40C350");
    assert_eq!((&list["windows"][0]["branch"], &list["windows"][0]["hole"]), (&json!("00000002"), &Value::Null));
    agent.run(&["verify", "all"]).expect_code(0);
    for (id, files_of) in expected["restored"].as_object().unwrap() {
        let target = scratch.path().join(id);
        agent.run(&["restore", id, "--data-dir", target.to_str().unwrap()]).expect_code(0);
        assert_eq!(files(&target), files_of.as_str().unwrap(), "{id}");
        assert_eq!(fs::read_to_string(target.join("backup_label")).unwrap(), "LABEL: golden\n");
    }
    for (name, digest) in expected["log"].as_object().unwrap() {
        let target = scratch.directory("log").join(name);
        agent.run(&["wal-fetch", name, target.to_str().unwrap()]).expect_code(0);
        assert_eq!(blake3::hash(&fs::read(target).unwrap()).to_hex().as_str(), digest, "{name}");
    }
}

#[test]
fn the_second_reader_reads_the_same() {
    let (scratch, expected) = (Scratch::new(), expected());
    let root = golden().join("repository");
    let read = |arguments: &[&str]| {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("format/read.py");
        // Its modules are installed by tests/format/test.sh or tests/env/install.sh.
        let modules = tools::cache().join("tools/format-reader");
        account::run(Command::new("python3").env("PYTHONPATH", modules).arg(script).arg(&root).args(arguments))
    };
    read(&["check"]);
    for (id, files_of) in expected["restored"].as_object().unwrap() {
        let target = scratch.path().join(id);
        read(&["restore", id, target.to_str().unwrap()]);
        assert_eq!(files(&target), files_of.as_str().unwrap(), "{id}");
    }
    let target = scratch.path().join("log");
    read(&["log", target.to_str().unwrap()]);
    let found = |name: &str| {
        let objects = repository::objects(&target);
        let found = objects.iter().find(|path| path.ends_with(name) || path.ends_with(&format!("{name}.tail")));
        blake3::hash(&fs::read(target.join(found.unwrap_or_else(|| panic!("{name} in {objects:?}")))).unwrap()).to_hex()
    };
    for (name, digest) in expected["log"].as_object().unwrap() {
        assert_eq!(found(name).as_str(), digest, "{name}");
    }
}

#[test]
fn an_object_of_every_kind_is_kept() {
    let objects = repository::objects(&golden().join("repository"));
    let kinds: std::collections::BTreeSet<Kind> = objects.iter().map(|key| Kind::of(key).unwrap()).collect();
    // All but notes of backups in the log.
    assert_eq!(kinds.len(), 13, "{kinds:?}");
    let is_patch = |key: &&String| {
        Kind::of(key) == Some(Kind::Map) && fs::read(golden().join("repository").join(key)).unwrap()[8] == 1
    };
    assert_eq!(objects.iter().filter(is_patch).count(), 2);
    assert_eq!(repository::scraps(&golden().join("repository")), Vec::<String>::new());
}

// What made the repository: `HOLDFAST_GOLDEN=DIRECTORY cargo test -p holdfast-tests --test golden -- --ignored make`

struct Anything;

impl PageJudge for Anything {
    fn is_sound(&self, _block: u32, _page: &[u8]) -> bool {
        true
    }
}

/// A page that no other file has at this place.
fn page(name: &str, number: u64, version: u64) -> Vec<u8> {
    let seed = blake3::hash(format!("{name} {number} {version}").as_bytes());
    seed.as_bytes().iter().copied().cycle().take(PAGE_SIZE).collect()
}

fn pages(name: &str, count: u64, changed: &[u64], version: u64) -> Vec<u8> {
    (0..count).flat_map(|number| page(name, number, if changed.contains(&number) { version } else { 0 })).collect()
}

fn file(path: &str, bytes: Vec<u8>, mode: u32, version: u64) -> SourceFile {
    let stamp = Stamp { mtime_ns: 1_700_000_000_000_000_000 + version.cast_signed(), ctime_ns: 1, inode: 7 };
    SourceFile {
        path: path.into(),
        size: bytes.len() as u64,
        source: Source::Bytes(bytes),
        stamp,
        mode,
        first_block: None,
    }
}

/// The database as of a version: a large file of which little changes, holes, an empty file, a last page that is not full.
fn database(version: u64) -> (Vec<SourceFile>, Vec<SourceFile>) {
    let mut with_hole = pages("hole", 5, &[], 0);
    with_hole[PAGE_SIZE..3 * PAGE_SIZE].fill(0);
    let files = vec![
        file("PG_VERSION", b"15\n".to_vec(), 0o600, 0),
        file("base/1/1000", pages("large", 1100, &[3, 4, 700], version), 0o600, version),
        file("base/1/1001", with_hole, 0o600, 0),
        file("base/1/1002", Vec::new(), 0o640, 0),
        file("base/1/1003", pages("grows", 3 + version, &[], 0)[..(2 * PAGE_SIZE + 17)].to_vec(), 0o600, version),
        file("postgresql.conf", b"# golden\n".to_vec(), 0o644, 0),
    ];
    (files, vec![file("global/pg_control", pages("control", 1, &[0], version), 0o600, version)])
}

fn record(start: u64, stop: u64, time: Timestamp) -> Value {
    let record = PostgresRecord {
        superuser: "postgres".to_owned(),
        version_num: 150_018,
        start_lsn: Lsn(start),
        stop_lsn: Lsn(stop),
        timeline: Timeline(1),
        start_time: time,
        stop_time: time,
        wal_segment_size: WalSegmentSize::new(u32::try_from(SEGMENT).unwrap()).unwrap(),
        data_checksums: false,
        from_standby: false,
        backup_label: "TEFCRUw6IGdvbGRlbgo=".into(),
        tablespace_map: String::new(),
        tablespaces: Vec::new(),
        databases: Vec::new(),
    };
    serde_json::to_value(record).unwrap()
}

fn back_up(system: &System, lineage: &Lineage, previous: Option<&Manifest>, version: u64) -> Manifest {
    let (files, last) = database(version);
    let started = Timestamp::now();
    let options = WriteOptions {
        threads: 1,
        compression: Compression::Level(3),
        now: started,
        reread_before: Timestamp::MIN,
        tombstones: std::collections::HashSet::new(),
    };
    let (judge, progress) = (Anything, Progress::default());
    let written =
        writer::write(system, previous, &files, &mut || Ok(last.clone()), &judge, &options, &progress).unwrap();
    let directory = |path: &str| Directory { path: path.into(), mode: 0o700 };
    let manifest = Manifest {
        repository_id: lineage.repository_id.clone(),
        system_id: SYSTEM.into(),
        lineage: lineage.lineage.clone(),
        // A second apart, so that names sort by age.
        backup_id: BackupId::new(started + SignedDuration::from_secs(version.cast_signed())),
        started,
        completed: Timestamp::now(),
        clock_skew_ms: 0,
        agent_version: "0.1.0".into(),
        engine: "postgresql".into(),
        engine_version: "15.18".into(),
        directories: ["base", "base/1", "global", "pg_wal"].map(directory).to_vec(),
        maps: written.maps,
        sizes: written.sizes,
        bad_pages: Vec::new(),
        engine_record: record(0x20_0028 + version * 0x1000, 0x20_0100 + version * 0x1000, started),
        probes: Vec::new(),
    };
    system.write_manifest(&manifest).unwrap();
    manifest
}

fn segment_content(name: &str) -> Vec<u8> {
    let words = (0..SEGMENT / 32).flat_map(|number| {
        let seed = format!("{name} {}", number / 512);
        *blake3::hash(seed.as_bytes()).as_bytes()
    });
    words.collect()
}

fn push_log(system: &System, lineage: &Lineage, scratch: &Path) -> Vec<(String, Vec<u8>)> {
    let log = system.log(&lineage.lineage);
    let mut stored = Vec::new();
    let history = b"1\t0/380000\tno recovery target specified\n".to_vec();
    let whole = [
        ("00000001", "000000010000000000000002"),
        ("00000002", "00000002.history"),
        ("00000002", "000000020000000000000003"),
    ];
    for (branch, name) in whole {
        let content = if name.ends_with(".history") { history.clone() } else { segment_content(name) };
        fs::write(scratch.join(name), &content).unwrap();
        log.push(&LogName { branch: branch.into(), name: name.into() }, &scratch.join(name), 1).unwrap();
        stored.push((name.to_owned(), content));
    }
    let name = "000000020000000000000004";
    let mut content = segment_content(name);
    fs::write(scratch.join(name), &content).unwrap();
    let file = LogName { branch: "00000002".into(), name: name.into() };
    let mut shipping = log.begin_tail(&file).unwrap();
    for (end, until) in [(30_000, None), (40_000, Some(Timestamp::now())), (50_000, Some(Timestamp::now()))] {
        log.ship_tail(&mut shipping, &scratch.join(name), end, until).unwrap();
    }
    content[50_000..].fill(0);
    stored.push((name.to_owned(), content));
    log.note_position(&Position {
        lineage: lineage.lineage.clone(),
        branch: "00000002".into(),
        position: Lsn(4 * SEGMENT + 50_000).to_string(),
        complete_until: Timestamp::now(),
    })
    .unwrap();
    stored
}

#[test]
#[ignore = "makes a new golden repository where HOLDFAST_GOLDEN says"]
fn make() {
    let target = PathBuf::from(std::env::var_os("HOLDFAST_GOLDEN").expect("HOLDFAST_GOLDEN names a new directory"));
    let scratch = Scratch::new();
    let root = scratch.directory("repository");
    let repository = Repository::open_or_create(Arc::new(FileStore::open(&root).unwrap())).unwrap();
    let system = repository.system(SYSTEM);
    let owner = Owner { host: "golden".into(), data_directory: "/var/lib/postgresql/15/main".into() };
    let lineage = system.begin_lineage("postgresql", owner, None).unwrap();
    let first = back_up(&system, &lineage, None, 0);
    let second = back_up(&system, &lineage, Some(&first), 1);
    let third = back_up(&system, &lineage, Some(&second), 2);
    let log = push_log(&system, &lineage, scratch.path());
    if let Some((user, group)) = account::server_ids() {
        account::run(Command::new("chown").arg("-R").arg(format!("{user}:{group}")).arg(&root));
    }
    let agent = Agent::new(root.display().to_string());
    agent.run(&["verify", "all"]).expect_code(0);
    agent.run(&["pin", first.backup_id.as_str()]).expect_code(0);
    agent.run(&["forget", third.backup_id.as_str(), "--grace", "24h"]).expect_code(0);
    let mut restored = serde_json::Map::new();
    for manifest in [&first, &second] {
        // What was put in, not what came back.
        let place = scratch.directory(manifest.backup_id.as_str());
        let (files_before, last) = database(u64::from(manifest.backup_id != first.backup_id));
        for file in files_before.into_iter().chain(last) {
            let path = place.join(&file.path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            let Source::Bytes(bytes) = file.source else { unreachable!("made above") };
            fs::write(path, bytes).unwrap();
        }
        restored.insert(manifest.backup_id.to_string(), files(&place).into());
    }
    let list = [(&first, true), (&second, false)].map(|(manifest, pinned)| {
        json!([manifest.backup_id, manifest.sizes.files, manifest.sizes.database_bytes, pinned])
    });
    let log: serde_json::Map<String, Value> =
        log.into_iter().map(|(name, content)| (name, blake3::hash(&content).to_hex().as_str().into())).collect();
    fs::create_dir_all(&target).unwrap();
    repository::copy(&root, &target.join("repository"));
    for own in [".tmp", ".lock"] {
        let own = target.join("repository").join(own);
        let _ = fs::remove_dir_all(&own).or_else(|_| fs::remove_file(&own));
    }
    let expected = serde_json::to_string_pretty(&json!({ "list": list, "restored": restored, "log": log })).unwrap();
    fs::write(target.join("expected.json"), expected + "\n").unwrap();
}
