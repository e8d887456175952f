//! The building blocks for PostgreSQL against a real server.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod cluster;
mod connections;
mod files;
mod recovery;
mod sessions;
