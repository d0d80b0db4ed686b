//! The variables that programs read for proxies and certificates. A folder for the run has the certificates.

use std::ffi::OsString;
use std::path::Path;

/// The variables for a command behind the proxy at `url`, which contains its password. `folder` has the certificates, if
/// https is decrypted. `no_proxy` is what the user has set.
pub(super) fn of_proxy(
    url: &str,
    no_proxy: Option<&str>,
    folder: Option<&Path>,
) -> Vec<(&'static str, OsString)> {
    // curl ignores HTTP_PROXY, and other programs read upper case only.
    let proxies = ["http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"];
    let mut all: Vec<(&str, OsString)> = proxies.into_iter().map(|name| (name, url.into())).collect();
    let bypassed = match no_proxy.map(str::trim) {
        Some(own) if !own.is_empty() => format!("{own},{THIS_MACHINE}"),
        _ => THIS_MACHINE.to_owned(),
    };
    all.extend(["no_proxy", "NO_PROXY"].map(|name| (name, bypassed.clone().into())));
    // Node's own fetch ignores the others without it.
    all.push(("NODE_USE_ENV_PROXY", "1".into()));
    let Some(folder) = folder else { return all };
    let (bundle, ours) = (folder.join(BUNDLE), folder.join(CERTIFICATE));
    all.extend(BUNDLES.map(|name| (name, bundle.clone().into())));
    // Node adds it to its own list.
    all.push(("NODE_EXTRA_CA_CERTS", ours.into()));
    all
}

/// Everything that a client trusts without the proxy, and the CA of this run.
pub(super) const BUNDLE: &str = "bundle.pem";
/// The CA of this run.
pub(super) const CERTIFICATE: &str = "ca.pem";

const THIS_MACHINE: &str = "localhost,127.0.0.1,::1";

/// OpenSSL, Go, Ruby and Rust; requests and pip; curl; git; the AWS tools; Cargo; Nix; Deno; gRPC; Perl; npm.
const BUNDLES: [&str; 12] = [
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "PIP_CERT",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "AWS_CA_BUNDLE",
    "CARGO_HTTP_CAINFO",
    "NIX_SSL_CERT_FILE",
    "DENO_CERT",
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
    "PERL_LWP_SSL_CA_FILE",
    "npm_config_cafile",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxies_are_set_in_both_spellings_and_this_machine_bypasses_them() {
        let all = of_proxy("http://comity:x@127.0.0.1:1", Some("intranet"), Some(Path::new("/run")));
        let value = |name: &str| {
            all.iter().find(|(known, _)| *known == name).map(|(_, value)| value.to_str().unwrap())
        };
        for name in ["http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY"] {
            assert_eq!(value(name), Some("http://comity:x@127.0.0.1:1"));
        }
        for name in ["no_proxy", "NO_PROXY"] {
            assert_eq!(value(name), Some("intranet,localhost,127.0.0.1,::1"));
        }
        assert_eq!(value("NODE_USE_ENV_PROXY"), Some("1"));
        assert_eq!(value("SSL_CERT_FILE"), Some("/run/bundle.pem"));
        assert_eq!(value("NODE_EXTRA_CA_CERTS"), Some("/run/ca.pem"));
        let tunneled = of_proxy("http://127.0.0.1:1", None, None);
        assert!(tunneled.iter().all(|(name, _)| *name != "SSL_CERT_FILE"), "certificates are the sites' own");
    }
}
