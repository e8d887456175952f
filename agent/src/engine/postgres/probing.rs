//! Asks a PostgreSQL server probes: read-only, with a time limit.

use postgres::{Client, SimpleQueryMessage};

use super::connect_options::ConnectOptions;
use super::connection::connect;
use crate::probe::{Probe, ProbeAnswer, ProbeResult, run};

/// A probe that takes longer has failed.
const LIMIT: &str = "SET statement_timeout = '60s'; SET lock_timeout = '10s'; SET default_transaction_read_only = on";

/// Asks all probes of the server that `options` reach, and judges the answers.
pub fn ask_all(options: &ConnectOptions, probes: &[Probe], source: &[ProbeAnswer]) -> Vec<ProbeResult> {
    run(probes, source, &mut |probe| {
        let mut client = connect(options, Some(&probe.database)).map_err(|error| error.to_string())?;
        ask(&mut client, &probe.query)
    })
}

/// The single value that a query returns.
fn ask(client: &mut Client, query: &str) -> Result<Option<String>, String> {
    let failed = |error: postgres::Error| match error.as_db_error() {
        Some(answer) => format!("the server refused it: {}", answer.message()),
        None => format!("it was not answered: {error}"),
    };
    client.batch_execute(LIMIT).map_err(failed)?;
    let mut transaction = client.build_transaction().read_only(true).start().map_err(failed)?;
    let messages = transaction.simple_query(query).map_err(failed)?;
    let mut rows = messages.iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    });
    match (rows.next(), rows.next()) {
        (Some(row), None) if row.len() == 1 => Ok(row.get(0).map(str::to_owned)),
        (Some(row), None) => Err(format!("it returned {} columns; a probe returns one", row.len())),
        (Some(_), Some(_)) => Err("it returned several rows; a probe returns one".to_owned()),
        (None, _) => Err("it returned no row; a probe returns one".to_owned()),
    }
}
