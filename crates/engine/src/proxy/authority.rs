//! The certificate authority of a decrypting proxy: made on this machine, for clients on this machine.
//!
//! Its key is in a file that only its owner can read. Certificates for sites are made when they are needed, for one
//! name each, and kept in memory only.

use std::collections::HashMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use comity_core::time::{Span, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, GeneralSubtree, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, NameConstraints, PublicKeyData, date_time_ymd,
};
use ring::digest::{SHA256, digest};
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring as provider;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, pem::PemObject};
use tokio_rustls::rustls::server::{ClientHello, ResolvesServerCert};
use tokio_rustls::rustls::sign::CertifiedKey;

use crate::lock;

/// A certificate authority.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    pem: String,
    /// The key of all certificates for sites.
    leaf_key: KeyPair,
    leaves: Mutex<HashMap<String, Leaf>>,
}

struct Leaf {
    server: Arc<ServerConfig>,
    until: Timestamp,
}

/// Why there is no authority.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// A file could not be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// There is an authority already.
    #[error("{}: there is a CA already", path.display())]
    Exists {
        /// Its key.
        path: PathBuf,
    },
    /// A certificate could not be made or read.
    #[error("certificate: {0}")]
    Certificate(#[from] rcgen::Error),
    /// A certificate or key could not be used.
    #[error("certificate: {0}")]
    Unusable(String),
}

impl Authority {
    /// A new authority, which is valid for `years`. If `names` are given, clients accept its certificates for these
    /// hosts and their subdomains only.
    pub fn new(now: Timestamp, years: u16, names: &[String]) -> Result<Self, AuthorityError> {
        let key = KeyPair::generate()?;
        let mut params = params(&key);
        let ((year, month, day), (end, end_month, end_day)) =
            (date(now - Span::from_hours(24)), date(now + Span::from_hours(48)));
        params.not_before = date_time_ymd(year, month, day);
        params.not_after = date_time_ymd(end + i32::from(years), end_month, end_day);
        if !names.is_empty() {
            let permitted = names.iter().map(|name| GeneralSubtree::DnsName(name.clone())).collect();
            params.name_constraints =
                Some(NameConstraints { permitted_subtrees: permitted, excluded_subtrees: Vec::new() });
        }
        let certificate = params.self_signed(&key)?;
        Self::with(key, certificate.der().clone(), certificate.pem())
    }

    /// The authority in this folder.
    pub fn open(folder: &Path) -> Result<Self, AuthorityError> {
        let read = |name: &str| {
            let path = folder.join(name);
            fs::read_to_string(&path).map_err(|source| AuthorityError::File { path, source })
        };
        let (key, pem) = (KeyPair::from_pem(&read(KEY)?)?, read(CERTIFICATE)?);
        let certificate = CertificateDer::from_pem_slice(pem.as_bytes());
        let certificate = certificate.map_err(|error| AuthorityError::Unusable(error.to_string()))?;
        Self::with(key, certificate, pem)
    }

    fn with(key: KeyPair, certificate: CertificateDer<'static>, pem: String) -> Result<Self, AuthorityError> {
        let issuer = Issuer::new(params(&key), key);
        let (leaf_key, leaves) = (KeyPair::generate()?, Mutex::default());
        Ok(Self { issuer, certificate, pem, leaf_key, leaves })
    }

    /// Saves the authority in a folder that only its owner can read. An error if there is one already.
    pub fn save(&self, folder: &Path) -> Result<(), AuthorityError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            |source: io::Error| match source.kind() {
                io::ErrorKind::AlreadyExists => AuthorityError::Exists { path },
                _ => AuthorityError::File { path, source },
            }
        };
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true);
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.create(folder).map_err(failed(folder))?;
        for (name, text, mode) in
            [(KEY, self.issuer.key().serialize_pem(), 0o600), (CERTIFICATE, self.pem.clone(), 0o644)]
        {
            let path = folder.join(name);
            let mut options = OpenOptions::new();
            options.write(true).create_new(true);
            #[cfg(unix)]
            std::os::unix::fs::OpenOptionsExt::mode(&mut options, mode);
            #[cfg(not(unix))]
            let _ = mode;
            let mut file = options.open(&path).map_err(failed(&path))?;
            file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(failed(&path))?;
        }
        Ok(())
    }

    /// Its certificate, for clients to trust.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// Its certificate, and those that the system trusts, for clients that read a single file.
    pub fn bundle(&self) -> String {
        let system = rustls_native_certs::load_native_certs().certs;
        let mut text = self.pem.clone();
        for certificate in system {
            let lines = BASE64_STANDARD.encode(&certificate);
            text.push_str("-----BEGIN CERTIFICATE-----\n");
            for line in lines.as_bytes().chunks(64) {
                text.push_str(std::str::from_utf8(line).unwrap_or_default());
                text.push('\n');
            }
            text.push_str("-----END CERTIFICATE-----\n");
        }
        text
    }

    /// The TLS settings to serve `host` with. They refuse clients that ask for another host.
    pub(super) fn server(&self, host: &str, now: Timestamp) -> Result<Arc<ServerConfig>, AuthorityError> {
        {
            let leaves = lock(&self.leaves);
            if let Some(leaf) = leaves.get(host).filter(|leaf| leaf.until > now) {
                return Ok(leaf.server.clone());
            }
        }
        let server = self.make(host, now)?;
        let mut leaves = lock(&self.leaves);
        if leaves.len() >= LEAVES_MAX {
            leaves.clear();
        }
        leaves.insert(host.to_owned(), Leaf { server: server.clone(), until: now + RENEWED_AFTER });
        Ok(server)
    }

    fn make(&self, host: &str, now: Timestamp) -> Result<Arc<ServerConfig>, AuthorityError> {
        let mut params = CertificateParams::new(vec![host.to_owned()])?;
        // A name is limited to 64 characters there, and nobody reads it.
        params.distinguished_name.remove(DnType::CommonName);
        let ((year, month, day), (end, end_month, end_day)) =
            (date(now - Span::from_hours(24)), date(now + VALID_FOR));
        params.not_before = date_time_ymd(year, month, day);
        params.not_after = date_time_ymd(end, end_month, end_day);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let leaf = params.signed_by(&self.leaf_key, &self.issuer)?;
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(self.leaf_key.serialize_der()));
        let wrong = |error: tokio_rustls::rustls::Error| AuthorityError::Unusable(error.to_string());
        let key = provider::sign::any_ecdsa_type(&key).map_err(wrong)?;
        let chain = vec![leaf.der().clone(), self.certificate.clone()];
        let resolver = OneName { host: host.to_owned(), key: Arc::new(CertifiedKey::new(chain, key)) };
        let builder = ServerConfig::builder_with_provider(Arc::new(provider::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().map_err(wrong)?;
        let mut server = builder.with_no_client_auth().with_cert_resolver(Arc::new(resolver));
        server.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(server))
    }
}

/// Presents a certificate to clients that ask for its name, or for none, as they do for addresses.
#[derive(Debug)]
struct OneName {
    host: String,
    key: Arc<CertifiedKey>,
}

impl ResolvesServerCert for OneName {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let is_other = hello.server_name().is_some_and(|name| !name.eq_ignore_ascii_case(&self.host));
        (!is_other).then(|| self.key.clone())
    }
}

/// What identifies an authority: everything follows from its key.
fn params(key: &KeyPair) -> CertificateParams {
    let mut params = CertificateParams::default();
    let hash = digest(&SHA256, key.der_bytes());
    let id: String = hash.as_ref().iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    params.distinguished_name.remove(DnType::CommonName);
    params.distinguished_name.push(DnType::CommonName, format!("Comity proxy {id}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

/// The year, month and day of `at`.
fn date(at: Timestamp) -> (i32, u8, u8) {
    let day = jiff::Timestamp::from_microsecond(at.as_micros()).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
    let day = day.to_zoned(jiff::tz::TimeZone::UTC).date();
    let number = |number: i8| u8::try_from(number).unwrap_or(1);
    // February 29 has no equal in most years.
    let of_month = if day.month() == 2 { day.day().min(28) } else { day.day() };
    (i32::from(day.year()), number(day.month()), number(of_month))
}

const KEY: &str = "ca.key";
/// The name of the file with the certificate.
const CERTIFICATE: &str = "ca.pem";
const VALID_FOR: Span = Span::from_hours(24 * 30);
const RENEWED_AFTER: Span = Span::from_hours(24 * 7);
const LEAVES_MAX: usize = 10_000;
