//! Listing objects.

use std::fs;
use std::io;
use std::path::Path;

use super::{is_absence, read};
use crate::repository::store::{Entry, Key, Walk};

/// What is kept by the file system itself at the top of a volume; reading it is not even allowed.
const LOST_AND_FOUND: &str = "lost+found";

/// Something in a directory.
struct Item {
    name: String,
    is_dir: bool,
}

impl Item {
    /// What its keys begin with: sorting by this sorts the keys of everything below.
    fn order(&self) -> impl Iterator<Item = u8> + '_ {
        self.name.bytes().chain(self.is_dir.then_some(b'/'))
    }
}

/// Shows every object below `dir`, in the order of their keys. Holds one directory's names per level, nothing else.
pub(super) fn walk(dir: &Path, prefix: &Key, each: &mut dyn FnMut(Entry) -> Walk) -> io::Result<Walk> {
    for item in items(dir, prefix.as_str().is_empty())? {
        let Ok(key) = prefix.child(&item.name) else { continue };
        let path = dir.join(&item.name);
        let next = if item.is_dir {
            walk(&path, &key, each)?
        } else {
            // An object that was deleted meanwhile is not shown.
            read::entry(&path, &key)?.map_or(Walk::On, &mut *each)
        };
        if next == Walk::Stop {
            return Ok(Walk::Stop);
        }
    }
    Ok(Walk::On)
}

/// The names in a directory, in order; of directories too that are empty by now.
pub(super) fn names(dir: &Path, is_root: bool) -> io::Result<Vec<String>> {
    let mut names: Vec<String> = items(dir, is_root)?.into_iter().map(|item| item.name).collect();
    names.sort_unstable();
    Ok(names)
}

fn items(dir: &Path, is_root: bool) -> io::Result<Vec<Item>> {
    let entries = match fs::read_dir(dir) {
        Err(error) if is_absence(&error) => return Ok(Vec::new()),
        other => other?,
    };
    let mut items = Vec::new();
    for entry in entries {
        let entry = entry?;
        // A name that is no key is none of ours: a person's note, or what the file system keeps for itself.
        let Some(name) = entry.file_name().to_str().filter(|name| Key::root().child(name).is_ok()).map(str::to_owned)
        else {
            continue;
        };
        let kind = entry.file_type()?;
        if (kind.is_dir() || kind.is_file()) && !(is_root && name == LOST_AND_FOUND) {
            items.push(Item { name, is_dir: kind.is_dir() });
        }
    }
    items.sort_unstable_by(|one, other| one.order().cmp(other.order()));
    Ok(items)
}
