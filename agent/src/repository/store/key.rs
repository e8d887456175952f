//! Names of objects.

use std::fmt;

/// The name of an object, or of a level above objects: parts joined by `/`, relative to the repository.
///
/// A key never holds an empty part, `.` or `..`, nor anything but letters, digits and `-_.+:`, so that no
/// name read from a damaged or hostile repository can lead out of it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(String);

/// A text that is no key.
#[derive(Debug, thiserror::Error)]
#[error(
    "{0:?} cannot be the name of an object: parts are letters, digits and -_.+: joined by '/', never empty, '.' or '..'"
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
        && part != "."
        && part != ".."
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
