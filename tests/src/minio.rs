//! A real S3 server: `MinIO` on a loopback port, with TLS by an authority of its own.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tempfile::TempDir;

const USER: &str = "holdfast-tests";
const STARTUP: Duration = Duration::from_mins(1);

/// A running server and all it stores; both are gone when this is dropped.
#[derive(Debug)]
pub struct Minio {
    dir: TempDir,
    authority: CertificateDer<'static>,
    password: String,
    port: u16,
    child: Option<Child>,
}

impl Minio {
    /// Starts a server that has these buckets, and waits until it serves them.
    ///
    /// # Errors
    /// Where the program is missing or does not start.
    pub fn start(buckets: &[&str]) -> io::Result<Self> {
        let dir = TempDir::with_prefix("holdfast-minio-")?;
        for bucket in buckets {
            fs::create_dir_all(dir.path().join("data").join(bucket))?;
        }
        let authority = certify(&dir.path().join("certs")).map_err(io::Error::other)?;
        fs::write(dir.path().join("ca.pem"), &authority.pem)?;
        let password = hex(&fs::read("/proc/sys/kernel/random/uuid")?);
        let keys = format!("[default]\naws_access_key_id = {USER}\naws_secret_access_key = {password}\n");
        fs::write(dir.path().join("credentials"), keys)?;
        let mut minio = Self { dir, authority: authority.der, password, port: 0, child: None };
        minio.restart()?;
        Ok(minio)
    }

    /// Where it is: a URL.
    pub fn endpoint(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    /// The authority that signed its certificate.
    pub fn ca_file(&self) -> PathBuf {
        self.dir.path().join("ca.pem")
    }

    /// Keys that may do everything.
    pub fn credentials_file(&self) -> PathBuf {
        self.dir.path().join("credentials")
    }

    /// The directory that holds the buckets, for tests that damage what is stored.
    pub fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// The secret key: no log or error may ever show it.
    pub fn secret(&self) -> &str {
        &self.password
    }

    /// Kills the server; what it acknowledged is kept.
    pub fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // Both fail only if it is gone already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Starts the server again, where it was and with what it had.
    ///
    /// # Errors
    /// Where it does not start.
    pub fn restart(&mut self) -> io::Result<()> {
        self.stop();
        if self.port == 0 {
            self.port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        }
        let log = File::create(self.dir.path().join("log"))?;
        let mut server = Command::new(program()?);
        server.args(["server", "--quiet", "--address"]).arg(format!("127.0.0.1:{}", self.port)).arg("--certs-dir");
        server.arg(self.dir.path().join("certs")).arg(self.data());
        server.env_clear().env("HOME", self.dir.path()).env("MINIO_BROWSER", "off").env("MINIO_UPDATE", "off");
        server.env("MINIO_ROOT_USER", USER).env("MINIO_ROOT_PASSWORD", &self.password).env("GOMAXPROCS", "2");
        server.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        self.child = Some(server.spawn()?);
        self.wait_until_ready()
    }

    fn wait_until_ready(&mut self) -> io::Result<()> {
        let deadline = Instant::now() + STARTUP;
        loop {
            let seen = match self.health() {
                Ok(answer) if answer.starts_with("HTTP/1.1 200") => return Ok(()),
                Ok(answer) => answer,
                Err(error) => error.to_string(),
            };
            let ended = self.child.as_mut().map(Child::try_wait).transpose()?.flatten();
            if ended.is_some() || Instant::now() > deadline {
                let log = fs::read_to_string(self.dir.path().join("log"))?;
                return Err(io::Error::other(format!("MinIO did not start ({ended:?}, {seen}): {log}")));
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Asks whether it can serve requests.
    fn health(&self) -> io::Result<String> {
        let mut roots = RootCertStore::empty();
        roots.add(self.authority.clone()).map_err(io::Error::other)?;
        let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::from(std::net::IpAddr::from(Ipv4Addr::LOCALHOST));
        let connection = ClientConnection::new(Arc::new(config), name).map_err(io::Error::other)?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port));
        let socket = TcpStream::connect_timeout(&address, Duration::from_secs(2))?;
        socket.set_read_timeout(Some(Duration::from_secs(5)))?;
        let mut stream = StreamOwned::new(connection, socket);
        stream.write_all(b"GET /minio/health/cluster HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")?;
        let mut answer = [0; 64];
        let length = stream.read(&mut answer)?;
        Ok(String::from_utf8_lossy(&answer[..length]).into_owned())
    }
}

impl Drop for Minio {
    fn drop(&mut self) {
        self.stop();
    }
}

/// `HOLDFAST_MINIO`, or where `tests/env/install.sh` puts it.
fn program() -> io::Result<PathBuf> {
    let installed = || std::env::home_dir().map(|home| home.join(".cache/holdfast/tools/minio/minio"));
    let program = std::env::var_os("HOLDFAST_MINIO").map(PathBuf::from).or_else(installed);
    program.filter(|program| program.is_file()).ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::NotFound,
            "there is no MinIO: run tests/env/install.sh, or name one in HOLDFAST_MINIO",
        )
    })
}

struct Authority {
    pem: String,
    der: CertificateDer<'static>,
}

/// Makes an authority, and a certificate for the loopback address where `MinIO` looks for it.
fn certify(dir: &Path) -> Result<Authority, Box<dyn std::error::Error + Send + Sync>> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
    let key = KeyPair::generate()?;
    let names = vec!["127.0.0.1".to_owned(), "localhost".to_owned()];
    let certificate = CertificateParams::new(names)?.signed_by(&key, &authority)?;
    fs::create_dir_all(dir)?;
    fs::write(dir.join("public.crt"), certificate.pem())?;
    fs::write(dir.join("private.key"), key.serialize_pem())?;
    Ok(Authority { pem: authority.pem(), der: authority.der().clone() })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().filter(|byte| byte.is_ascii_hexdigit()).map(|byte| char::from(*byte)).collect()
}
