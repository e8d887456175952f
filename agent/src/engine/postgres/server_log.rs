//! What the log of a server of our own says when it ends: the server's words, and what they mean here.

use std::fmt;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;

use jiff::Timestamp;

use super::lsn::Lsn;

/// Enough for the lines before an end; a log that was verbose before is not read whole.
const TAIL: u64 = 256 * 1024;

/// Words of the server, and what to make of them.
const MEANINGS: [(&str, &str); 15] = [
    (
        "is not a child of this server's history",
        "The copy is not on the way to that timeline: choose an earlier backup or another timeline",
    ),
    ("recovery target timeline", "The history of that timeline is not in the archive: choose another timeline"),
    (
        "requested recovery stop point is before consistent recovery point",
        "The target lies before the end of this backup: restore an earlier backup, by its name (see `list`)",
    ),
    (
        "WAL ends before end of online backup",
        "The archive does not hold all the log that the backup needs: verify the backup",
    ),
    (
        "could not locate required checkpoint record",
        "The archive (restore_command) did not give the log with the backup's first checkpoint",
    ),
    ("could not find redo location", "The archive (restore_command) did not give the log from the backup's start"),
    ("from archive: command", "restore_command found damage or no room, or could not reach the store"),
    (
        "insufficient parameter settings",
        "The source ran with higher max_connections, max_worker_processes, max_wal_senders, max_prepared_transactions \
         or max_locks_per_transaction: raise them in the copy's postgresql.conf",
    ),
    (
        "could not access file",
        "A library of shared_preload_libraries is not installed here: install the extension's package, or start with \
         -c shared_preload_libraries='' if nothing in recovery needs it (custom log records and index methods do)",
    ),
    ("lock file \"postmaster.pid\" already exists", "Another server runs on this data directory"),
    ("database files are incompatible with server", "The server's programs are of another version: see --pg-bin"),
    ("has invalid permissions", "The data directory must have mode 0700 or 0750"),
    ("has wrong ownership", "The data directory must belong to the user that runs the server"),
    ("could not map anonymous shared memory", "shared_buffers of the copy does not fit here: lower it"),
    ("configuration file", "The copy's configuration cannot be used here"),
];

/// The last point that recovery reached, from the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LastReachable {
    /// Where the log ended.
    pub lsn: Option<Lsn>,
    /// When the last transaction that was recovered was committed.
    pub transaction: Option<Timestamp>,
}

impl fmt::Display for LastReachable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.lsn {
            Some(lsn) => write!(f, "the archived log ends at {lsn}")?,
            None => f.write_str("the archived log ends earlier")?,
        }
        match &self.transaction {
            Some(time) => write!(f, ", its last transaction was committed at {time}"),
            None => f.write_str(", with no transaction committed after the backup"),
        }
    }
}

/// What a server's log says about its end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ending {
    /// The lines of level FATAL and PANIC, without their prefix, and their HINT and DETAIL.
    pub lines: Vec<String>,
    /// What they mean here; empty if not known.
    pub meaning: String,
    /// Set if the target of recovery was not reached.
    pub target_missed: Option<LastReachable>,
}

/// Reads the end of a log that was begun at `from`.
pub(super) fn ending(log: &Path, from: u64) -> Ending {
    understand(&tail(log, from).unwrap_or_default())
}

/// Whether recovery stands still because the source had more connections or the like than this server.
pub(super) fn lacks_settings(log: &Path, from: u64) -> bool {
    tail(log, from).is_ok_and(|text| text.contains("hot standby is not possible because of insufficient parameter"))
}

fn tail(log: &Path, from: u64) -> std::io::Result<String> {
    let mut file = std::fs::File::open(log)?;
    let size = file.metadata()?.len();
    file.seek(SeekFrom::Start(from.max(size.saturating_sub(TAIL))))?;
    let mut bytes = Vec::new();
    file.take(TAIL).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn understand(text: &str) -> Ending {
    let mut ending = Ending::default();
    let mut last = LastReachable::default();
    let mut within = false;
    let mut fetching = None;
    for line in text.lines() {
        let message = message(line);
        if let Some(rest) = message.strip_prefix("LOG:  redo done at ") {
            last.lsn = rest.split_whitespace().next().and_then(|lsn| lsn.parse().ok());
        } else if let Some(rest) = message.strip_prefix("LOG:  last completed transaction was at log time ") {
            last.transaction = time(rest);
        }
        // What wal-fetch itself said last.
        if line.starts_with("error: ") {
            fetching = Some(line);
        }
        let fatal = message.starts_with("FATAL:") || message.starts_with("PANIC:");
        let about = message.starts_with("DETAIL:") || message.starts_with("HINT:");
        // Sessions of people (and our own, while the server starts) are refused with FATAL too.
        let of_a_session = message.contains("the database system is");
        if (fatal && !of_a_session) || (about && within) {
            ending.lines.push(message.to_owned());
        }
        within = (fatal && !of_a_session) || (within && about);
    }
    if text.contains("recovery ended before configured recovery target was reached") {
        ending.target_missed = Some(last);
    }
    let known = MEANINGS.iter().find(|(words, _)| ending.lines.iter().any(|line| line.contains(words)));
    if let Some(said) = fetching.filter(|_| known.is_some_and(|(_, meaning)| meaning.contains("restore_command"))) {
        ending.lines.push(format!("wal-fetch said: {said}"));
    }
    ending.meaning = known.map(|(_, meaning)| (*meaning).to_owned()).unwrap_or_default();
    ending
}

/// A time as the server writes it in UTC, such as `2026-11-29 15:20:59.7+00`.
fn time(text: &str) -> Option<Timestamp> {
    let (date, clock) = text.trim().strip_suffix("+00")?.split_once(' ')?;
    format!("{date}T{clock}Z").parse().ok()
}

/// The line without its prefix, `%m [%p] `.
fn message(line: &str) -> &str {
    let levels = ["LOG:", "FATAL:", "PANIC:", "DETAIL:", "HINT:"];
    let begin = levels.iter().filter_map(|level| line.find(level)).min();
    begin.and_then(|at| line.get(at..)).unwrap_or(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    // Of a PostgreSQL 15 that was given a target time past the archive's end.
    const MISSED: &str = "\
2026-11-29 15:21:40.123 UTC [812] LOG:  starting point-in-time recovery to 2027-01-01 00:00:00+00
2026-11-29 15:21:40.200 UTC [815] FATAL:  the database system is starting up
2026-11-29 15:21:41.300 UTC [812] LOG:  redo done at 0/50000D8 system usage: CPU: user: 0.00 s, system: 0.00 s
2026-11-29 15:21:41.300 UTC [812] LOG:  last completed transaction was at log time 2026-11-29 15:20:59.7+00
2026-11-29 15:21:41.300 UTC [812] FATAL:  recovery ended before configured recovery target was reached
2026-11-29 15:21:41.301 UTC [810] LOG:  startup process (PID 812) exited with exit code 1
";

    #[test]
    fn a_target_past_the_archive_is_told_with_the_last_reachable_point() {
        let ending = understand(MISSED);
        assert_eq!(ending.lines, ["FATAL:  recovery ended before configured recovery target was reached"]);
        assert_eq!(
            ending.target_missed.unwrap().to_string(),
            "the archived log ends at 0/50000D8, its last transaction was committed at 2026-11-29T15:20:59.7Z"
        );
    }

    #[test]
    fn details_and_hints_belong_to_their_error() {
        let text = "x [1] FATAL:  requested timeline 3 is not a child of this server's history\n\
                    x [1] DETAIL:  Latest checkpoint is at 0/2000060 on timeline 1\nx [1] LOG:  other\n\
                    x [1] HINT:  of nothing\n";
        let ending = understand(text);
        assert_eq!(ending.lines.len(), 2);
        assert_eq!(ending.lines[1], "DETAIL:  Latest checkpoint is at 0/2000060 on timeline 1");
        assert!(ending.meaning.starts_with("The copy is not on the way to that timeline"));
        assert_eq!(ending.target_missed, None);
    }

    #[test]
    fn what_the_fetching_command_said_is_told() {
        let text =
            "error: no space left\nx [1] FATAL:  could not restore file \"0\" from archive: command not executable\n";
        let ending = understand(text);
        assert_eq!(ending.lines[1..], ["wal-fetch said: error: no space left"]);
        assert!(ending.meaning.starts_with("restore_command found damage or no room"));
    }

    #[test]
    fn a_missing_library_is_explained() {
        let ending = understand("t [1] FATAL:  could not access file \"pg_cron\": No such file or directory\n");
        assert!(ending.meaning.starts_with("A library of shared_preload_libraries is not installed here"));
    }

    #[test]
    fn only_what_was_written_since_the_start_counts() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), MISSED).unwrap();
        assert_eq!(ending(file.path(), MISSED.len() as u64), Ending::default());
        assert!(ending(file.path(), 0).target_missed.is_some());
    }
}
