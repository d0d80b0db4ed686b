//! What was probably meant by text that isn't a URL.

use url::{Host, Url};

use crate::redact;

/// The URL that was probably meant by a host without a scheme, without secrets.
pub fn meant_url(text: &str) -> Option<String> {
    let is_bare = !text.contains("://") && !text.starts_with(['/', '.', '-', '#', '?']);
    let url = is_bare.then(|| Url::parse(&format!("https://{text}")).ok()).flatten()?;
    // A mail address, or something with a password.
    if !url.username().is_empty() || url.password().is_some() {
        return None;
    }
    let scheme = match url.host()? {
        Host::Domain("localhost") | Host::Ipv4(_) | Host::Ipv6(_) => "http",
        Host::Domain(name) if name.contains('.') => "https",
        Host::Domain(_) => return None,
    };
    Some(redact::words(&format!("{scheme}://{text}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_without_a_scheme_is_completed() {
        for (text, meant) in [
            ("example.org/a", Some("https://example.org/a")),
            ("localhost:8080/a", Some("http://localhost:8080/a")),
            ("127.0.0.1:9", Some("http://127.0.0.1:9")),
            ("www.example.org/?key=secret", Some("https://www.example.org/?…")),
            ("hello", None),
            ("joe@x.org", None),
            ("mailto:joe@x.org", None),
            ("see joe@x.org", None),
            ("example.org/@joe", Some("https://example.org/@joe")),
            ("not a.url", None),
            ("/etc/passwd.d", None),
            ("ftp://example.org/", None),
        ] {
            assert_eq!(meant_url(text).as_deref(), meant, "{text}");
        }
    }
}
