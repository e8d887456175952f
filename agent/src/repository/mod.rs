//! The repository: the format on the store, and what reads and writes it.
pub mod store;
