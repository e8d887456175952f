//! Leases: one backup and one prune at a time in a lineage.
//!
//! They keep people and schedules from wasting work. Safety never rests on them: a paused holder can always wake up.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::document::{self, Document};
use super::error::{RepositoryError, RepositoryResult};
use super::store::{Key, Store, Swapped, Version};
use super::top::{System, random_bytes};

/// How long a lease lasts without being renewed.
pub const TERM: Duration = Duration::from_mins(1);

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Record {
    lineage: String,
    work: String,
    holder: String,
    host: String,
    process: Process,
    until: Timestamp,
}

impl Document for Record {
    const KIND: &'static str = "lease";
}

/// A process, so that on its own host one can see whether it still runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Process {
    boot: String,
    pid: u32,
    started: String,
}

impl Process {
    fn this() -> Self {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned();
        let pid = std::process::id();
        Self { boot, pid, started: start_time(pid).unwrap_or_default() }
    }

    /// Only certain where it was started on this boot of this kernel and can be seen from here.
    fn is_certainly_gone(&self) -> bool {
        let here = Self::this();
        !here.boot.is_empty() && here.boot == self.boot && start_time(self.pid).as_ref() != Some(&self.started)
    }
}

/// The 22nd field of `/proc/PID/stat` (proc(5)): clock ticks since boot when the process was started.
fn start_time(pid: u32) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let after_name = stat.rsplit_once(')')?.1;
    let mut fields = after_name.split_whitespace();
    let state = fields.next()?;
    (state != "Z").then(|| fields.nth(18).map(str::to_owned)).flatten()
}

/// A lease that is held, and renewed until it is dropped.
#[derive(Debug)]
pub struct Lease {
    stop: Option<Sender<()>>,
    renewer: Option<JoinHandle<()>>,
}

impl Lease {
    /// Takes the lease for `work` (`backup`, `prune`) in a lineage.
    ///
    /// # Errors
    /// [`RepositoryError::Busy`] where somebody else holds it.
    pub fn take(system: &System, lineage: &str, work: &'static str) -> RepositoryResult<Self> {
        let key = system.layout.lease(lineage, work);
        let host = hostname::get().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let current = match document::read::<Record>(system.store(), &key) {
            Ok((record, version)) => Some((record, version)),
            Err(RepositoryError::Store(error)) if error.is_not_found() => None,
            // A lease that cannot be read protects nobody.
            Err(RepositoryError::Damaged(_)) => {
                system.store().delete(&key)?;
                None
            }
            Err(error) => return Err(error),
        };
        if let Some((record, _)) = &current {
            let gone = record.host == host && record.process.is_certainly_gone();
            if record.until > system.store().now()? && !gone {
                return Err(busy(work, lineage, record));
            }
        }
        let mut held = Held {
            store: system.store.clone(),
            key,
            record: Record {
                lineage: lineage.to_owned(),
                work: work.to_owned(),
                holder: hex::encode(random_bytes()),
                host,
                process: Process::this(),
                until: Timestamp::UNIX_EPOCH,
            },
            version: current.map(|(_, version)| version),
        };
        if !held.renew()? {
            return Err(RepositoryError::Busy(format!(
                "another {work} of lineage {lineage} began at the same moment: try again later"
            )));
        }
        let (stop, stopped) = channel();
        let renewer = std::thread::spawn(move || {
            while stopped.recv_timeout(TERM / 4) == Err(RecvTimeoutError::Timeout) {
                // Whether it can be renewed or not, the work goes on: it is safe without.
                if let Err(error) = held.renew() {
                    tracing::warn!(%error, "the lease could not be renewed");
                }
            }
            if let Err(error) = held.release() {
                tracing::warn!(%error, "the lease could not be given back; it ends by itself");
            }
        });
        Ok(Self { stop: Some(stop), renewer: Some(renewer) })
    }
}

fn busy(work: &str, lineage: &str, record: &Record) -> RepositoryError {
    RepositoryError::Busy(format!(
        "another {work} of lineage {lineage} is running on {} (process {}): wait until it is done; \
         if it died, its lease ends at {}",
        record.host, record.process.pid, record.until
    ))
}

impl Drop for Lease {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(renewer) = self.renewer.take() {
            // A renewer that panicked has nothing left to give back.
            let _ = renewer.join();
        }
    }
}

/// Reads a lease and says what is wrong with it, if anything.
pub(super) fn check(system: &System, lineage: &str, key: &Key) -> RepositoryResult<()> {
    let (record, _) = document::read::<Record>(system.store(), key)?;
    if record.lineage != lineage || record.work != key.name() {
        return Err(
            super::Damage::of(key, format!("it is the lease {} of lineage {}", record.work, record.lineage)).into()
        );
    }
    Ok(())
}

#[derive(Debug)]
struct Held {
    store: Arc<dyn Store>,
    key: Key,
    record: Record,
    version: Option<Version>,
}

impl Held {
    fn renew(&mut self) -> RepositoryResult<bool> {
        let term = SignedDuration::try_from(TERM).unwrap_or(SignedDuration::ZERO);
        self.record.until = self.store.now()?.saturating_add(term).unwrap_or(Timestamp::MAX);
        match self.store.compare_and_swap(&self.key, self.version.as_ref(), document::sealed(&self.record))? {
            Swapped::Done(version) => {
                self.version = Some(version);
                Ok(true)
            }
            Swapped::Conflict => Ok(false),
        }
    }

    fn release(&mut self) -> RepositoryResult<()> {
        self.record.until = Timestamp::UNIX_EPOCH;
        self.store.compare_and_swap(&self.key, self.version.as_ref(), document::sealed(&self.record))?;
        Ok(())
    }
}
