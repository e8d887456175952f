//! The lock that makes a compare-and-swap one step.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use rustix::io::Errno;

/// The file that is locked. It is never removed: a lock on a removed file excludes nobody.
const NAME: &str = ".lock";
/// A holder needs milliseconds; one that takes this long was stopped or hangs on its volume.
const PATIENCE: Duration = Duration::from_secs(30);

/// Held until dropped, or until this process ends in whatever way.
#[derive(Debug)]
pub(super) struct Lock(#[expect(dead_code, reason = "closing the file is what unlocks")] File);

impl Lock {
    /// Waits for the lock of the store at `root`; every thread and every process excludes every other.
    pub(super) fn take(root: &Path) -> io::Result<Self> {
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o660).open(root.join(NAME))?;
        let deadline = Instant::now() + PATIENCE;
        let mut pause = Duration::from_micros(200);
        loop {
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Self(file)),
                Err(Errno::WOULDBLOCK | Errno::INTR) if Instant::now() < deadline => {}
                Err(Errno::WOULDBLOCK | Errno::INTR) => return Err(held(root)),
                Err(errno) => return Err(errno.into()),
            }
            thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    }
}

fn held(root: &Path) -> io::Error {
    let reason = format!("another process has held {} for {} s", root.join(NAME).display(), PATIENCE.as_secs());
    io::Error::new(io::ErrorKind::TimedOut, reason)
}

/// Whether the file system cannot lock at all.
pub(super) fn is_unsupported(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NOLCK | Errno::NOTSUP | Errno::NOSYS))
}
