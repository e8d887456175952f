//! The file that says that a directory is being restored into, and from what.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::repository::BackupId;
use crate::steps::step;

const NAME: &str = "holdfast-restore.json";

/// What is being restored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Marker {
    pub(super) backup_id: BackupId,
    pub(super) manifest_sha256: String,
}

pub(super) fn path(directory: &Path) -> PathBuf {
    directory.join(NAME)
}

/// The marker of an unfinished restore; one that cannot be read is of an unfinished restore too.
pub(super) fn read(directory: &Path) -> Option<Option<Marker>> {
    let bytes = std::fs::read(path(directory)).ok()?;
    Some(serde_json::from_slice(&bytes).ok())
}

pub(super) fn write(directory: &Path, marker: &Marker) -> std::io::Result<()> {
    step("mark the directory as being restored");
    let bytes = serde_json::to_vec(marker)?;
    super::place::write_synced(&path(directory), &bytes)
}

pub(super) fn is_marker(name: &std::ffi::OsStr) -> bool {
    name == NAME
}

pub(super) fn remove(directory: &Path) -> std::io::Result<()> {
    step("remove the mark of the restore");
    std::fs::remove_file(path(directory))
}
