//! The Holdfast agent: backs up, archives, verifies and restores a database, and proves that it can be brought back.

mod aligned;
pub mod archive;
pub mod backup;
pub mod cli;
pub mod drill;
pub mod engine;
pub mod home;
pub mod list;
pub mod logs;
pub mod probe;
pub mod progress;
pub mod repository;
pub mod restore;
pub mod retire;
pub mod snapshot;
pub mod steps;
pub mod stock;
pub mod verify;
pub mod watch;
