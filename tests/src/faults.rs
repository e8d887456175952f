//! Damage that can be undone, and a disk that is too small.

use std::fs::{File, FileTimes, Metadata, Permissions};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::account::{self, Scratch};

/// Files that were damaged, with what they held before.
#[derive(Debug)]
#[must_use = "the damage stays unless it is undone"]
pub struct Damage(Vec<Original>);

#[derive(Debug)]
struct Original {
    path: PathBuf,
    content: Vec<u8>,
    metadata: Metadata,
}

impl Original {
    #[track_caller]
    fn of(path: &Path) -> Self {
        let read = || Ok(Self { path: path.into(), content: std::fs::read(path)?, metadata: path.metadata()? });
        read().unwrap_or_else(|error: std::io::Error| panic!("cannot read {path:?}: {error}"))
    }

    /// Puts `content` where this file was: same owner, mode and times, as a failing disk would leave them.
    fn replace(&self, content: &[u8]) {
        // A repository's files are read-only to everybody; root may write them, the tests' own user may not.
        if self.path.exists() {
            std::fs::set_permissions(&self.path, Permissions::from_mode(0o600)).expect("mode can be set");
        }
        std::fs::write(&self.path, content).unwrap_or_else(|error| panic!("cannot write {:?}: {error}", self.path));
        self.put_metadata();
    }

    fn put_metadata(&self) {
        let file = File::options().write(true).open(&self.path).expect("the file was just written");
        chown(&self.path, Some(self.metadata.uid()), Some(self.metadata.gid())).expect("owner can be set");
        let modified = self.metadata.modified().expect("the file system keeps times");
        file.set_times(FileTimes::new().set_modified(modified)).expect("times can be set");
        file.set_permissions(self.metadata.permissions()).expect("mode can be set");
    }
}

impl Damage {
    /// Makes every file what it was.
    pub fn undo(self) {
        for original in self.0 {
            original.replace(&original.content);
        }
    }
}

/// Turns one bit (0 to 7) of the byte at `position`.
#[track_caller]
pub fn flip_bit(path: &Path, position: u64, bit: u8) -> Damage {
    let original = Original::of(path);
    let index = usize::try_from(position).expect("a position in memory");
    assert!(index < original.content.len(), "{path:?} has {} bytes, none at {position}", original.content.len());
    let file = File::options().write(true).open(path).unwrap_or_else(|error| panic!("cannot open {path:?}: {error}"));
    file.write_all_at(&[original.content[index] ^ (1 << bit)], position).expect("the byte can be written");
    original.put_metadata();
    Damage(vec![original])
}

/// Cuts a file to `length` bytes.
#[track_caller]
pub fn truncate(path: &Path, length: u64) -> Damage {
    let original = Original::of(path);
    let length = usize::try_from(length).expect("a length in memory");
    assert!(length < original.content.len(), "{path:?} has only {} bytes", original.content.len());
    original.replace(&original.content[..length]);
    Damage(vec![original])
}

/// Deletes a file.
#[track_caller]
pub fn delete(path: &Path) -> Damage {
    let original = Original::of(path);
    std::fs::remove_file(path).unwrap_or_else(|error| panic!("cannot delete {path:?}: {error}"));
    Damage(vec![original])
}

/// Gives each of two files the content of the other.
#[track_caller]
pub fn swap(one: &Path, other: &Path) -> Damage {
    let (one, other) = (Original::of(one), Original::of(other));
    assert_ne!(one.content, other.content, "swapping equal files damages nothing");
    one.replace(&other.content);
    other.replace(&one.content);
    Damage(vec![one, other])
}

/// A file system in memory of a fixed size, for what happens when a disk is full. Unmounted when dropped.
#[derive(Debug)]
pub struct SmallDisk(Scratch);

impl SmallDisk {
    /// Mounts a disk of so many bytes (rounded up to pages). Needs root.
    #[track_caller]
    pub fn mount(bytes: u64) -> Self {
        assert!(account::is_root(), "mounting a small disk needs root: run these tests as root");
        let scratch = Scratch::new();
        let (user, group) = account::server_ids().expect("root runs servers as somebody else");
        account::run(
            Command::new("mount")
                .args(["-t", "tmpfs", "-o", &format!("size={bytes},mode=0700,uid={user},gid={group}"), "tmpfs"])
                .arg(scratch.path()),
        );
        Self(scratch)
    }

    /// Where it is mounted; the directory belongs to the servers' user.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Makes it larger or smaller, in use.
    #[track_caller]
    pub fn resize(&self, bytes: u64) {
        account::run(Command::new("mount").args(["-o", &format!("remount,size={bytes}")]).arg(self.path()));
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: a server that a failing test left running must not keep the mount for ever.
        let unmounted = Command::new("umount").arg("--lazy").arg(self.path()).status();
        if !unmounted.is_ok_and(|status| status.success()) {
            eprintln!("the small disk at {:?} stays mounted", self.path());
        }
    }
}
