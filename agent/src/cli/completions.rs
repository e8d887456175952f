//! `completions`

use clap::Args;
use clap_complete::Shell;

use super::exit::{Failure, Found};
use super::output;

/// Writes completions for a shell
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// The shell
    #[arg(value_enum, value_name = "SHELL")]
    shell: Shell,
}

const EXAMPLES: &str = "\
Examples:
  holdfast-agent completions bash > /etc/bash_completion.d/holdfast-agent
  holdfast-agent completions zsh > ~/.zfunc/_holdfast-agent
  holdfast-agent completions fish > ~/.config/fish/completions/holdfast-agent.fish";

impl Arguments {
    pub(super) fn run(self) -> Result<Found, Failure> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut super::command(), "holdfast-agent", &mut script);
        output::print(&String::from_utf8_lossy(&script))?;
        Ok(Found::Sound)
    }
}
