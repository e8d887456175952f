//! How far a primary's log is flushed, and since when that is enough.

use std::time::Instant;

use jiff::Timestamp;
use postgres::Client;

use super::lsn::{Lsn, Timeline};
use crate::engine::{EngineError, EngineResult};

/// Everything that was committed up to a time is in the log up to a position.
#[derive(Debug, Clone)]
pub struct FlushPoint {
    /// The time, by the server's clock.
    pub at: Timestamp,
    /// The position.
    pub lsn: Lsn,
    /// The timeline.
    pub timeline: Timeline,
    /// When the server was started: after a crash it may write over log that it had flushed.
    pub server_started: String,
    /// When it was asked, by this process's clock, which never jumps.
    pub seen: Instant,
}

/// A session that asks for flush points.
pub struct Flushing {
    client: Client,
}

impl Flushing {
    pub(super) fn new(client: Client) -> Self {
        Self { client }
    }

    /// Asks; `None` while the server is a standby.
    ///
    /// # Errors
    /// Where the server does not answer.
    pub fn point(&mut self) -> EngineResult<Option<FlushPoint>> {
        let failed = |error: postgres::Error| {
            EngineError::Unreachable(format!("asking the server for its log position: {error}"))
        };
        let nonsense =
            |what: String| EngineError::Unreachable(format!("the server's log position makes no sense: {what}"));
        let seen = Instant::now();
        // First the time, then the position: a commit that was answered before the time is before the position.
        let row = self
            .client
            .query_one(
                "SELECT pg_catalog.pg_is_in_recovery(), (extract(epoch FROM pg_catalog.clock_timestamp()) * 1000000)::int8, \
                 pg_catalog.pg_postmaster_start_time()::text",
                &[],
            )
            .map_err(failed)?;
        if row.get::<_, bool>(0) {
            return Ok(None);
        }
        let (at, server_started): (i64, String) = (row.get(1), row.get(2));
        let row = self
            .client
            .query_one(
                "SELECT l.lsn::text, ('x' || substr(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()), 1, 8))::bit(32)::int8 \
                 FROM (SELECT pg_catalog.pg_current_wal_flush_lsn() AS lsn) l",
                &[],
            )
            .map_err(failed)?;
        let lsn: String = row.get(0);
        Ok(Some(FlushPoint {
            at: Timestamp::from_microsecond(at).map_err(|error| nonsense(error.to_string()))?,
            lsn: lsn.parse().map_err(|_| nonsense(lsn.clone()))?,
            timeline: Timeline(u32::try_from(row.get::<_, i64>(1)).map_err(|error| nonsense(error.to_string()))?),
            server_started,
            seen,
        }))
    }
}
