//! Waiting for a condition, never for time to pass.

use std::fmt::Display;
use std::time::{Duration, Instant};

/// How often a condition is looked at.
const INTERVAL: Duration = Duration::from_millis(20);

/// Waits until `look` finds something; panics after `deadline`, naming `what` was waited for.
#[track_caller]
pub fn until<T>(deadline: Duration, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    until_seen(deadline, what, || look().ok_or("nothing yet"))
}

/// Waits as [`until`] does; `look` says as its error what it saw instead, and the panic repeats the last of these.
#[track_caller]
pub fn until_seen<T, E: Display>(deadline: Duration, what: &str, mut look: impl FnMut() -> Result<T, E>) -> T {
    let end = Instant::now() + deadline;
    loop {
        match look() {
            Ok(found) => return found,
            Err(seen) if Instant::now() >= end => panic!("waited {deadline:?} for {what}; saw: {seen}"),
            Err(_) => std::thread::sleep(INTERVAL),
        }
    }
}
