//! Words for a shell, and the command that fetches log for a server.

use std::path::Path;

use super::exit::Failure;
use super::options::Global;
use crate::home::Home;

/// A word for the shell, quoted where it must be.
pub(super) fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Words for the shell.
pub(super) fn line(words: &[String]) -> String {
    words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
}

/// What stands before `wal-fetch %f %p` in `restore_command`: this program, for the lineage of `home`. The server calls
/// it in another directory, so all paths are absolute. There is no secret in it; those come from the environment or files.
///
/// # Errors
/// Where this program cannot be found.
pub(super) fn fetch_command(global: &Global, home: &Home) -> Result<String, Failure> {
    let program = std::env::current_exe()
        .map_err(|error| Failure::because(format!("cannot tell where this program is: {error}")))?;
    let mut words = vec![program.display().to_string()];
    let mut option = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            words.extend([name.to_owned(), value]);
        }
    };
    let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string();
    let file = |path: &Option<std::path::PathBuf>| path.as_deref().map(absolute);
    let url = global.repository()?;
    option("--repository", Some(if url.contains("://") { url.to_owned() } else { absolute(Path::new(url)) }));
    option("--config", file(&global.config));
    option("--system-id", Some(home.system.id.clone()));
    option("--lineage", Some(home.lineage.lineage.clone()));
    option("--s3-endpoint", global.s3.s3_endpoint.clone());
    option("--s3-region", global.s3.s3_region.clone());
    option("--s3-ca-file", file(&global.s3.s3_ca_file));
    option("--s3-credentials-file", file(&global.s3.s3_credentials_file));
    option("--s3-profile", global.s3.s3_profile.clone());
    if global.s3.s3_path_style {
        words.push("--s3-path-style".to_owned());
    }
    // The server takes a single % for the beginning of %f or %p.
    Ok(line(&words).replace('%', "%%"))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use clap::Parser as _;

    use super::*;
    use crate::repository::store::memory::MemoryStore;
    use crate::repository::{Owner, Repository};

    #[test]
    fn only_what_must_be_is_quoted() {
        assert_eq!(line(&["-c".into(), "a=b c".into(), "it's".into(), String::new()]), r"-c 'a=b c' 'it'\''s' ''");
    }

    #[test]
    fn the_fetch_command_names_everything_but_secrets() {
        let repository = Repository::open_or_create(Arc::new(MemoryStore::default())).unwrap();
        let system = repository.system("7");
        let owner = Owner { host: "h".into(), data_directory: "/d".into() };
        let lineage = system.begin_lineage("postgresql", owner, None).unwrap();
        let name = lineage.lineage.clone();
        let home = Home { repository, system, lineage };
        let words = ["holdfast-agent", "--repository", "./a b%", "list", "--s3-ca-file", "/ca", "--s3-path-style"];
        let global = crate::cli::Cli::parse_from(words).global;
        let command = fetch_command(&global, &home).unwrap();
        let here = std::env::current_dir().unwrap();
        let wanted = format!(
            " --repository '{}/a b%%' --system-id 7 --lineage {name} --s3-ca-file /ca --s3-path-style",
            here.display()
        );
        assert!(command.ends_with(&wanted), "{command}");
    }
}
