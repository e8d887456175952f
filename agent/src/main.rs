//! `holdfast-agent`.
fn main() {}
