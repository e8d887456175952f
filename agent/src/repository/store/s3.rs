//! S3.

use std::path::PathBuf;

/// How to reach S3, whatever the bucket.
#[derive(Debug, Clone, Default)]
pub struct S3Settings {
    /// The server; without it, Amazon's of the region.
    pub endpoint: Option<String>,
    /// The region; without it, what the environment or the profile says, else `us-east-1`.
    pub region: Option<String>,
    /// Whether the bucket is in the path rather than in the host name.
    pub path_style: bool,
    /// Certificates (PEM) that are trusted besides the system's.
    pub ca_file: Option<PathBuf>,
    /// A file of credentials in AWS' shared format.
    pub credentials_file: Option<PathBuf>,
    /// The profile in that file.
    pub profile: Option<String>,
}

/// A bucket, a place in it, and how to reach it.
#[derive(Debug, Clone, Default)]
pub struct S3Options {
    /// The bucket, which must exist.
    pub bucket: String,
    /// What all keys begin with; empty for the whole bucket.
    pub prefix: String,
    /// How to reach it.
    pub settings: S3Settings,
}
