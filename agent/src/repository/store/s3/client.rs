//! The SDK's client, as this store wants it.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::Duration;

use aws_sdk_s3::Client;
use aws_sdk_s3::config::retry::RetryConfig;
use aws_sdk_s3::config::timeout::TimeoutConfig;
use aws_sdk_s3::config::{
    BehaviorVersion, Region, RequestChecksumCalculation, ResponseChecksumValidation, SharedHttpClient,
    StalledStreamProtectionConfig,
};
use aws_smithy_http_client::tls::rustls_provider::CryptoMode;
use aws_smithy_http_client::tls::{Provider, TlsContext, TrustStore};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

use super::S3Settings;
use super::credentials::Credentials;
use super::fault::TryAgain;
use crate::repository::store::StoreFault;

/// How often a call is tried, in all.
pub(super) const ATTEMPTS: u32 = 5;
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long one attempt may take, besides the time that its body needs.
pub(super) const ATTEMPT_TIMEOUT: Duration = Duration::from_mins(1);
/// How long a body may stand still.
const STALL_TIMEOUT: Duration = Duration::from_secs(20);

/// Builds the client.
pub(super) fn build(settings: S3Settings, endpoint: Option<String>) -> Result<Client, StoreFault> {
    let http = http_client(settings.ca_file.as_deref())?;
    let region = Region::new(region(settings.region.as_deref())?);
    let credentials = Credentials::new(settings.credentials_file, settings.profile, region.clone(), http.clone());
    let retries = RetryConfig::standard()
        .with_max_attempts(ATTEMPTS)
        .with_initial_backoff(Duration::from_millis(250))
        .with_max_backoff(Duration::from_secs(10));
    let timeouts =
        TimeoutConfig::builder().connect_timeout(CONNECT_TIMEOUT).operation_attempt_timeout(ATTEMPT_TIMEOUT).build();
    let mut config = aws_sdk_s3::Config::builder();
    config.set_endpoint_url(endpoint);
    let config = config
        .behavior_version(BehaviorVersion::v2026_01_12())
        .http_client(http)
        .region(region)
        .force_path_style(settings.path_style)
        .credentials_provider(credentials)
        .retry_config(retries)
        .retry_classifier(TryAgain)
        .timeout_config(timeouts)
        .stalled_stream_protection(StalledStreamProtectionConfig::enabled().grace_period(STALL_TIMEOUT).build())
        // Checksums the SDK adds by itself come in trailers that many servers do not understand. This store sends its own.
        .request_checksum_calculation(RequestChecksumCalculation::WhenRequired)
        .response_checksum_validation(ResponseChecksumValidation::WhenRequired)
        .build();
    Ok(Client::from_conf(config))
}

/// The endpoint, checked. It is shown to people, so it must not hold a secret.
pub(super) fn endpoint(settings: &S3Settings) -> Result<Option<String>, StoreFault> {
    let Some(endpoint) = settings.endpoint.as_deref().map(str::trim) else { return Ok(None) };
    let refused = |reason: &str| Err(StoreFault::Refused(format!("the S3 endpoint {reason}")));
    if endpoint.is_empty() {
        return refused("is empty: leave it out for Amazon's, or write https://host:port");
    }
    if endpoint.contains(['@', '?', '#']) {
        return refused("holds credentials or a query: give credentials by --s3-credentials-file or the environment");
    }
    let host = endpoint.strip_prefix("https://").or_else(|| endpoint.strip_prefix("http://"));
    if host.is_none_or(|host| host.is_empty() || host.contains(char::is_whitespace)) {
        return refused(&format!("{endpoint:?} is no URL: write https://host:port"));
    }
    Ok(Some(endpoint.trim_end_matches('/').to_owned()))
}

fn region(given: Option<&str>) -> Result<String, StoreFault> {
    let region = match given {
        Some(given) => given.to_owned(),
        None => ["AWS_REGION", "AWS_DEFAULT_REGION"]
            .iter()
            .find_map(|name| std::env::var(name).ok().filter(|region| !region.trim().is_empty()))
            .unwrap_or_else(|| "us-east-1".to_owned()),
    };
    match region.trim() {
        "" => Err(StoreFault::Refused("the S3 region is empty".to_owned())),
        region => Ok(region.to_owned()),
    }
}

fn http_client(ca_file: Option<&Path>) -> Result<SharedHttpClient, StoreFault> {
    let mut trusted = TrustStore::default();
    if let Some(file) = ca_file {
        trusted.add_pem_certificate(certificates(file)?);
    }
    let context = TlsContext::builder().with_trust_store(trusted).build();
    let context = context.map_err(|error| StoreFault::Refused(format!("cannot set up TLS: {error}")))?;
    let http = aws_smithy_http_client::Builder::new().tls_provider(Provider::Rustls(CryptoMode::AwsLc));
    Ok(http.tls_context(context).build_https())
}

/// The certificates in a file, each one checked here: the HTTP client would panic at one that is not well formed.
fn certificates(file: &Path) -> Result<String, StoreFault> {
    let refused = |reason: String| StoreFault::Refused(format!("the S3 CA file {}: {reason}", file.display()));
    let text = fs::read(file).map_err(|error| refused(error.to_string()))?;
    let (mut roots, mut pem) = (rustls::RootCertStore::empty(), String::new());
    for certificate in rustls_pemfile::certs(&mut text.as_slice()) {
        let certificate = certificate.map_err(|error| refused(error.to_string()))?;
        let encoded = BASE64_STANDARD.encode(&certificate);
        // Writing to a string cannot fail.
        let _ = writeln!(pem, "-----BEGIN CERTIFICATE-----\n{encoded}\n-----END CERTIFICATE-----");
        roots.add(certificate).map_err(|error| refused(error.to_string()))?;
    }
    if roots.is_empty() { Err(refused("it holds no certificate (PEM)".to_owned())) } else { Ok(pem) }
}
