//! Killing a server whole: the postmaster and all it started, archive commands too, as a machine that loses power does.

use std::collections::HashMap;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::wait;

pub(super) fn pid(number: u32) -> Pid {
    Pid::from_raw(number.try_into().expect("process ids are small")).expect("a process id is not 0")
}

/// Sends a signal; a process that ended meanwhile is fine.
pub(super) fn signal(number: u32, signal: Signal) {
    match kill_process(pid(number), signal) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => {}
        Err(error) => panic!("cannot signal process {number}: {error}"),
    }
}

/// Kills a process and all its descendants. The process itself is left for its parent to reap.
pub(super) fn kill_tree(root: u32) {
    // Each is stopped before its children are listed, so that none is born in between.
    let mut found = vec![root];
    let mut looked_at = 0;
    while looked_at < found.len() {
        signal(found[looked_at], Signal::STOP);
        found.extend(children(found[looked_at]));
        looked_at += 1;
    }
    for process in &found {
        signal(*process, Signal::KILL);
    }
    wait::until_seen(Duration::from_secs(30), "the killed processes to end", || {
        let left: Vec<_> = found.iter().skip(1).filter(|process| !has_ended(**process)).collect();
        if left.is_empty() { Ok(()) } else { Err(format!("still there: {left:?}")) }
    });
}

fn children(parent: u32) -> Vec<u32> {
    let processes: HashMap<u32, u32> = std::fs::read_dir("/proc")
        .expect("/proc is mounted")
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(|process| Some((process, stat(process)?.1)))
        .collect();
    processes.into_iter().filter(|(_, of)| *of == parent).map(|(process, _)| process).collect()
}

fn has_ended(process: u32) -> bool {
    stat(process).is_none_or(|(state, _)| state == 'Z' || state == 'X')
}

/// State and parent of a process (proc(5)): the fields after its name, which is in parentheses and may hold any byte.
fn stat(process: u32) -> Option<(char, u32)> {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}
