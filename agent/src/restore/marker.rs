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

/// Whether there is the mark of an unfinished restore, whatever it says.
pub(super) fn exists(directory: &Path) -> bool {
    path(directory).exists()
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
