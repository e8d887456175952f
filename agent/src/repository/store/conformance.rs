//! What every store must do: one suite that every backend passes. Only in tests.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::missing_panics_doc,
    reason = "a suite of tests: it panics where a store is wrong"
)]

use std::ops::Range;
use std::sync::Barrier;
use std::thread;

use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};

use super::{Created, Entry, Key, Store, StoreError, StoreFault, Swapped, Version, Walk};

const RACERS: u8 = 8;
/// More than S3 lists at once.
const MANY: usize = 1001;
const MIB: usize = 1 << 20;

type Check = fn(&dyn Store, &Key);

const CHECKS: [(&str, Check); 19] = [
    ("what-is-created-is-there", what_is_created_is_there),
    ("create-never-overwrites", create_never_overwrites),
    ("of-many-creators-one-wins", of_many_creators_one_wins),
    ("an-empty-object-is-an-object", an_empty_object_is_an_object),
    ("a-large-object-comes-back", a_large_object_comes_back),
    ("more-than-the-limit-is-refused", more_than_the_limit_is_refused),
    ("ranges-are-exact", ranges_are_exact),
    ("ranges-past-the-end-are-errors", ranges_past_the_end_are_errors),
    ("what-is-absent-is-not-found", what_is_absent_is_not_found),
    ("head-tells-size-and-age", head_tells_size_and_age),
    ("lists-are-in-order", lists_are_in_order),
    ("a-prefix-ends-at-a-separator", a_prefix_ends_at_a_separator),
    ("lists-are-complete", lists_are_complete),
    ("a-list-stops-when-told", a_list_stops_when_told),
    ("children-are-one-level", children_are_one_level),
    ("delete-can-be-repeated", delete_can_be_repeated),
    ("swap-needs-the-version", swap_needs_the_version),
    ("no-swap-is-lost", no_swap_is_lost),
    ("the-clock-is-near", the_clock_is_near),
];

/// Runs every check, each below a prefix of its own; panics at the first thing that is wrong.
pub fn conforms(store: &dyn Store) {
    for (name, check) in CHECKS {
        // Shown by the test harness when a check fails.
        println!("{}: {name}", store.location());
        check(store, &key(name));
    }
}

fn key(text: &str) -> Key {
    Key::parse(text).expect("a key")
}

fn below(base: &Key, name: &str) -> Key {
    key(&format!("{base}/{name}"))
}

fn create(store: &dyn Store, key: &Key, body: impl Into<Bytes>) {
    assert_eq!(store.create(key, body.into()).expect("created"), Created::New, "{key}");
}

fn body(store: &dyn Store, key: &Key) -> Bytes {
    store.get(key, u64::MAX).expect("got").body
}

fn listed(store: &dyn Store, prefix: &Key) -> Vec<String> {
    let mut keys = Vec::new();
    let mut each = |entry: Entry| {
        keys.push(entry.key.to_string());
        Walk::On
    };
    store.list(prefix, &mut each).expect("listed");
    keys
}

/// What keeps a test from noticing that parts were swapped or lost is a pattern that repeats: this one does not.
fn pattern(length: usize) -> Bytes {
    let mut body = vec![0; length];
    blake3::Hasher::new().finalize_xof().fill(&mut body);
    body.into()
}

fn assert_not_found<T: std::fmt::Debug>(outcome: Result<T, StoreError>) {
    let error = outcome.expect_err("nothing is there");
    assert!(error.is_not_found() && !error.is_transient(), "{error}");
}

fn what_is_created_is_there(store: &dyn Store, base: &Key) {
    let key = below(base, "a/b-1_2.c+d:e/f");
    create(store, &key, "body");
    let object = store.get(&key, 4).expect("got");
    assert_eq!(object.body, "body");
    assert_eq!(store.get(&key, 4).expect("got").version, object.version, "reading changes nothing");
}

fn create_never_overwrites(store: &dyn Store, base: &Key) {
    let key = below(base, "a");
    create(store, &key, "first");
    assert_eq!(store.create(&key, "second".into()).expect("asked"), Created::Existed);
    assert_eq!(store.create(&key, "first".into()).expect("asked"), Created::Existed, "whatever it holds");
    assert_eq!(body(store, &key), "first");
}

fn of_many_creators_one_wins(store: &dyn Store, base: &Key) {
    let key = below(base, "new-directory/a");
    let start = Barrier::new(usize::from(RACERS));
    let outcomes: Vec<(u8, Created)> = thread::scope(|scope| {
        let race = |number: u8| {
            let (key, start) = (&key, &start);
            scope.spawn(move || {
                start.wait();
                (number, store.create(key, vec![number; MIB].into()).expect("created or not"))
            })
        };
        let racers: Vec<_> = (0..RACERS).map(race).collect();
        racers.into_iter().map(|racer| racer.join().expect("joined")).collect()
    });
    let winners: Vec<u8> =
        outcomes.iter().filter(|(_, created)| *created == Created::New).map(|(number, _)| *number).collect();
    assert_eq!(winners.len(), 1, "{outcomes:?}");
    assert!(body(store, &key) == vec![winners[0]; MIB], "the object is not the winner's");
    assert_eq!(listed(store, base), [key.to_string()], "losers leave nothing");
}

fn an_empty_object_is_an_object(store: &dyn Store, base: &Key) {
    let key = below(base, "a");
    create(store, &key, Bytes::new());
    assert_eq!(store.get(&key, 0).expect("got").body, Bytes::new());
    assert_eq!(store.get_range(&key, 0..0).expect("got"), Bytes::new());
    assert_eq!(store.head(&key).expect("asked").expect("is there").size, 0);
    assert_eq!(store.create(&key, "more".into()).expect("asked"), Created::Existed);
}

fn a_large_object_comes_back(store: &dyn Store, base: &Key) {
    let (key, sent) = (below(base, "a"), pattern(32 * MIB));
    create(store, &key, sent.clone());
    assert!(body(store, &key) == sent, "other bytes came back");
    let middle = 16 * MIB - 5..16 * MIB + 7;
    assert_eq!(store.get_range(&key, middle.start as u64..middle.end as u64).expect("got"), sent[middle]);
}

fn more_than_the_limit_is_refused(store: &dyn Store, base: &Key) {
    let key = below(base, "a");
    create(store, &key, "12345");
    assert_eq!(store.get(&key, 5).expect("got").body, "12345");
    let error = store.get(&key, 4).expect_err("too large");
    assert!(matches!(error.fault, StoreFault::TooLarge { size: 5, limit: 4 }), "{error}");
}

fn ranges_are_exact(store: &dyn Store, base: &Key) {
    let key = below(base, "a");
    create(store, &key, "0123456789");
    let get = |range: Range<u64>| store.get_range(&key, range).expect("got");
    assert_eq!(get(0..1), "0");
    assert_eq!(get(3..7), "3456");
    assert_eq!(get(9..10), "9");
    assert_eq!(get(0..10), "0123456789");
    assert_eq!(get(4..4), "");
    assert_eq!(get(10..10), "");
}

fn ranges_past_the_end_are_errors(store: &dyn Store, base: &Key) {
    let key = below(base, "a");
    create(store, &key, "0123456789");
    for range in [0..11, 9..12, 10..11, 20..30, 11..11, 0..u64::MAX] {
        let error = store.get_range(&key, range.clone()).expect_err("ends before");
        assert!(
            matches!(error.fault, StoreFault::Short { size: 10, wanted } if wanted == range.end),
            "{range:?} gave {error}"
        );
        assert!(!error.is_transient(), "waiting does not make it longer");
    }
    let reversed = Range { start: 5, end: 4 };
    let error = store.get_range(&key, reversed).expect_err("reversed");
    assert!(matches!(error.fault, StoreFault::Refused(_)), "{error}");
}

fn what_is_absent_is_not_found(store: &dyn Store, base: &Key) {
    create(store, &below(base, "a/b"), "body");
    // Not there, below an object, a level that is no object, and the beginning of a name.
    for absent in ["c", "c/d", "a/b/c", "a", "a/bb"] {
        let key = below(base, absent);
        assert_not_found(store.get(&key, 10));
        assert_not_found(store.get_range(&key, 0..1));
        assert_not_found(store.get_range(&key, 0..0));
        assert_eq!(store.head(&key).expect("asked"), None, "{key}");
        store.delete(&key).expect("nothing to delete");
        let swapped = store.compare_and_swap(&key, Some(&Version("0".into())), "x".into());
        assert_eq!(swapped.expect("asked"), Swapped::Conflict, "{key}");
    }
    assert_eq!(listed(store, base), [format!("{base}/a/b")]);
    let error = store.get(&below(base, "c"), 1).expect_err("nothing");
    let (key, location) = (below(base, "c"), store.location());
    assert_eq!(error.to_string(), format!("get {key} in {location}: there is no such object"));
}

fn head_tells_size_and_age(store: &dyn Store, base: &Key) {
    let key = below(base, "a");
    // S3 tells ages in whole seconds.
    let second = SignedDuration::from_secs(1);
    let before = store.now().expect("now") - second;
    create(store, &key, "12345");
    let after = store.now().expect("now") + second;
    let entry = store.head(&key).expect("asked").expect("is there");
    assert_eq!((entry.key.clone(), entry.size), (key, 5));
    assert!((before..=after).contains(&entry.modified), "{} is not from {before} to {after}", entry.modified);
    let mut entries = Vec::new();
    let mut each = |entry| {
        entries.push(entry);
        Walk::On
    };
    store.list(base, &mut each).expect("listed");
    assert_eq!((entries.len(), &entries[0].key, entries[0].size), (1, &entry.key, 5));
    let apart = entry.modified.duration_since(entries[0].modified).abs();
    assert!(apart <= second, "head and list tell ages {apart:?} apart");
}

fn lists_are_in_order(store: &dyn Store, base: &Key) {
    // In the order of bytes `+ - . /` come before digits, then capitals, `_`, and small letters.
    let names = ["a+1", "a-1/x", "a-b", "a.b", "a/b", "a/b-c", "a/c/d", "a0", "aB", "a_", "ab"];
    for name in names.iter().rev() {
        create(store, &below(base, name), "body");
    }
    assert_eq!(listed(store, base), names.map(|name| format!("{base}/{name}")));
    assert_eq!(listed(store, &below(base, "a")), ["a/b", "a/b-c", "a/c/d"].map(|name| format!("{base}/{name}")));
    let (all, base) = (listed(store, &Key::root()), base.to_string());
    assert!(all.is_sorted() && all.iter().any(|key| *key == format!("{base}/a+1")), "{all:?}");
}

fn a_prefix_ends_at_a_separator(store: &dyn Store, base: &Key) {
    for name in ["db-1/x", "db-10/x", "db-1.x"] {
        create(store, &below(base, name), "body");
    }
    assert_eq!(listed(store, &below(base, "db-1")), [format!("{base}/db-1/x")]);
    assert_eq!(store.children(&below(base, "db-1")).expect("asked"), ["x"]);
    assert_eq!(listed(store, &below(base, "db")), [""; 0]);
    assert_eq!(listed(store, &below(base, "db-1/x")), [""; 0], "an object is not below itself");
    assert_eq!(store.children(&below(base, "db-1/x")).expect("asked"), [""; 0]);
    assert_eq!(store.children(&below(base, "nothing")).expect("asked"), [""; 0]);
}

fn lists_are_complete(store: &dyn Store, base: &Key) {
    let name = |number: usize| format!("{base}/{}/{number:04}", number % 2);
    thread::scope(|scope| {
        for part in 0..8 {
            scope.spawn(move || (part..MANY).step_by(8).for_each(|number| create(store, &key(&name(number)), "body")));
        }
    });
    let mut names: Vec<String> = (0..MANY).map(name).collect();
    names.sort_unstable();
    assert_eq!(listed(store, base), names);
    assert_eq!(store.children(&below(base, "0")).expect("asked").len(), MANY.div_ceil(2));
    assert_eq!(store.children(base).expect("asked"), ["0", "1"]);
}

fn a_list_stops_when_told(store: &dyn Store, base: &Key) {
    for name in ["a/1", "a/2", "b/1"] {
        create(store, &below(base, name), "body");
    }
    let mut seen = Vec::new();
    let mut each = |entry: Entry| {
        seen.push(entry.key.to_string());
        // Whoever lists may change what is listed.
        store.delete(&entry.key).expect("deleted");
        if seen.len() == 2 { Walk::Stop } else { Walk::On }
    };
    store.list(base, &mut each).expect("listed");
    assert_eq!(seen, [format!("{base}/a/1"), format!("{base}/a/2")]);
    assert_eq!(listed(store, base), [format!("{base}/b/1")]);
}

fn children_are_one_level(store: &dyn Store, base: &Key) {
    for name in ["a/c/d", "a/b", "a/c/e", "a/c-1", "f"] {
        create(store, &below(base, name), "body");
    }
    assert_eq!(store.children(&below(base, "a")).expect("asked"), ["b", "c", "c-1"]);
    assert_eq!(store.children(base).expect("asked"), ["a", "f"]);
    let top = store.children(&Key::root()).expect("asked");
    assert!(top.contains(&base.to_string()) && top.is_sorted(), "{top:?}");
}

fn delete_can_be_repeated(store: &dyn Store, base: &Key) {
    let (gone, kept) = (below(base, "a/gone"), below(base, "a/kept"));
    create(store, &gone, "body");
    create(store, &kept, "body");
    for _ in 0..2 {
        store.delete(&gone).expect("deleted");
        assert_eq!(store.head(&gone).expect("asked"), None);
    }
    assert_eq!(listed(store, base), [kept.to_string()]);
    create(store, &gone, "again");
    assert_eq!(body(store, &gone), "again");
}

fn swap_needs_the_version(store: &dyn Store, base: &Key) {
    let key = below(base, "a");
    let swap = |expected: Option<&Version>, body: &'static str| {
        store.compare_and_swap(&key, expected, body.into()).expect("swapped or not")
    };
    let Swapped::Done(first) = swap(None, "first") else { panic!("nothing was there") };
    assert_eq!(swap(None, "other"), Swapped::Conflict, "now something is there");
    assert_eq!(store.get(&key, 10).expect("got").version, first);
    let Swapped::Done(second) = swap(Some(&first), "second") else { panic!("it was the first") };
    assert_ne!(first, second);
    assert_eq!(swap(Some(&first), "third"), Swapped::Conflict, "the version is old");
    let object = store.get(&key, 10).expect("got");
    assert_eq!((object.body, object.version), (Bytes::from("second"), second.clone()));
    assert_eq!(store.create(&key, "fourth".into()).expect("asked"), Created::Existed);
    store.delete(&key).expect("deleted");
    assert_eq!(swap(Some(&second), "third"), Swapped::Conflict, "a swap brings nothing back");
    assert_eq!(store.head(&key).expect("asked"), None);
}

fn no_swap_is_lost(store: &dyn Store, base: &Key) {
    const ROUNDS: u64 = 5;
    let key = below(base, "counter");
    create(store, &key, "0");
    let add_one = || {
        let object = store.get(&key, 20).expect("got");
        let count: u64 = str::from_utf8(&object.body).expect("text").parse().expect("a number");
        let swapped = store.compare_and_swap(&key, Some(&object.version), (count + 1).to_string().into());
        swapped.expect("swapped or not") != Swapped::Conflict
    };
    let add_some = || (0..ROUNDS).for_each(|_| while !add_one() {});
    thread::scope(|scope| (0..RACERS).for_each(|_| drop(scope.spawn(add_some))));
    assert_eq!(body(store, &key), (ROUNDS * u64::from(RACERS)).to_string());
    assert_eq!(listed(store, base), [key.to_string()]);
}

fn the_clock_is_near(store: &dyn Store, _base: &Key) {
    // The suite runs against stores on this host, whose clock is this one.
    let now = store.now().expect("now");
    let skew = now.duration_since(Timestamp::now()).abs();
    assert!(skew < SignedDuration::from_secs(5), "the store says {now}");
}
