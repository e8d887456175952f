//! TLS to the server, by rustls with aws-lc-rs, in libpq's modes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_cert_signed_by_trust_anchor};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::connect_options::{Roots, Target, TlsMode};

/// Why TLS could not be set up, before the server was asked anything.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file of certificates or keys.
    #[error("cannot use {}: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// Nothing to check the server's certificate against.
    #[error(
        "sslmode {0} needs root certificates: give --sslrootcert FILE (or `system`), or put them into \
         ~/.postgresql/root.crt"
    )]
    NoRoots(TlsMode),
    /// The machine has no root certificates.
    #[error("this machine has no root certificates that could be read{0}")]
    NoSystemRoots(String),
    /// Libpq demands this too: any authority's certificate for any host would do.
    #[error("sslrootcert=system needs sslmode verify-full, not {0}")]
    WeakSystemRoots(TlsMode),
    /// Rustls refused what it was given.
    #[error("cannot set TLS up: {0}")]
    Setup(String),
}

/// What connects with TLS as `target` demands.
pub(super) fn connector(target: &Target) -> Result<MakeRustlsConnect, TlsError> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier = verifier(target, &provider)?;
    let setup = |error: rustls::Error| TlsError::Setup(error.to_string());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().map_err(setup)?;
    let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
    let mut config = match &target.identity {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain = certificates(certificate)?;
            let key = PrivateKeyDer::from_pem_file(key).map_err(|error| file_error(key, error.to_string()))?;
            builder.with_client_auth_cert(chain, key).map_err(setup)?
        }
    };
    config.alpn_protocols = vec![b"postgresql".to_vec()];
    Ok(MakeRustlsConnect::new(config))
}

fn verifier(target: &Target, provider: &Arc<CryptoProvider>) -> Result<Arc<dyn ServerCertVerifier>, TlsError> {
    let mode = target.tls;
    // With root certificates at hand, `require` checks them: libpq has always done so.
    let checked = match (mode, &target.roots) {
        (TlsMode::Disable | TlsMode::Prefer, _) | (TlsMode::Require, Roots::None) => None,
        (TlsMode::VerifyCa | TlsMode::VerifyFull, Roots::None) => return Err(TlsError::NoRoots(mode)),
        (TlsMode::VerifyFull, Roots::System) => Some(system_roots()?),
        (TlsMode::Require | TlsMode::VerifyCa, Roots::System) => return Err(TlsError::WeakSystemRoots(mode)),
        (_, Roots::File(path)) => Some(file_roots(path)?),
    };
    let provider = Arc::clone(provider);
    let Some(roots) = checked else { return Ok(Arc::new(LaxVerifier { provider, roots: None })) };
    if mode == TlsMode::VerifyFull {
        let strict = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build();
        return strict.map(|verifier| verifier as _).map_err(|error| TlsError::Setup(error.to_string()));
    }
    Ok(Arc::new(LaxVerifier { provider, roots: Some(roots) }))
}

fn file_roots(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|error| file_error(path, error.to_string()))?;
    }
    Ok(roots)
}

fn system_roots() -> Result<RootCertStore, TlsError> {
    let loaded = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(loaded.certs);
    if roots.is_empty() {
        let reason = loaded.errors.first().map(|error| format!(": {error}")).unwrap_or_default();
        return Err(TlsError::NoSystemRoots(reason));
    }
    Ok(roots)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match read {
        Ok(found) if found.is_empty() => Err(file_error(path, "it holds no certificate".into())),
        Ok(found) => Ok(found),
        Err(error) => Err(file_error(path, error.to_string())),
    }
}

fn file_error(path: &Path, reason: String) -> TlsError {
    TlsError::File { path: path.to_owned(), reason }
}

/// Checks less than a browser would, because the mode asks for less: the authority only (`verify-ca`), or nothing but
/// that the server holds the key of the certificate it shows (`prefer`, `require`).
#[derive(Debug)]
struct LaxVerifier {
    provider: Arc<CryptoProvider>,
    roots: Option<RootCertStore>,
}

impl ServerCertVerifier for LaxVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if let Some(roots) = &self.roots {
            let certificate = ParsedCertificate::try_from(end_entity)?;
            let algorithms = self.provider.signature_verification_algorithms.all;
            verify_server_cert_signed_by_trust_anchor(&certificate, roots, intermediates, now, algorithms)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
