//! Holding a recovered database against what is remembered.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use ::postgres::Client;
use ::postgres::fallible_iterator::FallibleIterator as _;
use ::postgres::types::PgLsn;

use super::{Record, Row, Target, chained};

/// A row's writer and sequence.
type Key = (i32, i64);

/// What was found where everything is right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verified {
    /// Rows in the database.
    pub present: usize,
    /// Acknowledged rows that had to be there, and are.
    pub required: usize,
    /// Acknowledged rows that must not be there, since they came after the target, and are not.
    pub excluded: usize,
}

/// What is wrong with a recovered database.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Discrepancy {
    /// Acknowledged at or before the target, and not there.
    pub missing: Vec<Key>,
    /// There, though written after the target or never.
    pub unexpected: Vec<Key>,
    /// There with another content than was written, or not following on the row before.
    pub broken: Vec<Key>,
}

impl fmt::Display for Discrepancy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds = [("missing", &self.missing), ("unexpected", &self.unexpected), ("broken", &self.broken)];
        for (kind, keys) in kinds.into_iter().filter(|(_, keys)| !keys.is_empty()) {
            write!(f, "{} {kind} (first {:?}) ", keys.len(), keys[0])?;
        }
        Ok(())
    }
}

impl std::error::Error for Discrepancy {}

/// Whether an acknowledged row belongs into a database recovered to a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Within,
    Beyond,
    /// The server never said where exactly, and the target lies within what is known.
    Unknown,
}

impl Row {
    fn place(&self, target: &Target) -> Place {
        match target {
            Target::Latest => Place::Within,
            Target::Time(time) => {
                // Not told by the server, the commit happened between sending and acknowledging.
                let earliest = self.committed.unwrap_or(self.sent);
                let latest = self.committed.unwrap_or(self.acknowledged);
                Place::of(latest <= *time, earliest > *time)
            }
            // `before` may be missing, and is then as far as can be.
            Target::Position(position) => {
                let latest = self.before.unwrap_or(PgLsn::from(u64::MAX));
                Place::of(latest <= *position, self.after >= *position)
            }
        }
    }
}

impl Place {
    fn of(within: bool, beyond: bool) -> Self {
        match (within, beyond) {
            (true, _) => Self::Within,
            (_, true) => Self::Beyond,
            _ => Self::Unknown,
        }
    }
}

impl Record {
    /// Compares the ledger in a database with what is remembered.
    ///
    /// # Errors
    /// What differs.
    #[track_caller]
    pub fn check(&self, client: &mut Client, target: &Target) -> Result<Verified, Discrepancy> {
        let remembered: BTreeMap<Key, &Row> = self.rows.iter().map(|row| ((row.writer, row.sequence), row)).collect();
        let (present, broken) = read(client, &remembered);
        let mut wrong = Discrepancy { broken, ..Discrepancy::default() };
        let mut right = Verified { present: present.len(), required: 0, excluded: 0 };
        for (key, row) in &remembered {
            match (row.place(target), present.contains(key)) {
                (Place::Within, true) => right.required += 1,
                (Place::Within, false) => wrong.missing.push(*key),
                (Place::Beyond, true) => wrong.unexpected.push(*key),
                (Place::Beyond, false) => right.excluded += 1,
                (Place::Unknown, _) => {}
            }
        }
        let unanswered = |key: &Key| self.unanswered.contains(key);
        wrong.unexpected.extend(present.iter().filter(|key| !remembered.contains_key(key) && !unanswered(key)));
        if wrong == Discrepancy::default() { Ok(right) } else { Err(wrong) }
    }
}

/// The keys of all rows, and of those that are not what was written.
fn read(client: &mut Client, remembered: &BTreeMap<Key, &Row>) -> (BTreeSet<Key>, Vec<Key>) {
    let (mut present, mut broken) = (BTreeSet::new(), Vec::new());
    let mut chain = (i32::MIN, 0, [0; 32]);
    let query = "SELECT writer, sequence, payload, hash FROM ledger ORDER BY writer, sequence";
    let mut rows = client.query_raw(query, std::iter::empty::<i32>()).expect("the ledger can be read");
    while let Some(row) = rows.next().expect("the ledger can be read to its end") {
        let (key, payload, hash): (Key, &str, &[u8]) = ((row.get(0), row.get(1)), row.get(2), row.get(3));
        let (_, last, previous) = if chain.0 == key.0 { chain } else { (key.0, 0, [0; 32]) };
        let expected = chained(&previous, key.0, key.1, payload);
        let as_remembered = remembered.get(&key).is_none_or(|row| row.hash == hash);
        if key.1 != last + 1 || expected != hash || !as_remembered {
            broken.push(key);
        }
        present.insert(key);
        // The chain goes on from what is stored, so that one bad row is reported once.
        chain = (key.0, key.1, hash.try_into().unwrap_or_default());
    }
    (present, broken)
}
