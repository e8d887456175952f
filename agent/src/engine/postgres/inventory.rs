//! What is in a cluster: recorded with a backup, so that a restored copy can be compared with it.

use jiff::Timestamp;
use postgres::{Client, Row};
use serde::{Deserialize, Serialize};

use super::connection::{ConnectError, ConnectOptions, connect, innermost};

/// The database that is asked about the cluster, unless another is given.
const DOING: &str = "taking the inventory";

/// What is in a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inventory {
    /// Databases that can be connected to, by name.
    pub databases: Vec<DatabaseInventory>,
    /// How many roles there are, PostgreSQL's own included.
    pub roles: u64,
    /// Tablespaces, PostgreSQL's own included, by name.
    pub tablespaces: Vec<String>,
    /// When the server was asked, by its clock.
    pub at: Timestamp,
}

/// What is in a database.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatabaseInventory {
    /// Its name.
    pub name: String,
    /// Its number.
    pub oid: u32,
    /// How many relations with files of their own it has, temporary ones not counted.
    pub relations: u64,
    /// The version of the default collation that was recorded when the database was made.
    pub collation_version: Option<String>,
    /// The version that this machine's library has. Another than recorded means that indexes on text may be wrong.
    pub collation_actual: Option<String>,
    /// Collations used in the database whose recorded version is not that of this machine's library.
    pub changed_collations: Vec<CollationChange>,
    /// Extensions and their versions, by name.
    pub extensions: Vec<(String, String)>,
}

/// A collation that sorts otherwise than it did, perhaps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CollationChange {
    /// With its schema.
    pub name: String,
    /// The version when it was made or last refreshed.
    pub recorded: String,
    /// The version of this machine's library, if it has the collation at all.
    pub actual: Option<String>,
}

/// Why there is no inventory.
#[derive(Debug, thiserror::Error)]
pub enum InventoryError {
    /// No session.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A question was not answered.
    #[error("taking the inventory of database {database} failed: {reason}")]
    Query {
        /// The database.
        database: String,
        /// What the server said.
        reason: String,
    },
}

impl InventoryError {
    /// Whether trying again later can help with nothing changed here.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Connect(error) => error.is_transient(),
            Self::Query { .. } => false,
        }
    }
}

/// Looks into every database that takes connections, in read-only sessions.
///
/// # Errors
/// If one of them cannot be looked into. A database dropped meanwhile is not missed.
pub fn inventory(options: &ConnectOptions) -> Result<Inventory, InventoryError> {
    let mut client = session(options, None)?;
    let mut inventory = cluster(&mut client)?;
    let databases = query(&mut client, "", "SELECT datname::text FROM pg_database WHERE datallowconn ORDER BY 1")?;
    for row in &databases {
        let name: String = column(row, 0, "")?;
        match session(options, Some(&name)) {
            Ok(mut client) => inventory.databases.push(database(&mut client, &name)?),
            Err(ConnectError::NoDatabase { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(inventory)
}

fn session(options: &ConnectOptions, dbname: Option<&str>) -> Result<Client, ConnectError> {
    let mut client = connect(options, dbname)?;
    // Should this fail, so will the first question, with a better error.
    let settings = "SET default_transaction_read_only = on; SET statement_timeout = '60s'";
    if let Err(error) = client.batch_execute(settings) {
        tracing::debug!(reason = innermost(&error), "the session takes no settings while {DOING}");
    }
    Ok(client)
}

fn cluster(client: &mut Client) -> Result<Inventory, InventoryError> {
    let rows = query(
        client,
        "",
        "SELECT (SELECT count(*) FROM pg_roles), (SELECT array_agg(spcname::text ORDER BY spcname) FROM pg_tablespace), \
         (extract(epoch FROM clock_timestamp()) * 1000000)::int8",
    )?;
    let row = rows.first().ok_or_else(|| failed("", "no answer"))?;
    Ok(Inventory {
        databases: Vec::new(),
        roles: count(row, 0, "")?,
        tablespaces: column(row, 1, "")?,
        at: Timestamp::from_microsecond(column(row, 2, "")?).map_err(|error| failed("", error.to_string()))?,
    })
}

fn database(client: &mut Client, name: &str) -> Result<DatabaseInventory, InventoryError> {
    let rows = query(
        client,
        name,
        "SELECT d.oid, (SELECT count(*) FROM pg_class c WHERE c.relkind IN ('r', 'i', 't', 'S', 'm') \
         AND c.relpersistence <> 't'), d.datcollversion, pg_database_collation_actual_version(d.oid) \
         FROM pg_database d WHERE d.datname = current_database()",
    )?;
    let row = rows.first().ok_or_else(|| failed(name, "no answer"))?;
    Ok(DatabaseInventory {
        name: name.to_owned(),
        oid: column(row, 0, name)?,
        relations: count(row, 1, name)?,
        collation_version: column(row, 2, name)?,
        collation_actual: column(row, 3, name)?,
        changed_collations: changed_collations(client, name)?,
        extensions: extensions(client, name)?,
    })
}

fn changed_collations(client: &mut Client, name: &str) -> Result<Vec<CollationChange>, InventoryError> {
    let rows = query(
        client,
        name,
        "SELECT n.nspname || '.' || c.collname, c.collversion, pg_collation_actual_version(c.oid) \
         FROM pg_collation c JOIN pg_namespace n ON n.oid = c.collnamespace \
         WHERE c.collversion IS DISTINCT FROM pg_collation_actual_version(c.oid) AND c.collversion IS NOT NULL \
         ORDER BY 1",
    )?;
    let change = |row: &Row| {
        Ok(CollationChange {
            name: column(row, 0, name)?,
            recorded: column(row, 1, name)?,
            actual: column(row, 2, name)?,
        })
    };
    rows.iter().map(change).collect()
}

fn extensions(client: &mut Client, name: &str) -> Result<Vec<(String, String)>, InventoryError> {
    let rows = query(client, name, "SELECT extname::text, extversion FROM pg_extension ORDER BY 1")?;
    rows.iter().map(|row| Ok((column(row, 0, name)?, column(row, 1, name)?))).collect()
}

fn query(client: &mut Client, database: &str, sql: &str) -> Result<Vec<Row>, InventoryError> {
    client.query(sql, &[]).map_err(|error| failed(database, innermost(&error)))
}

fn column<'a, T: postgres::types::FromSql<'a>>(row: &'a Row, at: usize, database: &str) -> Result<T, InventoryError> {
    row.try_get(at).map_err(|error| failed(database, error.to_string()))
}

fn count(row: &Row, at: usize, database: &str) -> Result<u64, InventoryError> {
    let number: i64 = column(row, at, database)?;
    u64::try_from(number).map_err(|error| failed(database, error.to_string()))
}

fn failed(database: &str, reason: impl Into<String>) -> InventoryError {
    let database = if database.is_empty() { "postgres" } else { database };
    InventoryError::Query { database: database.to_owned(), reason: reason.into() }
}
