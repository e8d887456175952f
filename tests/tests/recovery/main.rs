//! Recovery, as users meet it: what is restored holds exactly what was acknowledged, whatever happened to the server,
//! the store, the clock or the place; and what cannot be done is refused, with the reason and the next step.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    unreachable_pub,
    reason = "a test: it panics where something is wrong, and its modules are its own"
)]

mod archiving;
mod content;
mod delta;
mod drills;
mod faults;
mod refusals;
mod retention;
mod site;
mod standby;
mod targets;
mod time;
