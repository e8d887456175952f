//! Where `tests/env/install.sh` puts things.

use std::path::PathBuf;

use crate::account::is_root;

/// The cache of downloads and tools: `HOLDFAST_CACHE`, by default `~/.cache/holdfast`.
pub fn cache() -> PathBuf {
    std::env::var_os("HOLDFAST_CACHE").map_or_else(
        || PathBuf::from(std::env::var_os("HOME").expect("HOME is set")).join(".cache/holdfast"),
        PathBuf::from,
    )
}

/// A tool in the cache, links resolved: as root the cache itself may be closed to the servers' user.
#[track_caller]
pub fn tool(name: &str) -> PathBuf {
    let path = cache().join("tools").join(name);
    path.canonicalize().unwrap_or_else(|error| panic!("{} ({error}): run tests/env/install.sh", path.display()))
}

/// A directory for what the servers' user must reach and a test run leaves for the next one.
pub fn shared() -> PathBuf {
    let default = || if is_root() { PathBuf::from("/var/lib/holdfast-tests") } else { cache().join("trees") };
    std::env::var_os("HOLDFAST_TREES").map_or_else(default, PathBuf::from)
}
