//! The agent is killed at every step that changes anything outside it, one run for each. Whatever it was doing: the
//! repository opens, what was whole is whole, what was being made is whole or absent, and the same command then succeeds.
//!
//! The suites named `soak_` take every step; the others take every kind of step, its first, its last, and some between.
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
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use holdfast_tests::account::Scratch;
use holdfast_tests::agent::{Agent, Outcome};
use holdfast_tests::postgres::{Major, Options, Server};
use holdfast_tests::repository::{self, Kind, Tree};
use rstest::rstest;
use small::{Small, in_two_threads, told};

/// Which steps a suite takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Choice {
    /// All of them, and as many more as a run turns out to have.
    Every,
    /// Of each kind the first, the last and so many between.
    Some(usize),
}

impl Choice {
    /// The numbers of the steps to be killed at, of a run that had `steps`.
    fn of(self, steps: &[String]) -> Vec<u64> {
        let Self::Some(between) = self else {
            // Threads make a run a few steps longer or shorter.
            return (1..=steps.len() as u64 + 8).collect();
        };
        let mut by_name: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
        for (number, name) in (1..).zip(steps) {
            by_name.entry(name).or_default().push(number);
        }
        let chosen = by_name.values().flat_map(|numbers| {
            let last = numbers.len() - 1;
            (0..=between + 1).map(move |part| numbers[last * part / (between + 1)])
        });
        chosen.collect::<BTreeSet<_>>().into_iter().collect()
    }
}

/// How many runs were killed, and how many ended before the step came.
#[derive(Default)]
struct Count {
    killed: AtomicU64,
    survived: AtomicU64,
}

impl Count {
    /// Notes how a run ended that was to be killed: it was, or it did what it was asked to.
    fn note(&self, outcome: &Outcome, what: &str) -> bool {
        if outcome.was_killed() {
            self.killed.fetch_add(1, Ordering::SeqCst);
        } else {
            assert_eq!(outcome.code(), Some(0), "{what}: {}", told(outcome));
            self.survived.fetch_add(1, Ordering::SeqCst);
        }
        outcome.was_killed()
    }

    /// Every step was taken: at the end of the numbers, runs were no longer killed.
    fn tell(&self, operation: &str, choice: Choice, steps: &[String]) {
        let (killed, survived) = (self.killed.load(Ordering::SeqCst), self.survived.load(Ordering::SeqCst));
        println!("{operation}: {killed} kill points, {} steps in a whole run, {survived} runs survived", steps.len());
        assert!(killed > 0, "{operation}: nothing was killed");
        assert!(choice != Choice::Every || survived > 0, "{operation}: more steps than expected");
        assert!(choice == Choice::Every || survived <= 8, "{operation}: the steps are not where they were");
    }
}

/// Runs it once on `repository` and demands success; the steps that it took.
fn steps_of(agent: &Agent, arguments: &[&str]) -> Vec<String> {
    let (outcome, steps) = agent.step_log(arguments);
    assert_eq!(outcome.code(), Some(0), "{}", told(&outcome));
    assert!(!steps.is_empty(), "the agent under test has no fault injection");
    steps
}

#[rstest]
#[case::thinned(Choice::Some(2))]
#[ignore = "every step takes minutes"]
#[case::soak_every_step(Choice::Every)]
fn a_first_backup_that_is_killed_is_whole_or_absent(#[case] choice: Choice) {
    let small = Small::new();
    let steps = steps_of(&small.agent("counted"), &small.backup(&[]));
    let count = Count::default();
    // Until there is a repository with a lineage, no step is like another.
    let chosen: BTreeSet<u64> = choice.of(&steps).into_iter().chain(1..=32).collect();
    in_two_threads(&chosen.into_iter().collect::<Vec<_>>(), |&step| {
        let (name, what) = (format!("killed-{step}"), format!("killed at step {step} of a first backup"));
        let agent = small.agent(&name);
        count.note(&agent.kill_at_step(step, &small.backup(&[])), &what);
        let made = if small.path(&name).join("holdfast.json").exists() {
            let listed = agent.run(&["list"]);
            // Killed before there was a lineage: then there is nothing to list.
            if listed.code() == Some(0) { small::listed(&agent).len() } else { expect_nothing(&listed, &what) }
        } else {
            0
        };
        assert!(made <= 1, "{what}");
        if made == 1 {
            small::expect_sound(&agent, &what);
        } else if small.path(&name).exists() {
            assert!(repository::scraps(&small.path(&name)).is_empty(), "{what}");
        }
        let again = agent.run(&small.backup(&[]));
        assert_eq!(again.code(), Some(0), "after {what}: {}", told(&again));
        // The log between the two is not archived here: the first may have a hole after it.
        assert_eq!(small::there(&agent).len(), made + 1, "after {what}");
        let verified = agent.run(&["verify", "latest"]);
        assert_eq!(verified.code(), Some(0), "after {what}, and another backup: {}", told(&verified));
        assert!(repository::scraps(&small.path(&name)).is_empty(), "after {what}, and another backup");
        fs::remove_dir_all(small.path(&name)).unwrap();
    });
    count.tell("first backup", choice, &steps);
}

fn expect_nothing(listed: &Outcome, what: &str) -> usize {
    let nothing = listed.stderr.contains("is empty: run `backup` first") || listed.stderr.contains("has no backup");
    assert!(listed.code() == Some(3) && nothing, "{what}: {}", told(listed));
    0
}

#[rstest]
#[case::thinned(Choice::Some(2))]
#[ignore = "every step takes minutes"]
#[case::soak_every_step(Choice::Every)]
fn an_incremental_backup_that_is_killed_is_whole_or_absent(#[case] choice: Choice) {
    let small = Small::new();
    small.point_at("first");
    let first = small.make_backup("first");
    small.change();
    repository::copy(&small.path("first"), &small.path("counted"));
    small.point_at("counted");
    let steps = steps_of(&small.agent("counted"), &small.backup(&[]));
    let mut log_so_far = small.path("counted");
    let count = Count::default();
    // One after the other: the server archives to one repository at a time.
    for step in choice.of(&steps) {
        let (name, what) = (format!("killed-{step}"), format!("killed at step {step} of an incremental backup"));
        small.wait_archived();
        repository::copy(&small.path("first"), &small.path(&name));
        bring_log(&log_so_far, &small.path(&name));
        small.point_at(&name);
        let agent = small.agent(&name);
        count.note(&agent.kill_at_step(step, &small.backup(&[])), &what);
        small.wait_archived();
        let made = small::listed(&agent);
        assert_eq!(made[0], first, "{what}");
        assert!(made.len() <= 2, "{what}");
        small::expect_sound(&agent, &what);
        let again = agent.run(&small.backup(&[]));
        assert_eq!(again.code(), Some(0), "after {what}: {}", told(&again));
        small.wait_archived();
        assert_eq!(small::listed(&agent).len(), made.len() + 1, "after {what}");
        small::expect_sound(&agent, &format!("after {what}, and another backup"));
        let done = std::mem::replace(&mut log_so_far, small.path(&name));
        fs::remove_dir_all(done).unwrap();
    }
    count.tell("incremental backup", choice, &steps);
}

/// Adds the log of one copy of a repository to another, as if it had been archived there.
fn bring_log(from: &Path, to: &Path) {
    for key in repository::objects(from) {
        if matches!(Kind::of(&key), Some(Kind::Segment | Kind::OtherLog)) && !to.join(&key).exists() {
            fs::create_dir_all(to.join(&key).parent().unwrap()).unwrap();
            repository::copy(&from.join(&key), &to.join(&key));
        }
    }
}

/// Backups that retention removes, one that stays, what a killed backup left, and what an earlier prune marked.
struct Retirable {
    small: Small,
    backups: Vec<String>,
}

impl Retirable {
    fn new() -> Self {
        let small = Small::new();
        small.point_at("first");
        let agent = small.agent("first");
        let mut backups = Vec::new();
        for number in 0..4 {
            backups.push(small.make_backup("first"));
            small.server.sql(&format!("INSERT INTO small SELECT generate_series(1, {number} * 1000); CHECKPOINT"));
            small.change();
            small.switch();
        }
        agent.run(&["verify", "all"]).expect_code(0);
        agent.run(&["pin", &backups[0]]).expect_code(0);
        agent.run(&["unpin", &backups[0]]).expect_code(0);
        // Marked: what only the second had.
        agent.run(&["forget", &backups.remove(1), "--grace", "1h"]).expect_code(0);
        leave_garbage(&small);
        small::expect_sound(&agent, "before a prune");
        Self { small, backups }
    }
}

/// A backup that is killed once it has stored all but its manifest: from the end on, the first step at which there is none.
fn leave_garbage(small: &Small) {
    repository::copy(&small.path("first"), &small.path("counted"));
    small.point_at("counted");
    let mut log_so_far = small.path("counted");
    let steps = steps_of(&small.agent("counted"), &small.backup(&[]));
    let before = repository::objects(&small.path("first"));
    for step in (1..=steps.len() as u64).rev() {
        small.wait_archived();
        let name = format!("garbage-{step}");
        repository::copy(&small.path("first"), &small.path(&name));
        bring_log(&log_so_far, &small.path(&name));
        small.point_at(&name);
        small.agent(&name).kill_at_step(step, &small.backup(&[]));
        small.wait_archived();
        let new = repository::objects(&small.path(&name)).into_iter().filter(|key| !before.contains(key));
        let kinds: BTreeSet<Option<Kind>> = new.map(|key| Kind::of(&key)).collect();
        if !kinds.contains(&Some(Kind::Manifest)) {
            assert!(kinds.contains(&Some(Kind::Map)) && kinds.contains(&Some(Kind::Pack)), "{kinds:?}");
            fs::remove_dir_all(small.path("first")).unwrap();
            fs::rename(small.path(&name), small.path("first")).unwrap();
            small.point_at("first");
            return;
        }
        log_so_far = small.path(&name);
    }
    panic!("a backup writes a manifest");
}

/// What is in a repository but for what changes by itself: leases, evidence, and the names of marks.
fn content(root: &Path) -> BTreeSet<String> {
    let lasting = |key: &String| !matches!(Kind::of(key), Some(Kind::Lease | Kind::Evidence | Kind::Tombstone));
    repository::objects(root).into_iter().filter(lasting).collect()
}

#[rstest]
#[case::prune_at_once(&["prune", "--keep", "1", "--grace", "0s"])]
#[case::prune_after_a_grace(&["prune", "--keep", "1", "--grace", "1s"])]
#[case::prune_that_only_marks(&["prune", "--keep", "1", "--grace", "1h"])]
fn a_prune_that_is_killed_at_any_step_is_finished_by_the_next(#[case] command: &[&str]) {
    let retirable = Retirable::new();
    let stays = retirable.backups.last().unwrap().clone();
    killed_retirement(&retirable, command, |listed, what| {
        assert_eq!(listed.last(), Some(&stays), "{what}");
    });
}

#[rstest]
#[case::at_once("0s")]
#[case::after_a_grace("1h")]
fn a_forget_that_is_killed_at_any_step_is_finished_by_the_next(#[case] grace: &str) {
    let retirable = Retirable::new();
    let (goes, stay) = (retirable.backups[0].clone(), retirable.backups[1..].to_vec());
    killed_retirement(&retirable, &["forget", &goes, "--grace", grace], |listed, what| {
        let stayed: Vec<&String> = listed.iter().filter(|id| **id != goes).collect();
        assert_eq!(stayed, stay.iter().collect::<Vec<_>>(), "{what}");
    });
}

/// Kills `command` at each of its steps; `check` gets what is listed then. The same command, or `prune` where it has
/// nothing left to do, then leads to what an uninterrupted one does.
fn killed_retirement(retirable: &Retirable, command: &[&str], check: impl Fn(&[String], &str) + Sync) {
    let small = &retirable.small;
    let original = small.path("first");
    let counted = small.path("counted-too");
    // The marks are a second old by now: they took several backups to make.
    repository::copy(&original, &counted);
    let steps = steps_of(&small.agent("counted-too"), command);
    let done = content(&counted);
    let count = Count::default();
    in_two_threads(&Choice::Every.of(&steps), |&step| {
        let (name, what) = (format!("killed-{step}"), format!("{command:?} killed at step {step}"));
        repository::copy(&original, &small.path(&name));
        let agent = small.agent(&name);
        count.note(&agent.kill_at_step(step, command), &what);
        let listed = small::listed(&agent);
        check(&listed, &what);
        small::expect_sound(&agent, &what);
        let again = agent.run(command);
        if again.code() != Some(0) {
            // The backup is gone already.
            assert!(again.stderr.contains("there is no backup"), "again after {what}: {}", told(&again));
            let grace = &command[command.len() - 2..];
            // Keeps all that is left, and lets go of the log that none of it needs.
            agent.run(&[&["prune", "--keep", "9"], grace].concat()).expect_code(0);
        }
        let now = content(&small.path(&name));
        let differ: Vec<String> = match command {
            // What the killed one marked may be old enough for the next.
            [.., "1s"] => now.difference(&done).cloned().collect(),
            _ => now.symmetric_difference(&done).cloned().collect(),
        };
        assert!(differ.is_empty(), "after {what}, and again: {differ:?}");
        small::expect_sound(&agent, &format!("after {what}, and again"));
        fs::remove_dir_all(small.path(&name)).unwrap();
    });
    count.tell(&command.join(" "), Choice::Every, &steps);
}

#[test]
fn a_wal_push_that_is_killed_at_any_step_is_repeated() {
    let small = Small::new();
    small.point_at("first");
    small.make_backup("first");
    small.point_at("nowhere");
    let segment = small.server.switch_wal();
    small.server.wait_archived(&segment);
    let path = small.server.data_directory().join("pg_wal").join(&segment);
    let push = ["wal-push", path.to_str().unwrap()];
    repository::copy(&small.path("first"), &small.path("counted"));
    let steps = steps_of(&small.agent("counted"), &push);
    let count = Count::default();
    for step in Choice::Every.of(&steps) {
        let (name, what) = (format!("killed-{step}"), format!("killed at step {step} of a wal-push"));
        repository::copy(&small.path("first"), &small.path(&name));
        let agent = small.agent(&name);
        count.note(&agent.kill_at_step(step, &push), &what);
        small::expect_sound(&agent, &what);
        agent.run(&push).expect_code(0);
        let target = small.scratch.directory("fetched").join(&segment);
        fetch_after_kills(&agent, &segment, &target, if step == 1 { Choice::Every } else { Choice::Some(0) });
        assert!(fs::read(&target).unwrap() == fs::read(&path).unwrap(), "after {what}");
        fs::remove_file(target).unwrap();
        small::expect_sound(&agent, &format!("after {what}, and again"));
        fs::remove_dir_all(small.path(&name)).unwrap();
    }
    count.tell("wal-push", Choice::Every, &steps);
}

/// A fetch that is killed leaves no file of the name that was asked for, so that no server takes half a segment.
fn fetch_after_kills(agent: &Agent, segment: &str, target: &Path, choice: Choice) {
    let fetch = ["wal-fetch", segment, target.to_str().unwrap()];
    let steps = steps_of(agent, &fetch);
    if choice == Choice::Every {
        for step in 1..=steps.len() as u64 {
            fs::remove_file(target).unwrap();
            assert!(agent.kill_at_step(step, &fetch).was_killed());
            assert!(!target.exists(), "killed at step {step} of a wal-fetch");
            agent.run(&fetch).expect_code(0);
        }
        println!("wal-fetch: {} kill points", steps.len());
    }
}

#[test]
fn a_watch_that_is_killed_at_any_step_loses_nothing() {
    let small = Small::new();
    small.point_at("first");
    small.make_backup("first");
    small.point_at("nowhere");
    let watch = ["watch", "--data-dir", small.server.data_directory().to_str().unwrap(), "--interval", "1s"];
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = small.server.client("postgres");
            for number in 1_u64.. {
                if stop.load(Ordering::SeqCst) {
                    return;
                }
                client.batch_execute("INSERT INTO small VALUES (1)").unwrap();
                if number.is_multiple_of(100) {
                    client.batch_execute("SELECT pg_switch_wal()").unwrap();
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let stopped = StopOnDrop(&stop);
        let mut repository = small.path("first");
        let kills = 45;
        for step in 1..=kills {
            let what = format!("killed at step {step} of a watch");
            let name = small.path(&format!("killed-{step}"));
            repository::copy(&repository, &name);
            if step > 1 {
                fs::remove_dir_all(&repository).unwrap();
            }
            repository = name;
            let agent = Agent::new(repository.display().to_string()).connect_to(&small.server);
            let killed = agent.kill_at_step(step, &watch);
            assert!(killed.was_killed(), "{what}: {}", told(&killed));
            small::expect_sound(&agent, &what);
        }
        println!("watch: {kills} kill points");
        drop(stopped);
        let agent = Agent::new(repository.display().to_string()).connect_to(&small.server);
        expect_all_shipped(&small, &agent, &watch);
    });
}

/// Ends the load also where the test fails.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A watch that is not killed stores all that the server has flushed.
fn expect_all_shipped(small: &Small, agent: &Agent, watch: &[&str]) {
    let flushed: u64 = small.server.flushed().into();
    let running = agent.spawn(watch);
    holdfast_tests::wait::until_seen(small::DEADLINE, "all to be shipped", || {
        let list = agent.json(&["list"]);
        let until = list["windows"].as_array().unwrap().last().unwrap()["until_position"].as_str().unwrap().to_owned();
        let position: postgres::types::PgLsn = until.parse().unwrap();
        if u64::from(position) >= flushed { Ok(()) } else { Err(until) }
    });
    running.stop().expect_code(0);
    small::expect_sound(agent, "after all kills");
}

/// Two backups in a repository of their own, and what restores of them are like that nobody interrupts.
struct Restorable {
    small: Small,
    backups: [String; 2],
    trees: [Tree; 2],
}

impl Restorable {
    fn new() -> Self {
        let small = Small::new();
        small.point_at("first");
        let old = small.make_backup("first");
        small.change();
        small.server.sql("INSERT INTO small SELECT generate_series(1, 5000); DROP TABLE IF EXISTS gone; CHECKPOINT");
        let new = small.make_backup("first");
        let backups = [old, new];
        let trees = backups.clone().map(|id| {
            let target = small.path(&format!("restored-{id}"));
            restore(&small.agent("first"), &id, &target, &[]).expect_code(0);
            Tree::of(&target, |_| false)
        });
        assert!(!trees[0].differences(&trees[1]).is_empty());
        Self { small, backups, trees }
    }
}

fn command<'a>(id: &'a str, target: &'a Path, more: &[&'a str]) -> Vec<&'a str> {
    [&["restore", id, "--data-dir", target.to_str().unwrap()], more].concat()
}

fn restore(agent: &Agent, id: &str, target: &Path, more: &[&str]) -> Outcome {
    agent.run(&command(id, target, more))
}

/// What is in a directory but for what a restore leaves of itself while it is not done.
fn settled(target: &Path) -> Tree {
    Tree::of(target, |name| name == "holdfast-restore.json" || name.ends_with(".holdfast-part"))
}

#[rstest]
#[case::thinned(Choice::Some(5))]
#[ignore = "every step takes many minutes"]
#[case::soak_every_step(Choice::Every)]
fn a_restore_that_is_killed_is_no_database_until_it_is_completed(#[case] choice: Choice) {
    killed_restore(choice, "restore", None);
}

#[rstest]
#[case::thinned(Choice::Some(5))]
#[ignore = "every step takes many minutes"]
#[case::soak_every_step(Choice::Every)]
fn a_delta_restore_that_is_killed_is_no_database_until_it_is_completed(#[case] choice: Choice) {
    killed_restore(choice, "delta restore", Some(&["--delta"]));
}

fn killed_restore(choice: Choice, operation: &str, delta: Option<&[&str]>) {
    let restorable = Restorable::new();
    let small = &restorable.small;
    let (id, whole) = (&restorable.backups[1], &restorable.trees[1]);
    let old = small.path("old");
    if delta.is_some() {
        make_old(&small.path(&format!("restored-{}", restorable.backups[0])), &old);
    }
    let before = delta.map(|_| settled(&old));
    let place = |target: &Path| {
        if delta.is_some() {
            repository::copy(&old, target);
        } else if target.exists() {
            fs::remove_dir_all(target).unwrap();
        }
    };
    let more = delta.unwrap_or(&[]);
    let target = small.path("counted-restore");
    place(&target);
    let steps = steps_of(&small.agent("first"), &command(id, &target, more));
    let count = Count::default();
    let tried = AtomicU64::new(0);
    in_two_threads(&choice.of(&steps), |&step| {
        let what = format!("{operation} killed at step {step}");
        let target: PathBuf = small.path(&format!("killed-restore-{step}"));
        place(&target);
        let agent = small.agent("first");
        let was_killed = count.note(&agent.kill_at_step(step, &command(id, &target, more)), &what);
        if target.join("global/pg_control").exists() {
            // Nothing was touched yet, or all was done.
            let now = settled(&target);
            let untouched = before.as_ref().is_some_and(|before| now.differences(before).is_empty());
            assert!(untouched || now.differences(whole).is_empty(), "{what}: a server would start on this");
        } else if target.exists() && tried.fetch_add(1, Ordering::SeqCst) < 3 {
            let started = Server::over(Major::V15, &target, &Options::new()).try_start();
            assert!(started.is_err(), "{what}: a server starts on this");
        }
        if was_killed {
            let again = restore(&agent, id, &target, more);
            assert_eq!(again.code(), Some(0), "the same again after {what}: {}", told(&again));
        }
        let differences = Tree::of(&target, |_| false).differences(whole);
        assert!(differences.is_empty(), "after {what} and again: {differences:?}");
        fs::remove_dir_all(&target).unwrap();
    });
    count.tell(operation, choice, &steps);
}

/// An old copy that the database went on from, with damage of its own: pages that differ, files of other sizes, a file
/// and a directory that do not belong, a file that is missing, a directory where a file belongs.
fn make_old(from: &Path, to: &Path) {
    repository::copy(from, to);
    let files: Vec<PathBuf> = fs::read_dir(to.join("base")).unwrap().map(|entry| entry.unwrap().path()).collect();
    let relations = || fs::read_dir(&files[0]).unwrap().map(|entry| entry.unwrap().path());
    let with = |least: u64| relations().filter(move |path| path.metadata().unwrap().len() >= least);
    let mut several: Vec<PathBuf> = with(3 * 8192).collect();
    several.sort();
    let flipped = holdfast_tests::faults::flip_bit(&several[0], 8192 + 100, 2);
    let cut = holdfast_tests::faults::truncate(&several[1], 8192);
    // The damage stays.
    std::mem::forget((flipped, cut));
    fs::remove_file(&several[2]).unwrap();
    fs::remove_file(&several[3]).unwrap();
    fs::create_dir(&several[3]).unwrap();
    fs::write(files[0].join("99999"), "it does not belong").unwrap();
    fs::write(to.join("postmaster.opts"), "neither does this").unwrap();
    holdfast_tests::account::run(std::process::Command::new("chown").arg("-R").arg("--reference").arg(from).arg(to));
}

/// So that the imports of a suite that is compiled without the others are used.
#[test]
fn a_thinned_choice_takes_every_kind() {
    let steps = ["a", "b", "a", "a", "c", "a", "a"].map(String::from);
    assert_eq!(Choice::Some(0).of(&steps), [1, 2, 5, 7]);
    assert_eq!(Choice::Some(1).of(&steps), [1, 2, 4, 5, 7]);
    assert_eq!(Choice::Every.of(&steps).len(), 15);
    let _ = Scratch::new();
}
