//! Where the server's programs are.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Why there are no programs of the wanted version.
#[derive(Debug, thiserror::Error)]
pub enum BinariesError {
    /// The directory that was named has no server.
    #[error("{} holds no PostgreSQL server: {reason}", directory.display())]
    NoServer {
        /// The directory.
        directory: PathBuf,
        /// Why.
        reason: String,
    },
    /// The directory that was named has another version.
    #[error("{} holds PostgreSQL {found}, but the data directory is of PostgreSQL {wanted}", directory.display())]
    WrongMajor {
        /// The directory.
        directory: PathBuf,
        /// The version there.
        found: u32,
        /// The version wanted.
        wanted: u32,
    },
    /// Nothing anywhere.
    #[error(
        "no server of PostgreSQL {wanted} is installed; looked in {}. Name its directory with --pg-bin",
        looked_in.join(", ")
    )]
    NotFound {
        /// The version wanted.
        wanted: u32,
        /// What was found where.
        looked_in: Vec<String>,
    },
}

/// The directory with the programs of PostgreSQL `major`: `explicit` if given, else where `PATH` finds `postgres`, else
/// where packages put them.
///
/// # Errors
/// If there are none of that version.
pub fn find_bin(major: u32, explicit: Option<&Path>) -> Result<PathBuf, BinariesError> {
    if let Some(directory) = explicit {
        let found = major_of(directory)
            .map_err(|reason| BinariesError::NoServer { directory: directory.to_owned(), reason })?;
        if found != major {
            return Err(BinariesError::WrongMajor { directory: directory.to_owned(), found, wanted: major });
        }
        return Ok(directory.to_owned());
    }
    let mut looked_in = Vec::new();
    for directory in usual_directories(major) {
        match major_of(&directory) {
            Ok(found) if found == major => return Ok(directory),
            Ok(found) => looked_in.push(format!("{} (PostgreSQL {found})", directory.display())),
            Err(_) => looked_in.push(directory.display().to_string()),
        }
    }
    Err(BinariesError::NotFound { wanted: major, looked_in })
}

fn usual_directories(major: u32) -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // A link in PATH stands alone; the other programs and the libraries are where it points.
    let in_path = std::env::split_paths(&path).find_map(|directory| directory.join("postgres").canonicalize().ok());
    let in_path = in_path.and_then(|program| program.parent().map(Path::to_owned));
    let by_packages = [format!("/usr/lib/postgresql/{major}/bin"), format!("/usr/pgsql-{major}/bin")];
    let others = by_packages.into_iter().chain(["/usr/local/bin".into(), "/usr/local/pgsql/bin".into()]);
    let mut directories: Vec<PathBuf> = in_path.into_iter().chain(others.map(PathBuf::from)).collect();
    directories.dedup();
    directories
}

/// What `postgres --version` says: for example `postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)`.
fn major_of(directory: &Path) -> Result<u32, String> {
    let output = Command::new(directory.join("postgres")).arg("--version").output();
    let output = output.map_err(|error| format!("its postgres cannot be run: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let version = text.strip_prefix("postgres (PostgreSQL) ").unwrap_or_default();
    let digits: String = version.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().map_err(|_| format!("its postgres says {text:?} for a version"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn server(version: &str) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("postgres");
        std::fs::write(&program, format!("#!/bin/sh\necho '{version}'\n")).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        directory
    }

    #[test]
    fn a_named_directory_must_be_of_the_right_version() {
        let directory = server("postgres (PostgreSQL) 17.2 (Debian 17.2-1)");
        assert_eq!(find_bin(17, Some(directory.path())).unwrap(), directory.path());
        let error = find_bin(15, Some(directory.path())).unwrap_err().to_string();
        let expected = "holds PostgreSQL 17, but the data directory is of PostgreSQL 15";
        assert_eq!(error, format!("{} {expected}", directory.path().display()));
    }

    #[test]
    fn what_is_no_server_is_told() {
        let directory = server("hello");
        let error = find_bin(15, Some(directory.path())).unwrap_err().to_string();
        assert!(error.ends_with("holds no PostgreSQL server: its postgres says \"hello\" for a version"), "{error}");
        let error = find_bin(15, Some(Path::new("/nonexistent"))).unwrap_err().to_string();
        assert!(error.starts_with("/nonexistent holds no PostgreSQL server: its postgres cannot be run"), "{error}");
    }

    #[test]
    fn a_version_that_is_not_installed_is_told_with_the_places() {
        let error = find_bin(9, None).unwrap_err().to_string();
        assert!(error.starts_with("no server of PostgreSQL 9 is installed; looked in "), "{error}");
        assert!(error.contains("/usr/lib/postgresql/9/bin"), "{error}");
    }
}
