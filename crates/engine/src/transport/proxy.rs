//! Proxies from the environment, and parsing of proxy addresses.
//!
//! `http_proxy` is read in lower case only: in a CGI program, `HTTP_PROXY` is whatever a client sent as `Proxy:`.
//! Proxies are used in [`super::dial`], [`super::tunnel`] and [`super::socks`].

use std::fmt;
use std::net::IpAddr;

use http::HeaderValue;
use percent_encoding::percent_decode_str;
use url::Url;

use super::origin::{Origin, basic_of};

/// The proxies to use; none by default.
#[derive(Debug, Clone, Default)]
pub struct Proxies {
    http: Option<Proxy>,
    https: Option<Proxy>,
    no_proxy: Vec<NoProxyRule>,
}

/// An invalid proxy address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{variable}: expected {PROXY_EXPECTED}")]
pub struct ProxyError {
    /// The environment variable. Its value may contain a password and is not shown.
    pub variable: String,
}

/// A proxy. Shown without its user and password.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Proxy {
    pub(super) kind: Kind,
    pub(super) host: String,
    pub(super) port: u16,
    /// The user and the password.
    pub(super) user: Option<(Vec<u8>, Vec<u8>)>,
}

/// The protocol of a proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    /// Plain HTTP.
    Http,
    /// HTTP over TLS.
    Https,
    /// SOCKS5; names are resolved here.
    Socks5,
    /// SOCKS5; listed names are resolved by the proxy (`socks5h`).
    Socks5Names,
}

/// An entry of `no_proxy`: where no proxy is used.
#[derive(Debug, Clone, PartialEq, Eq)]
struct NoProxyRule {
    matcher: Matcher,
    port: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Matcher {
    Everything,
    /// A name and all its subdomains.
    Name(String),
    /// The addresses that share this many leading bits with this address.
    Network(IpAddr, u32),
}

impl Proxies {
    /// Reads `http_proxy`, `https_proxy`, `all_proxy` and `no_proxy`, the last three in upper case too.
    pub fn from_env(variables: impl IntoIterator<Item = (String, String)>) -> Result<Self, ProxyError> {
        let variables: Vec<_> = variables.into_iter().filter(|(_, value)| !value.trim().is_empty()).collect();
        let first = |names: &[&str]| {
            names.iter().find_map(|name| variables.iter().find(|(variable, _)| variable == name))
        };
        let proxy = |names: &[&str]| first(names).map(|(name, value)| Proxy::parse(name, value)).transpose();
        let no_proxy = first(&["no_proxy", "NO_PROXY"]).map_or("", |(_, value)| value);
        Ok(Self {
            http: proxy(&["http_proxy", "all_proxy", "ALL_PROXY"])?,
            https: proxy(&["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"])?,
            no_proxy: no_proxy.split([',', ' ']).filter_map(NoProxyRule::parse).collect(),
        })
    }

    pub(super) fn toward(&self, origin: &Origin) -> Option<&Proxy> {
        let proxy = if origin.secure { &self.https } else { &self.http };
        proxy.as_ref().filter(|_| !self.no_proxy.iter().any(|exception| exception.covers(origin)))
    }
}

impl Proxy {
    /// Parses `http://host:port`, `https://…`, `socks5://…` or `socks5h://…`, optionally with `user:password@`. Without
    /// a scheme it is an HTTP proxy. `None` if it isn't a valid proxy address.
    pub fn read(value: &str) -> Option<Self> {
        let value = value.trim();
        let with_scheme = if value.contains("://") { value.to_owned() } else { format!("http://{value}") };
        let url = Url::parse(&with_scheme).ok()?;
        let (kind, usual) = match url.scheme() {
            "http" => (Kind::Http, 80),
            "https" => (Kind::Https, 443),
            "socks5" => (Kind::Socks5, 1080),
            "socks5h" => (Kind::Socks5Names, 1080),
            _ => return None,
        };
        let nothing_more =
            matches!(url.path(), "" | "/") && url.query().is_none() && url.fragment().is_none();
        let host = url.host_str().filter(|host| !host.is_empty() && nothing_more)?;
        let host = host.trim_matches(['[', ']']).to_owned();
        let named = !url.username().is_empty() || url.password().is_some();
        let decoded = |text: &str| percent_decode_str(text).collect();
        let user = named.then(|| (decoded(url.username()), decoded(url.password().unwrap_or_default())));
        Some(Self { kind, host, port: url.port().unwrap_or(usual), user })
    }

    fn parse(variable: &str, value: &str) -> Result<Self, ProxyError> {
        Self::read(value).ok_or_else(|| ProxyError { variable: variable.to_owned() })
    }

    /// The `Proxy-Authorization` header for an HTTP proxy.
    pub(super) fn authorization(&self) -> Option<HeaderValue> {
        let (user, password) = self.user.as_ref()?;
        basic_of(&[&user[..], b":", password].concat())
    }
}

impl NoProxyRule {
    fn parse(entry: &str) -> Option<Self> {
        let entry = entry.trim().to_ascii_lowercase();
        if let Some(network) = network(&entry) {
            return Some(Self { matcher: network, port: None });
        }
        let (matcher, port) = match entry.rsplit_once(':') {
            Some((matcher, port)) => (matcher, Some(port.parse().ok()?)),
            None => (entry.as_str(), None),
        };
        let matcher = match matcher.trim_start_matches("*.").trim_matches('.') {
            "" => return None,
            "*" => Matcher::Everything,
            name => network(name).unwrap_or_else(|| Matcher::Name(name.to_owned())),
        };
        Some(Self { matcher, port })
    }

    fn covers(&self, origin: &Origin) -> bool {
        let here = match &self.matcher {
            Matcher::Everything => true,
            Matcher::Name(name) => {
                let above = origin.host.trim_end_matches('.').strip_suffix(name.as_str());
                above.is_some_and(|above| above.is_empty() || above.ends_with('.'))
            }
            Matcher::Network(network, bits) => {
                origin.literal().is_some_and(|address| leading_bits_shared(*network, address) >= *bits)
            }
        };
        here && self.port.is_none_or(|port| port == origin.port)
    }
}

/// Parses `10.0.0.0/8`, `10.1.2.3`, `fd00::/8`, `::1` or `[::1]`.
fn network(entry: &str) -> Option<Matcher> {
    let (address, bits) = match entry.split_once('/') {
        Some((address, bits)) => (address, Some(bits.parse().ok()?)),
        None => (entry, None),
    };
    let bare = address.strip_prefix('[').and_then(|address| address.strip_suffix(']')).unwrap_or(address);
    let address: IpAddr = bare.parse().ok()?;
    let width = if address.is_ipv4() { 32 } else { 128 };
    let bits = bits.unwrap_or(width);
    (bits <= width).then_some(Matcher::Network(address, bits))
}

/// How many leading bits two addresses have in common; 0 if they are of different families.
fn leading_bits_shared(one: IpAddr, other: IpAddr) -> u32 {
    match (one, other) {
        (IpAddr::V4(one), IpAddr::V4(other)) => (one.to_bits() ^ other.to_bits()).leading_zeros(),
        (IpAddr::V6(one), IpAddr::V6(other)) => (one.to_bits() ^ other.to_bits()).leading_zeros(),
        _ => 0,
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Display for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// What a proxy address should look like, for error messages.
pub(crate) const PROXY_EXPECTED: &str =
    "the address of a proxy such as \"http://proxy.example:3128\" or \"socks5h://127.0.0.1:1080\"";

#[cfg(test)]
mod tests {
    use super::super::{Lead, Request};
    use super::*;

    fn proxies(variables: &[(&str, &str)]) -> Result<Proxies, ProxyError> {
        Proxies::from_env(variables.iter().map(|(name, value)| (name.to_string(), value.to_string())))
    }

    fn toward(proxies: &Proxies, url: &str) -> String {
        let url = Url::parse(url).unwrap();
        let origin = Origin::of(&Request::new(&url, Lead::Listed)).unwrap();
        proxies.toward(&origin).map_or("direct".to_owned(), |proxy| proxy.to_string())
    }

    #[test]
    fn the_environment_sets_proxies_per_scheme() {
        let both =
            proxies(&[("http_proxy", "one:1"), ("HTTPS_PROXY", "http://two"), ("HTTP_PROXY", "three:3")]);
        let both = both.unwrap();
        assert_eq!(toward(&both, "http://example.org"), "one:1");
        assert_eq!(toward(&both, "https://example.org"), "two:80");
        let capitals = proxies(&[("HTTP_PROXY", "three:3")]).unwrap();
        assert_eq!(toward(&capitals, "http://example.org"), "direct");
        let all = proxies(&[("ALL_PROXY", "http://all:8"), ("http_proxy", " ")]).unwrap();
        assert_eq!(toward(&all, "http://example.org"), "all:8");
    }

    #[test]
    fn no_proxy_supports_names_networks_and_ports() {
        let list = ".example.org, *.example.net,10.0.0.0/8,::1,host:8080,[fd00::]:81,localhost";
        let some = proxies(&[("all_proxy", "http://p:1"), ("no_proxy", list)]).unwrap();
        let direct = "http://example.org http://a.example.org https://b.example.net http://10.9.8.7 http://[::1]:5 \
                      http://host:8080 http://[fd00::]:81 http://localhost:3";
        for url in direct.split_whitespace() {
            assert_eq!(toward(&some, url), "direct", "{url}");
        }
        for url in
            ["http://anexample.org", "http://11.0.0.1", "http://host", "http://[::2]", "http://[fd00::]"]
        {
            assert_eq!(toward(&some, url), "p:1", "{url}");
        }
        let no_proxy = proxies(&[("all_proxy", "http://p:1"), ("NO_PROXY", "*")]).unwrap();
        assert_eq!(toward(&no_proxy, "http://example.org"), "direct");
    }

    /// B75
    #[test]
    fn unsupported_proxies_are_an_error_and_passwords_are_not_shown() {
        let error = proxies(&[("ALL_PROXY", "socks4://me:secret@host:1080")]).unwrap_err().to_string();
        assert!(error.starts_with("ALL_PROXY: expected") && !error.contains("secret"), "{error}");
        let fine = proxies(&[("ALL_PROXY", "http://me:secret@host:1080")]).unwrap();
        assert!(!format!("{fine:?}").contains("secret") && !format!("{fine:?}").contains("c2Vjc"));
    }
}
