//! Errors of sessions, and the reading of answers.

use jiff::Timestamp;
use postgres::error::SqlState;
use postgres::types::PgLsn;
use postgres::{Client, Row};

use super::lsn::Lsn;

/// Why a question was not answered, or a backup did not come about.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// An old server.
    #[error("this server is PostgreSQL {0}: backups need version 15 or later")]
    TooOld(String),
    /// The role lacks a right.
    #[error("role {role} may not {doing}: {reason}. A superuser can change that with: {grant}")]
    MissingRight {
        /// The role.
        role: String,
        /// What was being done.
        doing: &'static str,
        /// What the server said.
        reason: String,
        /// SQL.
        grant: String,
    },
    /// The server keeps too little log for a copy of a running cluster.
    #[error("wal_level is minimal: a backup of a running server needs replica or logical (and a restart)")]
    WalLevel,
    /// The session ended while it was needed.
    #[error("the session ended while {doing}: {reason}{consequence}")]
    Lost {
        /// What was being done.
        doing: &'static str,
        /// Why.
        reason: String,
        /// What that means.
        consequence: &'static str,
    },
    /// The standby became a primary, or follows another history.
    #[error("the backup is void: the server {before} when it began and {after} when it ended. Take a new one")]
    Promoted {
        /// The role and timeline at the start.
        before: String,
        /// The role and timeline at the end.
        after: String,
    },
    /// The label does not say what the server answered at the start.
    #[error("the backup is void: its label says {found}, but it began at {expected}")]
    Label {
        /// What the label says.
        found: String,
        /// What the server answered.
        expected: String,
    },
    /// An answer that cannot be.
    #[error("while {doing}, the server answered {answer}, which makes no sense")]
    Nonsense {
        /// What was being done.
        doing: &'static str,
        /// What it answered.
        answer: String,
    },
    /// Anything else the server said.
    #[error("{doing} failed: {reason}")]
    Server {
        /// What was being done.
        doing: &'static str,
        /// What the server said.
        reason: String,
        /// Whether the same may succeed later.
        transient: bool,
    },
}

impl SessionError {
    /// Whether trying the whole again can help with nothing changed.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Lost { .. } | Self::Promoted { .. } => true,
            Self::Server { transient, .. } => *transient,
            Self::TooOld(_)
            | Self::MissingRight { .. }
            | Self::WalLevel
            | Self::Label { .. }
            | Self::Nonsense { .. } => false,
        }
    }
}

pub(super) fn failed(client: &mut Client, doing: &'static str, error: &postgres::Error) -> SessionError {
    let Some(answer) = error.as_db_error() else {
        let consequence = if doing.contains("a backup") { "; the backup is void" } else { "" };
        return SessionError::Lost { doing, reason: super::connection::innermost(error), consequence };
    };
    if *answer.code() == SqlState::INSUFFICIENT_PRIVILEGE {
        let grant = "GRANT pg_read_all_settings TO ROLE; GRANT EXECUTE ON FUNCTION pg_backup_start(text, boolean), \
                     pg_backup_stop(boolean) TO";
        return missing_right(client, doing, answer.message(), grant);
    }
    let transient = answer.code().code().starts_with("57") || answer.code().code().starts_with("53");
    SessionError::Server { doing, reason: answer.message().to_owned(), transient }
}

/// `grant` lacks the role at its end, and wherever it says ROLE.
pub(super) fn missing_right(client: &mut Client, doing: &'static str, reason: &str, grant: &str) -> SessionError {
    let row = client.query_one("SELECT current_user::text, quote_ident(current_user::text)", &[]);
    let name = |at| row.as_ref().ok().and_then(|row| row.try_get::<_, String>(at).ok());
    let role = name(0).unwrap_or_else(|| "of this session".into());
    let quoted = name(1).unwrap_or_else(|| "ROLE".into());
    let grant = format!("{} {quoted}", grant.replace("ROLE", &quoted));
    SessionError::MissingRight { role, doing, reason: reason.to_owned(), grant }
}

pub(super) fn lsn(row: &Row, at: usize) -> Result<Lsn, SessionError> {
    column::<PgLsn>(row, at).map(|position| Lsn(position.into()))
}

pub(super) fn timestamp(microseconds: i64) -> Result<Timestamp, SessionError> {
    Timestamp::from_microsecond(microseconds)
        .map_err(|_| nonsense("reading the server's clock", microseconds.to_string()))
}

pub(super) fn column<'a, T: postgres::types::FromSql<'a>>(row: &'a Row, at: usize) -> Result<T, SessionError> {
    row.try_get(at).map_err(|error| nonsense("reading an answer", error.to_string()))
}

pub(super) fn nonsense(doing: &'static str, answer: impl Into<String>) -> SessionError {
    SessionError::Nonsense { doing, answer: answer.into() }
}
