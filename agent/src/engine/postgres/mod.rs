//! PostgreSQL 15 and later: what a physical backup, its archive and its recovery are made of.
//!
//! The files here are building blocks; the order in which they are used is the use cases' business.
//!
//! * [`lsn`], [`wal`], [`history`]: positions, segments and timelines of the log;
//! * [`control`], [`checksum`], [`listing`]: the data directory as files;
//! * [`connection`], [`session`], [`inventory`]: what only the running server can say;
//! * [`server`], [`recovery_options`]: a server of our own on a restored copy.

pub mod checksum;
pub mod connection;
pub mod control;
pub mod engine;
pub mod flush;
pub mod history;
pub mod inventory;
pub mod listing;
pub mod lsn;
pub mod record;
pub mod recovery_options;
pub mod server;
pub mod session;
pub mod wal;
pub mod wal_page;

mod binaries;
mod choose;
mod connect_options;
mod connect_sources;
mod copies;
mod examine;
pub mod facts;
mod lay_down;
mod pgpass;
pub mod probing;
mod recover;
mod relation;
mod server_error;
mod server_log;
mod server_program;
mod server_settings;
mod service;
mod session_error;
mod tls;

pub use connect_options::ConnectOptions;
pub use copies::PostgresCopies;
pub use engine::PostgresServer;
