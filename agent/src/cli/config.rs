//! The configuration file: what it says becomes the default of the options of the same names.
//!
//! So flags go over the environment, the environment over the file, and every value is checked where a flag's is.
//! Keys are the options' long names: global and connection options at the top, others below their command's name.
//!
//! ```toml
//! repository = "s3://backups/shop"
//! s3-region = "eu-central-1"
//! service = "shop"
//!
//! [backup]
//! data-dir = "/var/lib/postgresql/16/main"
//! ```

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::{Arg, Command};
use toml::{Table, Value};

use super::exit::Failure;
use super::secrets;

/// Read if it is there and no other is named.
const DEFAULT_PATH: &str = "/etc/holdfast/agent.toml";

/// Options of connections, with libpq's variables, which go over the file too.
const CONNECTION: [(&str, &[&str]); 10] = [
    ("host", &["PGHOST", "PGHOSTADDR"]),
    ("port", &["PGPORT"]),
    ("user", &["PGUSER"]),
    ("dbname", &["PGDATABASE"]),
    ("service", &["PGSERVICE"]),
    ("passfile", &["PGPASSFILE"]),
    ("sslmode", &["PGSSLMODE"]),
    ("sslrootcert", &["PGSSLROOTCERT"]),
    ("sslcert", &["PGSSLCERT"]),
    ("sslkey", &["PGSSLKEY"]),
];

/// What somebody decides for one run, and never once for all.
const DECIDED_EACH_TIME: [(&str, &[&str]); 4] = [
    ("backup", &["new-lineage"]),
    ("prune", &["dry-run"]),
    ("restore", &["data-dir", "delta", "recover", "tablespace-map"]),
    ("drill", &["keep"]),
];

/// One setting of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Setting {
    /// The command it is for; all that have the option, if none.
    command: Option<String>,
    /// The option's long name.
    option: String,
    values: Vec<String>,
}

/// What the file says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Config {
    path: PathBuf,
    settings: Vec<Setting>,
}

impl Config {
    /// Reads the file that is named, or the default one if it is there, for the options of `command`.
    ///
    /// # Errors
    /// Where it cannot be read, or says what it must not.
    pub(super) fn load(named: Option<&Path>, command: &Command) -> Result<Self, Failure> {
        let path = named.unwrap_or(Path::new(DEFAULT_PATH));
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if named.is_none() && error.kind() == std::io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => {
                return Err(Failure::usage(format!("cannot read the configuration {}: {error}", path.display())));
            }
        };
        Self::parse(path, &text, command)
    }

    fn parse(path: &Path, text: &str, command: &Command) -> Result<Self, Failure> {
        let refused = |what: String| Failure::usage(format!("{}: {what}", path.display()));
        let table: Table = text.parse().map_err(|error: toml::de::Error| {
            // The line itself is not shown: it may hold what should not be in the file.
            let line = error.span().map_or(1, |span| text[..span.start].lines().count().max(1));
            refused(format!("line {line}: {}", error.message()))
        })?;
        let mut settings = Vec::new();
        for (key, value) in &table {
            if let (Value::Table(below), Some(subcommand)) = (value, command.find_subcommand(key)) {
                settings.extend(settings_of(subcommand, below).map_err(refused)?);
            } else {
                let known = |option: &str| is_general(command, option);
                settings.push(setting(None, key, key, value, &known).map_err(refused)?);
            }
        }
        Ok(Self { path: path.to_owned(), settings })
    }

    /// Makes what the file says the default of the options of `command`, where nothing that goes over it is given.
    pub(super) fn apply(
        &self,
        mut command: Command,
        arguments: &[OsString],
        variable: &dyn Fn(&str) -> Option<OsString>,
    ) -> Command {
        let is_overruled = |option: &str| {
            let variables = CONNECTION.iter().find(|(name, _)| *name == option).map_or(&[][..], |(_, names)| names);
            variables.iter().any(|name| variable(name).is_some_and(|value| !value.is_empty()))
                // A service that is asked for now is not mixed with the usual server's settings.
                || (!variables.is_empty() && option != "service" && asks_for_service(arguments, variable))
        };
        // What is said for one command goes over what is said for all.
        let (general, special): (Vec<_>, Vec<_>) = self.settings.iter().partition(|setting| setting.command.is_none());
        for setting in general.into_iter().chain(special).filter(|setting| !is_overruled(&setting.option)) {
            command = setting.apply(command);
        }
        command
    }

    /// What to add to clap's complaint about a value that came from the file.
    pub(super) fn explanation(&self, error: &clap::Error) -> Option<String> {
        use clap::error::{ContextKind, ContextValue};
        let Some(ContextValue::String(argument)) = error.get(ContextKind::InvalidArg) else { return None };
        let Some(ContextValue::String(value)) = error.get(ContextKind::InvalidValue) else { return None };
        let option = argument.strip_prefix("--")?.split([' ', '=', '[']).next()?;
        let setting =
            self.settings.iter().find(|setting| setting.option == option && setting.values.contains(value))?;
        Some(format!("the value is that of the key {} in {}", setting.full_name(), self.path.display()))
    }
}

impl Setting {
    fn full_name(&self) -> String {
        self.command.iter().chain([&self.option]).map(String::as_str).collect::<Vec<_>>().join(".")
    }

    fn apply(&self, command: Command) -> Command {
        let as_default = |arg: Arg| arg.required(false).default_values(self.values.clone()).hide_default_value(true);
        if self.command.is_none()
            && let Some(id) = find(&command, &self.option).map(|arg| arg.get_id().clone())
        {
            return command.mut_arg(id, as_default);
        }
        let concerns = |name: &str| self.command.as_ref().is_none_or(|command| command == name);
        let names: Vec<String> = command.get_subcommands().map(|command| command.get_name().to_owned()).collect();
        names.into_iter().filter(|name| concerns(name)).fold(command, |command, name| {
            command.mut_subcommand(name, |subcommand| {
                match find(&subcommand, &self.option).map(|arg| arg.get_id().clone()) {
                    Some(id) => subcommand.mut_arg(id, as_default),
                    None => subcommand,
                }
            })
        })
    }
}

/// The settings of one command.
fn settings_of(subcommand: &Command, table: &Table) -> Result<Vec<Setting>, String> {
    let name = subcommand.get_name();
    let known = |option: &str| find(subcommand, option).is_some() && !is_decided_each_time(name, option);
    let of = |(key, value): (&String, &Value)| setting(Some(name), key, &format!("{name}.{key}"), value, &known);
    table.iter().map(of).collect()
}

/// Whether an option is one of all commands, or of all that connect to a server.
fn is_general(command: &Command, option: &str) -> bool {
    let of_all = option != "config" && find(command, option).is_some();
    of_all || CONNECTION.iter().any(|(name, _)| *name == option)
}

fn find<'a>(command: &'a Command, option: &str) -> Option<&'a Arg> {
    command.get_arguments().find(|arg| arg.get_long() == Some(option))
}

fn is_decided_each_time(command: &str, option: &str) -> bool {
    option.starts_with("target-")
        || DECIDED_EACH_TIME.iter().any(|(name, options)| *name == command && options.contains(&option))
}

fn asks_for_service(arguments: &[OsString], variable: &dyn Fn(&str) -> Option<OsString>) -> bool {
    let named = arguments.iter().any(|argument| {
        argument.to_str().is_some_and(|argument| argument == "--service" || argument.starts_with("--service="))
    });
    named || variable("PGSERVICE").is_some_and(|value| !value.is_empty())
}

/// `full` is the key as the user knows it, from the top of the file.
fn setting(
    command: Option<&str>,
    key: &str,
    full: &str,
    value: &Value,
    known: &dyn Fn(&str) -> bool,
) -> Result<Setting, String> {
    let option = key.replace('_', "-");
    if secrets::is_secret_name(key) || holds_secret(value) {
        return Err(format!(
            "the key {full} is a secret, and secrets are not accepted in this file: {}",
            secrets::WHERE
        ));
    }
    if !known(&option) {
        return Err(match command {
            Some(command) if is_decided_each_time(command, &option) => {
                format!("the key {full} is not accepted here: --{option} is decided each time")
            }
            _ => format!("unknown key {full}: keys are the long names of options; see `holdfast-agent help`"),
        });
    }
    let values = match value {
        Value::Array(values) => values.iter().map(scalar).collect(),
        value => scalar(value).map(|value| vec![value]),
    };
    let values = values.ok_or_else(|| format!("the key {full} must be a text, a number, true or false"))?;
    for value in &values {
        secrets::refuse_in(&format!("the key {full}"), value).map_err(|failure| failure.message)?;
    }
    Ok(Setting { command: command.map(str::to_owned), option, values })
}

fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Integer(number) => Some(number.to_string()),
        Value::Boolean(yes) => Some(yes.to_string()),
        _ => None,
    }
}

/// Whether a table that is not expected at all has a secret in it: that is what must be said first.
fn holds_secret(value: &Value) -> bool {
    match value {
        Value::Table(table) => table.iter().any(|(key, value)| secrets::is_secret_name(key) || holds_secret(value)),
        Value::Array(values) => values.iter().any(holds_secret),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use clap::ArgMatches;
    use rstest::rstest;

    use super::*;
    use crate::cli::command;

    fn parse(text: &str) -> Result<Config, Failure> {
        Config::parse(Path::new("/etc/agent.toml"), text, &command())
    }

    fn matches(text: &str, arguments: &[&str], environment: &[(&str, &str)]) -> ArgMatches {
        let arguments: Vec<OsString> = ["holdfast-agent"].iter().chain(arguments).map(OsString::from).collect();
        let variable =
            |name: &str| environment.iter().find(|(n, _)| *n == name).map(|(_, value)| OsString::from(value));
        let command = parse(text).unwrap().apply(command(), &arguments, &variable);
        command.try_get_matches_from(arguments).unwrap()
    }

    #[test]
    fn the_file_gives_what_no_flag_does() {
        let text =
            "repository = '/a'\nthreads = 3\ns3_path_style = true\n[backup]\ndata-dir = '/d'\nreread-within = '1d'\n";
        let found = matches(text, &["backup", "--threads", "5"], &[]);
        assert_eq!(found.get_one::<String>("repository").unwrap(), "/a");
        assert_eq!(found.get_one::<u16>("threads"), Some(&5));
        assert_eq!(found.get_one::<bool>("s3_path_style"), Some(&true));
        let backup = found.subcommand_matches("backup").unwrap();
        assert_eq!(backup.get_one::<PathBuf>("data_dir").unwrap(), Path::new("/d"));
        assert_eq!(backup.get_one("reread_within"), Some(&jiff::SignedDuration::from_hours(24)));
    }

    #[test]
    fn what_is_said_for_a_command_goes_over_what_is_said_for_all() {
        let text = "user = 'all'\nport = 1\n[watch]\nuser = 'one'\ndata-dir = '/d'\n[backup]\ndata-dir = '/d'\n";
        let user = |command| {
            let found = matches(text, &[command], &[]);
            found.subcommand_matches(command).unwrap().get_one::<String>("user").unwrap().clone()
        };
        assert_eq!((user("watch").as_str(), user("backup").as_str()), ("one", "all"));
    }

    #[test]
    fn variables_of_libpq_and_a_service_go_over_the_file() {
        let text = "host = 'file'\nport = 1\nservice = 'file'\n[backup]\ndata-dir = '/d'\n";
        let found = |arguments: &[&str], environment: &[(&str, &str)]| {
            let found = matches(text, arguments, environment);
            let backup = found.subcommand_matches("backup").unwrap();
            let text = |id| backup.get_one::<String>(id).cloned().unwrap_or_default();
            (text("host"), backup.get_one::<u16>("port").copied(), text("service"))
        };
        assert_eq!(found(&["backup"], &[("PGHOST", "")]), ("file".into(), Some(1), "file".into()));
        assert_eq!(found(&["backup"], &[("PGHOST", "env")]), (String::new(), Some(1), "file".into()));
        assert_eq!(found(&["backup"], &[("PGSERVICE", "env")]), (String::new(), None, String::new()));
        assert_eq!(found(&["backup", "--service", "flag"], &[]), (String::new(), None, "flag".into()));
    }

    #[rstest]
    #[case("colour = 'red'", "unknown key colour: ")]
    #[case("[backup]\ncolour = 'red'", "unknown key backup.colour: ")]
    #[case("[frobnicate]\nx = 1", "unknown key frobnicate: ")]
    #[case("data-dir = '/d'", "unknown key data-dir: ")]
    #[case("config = '/d'", "unknown key config: ")]
    #[case(
        "[backup]\nnew-lineage = true",
        "the key backup.new-lineage is not accepted here: --new-lineage is decided each time"
    )]
    #[case("[restore]\ntarget-time = 'x'", "the key restore.target-time is not accepted here")]
    #[case("[restore]\ndata-dir = '/d'", "the key restore.data-dir is not accepted here")]
    #[case("threads = 1.5", "the key threads must be a text, a number, true or false")]
    #[case("backup = 1", "unknown key backup: ")]
    #[case("\nthreads = \n", "line 2: ")]
    fn what_the_file_must_not_say_is_named(#[case] text: &str, #[case] reason: &str) {
        let failure = parse(text).unwrap_err();
        assert_eq!(failure.code, super::super::exit::USAGE);
        assert!(failure.message.starts_with(&format!("/etc/agent.toml: {reason}")), "{}", failure.message);
    }

    #[rstest]
    #[case("password = 'hunter2'", "password")]
    #[case("[backup]\npgpassword = 'hunter2'", "backup.pgpassword")]
    #[case("[s3]\nsecret_access_key = 'hunter2'", "s3")]
    #[case("aws-session-token = 'hunter2'", "aws-session-token")]
    fn a_secret_is_refused_by_its_key(#[case] text: &str, #[case] key: &str) {
        let message = parse(text).unwrap_err().message;
        assert!(message.starts_with(&format!("/etc/agent.toml: the key {key} is a secret, ")), "{message}");
        assert!(message.contains("PGPASSWORD") && !message.contains("hunter2"), "{message}");
    }

    #[rstest]
    #[case("repository = 's3://a:hunter2@b'")]
    #[case("dbname = 'password=hunter2'")]
    #[case("password = 'hunter2' x")]
    fn a_secret_in_a_value_is_not_repeated(#[case] text: &str) {
        let message = parse(text).unwrap_err().message;
        assert!(!message.contains("hunter2"), "{message}");
    }

    #[test]
    fn a_value_that_cannot_be_is_traced_to_the_file() {
        let config = parse("[backup]\nreread-within = 'soon'\ndata-dir = '/d'\n").unwrap();
        let command = config.apply(command(), &[], &|_| None);
        let error = command.try_get_matches_from(["holdfast-agent", "backup"]).unwrap_err();
        let explanation = config.explanation(&error).unwrap();
        assert_eq!(explanation, "the value is that of the key backup.reread-within in /etc/agent.toml");
    }
}
