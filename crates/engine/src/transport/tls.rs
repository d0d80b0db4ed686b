//! Whom we trust: the system's certificate authorities, or Mozilla's list where the system has none.
//!
//! Verification is switched off only for a single host that the operator named ([`unverified`]).

use std::io;
use std::sync::Arc;

use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{WebPkiSupportedAlgorithms, ring};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};

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

/// The client side of TLS for a host that need not prove who it is.
pub(super) fn unverified() -> Result<Arc<ClientConfig>, TransportError> {
    let wrong = |error| TransportError::Settings(format!("TLS: {error}"));
    let provider = ring::default_provider();
    let anybody = Anybody(provider.signature_verification_algorithms);
    let builder = ClientConfig::builder_with_provider(Arc::new(provider));
    let builder = builder.with_safe_default_protocol_versions().map_err(wrong)?;
    let builder = builder.dangerous().with_custom_certificate_verifier(Arc::new(anybody));
    let mut config = builder.with_no_client_auth();
    config.alpn_protocols = vec![H2.to_vec(), HTTP1.to_vec()];
    Ok(Arc::new(config))
}

/// Takes every certificate.
#[derive(Debug)]
struct Anybody(WebPkiSupportedAlgorithms);

impl ServerCertVerifier for Anybody {
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
                "its certificate is not signed by a trusted authority"
            }
            CertificateError::Revoked => "its certificate was revoked",
            _ => "its certificate is invalid",
        },
        Some(Error::InvalidMessage(_)) => "the server doesn't speak TLS on this port",
        Some(Error::PeerIncompatible(_)) => "it has no version of TLS in common with us",
        Some(Error::AlertReceived(_)) => "it refused",
        Some(_) => "the handshake failed",
        None => "the connection broke in the handshake",
    }
}

/// HTTP/2's name in ALPN.
pub(super) const H2: &[u8] = b"h2";
const HTTP1: &[u8] = b"http/1.1";
