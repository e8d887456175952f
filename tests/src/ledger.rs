//! A load whose every acknowledged commit is remembered outside the database, so that what was recovered can be held
//! against it: no acknowledged row at or before the target missing, none after it present, every content right.
//!
//! Each writer appends rows 1, 2, 3 ... of its own, each with a hash over the hash before it.

mod check;
mod load;

use std::time::SystemTime;

use ::postgres::Client;
use ::postgres::types::PgLsn;

pub use check::{Discrepancy, Verified};
pub use load::{Load, Pace};

/// The table the load writes to.
pub const TABLE: &str = "CREATE TABLE ledger (
    writer integer NOT NULL,
    sequence bigint NOT NULL,
    payload text NOT NULL,
    hash bytea NOT NULL,
    PRIMARY KEY (writer, sequence)
)";

/// Makes the table.
#[track_caller]
pub fn create_table(client: &mut Client) {
    client.batch_execute(TABLE).expect("the ledger's table can be made");
}

/// A row whose commit was acknowledged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// Which writer wrote it.
    pub writer: i32,
    /// Its number among that writer's rows, from 1.
    pub sequence: i64,
    /// The hash over the row before and this one.
    pub hash: [u8; 32],
    /// When it was sent, by the client's clock.
    pub sent: SystemTime,
    /// When its commit was acknowledged, by the client's clock.
    pub acknowledged: SystemTime,
    /// The commit's time by the server's clock, as it is in the log; none if the server was killed before it could say.
    pub committed: Option<SystemTime>,
    /// The commit's record starts at or after this position ...
    pub after: PgLsn,
    /// ... and ends at or before this one; none if the server was killed before it could say.
    pub before: Option<PgLsn>,
}

/// A moment between two commits, with no commit of the load under way.
#[derive(Debug, Clone)]
pub struct Mark {
    /// The server's clock.
    pub time: SystemTime,
    /// Up to where the log was durable: all acknowledged commits end at or before it, all later ones start behind it.
    pub position: PgLsn,
    /// The restore point made there.
    pub name: String,
}

/// Up to where a database was recovered.
#[derive(Debug, Clone)]
pub enum Target {
    /// All that is in the log.
    Latest,
    /// The last commit at or before a time of the server's clock. Commits get their time before their place in the
    /// log, so that only the time of a [`Mark`] is exact when writers run side by side.
    Time(SystemTime),
    /// The record at a position.
    Position(PgLsn),
}

impl Target {
    /// The same as arguments of `holdfast-agent restore` and `drill`.
    pub fn arguments(&self) -> Vec<String> {
        match self {
            Self::Latest => Vec::new(),
            Self::Time(time) => {
                let time = jiff::Timestamp::try_from(*time).expect("a time of our days");
                vec!["--target-time".into(), format!("{time:.6}")]
            }
            Self::Position(position) => vec!["--target-lsn".into(), position.to_string()],
        }
    }
}

/// All that a load knows: what was acknowledged, and for each writer the row whose fate is not known.
#[derive(Debug, Clone, Default)]
pub struct Record {
    /// The acknowledged rows, by writer and sequence.
    pub rows: Vec<Row>,
    /// Writer and sequence of rows that were sent and never answered: they may be there or not.
    pub unanswered: Vec<(i32, i64)>,
}

/// The hash of a row, chained to the one before.
fn chained(previous: &[u8; 32], writer: i32, sequence: i64, payload: &str) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(previous).update(&writer.to_le_bytes()).update(&sequence.to_le_bytes()).update(payload.as_bytes());
    *hasher.finalize().as_bytes()
}
