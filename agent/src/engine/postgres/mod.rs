//! PostgreSQL 15 and later: what a physical backup, its archive and its recovery are made of.
//!
//! The files here are building blocks; the order in which they are used is the use cases' business.
//!
//! * [`lsn`], [`wal`], [`history`]: positions, segments and timelines of the log;
//! * [`control`], [`checksum`], [`listing`]: the data directory as files;
//! * [`connection`], [`session`], [`inventory`]: what only the running server can say;
//! * [`server`], [`recovery_options`]: a server of our own on a restored copy.

pub mod checksum;
mod connect_options;
pub mod connection;
pub mod control;
mod copies;
pub mod engine;
mod facts;
pub mod history;
pub mod inventory;
pub mod listing;
pub mod lsn;
mod pgpass;
pub mod record;
mod relation;
pub mod service;
pub mod session;
mod session_error;
pub mod tls;
pub mod wal;
pub mod wal_page;

pub use connect_options::ConnectOptions;
pub use copies::PostgresCopies;
pub use engine::PostgresServer;
