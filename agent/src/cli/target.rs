//! Where recovery is to stop, and what a restore and a drill have in common.

use std::path::PathBuf;

use clap::Args;
use jiff::Timestamp;

use super::options::Which;
use super::values;
use crate::engine::Target;
use crate::engine::postgres::lsn::Timeline;

/// A backup and a point to recover to.
#[derive(Debug, Args)]
pub(super) struct Recovery {
    /// The name of a backup, or latest; chosen by the target unless it is named
    #[arg(value_name = "BACKUP", default_value = "latest")]
    backup: Which,

    /// Recovers all that was committed up to this time, which must say its zone
    #[arg(long, value_name = "TIME", value_parser = values::moment, help_heading = "Target", group = "target")]
    target_time: Option<Timestamp>,

    /// Recovers up to this position in the log
    #[arg(long, value_name = "LSN", value_parser = values::position, help_heading = "Target", group = "target")]
    target_lsn: Option<String>,

    /// Recovers up to this restore point, made by pg_create_restore_point
    #[arg(long, value_name = "NAME", value_parser = values::restore_point, help_heading = "Target", group = "target")]
    target_name: Option<String>,

    /// Recovers no further than the backup needs to be consistent
    #[arg(long, help_heading = "Target", group = "target")]
    target_immediate: bool,

    /// Follows this timeline instead of the newest
    #[arg(long, value_name = "N", help_heading = "Target")]
    target_timeline: Option<Timeline>,

    /// Where postgres and its tools are, of the backup's major version; looked for in the usual places if left out
    #[arg(long, value_name = "DIR", env = "HOLDFAST_PG_BIN")]
    pg_bin: Option<PathBuf>,
}

/// The same, decided.
#[derive(Debug)]
pub(super) struct Decided {
    pub(super) backup: Option<crate::repository::BackupId>,
    pub(super) target: Target,
    pub(super) timeline: Option<u32>,
    pub(super) bin_directory: Option<PathBuf>,
}

impl Recovery {
    pub(super) fn decided(self) -> Decided {
        let target = match (self.target_time, self.target_lsn, self.target_name, self.target_immediate) {
            (Some(time), ..) => Target::Time(time),
            (_, Some(position), ..) => Target::Position(position),
            (_, _, Some(name), _) => Target::Name(name),
            (.., true) => Target::Immediate,
            _ => Target::Latest,
        };
        Decided {
            backup: self.backup.name(),
            target,
            timeline: self.target_timeline.map(|timeline| timeline.0),
            bin_directory: self.pg_bin,
        }
    }
}

/// The target, for people.
pub(super) fn told(target: &Target) -> String {
    match target {
        Target::Latest => "the end of the log".to_owned(),
        Target::Immediate => "where the backup is consistent".to_owned(),
        Target::Time(time) => time.to_string(),
        Target::Position(position) => position.clone(),
        Target::Name(name) => format!("the restore point {name}"),
    }
}

#[cfg(test)]
mod tests {
    use clap::{Parser, error::ErrorKind};
    use rstest::rstest;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        recovery: Recovery,
    }

    #[rstest]
    #[case(&[], "the end of the log")]
    #[case(&["--target-time", "2026-01-31T12:00:00+09:00"], "2026-01-31T03:00:00Z")]
    #[case(&["--target-lsn", "0/3000028"], "0/3000028")]
    #[case(&["--target-name", "before-release"], "the restore point before-release")]
    #[case(&["--target-immediate"], "where the backup is consistent")]
    fn a_target_is_one_of_these(#[case] words: &[&str], #[case] target: &str) {
        let line = Line::try_parse_from(["x"].iter().chain(words)).unwrap();
        assert_eq!(told(&line.recovery.decided().target), target);
    }

    #[test]
    fn there_is_one_target_at_most() {
        let error = Line::try_parse_from(["x", "--target-immediate", "--target-lsn", "0/3000028"]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ArgumentConflict);
    }

    #[test]
    fn a_backup_is_named_or_the_latest() {
        let line = Line::try_parse_from(["x", "20260131T235959Z-0a1b2c", "--target-timeline", "3"]).unwrap();
        let decided = line.recovery.decided();
        assert_eq!(decided.backup.unwrap().as_str(), "20260131T235959Z-0a1b2c");
        assert_eq!(decided.timeline, Some(3));
        assert_eq!(Line::try_parse_from(["x", "latest"]).unwrap().recovery.decided().backup, None);
        Line::try_parse_from(["x", "yesterday"]).unwrap_err();
    }
}
