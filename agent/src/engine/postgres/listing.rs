//! Which files of a data directory a physical backup copies.
//!
//! The rules are those of the server's own base backup (`basebackup.c`; PostgreSQL documentation, "Making a Base Backup
//! Using the Low Level API"): some directories are kept but empty, some files belong to the running server only, and
//! unlogged and temporary relations have nothing that recovery would use. What is left out for another reason is named
//! in [`Listing::notes`] or is an error.

use std::collections::HashSet;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::control::{self, CONTROL_FILE, ControlError};
use super::relation;
pub use super::relation::{Fork, RelationFile};

/// Kept, but empty: their content belongs to the running server, or is the log, which is archived by itself.
const KEPT_EMPTY: [&str; 8] =
    ["pg_wal", "pg_replslot", "pg_dynshmem", "pg_notify", "pg_serial", "pg_snapshots", "pg_stat_tmp", "pg_subtrans"];

/// Left out of the data directory itself: they belong to the running server, to another backup or to another copy.
const LEFT_OUT: [&str; 11] = [
    "postgresql.auto.conf.tmp",
    "current_logfiles.tmp",
    "backup_label",
    "backup_label.old",
    "tablespace_map",
    "tablespace_map.old",
    "backup_manifest",
    "postmaster.pid",
    "postmaster.opts",
    "standby.signal",
    "recovery.signal",
];

/// Left out wherever they are: temporary files, and caches that the server builds anew.
const LEFT_OUT_PREFIXES: [&str; 2] = ["pgsql_tmp", "pg_internal.init"];

/// Without these there is no database, so a symbolic link in or below them is refused rather than left out.
const NO_LINKS: [&str; 9] =
    ["base", "global", "pg_commit_ts", "pg_logical", "pg_multixact", "pg_stat", "pg_tblspc", "pg_twophase", "pg_xact"];

/// A directory that a restore must make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directory {
    /// Below the data directory, with slashes, through `pg_tblspc/<oid>/` for tablespaces.
    pub path: String,
    /// Its permission bits.
    pub mode: u32,
}

/// A file that a backup copies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceFile {
    /// Below the data directory, with slashes, through `pg_tblspc/<oid>/` for tablespaces.
    pub path: String,
    /// Its size when it was seen, in bytes: what is copied, whatever it grows or shrinks to.
    pub size: u64,
    /// When its content was last changed, in nanoseconds since 1970.
    pub mtime_ns: i64,
    /// When its content or attributes were last changed, in nanoseconds since 1970.
    pub ctime_ns: i64,
    /// Its inode.
    pub inode: u64,
    /// Its permission bits.
    pub mode: u32,
    /// Set where the file's pages carry checksums, if the cluster has them.
    pub relation: Option<RelationFile>,
}

/// A tablespace outside of the data directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tablespace {
    /// Its number, which names the symbolic link in `pg_tblspc`.
    pub oid: u32,
    /// Where the link points, as it is written there.
    pub location: PathBuf,
    /// The permission bits of the directory there.
    pub mode: u32,
}

/// What a backup copies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// Directories, sorted by the bytes of their paths, so that parents come first.
    pub directories: Vec<Directory>,
    /// Files, sorted by the bytes of their paths, but `global/pg_control` last.
    pub files: Vec<SourceFile>,
    /// Tablespaces, by number. Their files are among `files`.
    pub tablespaces: Vec<Tablespace>,
    /// What was left out although it is nothing of the server's: to be told to a person.
    pub notes: Vec<String>,
}

/// Why the files of a data directory could not be listed.
#[derive(Debug, thiserror::Error)]
pub enum ListingError {
    /// No data directory, or its control file cannot be used.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// A directory or file could not be looked at.
    #[error("cannot list {}: {source}", path.display())]
    Io {
        /// The directory or file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A tablespace without its data.
    #[error(
        "tablespace {oid} has no directory {}: a backup without it would be incomplete (is its volume mounted here?)",
        path.display()
    )]
    TablespaceMissing {
        /// The tablespace.
        oid: u32,
        /// What should be there.
        path: PathBuf,
    },
    /// A link where the server makes none.
    #[error(
        "{} is a symbolic link: PostgreSQL supports them only in pg_tblspc, and a backup would be incomplete without \
         what it points to (move the data back, or make a tablespace of it)",
        path.display()
    )]
    Link {
        /// The link.
        path: PathBuf,
    },
}

/// Lists what a backup of `data_dir` copies. Files that vanish meanwhile are simply not listed.
///
/// # Errors
/// If `data_dir` is no data directory, or something in it that must be copied cannot be.
pub fn list(data_dir: &Path) -> Result<Listing, ListingError> {
    let version_directory =
        format!("PG_{}_{}", control::major_version(data_dir)?, control::read(data_dir)?.catalog_version);
    let mut walk = Walk { data_dir, tablespaces: Vec::new(), listing: Listing::default() };
    walk.find_tablespaces()?;
    walk.directory(String::new())?;
    for tablespace in walk.tablespaces.clone() {
        walk.tablespace(&tablespace, &version_directory)?;
    }
    Ok(walk.finish())
}

/// A tablespace, and what tells its directory from all others.
#[derive(Clone)]
struct Located {
    tablespace: Tablespace,
    device_and_inode: (u64, u64),
}

struct Walk<'a> {
    data_dir: &'a Path,
    tablespaces: Vec<Located>,
    listing: Listing,
}

struct Entry {
    name: String,
    path: String,
    metadata: Metadata,
}

impl Walk<'_> {
    fn find_tablespaces(&mut self) -> Result<(), ListingError> {
        for entry in self.entries("pg_tblspc")? {
            let Ok(oid) = entry.name.parse() else { continue };
            if !entry.metadata.is_symlink() {
                continue;
            }
            let link = self.data_dir.join(&entry.path);
            let location = fs::read_link(&link).map_err(|source| ListingError::Io { path: link.clone(), source })?;
            match fs::metadata(&link) {
                Ok(there) => self.tablespaces.push(Located {
                    tablespace: Tablespace { oid, location, mode: permissions(&there) },
                    device_and_inode: (there.dev(), there.ino()),
                }),
                // A tablespace dropped this instant has no link any more.
                Err(_) if fs::symlink_metadata(&link).is_err() => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    return Err(ListingError::TablespaceMissing { oid, path: location });
                }
                Err(source) => return Err(ListingError::Io { path: location, source }),
            }
        }
        Ok(())
    }

    fn tablespace(&mut self, located: &Located, version_directory: &str) -> Result<(), ListingError> {
        let Tablespace { oid, location, .. } = &located.tablespace;
        let link = format!("pg_tblspc/{oid}");
        let path = format!("{link}/{version_directory}");
        match fs::metadata(self.data_dir.join(&path)) {
            Ok(metadata) => {
                self.listing.tablespaces.push(located.tablespace.clone());
                self.listing.directories.push(Directory { path: path.clone(), mode: permissions(&metadata) });
                self.directory(path)
            }
            Err(_) if fs::symlink_metadata(self.data_dir.join(&link)).is_err() => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(ListingError::TablespaceMissing { oid: *oid, path: location.join(version_directory) })
            }
            Err(source) => Err(ListingError::Io { path: location.join(version_directory), source }),
        }
    }

    /// Lists everything below one directory, without recursion: names nest as deep as anyone likes.
    fn directory(&mut self, top: String) -> Result<(), ListingError> {
        let mut pending = vec![top];
        while let Some(path) = pending.pop() {
            let entries = self.entries(&path)?;
            let unlogged = if holds_relations(&path) { unlogged_relations(&entries) } else { HashSet::new() };
            for entry in entries {
                if !is_left_out(&path, &entry.name) {
                    self.entry(&path, entry, &unlogged, &mut pending)?;
                }
            }
        }
        Ok(())
    }

    fn entry(
        &mut self,
        parent: &str,
        entry: Entry,
        unlogged: &HashSet<u32>,
        pending: &mut Vec<String>,
    ) -> Result<(), ListingError> {
        if parent.is_empty() && KEPT_EMPTY.contains(&entry.name.as_str()) {
            self.kept_empty(entry);
        } else if entry.metadata.is_dir() {
            let mode = permissions(&entry.metadata);
            if self.is_tablespace(&entry.metadata) {
                let note = format!("{}: copied as the tablespace that it is, not a second time here", entry.path);
                self.listing.notes.push(note);
            } else {
                pending.push(entry.path.clone());
            }
            self.listing.directories.push(Directory { path: entry.path, mode });
        } else if entry.metadata.is_file() {
            self.file(parent, entry, unlogged);
        } else if entry.metadata.is_symlink() {
            self.link(parent, &entry)?;
        } else {
            self.listing.notes.push(format!("{}: left out, neither a file nor a directory", entry.path));
        }
        Ok(())
    }

    /// One of these may be a link to another volume; a copy has a plain directory instead.
    fn kept_empty(&mut self, entry: Entry) {
        let there = fs::metadata(self.data_dir.join(&entry.path));
        let mode = there.map_or(0o700, |metadata| permissions(&metadata));
        self.listing.directories.push(Directory { path: entry.path, mode });
    }

    fn file(&mut self, parent: &str, entry: Entry, unlogged: &HashSet<u32>) {
        let mut relation = None;
        if holds_relations(parent) {
            if relation::is_temporary(&entry.name) {
                return;
            }
            if let Some(name) = relation::parse(&entry.name) {
                if name.file.fork != Fork::Init && unlogged.contains(&name.number) {
                    return;
                }
                relation = Some(name.file);
            }
        }
        self.listing.files.push(SourceFile {
            path: entry.path,
            size: entry.metadata.size(),
            mtime_ns: nanoseconds(entry.metadata.mtime(), entry.metadata.mtime_nsec()),
            ctime_ns: nanoseconds(entry.metadata.ctime(), entry.metadata.ctime_nsec()),
            inode: entry.metadata.ino(),
            mode: permissions(&entry.metadata),
            relation,
        });
    }

    fn link(&mut self, parent: &str, entry: &Entry) -> Result<(), ListingError> {
        if parent == "pg_tblspc" && entry.name.parse::<u32>().is_ok() {
            return Ok(());
        }
        let top = entry.path.split('/').next().unwrap_or_default();
        if NO_LINKS.contains(&top) {
            return Err(ListingError::Link { path: self.data_dir.join(&entry.path) });
        }
        self.listing.notes.push(format!("{}: left out, a symbolic link (as in PostgreSQL's own backups)", entry.path));
        Ok(())
    }

    fn is_tablespace(&self, metadata: &Metadata) -> bool {
        self.tablespaces.iter().any(|t| t.device_and_inode == (metadata.dev(), metadata.ino()))
    }

    /// What is in a directory; nothing, if it vanished meanwhile (a dropped database).
    fn entries(&mut self, path: &str) -> Result<Vec<Entry>, ListingError> {
        let directory = self.data_dir.join(path);
        let failed = |source| ListingError::Io { path: directory.clone(), source };
        let Some(found) = unless_vanished(fs::read_dir(&directory)).map_err(failed)? else { return Ok(Vec::new()) };
        let mut entries = Vec::new();
        for entry in found {
            let entry = entry.map_err(failed)?;
            let Some(metadata) = unless_vanished(entry.metadata()).map_err(failed)? else { continue };
            match entry.file_name().into_string() {
                Ok(name) => {
                    let path = if path.is_empty() { name.clone() } else { format!("{path}/{name}") };
                    entries.push(Entry { name, path, metadata });
                }
                Err(name) => {
                    let name = directory.join(name);
                    self.listing.notes.push(format!("{}: left out, its name is not UTF-8", name.display()));
                }
            }
        }
        Ok(entries)
    }

    fn finish(self) -> Listing {
        let mut listing = self.listing;
        listing.directories.sort_by(|a, b| a.path.cmp(&b.path));
        listing.files.sort_by(|a, b| (a.path == CONTROL_FILE, &a.path).cmp(&(b.path == CONTROL_FILE, &b.path)));
        listing.tablespaces.sort_by_key(|tablespace| tablespace.oid);
        listing.notes.sort();
        listing
    }
}

fn is_left_out(parent: &str, name: &str) -> bool {
    let of_the_server = parent.is_empty() && (LEFT_OUT.contains(&name) || name == "lost+found");
    of_the_server || LEFT_OUT_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// Whether relations' files are in this directory: `global`, a database's in `base`, or a database's in a tablespace.
fn holds_relations(path: &str) -> bool {
    let number = |name: &str| name.parse::<u32>().is_ok();
    match path.split('/').collect::<Vec<_>>().as_slice() {
        ["global"] => true,
        ["base", database] => number(database),
        ["pg_tblspc", tablespace, version, database] => {
            number(tablespace) && version.starts_with("PG_") && number(database)
        }
        _ => false,
    }
}

/// The relations that have an init fork: recovery empties them, so their other forks are not worth copying.
fn unlogged_relations(entries: &[Entry]) -> HashSet<u32> {
    let init = |entry: &Entry| relation::parse(&entry.name).filter(|name| name.file.fork == Fork::Init);
    entries.iter().filter_map(init).map(|name| name.number).collect()
}

fn permissions(metadata: &Metadata) -> u32 {
    metadata.mode() & 0o7777
}

fn nanoseconds(seconds: i64, nanoseconds: i64) -> i64 {
    seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds)
}

fn unless_vanished<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
