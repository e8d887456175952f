//! The directory that a backup is restored into: whether it may be used, and what makes it a database at the end.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use super::marker::{self, Marker};
use super::{Chosen, RestoreRequest};
use crate::steps::step;

/// Why a directory cannot be restored into.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// It holds something.
    #[error("{} is not empty (it holds {found:?}): nothing was touched. Name an empty directory; or, to rewrite what \
             differs in an old copy of this database, add --delta", directory.display())]
    NotEmpty {
        /// The directory.
        directory: PathBuf,
        /// One of the things in it.
        found: String,
    },
    /// It holds something that is no copy of a database.
    #[error("{} holds {found:?} but no copy of a database: --delta was refused and nothing was touched", directory.display())]
    NoCopy {
        /// The directory.
        directory: PathBuf,
        /// One of the things in it.
        found: String,
    },
    /// It is too small.
    #[error("{} has {available} bytes free, and the backup needs {needed}: nothing was written. Free some, or restore \
             to a larger volume", directory.display())]
    TooSmall {
        /// The directory.
        directory: PathBuf,
        /// Bytes free.
        available: u64,
        /// Bytes needed.
        needed: u64,
    },
    /// A file could not be written.
    #[error("{action} {}: {source}{}", path.display(), advice(source))]
    Io {
        /// What was being done.
        action: &'static str,
        /// To what.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
}

fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            ": free some space or enlarge the volume, and run the same command again; it goes on where it was"
        }
        _ => "",
    }
}

impl PlaceError {
    pub(super) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Io { action, path, source }
    }
}

/// A directory that is ready to be restored into.
#[derive(Debug)]
pub(super) struct Prepared {
    /// Whether there may be files in it already.
    pub(super) reuse: bool,
    /// Whom files belong to, where that is not whoever runs this.
    pub(super) owner: Option<(u32, u32)>,
}

/// Checks the directory, marks it, and makes all directories and links.
pub(super) fn prepare(
    request: &RestoreRequest,
    chosen: &Chosen,
    links: &[(String, PathBuf)],
    last_file: &str,
) -> Result<Prepared, PlaceError> {
    let directory = &request.data_directory;
    let resumed = marker::exists(directory);
    let reuse = resumed || request.delta;
    if !directory.exists() {
        make_directory(directory)?;
    } else if !resumed {
        check_content(directory, request.delta, last_file)?;
    }
    for (_, target) in links {
        if !target.exists() {
            make_directory(target)?;
        } else if !reuse {
            check_content(target, false, last_file)?;
        }
    }
    check_room(directory, chosen, reuse)?;
    let owner = owner(directory)?;
    let mark = Marker { backup_id: chosen.id.clone(), manifest_sha256: chosen.sha256.clone() };
    marker::write(directory, &mark).map_err(PlaceError::io("marking", directory))?;
    // From here on no server can be started on it.
    let control = directory.join(last_file);
    if control.exists() {
        step("remove the control file");
        fs::remove_file(&control).map_err(PlaceError::io("removing", &control))?;
        sync_parent(&control)?;
    }
    make_tree(directory, chosen, links, owner)?;
    Ok(Prepared { reuse, owner })
}

fn make_directory(directory: &Path) -> Result<(), PlaceError> {
    step("make a directory");
    DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(PlaceError::io("making", directory))
}

fn check_content(directory: &Path, delta: bool, last_file: &str) -> Result<(), PlaceError> {
    let mut entries = fs::read_dir(directory).map_err(PlaceError::io("reading", directory))?;
    let Some(entry) = entries.next() else {
        return Ok(());
    };
    let found = entry.map_err(PlaceError::io("reading", directory))?.file_name().to_string_lossy().into_owned();
    if !delta {
        return Err(PlaceError::NotEmpty { directory: directory.to_path_buf(), found });
    }
    if directory.join(last_file).exists() || directory.join("PG_VERSION").exists() {
        return Ok(());
    }
    Err(PlaceError::NoCopy { directory: directory.to_path_buf(), found })
}

fn check_room(directory: &Path, chosen: &Chosen, reuse: bool) -> Result<(), PlaceError> {
    let stat = rustix::fs::statvfs(directory).map_err(|error| PlaceError::io("looking at", directory)(error.into()))?;
    let available = stat.f_bavail.saturating_mul(stat.f_frsize);
    let needed = chosen.manifest.sizes.database_bytes;
    // What is there already may be reused, and tablespaces may be elsewhere; then only writing tells.
    let certain =
        !reuse && !chosen.manifest.directories.iter().any(|directory| directory.path.starts_with("pg_tblspc/"));
    if certain && available < needed {
        return Err(PlaceError::TooSmall { directory: directory.to_path_buf(), available, needed });
    }
    Ok(())
}

/// As root, files are given to whoever the directory belongs to: a server does not run as root.
fn owner(directory: &Path) -> Result<Option<(u32, u32)>, PlaceError> {
    let owner = fs::metadata(directory).map_err(PlaceError::io("looking at", directory))?;
    let me = rustix::process::geteuid().as_raw();
    Ok((me == 0 && owner.uid() != 0).then(|| (owner.uid(), owner.gid())))
}

fn make_tree(
    root: &Path,
    chosen: &Chosen,
    links: &[(String, PathBuf)],
    owner: Option<(u32, u32)>,
) -> Result<(), PlaceError> {
    let give = |path: &Path| match owner {
        Some((uid, gid)) => {
            std::os::unix::fs::lchown(path, Some(uid), Some(gid)).map_err(PlaceError::io("giving away", path))
        }
        None => Ok(()),
    };
    for directory in &chosen.manifest.directories {
        for (name, target) in links.iter().filter(|(name, _)| directory.path.starts_with(&format!("{name}/"))) {
            let link = root.join(name);
            if fs::read_link(&link).ok().as_ref() != Some(target) {
                step("link a tablespace");
                // Whatever is there is not the link that is wanted.
                let _ = fs::remove_file(&link);
                std::os::unix::fs::symlink(target, &link).map_err(PlaceError::io("linking", &link))?;
                give(&link)?;
                give(target)?;
            }
        }
        let path = root.join(&directory.path);
        if links.iter().any(|(name, _)| *name == directory.path) {
            continue;
        }
        if !path.is_dir() {
            make_directory(&path)?;
        }
        fs::set_permissions(&path, Permissions::from_mode(directory.mode & 0o7777))
            .map_err(PlaceError::io("setting the mode of", &path))?;
        give(&path)?;
    }
    Ok(())
}

/// Gives the control file its name, which makes the directory a database, and removes the mark.
///
/// # Errors
/// Of the directory.
pub(super) fn finish(root: &Path, last_file: &str) -> Result<(), PlaceError> {
    let control = root.join(last_file);
    let part = unfinished(&control);
    sync_parent(&control)?;
    sync_directory(root)?;
    step("rename the control file into its place");
    fs::rename(&part, &control).map_err(PlaceError::io("renaming", &part))?;
    sync_parent(&control)?;
    marker::remove(root).map_err(PlaceError::io("removing the mark in", root))?;
    sync_directory(root)
}

/// The name of the last file until everything else is there.
pub(super) fn unfinished(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".holdfast-part");
    path.with_file_name(name)
}

fn sync_parent(path: &Path) -> Result<(), PlaceError> {
    path.parent().map_or(Ok(()), sync_directory)
}

pub(super) fn sync_directory(directory: &Path) -> Result<(), PlaceError> {
    File::open(directory).and_then(|directory| directory.sync_all()).map_err(PlaceError::io("syncing", directory))
}

/// Writes a small file durably.
pub(super) fn write_synced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}
