//! How a run ends: what it says, and its exit code.

use std::error::Error;
use std::fmt::Write as _;

use crate::engine::EngineError;
use crate::repository::RepositoryError;
use crate::repository::store::{StoreError, StoreFault};

/// Done, and true.
pub(super) const DONE: u8 = 0;
/// Done, and something is wrong with the data.
pub(super) const DATA: u8 = 1;
/// The command line or the configuration is wrong.
pub(super) const USAGE: u8 = 2;
/// It could not be done.
pub(super) const UNDONE: u8 = 3;
/// What makes PostgreSQL end recovery with an error instead of taking a file for past the end of the log: anything
/// above 125 (PostgreSQL documentation, `restore_command`).
pub(super) const NO_END_OF_LOG: u8 = 126;

/// How a command that ran to its end found the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// All is well.
    Sound,
    /// Something is wrong, and was reported.
    Wrong,
}

impl Found {
    /// `Wrong` where `wrong`.
    pub(super) fn wrong_if(wrong: bool) -> Self {
        if wrong { Self::Wrong } else { Self::Sound }
    }

    pub(super) fn code(self) -> u8 {
        match self {
            Self::Sound => DONE,
            Self::Wrong => DATA,
        }
    }
}

/// Why a command did not run to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) code: u8,
    pub(super) message: String,
}

impl Failure {
    /// The user has to write something else.
    pub(super) fn usage(message: impl Into<String>) -> Self {
        Self { code: USAGE, message: message.into() }
    }

    /// The data is not what it must be.
    pub(super) fn data(error: &dyn Error) -> Self {
        Self { code: DATA, message: told(error) }
    }

    /// It could not be done.
    pub(super) fn undone(error: &dyn Error) -> Self {
        Self { code: UNDONE, message: told(error) }
    }

    /// The same, told to a caller that only asks whether it was done.
    pub(super) fn undone_at_all(self) -> Self {
        Self { code: if self.code == DATA { UNDONE } else { self.code }, ..self }
    }

    /// It could not be done, in words of our own.
    pub(super) fn because(message: impl Into<String>) -> Self {
        Self { code: UNDONE, message: message.into() }
    }
}

/// An error with its causes, each once: many errors already tell theirs.
pub(super) fn told(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let reason = error.to_string();
        if !text.contains(&reason) {
            // Writing to a string cannot fail.
            let _ = write!(text, ": {reason}");
        }
        cause = error.source();
    }
    text
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        match (error.action, &error.fault) {
            // The URL names nothing that could be opened, whatever is tried.
            ("open", StoreFault::Refused(reason)) => Self::usage(reason.clone()),
            _ => Self::undone(&error),
        }
    }
}

impl From<RepositoryError> for Failure {
    fn from(error: RepositoryError) -> Self {
        if error.as_damage().is_some() { Self::data(&error) } else { Self::undone(&error) }
    }
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        if matches!(error, EngineError::Data(_)) { Self::data(&error) } else { Self::undone(&error) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repository::Damage;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Chained {
        text: &'static str,
        #[source]
        cause: Option<Box<Chained>>,
    }

    fn chain(texts: &[&'static str]) -> Chained {
        let (text, rest) = texts.split_first().unwrap();
        Chained { text, cause: (!rest.is_empty()).then(|| Box::new(chain(rest))) }
    }

    #[test]
    fn every_cause_is_told_once() {
        assert_eq!(told(&chain(&["cannot connect", "no route", "cable"])), "cannot connect: no route: cable");
        assert_eq!(told(&chain(&["cannot connect: no route", "no route", "cable"])), "cannot connect: no route: cable");
        assert_eq!(told(&chain(&["alone"])), "alone");
    }

    #[test]
    fn damage_is_told_from_what_could_not_be_done() {
        let damage = Damage { object: "a/b".into(), what: "it is short".into() };
        let failure = Failure::from(RepositoryError::Damaged(damage));
        assert_eq!(failure, Failure { code: DATA, message: "a/b is damaged: it is short".into() });
        let failure = Failure::from(RepositoryError::Busy("a backup runs".into()));
        assert_eq!(failure, Failure { code: UNDONE, message: "a backup runs".into() });
        assert_eq!(Failure::from(EngineError::Data("an index".into())).code, DATA);
        assert_eq!(Failure::from(EngineError::Refused("wal_level".into())).code, UNDONE);
    }
}
