//! What the use cases need from a database.
pub mod postgres;
