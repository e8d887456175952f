//! What a copy needs beside its files before a server recovers it.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, test_kill_process};

use super::control;
use super::lsn::{Lsn, Timeline};
use super::record::PostgresRecord;
use super::recovery_options::{RecoveryTarget, TargetAction, recovery_arguments, strip_recovery_settings};
use crate::engine::{EngineError, EngineResult, Laid, LayDown, Target};
use crate::steps::step;

/// Links of the tablespaces, and where they go.
pub(super) fn links(record: &PostgresRecord, moved: &[(PathBuf, PathBuf)]) -> EngineResult<Vec<(String, PathBuf)>> {
    for (old, _) in moved {
        if !record.tablespaces.iter().any(|tablespace| tablespace.location == *old) {
            let known: Vec<String> =
                record.tablespaces.iter().map(|tablespace| tablespace.location.display().to_string()).collect();
            return Err(EngineError::Refused(format!(
                "the backup has no tablespace at {}; it has {}",
                old.display(),
                if known.is_empty() { "none".to_owned() } else { known.join(", ") }
            )));
        }
    }
    Ok(record
        .tablespaces
        .iter()
        .map(|tablespace| (format!("pg_tblspc/{}", tablespace.oid), place_of(&tablespace.location, moved)))
        .collect())
}

fn place_of(location: &Path, moved: &[(PathBuf, PathBuf)]) -> PathBuf {
    moved.iter().find(|(old, _)| old == location).map_or_else(|| location.to_path_buf(), |(_, new)| new.clone())
}

/// A directory on which a server runs is never touched.
pub(super) fn check_not_running(data_directory: &Path) -> EngineResult<()> {
    let path = data_directory.join("postmaster.pid");
    let Ok(content) = fs::read_to_string(&path) else {
        return Ok(());
    };
    let pid = content.lines().next().and_then(|line| line.trim().parse().ok()).and_then(Pid::from_raw);
    let gone = pid.is_none_or(|pid| test_kill_process(pid) == Err(rustix::io::Errno::SRCH));
    if gone {
        return Ok(());
    }
    Err(EngineError::Refused(format!(
        "a server runs on {} (process {}, by its postmaster.pid): nothing was touched. Stop it first; if it is no server, \
         remove postmaster.pid",
        data_directory.display(),
        pid.map_or(0, Pid::as_raw_pid)
    )))
}

/// Another database is never written over.
pub(super) fn check_same_system(data_directory: &Path, system_id: &str) -> EngineResult<()> {
    // Without a control file that can be read it is no database, or one that is being restored into.
    match control::read(data_directory) {
        Ok(control) if control.system_identifier.to_string() != system_id => Err(EngineError::Refused(format!(
            "{} holds a database of system {}, and the backup is of system {system_id}: nothing was touched",
            data_directory.display(),
            control.system_identifier
        ))),
        _ => Ok(()),
    }
}

/// Writes the label, the tablespace map and the recovery signal, and takes out settings that a copy must not inherit.
pub(super) fn lay_down(copy: &LayDown<'_>) -> EngineResult<Laid> {
    let record = PostgresRecord::parse(copy.record)?;
    let root = copy.data_directory;
    write(root, "backup_label", &record.backup_label()?)?;
    let map = record.tablespace_map()?;
    if !map.is_empty() {
        write(root, "tablespace_map", &remapped(&map, copy.tablespaces))?;
    }
    write(root, "recovery.signal", b"")?;
    let auto = root.join("postgresql.auto.conf");
    if let Ok(content) = fs::read(&auto) {
        write(root, "postgresql.auto.conf", &strip_recovery_settings(&content))?;
    }
    let mut command = vec!["postgres".to_owned(), "-D".to_owned(), root.display().to_string()];
    for (name, value) in arguments(copy, TargetAction::Promote)? {
        command.extend(["-c".to_owned(), format!("{name}={value}")]);
    }
    let mut notes = Vec::new();
    if !root.join("postgresql.conf").exists() {
        notes.push(
            "the source keeps postgresql.conf outside of its data directory, so it is not in the backup: start the copy \
             with the server's own configuration (-c config_file=...)"
                .to_owned(),
        );
    }
    Ok(Laid { start_command: command, notes })
}

fn remapped(map: &[u8], moved: &[(PathBuf, PathBuf)]) -> Vec<u8> {
    let text = String::from_utf8_lossy(map);
    let line = |line: &str| match line.split_once(' ') {
        Some((oid, location)) => format!("{oid} {}\n", place_of(Path::new(location), moved).display()),
        None => format!("{line}\n"),
    };
    text.lines().map(line).collect::<String>().into_bytes()
}

fn write(root: &Path, name: &str, content: &[u8]) -> EngineResult<()> {
    let path = root.join(name);
    step("write a file for recovery");
    let failed = |error| EngineError::local("writing", &path, error);
    fs::write(&path, content).map_err(failed)?;
    let owner = fs::metadata(root).map_err(failed)?;
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&path, Some(owner.uid()), Some(owner.gid())).map_err(failed)?;
    }
    fs::File::open(&path).and_then(|file| file.sync_all()).map_err(failed)
}

/// Settings that make a server recover the copy.
pub(super) fn arguments(copy: &LayDown<'_>, action: TargetAction) -> EngineResult<Vec<(String, String)>> {
    let target = match copy.target {
        Target::Latest => RecoveryTarget::Latest,
        Target::Immediate => RecoveryTarget::Immediate,
        Target::Time(time) => RecoveryTarget::Time(*time),
        Target::Position(position) => RecoveryTarget::Lsn(lsn(position)?),
        Target::Name(name) => RecoveryTarget::Name(name.clone()),
    };
    let until = log_wanted(copy)?.map_or_else(String::new, |end| format!(" --until {end}"));
    let fetch = format!("{} wal-fetch{until} %f %p", copy.fetch_command);
    Ok(settings(copy, &target, &fetch, action))
}

fn settings(copy: &LayDown<'_>, target: &RecoveryTarget, fetch: &str, action: TargetAction) -> Vec<(String, String)> {
    let mut settings = recovery_arguments(target, fetch, Timeline(copy.timeline), action);
    // Recovery refuses tablespaces that are no links, unless it is told that they are meant.
    if has_tablespaces_in_place(copy.data_directory) {
        settings.push(("allow_in_place_tablespaces".to_owned(), "on".to_owned()));
    }
    settings
}

fn has_tablespaces_in_place(data_directory: &Path) -> bool {
    let entries = fs::read_dir(data_directory.join("pg_tblspc")).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_type()).any(|kind| kind.is_ok_and(|kind| kind.is_dir()))
}

/// Up to where log is given out, where that is not all. A server reads ahead of what it replays: it would ask for log
/// behind its target, and stop with an error where that is missing.
fn log_wanted(copy: &LayDown<'_>) -> EngineResult<Option<String>> {
    Ok(match copy.target {
        // To the end of its last segment: a server notices only at the next record that it is consistent.
        Target::Immediate => {
            let record = PostgresRecord::parse(copy.record)?;
            Some(record.segment(record.segments().1).end().to_string())
        }
        Target::Time(_) | Target::Position(_) | Target::Name(_) if copy.hole => Some(copy.log_end.to_owned()),
        _ => None,
    })
}

/// Settings that make a server recover the copy to the end of the log that was stored when it was chosen, and no further.
pub(super) fn arguments_to_end(copy: &LayDown<'_>, action: TargetAction) -> EngineResult<Vec<(String, String)>> {
    let end = log_wanted(copy)?.unwrap_or_else(|| copy.log_end.to_owned());
    let fetch = format!("{} wal-fetch --until {end} %f %p", copy.fetch_command);
    Ok(settings(copy, &RecoveryTarget::Latest, &fetch, action))
}

/// A position in the log, from its text.
pub(super) fn lsn(position: &str) -> EngineResult<Lsn> {
    position
        .parse()
        .map_err(|_| EngineError::Refused(format!("{position:?} is no log position; positions look like 0/3000060")))
}
