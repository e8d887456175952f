//! Manifests: the one object that makes a backup exist.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::document::Document;
use super::map::is_safe_path;
use crate::probe::ProbeAnswer;
use crate::snapshot::{BadPage, Directory};

/// The name of a backup: the time it was begun, by the store's clock. Sorts by age, also within a second.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct BackupId(String);

impl BackupId {
    /// A new name for a backup begun at `time`.
    pub fn new(time: Timestamp) -> Self {
        // In 2^-24 of a second. Two of one lineage cannot begin at one instant: they take the lease one after the other.
        let fraction = (u64::from(time.subsec_nanosecond().unsigned_abs()) << 24) / 1_000_000_000;
        Self(format!("{}-{fraction:06x}", time.strftime("%Y%m%dT%H%M%SZ")))
    }

    /// A new name for a backup begun at `time`, behind `newest` in the order of names: also where both are begun in
    /// one second, or the clock went back.
    pub fn after(newest: Option<&Self>, time: Timestamp) -> Self {
        let named = Self::new(time);
        let Some(Self(newest)) = newest.filter(|newest| **newest >= named) else {
            return named;
        };
        // What is behind the last name of a second belongs to no second that a clock shows; the order is what counts.
        let number = u32::from_str_radix(&newest[17..], 16).unwrap_or_default();
        let number = (number + 1 + u32::from(super::top::random_bytes()[0])).min(0xff_ffff);
        Self(format!("{}-{number:06x}", &newest[..16]))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for BackupId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let shape = |at: usize, byte: u8| match at {
            8 => byte == b'T',
            15 => byte == b'Z',
            16 => byte == b'-',
            17.. => byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte),
            _ => byte.is_ascii_digit(),
        };
        if text.len() == 23 && text.bytes().enumerate().all(|(at, byte)| shape(at, byte)) {
            Ok(Self(text.to_owned()))
        } else {
            Err(format!("{text:?} is not the name of a backup; names look like 20260131T235959Z-0a1b2c, see `list`"))
        }
    }
}

impl TryFrom<String> for BackupId {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<BackupId> for String {
    fn from(id: BackupId) -> Self {
        id.0
    }
}

impl fmt::Display for BackupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// A complete, restorable backup: names and digests of all it needs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// The repository it is in.
    pub repository_id: String,
    /// The system it is of.
    pub system_id: String,
    /// The lineage it is in.
    pub lineage: String,
    /// Its own name.
    pub backup_id: BackupId,
    /// When it was begun, by the store's clock.
    pub started: Timestamp,
    /// When all but the manifest was stored, by the store's clock.
    pub completed: Timestamp,
    /// How far the agent's clock was ahead of the store's, in milliseconds.
    pub clock_skew_ms: i64,
    /// The version of the agent that made it.
    pub agent_version: String,
    /// `postgresql` or `mysql`.
    pub engine: String,
    /// The version of the server, as it says.
    pub engine_version: String,
    /// Directories to make, parents first.
    pub directories: Vec<Directory>,
    /// The maps, in the order of the files they cover.
    pub maps: Vec<MapRow>,
    /// How much it is.
    pub sizes: Sizes,
    /// Pages whose own checksum was wrong in the source. A backup that has any is never Verified.
    pub bad_pages: Vec<BadPage>,
    /// What only the engine understands: positions, labels, settings, inventory.
    pub engine_record: serde_json::Value,
    /// What the source answered to the probes while the backup was made.
    pub probes: Vec<ProbeAnswer>,
}

impl Document for Manifest {
    const KIND: &'static str = "manifest";
    const LIMIT: u64 = 64 << 20;
}

/// A map as the manifest names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapRow {
    /// SHA-256: its name.
    #[serde(with = "hex::serde")]
    pub sha256: [u8; 32],
    /// Bytes.
    pub size: u64,
    /// The complete map that this one patches.
    pub base: Option<BaseRow>,
    /// The first file it covers, and the first page of that.
    pub first: String,
    /// See `first`.
    pub first_page: u64,
    /// How many parts of files it covers.
    pub files: u64,
    /// How many pages.
    pub pages: u64,
    /// The digest of its list of files, with their stamps.
    #[serde(with = "hex::serde")]
    pub files_digest: [u8; 16],
    /// When the oldest reading of what it covers began, by the agent's clock.
    pub read_at: Timestamp,
    /// Whether this backup took it over from an earlier one without reading the files.
    pub reused: bool,
}

/// The complete map that a patch needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BaseRow {
    /// SHA-256: its name.
    #[serde(with = "hex::serde")]
    pub sha256: [u8; 32],
    /// Bytes.
    pub size: u64,
}

/// How much a backup is, in bytes unless said otherwise.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sizes {
    /// Files (number).
    pub files: u64,
    /// The database: the sum of its files.
    pub database_bytes: u64,
    /// Bytes of the files that were read for this backup.
    pub read_bytes: u64,
    /// Bytes of files not read, since they had not changed.
    pub skipped_bytes: u64,
    /// Bytes of the pages that no earlier backup had stored.
    pub new_bytes: u64,
    /// What this backup added to the store, log not counted.
    pub stored_bytes: u64,
}

impl Manifest {
    /// What is wrong with the names and sizes it states, if anything.
    pub(super) fn fault(&self) -> Option<String> {
        let path = self.directories.iter().map(|directory| &directory.path).find(|path| !is_safe_path(path));
        if let Some(path) = path {
            return Some(format!("it names the directory {path:?}, which is not below the data directory"));
        }
        let pages: u64 = self.maps.iter().map(|map| map.pages).fold(0, u64::saturating_add);
        let files: u64 = self.maps.iter().map(|map| map.files).fold(0, u64::saturating_add);
        let bytes = self.sizes.database_bytes;
        let most = pages.saturating_mul(super::pack::PAGE_SIZE as u64);
        if bytes > most || most - bytes > files.saturating_mul(super::pack::PAGE_SIZE as u64) {
            return Some(format!("it claims {bytes} bytes in {pages} pages of {files} files"));
        }
        self.maps
            .iter()
            .find(|map| map.size > super::map::MAP_LIMIT)
            .map(|map| format!("it claims a map of {} bytes", map.size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backup_is_named_behind_the_newest_whatever_the_clock_says() {
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let name = |text: &str| text.parse::<BackupId>().unwrap();
        let newest = name("20260131T235959Z-ffff00");
        for time in ["2026-01-31T23:59:59.9Z", "2026-01-30T00:00:00Z"] {
            let id = BackupId::after(Some(&newest), at(time));
            assert!(id > newest && id.as_str().starts_with("20260131T235959Z-ffff"), "{id}");
        }
        let later = BackupId::after(Some(&newest), at("2026-02-01T00:00:00Z"));
        assert!(later.as_str().starts_with("20260201T000000Z-"), "{later}");
        assert!(BackupId::after(None, at("2026-01-30T00:00:00Z")).as_str().starts_with("20260130T000000Z-"));
    }

    #[test]
    fn names_of_backups_sort_by_age_also_within_a_second() {
        let times = [
            "2026-01-31T23:59:58.999Z",
            "2026-01-31T23:59:59Z",
            "2026-01-31T23:59:59.004Z",
            "2026-01-31T23:59:59.999999999Z",
        ];
        let names: Vec<String> = times.map(|time| BackupId::new(time.parse().unwrap()).to_string()).to_vec();
        assert_eq!(
            names,
            [
                "20260131T235958Z-ffbe76",
                "20260131T235959Z-000000",
                "20260131T235959Z-010624",
                "20260131T235959Z-ffffff"
            ]
        );
    }
}
