//! From a URL to a store.

use std::path::Path;
use std::sync::Arc;

use super::file::FileStore;
use super::memory::MemoryStore;
use super::s3::{S3Options, S3Settings, S3Store};
use super::{Key, Store, StoreError, StoreFault, StoreResult};

/// What can be said instead of a text that names no store.
const FORMS: &str = "a repository is given as /path, file:///path, s3://bucket/prefix or memory://name";

/// Opens the store that `url` names: a plain path, `file://`, `memory://` or `s3://`.
///
/// # Errors
/// Where the URL is of no known form or holds credentials, or the store cannot be opened.
pub fn open(url: &str, s3: &S3Settings) -> StoreResult<Arc<dyn Store>> {
    Ok(match parse(url)? {
        Place::Path(path) => Arc::new(FileStore::open(path)?),
        Place::Memory(name) => MemoryStore::named(name),
        Place::S3 { bucket, prefix } => Arc::new(S3Store::open(S3Options {
            bucket: bucket.to_owned(),
            prefix: prefix.to_owned(),
            settings: s3.clone(),
        })?),
    })
}

/// Where a URL leads.
#[derive(Debug, PartialEq, Eq)]
enum Place<'a> {
    Path(&'a Path),
    Memory(&'a str),
    S3 { bucket: &'a str, prefix: &'a str },
}

fn parse(url: &str) -> StoreResult<Place<'_>> {
    if url.trim() != url {
        return Err(refused("the repository's URL begins or ends with a blank".to_owned()));
    }
    let Some((scheme, rest)) = url.split_once("://") else { return path(url) };
    if rest.split('/').next().is_some_and(|authority| authority.contains('@')) || (scheme == "s3" && rest.contains('?'))
    {
        // Nothing of it is repeated: whatever is before the `@`, or in the query, can be a secret.
        let reason = "the repository's URL holds credentials or a query: give credentials by --s3-credentials-file or the environment";
        return Err(refused(reason.to_owned()));
    }
    match scheme {
        "file" if rest.starts_with('/') => path(rest),
        "file" => Err(refused(format!("{url} names another host: write file:///path, with three slashes"))),
        "memory" => Ok(Place::Memory(rest)),
        "s3" => bucket(rest),
        _ => Err(refused(format!("{scheme}:// is not known: {FORMS}"))),
    }
}

fn path(text: &str) -> StoreResult<Place<'_>> {
    // A name without any slash is more often a mistyped URL or a forgotten argument than a directory.
    let is_path = text.starts_with(['/', '.']) || (text.contains('/') && !text.contains(':'));
    if is_path {
        Ok(Place::Path(Path::new(text)))
    } else {
        Err(refused(format!("{text:?} is no URL and no path: {FORMS}")))
    }
}

fn bucket(rest: &str) -> StoreResult<Place<'_>> {
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    let prefix = prefix.trim_end_matches('/');
    if bucket.is_empty() {
        return Err(refused("the URL names no bucket: write s3://bucket/prefix".to_owned()));
    }
    if !prefix.is_empty() && Key::parse(prefix).is_err() {
        return Err(refused(format!(
            "{prefix:?} cannot be the prefix in a bucket: parts are letters, digits and -_.+:"
        )));
    }
    Ok(Place::S3 { bucket, prefix })
}

fn refused(reason: String) -> StoreError {
    StoreError {
        action: "open",
        key: "-".to_owned(),
        location: "the given URL".to_owned(),
        fault: StoreFault::Refused(reason),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("/backup", Place::Path(Path::new("/backup")))]
    #[case("./backup", Place::Path(Path::new("./backup")))]
    #[case("backup/db", Place::Path(Path::new("backup/db")))]
    #[case("file:///backup", Place::Path(Path::new("/backup")))]
    #[case("memory://", Place::Memory(""))]
    #[case("memory://a", Place::Memory("a"))]
    #[case("s3://bucket", Place::S3 { bucket: "bucket", prefix: "" })]
    #[case("s3://bucket/", Place::S3 { bucket: "bucket", prefix: "" })]
    #[case("s3://bucket/a/b/", Place::S3 { bucket: "bucket", prefix: "a/b" })]
    fn a_url_names_a_place(#[case] url: &str, #[case] place: Place<'_>) {
        assert_eq!(parse(url).unwrap(), place);
    }

    #[rstest]
    #[case(
        "gs://bucket",
        "gs:// is not known: a repository is given as /path, file:///path, s3://bucket/prefix or memory://name"
    )]
    #[case(
        "",
        "\"\" is no URL and no path: a repository is given as /path, file:///path, s3://bucket/prefix or memory://name"
    )]
    #[case(
        "backup",
        "\"backup\" is no URL and no path: a repository is given as /path, file:///path, s3://bucket/prefix or memory://name"
    )]
    #[case(
        "s3:/bucket/a",
        "\"s3:/bucket/a\" is no URL and no path: a repository is given as /path, file:///path, s3://bucket/prefix or memory://name"
    )]
    #[case("file://backup", "file://backup names another host: write file:///path, with three slashes")]
    #[case("s3:///a", "the URL names no bucket: write s3://bucket/prefix")]
    #[case("s3://bucket/a//b", "\"a//b\" cannot be the prefix in a bucket: parts are letters, digits and -_.+:")]
    #[case(" /backup", "the repository's URL begins or ends with a blank")]
    fn anything_else_is_refused_with_what_to_write(#[case] url: &str, #[case] reason: &str) {
        assert_eq!(parse(url).unwrap_err().fault.to_string(), reason);
    }

    #[rstest]
    #[case("s3://AKIA:hunter2@bucket/a")]
    #[case("s3://hunter2@bucket")]
    #[case("s3://bucket/a?secret=hunter2")]
    fn credentials_in_a_url_are_refused_and_not_repeated(#[case] url: &str) {
        let error = parse(url).unwrap_err().to_string();
        assert!(error.contains("holds credentials"), "{error}");
        assert!(!error.contains("hunter2") && !error.contains("AKIA"), "{error}");
    }
}
