//! TLS settings: trusts the system's certificate authorities, or Mozilla's list if the system has none.
//!
//! Verification is turned off only for single hosts that the operator names ([`unverified`]).

use std::ffi::OsString;
use std::io;
use std::sync::Arc;

use rustls_native_certs::{CertificateResult, Error as CertificateReadError, ErrorKind};
use tokio_rustls::rustls::client::Resumption;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{WebPkiSupportedAlgorithms, ring};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};

use super::error::TransportError;

/// The TLS client configuration, offering HTTP/2 and HTTP/1.1.
pub(super) fn client(roots_extra: &[CertificateDer<'static>]) -> Result<Arc<ClientConfig>, TransportError> {
    let wrong = |error| TransportError::Settings(format!("TLS: {error}"));
    let mut roots = RootCertStore::empty();
    // The system's list includes what its administrator added. Certificates in it that can't be parsed are ignored.
    let native = rustls_native_certs::load_native_certs();
    check_named(&native)?;
    roots.add_parsable_certificates(native.certs);
    if roots.is_empty() {
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    }
    for root in roots_extra {
        roots.add(root.clone()).map_err(wrong)?;
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().map_err(wrong)?;
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![H2.to_vec(), HTTP1.to_vec()];
    config.resumption = Resumption::in_memory_sessions(SESSION_HOSTS_MAX * TICKETS_PER_HOST);
    Ok(Arc::new(config))
}

/// Checks that the certificates that the environment names could be read. Without them, every certificate that they were
/// meant for would be rejected. If others could be read, a folder or a file in it that can't be is only a warning.
fn check_named(native: &CertificateResult) -> Result<(), TransportError> {
    let value = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let (file, folders) = (value("SSL_CERT_FILE"), value("SSL_CERT_DIR"));
    let shown = |name: &str, value: &OsString| format!("{name} = {:?}", value.to_string_lossy());
    let named: Vec<String> = [("SSL_CERT_FILE", &file), ("SSL_CERT_DIR", &folders)]
        .into_iter()
        .filter_map(|(name, value)| Some(shown(name, value.as_ref()?)))
        .collect();
    if named.is_empty() {
        return Ok(());
    }
    let is_file = |error: &&CertificateReadError| match &error.kind {
        ErrorKind::Io { path, .. } => Some(path.as_os_str()) == file.as_deref(),
        _ => false,
    };
    let unreadable = match native.certs.is_empty() {
        true => native.errors.first(),
        false => native.errors.iter().find(is_file),
    };
    let (named, unread) = (named.join(", "), "certificates could not be read");
    if let Some(error) = unreadable {
        return Err(TransportError::Settings(format!("{named}: {unread}: {error}")));
    }
    if native.certs.is_empty() {
        return Err(TransportError::Settings(format!("{named}: no certificate found, expected PEM format")));
    }
    native.errors.iter().for_each(|error| tracing::warn!("{named}: {unread}: {error}"));
    Ok(())
}

/// The TLS client configuration for hosts whose certificates are not verified.
pub(super) fn unverified() -> Result<Arc<ClientConfig>, TransportError> {
    let wrong = |error| TransportError::Settings(format!("TLS: {error}"));
    let provider = ring::default_provider();
    let accept_any = AcceptAny(provider.signature_verification_algorithms);
    let builder = ClientConfig::builder_with_provider(Arc::new(provider));
    let builder = builder.with_safe_default_protocol_versions().map_err(wrong)?;
    let builder = builder.dangerous().with_custom_certificate_verifier(Arc::new(accept_any));
    let mut config = builder.with_no_client_auth();
    config.alpn_protocols = vec![H2.to_vec(), HTTP1.to_vec()];
    Ok(Arc::new(config))
}

/// Accepts every certificate.
#[derive(Debug)]
struct AcceptAny(WebPkiSupportedAlgorithms);

impl ServerCertVerifier for AcceptAny {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}

/// A copy of the configuration that offers HTTP/1.1 only.
pub(super) fn only_http1(client: &ClientConfig) -> Arc<ClientConfig> {
    let mut client = client.clone();
    client.alpn_protocols = vec![HTTP1.to_vec()];
    Arc::new(client)
}

/// Whether a TLS handshake failed because the server's certificate is invalid.
pub(super) fn is_invalid_certificate(error: &io::Error) -> bool {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<Error>());
    matches!(cause, Some(Error::InvalidCertificate(_)))
}

/// Why a TLS handshake failed, in our own words: those of rustls repeat the contents of the certificate.
pub(super) fn handshake_failure(error: &io::Error) -> &'static str {
    match error.get_ref().and_then(|cause| cause.downcast_ref::<Error>()) {
        Some(Error::InvalidCertificate(wrong)) => match wrong {
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                "the certificate has expired"
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                "the certificate is not valid yet"
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                "the certificate is for a different host name"
            }
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                "the certificate is not signed by a trusted authority"
            }
            CertificateError::Revoked => "the certificate was revoked",
            CertificateError::BadEncoding => "the certificate is malformed",
            CertificateError::UnhandledCriticalExtension => {
                "the certificate has a critical extension that is not supported"
            }
            CertificateError::UnsupportedSignatureAlgorithmContext { .. }
            | CertificateError::UnsupportedSignatureAlgorithmForPublicKeyContext { .. } => {
                "the certificate is signed with an algorithm that is not supported"
            }
            CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
                "the certificate is not meant for servers"
            }
            CertificateError::Other(other) => match other.0.downcast_ref::<webpki::Error>() {
                Some(webpki::Error::CaUsedAsEndEntity) => {
                    "the certificate is that of an authority (CA:TRUE), which is not accepted as the server's own"
                }
                Some(webpki::Error::UnsupportedCertVersion) => {
                    "the certificate is not an X.509 v3 certificate"
                }
                _ => "the certificate is invalid",
            },
            _ => "the certificate is invalid",
        },
        Some(Error::InvalidMessage(_)) => "the server doesn't speak TLS on this port",
        Some(Error::PeerIncompatible(_)) => "no TLS version in common with the server",
        Some(Error::AlertReceived(_)) => "the server rejected it (TLS alert)",
        Some(_) => "the handshake failed",
        None => "the connection closed during the handshake",
    }
}

/// The ALPN name of HTTP/2.
pub(super) const H2: &[u8] = b"h2";
const HTTP1: &[u8] = b"http/1.1";

/// The number of hosts whose TLS sessions are remembered, as many as there are idle connections. By default, rustls remembers
/// 32 and then forgets the oldest, so a job that visits more hosts in turn never resumes a session. A host takes about
/// 2.5 KB and its certificates: 10 to 30 MB if all are taken.
const SESSION_HOSTS_MAX: usize = 4_096;
/// rustls counts this many tickets for each host.
const TICKETS_PER_HOST: usize = 8;
