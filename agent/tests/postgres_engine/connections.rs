//! Ways in, and the errors where there is none.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use holdfast_agent::engine::postgres::connection::{ConnectError, ConnectOptions, connect};

use crate::cluster::{Cluster, give, succeed, text};

/// A certificate authority and a server certificate for `localhost`, in `directory`.
fn certificates(directory: &Path) {
    let run = |arguments: &str| {
        succeed(Command::new("openssl").args(arguments.split(' ')).current_dir(directory));
    };
    run("req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.crt -days 2 -subj /CN=test-authority");
    run("req -newkey rsa:2048 -nodes -keyout server.key -out server.csr -subj /CN=localhost");
    std::fs::write(directory.join("names"), "subjectAltName=DNS:localhost\n").unwrap();
    run("x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -out server.crt -days 2 -extfile names");
    std::fs::set_permissions(directory.join("server.key"), std::fs::Permissions::from_mode(0o600)).unwrap();
    give(directory);
}

/// A port that was free a moment ago.
fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A server that listens on 127.0.0.1 with TLS and wants a password there.
fn listening() -> (Cluster, ConnectOptions) {
    let mut cluster = Cluster::new();
    std::fs::create_dir(cluster.path("tls")).unwrap();
    certificates(&cluster.path("tls"));
    let access = "local all all trust\nhost all nobody 127.0.0.1/32 reject\nhostnossl all plain 127.0.0.1/32 trust\n\
                  hostssl all plain 127.0.0.1/32 reject\n\
                  host all all 127.0.0.1/32 scram-sha-256\n";
    std::fs::write(cluster.data().join("pg_hba.conf"), access).unwrap();
    let port = free_port();
    let file = |name: &str| cluster.path("tls").join(name).display().to_string();
    let settings = [
        "listen_addresses=127.0.0.1".into(),
        format!("port={port}"),
        "ssl=on".into(),
        format!("ssl_cert_file={}", file("server.crt")),
        format!("ssl_key_file={}", file("server.key")),
    ];
    let socket = ConnectOptions { port: Some(port), ..cluster.options() };
    cluster.start_at(&socket, &settings.each_ref().map(String::as_str));
    let mut client = connect(&socket, None).unwrap();
    client
        .batch_execute("CREATE ROLE anna LOGIN PASSWORD 's3cret'; CREATE ROLE nobody LOGIN; CREATE ROLE plain LOGIN")
        .unwrap();
    let passfile = cluster.path("passfile");
    std::fs::write(&passfile, format!("localhost:{port}:*:anna:s3cret\n127.0.0.1:{port}:*:anna:wr0ng\n")).unwrap();
    std::fs::set_permissions(&passfile, std::fs::Permissions::from_mode(0o600)).unwrap();
    let options = ConnectOptions {
        host: Some("localhost".into()),
        port: Some(port),
        user: Some("anna".into()),
        passfile: Some(passfile),
        ..ConnectOptions::default()
    };
    (cluster, options)
}

fn with_tls(options: &ConnectOptions, mode: &str, roots: Option<&Path>) -> ConnectOptions {
    let sslrootcert = roots.map(|path| path.display().to_string());
    ConnectOptions { sslmode: Some(mode.into()), sslrootcert, ..options.clone() }
}

fn is_encrypted(options: &ConnectOptions) -> String {
    let mut client = connect(options, None).unwrap();
    text(&mut client, "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
}

fn refused(options: &ConnectOptions, dbname: Option<&str>) -> ConnectError {
    let error = connect(options, dbname).err().expect("it connected");
    for text in [error.to_string(), format!("{error:?}")] {
        assert!(!text.contains("s3cret") && !text.contains("wr0ng"), "{text}");
    }
    error
}

#[test]
fn every_mode_of_tls_does_what_it_says() {
    let (cluster, options) = listening();
    let port = options.port.unwrap();
    let authority = cluster.path("tls/ca.crt");
    assert_eq!(is_encrypted(&with_tls(&options, "disable", None)), "false");
    for mode in ["prefer", "require"] {
        assert_eq!(is_encrypted(&with_tls(&options, mode, None)), "true", "{mode}");
    }
    for mode in ["require", "verify-ca", "verify-full"] {
        assert_eq!(is_encrypted(&with_tls(&options, mode, Some(&authority))), "true", "{mode}");
    }
    // An authority that signed nothing here.
    let other = tempfile::tempdir().unwrap();
    certificates(other.path());
    let error = refused(&with_tls(&options, "verify-ca", Some(&other.path().join("ca.crt"))), None);
    assert!(matches!(error, ConnectError::Tls { .. }), "{error:?}");
    assert!(
        error.to_string().ends_with("Give the authority that signed the server's certificate with --sslrootcert"),
        "{error}"
    );
    // The certificate is for localhost, not for its address.
    let by_address = ConnectOptions { host: Some("127.0.0.1".into()), ..options.clone() };
    let error = refused(&with_tls(&by_address, "verify-full", Some(&authority)), None);
    let tried = format!("(host 127.0.0.1, port {port}, user anna, database postgres, sslmode verify-full)");
    assert!(error.to_string().starts_with(&format!("cannot connect to PostgreSQL {tried}: TLS failed: ")), "{error}");
    assert!(error.to_string().contains("subjectAltName"), "{error}");
    let error = refused(&with_tls(&options, "verify-full", None), None);
    assert!(error.to_string().contains("sslmode verify-full needs root certificates"), "{error}");
}

#[test]
fn prefer_goes_on_without_tls_where_the_server_takes_none() {
    let (_cluster, options) = listening();
    let plain = ConnectOptions { user: Some("plain".into()), ..options };
    assert_eq!(is_encrypted(&plain), "false");
    let error = refused(&with_tls(&plain, "require", None), None);
    assert!(matches!(error, ConnectError::Refused { .. }), "{error:?}");
}

#[test]
fn a_login_that_is_refused_says_what_was_tried_and_what_to_do() {
    let (_cluster, options) = listening();
    let port = options.port.unwrap();
    let wrong = ConnectOptions { host: Some("127.0.0.1".into()), ..options.clone() };
    assert_eq!(
        refused(&wrong, None).to_string(),
        format!(
            "PostgreSQL refuses the login (host 127.0.0.1, port {port}, user anna, database postgres, sslmode prefer): \
             password authentication failed for user \"anna\". The password from PGPASSWORD, the service file or the \
             password file is not right"
        )
    );
    let none = ConnectOptions { passfile: Some("/nonexistent".into()), ..options.clone() };
    let error = refused(&none, None).to_string();
    assert!(
        error.ends_with("it asks for a password, and none was given. Put the password into ~/.pgpass (mode 0600), --passfile or PGPASSWORD"),
        "{error}"
    );
    std::fs::set_permissions(options.passfile.as_ref().unwrap(), std::fs::Permissions::from_mode(0o644)).unwrap();
    let error = refused(&options, None).to_string();
    assert!(error.contains("is not used, because others can access it (mode 0644; make it 0600)"), "{error}");
    let nobody = ConnectOptions { user: Some("nobody".into()), ..options };
    let error = refused(&nobody, None);
    assert!(matches!(error, ConnectError::Refused { .. }) && !error.is_transient(), "{error:?}");
}

#[test]
fn a_missing_database_is_told() {
    let (_cluster, options) = listening();
    let error = refused(&options, Some("shop"));
    assert!(matches!(error, ConnectError::NoDatabase { .. }), "{error:?}");
    assert!(error.to_string().contains("database \"shop\" does not exist. Give another with --dbname"), "{error}");
}

#[test]
fn a_server_that_is_down_is_told_with_the_socket() {
    let directory = tempfile::tempdir().unwrap();
    let host = directory.path().display().to_string();
    let options =
        ConnectOptions { host: Some(host.clone()), port: Some(5433), user: Some("anna".into()), ..Default::default() };
    let error = refused(&options, None);
    assert!(error.is_transient());
    assert_eq!(
        error.to_string(),
        format!(
            "cannot reach PostgreSQL (socket {host}/.s.PGSQL.5433, user anna, database postgres): No such file or \
             directory (os error 2). Is the server running, and does it listen there? See --host and --port"
        )
    );
    let port = free_port();
    let tcp = ConnectOptions { host: Some("127.0.0.1".into()), port: Some(port), ..options };
    let error = refused(&tcp, None);
    assert!(error.to_string().contains("Connection refused"), "{error}");
}
