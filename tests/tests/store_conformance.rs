//! The object store, against a real S3 server.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test: it panics where something is wrong"
)]

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use holdfast_agent::repository::store::s3::S3Settings;
use holdfast_agent::repository::store::{self, Created, Entry, Key, Store, StoreError, StoreFault, Walk, conformance};
use holdfast_tests::minio::Minio;

const URL: &str = "s3://bucket/some/prefix";

fn settings(minio: &Minio) -> S3Settings {
    S3Settings {
        endpoint: Some(minio.endpoint()),
        ca_file: Some(minio.ca_file()),
        credentials_file: Some(minio.credentials_file()),
        ..S3Settings::default()
    }
}

fn open(url: &str, settings: &S3Settings) -> Arc<dyn Store> {
    store::open(url, settings).unwrap()
}

fn key(text: &str) -> Key {
    Key::parse(text).unwrap()
}

/// An error of every call, each of which must fail.
fn errors(store: &dyn Store) -> Vec<StoreError> {
    let key = key("a");
    let mut each = |_: Entry| Walk::On;
    vec![
        store.create(&key, Bytes::from_static(b"body")).unwrap_err(),
        store.get(&key, 10).unwrap_err(),
        store.get_range(&key, 0..1).unwrap_err(),
        store.head(&key).unwrap_err(),
        store.list(&Key::root(), &mut each).unwrap_err(),
        store.children(&Key::root()).unwrap_err(),
        store.delete(&key).unwrap_err(),
        store.compare_and_swap(&key, None, Bytes::from_static(b"body")).unwrap_err(),
        store.now().unwrap_err(),
    ]
}

#[test]
fn s3_conforms() {
    let minio = Minio::start(&["bucket"]).unwrap();
    let store = open(URL, &settings(&minio));
    assert_eq!(store.location(), format!("{URL} ({})", minio.endpoint()));
    conformance::conforms(&*store);

    // Another prefix of the same bucket, and the bucket as a whole, with the bucket in the path.
    let other = open("s3://bucket/some/pre", &settings(&minio));
    assert_eq!(other.children(&Key::root()).unwrap(), [""; 0]);
    let whole = open("s3://bucket", &S3Settings { path_style: true, ..settings(&minio) });
    assert_eq!(whole.children(&Key::root()).unwrap(), ["some"]);
    assert_eq!(whole.create(&key("top"), Bytes::from_static(b"body")).unwrap(), Created::New);
    assert_eq!(whole.children(&Key::root()).unwrap(), ["some", "top"]);
}

#[test]
fn what_is_wrong_is_said_and_no_secret_is_shown() {
    let minio = Minio::start(&["bucket"]).unwrap();
    let good = settings(&minio);

    for error in errors(&*open("s3://nowhere/a", &good)) {
        assert_eq!(
            error.fault.to_string(),
            "there is no bucket nowhere: create it, or correct the repository's URL or --s3-endpoint",
            "{error}"
        );
        assert!(!error.is_transient());
    }

    let keys = tempfile::NamedTempFile::new().unwrap();
    fs::write(keys.path(), "[default]\naws_access_key_id = holdfast-tests\naws_secret_access_key = marker-secret\n")
        .unwrap();
    let wrong = S3Settings { credentials_file: Some(keys.path().to_owned()), ..good.clone() };
    for error in errors(&*open(URL, &wrong)) {
        // An answer to HEAD has no body, so that no reason comes with it.
        let code = if error.action == "head" { "HTTP 403" } else { "SignatureDoesNotMatch" };
        assert!(matches!(&error.fault, StoreFault::Denied(reason) if reason == code), "{error}");
        assert!(!format!("{error:?}").contains("marker-secret"), "{error:?}");
    }

    let distrusting = S3Settings { ca_file: None, ..good };
    let error = open(URL, &distrusting).head(&key("a")).unwrap_err();
    assert_eq!(
        error.fault.to_string(),
        "the server's certificate is not trusted (invalid peer certificate: UnknownIssuer): \
         give the authority that signed it with --s3-ca-file"
    );
}

#[test]
fn new_keys_are_used_without_a_restart() {
    let minio = Minio::start(&["bucket"]).unwrap();
    let keys = tempfile::NamedTempFile::new().unwrap();
    let store = open(URL, &S3Settings { credentials_file: Some(keys.path().to_owned()), ..settings(&minio) });
    let file = keys.path().display().to_string();
    let error = store.head(&key("a")).unwrap_err();
    assert_eq!(
        error.fault.to_string().replace(&file, "FILE"),
        "access was denied (the S3 credentials file FILE: there is no profile \"default\" in it): \
         check the credentials and what they are allowed to do"
    );
    fs::write(keys.path(), "[default]\naws_access_key_id = old\naws_secret_access_key = old\n").unwrap();
    let error = store.list(&Key::root(), &mut |_| Walk::On).unwrap_err();
    assert!(matches!(&error.fault, StoreFault::Denied(code) if code == "InvalidAccessKeyId"), "{error}");

    fs::copy(minio.credentials_file(), keys.path()).unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    while let Err(error) = store.head(&key("a")) {
        assert!(Instant::now() < deadline, "the new keys are not used: {error}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_server_that_is_away_is_unavailable_and_then_goes_on() {
    let mut minio = Minio::start(&["bucket"]).unwrap();
    let store = open(URL, &settings(&minio));
    store.create(&key("a"), Bytes::from_static(b"body")).unwrap();
    minio.stop();
    let error = store.get(&key("a"), 10).unwrap_err();
    assert!(error.is_transient(), "{error}");
    assert!(error.to_string().contains("onnection refused"), "{error}");
    minio.restart().unwrap();
    assert_eq!(store.get(&key("a"), 10).unwrap().body, "body");
}
