//! Where each object has its place: the only file that knows the names.

use super::store::Key;

/// Builds keys. Parts come from validated types, or are checked where they come from outside.
#[derive(Debug, Clone)]
pub struct Layout {
    system: Key,
}

/// A part of a key that came from outside and is none.
pub(super) fn key(parts: &[&str]) -> Key {
    parts.iter().fold(Key::root(), |key, part| {
        // Parts are digests, numbers and names checked before: what is no part becomes one that cannot exist.
        key.child(part).unwrap_or_else(|_| key.clone())
    })
}

impl Layout {
    /// Of the repository as a whole.
    pub fn repository() -> Key {
        key(&["holdfast.json"])
    }

    /// Of one system.
    pub fn of_system(system_id: &str) -> Self {
        Self { system: key(&[system_id]) }
    }

    fn below(&self, parts: &[&str]) -> Key {
        parts.iter().fold(self.system.clone(), |key, part| key.child(part).unwrap_or_else(|_| key.clone()))
    }

    /// All packs.
    pub fn packs(&self) -> Key {
        self.below(&["packs"])
    }

    /// A pack, by its SHA-256.
    pub fn pack(&self, digest: &[u8; 32]) -> Key {
        let name = hex::encode(digest);
        self.below(&["packs", &name[..2], &name])
    }

    /// All maps.
    pub fn maps(&self) -> Key {
        self.below(&["maps"])
    }

    /// A map, by its SHA-256.
    pub fn map(&self, digest: &[u8; 32]) -> Key {
        let name = hex::encode(digest);
        self.below(&["maps", &name[..2], &name])
    }

    /// All lineages.
    pub fn lineages(&self) -> Key {
        self.below(&["lineages"])
    }

    /// Who a lineage is.
    pub fn lineage(&self, lineage: &str) -> Key {
        self.below(&["lineages", lineage, "lineage.json"])
    }

    /// All backups of a lineage.
    pub fn backups(&self, lineage: &str) -> Key {
        self.below(&["lineages", lineage, "backups"])
    }

    /// A backup's manifest.
    pub fn manifest(&self, lineage: &str, backup: &str) -> Key {
        self.below(&["lineages", lineage, "backups", backup, "manifest.json"])
    }

    /// What verifications and drills of a backup saw.
    pub fn evidence(&self, lineage: &str, backup: &str) -> Key {
        self.below(&["lineages", lineage, "backups", backup, "evidence"])
    }

    /// The log of a lineage.
    pub fn log(&self, lineage: &str) -> Key {
        self.below(&["lineages", lineage, "log"])
    }

    /// The tails of log files that are still being written.
    pub fn tails(&self, lineage: &str) -> Key {
        self.below(&["lineages", lineage, "tails"])
    }

    /// What says that a backup is to be kept whatever retention says.
    pub fn pin(&self, lineage: &str, backup: &str) -> Key {
        self.below(&["lineages", lineage, "backups", backup, "pin.json"])
    }

    /// How far the log reaches, in time.
    pub fn position(&self, lineage: &str) -> Key {
        self.below(&["lineages", lineage, "position.json"])
    }

    /// All leases of a lineage.
    pub fn leases(&self, lineage: &str) -> Key {
        self.below(&["lineages", lineage, "leases"])
    }

    /// A lease of a lineage.
    pub fn lease(&self, lineage: &str, work: &str) -> Key {
        self.below(&["lineages", lineage, "leases", work])
    }

    /// All tombstones.
    pub fn tombstones(&self) -> Key {
        self.below(&["tombstones"])
    }
}
