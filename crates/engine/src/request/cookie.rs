//! Parses `Set-Cookie` and decides which requests a cookie is sent with (RFC 6265, plus the public suffix list and the
//! name prefixes of its successor). Cookies are stored in [`super::jar`].

use std::fmt;
use std::net::IpAddr;

use comity_core::time::Timestamp;
use url::Url;

use super::cookie_date;

/// A cookie. `Debug` does not show its value.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Cookie {
    pub(crate) name: String,
    pub(crate) value: String,
    /// Lower case, without a leading dot.
    pub(crate) domain: String,
    /// Only for this host, not its subdomains.
    pub(crate) host_only: bool,
    pub(crate) path: String,
    pub(crate) secure: bool,
    pub(crate) http_only: bool,
    /// When it expires, in seconds since 1970; `None` is at the end of the session, which here is the job.
    pub(crate) expires: Option<i64>,
}

/// Domain, path and name, which identify a cookie.
pub(crate) type Key = (String, String, String);

impl Cookie {
    pub(crate) fn key(&self) -> Key {
        (self.domain.clone(), self.path.clone(), self.name.clone())
    }

    /// Parses a `Set-Cookie` header of a response from `url`; `None` if it is to be ignored.
    pub(crate) fn read(line: &str, url: &Url, now: Timestamp) -> Option<Self> {
        let mut parts = line.split(';');
        let (name, value) = parts.next()?.split_once('=')?;
        let (name, value) = (name.trim(), value.trim());
        let bad = |text: &str| text.bytes().any(|byte| byte.is_ascii_control());
        if name.is_empty() || name.len() + value.len() > PAIR_MAX || bad(name) || bad(value) {
            return None;
        }
        let host = host_of(url)?;
        let mut cookie = Self {
            name: name.to_owned(),
            value: value.to_owned(),
            domain: host.clone(),
            host_only: true,
            path: default_path(url),
            secure: false,
            http_only: false,
            expires: None,
        };
        let (mut domain, mut max_age, mut has_path) = (None, None, false);
        for part in parts {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            let value = value.trim();
            match key.trim().to_ascii_lowercase().as_str() {
                "domain" => domain = Some(value.strip_prefix('.').unwrap_or(value).to_ascii_lowercase()),
                "path" if value.starts_with('/') => {
                    cookie.path = value.to_owned();
                    has_path = value == "/";
                }
                "path" => cookie.path = default_path(url),
                "secure" => cookie.secure = true,
                "httponly" => cookie.http_only = true,
                "max-age" => max_age = value.parse::<i64>().ok().or(max_age),
                "expires" => cookie.expires = cookie_date::parse(value).or(cookie.expires),
                _ => {}
            }
        }
        if let Some(seconds) = max_age {
            let end = secs(now).saturating_add(seconds);
            cookie.expires = Some(if seconds <= 0 { 0 } else { end });
        }
        if let Some(domain) = domain.filter(|domain| !domain.is_empty()) {
            cookie.set_domain(&domain, &host)?;
        }
        let secure_site = url.scheme() == "https";
        let prefixed =
            |prefix: &str| name.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix));
        let fits = (!cookie.secure || secure_site)
            && (!prefixed("__Secure-") || cookie.secure)
            && (!prefixed("__Host-") || cookie.secure && cookie.host_only && has_path);
        fits.then_some(cookie)
    }

    /// Sets the `Domain` attribute. `None` if it is not a domain of the host, or a public suffix.
    fn set_domain(&mut self, domain: &str, host: &str) -> Option<()> {
        let covers = domain_matches(host, domain);
        if !covers {
            return None;
        }
        // `co.uk` and `github.io` are shared by many owners; but a host that is such a suffix may set cookies for
        // itself.
        let shared = psl::suffix_str(domain).is_none_or(|suffix| suffix == domain);
        if shared && domain != host {
            return None;
        }
        self.host_only = shared || is_address(host);
        self.domain = domain.to_owned();
        Some(())
    }

    /// Whether it is sent with a request for `url`.
    pub(crate) fn matches(&self, url: &Url, now: Timestamp) -> bool {
        let Some(host) = host_of(url) else { return false };
        let host_matches = host == self.domain || !self.host_only && domain_matches(&host, &self.domain);
        host_matches
            && path_matches(url.path(), &self.path)
            && (!self.secure || url.scheme() == "https")
            && !self.is_expired(now)
    }

    pub(crate) fn is_expired(&self, now: Timestamp) -> bool {
        self.expires.is_some_and(|expires| expires <= secs(now))
    }
}

impl fmt::Debug for Cookie {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}=*** for {}{}", self.name, self.domain, self.path)
    }
}

/// Seconds since 1970.
fn secs(at: Timestamp) -> i64 {
    at.as_micros().div_euclid(1_000_000)
}

fn host_of(url: &Url) -> Option<String> {
    let host = url.host_str()?;
    Some(host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase())
}

fn is_address(host: &str) -> bool {
    host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok()
}

fn domain_matches(host: &str, domain: &str) -> bool {
    let below = || host.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.'));
    host == domain || !is_address(host) && below()
}

fn path_matches(path: &str, of: &str) -> bool {
    match path.strip_prefix(of) {
        Some(rest) => rest.is_empty() || of.ends_with('/') || rest.starts_with('/'),
        None => false,
    }
}

/// The directory of the page that set the cookie.
fn default_path(url: &Url) -> String {
    match url.path().rfind('/') {
        Some(0) | None => "/".to_owned(),
        Some(at) => url.path()[..at].to_owned(),
    }
}

/// Larger cookies are ignored, as browsers do.
const PAIR_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str, url: &str) -> Option<Cookie> {
        Cookie::read(line, &Url::parse(url).unwrap(), Timestamp::from_secs(1_000))
    }

    fn sent(line: &str, set_by: &str, to: &str) -> bool {
        let to = Url::parse(to).unwrap();
        read(line, set_by).is_some_and(|cookie| cookie.matches(&to, Timestamp::from_secs(1_000)))
    }

    /// B86: RFC 6265, 5.1.3 and 5.3
    #[test]
    fn a_cookie_is_sent_to_its_host_or_its_domain() {
        let host = "https://a.example.org/x/y";
        for (line, to, expected) in [
            ("n=v", "https://a.example.org/x/z", true),
            ("n=v", "https://a.example.org/z", false),
            ("n=v", "https://b.a.example.org/x/", false),
            ("n=v", "https://example.org/x/", false),
            ("n=v; Domain=example.org; Path=/", "https://example.org/", true),
            ("n=v; Domain=.example.org; Path=/", "https://b.example.org/", true),
            ("n=v; Domain=example.org; Path=/", "https://evil-example.org/", false),
            ("n=v; Path=/x", "https://a.example.org/x", true),
            ("n=v; Path=/x", "https://a.example.org/xy", false),
            ("n=v; Path=/; Secure", "http://a.example.org/", false),
            ("n=v; Path=/; Secure", "https://a.example.org/", true),
            ("n=v; Path=/; Max-Age=0", "https://a.example.org/", false),
            ("n=v; Path=/; Max-Age=60", "https://a.example.org/", true),
            ("n=v; Path=/; Expires=Thu, 01 Jan 1970 00:00:01 GMT", "https://a.example.org/", false),
            ("n=v; Path=/; Expires=Wed, 21-Oct-2065 07:28:00 GMT", "https://a.example.org/", true),
            ("n=v; Path=/; Expires=Thu, 01 Jan 1970 00:00:01 GMT; Max-Age=9", "https://a.example.org/", true),
        ] {
            assert_eq!(sent(line, host, to), expected, "{line} to {to}");
        }
    }

    /// B86
    #[test]
    fn cookies_for_other_sites_are_rejected() {
        for (line, url) in [
            ("n=v; Domain=other.org", "https://example.org/"),
            ("n=v; Domain=b.example.org", "https://a.example.org/"),
            ("n=v; Domain=org", "https://example.org/"),
            ("n=v; Domain=co.uk", "https://example.co.uk/"),
            ("n=v; Domain=github.io", "https://me.github.io/"),
            ("n=v; Domain=0.0.1", "http://127.0.0.1/"),
            ("n=v; Secure", "http://example.org/"),
            ("__Host-n=v; Secure; Domain=example.org; Path=/", "https://example.org/"),
            ("__Secure-n=v", "https://example.org/"),
            ("=v", "https://example.org/"),
            ("novalue", "https://example.org/"),
            ("n=a\u{1}b", "https://example.org/"),
        ] {
            assert_eq!(read(line, url), None, "{line}");
        }
        assert!(read("__Host-n=v; Secure; Path=/", "https://example.org/").is_some());
        // A host that is a public suffix may set cookies for itself only.
        let own = read("n=v; Domain=github.io", "https://github.io/").unwrap();
        assert!(own.host_only);
        assert!(sent("n=v; Domain=localhost", "http://localhost/", "http://localhost/"));
        assert!(!sent("n=v; Domain=localhost", "http://localhost/", "http://a.localhost/"));
    }
}
