//! Retention: which backups stay. Values in, values out.
//!
//! Only verified backups count; ages are measured from the newest backup, not by any clock that may be off.

use std::fmt;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::manifest::BackupId;

/// What to keep. With neither, everything stays.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Policy {
    /// So many of the newest verified backups.
    pub keep: Option<u32>,
    /// All that are at most so much older than the newest.
    pub keep_within: Option<SignedDuration>,
}

/// A backup, as far as retention cares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// Its name.
    pub id: BackupId,
    /// When it was begun, by the store's clock.
    pub started: Timestamp,
    /// Whether every byte of it was checked and found right.
    pub verified: bool,
    /// Whether it was restored and found right.
    pub proven: bool,
    /// Whether somebody said that it stays.
    pub pinned: bool,
}

/// What becomes of a backup, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Decision {
    /// It is one of the newest verified ones.
    Counted,
    /// It is young enough.
    Young,
    /// It is newer than a backup that counts, and may yet be verified.
    Newer,
    /// There are not yet as many verified backups as are to be kept.
    TooFewVerified,
    /// It is the newest that is proven.
    LastProven,
    /// It is the newest that is verified.
    LastVerified,
    /// No policy was given.
    NoPolicy,
    /// It is pinned, and else would go; it keeps only the log that it cannot be restored without.
    Pinned,
    /// It goes.
    Remove,
}

impl Decision {
    /// Whether the backup stays.
    pub fn keeps(self) -> bool {
        self != Self::Remove
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Counted => "one of the newest verified",
            Self::Young => "young enough",
            Self::Newer => "newer than a kept one, not verified",
            Self::TooFewVerified => "too few verified backups to remove any",
            Self::LastProven => "the last proven",
            Self::LastVerified => "the last verified",
            Self::NoPolicy => "no retention was asked for",
            Self::Pinned => "pinned",
            Self::Remove => "past retention",
        })
    }
}

/// Decides about `backups`, in any order.
pub fn decide(backups: &[Candidate], policy: Policy) -> Vec<(BackupId, Decision)> {
    let newest = backups.iter().map(|backup| backup.started).max();
    let mut by_age: Vec<&Candidate> = backups.iter().collect();
    by_age.sort_by(|a, b| b.id.cmp(&a.id));
    let last_proven = by_age.iter().find(|backup| backup.proven).map(|backup| &backup.id);
    let last_verified = by_age.iter().find(|backup| backup.verified).map(|backup| &backup.id);
    let wanted = policy.keep.map_or(0, |keep| keep as usize);
    let oldest_counted = wanted
        .checked_sub(1)
        .and_then(|last| by_age.iter().filter(|backup| backup.verified).nth(last))
        .map(|backup| &backup.id);
    let young = |backup: &Candidate| match (policy.keep_within, newest) {
        (Some(within), Some(newest)) => newest.duration_since(backup.started) <= within,
        _ => false,
    };
    let decide = |backup: &Candidate| {
        if policy.keep.is_none() && policy.keep_within.is_none() {
            return Decision::NoPolicy;
        }
        match oldest_counted {
            Some(oldest) if backup.id >= *oldest && backup.verified => return Decision::Counted,
            Some(oldest) if backup.id >= *oldest => return Decision::Newer,
            None if wanted > 0 => return Decision::TooFewVerified,
            _ => {}
        }
        if young(backup) {
            Decision::Young
        } else if last_proven == Some(&backup.id) {
            Decision::LastProven
        } else if last_verified == Some(&backup.id) {
            Decision::LastVerified
        } else if last_verified.is_none_or(|last| backup.id > *last) {
            // What came after the last good one may yet be verified; with no good one, nothing is spared for another.
            Decision::Newer
        } else if backup.pinned {
            Decision::Pinned
        } else {
            Decision::Remove
        }
    };
    let mut decided: Vec<_> = by_age.iter().map(|backup| (backup.id.clone(), decide(backup))).collect();
    decided.reverse();
    decided
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    /// `v`erified, `p`roven (and verified), `-` neither; upper case is pinned. Oldest first, a day apart.
    fn backups(kinds: &str) -> Vec<Candidate> {
        kinds
            .char_indices()
            .map(|(day, kind)| {
                let started = Timestamp::UNIX_EPOCH + SignedDuration::from_hours(24 * (day.cast_signed() as i64 + 1));
                let id = format!("{}-{day:06x}", started.strftime("%Y%m%dT%H%M%SZ")).parse().unwrap();
                let (verified, proven) = (kind != '-' && kind != '=', kind.eq_ignore_ascii_case(&'p'));
                Candidate { id, started, verified, proven, pinned: kind.is_ascii_uppercase() || kind == '=' }
            })
            .collect()
    }

    fn kept(kinds: &str, policy: Policy) -> String {
        let backups = backups(kinds);
        let decided = decide(&backups, policy);
        kinds.chars().zip(decided).map(|(kind, (_, decision))| if decision.keeps() { kind } else { '.' }).collect()
    }

    #[rstest]
    // Cases D3 (a): a pin stays beside the two newest good ones, and does not count.
    #[case("Vvvvv", 2, "V..vv")]
    // D3 (b): with fewer good backups than are to be kept, nothing goes.
    #[case("-", 2, "-")]
    #[case("-v-", 2, "-v-")]
    // D3 (c): failed backups never count.
    #[case("vvv--", 2, ".vv--")]
    #[case("vv--vv", 2, "....vv")]
    // The last proven backup stays.
    #[case("vpvvv", 2, ".p.vv")]
    #[case("pvpvv", 1, "..p.v")]
    fn by_count(#[case] before: &str, #[case] keep: u32, #[case] after: &str) {
        assert_eq!(kept(before, Policy { keep: Some(keep), keep_within: None }), after);
    }

    #[rstest]
    #[case("vvvvv", 2, "..vvv")]
    // The newest backup sets the time, whatever a clock says; but the last good one stays, however old.
    #[case("v----", 1, "v----")]
    #[case("pvvvv", 0, "p...v")]
    fn by_age(#[case] before: &str, #[case] days: i64, #[case] after: &str) {
        let policy = Policy { keep: None, keep_within: Some(SignedDuration::from_hours(24 * days)) };
        assert_eq!(kept(before, policy), after);
    }

    #[test]
    fn without_a_policy_everything_stays() {
        assert_eq!(kept("v-pV", Policy::default()), "v-pV");
    }

    proptest! {
        #[test]
        fn the_last_good_ones_always_stay(kinds in "[vpVP=-]{0,12}", keep in proptest::option::of(0..5_u32), days in proptest::option::of(0..10_i64)) {
            let policy = Policy { keep, keep_within: days.map(|days| SignedDuration::from_hours(24 * days)) };
            let backups = backups(&kinds);
            let decided = decide(&backups, policy);
            prop_assert_eq!(decided.len(), backups.len());
            let stays = |wanted: &dyn Fn(&Candidate) -> bool| {
                backups.iter().rfind(|backup| wanted(backup)).is_none_or(|last| {
                    decided.iter().any(|(id, decision)| *id == last.id && decision.keeps())
                })
            };
            prop_assert!(stays(&|backup| backup.proven), "the last proven one");
            prop_assert!(stays(&|backup| backup.verified), "the last verified one");
            prop_assert!(stays(&|backup| backup.pinned), "the last pinned one");
            prop_assert!(stays(&|_| true), "the newest one");
            let verified = |keeps: bool| backups.iter().zip(&decided).filter(|(backup, (_, decision))| backup.verified && (decision.keeps() || !keeps)).count();
            prop_assert!(verified(true) >= verified(false).min(keep.unwrap_or(0) as usize), "as many as asked for");
            // A backup more never lets one go that would stay without it being removed for count alone: what goes is older than all that count.
            let removed_newest = decided.iter().rfind(|(_, decision)| !decision.keeps()).map(|(id, _)| id.clone());
            if let Some(removed) = removed_newest {
                prop_assert!(backups.iter().any(|backup| backup.verified && backup.id > removed), "something newer and good is there");
            }
        }
    }
}
