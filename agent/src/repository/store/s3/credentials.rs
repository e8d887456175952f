//! Keys, wherever they come from, and read again before they can be old.

use std::collections::HashMap;
use std::env;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use aws_config::profile::ProfileFileCredentialsProvider;
use aws_config::provider_config::ProviderConfig;
use aws_config::web_identity_token::WebIdentityTokenCredentialsProvider;
use aws_credential_types::provider::error::CredentialsError;
use aws_credential_types::provider::{ProvideCredentials, future};
use aws_sdk_s3::config::{Credentials as Keys, Region, SharedHttpClient};

/// How long keys that do not say when they end are kept. The SDK asks anew up to ten seconds before that, so that
/// rotated keys are used at once.
const KEPT_FOR: Duration = Duration::from_secs(11);

type Found = Result<Keys, CredentialsError>;

/// The file that was named, else the environment, else a web identity, else the default profile. Never the metadata
/// service of a cloud, for which one would wait elsewhere.
pub(super) struct Credentials {
    file: Option<PathBuf>,
    profile: Option<String>,
    config: ProviderConfig,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("file", &self.file).field("profile", &self.profile).finish_non_exhaustive()
    }
}

impl Credentials {
    pub(super) fn new(file: Option<PathBuf>, profile: Option<String>, region: Region, http: SharedHttpClient) -> Self {
        let config = ProviderConfig::without_region().with_region(Some(region)).with_http_client(http);
        Self { file, profile, config }
    }

    async fn find(&self) -> Found {
        if let Some(file) = &self.file {
            return from_file(file, self.profile.as_deref().unwrap_or("default"));
        }
        let is_set = |name| env::var_os(name).is_some();
        if is_set("AWS_ACCESS_KEY_ID") || is_set("AWS_SECRET_ACCESS_KEY") {
            return from_environment();
        }
        if is_set("AWS_WEB_IDENTITY_TOKEN_FILE") {
            let provider = WebIdentityTokenCredentialsProvider::builder().configure(&self.config).build();
            return provider.provide_credentials().await;
        }
        let mut provider = ProfileFileCredentialsProvider::builder().configure(&self.config);
        if let Some(profile) = &self.profile {
            provider = provider.profile_name(profile);
        }
        provider.build().provide_credentials().await.map_err(|error| match error {
            CredentialsError::CredentialsNotLoaded(_) => CredentialsError::not_loaded(
                "no credentials: give --s3-credentials-file, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
            ),
            other => other,
        })
    }
}

impl ProvideCredentials for Credentials {
    fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        future::ProvideCredentials::new(async {
            let found = self.find().await?;
            let expiry = found.expiry().unwrap_or_else(|| SystemTime::now() + KEPT_FOR);
            let token = found.session_token().map(|token| token.trim().to_owned());
            let id = filled(found.access_key_id(), "the access key id")?;
            let secret = filled(found.secret_access_key(), "the secret access key")?;
            Ok(Keys::new(id, secret, token.filter(|token| !token.is_empty()), Some(expiry), "holdfast"))
        })
    }
}

/// A blank at an end is never meant, and ruins every signature.
fn filled(value: &str, name: &str) -> Result<String, CredentialsError> {
    match value.trim() {
        "" => Err(CredentialsError::invalid_configuration(format!("{name} is empty"))),
        value => Ok(value.to_owned()),
    }
}

fn from_environment() -> Found {
    let get = |name: &str| {
        let value =
            env::var(name).map_err(|_| CredentialsError::invalid_configuration(format!("{name} is not set")))?;
        filled(&value, name)
    };
    let token = env::var("AWS_SESSION_TOKEN").ok();
    Ok(Keys::new(get("AWS_ACCESS_KEY_ID")?, get("AWS_SECRET_ACCESS_KEY")?, token, None, "environment"))
}

fn from_file(file: &Path, profile: &str) -> Found {
    let refused = |reason: String| {
        CredentialsError::invalid_configuration(format!("the S3 credentials file {}: {reason}", file.display()))
    };
    let text = std::fs::read_to_string(file).map_err(|error| refused(error.to_string()))?;
    let values = section(&text, profile).ok_or_else(|| refused(format!("there is no profile {profile:?} in it")))?;
    let get = |name: &str| {
        let value = values.get(name).ok_or_else(|| refused(format!("{name} is missing in profile {profile:?}")))?;
        filled(value, name).map_err(|_| refused(format!("{name} is empty in profile {profile:?}")))
    };
    let token = values.get("aws_session_token").map(|token| (*token).to_owned());
    Ok(Keys::new(get("aws_access_key_id")?, get("aws_secret_access_key")?, token, None, "file"))
}

/// The lines `name = value` below `[profile]`, or below `[profile profile]` as the configuration file has it.
fn section<'a>(text: &'a str, profile: &str) -> Option<HashMap<&'a str, &'a str>> {
    let is_it = |header: &str| {
        let name = header.trim_start_matches('[').trim_end_matches(']').trim();
        name == profile || name.strip_prefix("profile").is_some_and(|name| name.trim() == profile)
    };
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with(['#', ';']));
    let mut values = None;
    let mut is_inside = false;
    for line in lines {
        if line.starts_with('[') {
            is_inside = is_it(line);
            if is_inside {
                values.get_or_insert_with(HashMap::new);
            }
        } else if let (true, Some((name, value)), Some(values)) = (is_inside, line.split_once('='), values.as_mut()) {
            values.insert(name.trim(), value.trim());
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "# for the backup\n[default]\naws_access_key_id = first\naws_secret_access_key=a=b  \n\n\
        [other]\naws_access_key_id=second\naws_secret_access_key=c\naws_session_token = d\n[profile third]\naws_access_key_id =  \n";

    fn read(text: &str, profile: &str) -> Result<(String, String, Option<String>), String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let path = file.path().display().to_string();
        let keys = from_file(file.path(), profile)
            .map_err(|error| std::error::Error::source(&error).unwrap().to_string().replace(&path, "FILE"))?;
        let token = keys.session_token().map(str::to_owned);
        Ok((keys.access_key_id().to_owned(), keys.secret_access_key().to_owned(), token))
    }

    #[test]
    fn a_profile_gives_its_keys() {
        assert_eq!(read(FILE, "default"), Ok(("first".into(), "a=b".into(), None)));
        assert_eq!(read(FILE, "other"), Ok(("second".into(), "c".into(), Some("d".into()))));
    }

    #[test]
    fn what_is_missing_is_named_and_no_value_is_shown() {
        assert_eq!(
            read(FILE, "third"),
            Err("the S3 credentials file FILE: aws_access_key_id is empty in profile \"third\"".into())
        );
        assert_eq!(
            read("[default]\naws_access_key_id = a\n", "default"),
            Err("the S3 credentials file FILE: aws_secret_access_key is missing in profile \"default\"".into())
        );
        assert_eq!(
            read(FILE, "fourth"),
            Err("the S3 credentials file FILE: there is no profile \"fourth\" in it".into())
        );
    }
}
