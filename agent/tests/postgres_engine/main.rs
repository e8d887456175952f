//! The building blocks for PostgreSQL against a real server.

mod cluster;
mod connections;
mod files;
mod recovery;
mod sessions;
