//! The command line as its users meet it: the program itself, and the page that describes it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test: it panics where something is wrong"
)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use holdfast_agent::cli;
use rstest::rstest;
use serde_json::Value;
use tempfile::TempDir;

const DONE: i32 = 0;
const USAGE: i32 = 2;
const UNDONE: i32 = 3;

const TIME: &str = "--target-time";

/// The program, with nothing of this process's environment, and no configuration but the one a test gives.
fn agent(arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast-agent"));
    command.args(arguments).env_clear().envs(environment.iter().copied()).stdin(Stdio::null());
    command.output().unwrap()
}

fn words(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Runs it, demands the exit code, and gives back stdout and stderr.
#[track_caller]
fn run(arguments: &[&str], code: i32) -> (String, String) {
    run_in(arguments, &[], code)
}

#[track_caller]
fn run_in(arguments: &[&str], environment: &[(&str, &str)], code: i32) -> (String, String) {
    let output = agent(arguments, environment);
    let (stdout, stderr) = (words(&output.stdout), words(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{arguments:?}\n{stdout}\n{stderr}");
    (stdout, stderr)
}

fn configuration(text: &str) -> (TempDir, String) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("agent.toml");
    fs::write(&path, text).unwrap();
    (directory, path.display().to_string())
}

#[test]
fn the_help_of_every_command_has_examples_and_exit_codes() {
    let command = cli::command();
    let names: Vec<&str> = command.get_subcommands().map(clap::Command::get_name).collect();
    assert_eq!(
        names,
        [
            "backup",
            "list",
            "verify",
            "restore",
            "drill",
            "probe",
            "prune",
            "forget",
            "pin",
            "unpin",
            "wal-push",
            "wal-fetch",
            "watch",
            "completions"
        ]
    );
    for name in names {
        let (help, _) = run(&[name, "--help"], DONE);
        assert!(help.contains("\nExamples") && help.contains("  "), "{name}:\n{help}");
        assert!(name == "completions" || help.contains("\nExit codes: 0 "), "{name}:\n{help}");
    }
}

#[test]
fn help_never_shows_what_the_environment_holds() {
    let variables: Vec<String> = cli::command()
        .get_subcommands()
        .flat_map(|command| command.get_arguments().cloned().collect::<Vec<_>>())
        .chain(cli::command().get_arguments().cloned())
        .filter_map(|argument| argument.get_env().map(|name| name.to_str().unwrap().to_owned()))
        .collect();
    assert!(variables.contains(&"HOLDFAST_REPOSITORY".to_owned()) && variables.len() > 15, "{variables:?}");
    let secret: Vec<(&str, &str)> = variables
        .iter()
        .map(|name| (name.as_str(), "7s"))
        .filter(|(name, _)| !["HOLDFAST_OUTPUT", "HOLDFAST_CONFIG"].contains(name))
        .collect();
    for name in ["backup", "prune", "watch", "drill"] {
        let (help, _) = run_in(&[name, "--help"], &secret, DONE);
        assert!(help.contains("HOLDFAST_REPOSITORY") && !help.contains("=7s"), "{help}");
    }
}

/// The page is checked in, so that a change of the command line shows in review.
#[test]
fn the_reference_is_what_the_program_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/cli.md");
    let page = cli::reference();
    if std::env::var_os("HOLDFAST_REGENERATE").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, &page).unwrap();
    }
    let there = fs::read_to_string(&path).unwrap_or_default();
    assert!(there == page, "docs/cli.md is out of date: run the tests once with HOLDFAST_REGENERATE=1");
}

#[rstest]
#[case("bash", "complete -F _holdfast__agent")]
#[case("zsh", "#compdef holdfast-agent")]
#[case("fish", "complete -c holdfast-agent")]
#[case("elvish", "holdfast-agent")]
#[case("powershell", "holdfast-agent")]
fn completions_are_written(#[case] shell: &str, #[case] wanted: &str) {
    let (script, _) = run(&["completions", shell], DONE);
    assert!(script.contains(wanted) && script.contains("wal-push"), "{script}");
}

#[test]
fn it_says_its_version() {
    let (version, _) = run(&["--version"], DONE);
    assert_eq!(version, format!("holdfast-agent {}\n", env!("CARGO_PKG_VERSION")));
}

#[rstest]
#[case(&[], "a command is needed")]
#[case(&["frobnicate"], "unrecognized subcommand 'frobnicate'")]
#[case(&["backup", "--repository", "memory://a"], "--data-dir <DIR>")]
#[case(&["list"], "no repository is named: give --repository, set HOLDFAST_REPOSITORY, ")]
#[case(&["list", "--repository", "gs://a"], "gs:// is not known: a repository is given as /path, ")]
#[case(&["list", "--threads", "0"], "0 is not in 1..=256")]
#[case(&["prune", "--keep", "0"], "0 is not in 1..")]
#[case(&["prune", "--keep-within", "30"], "\"30\" is not a duration: write a number and a unit")]
#[case(&["backup", "--data-dir", "/d", "--compression", "20"], "it is auto or a zstd level from 1 to 19")]
#[case(&["backup", "--data-dir", "/d", "--checkpoint", "slow"], "[possible values: fast, spread]")]
#[case(&["verify", "yesterday"], "\"yesterday\" is not the name of a backup; names look like 20260131T235959Z-0a1b2c")]
#[case(&["restore", "--data-dir", "/d", "--target-lsn", "5"], "\"5\" is not a log position")]
#[case(&["restore", "--data-dir", "/d", "--target-timeline", "0"], "\"0\" is not a timeline")]
#[case(&["restore", "--data-dir", "/d", "--target-lsn", "0/5", "--target-immediate"], "cannot be used with")]
#[case(&["restore", "--data-dir", "/d", "--tablespace-map", "/a"], "it is two absolute paths, as in /old/place=/new/place")]
#[case(&["backup", "--data-dir", "/d", "--dbname", "host=db"], "--dbname is a connection string, and those can hold a password")]
#[case(&["watch", "--data-dir", "/d", "--interval", "0s"], "it must be longer than nothing")]
fn wrong_usage_is_told_with_what_to_write(#[case] arguments: &[&str], #[case] reason: &str) {
    let (stdout, stderr) = run(arguments, USAGE);
    assert_eq!(stdout, "");
    assert!(stderr.starts_with("error: ") && !stderr.starts_with("error: error"), "{stderr}");
    assert!(stderr.contains(reason), "{stderr}");
}

/// E3: a time without a zone is refused, with how to write it.
#[rstest]
#[case("restore")]
#[case("drill")]
fn a_target_time_without_a_zone_is_refused(#[case] command: &str) {
    let arguments = [command, TIME, "2026-01-31T12:00:00", "--repository", "memory://a"];
    let arguments =
        if command == "restore" { [&arguments[..], &["--data-dir", "/d"]].concat() } else { arguments.to_vec() };
    let (_, stderr) = run(&arguments, USAGE);
    assert!(
        stderr.contains("does not say in which zone: write 2026-01-31T12:00:00Z for UTC, or 2026-01-31T12:00:00+09:00"),
        "{stderr}"
    );
}

#[rstest]
#[case(&["list", "--repository", "s3://AKIA:hunter2@bucket/a"], &[])]
#[case(&["list", "--repository", "s3://bucket/a?secret=hunter2"], &[])]
#[case(&["list"], &[("HOLDFAST_REPOSITORY", "s3://AKIA:hunter2@bucket/a")])]
#[case(&["list", "--repository", "s3://b"], &[("HOLDFAST_S3_ENDPOINT", "https://anna:hunter2@s3.example")])]
#[case(&["backup", "--dbname", "postgres://anna:hunter2@db/shop"], &[])]
#[case(&["backup", "--host", "host=db password=hunter2"], &[])]
#[case(&["backup", "--password", "hunter2"], &[])]
#[case(&["backup", "--password=hunter2"], &[])]
#[case(&["--s3-secret-access-key=hunter2", "list"], &[])]
#[case(&["postgres://anna:hunter2@db/shop"], &[])]
fn a_secret_is_refused_and_not_repeated(#[case] arguments: &[&str], #[case] environment: &[(&str, &str)]) {
    for format in ["text", "json"] {
        let (stdout, stderr) = run_in(&[&["--output", format], arguments].concat(), environment, USAGE);
        assert!(!stdout.contains("hunter2") && !stderr.contains("hunter2"), "{stdout}\n{stderr}");
        assert!(!stderr.contains("AKIA") && stderr.contains("PGPASSWORD"), "{stderr}");
    }
}

#[test]
fn an_error_is_one_line_of_json_when_asked_for() {
    let arguments = ["list", "--output", "json", "--repository", "memory://none"];
    let (stdout, stderr) = run(&arguments, UNDONE);
    assert_eq!(stdout, "");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    let error: Value = serde_json::from_str(&stderr).unwrap();
    assert_eq!(error["exit_code"], UNDONE);
    assert!(error["error"].as_str().unwrap().starts_with("there is no repository at memory://none: "), "{error}");

    let (_, stderr) = run(&["backup", "--output=json"], USAGE);
    let error: Value = serde_json::from_str(&stderr).unwrap();
    assert_eq!(error["exit_code"], USAGE);
    assert_eq!(
        error["error"].as_str().unwrap(),
        "the following required arguments were not provided:\n  --data-dir <DIR>"
    );
    let (_, stderr) = run_in(&["backup"], &[("HOLDFAST_OUTPUT", "json")], USAGE);
    assert_eq!(serde_json::from_str::<Value>(&stderr).unwrap()["exit_code"], USAGE);
}

/// PostgreSQL takes a code up to 125 for the end of the log, and would then end recovery early, and promote.
#[rstest]
#[case(&["wal-fetch"], &[])]
#[case(&["wal-fetch", "000000010000000000000001", "/dev/null", "--frobnicate"], &[])]
#[case(&["wal-fetch", "000000010000000000000001", "/dev/null"], &[])]
#[case(&["wal-fetch", "000000010000000000000001", "/dev/null", "--repository", "memory://none"], &[])]
#[case(&["wal-fetch", "000000010000000000000001", "/dev/null", "--repository", "gs://a"], &[])]
#[case(&["wal-fetch", "000000010000000000000001", "/dev/null"], &[("HOLDFAST_CONFIG", "/nonexistent")])]
#[case(&["--threads", "x", "wal-fetch", "000000010000000000000001", "/dev/null"], &[])]
fn wal_fetch_never_takes_a_failure_for_the_end_of_the_log(
    #[case] arguments: &[&str],
    #[case] environment: &[(&str, &str)],
) {
    run_in(arguments, environment, 126);
}

/// PostgreSQL's archiver ends itself when `archive_command` gives a code above 125.
#[rstest]
#[case(&["wal-push"], USAGE)]
#[case(&["wal-push", "pg_wal/000000010000000000000001", "--repository", "gs://a"], USAGE)]
#[case(&["wal-push", "pg_wal/000000010000000000000001", "--repository", "memory://a"], UNDONE)]
fn wal_push_never_ends_the_archiver(#[case] arguments: &[&str], #[case] code: i32) {
    run(arguments, code);
}

#[test]
fn the_configuration_gives_what_options_and_environment_do_not() {
    let (_directory, path) = configuration("repository = 'memory://file'\noutput = 'json'\n");
    let place = |arguments: &[&str], environment: &[(&str, &str)]| {
        let (_, stderr) = run_in(&[&["list", "--config", &path], arguments].concat(), environment, UNDONE);
        let error: Value = serde_json::from_str(&stderr).unwrap();
        error["error"].as_str().unwrap().split([' ', ':']).find(|word| word.starts_with("//")).unwrap().to_owned()
    };
    assert_eq!(place(&[], &[]), "//file");
    assert_eq!(place(&[], &[("HOLDFAST_REPOSITORY", "memory://environment")]), "//environment");
    assert_eq!(
        place(&["--repository", "memory://option"], &[("HOLDFAST_REPOSITORY", "memory://environment")]),
        "//option"
    );
}

#[rstest]
#[case("colour = 'red'\n", "unknown key colour")]
#[case("[backup]\ncolour = 'red'\n", "unknown key backup.colour")]
#[case("password = 'hunter2'\n", "the key password is a secret, and secrets are not accepted in this file")]
#[case("[s3]\nsecret_access_key = 'hunter2'\n", "is a secret, and secrets are not accepted in this file")]
#[case("repository = 's3://a:hunter2@b'\n", "the key repository holds credentials")]
#[case("threads = 'many'\n", "note: the value is that of the key threads in ")]
#[case("[prune]\ndry-run = true\n", "the key prune.dry-run is not accepted here: --dry-run is decided each time")]
fn a_configuration_that_is_wrong_is_refused_by_key(#[case] text: &str, #[case] reason: &str) {
    let (_directory, path) = configuration(text);
    let (_, stderr) = run(&["--config", &path, "list"], USAGE);
    assert!(stderr.contains(reason) && stderr.contains(&path), "{stderr}");
    assert!(!stderr.contains("hunter2"), "{stderr}");
}

#[test]
fn a_configuration_that_is_named_must_be_there() {
    let (_, stderr) = run(&["--config", "/nonexistent/agent.toml", "list"], USAGE);
    assert!(
        stderr.starts_with("error: cannot read the configuration /nonexistent/agent.toml: No such file"),
        "{stderr}"
    );
}

/// What cannot be written is not taken for success; a reader that went away is no failure.
#[test]
fn a_full_disk_is_told_and_a_closed_pipe_is_not() {
    let program = env!("CARGO_BIN_EXE_holdfast-agent");
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = Command::new(program).args(["completions", "bash"]).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(UNDONE));
    assert!(words(&output.stderr).contains("could not be written to stdout: No space left"), "{:?}", output.stderr);

    let mut child = Command::new(program)
        .args(["completions", "bash"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), words(&output.stderr).as_str()), (Some(DONE), ""));
}

#[test]
fn nothing_is_made_where_nothing_is_to_be_written() {
    let directory = tempfile::tempdir().unwrap();
    let repository: PathBuf = directory.path().join("mistyped");
    let (_, stderr) = run(&["list", "--repository", repository.to_str().unwrap()], UNDONE);
    assert!(stderr.contains("there is no repository at file://"), "{stderr}");
}
