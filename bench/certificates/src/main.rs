//! The certificates of W14: an authority that nobody else trusts, and one certificate for every host below
//! `bench.localhost`. Both keys are ECDSA P-256. The key of the authority is not kept.
//!
//! Usage: `bench-certificates FOLDER`. Writes `ca.pem` (the authority, to be trusted), `cert.pem` and `key.pem` (for the
//! server; only the owner can read the key). It doesn't replace a key that exists.

use std::error::Error;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256,
};

fn main() -> Result<(), Box<dyn Error>> {
    let Some(folder) = std::env::args_os().nth(1) else {
        eprintln!("usage: bench-certificates FOLDER");
        std::process::exit(2);
    };
    write(Path::new(&folder))
}

fn write(folder: &Path) -> Result<(), Box<dyn Error>> {
    let authority_key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let mut authority = CertificateParams::new([])?;
    authority.distinguished_name = named("Authority of Comity's benchmarks");
    authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let authority_certificate = authority.self_signed(&authority_key)?;

    let server_key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let mut server = CertificateParams::new([HOSTS.to_owned()])?;
    server.distinguished_name = named(HOSTS);
    server.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let server_certificate = server.signed_by(&server_key, &Issuer::new(authority, authority_key))?;

    let mut key = OpenOptions::new().write(true).create_new(true).mode(0o600).open(folder.join("key.pem"))?;
    key.write_all(server_key.serialize_pem().as_bytes())?;
    fs::write(folder.join("cert.pem"), server_certificate.pem())?;
    fs::write(folder.join("ca.pem"), authority_certificate.pem())?;
    Ok(())
}

fn named(name: &str) -> DistinguishedName {
    let mut names = DistinguishedName::new();
    names.push(DnType::CommonName, name);
    names
}

/// The names the certificate is for.
const HOSTS: &str = "*.bench.localhost";
