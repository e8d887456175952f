//! `watch`

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Args;
use jiff::SignedDuration;
use signal_hook::consts::{SIGINT, SIGTERM};

use super::exit::{Failure, Found};
use super::options::{Connection, Global};
use super::output::{self, Format};
use super::units::{Bytes, Seconds, moment};
use super::values;
use crate::engine::postgres::PostgresServer;
use crate::watch::{self, Tick, WatchRequest};

/// Ships the current WAL segment as it grows, until it is stopped
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// The server's data directory, on this machine
    #[arg(long, value_name = "DIR", env = "HOLDFAST_DATA_DIR")]
    data_dir: PathBuf,

    /// How often it looks
    #[arg(long, value_name = "TIME", env = "HOLDFAST_INTERVAL", default_value = "5s", value_parser = values::some_time)]
    interval: SignedDuration,

    #[command(flatten)]
    connection: Connection,
}

const EXAMPLES: &str = "\
Examples:
  holdfast-agent --repository /backup watch --data-dir /var/lib/postgresql/16/main
  holdfast-agent watch --service shop --interval 2s --output json

It runs beside archive_command, which ships segments only once they are full: with it, what was committed more than an \
interval ago is in the repository. SIGTERM or SIGINT ends it. With --output json it prints a document for each look, \
one a line.

Exit codes: 0 it was asked to end; 2 wrong usage; 3 it cannot go on.";

impl Arguments {
    pub(super) fn run(self, global: &Global) -> Result<Found, Failure> {
        let connection = self.connection.options()?;
        let store = global.store()?;
        let stop = stop_on_signals()?;
        let interval = self.interval.unsigned_abs();
        let format = global.output;
        let mut printed = Ok(());
        let mut said = None;
        let server = PostgresServer::new(connection, self.data_dir.clone());
        let request = WatchRequest { data_directory: self.data_dir, choice: global.choice(false, false), interval };
        watch::watch(&server, store, &request, &stop, &mut |tick| {
            printed = tell(format, tick, &mut said);
            if printed.is_err() {
                stop.store(true, Ordering::SeqCst);
            }
        })?;
        printed.map(|()| Found::Sound)
    }
}

/// Ends the watch between two steps of it, never within one.
fn stop_on_signals() -> Result<Arc<AtomicBool>, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        signal_hook::flag::register(signal, Arc::clone(&stop))
            .map_err(|error| Failure::because(format!("cannot wait for signals: {error}")))?;
    }
    Ok(stop)
}

/// Prints a look. For people only those that shipped something, or failed otherwise than the one before.
fn tell(format: Format, tick: &Tick, said: &mut Option<String>) -> Result<(), Failure> {
    if format == Format::Json {
        return output::print_json_line(tick);
    }
    let at = moment(tick.at);
    let text = match &tick.error {
        Some(error) if said.as_ref() == Some(error) => return Ok(()),
        Some(error) => format!("{at}  not shipped: {error}\n"),
        None if tick.shipped_bytes == 0 && said.is_none() => return Ok(()),
        None => {
            let lag = tick.lag_seconds.map_or_else(String::new, |lag| format!(", {} behind", Seconds(lag)));
            let position = tick.position.as_deref().unwrap_or("nowhere");
            format!("{at}  stored to {position}: {} shipped{lag}\n", Bytes(tick.shipped_bytes))
        }
    };
    said.clone_from(&tick.error);
    output::print_text(&text)
}
