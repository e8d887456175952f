//! The steps at which the outside world changes, so that tests can end the process at each of them.

/// Marks a point just before something outside this process changes: an object, a file, a rename.
///
/// With the feature `fault-injection`, the environment variable `HOLDFAST_KILL_AT_STEP=n` kills the process
/// (SIGKILL: no destructor runs) at the n-th such point, `HOLDFAST_PAUSE_AT_STEP=name` stops it (SIGSTOP) the first time
/// it comes to a point of that name, or at the point of that number, and `HOLDFAST_STEP_LOG=file` appends each point's name to a file. Without the
/// feature this is nothing at all.
#[inline]
pub fn step(name: &str) {
    #[cfg(feature = "fault-injection")]
    injected::step(name);
    #[cfg(not(feature = "fault-injection"))]
    let _ = name;
}

#[cfg(feature = "fault-injection")]
mod injected {
    use std::io::Write as _;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    static PASSED: AtomicU64 = AtomicU64::new(0);
    static PAUSED: AtomicBool = AtomicBool::new(false);

    pub(super) fn step(name: &str) {
        let number = PASSED.fetch_add(1, Ordering::SeqCst) + 1;
        if let Some(path) = std::env::var_os("HOLDFAST_STEP_LOG")
            && let Ok(mut log) = std::fs::OpenOptions::new().create(true).append(true).open(path)
        {
            // A lost line of this log shows up as a missing step in the test that reads it.
            let _ = writeln!(log, "{number} {name}");
        }
        let pause =
            std::env::var("HOLDFAST_PAUSE_AT_STEP").is_ok_and(|wanted| wanted == name || wanted == number.to_string());
        if pause && !PAUSED.swap(true, Ordering::SeqCst) {
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::STOP);
        }
        let last = std::env::var("HOLDFAST_KILL_AT_STEP").ok().and_then(|n| n.parse::<u64>().ok());
        if last == Some(number) {
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
            loop {
                std::thread::park();
            }
        }
    }
}
