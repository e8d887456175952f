//! Ships the log while it is being written, so that the recovery point trails commits by seconds.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde::Serialize;

use crate::engine::EngineError;
use crate::engine::postgres::engine::{PostgresServer, identity_of_directory};
use crate::engine::postgres::flush::{FlushPoint, Flushing};
use crate::engine::postgres::record::{PostgresRecord, segment_name};
use crate::engine::postgres::wal::{SegmentNumber, WalSegment, WalSegmentSize};
use crate::home::{self, Choice, Home};
use crate::repository::RepositoryError;
use crate::repository::store::Store;
use crate::repository::tail::{Position, Shipping};

/// How the log is watched.
#[derive(Debug, Clone)]
pub struct WatchRequest {
    /// The data directory.
    pub data_directory: PathBuf,
    /// Which lineage it goes to.
    pub choice: Choice,
    /// How long between two looks.
    pub interval: Duration,
}

/// What one look found and did.
#[derive(Debug, Clone, Serialize)]
pub struct Tick {
    /// When, by this machine's clock.
    pub at: Timestamp,
    /// Up to where everything is stored.
    pub position: Option<String>,
    /// Everything that was committed up to then, by the server's clock, is stored.
    pub complete_until: Option<Timestamp>,
    /// How far that is behind, in seconds.
    pub lag_seconds: Option<f64>,
    /// Bytes of the log that were stored this time.
    pub shipped_bytes: u64,
    /// Why not everything was stored this time; it is tried again.
    pub error: Option<String>,
}

/// Why one look failed.
#[derive(Debug, thiserror::Error)]
enum LookError {
    #[error(transparent)]
    Repository(#[from] RepositoryError),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(
        "{missing} is neither stored nor in pg_wal any more: the log has a hole there. Make a new backup; times before \
         it can be recovered only up to the hole"
    )]
    Hole { missing: String },
    #[error("the server is a standby: its primary ships the log; shipping begins once it is promoted")]
    Standby,
}

/// Watches until `stop` is set. What fails is reported to `tick` and tried again at the next look.
///
/// # Errors
/// Where the data directory is none, or the repository does not take its log: these do not mend by themselves.
pub fn watch(
    server: &PostgresServer,
    store: Arc<dyn Store>,
    request: &WatchRequest,
    stop: &AtomicBool,
    tick: &mut dyn FnMut(&Tick),
) -> Result<(), RepositoryError> {
    let (identity, control) =
        identity_of_directory(&request.data_directory).map_err(|error| RepositoryError::Refused(error.to_string()))?;
    let home = home::of_server(store, &identity, &request.choice)?;
    let mut watcher = Watcher {
        home: &home,
        wal: request.data_directory.join("pg_wal"),
        size: control.wal_segment_size,
        flushing: None,
        shipping: None,
        stored: None,
        last: None,
        shipped_bytes: 0,
    };
    while !stop.load(Ordering::SeqCst) {
        let next = Instant::now() + request.interval;
        let looked = watcher.look(server);
        tick(&watcher.tick(looked.err()));
        while Instant::now() < next && !stop.load(Ordering::SeqCst) {
            std::thread::park_timeout((next - Instant::now()).min(Duration::from_millis(50)));
        }
    }
    Ok(())
}

struct Watcher<'a> {
    home: &'a Home,
    wal: PathBuf,
    size: WalSegmentSize,
    flushing: Option<Flushing>,
    shipping: Option<(WalSegment, Shipping)>,
    /// All segments before this one are stored, from the newest backup on.
    stored: Option<WalSegment>,
    last: Option<FlushPoint>,
    shipped_bytes: u64,
}

impl Watcher<'_> {
    fn look(&mut self, server: &PostgresServer) -> Result<(), LookError> {
        let point = match self.ask(server) {
            Ok(point) => point,
            Err(error) => {
                // The next look opens a new session.
                self.flushing = None;
                return Err(error.into());
            }
        };
        let Some(point) = point else {
            return Err(LookError::Standby);
        };
        if self.last.as_ref().is_some_and(|last| last.server_started != point.server_started)
            && let Some((_, shipping)) = &mut self.shipping
        {
            // A server that crashed may write over what it had flushed of an unfinished record.
            shipping.distrust();
        }
        let current = WalSegment::at(point.timeline, point.lsn, self.size);
        self.complete(current)?;
        self.tail(current, &point)?;
        self.home.system.log(self.lineage()).note_position(&Position {
            lineage: self.lineage().to_owned(),
            branch: point.timeline.hex(),
            position: point.lsn.to_string(),
            complete_until: point.at,
        })?;
        self.last = Some(point);
        Ok(())
    }

    fn lineage(&self) -> &str {
        &self.home.lineage.lineage
    }

    fn ask(&mut self, server: &PostgresServer) -> Result<Option<FlushPoint>, EngineError> {
        let flushing = match &mut self.flushing {
            Some(flushing) => flushing,
            None => self.flushing.insert(server.flushing()?),
        };
        flushing.point()
    }

    /// Makes sure that every segment before the current one is stored.
    fn complete(&mut self, current: WalSegment) -> Result<(), LookError> {
        let home = self.home;
        let log = home.system.log(&home.lineage.lineage);
        let mut next = match self.stored {
            Some(stored) if stored.timeline == current.timeline => stored,
            _ => self.first_wanted(current)?,
        };
        while next.number < current.number {
            let file = segment_name(&next);
            if !log.has(&file)? {
                let source = self.wal.join(next.to_string());
                if !source.exists() {
                    return Err(LookError::Hole { missing: file.name });
                }
                log.push(&file, &source, 2)?;
                self.shipped_bytes += u64::from(self.size.bytes());
            }
            log.drop_tail(&file)?;
            next = next.next();
            self.stored = Some(next);
        }
        self.stored = Some(next);
        Ok(())
    }

    /// The first segment that has to be stored: where the newest backup ends, if it is on this timeline.
    fn first_wanted(&self, current: WalSegment) -> Result<WalSegment, LookError> {
        for id in self.home.system.backups(self.lineage())?.iter().rev() {
            if let Ok((manifest, _)) = self.home.system.manifest(self.lineage(), id)
                && let Ok(record) = PostgresRecord::parse(&manifest.engine_record)
                && record.timeline == current.timeline
            {
                return Ok(WalSegment { number: record.segments().1, ..current });
            }
        }
        Ok(WalSegment { number: oldest_segment(&self.wal, current), ..current })
    }

    fn tail(&mut self, current: WalSegment, point: &FlushPoint) -> Result<(), LookError> {
        let home = self.home;
        let log = home.system.log(&home.lineage.lineage);
        let file = segment_name(&current);
        if self.shipping.as_ref().is_none_or(|(segment, _)| *segment != current) {
            self.shipping = Some((current, log.begin_tail(&file)?));
        }
        if let Some((_, shipping)) = &mut self.shipping {
            let end = point.lsn.bytes_since(current.start());
            let before = shipping.shipped();
            // A tail that says until when it is complete tells that a position was noted before.
            let until = self.last.is_some().then_some(point.at);
            log.ship_tail(shipping, &self.wal.join(current.to_string()), end, until)?;
            self.shipped_bytes += shipping.shipped().saturating_sub(before);
        }
        Ok(())
    }

    fn tick(&mut self, error: Option<LookError>) -> Tick {
        let at = Timestamp::now();
        Tick {
            at,
            position: self.last.as_ref().map(|point| point.lsn.to_string()),
            complete_until: self.last.as_ref().map(|point| point.at),
            lag_seconds: self.last.as_ref().map(|point| point.seen.elapsed().as_secs_f64()),
            shipped_bytes: std::mem::take(&mut self.shipped_bytes),
            error: error.map(|error| error.to_string()),
        }
    }
}

/// The oldest segment of the timeline from which on none is missing in `pg_wal` before the current one.
fn oldest_segment(wal: &Path, current: WalSegment) -> SegmentNumber {
    let mut number = current.number;
    while let Some(before) = number.0.checked_sub(1) {
        let segment = WalSegment { number: SegmentNumber(before), ..current };
        if !wal.join(segment.to_string()).exists() {
            break;
        }
        number = segment.number;
    }
    number
}
