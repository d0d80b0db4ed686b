//! Which proxy leads to an origin, as the environment says, and how the address of a proxy is read.
//!
//! `http_proxy` counts in lower case only: a CGI program's `HTTP_PROXY` is whatever a client sent as `Proxy:`.
//! Going through a proxy is done in [`super::dial`], [`super::tunnel`] and [`super::socks`].

use std::fmt;
use std::net::IpAddr;

use http::HeaderValue;
use percent_encoding::percent_decode_str;
use url::Url;

use super::origin::{Origin, basic_of};

/// The proxies to go through; none by default.
#[derive(Debug, Clone, Default)]
pub struct Proxies {
    http: Option<Proxy>,
    https: Option<Proxy>,
    none: Vec<Exception>,
}

/// A proxy that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{variable}: expected {PROXY_EXPECTED}")]
pub struct ProxyError {
    /// The variable that names it. Its value may hold a password and is not repeated.
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

/// How a proxy is spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    /// HTTP, in plain.
    Http,
    /// HTTP over TLS.
    Https,
    /// SOCKS5, with names resolved here.
    Socks5,
    /// SOCKS5, with names that the operator listed resolved by the proxy (`socks5h`).
    Socks5Names,
}

/// Where no proxy is used: an entry of `no_proxy`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Exception {
    place: Place,
    port: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
    Everywhere,
    /// A name and all names below it.
    Name(String),
    /// The addresses that share so many leading bits with this one.
    Network(IpAddr, u32),
}

impl Proxies {
    /// Reads `http_proxy`, `https_proxy`, `all_proxy` and `no_proxy`, the last three in capitals too.
    pub fn from_env(variables: impl IntoIterator<Item = (String, String)>) -> Result<Self, ProxyError> {
        let variables: Vec<_> = variables.into_iter().filter(|(_, value)| !value.trim().is_empty()).collect();
        let first = |names: &[&str]| {
            names.iter().find_map(|name| variables.iter().find(|(variable, _)| variable == name))
        };
        let proxy = |names: &[&str]| first(names).map(|(name, value)| Proxy::parse(name, value)).transpose();
        let none = first(&["no_proxy", "NO_PROXY"]).map_or("", |(_, value)| value);
        Ok(Self {
            http: proxy(&["http_proxy", "all_proxy", "ALL_PROXY"])?,
            https: proxy(&["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"])?,
            none: none.split([',', ' ']).filter_map(Exception::parse).collect(),
        })
    }

    pub(super) fn toward(&self, origin: &Origin) -> Option<&Proxy> {
        let proxy = if origin.secure { &self.https } else { &self.http };
        proxy.as_ref().filter(|_| !self.none.iter().any(|exception| exception.covers(origin)))
    }
}

impl Proxy {
    /// Reads `http://host:port`, `https://…`, `socks5://…` or `socks5h://…`, perhaps with `user:password@`; without a
    /// scheme it is an HTTP proxy. `None` when it is no proxy.
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

    /// What an HTTP proxy wants to see of us.
    pub(super) fn authorization(&self) -> Option<HeaderValue> {
        let (user, password) = self.user.as_ref()?;
        basic_of(&[&user[..], b":", password].concat())
    }
}

impl Exception {
    fn parse(entry: &str) -> Option<Self> {
        let entry = entry.trim().to_ascii_lowercase();
        if let Some(network) = network(&entry) {
            return Some(Self { place: network, port: None });
        }
        let (place, port) = match entry.rsplit_once(':') {
            Some((place, port)) => (place, Some(port.parse().ok()?)),
            None => (entry.as_str(), None),
        };
        let place = match place.trim_start_matches("*.").trim_matches('.') {
            "" => return None,
            "*" => Place::Everywhere,
            name => network(name).unwrap_or_else(|| Place::Name(name.to_owned())),
        };
        Some(Self { place, port })
    }

    fn covers(&self, origin: &Origin) -> bool {
        let here = match &self.place {
            Place::Everywhere => true,
            Place::Name(name) => {
                let above = origin.host.trim_end_matches('.').strip_suffix(name.as_str());
                above.is_some_and(|above| above.is_empty() || above.ends_with('.'))
            }
            Place::Network(network, bits) => {
                origin.literal().is_some_and(|address| leading_bits_shared(*network, address) >= *bits)
            }
        };
        here && self.port.is_none_or(|port| port == origin.port)
    }
}

/// Reads `10.0.0.0/8`, `10.1.2.3`, `fd00::/8`, `::1` or `[::1]`.
fn network(entry: &str) -> Option<Place> {
    let (address, bits) = match entry.split_once('/') {
        Some((address, bits)) => (address, Some(bits.parse().ok()?)),
        None => (entry, None),
    };
    let bare = address.strip_prefix('[').and_then(|address| address.strip_suffix(']')).unwrap_or(address);
    let address: IpAddr = bare.parse().ok()?;
    let width = if address.is_ipv4() { 32 } else { 128 };
    let bits = bits.unwrap_or(width);
    (bits <= width).then_some(Place::Network(address, bits))
}

/// How many leading bits two addresses have in common; none if they are of different families.
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

/// What would have been understood as a proxy.
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
    fn the_environment_names_proxies_by_scheme() {
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
    fn no_proxy_knows_names_networks_and_ports() {
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
        let none = proxies(&[("all_proxy", "http://p:1"), ("NO_PROXY", "*")]).unwrap();
        assert_eq!(toward(&none, "http://example.org"), "direct");
    }

    /// B75
    #[test]
    fn other_proxies_are_an_error_and_passwords_are_not_shown() {
        let error = proxies(&[("ALL_PROXY", "socks4://me:secret@host:1080")]).unwrap_err().to_string();
        assert!(error.starts_with("ALL_PROXY: expected") && !error.contains("secret"), "{error}");
        let fine = proxies(&[("ALL_PROXY", "http://me:secret@host:1080")]).unwrap();
        assert!(!format!("{fine:?}").contains("secret") && !format!("{fine:?}").contains("c2Vjc"));
    }
}
