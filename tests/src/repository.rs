//! Repositories in a directory, as files: what is in them, whether each object is whole, copies of them; and directory
//! trees, to compare what was restored.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest as _, Sha256};

use crate::account;

/// What an object is, by its key (FORMAT.md, "Objects and their names").
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// `holdfast.json`
    Repository,
    /// A pack.
    Pack,
    /// A map.
    Map,
    /// Objects that a prune will delete or has deleted.
    Tombstone,
    /// `lineage.json`
    Lineage,
    /// `position.json`
    Position,
    /// A lease.
    Lease,
    /// A manifest.
    Manifest,
    /// A pin.
    Pin,
    /// Evidence.
    Evidence,
    /// A segment of the log.
    Segment,
    /// A timeline's history.
    History,
    /// Another file of the log: the note of a backup, the last segment of a timeline that was left.
    OtherLog,
    /// A piece of a tail.
    Piece,
}

impl Kind {
    /// What the object at `key` is; none if the format does not know it.
    pub fn of(key: &str) -> Option<Self> {
        let parts: Vec<&str> = key.split('/').collect();
        Some(match parts.as_slice() {
            ["holdfast.json"] => Self::Repository,
            [_, "packs", _, _] => Self::Pack,
            [_, "maps", _, _] => Self::Map,
            [_, "tombstones", _] => Self::Tombstone,
            [_, "lineages", _, "lineage.json"] => Self::Lineage,
            [_, "lineages", _, "position.json"] => Self::Position,
            [_, "lineages", _, "leases", _] => Self::Lease,
            [_, "lineages", _, "backups", _, "manifest.json"] => Self::Manifest,
            [_, "lineages", _, "backups", _, "pin.json"] => Self::Pin,
            [_, "lineages", _, "backups", _, "evidence", _] => Self::Evidence,
            [_, "lineages", _, "log", _, name] if name.ends_with(".history") => Self::History,
            [_, "lineages", _, "log", _, name] if name.contains('.') => Self::OtherLog,
            [_, "lineages", _, "log", _, _] => Self::Segment,
            [_, "lineages", _, "tails", _, _, _] => Self::Piece,
            _ => return None,
        })
    }
}

/// The keys of all objects, in order. What begins with a dot is the store's own.
#[track_caller]
pub fn objects(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut directories = vec![root.to_path_buf()];
    while let Some(directory) = directories.pop() {
        let entries = fs::read_dir(&directory).unwrap_or_else(|error| panic!("cannot read {directory:?}: {error}"));
        for entry in entries {
            let path = entry.expect("the directory can be read").path();
            if path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b".")) {
                continue;
            }
            if path.is_dir() {
                directories.push(path);
            } else {
                found
                    .push(path.strip_prefix(root).expect("below the root").to_str().expect("keys are text").to_owned());
            }
        }
    }
    found.sort();
    found
}

/// The objects that are not whole by what FORMAT.md says about their bytes alone, or that it does not know.
#[track_caller]
pub fn scraps(root: &Path) -> Vec<String> {
    objects(root).into_iter().filter(|key| !is_whole(root, key)).collect()
}

fn is_whole(root: &Path, key: &str) -> bool {
    let bytes = fs::read(root.join(key)).unwrap_or_else(|error| panic!("cannot read {key}: {error}"));
    let sha256 = |bytes: &[u8]| -> [u8; 32] { Sha256::digest(bytes).into() };
    match Kind::of(key) {
        None => false,
        Some(Kind::Pack | Kind::Map) => key.rsplit('/').next() == Some(&hex::encode(sha256(&bytes))),
        Some(Kind::Segment | Kind::History | Kind::OtherLog | Kind::Piece) => {
            bytes.len() > 32 && sha256(&bytes[..bytes.len() - 32]) == bytes[bytes.len() - 32..]
        }
        Some(_) => {
            let Some((content, seal)) = bytes.len().checked_sub(78).map(|at| bytes.split_at(at)) else {
                return false;
            };
            seal == format!(",\"sha256\":\"{}\"}}\n", hex::encode(sha256(content))).as_bytes()
        }
    }
}

/// Copies a directory with everything that files have.
#[track_caller]
pub fn copy(from: &Path, to: &Path) {
    account::run(Command::new("cp").arg("-a").arg(from).arg(to));
}

/// What a directory holds: each file's mode, size and digest; each directory's mode; where each link leads to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tree(BTreeMap<PathBuf, String>);

impl Tree {
    /// All below `root`, without what `left_out` says so of (by its path from there).
    #[track_caller]
    pub fn of(root: &Path, left_out: impl Fn(&str) -> bool) -> Self {
        let mut tree = BTreeMap::new();
        let mut rest = vec![root.to_path_buf()];
        while let Some(path) = rest.pop() {
            let name = path.strip_prefix(root).expect("below the root").to_path_buf();
            if left_out(&name.to_string_lossy()) {
                continue;
            }
            let metadata = fs::symlink_metadata(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
            let mode = metadata.permissions().mode() & 0o7777;
            let what = if metadata.is_symlink() {
                format!("link to {}", fs::read_link(&path).expect("a link can be read").display())
            } else if metadata.is_dir() {
                let entries = fs::read_dir(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
                rest.extend(entries.map(|entry| entry.expect("the directory can be read").path()));
                format!("directory {mode:o} of {}", metadata.uid())
            } else {
                let content = fs::read(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
                let digest = blake3::hash(&content).to_hex();
                format!("file {mode:o} of {}, {} bytes, {digest}", metadata.uid(), content.len())
            };
            tree.insert(name, what);
        }
        Self(tree)
    }

    /// The paths that differ, with what is here and there; empty where all is the same.
    pub fn differences(&self, other: &Self) -> Vec<String> {
        let paths = self.0.keys().chain(other.0.keys().filter(|path| !self.0.contains_key(*path)));
        let differ = paths.filter(|path| self.0.get(*path) != other.0.get(*path));
        let told = |what: Option<&String>| what.cloned().unwrap_or_else(|| "nothing".to_owned());
        differ.map(|path| format!("{path:?}: {} / {}", told(self.0.get(path)), told(other.0.get(path)))).collect()
    }
}

impl fmt::Display for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(path, what)| writeln!(f, "{}: {what}", path.display()))
    }
}
