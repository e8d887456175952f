//! Looks into a recovered copy: its structure, and what it answers.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use serde_json::{Value, json};

use super::connect_options::ConnectOptions;
use super::inventory::{DatabaseInventory, inventory};
use super::lsn::Lsn;
use super::probing::ask_all;
use super::record::PostgresRecord;
use super::recover::{PATIENCE, Recovered, Workplace, reached_record, to_target};
use super::recovery_options::TargetAction;
use super::server::{StopMode, find_bin};
use crate::engine::{EngineError, EngineResult, Examine, Examined, LayDown, Target};

/// The role that asks probes, where the copy has it.
const PROBE_ROLE: &str = "holdfast_probe";

pub(super) fn examine(copy: &LayDown<'_>, examine: &Examine<'_>) -> EngineResult<Examined> {
    let record = PostgresRecord::parse(copy.record)?;
    let place = Workplace::new()?;
    let mut examined = Examined::default();
    let clock = Instant::now();
    let Recovered { server, reached, notes } = to_target(copy, examine.bin_directory, &place, TargetAction::Pause)?;
    examined.steps.push(("recover".to_owned(), clock.elapsed()));
    examined.notes.extend(notes);
    examined.reached = reached_record(&reached);
    if reached.lsn < record.stop_lsn {
        examined.failures.push(format!("the copy is at {}, before the backup's end {}", reached.lsn, record.stop_lsn));
    }
    check_reached(copy.target, reached.lsn, &mut examined);

    let clock = Instant::now();
    let options = server.connect_options();
    let inventory = inventory(&options).map_err(EngineError::from)?;
    compare(&record, copy.target, &inventory.databases, &mut examined);
    let bin =
        find_bin(record.major(), examine.bin_directory).map_err(|error| EngineError::Refused(error.to_string()))?;
    let amcheck = amcheck(&bin, &options, &inventory.databases, &mut examined);
    examined.structure = json!({ "databases": inventory.databases, "amcheck": amcheck });
    examined.steps.push(("structure".to_owned(), clock.elapsed()));

    let clock = Instant::now();
    let asking = probe_options(&server, &options, examine, &mut examined)?;
    examined.probes = ask_all(&asking, examine.probes, examine.source);
    for probe in examined.probes.iter().filter(|probe| !probe.passed) {
        examined.failures.push(format!("probe {}: {}", probe.name, probe.reason.as_deref().unwrap_or("failed")));
    }
    examined.steps.push(("probes".to_owned(), clock.elapsed()));
    server.stop(StopMode::Fast, Instant::now() + PATIENCE)?;
    Ok(examined)
}

fn check_reached(target: &Target, reached: Lsn, examined: &mut Examined) {
    if let Target::Position(position) = target
        && position.parse::<Lsn>().is_ok_and(|wanted| reached < wanted)
    {
        examined.failures.push(format!("the copy is at {reached}, before its target {position}"));
    }
}

/// Every database of the backup must be there, with the relations it had, unless log after the backup may have changed them.
fn compare(record: &PostgresRecord, target: &Target, found: &[DatabaseInventory], examined: &mut Examined) {
    for database in &record.databases {
        let Some(copy) = found.iter().find(|copy| copy.oid == database.oid) else {
            report(target, examined, format!("database {} is not in the copy", database.name));
            continue;
        };
        if copy.relations != database.relations {
            let text = format!(
                "database {} has {} relations, it had {} when it was backed up",
                copy.name, copy.relations, database.relations
            );
            report(target, examined, text);
        }
        if copy.collation_actual != database.collation_actual || !copy.changed_collations.is_empty() {
            examined.notes.push(format!(
                "database {}: this machine sorts text by collation version {}, the source by {}: indexes on text may be \
                 wrong here, REINDEX before use",
                copy.name,
                copy.collation_actual.as_deref().unwrap_or("none"),
                database.collation_actual.as_deref().unwrap_or("none"),
            ));
        }
    }
}

/// At the backup's own end nothing may differ; later, the log may have changed it.
fn report(target: &Target, examined: &mut Examined, text: String) {
    if *target == Target::Immediate {
        examined.failures.push(text);
    } else {
        examined.notes.push(format!("{text}; the log after the backup may have changed that"));
    }
}

/// Runs `pg_amcheck` in every database that has its extension.
fn amcheck(bin: &Path, options: &ConnectOptions, databases: &[DatabaseInventory], examined: &mut Examined) -> Value {
    let program = bin.join("pg_amcheck");
    let with: Vec<&str> = databases
        .iter()
        .filter(|database| database.extensions.iter().any(|(name, _)| name == "amcheck"))
        .map(|database| database.name.as_str())
        .collect();
    if !program.exists() || with.is_empty() {
        examined.notes.push(
            "pg_amcheck was not run: no database has the extension amcheck (CREATE EXTENSION amcheck on the source makes \
             drills check every index and table)"
                .to_owned(),
        );
        return json!({ "databases": [] });
    }
    for database in &with {
        let run = Command::new(&program)
            .args(["--heapallindexed", "--no-password", "-d", database])
            .env("PGHOST", options.host.as_deref().unwrap_or_default())
            .env("PGPORT", options.port.unwrap_or(5432).to_string())
            .env("PGUSER", options.user.as_deref().unwrap_or("postgres"))
            .output();
        match run {
            Ok(run) if run.status.success() => {}
            Ok(run) => {
                let said = String::from_utf8_lossy(&run.stdout);
                let said = if said.trim().is_empty() { String::from_utf8_lossy(&run.stderr) } else { said };
                let shown: Vec<&str> = said.lines().take(5).collect();
                examined.failures.push(format!("pg_amcheck of {database}: {}", shown.join(" / ")));
            }
            Err(error) => examined.failures.push(format!("pg_amcheck of {database} could not be run: {error}")),
        }
    }
    json!({ "databases": with })
}

/// Probes are asked by a role without rights to change anything, where the copy has one.
fn probe_options(
    server: &super::server::LocalServer,
    options: &ConnectOptions,
    examine: &Examine<'_>,
    examined: &mut Examined,
) -> EngineResult<ConnectOptions> {
    if examine.probes.is_empty() {
        return Ok(options.clone());
    }
    let mut client = server.connect(None)?;
    let found = client.query_opt(
        "SELECT 1 FROM pg_catalog.pg_roles WHERE rolname = $1 AND rolcanlogin AND NOT rolsuper",
        &[&PROBE_ROLE],
    );
    if found.map_err(|error| EngineError::Data(format!("asking the copy for its roles: {error}")))?.is_some() {
        return Ok(ConnectOptions { user: Some(PROBE_ROLE.to_owned()), ..options.clone() });
    }
    examined.notes.push(format!(
        "the probes were asked as the superuser: make a role {PROBE_ROLE} (LOGIN, member of pg_read_all_data) on the source"
    ));
    Ok(options.clone())
}
