//! The connection service file, `~/.pg_service.conf` (PostgreSQL documentation, "The Connection Service File").

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What is wrong with a service file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServiceError {
    /// No file defines the service.
    #[error("service {service:?} is not defined; looked in {}", list(looked_in))]
    NotDefined {
        /// The service.
        service: String,
        /// The files that were read or would have been.
        looked_in: Vec<PathBuf>,
    },
    /// The file exists but cannot be read.
    #[error("cannot read the service file {}: {reason}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A line is neither a section, a comment nor a setting.
    #[error("line {line} of the service file {} is not a setting (name=value)", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
    },
}

/// The settings of `service`, from the first of `files` that defines it.
pub(super) fn look_up(service: &str, files: &[PathBuf]) -> Result<BTreeMap<String, String>, ServiceError> {
    for path in files {
        let content = match std::fs::read_to_string(path) {
            Ok(content) => content,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => return Err(ServiceError::Unreadable { path: path.clone(), reason: error.to_string() }),
        };
        if let Some(settings) = section(&content, service, path)? {
            return Ok(settings);
        }
    }
    Err(ServiceError::NotDefined { service: service.to_owned(), looked_in: files.to_vec() })
}

/// The settings below `[service]`; the first of two equal names counts, as in libpq.
fn section(content: &str, service: &str, path: &Path) -> Result<Option<BTreeMap<String, String>>, ServiceError> {
    let mut settings = None;
    for (index, line) in content.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            if settings.is_some() {
                break;
            }
            if name == service {
                settings = Some(BTreeMap::new());
            }
        } else if let Some(settings) = &mut settings {
            let syntax = || ServiceError::Syntax { path: path.to_owned(), line: index + 1 };
            let (name, value) = line.split_once('=').ok_or_else(syntax)?;
            settings.entry(name.trim().to_owned()).or_insert_with(|| value.trim().to_owned());
        }
    }
    Ok(settings)
}

fn list(paths: &[PathBuf]) -> String {
    let names: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
    if names.is_empty() { "no file, as there is none to look in".into() } else { names.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str =
        "# ours\n[other]\nhost=elsewhere\n\n[shop]\nhost=db.example\nport = 5433\nhost=later\n[last]\nx\n";

    fn of(service: &str) -> Result<Option<BTreeMap<String, String>>, ServiceError> {
        section(FILE, service, Path::new("/etc/pg_service.conf"))
    }

    #[test]
    fn only_the_named_section_is_read() {
        let expected = [("host", "db.example"), ("port", "5433")];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(of("shop"), Ok(Some(expected.into())));
        assert_eq!(of("none"), Ok(None));
    }

    #[test]
    fn a_line_that_is_no_setting_is_named() {
        let error = of("last").unwrap_err();
        assert_eq!(error.to_string(), "line 10 of the service file /etc/pg_service.conf is not a setting (name=value)");
    }

    #[test]
    fn the_first_file_that_defines_the_service_counts() {
        let dir = tempfile::tempdir().unwrap();
        let [first, second] = ["first", "second"].map(|name| dir.path().join(name));
        std::fs::write(&first, "[a]\nhost=1\n").unwrap();
        std::fs::write(&second, "[a]\nhost=2\n[b]\nhost=3\n").unwrap();
        let files = [first, dir.path().join("missing"), second];
        assert_eq!(look_up("a", &files).unwrap()["host"], "1");
        assert_eq!(look_up("b", &files).unwrap()["host"], "3");
        let error = look_up("c", &files).unwrap_err().to_string();
        assert!(error.starts_with("service \"c\" is not defined; looked in /"), "{error}");
    }
}
