//! The writers.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use ::postgres::types::PgLsn;
use ::postgres::{Client, Config, Error, NoTls, Statement};

use super::{Mark, Record, Row, chained};
use crate::wait;

/// How much a load does.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// Sessions that write side by side.
    pub writers: i32,
    /// Rows a second that each writes at most; none: as fast as it can.
    pub rows_per_second: Option<f64>,
    /// Bytes of payload in a row.
    pub payload_bytes: usize,
}

impl Default for Pace {
    fn default() -> Self {
        Self { writers: 4, rows_per_second: Some(100.0), payload_bytes: 200 }
    }
}

/// A running load. Its writers connect again whenever the server is back, and go on where they were.
#[derive(Debug)]
pub struct Load {
    shared: Arc<Shared>,
    writers: Vec<JoinHandle<Option<i64>>>,
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    acknowledged: AtomicUsize,
    /// The farthest position that anybody knows to be durable: what is sent from now on is committed behind it.
    durable: AtomicU64,
    /// Held for reading while a row is written, for writing while no row may be.
    gate: RwLock<()>,
    rows: Mutex<BTreeMap<(i32, i64), Row>>,
}

impl Load {
    /// Starts the writers; the table must be there.
    pub fn start(config: &Config, pace: Pace) -> Self {
        let shared = Arc::new(Shared::default());
        let writers = (0..pace.writers)
            .map(|number| {
                let writer = Writer::new(number, pace, config.clone(), Arc::clone(&shared));
                std::thread::spawn(move || writer.run())
            })
            .collect();
        Self { shared, writers }
    }

    /// How many rows have been acknowledged.
    pub fn acknowledged(&self) -> usize {
        self.shared.acknowledged.load(Ordering::SeqCst)
    }

    /// Waits until so many rows more have been acknowledged.
    #[track_caller]
    pub fn wait_for(&self, more: usize) {
        let goal = self.acknowledged() + more;
        wait::until_seen(Duration::from_mins(1), &format!("{goal} acknowledged rows"), || {
            let now = self.acknowledged();
            if now >= goal { Ok(()) } else { Err(now) }
        });
    }

    /// Holds the writers for a moment, and marks it: time, position and a restore point of this name.
    #[track_caller]
    pub fn mark(&self, client: &mut Client, name: &str) -> Mark {
        let _closed = self.shared.gate.write().unwrap_or_else(PoisonError::into_inner);
        // All that was acknowledged is before the flush position, all that comes is behind it.
        let query = "SELECT pg_catalog.clock_timestamp(), pg_catalog.pg_current_wal_flush_lsn()";
        let row = client.query_one(query, &[]).expect("the server is up");
        self.shared.durable.fetch_max(row.get::<_, PgLsn>(1).into(), Ordering::SeqCst);
        let restore_point = client.query_one("SELECT pg_catalog.pg_create_restore_point($1)", &[&name]);
        restore_point.expect("a restore point can be made");
        Mark { time: row.get(0), position: row.get(1), name: name.into() }
    }

    /// What is known so far; rows under way are not in it.
    pub fn so_far(&self) -> Record {
        let rows = self.shared.rows.lock().unwrap_or_else(PoisonError::into_inner);
        Record { rows: rows.values().cloned().collect(), unanswered: Vec::new() }
    }

    /// Ends the writers, whether the server runs or not, and gives back what they know.
    #[track_caller]
    pub fn stop(mut self) -> Record {
        self.shared.stop.store(true, Ordering::SeqCst);
        let writers = std::mem::take(&mut self.writers);
        let ends: Vec<Option<i64>> =
            writers.into_iter().map(|writer| writer.join().expect("no writer fails")).collect();
        let unanswered = (0..).zip(ends).filter_map(|(writer, sequence)| Some((writer, sequence?))).collect();
        Record { unanswered, ..self.so_far() }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
    }
}

struct Writer {
    number: i32,
    pace: Pace,
    config: Config,
    shared: Arc<Shared>,
    sequence: i64,
    previous: [u8; 32],
    /// When the row that was not answered was sent, and the position known to be durable then.
    unanswered: Option<(SystemTime, PgLsn)>,
}

struct Session {
    client: Client,
    insert: Statement,
    ask: Statement,
}

impl Session {
    fn open(config: &Config) -> Result<Self, Error> {
        let mut client = config.connect(NoTls)?;
        let insert = client.prepare("INSERT INTO ledger (writer, sequence, payload, hash) VALUES ($1, $2, $3, $4)")?;
        let ask = client.prepare(
            "SELECT pg_catalog.pg_xact_commit_timestamp(xmin), pg_catalog.pg_current_wal_insert_lsn(),
                    pg_catalog.pg_current_wal_flush_lsn()
               FROM ledger WHERE writer = $1 AND sequence = $2",
        )?;
        Ok(Self { client, insert, ask })
    }
}

impl Writer {
    fn new(number: i32, pace: Pace, config: Config, shared: Arc<Shared>) -> Self {
        Self { number, pace, config, shared, sequence: 1, previous: [0; 32], unanswered: None }
    }

    /// Writes until it is told to stop; the answer is the sequence of the row whose fate is not known.
    fn run(mut self) -> Option<i64> {
        while !self.stopped() {
            // A server that is down, or starting, refuses: it is asked again until the load is over.
            if self.session().is_err() {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        self.unanswered.map(|_| self.sequence)
    }

    fn stopped(&self) -> bool {
        self.shared.stop.load(Ordering::SeqCst)
    }

    /// Writes rows until the session ends.
    fn session(&mut self) -> Result<(), Error> {
        let mut session = Session::open(&self.config)?;
        let interval = self.pace.rows_per_second.map_or(Duration::ZERO, |rate| Duration::from_secs_f64(1.0 / rate));
        while !self.stopped() {
            let due = Instant::now() + interval;
            let shared = Arc::clone(&self.shared);
            {
                let _open = shared.gate.read().unwrap_or_else(PoisonError::into_inner);
                self.append(&mut session)?;
            }
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
        Ok(())
    }

    /// Writes the next row, or finds that it is there: its answer may have been lost.
    fn append(&mut self, session: &mut Session) -> Result<(), Error> {
        let payload = self.payload();
        let hash = chained(&self.previous, self.number, self.sequence, &payload);
        let key: [&(dyn ::postgres::types::ToSql + Sync); 2] = [&self.number, &self.sequence];
        let there = self.unanswered.is_some() && session.client.query_opt(&session.ask, &key)?.is_some();
        let now = (SystemTime::now(), PgLsn::from(self.shared.durable.load(Ordering::SeqCst)));
        let (sent, after) = self.unanswered.filter(|_| there).unwrap_or(now);
        if !there {
            self.unanswered = Some((sent, after));
            let row = [key[0], key[1], &payload, &hash.as_slice()];
            session.client.execute(&session.insert, &row)?;
        }
        let acknowledged = SystemTime::now();
        // The row counts from here on, whether or not the server lives to say when it was committed.
        let told = session.client.query_one(&session.ask, &key);
        let committed = told.as_ref().ok().and_then(|told| told.get(0));
        let before = told.as_ref().ok().map(|told| told.get(1));
        let (writer, sequence) = (self.number, self.sequence);
        self.remember(Row { writer, sequence, hash, sent, acknowledged, committed, after, before });
        let durable: PgLsn = told?.get(2);
        self.shared.durable.fetch_max(durable.into(), Ordering::SeqCst);
        Ok(())
    }

    fn remember(&mut self, row: Row) {
        self.unanswered = None;
        self.sequence += 1;
        self.previous = row.hash;
        let mut rows = self.shared.rows.lock().unwrap_or_else(PoisonError::into_inner);
        rows.insert((row.writer, row.sequence), row);
        self.shared.acknowledged.fetch_add(1, Ordering::SeqCst);
    }

    /// Text that does not compress to nothing, and is the same whenever this row is tried again.
    fn payload(&self) -> String {
        let mut bytes = vec![0; self.pace.payload_bytes.div_ceil(2)];
        let seed = chained(&self.previous, self.number, self.sequence, "payload");
        blake3::Hasher::new_keyed(&seed).finalize_xof().fill(&mut bytes);
        let mut text: String = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]).map(hex_digit).collect();
        text.truncate(self.pace.payload_bytes);
        text
    }
}

fn hex_digit(value: u8) -> char {
    char::from_digit(value.into(), 16).expect("half a byte")
}
