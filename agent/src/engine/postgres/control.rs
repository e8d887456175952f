//! `global/pg_control`: what a data directory says about itself while no server runs on it.
//!
//! The layout is `ControlFileData` of `catalog/pg_control.h`: control version 1300 in PostgreSQL 15 and 16, 1700 in 17 (the
//! same layout), 1800 in 18 (one field more, before the CRC).
//! Only little-endian machines with 8-byte alignment are known here, as the agent runs beside the server.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::lsn::{Lsn, Timeline};
use super::wal::{WalError, WalSegmentSize};

/// The file, below the data directory.
pub const CONTROL_FILE: &str = "global/pg_control";

/// A file that the server is writing may be read half old, half new; it is then read again, as the server's tools do.
const READ_ATTEMPTS: u32 = 10;
const READ_AGAIN_AFTER: Duration = Duration::from_millis(10);

/// What the server was doing when it last wrote the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClusterState {
    /// Starting up.
    Starting,
    /// Shut down cleanly.
    ShutDown,
    /// Shut down cleanly while it was a standby or recovering.
    ShutDownInRecovery,
    /// Shutting down.
    ShuttingDown,
    /// Recovering from a crash.
    InCrashRecovery,
    /// Recovering from an archive, or a standby.
    InArchiveRecovery,
    /// Serving; or it was killed while it did.
    InProduction,
}

/// Settings of the server that wrote the log; a server that recovers with `hot_standby` must not have less.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StandbyMinimums {
    /// `max_connections`
    pub max_connections: u32,
    /// `max_worker_processes`
    pub max_worker_processes: u32,
    /// `max_wal_senders`
    pub max_wal_senders: u32,
    /// `max_prepared_transactions`
    pub max_prepared_transactions: u32,
    /// `max_locks_per_transaction`
    pub max_locks_per_transaction: u32,
}

/// The content of `global/pg_control`, with its CRC checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlFile {
    /// Which cluster this is; a physical copy has the same.
    pub system_identifier: u64,
    /// The version of the file's layout.
    pub control_version: u32,
    /// The version of the system catalogs, which names the directories of tablespaces too.
    pub catalog_version: u32,
    /// What the server was doing.
    pub state: ClusterState,
    /// When the file was last written, in seconds since 1970.
    pub written_at: i64,
    /// The last checkpoint's record.
    pub checkpoint: Lsn,
    /// Where recovery from that checkpoint begins.
    pub redo: Lsn,
    /// The timeline of that checkpoint.
    pub timeline: Timeline,
    /// Recovery must come at least this far before the data is consistent; invalid outside of recovery.
    pub minimum_recovery_point: Lsn,
    /// The start of the backup that is being recovered; invalid once its end was reached.
    pub backup_start: Lsn,
    /// Whether recovery still waits for the end of the backup.
    pub backup_end_required: bool,
    /// `wal_level` when the server last started: 0 minimal, 1 replica, 2 logical.
    pub wal_level: u32,
    /// What a hot standby must not be below.
    pub minimums: StandbyMinimums,
    /// The size of a page of a relation, in bytes.
    pub block_size: u32,
    /// How many blocks a relation's file holds before the next segment begins.
    pub blocks_per_segment: u32,
    /// The size of a segment of the log.
    pub wal_segment_size: WalSegmentSize,
    /// Whether pages carry checksums.
    pub data_checksums: bool,
}

/// Why a data directory's control file could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The directory does not look like a data directory.
    #[error("{} is not a PostgreSQL data directory: it has no {missing}", path.display())]
    NotADataDirectory {
        /// The directory.
        path: PathBuf,
        /// What it lacks.
        missing: &'static str,
    },
    /// The directory or a file in it could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// `PG_VERSION` does not hold a version.
    #[error("{} says {content:?}, which is no version of PostgreSQL", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// What it says.
        content: String,
    },
    /// A layout this program does not know.
    #[error("pg_control has version {0}: only those of PostgreSQL 15 to 18 (1300, 1700, 1800) are known")]
    ControlVersion(u32),
    /// Too short.
    #[error("pg_control is cut off: it has {0} bytes")]
    Short(usize),
    /// The CRC is wrong.
    #[error("pg_control is damaged: its CRC is {stored:08X}, its content has {computed:08X}")]
    Crc {
        /// The CRC in the file.
        stored: u32,
        /// The CRC of the content.
        computed: u32,
    },
    /// An impossible state.
    #[error("pg_control is damaged: it says state {0}, which does not exist")]
    State(u32),
    /// An impossible segment size.
    #[error("pg_control is damaged: {0}")]
    SegmentSize(#[from] WalError),
}

/// The major version of the server that a data directory belongs to, from `PG_VERSION`.
///
/// # Errors
/// If `data_dir` is no data directory.
pub fn major_version(data_dir: &Path) -> Result<u32, ControlError> {
    let path = data_dir.join("PG_VERSION");
    let content = read_part(data_dir, "PG_VERSION")?;
    let content = String::from_utf8_lossy(&content).trim().to_owned();
    content.parse().map_err(|_| ControlError::Version { path, content })
}

/// Reads the control file of a data directory, whether a server runs on it or not.
///
/// # Errors
/// If `data_dir` is no data directory, or its control file is damaged or of another version.
pub fn read(data_dir: &Path) -> Result<ControlFile, ControlError> {
    major_version(data_dir)?;
    let mut attempt = 1;
    loop {
        match parse(&read_part(data_dir, CONTROL_FILE)?) {
            Err(ControlError::Crc { .. } | ControlError::Short(_)) if attempt < READ_ATTEMPTS => {
                attempt += 1;
                std::thread::sleep(READ_AGAIN_AFTER);
            }
            result => return result,
        }
    }
}

/// Reads the content of a control file and checks its CRC.
///
/// # Errors
/// If it is damaged or of another version.
pub fn parse(bytes: &[u8]) -> Result<ControlFile, ControlError> {
    let fields = Fields::checked(bytes)?;
    Ok(ControlFile {
        system_identifier: fields.u64(0),
        control_version: fields.u32(8),
        catalog_version: fields.u32(12),
        state: state(fields.u32(16))?,
        written_at: fields.u64(24).cast_signed(),
        checkpoint: Lsn(fields.u64(32)),
        redo: Lsn(fields.u64(40)),
        timeline: Timeline(fields.u32(48)),
        minimum_recovery_point: Lsn(fields.u64(136)),
        backup_start: Lsn(fields.u64(152)),
        backup_end_required: fields.u32(168) & 0xFF != 0,
        wal_level: fields.u32(172),
        minimums: StandbyMinimums {
            max_connections: fields.u32(180),
            max_worker_processes: fields.u32(184),
            max_wal_senders: fields.u32(188),
            max_prepared_transactions: fields.u32(192),
            max_locks_per_transaction: fields.u32(196),
        },
        block_size: fields.u32(216),
        blocks_per_segment: fields.u32(220),
        wal_segment_size: WalSegmentSize::new(fields.u32(228))?,
        data_checksums: fields.u32(252) != 0,
    })
}

/// The checked content; positions are those of both layouts, which differ only behind the last one used here.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn checked(bytes: &'a [u8]) -> Result<Self, ControlError> {
        let short = || ControlError::Short(bytes.len());
        let whole = Self(bytes);
        // The version stands where it always stood, so it is looked at first: it decides where the CRC is.
        let crc_at = match whole.try_u32(8).ok_or_else(short)? {
            1300 | 1700 => 288,
            1800 => 292,
            other => return Err(ControlError::ControlVersion(other)),
        };
        let stored = whole.try_u32(crc_at).ok_or_else(short)?;
        let content = bytes.get(..crc_at).ok_or_else(short)?;
        let computed = crc32c::crc32c(content);
        if stored == computed { Ok(Self(content)) } else { Err(ControlError::Crc { stored, computed }) }
    }

    fn try_u32(&self, at: usize) -> Option<u32> {
        self.0.get(at..).and_then(|rest| rest.first_chunk()).map(|raw| u32::from_le_bytes(*raw))
    }

    /// Every position used lies before the CRC, so the zero is never seen.
    fn u32(&self, at: usize) -> u32 {
        self.try_u32(at).unwrap_or_default()
    }

    fn u64(&self, at: usize) -> u64 {
        (u64::from(self.u32(at + 4)) << 32) | u64::from(self.u32(at))
    }
}

fn state(number: u32) -> Result<ClusterState, ControlError> {
    Ok(match number {
        0 => ClusterState::Starting,
        1 => ClusterState::ShutDown,
        2 => ClusterState::ShutDownInRecovery,
        3 => ClusterState::ShuttingDown,
        4 => ClusterState::InCrashRecovery,
        5 => ClusterState::InArchiveRecovery,
        6 => ClusterState::InProduction,
        other => return Err(ControlError::State(other)),
    })
}

fn read_part(data_dir: &Path, name: &'static str) -> Result<Vec<u8>, ControlError> {
    let path = data_dir.join(name);
    match std::fs::read(&path) {
        Ok(content) => Ok(content),
        Err(error) if error.kind() == io::ErrorKind::NotFound && data_dir.is_dir() => {
            Err(ControlError::NotADataDirectory { path: data_dir.to_owned(), missing: name })
        }
        // The directory itself is what cannot be reached, so it is what the error must name.
        Err(source) if source.kind() == io::ErrorKind::NotFound => {
            Err(ControlError::Io { path: data_dir.to_owned(), source })
        }
        Err(source) => Err(ControlError::Io { path, source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file as PostgreSQL 15 (1300) or 18 (1800) writes it, with the fields that tests look at.
    fn file(version: u32) -> Vec<u8> {
        let mut bytes = vec![0; 8192];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(0, &7_345_678_901_234_567_890_u64.to_le_bytes());
        put(8, &version.to_le_bytes());
        put(12, &202_209_061_u32.to_le_bytes());
        put(16, &6_u32.to_le_bytes());
        put(32, &0x200_0060_u64.to_le_bytes());
        put(40, &0x200_0028_u64.to_le_bytes());
        put(48, &3_u32.to_le_bytes());
        put(172, &1_u32.to_le_bytes());
        put(180, &100_u32.to_le_bytes());
        put(216, &8192_u32.to_le_bytes());
        put(220, &131_072_u32.to_le_bytes());
        put(228, &(64 * 1024 * 1024_u32).to_le_bytes());
        put(252, &1_u32.to_le_bytes());
        let crc_at = if version == 1800 { 292 } else { 288 };
        let crc = crc32c::crc32c(&bytes[..crc_at]);
        bytes[crc_at..crc_at + 4].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    #[rstest::rstest]
    #[case(1300)]
    #[case(1700)]
    #[case(1800)]
    fn all_layouts_are_read(#[case] version: u32) {
        let control = parse(&file(version)).unwrap();
        assert_eq!(control.system_identifier, 7_345_678_901_234_567_890);
        assert_eq!((control.control_version, control.catalog_version), (version, 202_209_061));
        assert_eq!((control.state, control.timeline), (ClusterState::InProduction, Timeline(3)));
        assert_eq!((control.checkpoint, control.redo), (Lsn(0x200_0060), Lsn(0x200_0028)));
        assert_eq!((control.wal_segment_size.bytes(), control.block_size), (64 * 1024 * 1024, 8192));
        assert_eq!((control.data_checksums, control.minimums.max_connections), (true, 100));
    }

    // Of a cluster that initdb of PostgreSQL 18.4 made with --wal-segsize=4.
    const EIGHTEEN: &str = "\
        6ef58077333f0c6b080700003300120c0100000000000000333f0c6b00000000a0b2b40000000000a0b2b4000000000001000000\
        010000000100000001000000f002000000000000c33400000100000000000000e802000001000000010000000100000000000000\
        333f0c6b0000000000000000000000000000000000000000e8030000000000000000000000000000000000000000000000000000\
        00000000000000000000000000000000010000000000000064000000080000000a00000000000000400000000000000008000000\
        0000000087d63241002000000000020000200000000040004000000020000000cc07000000080000010000000100000001764e18\
        f85060cda5ded782ad86a1a665b72967b2867648d112e34b23005ae8500000006f21fe7e";

    #[test]
    fn a_file_of_a_real_server_is_read() {
        let control = parse(&hex::decode(EIGHTEEN).unwrap()).unwrap();
        assert_eq!(control.system_identifier, 0x6B0C_3F33_7780_F56E);
        assert_eq!((control.control_version, control.catalog_version), (1800, 202_506_291));
        assert_eq!((control.state, control.timeline), (ClusterState::ShutDown, Timeline(1)));
        assert_eq!((control.checkpoint, control.redo), (Lsn(0xB4_B2A0), Lsn(0xB4_B2A0)));
        assert_eq!(control.wal_segment_size.bytes(), 4 * 1024 * 1024);
        let minimums = StandbyMinimums {
            max_connections: 100,
            max_worker_processes: 8,
            max_wal_senders: 10,
            max_prepared_transactions: 0,
            max_locks_per_transaction: 64,
        };
        assert_eq!((control.minimums, control.wal_level, control.data_checksums), (minimums, 1, true));
    }

    #[test]
    fn every_flipped_bit_before_the_crc_is_found() {
        for at in (0..292).filter(|at| !(8..12).contains(at)) {
            let mut damaged = file(1300);
            damaged[at] ^= 4;
            assert!(matches!(parse(&damaged), Err(ControlError::Crc { .. })), "byte {at}");
        }
    }

    #[test]
    fn another_version_and_a_cut_off_file_are_told_apart_from_damage() {
        assert!(matches!(parse(&file(1201)), Err(ControlError::ControlVersion(1201))));
        assert!(matches!(parse(&file(1300)[..290]), Err(ControlError::Short(290))));
        assert!(matches!(parse(&[]), Err(ControlError::Short(0))));
    }

    #[test]
    fn what_is_no_data_directory_is_told_with_what_is_missing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().display();
        let missing = |what| format!("{path} is not a PostgreSQL data directory: it has no {what}");
        assert_eq!(read(dir.path()).unwrap_err().to_string(), missing("PG_VERSION"));
        std::fs::write(dir.path().join("PG_VERSION"), "15\n").unwrap();
        assert_eq!(read(dir.path()).unwrap_err().to_string(), missing("global/pg_control"));
        assert_eq!(major_version(dir.path()).unwrap(), 15);
        let nowhere = dir.path().join("nowhere");
        let error = read(&nowhere).unwrap_err().to_string();
        assert_eq!(error, format!("cannot read {}: No such file or directory (os error 2)", nowhere.display()));
    }
}
