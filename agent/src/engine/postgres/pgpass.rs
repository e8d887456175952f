//! The password file, `~/.pgpass` (PostgreSQL documentation, "The Password File").

use std::fmt;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// A password. It never shows itself.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Password(String);

impl Password {
    /// Takes a password from where it was kept.
    pub(super) fn new(secret: String) -> Self {
        Self(secret)
    }

    /// The password, for the server alone.
    pub(super) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password(hidden)")
    }
}

/// For whom a password is looked up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lookup<'a> {
    /// The host name, or `localhost` for a socket in a default directory, or another socket's directory.
    pub(super) host: &'a str,
    pub(super) port: u16,
    pub(super) dbname: &'a str,
    pub(super) user: &'a str,
}

/// What a password file had to say.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    Password(Password),
    Nothing,
    /// The file is not used, as libpq would not use it; the reason is for a person.
    Unusable(String),
}

/// Looks into a password file. As in libpq, one that others can read is not used.
pub(super) fn look_up(path: &Path, lookup: Lookup<'_>) -> Found {
    let Ok(metadata) = std::fs::metadata(path) else { return Found::Nothing };
    if !metadata.is_file() {
        return Found::Unusable(format!("the password file {} is not a plain file", path.display()));
    }
    if metadata.mode() & 0o077 != 0 {
        return Found::Unusable(format!(
            "the password file {} is not used, because others can access it (mode {:04o}; make it 0600)",
            path.display(),
            metadata.mode() & 0o7777
        ));
    }
    match std::fs::read_to_string(path) {
        Ok(content) => search(&content, lookup).map_or(Found::Nothing, Found::Password),
        Err(error) => Found::Unusable(format!("the password file {} cannot be read: {error}", path.display())),
    }
}

/// The password of the first line that matches.
fn search(content: &str, lookup: Lookup<'_>) -> Option<Password> {
    let port = lookup.port.to_string();
    let wanted = [lookup.host, &port, lookup.dbname, lookup.user];
    content.lines().filter(|line| !line.starts_with('#')).find_map(|line| {
        let mut rest = line.trim_end_matches('\r');
        for value in wanted {
            let (field, behind) = split_field(rest)?;
            if field.raw != "*" && field.plain != value {
                return None;
            }
            rest = behind;
        }
        // The password is the rest of the line, in which a colon may be escaped but need not.
        Some(Password(unescape(rest)))
    })
}

struct Field<'a> {
    raw: &'a str,
    plain: String,
}

/// The text up to the next colon that is not escaped, and what is behind that colon.
fn split_field(line: &str) -> Option<(Field<'_>, &str)> {
    let mut escaped = false;
    for (at, byte) in line.bytes().enumerate() {
        match byte {
            b'\\' if !escaped => escaped = true,
            b':' if !escaped => {
                let (raw, behind) = (line.get(..at)?, line.get(at + 1..)?);
                return Some((Field { raw, plain: unescape(raw) }, behind));
            }
            _ => escaped = false,
        }
    }
    None
}

fn unescape(field: &str) -> String {
    let mut plain = String::with_capacity(field.len());
    let mut characters = field.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => plain.extend(characters.next()),
            other => plain.push(other),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const LOOKUP: Lookup<'_> = Lookup { host: "db.example", port: 5432, dbname: "shop", user: "anna" };

    fn found(content: &str) -> Option<String> {
        search(content, LOOKUP).map(|password| password.0)
    }

    #[test]
    fn the_first_matching_line_counts() {
        let file = "# db.example:5432:shop:anna:comment\nother:5432:shop:anna:no\n*:*:*:anna:first\n*:*:*:*:second\n";
        assert_eq!(found(file).as_deref(), Some("first"));
        assert_eq!(found("db.example:5433:shop:anna:no\n"), None);
        assert_eq!(found("db.example:5432:shop\n"), None);
    }

    #[test]
    fn colons_and_backslashes_are_escaped() {
        assert_eq!(found("*:*:*:*:a:b\\:c\\\\d\r\n").as_deref(), Some("a:b:c\\d"));
        let lookup = Lookup { user: "a:b", ..LOOKUP };
        assert_eq!(search("*:*:*:a\\:b:x", lookup), Some(Password("x".into())));
        assert_eq!(found("*:*:*:\\*:x"), None, "an escaped asterisk is no wildcard");
    }

    #[test]
    fn a_file_that_others_can_read_is_not_used() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "*:*:*:*:secret\n").unwrap();
        std::fs::set_permissions(file.path(), Permissions::from_mode(0o640)).unwrap();
        let reason = format!(
            "the password file {} is not used, because others can access it (mode 0640; make it 0600)",
            file.path().display()
        );
        assert_eq!(look_up(file.path(), LOOKUP), Found::Unusable(reason));
        std::fs::set_permissions(file.path(), Permissions::from_mode(0o600)).unwrap();
        assert_eq!(look_up(file.path(), LOOKUP), Found::Password(Password("secret".into())));
        assert_eq!(look_up(Path::new("/nonexistent/pgpass"), LOOKUP), Found::Nothing);
    }

    #[test]
    fn a_password_does_not_show_itself() {
        assert_eq!(format!("{:?}", Password("secret".into())), "Password(hidden)");
    }
}
