//! Harness.

pub mod minio;
