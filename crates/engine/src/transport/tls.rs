//! Whom we trust: the system's certificate authorities, or Mozilla's list where the system has none.
//!
//! There is no way to switch verification off.

use std::io;
use std::sync::Arc;

use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::{CertificateError, ClientConfig, Error, RootCertStore};

use super::error::TransportError;

/// The client side of TLS, offering HTTP/2 and HTTP/1.1.
pub(super) fn client(roots_extra: &[CertificateDer<'static>]) -> Result<Arc<ClientConfig>, TransportError> {
    let wrong = |error| TransportError::Settings(format!("TLS: {error}"));
    let mut roots = RootCertStore::empty();
    // The system's list holds what its administrator added; certificates in it that do not parse are left out.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
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
    Ok(Arc::new(config))
}

/// The same, offering HTTP/1.1 only.
pub(super) fn only_http1(client: &ClientConfig) -> Arc<ClientConfig> {
    let mut client = client.clone();
    client.alpn_protocols = vec![HTTP1.to_vec()];
    Arc::new(client)
}

/// Why a connection could not be secured, in words of ours: those of TLS repeat what stands in the certificate.
pub(super) fn why_not(error: &io::Error) -> &'static str {
    match error.get_ref().and_then(|cause| cause.downcast_ref::<Error>()) {
        Some(Error::InvalidCertificate(wrong)) => match wrong {
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                "its certificate has expired"
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                "its certificate is not valid yet"
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                "its certificate is for another name"
            }
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                "its certificate is signed by nobody we trust"
            }
            CertificateError::Revoked => "its certificate was revoked",
            _ => "its certificate does not hold",
        },
        Some(Error::InvalidMessage(_)) => "what it speaks is not TLS",
        Some(Error::PeerIncompatible(_)) => "it has no version of TLS in common with us",
        Some(Error::AlertReceived(_)) => "it refused",
        Some(_) => "the handshake failed",
        None => "the connection broke in the handshake",
    }
}

/// HTTP/2's name in ALPN.
pub(super) const H2: &[u8] = b"h2";
const HTTP1: &[u8] = b"http/1.1";
