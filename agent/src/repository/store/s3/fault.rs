//! What an error of the SDK or of the server means for a caller.

use std::error::Error;

use aws_credential_types::provider::error::CredentialsError;
use aws_sdk_s3::config::http::HttpResponse;
use aws_sdk_s3::config::interceptors::InterceptorContext;
use aws_sdk_s3::config::retry::{ClassifyRetry, RetryAction};
use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_s3::operation::delete_object::DeleteObjectError;
use aws_sdk_s3::operation::get_object::GetObjectError;
use aws_sdk_s3::operation::head_object::HeadObjectError;
use aws_sdk_s3::operation::list_objects_v2::ListObjectsV2Error;
use aws_sdk_s3::operation::put_object::PutObjectError;

use crate::repository::store::StoreFault;

/// The server does not know us, or we may not do that. Their messages can repeat parts of a request: only codes are shown.
const DENIED: [&str; 12] = [
    "AccessDenied",
    "AccountProblem",
    "AllAccessDisabled",
    "ExpiredToken",
    "ExpiredTokenException",
    "InvalidAccessKeyId",
    "InvalidSecurity",
    "InvalidToken",
    "NotSignedUp",
    "RequestTimeTooSkewed",
    "SignatureDoesNotMatch",
    "TokenRefreshRequired",
];
/// No room, in the words of various servers.
const FULL: [&str; 4] =
    ["QuotaExceeded", "XMinioAdminBucketQuotaExceeded", "XMinioStorageFull", "InsufficientCapacity"];
/// The bucket is elsewhere.
const ELSEWHERE: [&str; 5] = [
    "AuthorizationHeaderMalformed",
    "IllegalLocationConstraintException",
    "PermanentRedirect",
    "Redirect",
    "TemporaryRedirect",
];
/// Errors that pass, whatever their number.
const PASSING: [&str; 6] =
    ["BadDigest", "ConditionalRequestConflict", "OperationAborted", "RequestTimeout", "SlowDown", "Throttling"];

/// Sorts an error.
pub(super) fn of<E>(error: &SdkError<E, HttpResponse>, bucket: &str) -> StoreFault
where
    E: ProvideErrorMetadata + Error + 'static,
{
    match error {
        SdkError::TimeoutError(_) => StoreFault::Unavailable("no answer in time".to_owned()),
        SdkError::ServiceError(answer) => {
            let error = answer.err();
            of_answer(answer.raw().status().as_u16(), error.code(), error.message(), bucket)
        }
        SdkError::ResponseError(answer) => {
            of_answer(answer.raw().status().as_u16(), None, Some("the answer makes no sense"), bucket)
        }
        other => of_no_answer(other),
    }
}

/// No answer at all: nothing could be sent, or nothing came back.
fn of_no_answer(error: &(dyn Error + 'static)) -> StoreFault {
    if let Some(error) = causes(error).find_map(|cause| cause.downcast_ref::<CredentialsError>()) {
        return match error {
            CredentialsError::ProviderTimedOut(_) | CredentialsError::ProviderError(_) => {
                StoreFault::Unavailable(format!("cannot get credentials: {}", chain(error)))
            }
            // What wraps the reason says only that there is one.
            _ => StoreFault::Denied(chain(error.source().unwrap_or(error))),
        };
    }
    if is_certificate_refused(error) {
        let advice = "give the authority that signed it with --s3-ca-file";
        return StoreFault::Refused(format!(
            "the server's certificate is not trusted ({}): {advice}",
            root_cause(error)
        ));
    }
    StoreFault::Unavailable(chain(error))
}

/// Looks into I/O errors too, which do not name what they wrap as their cause.
fn is_certificate_refused(error: &(dyn Error + 'static)) -> bool {
    causes(error).any(|cause| match cause.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref) {
        Some(inner) => is_certificate_refused(inner),
        None => matches!(cause.downcast_ref(), Some(rustls::Error::InvalidCertificate(_))),
    })
}

fn of_answer(status: u16, code: Option<&str>, message: Option<&str>, bucket: &str) -> StoreFault {
    let number = format!("HTTP {status}");
    let code = code.unwrap_or(&number);
    match status {
        _ if code == "NoSuchBucket" => no_bucket(bucket),
        507 => StoreFault::Full,
        _ if FULL.contains(&code) => StoreFault::Full,
        _ if DENIED.contains(&code) => StoreFault::Denied(code.to_owned()),
        301 | 307 => elsewhere(bucket, code),
        _ if ELSEWHERE.contains(&code) => elsewhere(bucket, code),
        401 | 403 => StoreFault::Denied(code.to_owned()),
        404 => StoreFault::NotFound,
        501 => StoreFault::Refused(format!("the server cannot do that ({code}); it must support conditional writes")),
        408 | 429 | 500.. => StoreFault::Unavailable(code.to_owned()),
        _ if PASSING.contains(&code) => StoreFault::Unavailable(code.to_owned()),
        _ => {
            StoreFault::Refused(format!("the server refuses it ({code}: {})", message.unwrap_or("it gives no reason")))
        }
    }
}

/// The bucket is not there.
pub(super) fn no_bucket(bucket: &str) -> StoreFault {
    StoreFault::Refused(format!(
        "there is no bucket {bucket}: create it, or correct the repository's URL or --s3-endpoint"
    ))
}

fn elsewhere(bucket: &str, code: &str) -> StoreFault {
    StoreFault::Refused(format!(
        "the bucket {bucket} is in another region or at another endpoint ({code}): give --s3-region"
    ))
}

/// Whether a conditional write found its condition false.
pub(super) fn is_condition_failed<E>(error: &SdkError<E, HttpResponse>) -> bool {
    error.raw_response().is_some_and(|answer| answer.status().as_u16() == 412)
}

/// Whether the object ends before the range that was asked for begins.
pub(super) fn is_past_the_end<E>(error: &SdkError<E, HttpResponse>) -> bool {
    error.raw_response().is_some_and(|answer| answer.status().as_u16() == 416)
}

/// An error, what caused it, what caused that, and so on.
fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error: &&'a (dyn Error + 'static)| (*error).source())
}

/// An error and what caused it, in one line.
pub(super) fn chain(error: &(dyn Error + 'static)) -> String {
    let mut texts: Vec<String> = Vec::new();
    for cause in causes(error) {
        let text = cause.to_string();
        // Many a wrapper only repeats what it wraps.
        if !texts.iter().any(|known| known.contains(&text)) {
            texts.push(text);
        }
    }
    texts.join(": ")
}

fn root_cause(error: &(dyn Error + 'static)) -> String {
    causes(error).last().map(ToString::to_string).unwrap_or_default()
}

/// What is worth another try besides what the SDK knows: a race between writers, a token that was just replaced, a
/// body that was damaged on the way.
#[derive(Debug)]
pub(super) struct TryAgain;

impl ClassifyRetry for TryAgain {
    fn classify_retry(&self, context: &InterceptorContext) -> RetryAction {
        let Some(Err(error)) = context.output_or_error() else { return RetryAction::NoActionIndicated };
        // Whichever call this store made.
        let code = error.as_operation_error().and_then(|error| {
            let put = error.downcast_ref::<PutObjectError>().map(ProvideErrorMetadata::code);
            let get = || error.downcast_ref::<GetObjectError>().map(ProvideErrorMetadata::code);
            let head = || error.downcast_ref::<HeadObjectError>().map(ProvideErrorMetadata::code);
            let list = || error.downcast_ref::<ListObjectsV2Error>().map(ProvideErrorMetadata::code);
            let delete = || error.downcast_ref::<DeleteObjectError>().map(ProvideErrorMetadata::code);
            put.or_else(get).or_else(head).or_else(list).or_else(delete).flatten()
        });
        match code {
            Some("BadDigest" | "ConditionalRequestConflict" | "ExpiredToken" | "OperationAborted") => {
                RetryAction::transient_error()
            }
            _ => RetryAction::NoActionIndicated,
        }
    }

    fn name(&self) -> &'static str {
        "TryAgain"
    }
}
