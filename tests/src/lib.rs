//! What the tests of Holdfast drive: real PostgreSQL servers, a load that remembers what was acknowledged, faults,
//! and the agent as its users run it. `tests/env/install.sh` installs what is needed.
//!
//! Everything here panics when it cannot do what was asked, since a harness that fails is a test that fails; nothing
//! is ever skipped.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::missing_panics_doc,
    clippy::unnecessary_debug_formatting,
    reason = "a failing harness is a failing test, and says why"
)]

pub mod account;
pub mod agent;
pub mod faults;
pub mod ledger;
pub mod minio;
pub mod postgres;
pub mod repository;
pub mod tools;
pub mod wait;
