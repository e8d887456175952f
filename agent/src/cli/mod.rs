//! The command line: arguments in, words or JSON and an exit code out. What is done is done elsewhere.
#![expect(clippy::doc_markdown, reason = "help is written in doc comments, and shows backticks as they are")]

use std::ffi::OsString;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

mod backup;
mod completions;
mod config;
mod drill;
mod exit;
mod list;
mod logging;
mod options;
mod output;
mod pin;
mod probe;
mod progress;
mod prune;
mod reference;
mod restore;
mod secrets;
mod shell;
mod target;
mod units;
mod values;
mod verify;
mod wal_fetch;
mod wal_push;
mod watch;

use config::Config;
use exit::{Failure, Found};
use options::Global;
use output::Format;

pub use reference::reference;

/// Backs up, archives, verifies and restores a database, and proves that it can be brought back.
#[derive(Debug, Parser)]
#[command(name = "holdfast-agent", version, arg_required_else_help = true, after_help = EXAMPLES, max_term_width = 120)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  holdfast-agent --repository /backup backup --data-dir /srv/pg
  holdfast-agent --repository /backup list
  holdfast-agent --repository /backup restore --data-dir /srv/restored

Settings come from options, then from the environment, then from /etc/holdfast/agent.toml or the file that --config \
names. Its keys are the long names of options; those of one command are below the command's name in brackets. \
Passwords and keys are accepted in neither options nor that file.

Exit codes: 0 done, and all is well; 1 done, and something is wrong with the data; 2 wrong usage; 3 could not be done.";

#[derive(Debug, Subcommand)]
enum Command {
    Backup(backup::Arguments),
    List(list::Arguments),
    Verify(verify::Arguments),
    Restore(restore::Arguments),
    Drill(drill::Arguments),
    Probe(probe::Arguments),
    Prune(prune::Arguments),
    Forget(prune::ForgetArguments),
    Pin(pin::Arguments),
    Unpin(pin::UnpinArguments),
    WalPush(wal_push::Arguments),
    WalFetch(wal_fetch::Arguments),
    Watch(watch::Arguments),
    Completions(completions::Arguments),
}

impl Command {
    fn run(self, global: &Global) -> Result<Found, Failure> {
        match self {
            Self::Backup(arguments) => arguments.run(global),
            Self::List(arguments) => arguments.run(global),
            Self::Verify(arguments) => arguments.run(global),
            Self::Restore(arguments) => arguments.run(global),
            Self::Drill(arguments) => arguments.run(global),
            Self::Probe(arguments) => arguments.run(global),
            Self::Prune(arguments) => arguments.run(global),
            Self::Forget(arguments) => arguments.run(global),
            Self::Pin(arguments) => arguments.run(global),
            Self::Unpin(arguments) => arguments.run(global),
            Self::WalPush(arguments) => arguments.run(global),
            Self::WalFetch(arguments) => arguments.run(global),
            Self::Watch(arguments) => arguments.run(global),
            Self::Completions(arguments) => arguments.run(),
        }
    }
}

/// The command line as a value.
pub fn command() -> clap::Command {
    hide_values(Cli::command())
}

/// Help never shows what the environment holds.
fn hide_values(command: clap::Command) -> clap::Command {
    command.mut_args(|arg| arg.hide_env_values(true)).mut_subcommands(hide_values)
}

/// Runs the program with its arguments, the first of which is its name.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let mut format = Format::default();
    let code = match catch_unwind(AssertUnwindSafe(|| parse_and_run(&arguments, &mut format))) {
        Ok(Ok(found)) => found.code(),
        Ok(Err(failure)) => {
            let failure = Failure { code: for_the_caller(&arguments, failure.code), ..failure };
            output::complain(format, &failure);
            failure.code
        }
        // The panic has told its story on stderr already.
        Err(_) => {
            let message = "this is a fault of holdfast-agent itself; please report what is printed above".to_owned();
            let failure = Failure { code: for_the_caller(&arguments, exit::UNDONE), message };
            output::complain(format, &failure);
            failure.code
        }
    };
    ExitCode::from(code)
}

/// A server that fetches log takes all codes up to 125 for the end of the log: only `wal-fetch` itself may say that.
fn for_the_caller(arguments: &[OsString], code: u8) -> u8 {
    let fetches = arguments.iter().any(|argument| argument == wal_fetch::NAME);
    if fetches && code != exit::DATA { code.max(exit::NO_END_OF_LOG) } else { code }
}

fn parse_and_run(arguments: &[OsString], format: &mut Format) -> Result<Found, Failure> {
    let Some(cli) = parse(arguments, format)? else { return Ok(Found::Sound) };
    logging::begin(cli.global.log_level, *format);
    cli.command.run(&cli.global)
}

/// The arguments; nothing where they ask for help, which is printed.
fn parse(arguments: &[OsString], format: &mut Format) -> Result<Option<Cli>, Failure> {
    let first = match command().ignore_errors(true).try_get_matches_from(arguments) {
        Ok(matches) => Some(matches),
        Err(error) if error.use_stderr() => None,
        Err(help) => return printed(&help),
    };
    if let Some(first) = &first {
        *format = first.try_get_one("output").ok().flatten().copied().unwrap_or_default();
    }
    secrets::refuse_in_arguments(arguments)?;
    let named = first.as_ref().and_then(|first| first.try_get_one::<std::path::PathBuf>("config").ok().flatten());
    let config = Config::load(named.map(std::path::PathBuf::as_path), &command())?;
    let command = config.apply(command(), arguments, &|name| std::env::var_os(name));
    let matches = match command.try_get_matches_from(arguments) {
        Ok(matches) => matches,
        Err(error) if error.use_stderr() => return Err(misused(&error, &config, *format)),
        Err(help) => return printed(&help),
    };
    let cli = Cli::from_arg_matches(&matches).map_err(|error| misused(&error, &config, *format))?;
    *format = cli.global.output;
    Ok(Some(cli))
}

fn printed(help: &clap::Error) -> Result<Option<Cli>, Failure> {
    match help.print() {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(Failure::undone(&error)),
        _ => Ok(None),
    }
}

/// What clap has to say, without its own `error: `, and where the value came from.
fn misused(error: &clap::Error, config: &Config, format: Format) -> Failure {
    let text = error.render().to_string();
    let mut text = text.strip_prefix("error: ").unwrap_or(&text).trim_end();
    if format == Format::Json {
        // Programs need no lesson in usage.
        text = text.split("\n\nUsage:").next().and_then(|text| text.split("\n\nFor more").next()).unwrap_or(text);
    }
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return Failure::usage(format!("a command is needed\n\n{text}"));
    }
    Failure::usage(match config.explanation(error) {
        Some(explanation) => format!("{text}\n\nnote: {explanation}"),
        None => text.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        command().debug_assert();
    }

    #[test]
    fn only_wal_fetch_says_that_the_log_ends() {
        let arguments = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        let fetch = arguments(&["holdfast-agent", "wal-fetch", "--frobnicate"]);
        assert_eq!(for_the_caller(&fetch, exit::USAGE), 126);
        assert_eq!(for_the_caller(&fetch, exit::UNDONE), 126);
        assert_eq!(for_the_caller(&fetch, exit::DATA), 1);
        assert_eq!(for_the_caller(&arguments(&["holdfast-agent", "wal-push"]), exit::UNDONE), 3);
    }
}
