//! Keeps secrets out of arguments and out of the configuration: others can read both.
//!
//! Nothing that is refused here is repeated, in part or in full.

use std::ffi::OsString;

use super::exit::Failure;

/// Where secrets belong.
pub(super) const WHERE: &str = "passwords of the database go into a password file (--passfile, ~/.pgpass), a connection \
     service or PGPASSWORD; keys of S3 into a credentials file (--s3-credentials-file) or AWS_ACCESS_KEY_ID and \
     AWS_SECRET_ACCESS_KEY";

/// Refuses arguments that are, or hold, secrets, before anything looks at them that would repeat them.
///
/// # Errors
/// Where one does.
pub(super) fn refuse_in_arguments(arguments: &[OsString]) -> Result<(), Failure> {
    for (number, argument) in arguments.iter().enumerate().skip(1) {
        let text = argument.to_string_lossy();
        let option = text.strip_prefix("--").and_then(|option| option.split('=').next());
        if option.is_some_and(is_secret_name) {
            return Err(Failure::usage(format!(
                "argument {number} gives a secret, and every user of this machine can read arguments: {WHERE}"
            )));
        }
        let value = if text.starts_with("--") { text.split_once('=').map_or("", |(_, value)| value) } else { &text };
        refuse_in(&format!("argument {number}"), value)?;
    }
    Ok(())
}

/// Refuses a value that holds credentials: a URL with a user, a connection string with a password.
///
/// # Errors
/// Where it does; `what` names the value.
pub(super) fn refuse_in(what: &str, value: &str) -> Result<(), Failure> {
    let in_url = value.split_once("://").is_some_and(|(_, rest)| {
        rest.split(['/', '?']).next().is_some_and(|authority| authority.contains('@'))
            || rest.split_once('?').is_some_and(|(_, query)| query.split(['&', '=']).any(is_secret_name))
    });
    // `password=x`, and `password = x`, in a list of settings.
    let is_setting = |key: &str| key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') && is_secret_name(key);
    let in_settings = value.split_whitespace().any(|word| is_setting(word.split_once('=').map_or("", |(key, _)| key)))
        || (value.contains('=') && value.split_whitespace().any(is_setting));
    if in_url || in_settings {
        return Err(Failure::usage(format!("{what} holds credentials; they are not accepted there: {WHERE}")));
    }
    Ok(())
}

/// What a name of a secret has in it.
const WORDS: [&str; 6] = ["password", "passwd", "passphrase", "secret", "token", "accesskey"];

/// Whether something of that name is a secret: an option, a key of the configuration, a setting.
pub(super) fn is_secret_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase().replace(['-', '_', '.'], "");
    let names_a_file = name.ends_with("file") || name.ends_with("path");
    !names_a_file && WORDS.iter().any(|word| name.contains(word))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn check(arguments: &[&str]) -> Result<(), Failure> {
        let arguments: Vec<OsString> = ["holdfast-agent"].iter().chain(arguments).map(OsString::from).collect();
        refuse_in_arguments(&arguments)
    }

    #[rstest]
    #[case(&["--password", "hunter2"])]
    #[case(&["--password=hunter2"])]
    #[case(&["--s3-secret-key=hunter2"])]
    #[case(&["--s3-access-key", "hunter2"])]
    #[case(&["--repository", "s3://AKIA:hunter2@bucket/a"])]
    #[case(&["--repository=s3://hunter2@bucket"])]
    #[case(&["postgres://anna:hunter2@db/shop"])]
    #[case(&["postgresql://db/shop?user=anna&password=hunter2"])]
    #[case(&["host=db password=hunter2"])]
    #[case(&["host=db password = hunter2"])]
    #[case(&["--dbname", "PGPASSWORD=hunter2"])]
    fn a_secret_is_refused_and_not_repeated(#[case] arguments: &[&str]) {
        let failure = check(arguments).unwrap_err();
        assert_eq!(failure.code, super::super::exit::USAGE);
        assert!(failure.message.contains("argument ") && failure.message.contains("~/.pgpass"), "{failure:?}");
        assert!(!failure.message.contains("hunter2"), "{failure:?}");
    }

    #[rstest]
    #[case(&["--passfile", "/etc/pgpass"])]
    #[case(&["--s3-credentials-file=/etc/secret/token"])]
    #[case(&["--repository", "s3://bucket/secret/a@b"])]
    #[case(&["--data-dir", "/data/password=old"])]
    #[case(&["wal-push", "pg_wal/000000010000000000000001"])]
    fn what_only_looks_like_one_is_not(#[case] arguments: &[&str]) {
        assert_eq!(check(arguments), Ok(()));
    }
}
