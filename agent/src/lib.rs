//! The Holdfast agent: backs up, archives, verifies and restores a database, and proves that it can be brought back.

pub mod engine;
pub mod repository;
pub mod steps;
