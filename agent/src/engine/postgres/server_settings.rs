//! Settings of a server of our own on a copy: whatever the copy's configuration says, it must be inert.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, chown};
use std::path::{Path, PathBuf};

use super::control::StandbyMinimums;

/// Part of the socket's name only: nothing listens on the network.
pub(super) const PORT: u16 = 5432;

/// Longer names of sockets are refused by the kernel (108 bytes, the last a zero).
const LONGEST_SOCKET: usize = 107;

/// Who owns the data directory, and so must run the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owner {
    pub(super) uid: u32,
    pub(super) gid: u32,
}

/// Why the directories cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// The server refuses to be root.
    #[error("{} belongs to root, and PostgreSQL does not run as root: give the directory to another user", .0.display())]
    OwnedByRoot(PathBuf),
    /// Not ours.
    #[error(
        "{} belongs to user {owner}, but this process runs as user {ours}: run it as the owner or as root",
        path.display()
    )]
    OwnedByOther {
        /// The data directory.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// Who we are.
        ours: u32,
    },
    /// The socket's name would be too long, or its directory cannot be named in a setting.
    #[error("{} cannot hold a socket: {reason}", path.display())]
    Socket {
        /// The directory.
        path: PathBuf,
        /// Why.
        reason: &'static str,
    },
    /// Something could not be made or looked at.
    #[error("cannot {doing} {}: {source}", path.display())]
    Io {
        /// What was being done.
        doing: &'static str,
        /// To what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

fn io_error(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> DirectoryError {
    let path = path.to_owned();
    move |source| DirectoryError::Io { doing, path, source }
}

/// Who must run the server.
pub(super) fn owner(data_dir: &Path) -> Result<Owner, DirectoryError> {
    let metadata = fs::metadata(data_dir).map_err(io_error("look at", data_dir))?;
    let owner = Owner { uid: metadata.uid(), gid: metadata.gid() };
    let ours = rustix::process::geteuid().as_raw();
    if owner.uid == 0 {
        Err(DirectoryError::OwnedByRoot(data_dir.to_owned()))
    } else if ours != 0 && ours != owner.uid {
        Err(DirectoryError::OwnedByOther { path: data_dir.to_owned(), owner: owner.uid, ours })
    } else {
        Ok(owner)
    }
}

/// Makes the directory of the socket, which nobody but the owner enters: inside, everyone is trusted.
pub(super) fn prepare_socket_dir(socket_dir: &Path, owner: Owner) -> Result<(), DirectoryError> {
    let refused = |reason| Err(DirectoryError::Socket { path: socket_dir.to_owned(), reason });
    let Some(text) = socket_dir.to_str().filter(|text| !text.contains([',', '"', '\''])) else {
        return refused("its name has a comma, a quote or no UTF-8");
    };
    if !socket_dir.is_absolute() {
        return refused("its path is not absolute");
    }
    if text.len() + format!("/.s.PGSQL.{PORT}").len() > LONGEST_SOCKET {
        return refused("its path is too long; choose a shorter one, for example below /tmp");
    }
    if !socket_dir.is_dir() {
        DirBuilder::new().recursive(true).mode(0o700).create(socket_dir).map_err(io_error("make", socket_dir))?;
    }
    fs::set_permissions(socket_dir, std::os::unix::fs::PermissionsExt::from_mode(0o700))
        .map_err(io_error("close to others", socket_dir))?;
    give_to(socket_dir, owner)
}

fn give_to(path: &Path, owner: Owner) -> Result<(), DirectoryError> {
    if rustix::process::geteuid().as_raw() == owner.uid {
        return Ok(());
    }
    chown(path, Some(owner.uid), Some(owner.gid)).map_err(io_error("give to the server's user", path))
}

fn write(path: &Path, content: &str, owner: Owner) -> Result<(), DirectoryError> {
    fs::write(path, content).map_err(io_error("write", path))?;
    give_to(path, owner)
}

/// Settings of the server, in the order in which it must take them: `options` count over ours.
pub(super) fn arguments(
    data_dir: &Path,
    socket_dir: &Path,
    owner: Owner,
    major: u32,
    options: &[(String, String)],
) -> Result<Vec<(String, String)>, DirectoryError> {
    let access = socket_dir.join("pg_hba.conf");
    write(&access, "local all all trust\n", owner)?;
    let names = socket_dir.join("pg_ident.conf");
    write(&names, "", owner)?;
    let mut settings = isolation(data_dir, socket_dir, major);
    settings.push(("hba_file".into(), access.display().to_string()));
    settings.push(("ident_file".into(), names.display().to_string()));
    // Debian keeps the configuration elsewhere, so a copy has none.
    if !data_dir.join("postgresql.conf").is_file() {
        let generated = socket_dir.join("postgresql.conf");
        write(&generated, "# For a copy that came without one.\n", owner)?;
        settings.push(("config_file".into(), generated.display().to_string()));
    }
    settings.extend_from_slice(options);
    Ok(settings)
}

/// No archiving, no replication in or out, no jobs, no network, no file outside of the copy.
fn isolation(data_dir: &Path, socket_dir: &Path, major: u32) -> Vec<(String, String)> {
    let port = PORT.to_string();
    let mut settings: Vec<(&str, String)> = vec![
        // A configuration that names the original's data directory would have it opened.
        ("data_directory", data_dir.display().to_string()),
        ("unix_socket_directories", socket_dir.display().to_string()),
        ("port", port),
    ];
    let fixed = [
        ("external_pid_file", ""),
        ("listen_addresses", ""),
        ("unix_socket_permissions", "0700"),
        ("unix_socket_group", ""),
        ("bonjour", "off"),
        ("ssl", "off"),
        ("archive_mode", "off"),
        ("hot_standby", "on"),
        ("autovacuum", "off"),
        ("max_logical_replication_workers", "0"),
        ("primary_conninfo", ""),
        ("primary_slot_name", ""),
        ("synchronous_standby_names", ""),
        ("restart_after_crash", "off"),
        ("cluster_name", "holdfast"),
        ("cron.launch_active_jobs", "off"),
        // What the log says is understood, so it must be said in English, in UTC and to us.
        ("lc_messages", "C"),
        ("timezone", "UTC"),
        ("log_timezone", "UTC"),
        ("logging_collector", "off"),
        ("log_destination", "stderr"),
        ("log_min_messages", "warning"),
        ("log_line_prefix", "%m [%p] "),
        ("log_error_verbosity", "default"),
    ];
    settings.extend(fixed.map(|(name, value)| (name, value.to_owned())));
    if major >= 17 {
        settings.push(("event_triggers", "off".into()));
    }
    settings.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// What recovery with `hot_standby` demands, by name.
pub(super) fn minimums(minimums: StandbyMinimums) -> [(&'static str, u32); 5] {
    [
        ("max_connections", minimums.max_connections),
        ("max_worker_processes", minimums.max_worker_processes),
        ("max_wal_senders", minimums.max_wal_senders),
        ("max_prepared_transactions", minimums.max_prepared_transactions),
        ("max_locks_per_transaction", minimums.max_locks_per_transaction),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_this_process() -> Owner {
        Owner { uid: rustix::process::geteuid().as_raw(), gid: rustix::process::getegid().as_raw() }
    }

    fn value<'a>(settings: &'a [(String, String)], name: &str) -> Vec<&'a str> {
        settings.iter().filter(|(n, _)| n == name).map(|(_, value)| value.as_str()).collect()
    }

    #[test]
    fn a_copy_is_inert_whatever_its_configuration_says() {
        let (data, socket) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::write(data.path().join("postgresql.conf"), "archive_mode = on\n").unwrap();
        let options = [("work_mem".to_owned(), "1GB".to_owned())];
        let settings = arguments(data.path(), socket.path(), of_this_process(), 15, &options).unwrap();
        for (name, expected) in [
            ("archive_mode", "off"),
            ("listen_addresses", ""),
            ("primary_conninfo", ""),
            ("max_logical_replication_workers", "0"),
            ("external_pid_file", ""),
            ("work_mem", "1GB"),
        ] {
            assert_eq!(value(&settings, name), [expected], "{name}");
        }
        assert_eq!(value(&settings, "data_directory"), [data.path().to_str().unwrap()]);
        assert!(value(&settings, "config_file").is_empty() && value(&settings, "event_triggers").is_empty());
    }

    #[test]
    fn a_copy_without_a_configuration_gets_one() {
        let (data, socket) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let settings = arguments(data.path(), socket.path(), of_this_process(), 17, &[]).unwrap();
        assert_eq!(value(&settings, "config_file"), [socket.path().join("postgresql.conf").to_str().unwrap()]);
        assert_eq!(value(&settings, "event_triggers"), ["off"]);
        assert_eq!(std::fs::read_to_string(socket.path().join("pg_hba.conf")).unwrap(), "local all all trust\n");
        assert!(!data.path().join("postgresql.conf").exists());
    }

    #[test]
    fn a_socket_directory_that_cannot_be_is_told_why() {
        let long = PathBuf::from(format!("/tmp/{}", "x".repeat(100)));
        let error = prepare_socket_dir(&long, of_this_process()).unwrap_err().to_string();
        assert!(error.contains("cannot hold a socket: its path is too long"), "{error}");
        let error = prepare_socket_dir(Path::new("relative"), of_this_process()).unwrap_err().to_string();
        assert_eq!(error, "relative cannot hold a socket: its path is not absolute");
    }

    #[test]
    fn the_socket_directory_is_closed_to_others() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        prepare_socket_dir(&socket, of_this_process()).unwrap();
        assert_eq!(fs::metadata(&socket).unwrap().mode() & 0o777, 0o700);
    }
}
