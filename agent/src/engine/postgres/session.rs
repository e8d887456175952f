//! The session of a backup.

use std::time::Duration;

use jiff::Timestamp;
use postgres::Client;

use super::facts::OLDEST_VERSION;
pub use super::facts::{ServerFacts, facts};
use super::lsn::{Lsn, Timeline};
pub use super::session_error::SessionError;
use super::session_error::{column, failed, lsn, nonsense, timestamp};

/// How long [`BackupSession::is_alive`] waits for an answer.
const ALIVE_WITHIN: Duration = Duration::from_secs(10);

/// How the checkpoint at a backup's start is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checkpoint {
    /// As fast as the disks allow.
    Fast,
    /// Spread, as the server's own are: gentle, but the backup starts minutes later.
    Spread,
}

/// What the server said when a backup began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Started {
    /// Where recovery of the copy will begin.
    pub start_lsn: Lsn,
    /// The timeline of that position.
    pub timeline: Timeline,
    /// Whether the server is a standby.
    pub on_standby: bool,
    /// The server's clock.
    pub at: Timestamp,
}

/// What the server said when a backup ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stopped {
    /// Recovery of the copy must come at least this far.
    pub stop_lsn: Lsn,
    /// The timeline of that position.
    pub timeline: Timeline,
    /// To be written into the copy as `backup_label`, byte for byte.
    pub backup_label: Vec<u8>,
    /// To be written into the copy as `tablespace_map`, byte for byte; empty where there are no tablespaces.
    pub tablespace_map: Vec<u8>,
    /// The server's clock.
    pub at: Timestamp,
}

/// The one session in which a backup is begun and ended. If it is dropped before, the server forgets the backup.
pub struct BackupSession {
    client: Client,
    started: Started,
}

impl BackupSession {
    /// Begins a backup.
    ///
    /// # Errors
    /// If the server is too old, keeps too little log, or the role may not do this.
    pub fn start(mut client: Client, label: &str, checkpoint: Checkpoint) -> Result<(Self, Started), SessionError> {
        const DOING: &str = "beginning a backup";
        check_version(&mut client)?;
        let before = standing(&mut client, DOING)?;
        let fast = checkpoint == Checkpoint::Fast;
        let row = client.query_one("SELECT pg_catalog.pg_backup_start($1, $2)", &[&label, &fast]);
        let row = row.map_err(|error| failed(&mut client, DOING, &error))?;
        let start_lsn = lsn(&row, 0)?;
        let after = standing(&mut client, DOING)?;
        before.must_equal(after)?;
        let started = Started { start_lsn, timeline: after.timeline, on_standby: after.in_recovery, at: after.at };
        Ok((Self { client, started }, started))
    }

    /// Whether the session still stands, and with it the backup.
    pub fn is_alive(&mut self) -> bool {
        self.client.is_valid(ALIVE_WITHIN).is_ok()
    }

    /// Ends the backup. `wait_for_archive` has the server wait until its own archiving is done with the backup's log.
    ///
    /// # Errors
    /// If the session had ended or the standby was promoted: the backup is void then.
    pub fn stop(mut self, wait_for_archive: bool) -> Result<Stopped, SessionError> {
        const DOING: &str = "ending a backup";
        let row = self
            .client
            .query_one("SELECT lsn, labelfile, spcmapfile FROM pg_catalog.pg_backup_stop($1)", &[&wait_for_archive]);
        let row = row.map_err(|error| self.stop_failed(&error))?;
        let after = standing(&mut self.client, DOING)?;
        let before = Standing { in_recovery: self.started.on_standby, ..Standing::from(self.started) };
        before.must_equal(after)?;
        let backup_label = column::<String>(&row, 1)?.into_bytes();
        self.started.must_be_in(&backup_label)?;
        Ok(Stopped {
            stop_lsn: lsn(&row, 0)?,
            timeline: after.timeline,
            backup_label,
            tablespace_map: column::<Option<String>>(&row, 2)?.unwrap_or_default().into_bytes(),
            at: after.at,
        })
    }

    fn stop_failed(&mut self, error: &postgres::Error) -> SessionError {
        // The server itself refuses to end a backup that was begun before a promotion.
        let promoted = error.as_db_error().is_some_and(|answer| answer.message().contains("promoted"));
        if promoted && self.started.on_standby {
            return SessionError::Promoted { before: "was a standby".into(), after: "was a primary".into() };
        }
        failed(&mut self.client, "ending a backup", error)
    }
}

impl Started {
    /// The label is what recovery follows, so it must say what was noted.
    fn must_be_in(&self, label: &[u8]) -> Result<(), SessionError> {
        let label = String::from_utf8_lossy(label);
        let field = |name: &str| label.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let start = field("START WAL LOCATION:").and_then(|text| text.split_whitespace().next());
        let timeline = field("START TIMELINE:");
        let right = start.and_then(|text| text.parse().ok()) == Some(self.start_lsn)
            && timeline.and_then(|text| text.parse().ok()) == Some(self.timeline);
        if right {
            return Ok(());
        }
        let found = format!("{} on timeline {}", start.unwrap_or("nothing"), timeline.unwrap_or("unknown"));
        Err(SessionError::Label { found, expected: format!("{} on timeline {}", self.start_lsn, self.timeline) })
    }
}

/// Role, timeline and time, as the server sees them at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Standing {
    pub(super) in_recovery: bool,
    pub(super) timeline: Timeline,
    pub(super) at: Timestamp,
}

impl From<Started> for Standing {
    fn from(started: Started) -> Self {
        Self { in_recovery: started.on_standby, timeline: started.timeline, at: started.at }
    }
}

impl Standing {
    fn describe(self) -> String {
        let role = if self.in_recovery { "a standby" } else { "a primary" };
        format!("was {role} on timeline {}", self.timeline)
    }

    fn must_equal(self, after: Self) -> Result<(), SessionError> {
        if (self.in_recovery, self.timeline) == (after.in_recovery, after.timeline) {
            return Ok(());
        }
        Err(SessionError::Promoted { before: self.describe(), after: after.describe() })
    }
}

/// A primary's timeline is in the names of the log it writes; a standby's is where it recovers to.
pub(super) fn standing(client: &mut Client, doing: &'static str) -> Result<Standing, SessionError> {
    let row = client.query_one(
        "SELECT r.in_recovery, CASE WHEN r.in_recovery \
         THEN (SELECT greatest(c.timeline_id, m.min_recovery_end_timeline)::text \
               FROM pg_catalog.pg_control_checkpoint() c, pg_catalog.pg_control_recovery() m) \
         ELSE substr(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 1, 8) END, \
         (extract(epoch FROM pg_catalog.clock_timestamp()) * 1000000)::int8 \
         FROM (SELECT pg_catalog.pg_is_in_recovery() AS in_recovery) r",
        &[],
    );
    let row = row.map_err(|error| failed(client, doing, &error))?;
    let in_recovery: bool = column(&row, 0)?;
    let text: String = column(&row, 1)?;
    let radix = if in_recovery { 10 } else { 16 };
    let timeline = u32::from_str_radix(&text, radix).map_err(|_| nonsense(doing, text))?;
    Ok(Standing { in_recovery, timeline: Timeline(timeline), at: timestamp(column(&row, 2)?)? })
}

fn check_version(client: &mut Client) -> Result<(), SessionError> {
    const DOING: &str = "asking for the server's version";
    let row = client.query_one(
        "SELECT current_setting('server_version_num')::int4, current_setting('server_version'), \
         current_setting('wal_level')",
        &[],
    );
    let row = row.map_err(|error| failed(client, DOING, &error))?;
    if u32::try_from(column::<i32>(&row, 0)?).unwrap_or_default() < OLDEST_VERSION {
        return Err(SessionError::TooOld(column(&row, 1)?));
    }
    if column::<String>(&row, 2)? == "minimal" { Err(SessionError::WalLevel) } else { Ok(()) }
}
