//! `holdfast-agent`.

use std::process::ExitCode;

fn main() -> ExitCode {
    holdfast_agent::cli::run(std::env::args_os())
}
