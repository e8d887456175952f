//! What goes over the wire, against a server that gives the answers it is told to. A real one is in `holdfast-tests`.

use std::collections::VecDeque;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use rstest::rstest;
use tempfile::NamedTempFile;

use super::*;

type Answer = Box<dyn Fn(&Request) -> String + Send>;

/// A request as it came.
#[derive(Debug)]
struct Request {
    line: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Request {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(header, _)| header == name).map(|(_, value)| value.as_str())
    }
}

/// A store, and what its server received.
struct Fake {
    store: S3Store,
    requests: Receiver<Request>,
    _keys: NamedTempFile,
}

impl Fake {
    /// Answers one request with each, in order, and none after.
    fn new(answers: impl IntoIterator<Item = Answer>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!(" http://{}/ ", listener.local_addr().unwrap());
        let mut answers: VecDeque<Answer> = answers.into_iter().collect();
        let (seen, requests) = channel();
        thread::spawn(move || {
            while let Some(answer) = answers.pop_front() {
                let (mut socket, _) = listener.accept().unwrap();
                let request = receive(&socket);
                socket.write_all(answer(&request).as_bytes()).unwrap();
                // Whoever dropped the receiver has seen enough.
                let _ = seen.send(request);
            }
        });
        let keys = NamedTempFile::new().unwrap();
        std::fs::write(keys.path(), "[default]\naws_access_key_id = marker-id \naws_secret_access_key = marker-secret")
            .unwrap();
        let credentials_file = Some(keys.path().to_owned());
        let settings = S3Settings { endpoint: Some(endpoint), credentials_file, ..S3Settings::default() };
        let options = S3Options { bucket: "bucket".into(), prefix: "prefix".into(), settings };
        Self { store: S3Store::open(options).unwrap(), requests, _keys: keys }
    }
}

fn receive(socket: &TcpStream) -> Request {
    let mut reader = BufReader::new(socket);
    let mut lines = reader.by_ref().lines().map(Result::unwrap);
    let line = lines.next().unwrap();
    let headers = lines.take_while(|line| !line.is_empty());
    let headers: Vec<_> = headers
        .map(|line| line.split_once(": ").map(|(name, value)| (name.to_lowercase(), value.to_owned())).unwrap())
        .collect();
    let length =
        headers.iter().find(|(name, _)| name == "content-length").map_or(0, |(_, value)| value.parse().unwrap());
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    Request { line, headers, body }
}

fn answer(status: u16, headers: &str, body: &str) -> Answer {
    let length = body.len();
    let text = format!("HTTP/1.1 {status} X\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n{body}");
    Box::new(move |_| text.clone())
}

fn failure(status: u16, code: &str) -> Answer {
    answer(status, "", &format!("<Error><Code>{code}</Code><Message>for marker-id</Message></Error>"))
}

fn stored() -> Answer {
    answer(200, "ETag: \"1\"\r\n", "")
}

fn key() -> Key {
    Key::parse("a").unwrap()
}

#[test]
fn a_write_is_conditional_and_carries_its_own_checksum_only() {
    let fake = Fake::new([stored()]);
    assert_eq!(fake.store.create(&key(), Bytes::from_static(b"abc")).unwrap(), Created::New);
    let request = fake.requests.recv().unwrap();
    assert_eq!(request.line, "PUT /bucket/prefix/a?x-id=PutObject HTTP/1.1");
    assert_eq!(request.body, b"abc");
    assert_eq!(request.header("if-none-match"), Some("*"));
    // SHA-256 of "abc" as FIPS 180-2 has it.
    assert_eq!(request.header("x-amz-checksum-sha256"), Some("ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0="));
    assert_eq!(request.header("content-length"), Some("3"));
    for header in ["content-encoding", "x-amz-trailer", "x-amz-sdk-checksum-algorithm", "x-amz-checksum-crc32"] {
        assert_eq!(request.header(header), None, "{header}");
    }
    let authorization = request.header("authorization").unwrap();
    assert!(authorization.contains("Credential=marker-id/"), "a blank at the end of the key id: {authorization}");
}

#[test]
fn passing_faults_are_tried_again() {
    let faults = [failure(503, "SlowDown"), failure(400, "ExpiredToken"), failure(409, "ConditionalRequestConflict")];
    let fake = Fake::new(faults.into_iter().chain([stored()]));
    assert_eq!(fake.store.create(&key(), Bytes::from_static(b"abc")).unwrap(), Created::New);
    assert_eq!(fake.requests.iter().map(|request| request.body).collect::<Vec<_>>(), [b"abc"; 4]);
}

#[test]
fn a_store_that_stays_away_is_given_up_after_five_attempts() {
    let fake = Fake::new((0..5).map(|_| failure(503, "SlowDown")));
    let error = fake.store.create(&key(), Bytes::from_static(b"abc")).unwrap_err();
    assert_eq!(error.fault.to_string(), "the store is unavailable (SlowDown)");
    assert!(error.is_transient());
    assert_eq!(fake.requests.iter().count(), 5);
}

#[test]
fn what_is_there_is_left_alone() {
    let fake = Fake::new([failure(412, "PreconditionFailed")]);
    assert_eq!(fake.store.create(&key(), Bytes::from_static(b"abc")).unwrap(), Created::Existed);
}

#[rstest]
#[case(403, "AccessDenied", "access was denied (AccessDenied): check the credentials and what they are allowed to do")]
#[case(
    403,
    "InvalidAccessKeyId",
    "access was denied (InvalidAccessKeyId): check the credentials and what they are allowed to do"
)]
#[case(400, "InvalidToken", "access was denied (InvalidToken): check the credentials and what they are allowed to do")]
#[case(
    403,
    "QuotaExceeded",
    "no space left: free some or enlarge it, then run the command again; what was stored so far will be used"
)]
#[case(404, "NoSuchBucket", "there is no bucket bucket: create it, or correct the repository's URL or --s3-endpoint")]
#[case(
    400,
    "AuthorizationHeaderMalformed",
    "the bucket bucket is in another region or at another endpoint (AuthorizationHeaderMalformed): give --s3-region"
)]
#[case(501, "NotImplemented", "the server cannot do that (NotImplemented); it must support conditional writes")]
#[case(400, "EntityTooLarge", "the server refuses it (EntityTooLarge: for marker-id)")]
fn lasting_faults_say_what_to_do(#[case] status: u16, #[case] code: &str, #[case] reason: &str) {
    let fake = Fake::new([failure(status, code)]);
    let error = fake.store.create(&key(), Bytes::from_static(b"abc")).unwrap_err();
    assert_eq!(error.fault.to_string(), reason);
    assert!(!error.is_transient());
    assert!(!format!("{error:?}").contains("marker-secret"));
}

#[test]
fn a_swap_whose_answer_was_lost_knows_its_own_write() {
    let (mark, marks) = channel();
    let put = move |request: &Request| {
        mark.send(request.header("x-amz-meta-holdfast-write").unwrap().to_owned()).unwrap();
        // As if the write had happened before, and only the answer to the second attempt had come.
        "HTTP/1.1 412 X\r\nConnection: close\r\nContent-Length: 0\r\n\r\n".to_owned()
    };
    let head = move |_: &Request| {
        let mark = marks.recv().unwrap();
        format!("HTTP/1.1 200 X\r\nConnection: close\r\nETag: \"2\"\r\nx-amz-meta-holdfast-write: {mark}\r\n\r\n")
    };
    let fake = Fake::new([Box::new(put) as Answer, Box::new(head)]);
    let version = Version("\"1\"".into());
    let swapped = fake.store.compare_and_swap(&key(), Some(&version), Bytes::from_static(b"abc")).unwrap();
    assert_eq!(swapped, Swapped::Done(Version("\"2\"".into())));
    assert_eq!(fake.requests.recv().unwrap().header("if-match"), Some("\"1\""));
}

#[test]
fn a_swap_that_came_second_is_a_conflict_even_with_the_same_bytes() {
    let head = answer(200, "ETag: \"2\"\r\nx-amz-meta-holdfast-write: another\r\n", "");
    let fake = Fake::new([failure(412, "PreconditionFailed"), head]);
    let swapped = fake.store.compare_and_swap(&key(), None, Bytes::from_static(b"abc")).unwrap();
    assert_eq!(swapped, Swapped::Conflict);
}

#[test]
fn a_body_that_breaks_off_is_read_again() {
    let broken: Answer =
        Box::new(|_| "HTTP/1.1 200 X\r\nConnection: close\r\nETag: \"1\"\r\nContent-Length: 10\r\n\r\n01234".into());
    let fake = Fake::new([broken, answer(200, "ETag: \"1\"\r\n", "0123456789")]);
    assert_eq!(fake.store.get(&key(), 10).unwrap().body, "0123456789");
}

#[test]
fn a_part_is_asked_for_and_checked() {
    let part = answer(206, "Content-Range: bytes 2-4/10\r\n", "234");
    let fake = Fake::new([part, answer(200, "", "0123456789"), answer(206, "Content-Range: bytes 2-2/3\r\n", "2")]);
    assert_eq!(fake.store.get_range(&key(), 2..5).unwrap(), "234");
    assert_eq!(fake.requests.recv().unwrap().header("range"), Some("bytes=2-4"));
    let error = fake.store.get_range(&key(), 2..5).unwrap_err();
    assert_eq!(error.fault.to_string(), "the server ignores what range was asked for");
    let error = fake.store.get_range(&key(), 2..5).unwrap_err();
    assert!(matches!(error.fault, StoreFault::Short { size: 3, wanted: 5 }), "{error}");
}

#[test]
fn nothing_is_believed_absent_while_the_bucket_may_be() {
    let fake = Fake::new([failure(404, ""), failure(404, "NoSuchBucket")]);
    let error = fake.store.head(&key()).unwrap_err();
    assert!(error.to_string().contains("there is no bucket bucket"), "{error}");
}

#[test]
fn the_clock_is_the_servers() {
    let fake = Fake::new([answer(200, "Date: Sun, 06 Nov 1994 08:49:37 GMT\r\n", "<ListBucketResult/>")]);
    assert_eq!(fake.store.now().unwrap().to_string(), "1994-11-06T08:49:37Z");
}

#[test]
fn a_listing_that_was_cut_is_not_taken_for_a_whole_one() {
    let fake = Fake::new([answer(200, "", "<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>")]);
    let error = fake.store.list(&Key::root(), &mut |_| Walk::On).unwrap_err();
    assert_eq!(error.fault.to_string(), "the server cut a listing and does not say how it goes on");
}

#[rstest]
#[case("", "the S3 endpoint is empty: leave it out for Amazon's, or write https://host:port")]
#[case("host:9000", "the S3 endpoint \"host:9000\" is no URL: write https://host:port")]
#[case("https://", "the S3 endpoint \"https://\" is no URL: write https://host:port")]
#[case(
    "https://marker@host",
    "the S3 endpoint holds credentials or a query: give credentials by --s3-credentials-file or the environment"
)]
fn a_wrong_endpoint_is_refused_by_name(#[case] endpoint: &str, #[case] reason: &str) {
    let settings = S3Settings { endpoint: Some(endpoint.to_owned()), ..S3Settings::default() };
    let error = S3Store::open(S3Options { bucket: "bucket".into(), prefix: String::new(), settings }).unwrap_err();
    assert_eq!(error.to_string(), format!("open - in s3://bucket: {reason}"));
}

#[rstest]
#[case("", "it holds no certificate (PEM)")]
#[case("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "invalid peer certificate: BadEncoding")]
fn a_wrong_authority_is_refused_by_name(#[case] pem: &str, #[case] reason: &str) {
    let file = NamedTempFile::new().unwrap();
    std::fs::write(file.path(), pem).unwrap();
    let settings = S3Settings { ca_file: Some(file.path().to_owned()), ..S3Settings::default() };
    let error = S3Store::open(S3Options { bucket: "bucket".into(), prefix: String::new(), settings }).unwrap_err();
    assert_eq!(error.fault.to_string(), format!("the S3 CA file {}: {reason}", file.path().display()));
}
