//! What the running server says about itself.

use std::path::PathBuf;

use jiff::Timestamp;
use postgres::{Client, Row};

use super::lsn::Timeline;
use super::session::standing;
use super::session_error::{SessionError, column, failed, missing_right, nonsense, timestamp};
use super::wal::WalSegmentSize;

/// The oldest version whose backup functions are the ones used here.
pub(super) const OLDEST_VERSION: u32 = 150_000;

/// What the running server says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerFacts {
    /// For example 150018.
    pub version_num: u32,
    /// For example `15.18 (Debian 15.18-0+deb12u1)`.
    pub version: String,
    /// Which cluster it is.
    pub system_identifier: u64,
    /// The version of the system catalogs.
    pub catalog_version: u32,
    /// Where the server sees its data.
    pub data_directory: PathBuf,
    /// Whether it is a standby or recovering.
    pub in_recovery: bool,
    /// The timeline it writes, or replays.
    pub timeline: Timeline,
    /// `minimal`, `replica` or `logical`.
    pub wal_level: String,
    /// `off`, `on` or `always`.
    pub archive_mode: String,
    /// As set; empty or `(disabled)` where there is none.
    pub archive_command: String,
    /// As set; empty where there is none.
    pub archive_library: String,
    /// The size of a segment of the log.
    pub wal_segment_size: WalSegmentSize,
    /// Whether pages carry checksums.
    pub data_checksums: bool,
    /// The size of a page, in bytes.
    pub block_size: u32,
    /// Whether pages are written to the log in full after a checkpoint.
    pub full_page_writes: bool,
    /// When the server was started.
    pub started: Timestamp,
    /// The server's clock.
    pub now: Timestamp,
    /// The superuser that `initdb` made: a copy can always be asked as this one.
    pub superuser: String,
}

impl ServerFacts {
    /// The major version, for example 15.
    pub fn major(&self) -> u32 {
        self.version_num / 10_000
    }
}

/// Asks the server about itself.
///
/// # Errors
/// If the session ended, or the role may not see the settings.
pub fn facts(client: &mut Client) -> Result<ServerFacts, SessionError> {
    const DOING: &str = "reading the server's settings";
    let rows = client.query(
        "SELECT name, setting FROM pg_catalog.pg_settings WHERE name IN ('server_version_num', 'server_version', \
         'data_directory', 'wal_level', 'archive_mode', 'archive_command', 'archive_library', 'wal_segment_size', \
         'data_checksums', 'block_size', 'full_page_writes')",
        &[],
    );
    let settings = Settings(rows.map_err(|error| failed(client, DOING, &error))?);
    let version_num = settings.number("server_version_num")?;
    let version = settings.text("server_version")?;
    if version_num < OLDEST_VERSION {
        return Err(SessionError::TooOld(version));
    }
    let Ok(data_directory) = settings.text("data_directory") else {
        return Err(missing_right(client, "see data_directory", "it is not shown", "GRANT pg_read_all_settings TO"));
    };
    let row = client.query_one(
        "SELECT s.system_identifier::text, s.catalog_version_no::int8, pg_catalog.pg_is_in_recovery(), \
         (extract(epoch FROM pg_catalog.pg_postmaster_start_time()) * 1000000)::int8, \
         (extract(epoch FROM pg_catalog.clock_timestamp()) * 1000000)::int8, \
         (SELECT rolname::text FROM pg_catalog.pg_roles WHERE oid = 10) FROM pg_catalog.pg_control_system() s",
        &[],
    );
    let row = row.map_err(|error| failed(client, DOING, &error))?;
    let standing = standing(client, DOING)?;
    let segment_size = settings.number("wal_segment_size")?;
    Ok(ServerFacts {
        version_num,
        version,
        system_identifier: signed_identifier(&column::<String>(&row, 0)?)?,
        catalog_version: u32::try_from(column::<i64>(&row, 1)?).unwrap_or_default(),
        data_directory: data_directory.into(),
        in_recovery: column(&row, 2)?,
        timeline: standing.timeline,
        wal_level: settings.text("wal_level")?,
        archive_mode: settings.text("archive_mode")?,
        archive_command: settings.text("archive_command")?,
        archive_library: settings.text("archive_library")?,
        wal_segment_size: WalSegmentSize::new(segment_size).map_err(|_| nonsense(DOING, segment_size.to_string()))?,
        data_checksums: settings.text("data_checksums")? == "on",
        block_size: settings.number("block_size")?,
        full_page_writes: settings.text("full_page_writes")? == "on",
        started: timestamp(column(&row, 3)?)?,
        now: timestamp(column(&row, 4)?)?,
        superuser: column(&row, 5)?,
    })
}

struct Settings(Vec<Row>);

impl Settings {
    fn text(&self, name: &str) -> Result<String, SessionError> {
        let row = self.0.iter().find(|row| row.try_get::<_, &str>(0).is_ok_and(|found| found == name));
        let row = row.ok_or_else(|| nonsense("reading the server's settings", format!("no {name}")))?;
        Ok(column::<Option<String>>(row, 1)?.unwrap_or_default())
    }

    fn number(&self, name: &str) -> Result<u32, SessionError> {
        let text = self.text(name)?;
        text.parse().map_err(|_| nonsense("reading the server's settings", format!("{name} = {text}")))
    }
}

/// `pg_control_system` gives the identifier as a signed number.
fn signed_identifier(text: &str) -> Result<u64, SessionError> {
    let number: i64 = text.parse().map_err(|_| nonsense("reading the system identifier", text))?;
    Ok(number.cast_unsigned())
}
