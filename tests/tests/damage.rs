//! Every object of a repository, damaged in every way, is found and named; nothing damaged is restored; what can be
//! stored again is.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    unreachable_pub,
    reason = "a test: it panics where something is wrong, and its modules are its own"
)]

mod small;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use holdfast_tests::account::Scratch;
use holdfast_tests::agent::{Agent, Outcome};
use holdfast_tests::faults::{self, Damage};
use holdfast_tests::postgres::{Major, Options, Server, Shutdown};
use holdfast_tests::repository::{self, Kind, Tree};
use holdfast_tests::wait;
use serde_json::Value;
use small::{DEADLINE, Small, in_two_threads, told};

/// A repository with an object of every kind, at rest, and one like it of the same server.
struct Prepared {
    small: Small,
    /// A full backup and an incremental one, on timeline 1; the log goes on to timeline 2 and ends with a tail.
    backups: [String; 2],
    scratch: Scratch,
}

impl Prepared {
    /// The same for all tests that run at a time.
    fn shared() -> Arc<Self> {
        static SHARED: Mutex<Weak<Prepared>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        shared.upgrade().unwrap_or_else(|| {
            let made = Arc::new(Self::make());
            *shared = Arc::downgrade(&made);
            made
        })
    }

    fn make() -> Self {
        let mut small = Small::new();
        let agent = small.agent("first");
        small.point_at("first");
        let full = small.make_backup("first");
        small.change();
        small.switch();
        let incremental = small.make_backup("first");
        small.server.sql("INSERT INTO small SELECT generate_series(1, 1000)");
        small.switch();
        let third = small.make_backup("first");
        agent.run(&["verify", "all"]).expect_code(0);
        agent.run(&["forget", &third, "--grace", "1h"]).expect_code(0);
        agent.run(&["pin", &incremental]).expect_code(0);
        small.switch();
        promote(&mut small.server);
        small.switch();
        ship_a_tail(&small, &agent, 3);
        assert_eq!(small::listed(&agent), [full.clone(), incremental.clone()]);
        small::expect_sound(&agent, "before anything is damaged");

        // At rest, while the server goes on.
        let scratch = Scratch::new();
        repository::copy(&small.path("first"), &scratch.path().join("first"));
        let other = small.agent("other");
        let first = small.make_backup("other");
        small.change();
        let second = small.make_backup("other");
        other.run(&["pin", &second]).expect_code(0);
        other.run(&["forget", &first, "--grace", "1h"]).expect_code(0);
        ship_a_tail(&small, &other, 1);
        Self { small, backups: [full, incremental], scratch }
    }

    fn other(&self) -> PathBuf {
        self.small.path("other")
    }

    /// A copy of the repository to damage, and an agent over it.
    fn copy(&self, scratch: &Scratch) -> (PathBuf, Agent) {
        let path = scratch.path().join("repository");
        repository::copy(&self.scratch.path().join("first"), &path);
        (path.clone(), Agent::new(path.display().to_string()).connect_to(&self.small.server))
    }
}

/// A server that recovers with nothing to recover begins a timeline.
fn promote(server: &mut Server) {
    server.stop(Shutdown::Fast);
    fs::write(server.data_directory().join("recovery.signal"), "").unwrap();
    server.start();
    wait::until(DEADLINE, "the promotion", || (!server.value::<bool>("SELECT pg_is_in_recovery()")).then_some(()));
    assert_eq!(server.value::<i32>("SELECT timeline_id FROM pg_control_checkpoint()"), 2);
}

/// Watches until the tail has so many pieces.
fn ship_a_tail(small: &Small, agent: &Agent, pieces: usize) {
    let data_directory = small.server.data_directory().to_str().unwrap();
    let watch = agent.spawn(&["watch", "--data-dir", data_directory, "--interval", "1s"]);
    for wanted in 1..=pieces {
        small.server.sql("INSERT INTO small VALUES (1)");
        wait::until_seen(DEADLINE, "a piece of a tail", || {
            let root = Path::new(agent.repository());
            let count = of_kind(root, Kind::Piece).len();
            let position = of_kind(root, Kind::Position).len();
            if count >= wanted && position == 1 {
                Ok(())
            } else {
                Err(format!("{count} pieces\n{}{}", watch.stdout(), watch.stderr()))
            }
        });
    }
    watch.stop().expect_code(0);
}

fn of_kind(root: &Path, kind: Kind) -> Vec<String> {
    repository::objects(root).into_iter().filter(|key| Kind::of(key) == Some(kind)).collect()
}

/// A way to damage an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Way {
    FlipFirst,
    FlipMiddle,
    FlipLast,
    CutLast,
    CutHalf,
    Delete,
    Swap,
}

const WAYS: [Way; 7] =
    [Way::FlipFirst, Way::FlipMiddle, Way::FlipLast, Way::CutLast, Way::CutHalf, Way::Delete, Way::Swap];

/// Damages the object at `key`; tells the keys of all that is damaged by it.
fn damage(root: &Path, other: &Path, key: &str, way: Way) -> (Damage, Vec<String>) {
    let path = root.join(key);
    let length = path.metadata().unwrap().len();
    let one = vec![key.to_owned()];
    match way {
        Way::FlipFirst => (faults::flip_bit(&path, 0, 3), one),
        Way::FlipMiddle => (faults::flip_bit(&path, length / 2, 0), one),
        Way::FlipLast => (faults::flip_bit(&path, length - 1, 7), one),
        Way::CutLast => (faults::truncate(&path, length - 1), one),
        Way::CutHalf => (faults::truncate(&path, length / 2), one),
        Way::Delete => (faults::delete(&path), one),
        Way::Swap => {
            let kind = Kind::of(key).unwrap();
            let partner = of_kind(root, kind).into_iter().find(|partner| {
                partner != key
                    && !is_left_over(root, partner)
                    && fs::read(root.join(partner)).ok() != fs::read(&path).ok()
            });
            match partner {
                Some(partner) => (faults::swap(&path, &root.join(&partner)), vec![key.to_owned(), partner]),
                // The only one of its kind: with that of another repository, or with another file of the log.
                None => match of_kind(other, kind).first() {
                    Some(stranger) if kind != Kind::History => (swap_in(&path, &other.join(stranger)), one),
                    _ => (swap_in(&path, &root.join(&of_kind(root, Kind::Segment)[0])), one),
                },
            }
        }
    }
}

/// Gives an object the content of another one, which keeps it too.
fn swap_in(path: &Path, other: &Path) -> Damage {
    let copy = path.with_file_name(".other");
    fs::copy(other, &copy).unwrap();
    let damage = faults::swap(path, &copy);
    fs::remove_file(copy).unwrap();
    damage
}

/// Whether no backup needs the object: log from before the first backup, and what `forget` marked.
fn is_left_over(root: &Path, key: &str) -> bool {
    let name = key.rsplit('/').next().unwrap();
    match Kind::of(key) {
        Some(Kind::Pack | Kind::Map) => of_kind(root, Kind::Tombstone)
            .iter()
            .any(|tombstone| fs::read_to_string(root.join(tombstone)).is_ok_and(|text| text.contains(name))),
        Some(Kind::Segment) => {
            let first = of_kind(root, Kind::Manifest).iter().map(|key| start_segment(root, key)).min();
            name[8..] < *first.unwrap()
        }
        _ => false,
    }
}

/// The part of a segment's name behind the timeline, where a backup begins. Segments of 1 MiB.
fn start_segment(root: &Path, manifest: &str) -> String {
    let manifest: Value = serde_json::from_slice(&fs::read(root.join(manifest)).unwrap()).unwrap();
    let lsn = manifest["engine_record"]["start_lsn"].as_str().unwrap().to_owned();
    let (high, low) = lsn.split_once('/').unwrap();
    let low = u32::from_str_radix(low, 16).unwrap();
    format!("{:08X}{:08X}", u32::from_str_radix(high, 16).unwrap(), low >> 20)
}

/// Why nobody can know of this damage, where that is so: nothing else tells that the object was there, and nothing that
/// is left is less than it says.
fn cannot_be_known(root: &Path, key: &str, way: Way) -> Option<&'static str> {
    if is_left_over(root, key) {
        return Some("no backup needs it");
    }
    match (Kind::of(key).unwrap(), way) {
        (Kind::Evidence, Way::Delete) => Some("a check more or less: the backup counts for less than it could"),
        (Kind::Pin, Way::Delete) => Some("as after `unpin`: retention decides about the backup"),
        (Kind::Lease, Way::Delete) => Some("as before the first backup: safety does not depend on it"),
        (Kind::Tombstone, Way::Delete) => Some("what it marked is marked again by the next prune"),
        (Kind::OtherLog, Way::Delete) => Some("recovery does not ask for it"),
        _ => None,
    }
}

fn names(outcome: &Outcome, key: &str) -> bool {
    outcome.stdout.contains(key) || outcome.stderr.contains(key)
}

/// Removes the evidence that a verification left, so that the next one finds what the one before found.
fn forget_evidence(root: &Path, before: &BTreeSet<String>) {
    for key in of_kind(root, Kind::Evidence).iter().filter(|key| !before.contains(*key)) {
        fs::remove_file(root.join(key)).unwrap();
    }
}

#[test]
fn every_damage_to_every_object_is_found_and_named() {
    let prepared = Prepared::shared();
    let all = repository::objects(&prepared.scratch.path().join("first"));
    let kinds: BTreeSet<Kind> = all.iter().map(|key| Kind::of(key).unwrap()).collect();
    assert_eq!(kinds.len(), 14, "an object of every kind: {kinds:?}");
    assert!(has_a_patch(&prepared.scratch.path().join("first")), "an incremental backup patches a map");
    let missed: Mutex<Vec<String>> = Mutex::default();
    let found: Mutex<BTreeMap<Kind, usize>> = Mutex::default();
    let unknowable: Mutex<BTreeMap<&str, usize>> = Mutex::default();
    let halves: Vec<Vec<&String>> = (0..2).map(|half| all.iter().skip(half).step_by(2).collect()).collect();
    in_two_threads(&halves, |half| {
        let scratch = Scratch::new();
        let (root, agent) = prepared.copy(&scratch);
        let before: BTreeSet<String> = of_kind(&root, Kind::Evidence).into_iter().collect();
        for (key, way) in half.iter().flat_map(|key| WAYS.map(|way| (*key, way))) {
            let excuse = cannot_be_known(&root, key, way);
            let (damage, damaged) = damage(&root, &prepared.other(), key, way);
            let verified = agent.run(&["verify", "all"]);
            damage.undo();
            forget_evidence(&root, &before);
            let right = if let Some(why) = excuse {
                // That it is said nevertheless is no harm.
                *unknowable.lock().unwrap().entry(why).or_default() += 1;
                matches!(verified.code(), Some(0 | 1))
            } else {
                *found.lock().unwrap().entry(Kind::of(key).unwrap()).or_default() += 1;
                verified.code() == Some(1) && is_named(&verified, &damaged)
            };
            if !right {
                missed.lock().unwrap().push(format!("{way:?} of {damaged:?}: {}", told(&verified)));
            }
        }
        agent.run(&["verify", "all"]).expect_code(0);
    });
    let missed = missed.into_inner().unwrap();
    let (found, unknowable) = (found.into_inner().unwrap(), unknowable.into_inner().unwrap());
    println!("{} objects, {} damages: {found:?} found and named", all.len(), all.len() * WAYS.len());
    println!("not to be known: {unknowable:#?}");
    assert!(missed.is_empty(), "{} missed:\n{}", missed.len(), missed.join("\n"));
}

/// Every damaged object is named; of pieces of one tail the first, as it ends the tail; and a foreign `holdfast.json` by
/// what does not fit it.
fn is_named(outcome: &Outcome, damaged: &[String]) -> bool {
    match damaged {
        [one, other] if Kind::of(one) == Some(Kind::Piece) => names(outcome, one) || names(outcome, other),
        all => all.iter().all(|key| names(outcome, key)),
    }
}

fn has_a_patch(root: &Path) -> bool {
    // FORMAT.md, "Maps": the word behind the magic.
    of_kind(root, Kind::Map).iter().any(|key| fs::read(root.join(key)).unwrap()[8] == 1)
}

/// The objects that a backup consists of, log aside.
fn parts_of(root: &Path, id: &str) -> Vec<String> {
    let manifest = of_kind(root, Kind::Manifest).into_iter().find(|key| key.contains(id)).unwrap();
    let text = fs::read_to_string(root.join(&manifest)).unwrap();
    let maps = of_kind(root, Kind::Map).into_iter().filter(|key| text.contains(key.rsplit('/').next().unwrap()));
    let packs = of_kind(root, Kind::Pack).into_iter().filter(|key| !is_left_over(root, key));
    [manifest].into_iter().chain(maps).chain(packs).collect()
}

#[test]
fn a_damaged_backup_is_not_restored() {
    let prepared = Prepared::shared();
    let id = &prepared.backups[1];
    let scratch = Scratch::new();
    let (root, agent) = prepared.copy(&scratch);
    let reference = scratch.path().join("reference");
    let restore = |agent: &Agent, target: &Path| agent.run(&["restore", id, "--data-dir", target.to_str().unwrap()]);
    restore(&agent, &reference).expect_code(0);
    let reference = Tree::of(&reference, |_| false);
    let cases: Vec<(String, Way)> =
        parts_of(&root, id).into_iter().flat_map(|key| WAYS.map(|way| (key.clone(), way))).collect();
    let refused: Mutex<BTreeMap<(Kind, Way), usize>> = Mutex::default();
    in_two_threads(&[0, 1], |half| {
        let scratch = Scratch::new();
        let (root, agent) = prepared.copy(&scratch);
        let target = scratch.path().join("restored");
        for (key, way) in cases.iter().skip(*half).step_by(2) {
            let what = format!("{way:?} of {key}");
            let (damage, damaged) = damage(&root, &prepared.other(), key, *way);
            let restored = restore(&agent, &target);
            damage.undo();
            if restored.code() == Some(0) {
                // What was damaged is not needed by this backup: then all of it is right.
                let differences = Tree::of(&target, |_| false).differences(&reference);
                assert!(differences.is_empty(), "{what}: {differences:?}");
            } else {
                assert_eq!(restored.code(), Some(1), "{what}: {}", told(&restored));
                assert!(damaged.iter().any(|key| names(&restored, key)), "{what}: {}", told(&restored));
                assert!(!target.join("global/pg_control").exists(), "{what}: a server would start on this");
                *refused.lock().unwrap().entry((Kind::of(key).unwrap(), *way)).or_default() += 1;
            }
            if target.exists() {
                fs::remove_dir_all(&target).unwrap();
            }
        }
    });
    let refused = refused.into_inner().unwrap();
    println!("{} damages, refused: {refused:?}", cases.len());
    for way in WAYS {
        for kind in [Kind::Manifest, Kind::Map] {
            let all = cases.iter().filter(|(key, of)| Kind::of(key) == Some(kind) && *of == way).count();
            assert_eq!(refused[&(kind, way)], all, "{way:?} of each {kind:?}");
        }
    }
    for way in [Way::FlipMiddle, Way::CutLast, Way::CutHalf, Way::Delete, Way::Swap] {
        assert!(refused[&(Kind::Pack, way)] >= 1, "{way:?} of a pack");
    }
}

#[test]
fn no_server_starts_on_what_is_left_of_a_damaged_restore() {
    let prepared = Prepared::shared();
    let scratch = Scratch::new();
    let (root, agent) = prepared.copy(&scratch);
    // The largest: a small one may hold only pages that a patch has replaced since.
    let parts = parts_of(&root, &prepared.backups[0]);
    let packs = parts.iter().filter(|key| Kind::of(key) == Some(Kind::Pack));
    let pack = packs.max_by_key(|key| root.join(key).metadata().unwrap().len()).unwrap().clone();
    // All over the pack, as not every frame of it need be of this backup.
    let length = root.join(&pack).metadata().unwrap().len();
    let damage: Vec<_> = (0..length).step_by(997).map(|at| faults::flip_bit(&root.join(&pack), at, 1)).collect();
    let target = scratch.path().join("restored");
    let command = ["restore", &prepared.backups[0], "--data-dir", target.to_str().unwrap()];
    let refused = agent.run(&command);
    refused.expect_code(1);
    assert!(names(&refused, &pack), "{}", told(&refused));
    // Configuration and control file are missing, or not filled yet.
    assert!(Server::over(Major::V15, &target, &Options::new()).try_start().is_err(), "a server starts on this");
    damage.into_iter().rev().for_each(faults::Damage::undo);
    agent.run(&command).expect_code(0);
}

#[test]
fn damaged_log_is_not_given_out() {
    let prepared = Prepared::shared();
    let scratch = Scratch::new();
    let (root, agent) = prepared.copy(&scratch);
    let target = scratch.directory("fetched").join("log");
    let mut refused = 0;
    for kind in [Kind::Segment, Kind::History, Kind::Piece] {
        for key in of_kind(&root, kind) {
            let parts: Vec<&str> = key.split('/').collect();
            for way in WAYS.into_iter().filter(|way| *way != Way::Delete) {
                let (damage, damaged) = damage(&root, &prepared.other(), &key, way);
                let fetched = agent.run(&["wal-fetch", parts[5], target.to_str().unwrap()]);
                damage.undo();
                assert_eq!(fetched.code(), Some(126), "{way:?} of {key}: {}", told(&fetched));
                assert!(damaged.iter().any(|key| names(&fetched, key)), "{way:?} of {key}: {}", told(&fetched));
                assert!(!target.exists(), "{way:?} of {key}");
                refused += 1;
            }
        }
    }
    println!("{refused} damages of log, none of it given out");
}

#[test]
fn a_segment_that_is_missing_is_not_the_end_of_the_log() {
    let prepared = Prepared::shared();
    let scratch = Scratch::new();
    let (root, agent) = prepared.copy(&scratch);
    let target = scratch.directory("fetched").join("log");
    let segments: Vec<String> =
        of_kind(&root, Kind::Segment).into_iter().filter(|key| !is_left_over(&root, key)).collect();
    for key in &segments {
        let name = key.rsplit('/').next().unwrap();
        let damage = faults::delete(&root.join(key));
        let fetched = agent.run(&["wal-fetch", name, target.to_str().unwrap()]);
        damage.undo();
        assert_eq!(fetched.code(), Some(126), "{key}: {}", told(&fetched));
        assert!(names(&fetched, name), "{key}: {}", told(&fetched));
    }
    assert!(segments.len() > 5);
}

#[test]
fn the_next_backup_stores_again_what_is_damaged() {
    let prepared = Prepared::shared();
    let root = prepared.scratch.path().join("first");
    let cases: Vec<(String, Way)> = parts_of(&root, &prepared.backups[1])
        .into_iter()
        .filter(|key| Kind::of(key) != Some(Kind::Manifest))
        .flat_map(|key| [Way::FlipMiddle, Way::Delete].map(|way| (key.clone(), way)))
        .collect();
    in_two_threads(&cases, |(key, way)| {
        let scratch = Scratch::new();
        let (root, agent) = prepared.copy(&scratch);
        // For good: nothing is undone.
        let (_damage, _) = damage(&root, &prepared.other(), key, *way);
        agent.run(&["verify", "all"]).expect_code(1);
        let made = agent.run(&prepared.small.backup(&[]));
        assert_eq!(made.code(), Some(0), "{way:?} of {key}: {}", told(&made));
        let verified = agent.run(&["verify", "latest"]);
        assert_eq!(verified.code(), Some(0), "{way:?} of {key}: {}", told(&verified));
    });
    println!("{} damages healed by the next backup", cases.len());
}

#[test]
fn a_note_that_is_damaged_stops_neither_backup_nor_restore() {
    let prepared = Prepared::shared();
    let scratch = Scratch::new();
    for kind in [Kind::Evidence, Kind::Pin, Kind::Lease, Kind::Position] {
        let scratch_of_kind = scratch.directory(&format!("{kind:?}"));
        let (root, agent) = {
            let path = scratch_of_kind.join("repository");
            repository::copy(&prepared.scratch.path().join("first"), &path);
            (path.clone(), Agent::new(path.display().to_string()).connect_to(&prepared.small.server))
        };
        for key in of_kind(&root, kind) {
            let length = root.join(&key).metadata().unwrap().len();
            let _damage = faults::flip_bit(&root.join(&key), length / 2, 0);
        }
        agent.run(&["verify", "all"]).expect_code(1);
        let restored = agent.run(&["restore", "--data-dir", scratch_of_kind.join("restored").to_str().unwrap()]);
        assert_eq!(restored.code(), Some(0), "{kind:?}: {}", told(&restored));
        let made = agent.run(&prepared.small.backup(&[]));
        assert_eq!(made.code(), Some(0), "{kind:?}: {}", told(&made));
    }
}

/// A backup that is pinned and past retention keeps only its own log: a hole after it speaks against it only where no
/// later backup tells that log was let go.
#[test]
fn a_pin_excuses_only_log_from_before_a_later_backup() {
    let prepared = Prepared::shared();
    let scratch = Scratch::new();
    let (root, agent) = prepared.copy(&scratch);
    let [older, newer] = &prepared.backups;
    agent.run(&["pin", older]).expect_code(0);
    let between = of_kind(&root, Kind::Segment).into_iter().find(|key| {
        let start = |id: &str| start_segment(&root, &parts_of(&root, id)[0]);
        let number = &key.rsplit('/').next().unwrap()[8..];
        number > start(older).as_str() && number < start(newer).as_str()
    });
    let last = of_kind(&root, Kind::Segment).pop().unwrap();
    for (key, excused) in [(between.unwrap(), true), (last, false)] {
        let damage = faults::delete(&root.join(&key));
        let verified = agent.run(&["verify", older]);
        damage.undo();
        assert_eq!(verified.code(), Some(i32::from(!excused)), "{key}: {}", told(&verified));
        assert!(names(&verified, key.rsplit('/').next().unwrap()), "{key}: {}", told(&verified));
    }
}

#[test]
fn a_lost_manifest_is_missed_until_the_backup_is_given_up() {
    let prepared = Prepared::shared();
    let scratch = Scratch::new();
    let (root, agent) = prepared.copy(&scratch);
    let [lost, kept] = &prepared.backups;
    let manifest = of_kind(&root, Kind::Manifest).into_iter().find(|key| key.contains(lost.as_str())).unwrap();
    let before = repository::objects(&root);
    let _damage = faults::delete(&root.join(&manifest));
    let missing = format!("{manifest} is damaged: it is missing");

    let listed = agent.run(&["list"]);
    listed.expect_code(1);
    assert!(listed.stdout.contains(&missing), "{}", told(&listed));
    // With it, nobody knows what is not needed any more.
    let refused = agent.run(&["prune", "--keep", "1", "--grace", "0s"]);
    refused.expect_code(1);
    assert!(refused.stderr.contains(&missing), "{}", told(&refused));
    let left: Vec<String> =
        before.into_iter().filter(|key| *key != manifest && Kind::of(key) != Some(Kind::Lease)).collect();
    let there = repository::objects(&root);
    assert!(left.iter().all(|key| there.contains(key)), "nothing else is removed");

    agent.run(&["forget", lost, "--grace", "0s"]).expect_code(0);
    assert_eq!(small::listed(&agent), std::slice::from_ref(kept));
    small::expect_sound(&agent, "after the lost backup was given up");
}
