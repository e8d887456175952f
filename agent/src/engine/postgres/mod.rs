//! PostgreSQL 15 and later: what a physical backup, its archive and its recovery are made of.
//!
//! The files here are building blocks; the order in which they are used is the use cases' business.
//!
//! * [`lsn`], [`wal`], [`history`]: positions, segments and timelines of the log;
//! * [`control`], [`checksum`], [`listing`]: the data directory as files;
//! * [`connection`], [`session`], [`inventory`]: what only the running server can say;
//! * [`server`], [`recovery_options`]: a server of our own on a restored copy.

pub mod checksum;
pub mod control;
pub mod history;
pub mod listing;
pub mod lsn;
mod relation;
pub mod wal;
mod wal_page;
