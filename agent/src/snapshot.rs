//! The vocabulary that engines and the repository share: files, pages, and what a page may be judged by.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A file that belongs to a physical snapshot, as it was when it was first seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceFile {
    /// Where it goes in a restored copy: relative, parts joined by `/`.
    pub path: String,
    /// Where it is read from.
    pub source: Source,
    /// Bytes when it was first seen: what is read and kept, whatever the file does meanwhile.
    pub size: u64,
    /// What tells that a file was not written to since.
    pub stamp: Stamp,
    /// Permission bits.
    pub mode: u32,
    /// The number of the file's first page within what it is a part of, where its pages can be judged.
    pub first_block: Option<u32>,
}

/// Where the bytes of a [`SourceFile`] come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A file, read while the engine may be writing it.
    File(PathBuf),
    /// Bytes that the engine has read and checked itself.
    Bytes(Vec<u8>),
}

/// What changes whenever a file is written to, replaced or has its attributes changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    /// Time of the last change of its content, nanoseconds since 1970.
    pub mtime_ns: i64,
    /// Time of the last change of content or attributes, nanoseconds since 1970; no program can set it.
    pub ctime_ns: i64,
    /// The inode.
    pub inode: u64,
}

/// A directory of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Directory {
    /// Relative, parts joined by `/`.
    pub path: String,
    /// Permission bits.
    pub mode: u32,
}

/// Judges pages by what the engine itself writes into them.
pub trait PageJudge: Sync {
    /// Whether `page`, number `block` counted from the start of its relation, is as the engine would have written it.
    fn is_sound(&self, block: u32, page: &[u8]) -> bool;
}

/// A page whose own checksum is wrong, in the source: kept as it is, and reported.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct BadPage {
    /// The file, relative to the data directory.
    pub path: String,
    /// The page's number within that file.
    pub page: u64,
}
