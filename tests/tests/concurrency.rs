//! Several agents at once on one repository: what one does never harms what another does, also where one of them is
//! suspended for as long as it takes the others to give it up.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    unreachable_pub,
    reason = "a test: it panics where something is wrong, and its modules are its own"
)]

mod small;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use holdfast_tests::agent::{Agent, Running};
use holdfast_tests::repository::{self, Kind};
use holdfast_tests::wait;
use postgres::types::PgLsn;
use small::{DEADLINE, Small, told};

/// Starts a backup and suspends it once it holds its lease.
fn suspended_backup(small: &Small, agent: &Agent) -> Running {
    let root = Path::new(agent.repository());
    for step in 1.. {
        let running =
            agent.pause_before(step, &small.backup(&[])).unwrap_or_else(|outcome| panic!("{}", told(&outcome)));
        let leases = repository::objects(root).into_iter().filter(|key| Kind::of(key) == Some(Kind::Lease));
        if leases.into_iter().any(|key| fs::read_to_string(root.join(key)).is_ok_and(|text| !text.contains("1970-"))) {
            return running;
        }
        assert!(running.kill().was_killed());
    }
    unreachable!("a backup takes a lease")
}

fn leases(root: &Path) -> Vec<String> {
    repository::objects(root).into_iter().filter(|key| Kind::of(key) == Some(Kind::Lease)).collect()
}

/// As if the leases had ended, which they do when their holder is suspended.
fn lose_leases(root: &Path) {
    for key in leases(root) {
        fs::remove_file(root.join(key)).unwrap();
    }
}

/// Whether the lock that makes a compare-and-swap one step is held.
fn is_locked(root: &Path) -> bool {
    let Ok(file) = fs::File::open(root.join(".lock")) else { return false };
    rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_err()
}

#[test]
fn a_second_backup_and_a_prune_wait_for_a_backup_that_runs() {
    let small = Small::new();
    small.point_at("first");
    small.make_backup("first");
    let agent = small.agent("first");
    let running = suspended_backup(&small, &agent);
    let other = small.agent("first");
    let busy = format!("(process {})", running.pid());
    for arguments in [small.backup(&[]), vec!["prune", "--keep", "1", "--grace", "0s"]] {
        let refused = other.run(&arguments);
        refused.expect_code(3);
        assert!(refused.stderr.contains("another backup of lineage"), "{}", told(&refused));
        assert!(refused.stderr.contains(&busy), "{}", told(&refused));
    }
    // What only reads is never kept waiting; nor is log.
    other.run(&["verify", "all"]).expect_code(0);
    assert_eq!(small::listed(&other).len(), 1);
    small.switch();
    running.resume();
    running.wait(DEADLINE).expect_code(0);
    small.wait_archived();
    assert_eq!(small::listed(&other).len(), 2);
    small::expect_sound(&other, "after both");
    other.run(&["prune", "--keep", "1", "--grace", "0s"]).expect_code(0);
    other.run(&small.backup(&[])).expect_code(0);
}

#[test]
fn of_four_that_push_a_segment_one_stores_it_and_all_succeed() {
    let small = Small::new();
    small.point_at("first");
    small.make_backup("first");
    small.point_at("nowhere");
    for _ in 0..8 {
        small.server.sql("INSERT INTO small SELECT generate_series(1, 2000)");
        let segment = small.server.switch_wal();
        small.server.wait_archived(&segment);
        let path = small.server.data_directory().join("pg_wal").join(&segment);
        let agents: Vec<Agent> = (0..4).map(|_| small.agent("first")).collect();
        let command = ["--output", "json", "wal-push", path.to_str().unwrap()];
        let running: Vec<Running> = agents.iter().map(|agent| agent.spawn(&command)).collect();
        let mut stored = BTreeMap::new();
        for run in running {
            let outcome = run.wait(DEADLINE);
            outcome.expect_code(0);
            *stored.entry(outcome.json()["already_stored"].as_bool().unwrap()).or_insert(0) += 1;
        }
        assert_eq!(stored, BTreeMap::from([(false, 1), (true, 3)]), "{segment}");
    }
    small::expect_sound(&small.agent("first"), "after the pushes");
}

#[test]
fn a_push_of_other_content_is_refused_whoever_is_first() {
    let small = Small::new();
    small.point_at("first");
    small.make_backup("first");
    small.point_at("nowhere");
    let segment = small.server.switch_wal();
    small.server.wait_archived(&segment);
    let path = small.server.data_directory().join("pg_wal").join(&segment);
    let agent = small.agent("first");
    // The same segment of a server that went another way from here: one byte of a record differs.
    let other = small.server.data_directory().join("pg_wal").join("other");
    fs::create_dir(&other).unwrap();
    let other = other.join(&segment);
    let mut content = fs::read(&path).unwrap();
    content[8000] ^= 1;
    fs::write(&other, content).unwrap();
    agent.run(&["wal-push", path.to_str().unwrap()]).expect_code(0);
    let target = small.server.data_directory().join("pg_wal").join(format!("{segment}.kept"));
    fs::rename(&path, &target).unwrap();
    fs::copy(&other, &path).unwrap();
    let refused = agent.run(&["wal-push", path.to_str().unwrap()]);
    fs::rename(&target, &path).unwrap();
    refused.expect_code(3);
    assert!(refused.stderr.contains("already exists with other content"), "{}", told(&refused));
    agent.run(&["wal-push", path.to_str().unwrap()]).expect_code(0);
    fs::remove_dir_all(other.parent().unwrap()).unwrap();
}

#[test]
fn two_that_watch_one_server_lose_no_tail() {
    let small = Small::new();
    small.point_at("first");
    small.make_backup("first");
    let data_directory = small.server.data_directory().to_str().unwrap();
    let watch = ["watch", "--data-dir", data_directory, "--interval", "1s"];
    let (one, other) = (small.agent("first"), small.agent("first"));
    let watches = [one.spawn(&watch), other.spawn(&watch)];
    let mut client = small.server.client("postgres");
    for number in 0..300 {
        client.batch_execute("INSERT INTO small VALUES (1)").unwrap();
        if number % 60 == 59 {
            client.batch_execute("SELECT pg_switch_wal()").unwrap();
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    client.batch_execute("INSERT INTO small VALUES (2)").unwrap();
    let flushed: u64 = small.server.flushed().into();
    let agent = small.agent("first");
    wait::until_seen(DEADLINE, "the tail to be stored", || {
        let until = until_position(&agent);
        if until >= flushed { Ok(()) } else { Err(format!("{until:X}\n{}", watches[0].stderr())) }
    });
    for watch in watches {
        watch.stop().expect_code(0);
    }
    small::expect_sound(&agent, "after both watched");
    // Byte for byte what the server has flushed.
    let segment: String = small.server.value("SELECT pg_walfile_name(pg_current_wal_flush_lsn())");
    let target = small.scratch.directory("fetched").join(&segment);
    agent.run(&["wal-fetch", &segment, target.to_str().unwrap()]).expect_code(0);
    let (fetched, there) =
        (fs::read(&target).unwrap(), fs::read(small.server.data_directory().join("pg_wal").join(&segment)).unwrap());
    let length = usize::try_from(flushed % (1 << 20)).unwrap();
    assert_eq!(fetched.len(), 1 << 20);
    assert!(fetched[..length] == there[..length], "the first {length} bytes");
}

fn until_position(agent: &Agent) -> u64 {
    let list = agent.json(&["list"]);
    let window = list["windows"].as_array().unwrap().last().unwrap().clone();
    window["until_position"].as_str().unwrap().parse::<PgLsn>().unwrap().into()
}

/// A backup is suspended at every step, one run for each. Its leases end; a prune marks and deletes what no manifest
/// names; the backup wakes up.
#[test]
fn a_backup_that_slept_while_a_prune_ran_is_whole_or_withdrawn() {
    let small = Small::new();
    small.point_at("first");
    small.make_backup("first");
    small.change();
    small.make_backup("first");
    small.agent("first").run(&["verify", "all"]).expect_code(0);
    small.change();
    small.server.sql("INSERT INTO small SELECT generate_series(1, 3000); CHECKPOINT");
    let (mut withdrawn, mut whole, mut locked) = (0, 0, 0);
    for step in 1.. {
        let (name, what) = (format!("slept-{step}"), format!("suspended at step {step}"));
        small.point_at("nowhere");
        repository::copy(&small.path("first"), &small.path(&name));
        let agent = small.agent(&name);
        let Ok(running) = agent.pause_before(step, &small.backup(&[])) else {
            fs::remove_dir_all(small.path(&name)).unwrap();
            break;
        };
        lose_leases(&small.path(&name));
        let other = small.agent(&name);
        if is_locked(&small.path(&name)) {
            // Others wait for whoever sleeps in the middle of a compare-and-swap.
            locked += 1;
            running.resume();
        }
        let pruned = other.run(&["prune", "--keep", "1", "--grace", "0s"]);
        let code = pruned.code();
        assert!(code == Some(0) || (code == Some(3) && locked > 0), "{what}: {}", told(&pruned));
        // Where it was told to wait for the backup, it removed nothing.
        let kept = if code == Some(0) { 1 } else { 2 };
        running.resume();
        let woken = running.wait(DEADLINE);
        let made = small::there(&other).len();
        match woken.code() {
            Some(0) => {
                assert_eq!(made, kept + 1, "{what}: {}", told(&woken));
                whole += 1;
            }
            Some(3) => {
                // It noticed at its lease already, or at its end.
                let noticed = ["run it again", "try again later"].iter().any(|advice| woken.stderr.contains(advice));
                assert!(noticed, "{what}: {}", told(&woken));
                assert_eq!(made, kept, "{what}: withdrawn, and there nevertheless");
                withdrawn += 1;
            }
            _ => panic!("{what}: {}", told(&woken)),
        }
        // Log is not archived meanwhile, so that only a backup that was just made has no hole after it.
        let level = if made > kept { "data" } else { "objects" };
        let verified = other.run(&["verify", "latest", "--level", level]);
        assert_eq!(verified.code(), Some(0), "{what}: {}", told(&verified));
        let again = other.run(&small.backup(&[]));
        assert_eq!(again.code(), Some(0), "again after {what}: {}", told(&again));
        let verified = other.run(&["verify", "latest"]);
        assert_eq!(verified.code(), Some(0), "again after {what}: {}", told(&verified));
        let scraps = repository::scraps(&small.path(&name));
        assert!(scraps.is_empty(), "{what}: {scraps:?}");
        fs::remove_dir_all(small.path(&name)).unwrap();
    }
    println!("suspended backups: {withdrawn} withdrawn, {whole} whole, {locked} slept with the lock of the store");
    assert!(withdrawn > 0 && whole > 0, "{withdrawn} withdrawn, {whole} whole");
}

/// A prune is suspended at every step, one run for each. Its leases end; a backup runs; the prune wakes up.
#[test]
fn a_prune_that_slept_while_a_backup_ran_takes_nothing_from_it() {
    let small = Small::new();
    small.point_at("first");
    small.make_backup("first");
    small.change();
    small.make_backup("first");
    small.agent("first").run(&["verify", "all"]).expect_code(0);
    small.change();
    // What the next backup would store again, to the byte, is garbage already.
    small.point_at("nowhere");
    small::leave_garbage(&small, "first", &["--threads", "1"]);
    let mut backups = 0;
    for step in 1.. {
        let (name, what) = (format!("slept-{step}"), format!("a prune suspended at step {step}"));
        repository::copy(&small.path("first"), &small.path(&name));
        let agent = small.agent(&name);
        let Ok(running) = agent.pause_before(step, &["prune", "--keep", "1", "--grace", "0s"]) else {
            fs::remove_dir_all(small.path(&name)).unwrap();
            break;
        };
        lose_leases(&small.path(&name));
        let other = small.agent(&name);
        let locked = is_locked(&small.path(&name));
        if locked {
            running.resume();
        }
        let made = other.run(&small.backup(&["--threads", "1"]));
        running.resume();
        let pruned = running.wait(DEADLINE);
        assert!(matches!(pruned.code(), Some(0 | 3)), "{what}: {}", told(&pruned));
        match made.code() {
            Some(0) => backups += 1,
            Some(3) => {
                assert!(locked || made.stderr.contains("run it again"), "{what}: {}", told(&made));
                let again = other.run(&small.backup(&["--threads", "1"]));
                assert_eq!(again.code(), Some(0), "again after {what}: {}", told(&again));
            }
            _ => panic!("{what}: {}", told(&made)),
        }
        let verified = other.run(&["verify", "latest"]);
        assert_eq!(verified.code(), Some(0), "{what}: {}", told(&verified));
        fs::remove_dir_all(small.path(&name)).unwrap();
    }
    println!("backups made while a prune slept: {backups}");
    assert!(backups > 0);
}

/// A backup that is killed, pruned away and run again stores the same packs and maps: under other names, as a prune that
/// sleeps may still be about to delete those.
#[test]
fn what_was_pruned_away_can_be_stored_again() {
    let small = Small::new();
    // More than one pack, of which the first is the same whenever it is written.
    small.server.sql(
        "CREATE TABLE noise AS SELECT string_agg(decode(md5(number::text), 'hex'), '') AS bytes
         FROM generate_series(1, 1400000) AS number GROUP BY number / 60",
    );
    small.server.psql("VACUUM (FREEZE, ANALYZE)");
    small.server.sql("CHECKPOINT");
    let backup = ["--threads", "1"];
    let agent = small.agent("first");
    for _ in 0..2 {
        small::leave_garbage(&small, "first", &backup);
        let before = repository::objects(&small.path("first"));
        assert!(before.iter().filter(|key| Kind::of(key) == Some(Kind::Pack)).count() >= 2, "{before:?}");
        agent.run(&["prune", "--grace", "0s"]).expect_code(0);
        let left = repository::objects(&small.path("first"));
        assert!(!left.iter().any(|key| Kind::of(key) == Some(Kind::Pack)), "{left:?}");
    }
    let made = agent.run(&small.backup(&backup));
    assert_eq!(made.code(), Some(0), "{}", told(&made));
    small::expect_sound(&agent, "after it was stored again");
}
