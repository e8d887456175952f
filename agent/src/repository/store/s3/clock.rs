//! What time the server thinks it is.

use std::sync::{Arc, Mutex, PoisonError};

use aws_sdk_s3::config::interceptors::BeforeDeserializationInterceptorContextRef;
use aws_sdk_s3::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_s3::error::BoxError;
use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimeParser;

use super::{S3Store, fault};
use crate::repository::store::{Key, StoreFault};

/// Keeps the `Date` of an answer.
#[derive(Debug, Clone, Default)]
struct KeepDate(Arc<Mutex<Option<String>>>);

impl Intercept for KeepDate {
    fn name(&self) -> &'static str {
        "KeepDate"
    }

    fn read_before_deserialization(
        &self,
        context: &BeforeDeserializationInterceptorContextRef<'_>,
        _components: &RuntimeComponents,
        _config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let date = context.response().headers().get("date").map(str::to_owned);
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = date;
        Ok(())
    }
}

impl S3Store {
    /// The time of a cheap answer, in whole seconds.
    pub(super) async fn server_clock(&self) -> Result<Timestamp, StoreFault> {
        let kept = KeepDate::default();
        let request =
            self.client.list_objects_v2().bucket(&self.bucket).prefix(self.beginning(&Key::root())).max_keys(1);
        let answer = request.customize().interceptor(kept.clone()).send().await;
        answer.map_err(|error| fault::of(&error, &self.bucket))?;
        self.bucket_was_seen();
        let date = kept.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let time = date.as_deref().and_then(|date| DateTimeParser::new().parse_timestamp(date).ok());
        time.ok_or_else(|| {
            StoreFault::Refused(format!("the server tells no time (Date: {})", date.unwrap_or_default()))
        })
    }
}
