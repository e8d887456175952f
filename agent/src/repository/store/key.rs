//! Names of objects.

use std::fmt;

/// The name of an object, or of a level above objects: parts joined by `/`, relative to the repository.
///
/// A key never holds an empty part nor one that begins with a dot, nor anything but letters, digits and `-_.+:`,
/// so that no name read from a damaged or hostile repository can lead out of it, or to what a file system or a
/// store keeps for itself (`.tmp`, `.snapshot`, `.nfs0001`).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(String);

/// A text that is no key.
#[derive(Debug, thiserror::Error)]
#[error(
    "{0:?} cannot be the name of an object: parts are letters, digits and -_.+: joined by '/', never empty nor beginning with a dot"
)]
pub struct BadKey(String);

impl Key {
    /// The repository itself: above every object.
    pub const fn root() -> Self {
        Self(String::new())
    }

    /// Checks a text.
    ///
    /// # Errors
    /// Where it is no key.
    pub fn parse(text: &str) -> Result<Self, BadKey> {
        if text.len() <= 1024 && text.split('/').all(is_part) {
            Ok(Self(text.to_owned()))
        } else {
            Err(BadKey(text.chars().take(200).collect()))
        }
    }

    /// The key of `part` below this one.
    ///
    /// # Errors
    /// Where `part` is not a single part of a key.
    pub fn child(&self, part: &str) -> Result<Self, BadKey> {
        if !is_part(part) {
            return Err(BadKey(part.chars().take(200).collect()));
        }
        Ok(if self.0.is_empty() { Self(part.to_owned()) } else { Self(format!("{}/{part}", self.0)) })
    }

    /// The key as text; empty for the root.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The last part.
    pub fn name(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or_default()
    }
}

fn is_part(part: &str) -> bool {
    !part.is_empty()
        && !part.starts_with('.')
        && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.+:".contains(&b))
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_joined_by_separators() {
        let key = Key::root().child("a").and_then(|key| key.child("b-1_2.c+d:e")).unwrap();
        assert_eq!(key.as_str(), "a/b-1_2.c+d:e");
        assert_eq!(key.name(), "b-1_2.c+d:e");
        assert_eq!(Key::parse("a/b-1_2.c+d:e").unwrap(), key);
    }

    #[test]
    fn nothing_leads_out_of_the_repository_or_to_hidden_files() {
        for bad in
            ["", "/", "/a", "a/", "a//b", ".", "..", "a/..", "../a", ".tmp/a", "a/.nfs01", "a b", "a\\b", "a\0", "ä"]
        {
            assert!(Key::parse(bad).is_err(), "{bad:?} was taken for a key");
        }
        assert!(Key::root().child("a/b").is_err());
        assert!(Key::parse(&"a".repeat(1025)).is_err());
    }
}
