//! Settings with which a server recovers a copy (PostgreSQL documentation, "Archive Recovery" and "Recovery Target").
//!
//! They are arguments of the server, never lines in a file that a later copy would inherit: one that inherits a target
//! promotes itself.

use jiff::Timestamp;

use super::lsn::{Lsn, Timeline};

/// How far recovery goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecoveryTarget {
    /// To the end of the archived log.
    Latest,
    /// To where the copy is consistent: the end of the backup.
    Immediate,
    /// Everything committed at or before a time.
    Time(Timestamp),
    /// Up to a position, with the record that ends there.
    Lsn(Lsn),
    /// To a point named with `pg_create_restore_point`.
    Name(String),
}

/// What the server does when it has reached the target. Without a target it always promotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetAction {
    /// Wait, open for reading.
    Pause,
    /// Become a primary on a new timeline.
    Promote,
    /// Stop.
    ShutDown,
}

impl TargetAction {
    fn as_str(self) -> &'static str {
        match self {
            Self::Pause => "pause",
            Self::Promote => "promote",
            Self::ShutDown => "shutdown",
        }
    }
}

/// All that can hold a target. Every one but the wanted is given as empty, since two targets are an error to the
/// server and the copy's own configuration may hold one.
const TARGETS: [&str; 5] =
    ["recovery_target", "recovery_target_time", "recovery_target_xid", "recovery_target_lsn", "recovery_target_name"];

/// Settings by name and value, to be given as `-c name=value` in this order, beside a `recovery.signal`.
///
/// `timeline` is the one to follow; it is always named, as the newest is not always the right one.
pub fn recovery_arguments(
    target: &RecoveryTarget,
    restore_command: &str,
    timeline: Timeline,
    action: TargetAction,
) -> Vec<(String, String)> {
    let wanted = target_setting(target);
    let wanted_name = wanted.as_ref().map(|(name, _)| *name);
    // The empty ones come first: the server takes an empty target given after a real one for a second target.
    let mut settings: Vec<(&str, String)> =
        TARGETS.iter().filter(|name| Some(**name) != wanted_name).map(|name| (*name, String::new())).collect();
    settings.extend(wanted);
    settings.extend([
        ("recovery_target_inclusive", "on".into()),
        ("recovery_target_timeline", timeline.to_string()),
        ("recovery_target_action", action.as_str().into()),
        ("recovery_min_apply_delay", "0".into()),
        ("recovery_end_command", String::new()),
        ("archive_cleanup_command", String::new()),
        ("primary_conninfo", String::new()),
        ("primary_slot_name", String::new()),
        ("restore_command", restore_command.to_owned()),
    ]);
    settings.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn target_setting(target: &RecoveryTarget) -> Option<(&'static str, String)> {
    match target {
        RecoveryTarget::Latest => None,
        RecoveryTarget::Immediate => Some(("recovery_target", "immediate".into())),
        RecoveryTarget::Time(time) => Some(("recovery_target_time", postgres_time(*time))),
        RecoveryTarget::Lsn(lsn) => Some(("recovery_target_lsn", lsn.to_string())),
        RecoveryTarget::Name(name) => Some(("recovery_target_name", name.clone())),
    }
}

/// With its zone, and to the microsecond, which is all that PostgreSQL keeps.
pub fn postgres_time(time: Timestamp) -> String {
    time.strftime("%Y-%m-%d %H:%M:%S.%6f+00").to_string()
}

/// Settings that belong to the recovery or the role of the server that wrote the file, not to a copy of it.
const INHERITED: [&str; 10] = [
    "restore_command",
    "primary_conninfo",
    "primary_slot_name",
    "archive_cleanup_command",
    "recovery_end_command",
    "recovery_min_apply_delay",
    "promote_trigger_file",
    "trigger_file",
    "standby_mode",
    "sync_replication_slots",
];

/// The content of a `postgresql.auto.conf` without what a copy must not inherit; every other byte stays as it was.
pub fn strip_recovery_settings(content: &[u8]) -> Vec<u8> {
    content.split_inclusive(|&byte| byte == b'\n').filter(|line| !is_inherited(line)).flatten().copied().collect()
}

fn is_inherited(line: &[u8]) -> bool {
    let line = line.trim_ascii_start();
    let end = line.iter().position(|&b| b != b'_' && b != b'.' && !b.is_ascii_alphanumeric()).unwrap_or(line.len());
    // Names of settings are the same in upper and lower case.
    let name = String::from_utf8_lossy(line.get(..end).unwrap_or_default()).to_ascii_lowercase();
    name.starts_with("recovery_target") || INHERITED.contains(&name.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value<'a>(settings: &'a [(String, String)], name: &str) -> Vec<&'a str> {
        settings.iter().filter(|(n, _)| n == name).map(|(_, value)| value.as_str()).collect()
    }

    fn arguments(target: &RecoveryTarget) -> Vec<(String, String)> {
        recovery_arguments(target, "fetch %f %p", Timeline(3), TargetAction::Pause)
    }

    #[test]
    fn a_time_is_given_with_zone_and_microseconds() {
        let time = "2026-11-29T16:04:05.123456+01:00".parse().unwrap();
        let settings = arguments(&RecoveryTarget::Time(time));
        assert_eq!(value(&settings, "recovery_target_time"), ["2026-11-29 15:04:05.123456+00"]);
        assert_eq!(value(&settings, "recovery_target_timeline"), ["3"]);
        assert_eq!(value(&settings, "recovery_target_action"), ["pause"]);
        assert_eq!(value(&settings, "restore_command"), ["fetch %f %p"]);
    }

    #[rstest::rstest]
    #[case(RecoveryTarget::Immediate, "recovery_target", "immediate")]
    #[case(RecoveryTarget::Lsn(Lsn(0x16_B374_D848)), "recovery_target_lsn", "16/B374D848")]
    #[case(RecoveryTarget::Name("before upgrade".into()), "recovery_target_name", "before upgrade")]
    fn exactly_one_target_is_set_and_it_comes_last(
        #[case] target: RecoveryTarget,
        #[case] name: &str,
        #[case] expected: &str,
    ) {
        let settings = arguments(&target);
        let targets: Vec<_> = settings.iter().filter(|(n, _)| TARGETS.contains(&n.as_str())).collect();
        assert_eq!(targets.len(), TARGETS.len());
        assert_eq!(targets.last(), Some(&&(name.to_owned(), expected.to_owned())));
        assert!(targets.iter().rev().skip(1).all(|(_, value)| value.is_empty()), "{targets:?}");
    }

    #[test]
    fn without_a_target_all_are_empty() {
        let settings = arguments(&RecoveryTarget::Latest);
        assert!(TARGETS.iter().all(|name| value(&settings, name) == [""]), "{settings:?}");
    }

    #[test]
    fn a_copy_does_not_inherit_a_target_or_a_primary() {
        let content = b"# Do not edit this file manually!\nwork_mem = '64MB'\nrestore_command = 'cp a b'\n\
            Recovery_Target_Time = '2026-01-01'\n  primary_conninfo='host=old password=x'\n#restore_command = 'x'\n\
            shared_buffers = '1GB'\nrecovery_target_timeline 'latest'";
        let expected = b"# Do not edit this file manually!\nwork_mem = '64MB'\n#restore_command = 'x'\n\
            shared_buffers = '1GB'\n";
        assert_eq!(strip_recovery_settings(content), expected);
        assert_eq!(strip_recovery_settings(b""), b"");
        assert_eq!(strip_recovery_settings(b"name = '\xFF'\r\n"), b"name = '\xFF'\r\n");
    }
}
