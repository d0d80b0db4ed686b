//! Which requests share one pace: those to one host (and port, unless it is the scheme's default), or to a named group
//! of hosts.
//!
//! A [`Domain`] is canonical: lower case, no trailing dot, IDN names in ASCII (punycode), without `www.`. Every
//! accepted name parses back to the same domain, so a name sent by a stranger can be stored and never turns into the
//! name of another site. Which rule applies to a domain is decided in [`crate::rule`].

use std::fmt;

use smol_str::{SmolStr, format_smolstr};
use url::{Host, Position, Url};

use crate::problem::shortened;

/// A host, a host with a port, or a group of hosts: everything that shares one pace.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Domain(SmolStr);

/// Text that isn't a domain.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("domain = {value:?}: expected {expected}")]
pub struct DomainError {
    /// The text that was given.
    pub value: String,
    /// What is accepted instead.
    pub expected: &'static str,
}

impl Domain {
    /// The domain of an absolute `http` or `https` URL.
    pub fn of_url(text: &str) -> Result<Self, DomainError> {
        let wrong = || DomainError {
            value: shortened(text),
            expected: "an http or https URL with a host, such as \"https://example.org/page\"",
        };
        let url = Url::parse(text).map_err(|_| wrong())?;
        Self::of(&url).ok_or_else(wrong)
    }

    /// The domain of a parsed URL, if it is `http` or `https` and has a host.
    pub fn of(url: &Url) -> Option<Self> {
        matches!(url.scheme(), "http" | "https").then_some(())?;
        match (url.host()?, url.port()) {
            // An address in a URL is written as it is here.
            (Host::Ipv4(_), port) if port != Some(0) => {
                Some(Self(url[Position::BeforeHost..Position::AfterPort].into()))
            }
            (host, port) => Self::new(host, port),
        }
    }

    /// Parses the canonical text of a domain, as returned by [`Self::as_str`]; any other spelling is an error.
    pub fn read_back(text: &str) -> Result<Self, DomainError> {
        let canonical = Self::parse(text)?;
        if canonical.as_str() == text {
            return Ok(canonical);
        }
        Err(DomainError { value: shortened(text), expected: "the canonical name of a domain" })
    }

    /// Parses `host` or `host:port`, in any spelling, or `group:name`.
    pub fn parse(text: &str) -> Result<Self, DomainError> {
        if let Some(name) = text.strip_prefix(GROUP).filter(|name| name.parse::<u16>().is_err()) {
            return Self::group(name);
        }
        let wrong = || DomainError {
            value: shortened(text),
            expected: "a host such as \"example.org\", or one with a port such as \"example.org:8080\"",
        };
        let (host, port) = split_port(text).ok_or_else(wrong)?;
        parse_host(host).and_then(|host| Self::new(host, port)).ok_or_else(wrong)
    }

    /// The domain that the hosts of group `name` share.
    pub fn group(name: &str) -> Result<Self, DomainError> {
        let fits = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.');
        // A number would be parsed as the port of a host called `group`.
        let number = name.bytes().all(|byte| byte.is_ascii_digit());
        if number || name.len() > GROUP_NAME_MAX || !name.chars().all(fits) {
            let expected =
                "a group name of 1 to 100 letters, digits, \"-\", \"_\" or \".\", and not a number";
            return Err(DomainError { value: shortened(name), expected });
        }
        Ok(Self(format_smolstr!("{GROUP}{name}")))
    }

    /// The canonical text: `example.org`, `example.org:8080`, `[::1]:8080`, `group:name`.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The host without its port; for a group, the whole text.
    pub fn host(&self) -> &str {
        self.parts().0
    }

    /// The port, unless it is the scheme's default.
    pub fn port(&self) -> Option<u16> {
        self.parts().1
    }

    /// The host and the port.
    pub(crate) fn parts(&self) -> (&str, Option<u16>) {
        split_port(&self.0).unwrap_or((self.as_str(), None))
    }

    /// The only constructor for hosts. [`Self::parse`] turns its result back into the same domain.
    fn new<S: AsRef<str>>(host: Host<S>, port: Option<u16>) -> Option<Self> {
        let host = match host {
            Host::Domain(name) => SmolStr::from(host_name(name.as_ref())?),
            Host::Ipv4(address) => format_smolstr!("{address}"),
            // An IPv4-mapped address is another spelling of the same server's address.
            Host::Ipv6(address) => match address.to_ipv4_mapped() {
                Some(address) => format_smolstr!("{address}"),
                None => format_smolstr!("[{address}]"),
            },
        };
        match port {
            // No server can listen there.
            Some(0) => None,
            Some(port) => Some(Self(format_smolstr!("{host}:{port}"))),
            None => Some(Self(host)),
        }
    }
}

/// Parses a host in any spelling; IPv6 addresses need brackets.
fn parse_host(text: &str) -> Option<Host> {
    // The URL parser decodes percent-encoding; a name that needs it isn't a domain name.
    Host::parse(text).ok().filter(|_| !text.contains('%'))
}

/// The canonical form of a name that the URL parser accepted; `None` if it cannot be a host name.
fn host_name(name: &str) -> Option<&str> {
    // DNS doesn't allow longer names, and strangers must not fill our memory.
    if name.len() > HOST_NAME_MAX {
        return None;
    }
    let name = without_www(name.strip_suffix('.').unwrap_or(name));
    (is_plain(name) || reads_back(name)).then_some(name)
}

/// Whether the URL parser certainly keeps a name as it is: nothing to decode, not an address, no empty label.
fn is_plain(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'_');
    let label =
        |label: &str| !label.is_empty() && label.bytes().all(plain) && !label.as_bytes().starts_with(b"xn--");
    let last = name.rsplit('.').next().unwrap_or_default();
    name.split('.').all(label) && !last.starts_with(|first: char| first.is_ascii_digit())
}

/// Whether the URL parser returns exactly this name.
fn reads_back(name: &str) -> bool {
    // A star is a wildcard in rules, and a name with an empty label would change when its trailing dot is removed.
    !name.contains('*')
        && !name.split('.').any(str::is_empty)
        && matches!(Host::parse(name), Ok(Host::Domain(again)) if again == name)
}

/// Splits `host:port`, where the host may be an IPv6 address in brackets. `None` if the port isn't valid.
fn split_port(text: &str) -> Option<(&str, Option<u16>)> {
    let host_end = text.rfind(']').map_or(0, |bracket| bracket + 1);
    let Some(colon) = text[host_end..].find(':').map(|at| at + host_end) else {
        return Some((text, None));
    };
    let port = &text[colon + 1..];
    let digits = port.bytes().all(|byte| byte.is_ascii_digit());
    let port = port.parse().ok().filter(|port| digits && *port != 0)?;
    Some((&text[..colon], Some(port)))
}

/// Removes every leading `www.`, so that removing it again changes nothing.
fn without_www(mut name: &str) -> &str {
    while let Some(rest) = name.strip_prefix("www.").filter(|rest| !rest.is_empty()) {
        name = rest;
    }
    name
}

/// The key of a rule: an exact host or `*.suffix`, optionally with a port.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pattern {
    host: SmolStr,
    wildcard: bool,
    port: Option<u16>,
}

impl Pattern {
    /// Parses `example.org` or `*.example.org`, optionally with a port.
    pub fn parse(text: &str) -> Result<Self, DomainError> {
        let wrong = || DomainError {
            value: shortened(text),
            expected: "a host such as \"reuters.com\" or a wildcard such as \"*.example.org\"",
        };
        let (wildcard, rest) = match text.strip_prefix("*.") {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (host, port) = split_port(rest).ok_or_else(wrong)?;
        let host = parse_host(host).ok_or_else(wrong)?;
        let domain = Domain::new(host.clone(), None).ok_or_else(wrong)?;
        match (host, wildcard) {
            (Host::Ipv4(_) | Host::Ipv6(_), true) => Err(wrong()),
            // After `*.`, a leading `www.` is part of the suffix, so it is kept.
            (Host::Domain(name), true) => {
                let host = name.strip_suffix('.').unwrap_or(&name).into();
                Ok(Self { host, wildcard, port })
            }
            (_, false) => Ok(Self { host: domain.0, wildcard, port }),
        }
    }

    /// The host, or the suffix after `*.`.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Whether the pattern matches all hosts below its suffix.
    pub fn is_wildcard(&self) -> bool {
        self.wildcard
    }

    pub(crate) fn port(&self) -> Option<u16> {
        self.port
    }

    /// Whether some domain matches both this pattern and `other`.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        let ports = self.port.is_none() || other.port.is_none() || self.port == other.port;
        let under =
            |host: &str, suffix: &str| host.strip_suffix(suffix).is_some_and(|rest| rest.ends_with('.'));
        let hosts = match (self.wildcard, other.wildcard) {
            (false, false) => self.host == other.host,
            (false, true) => under(&self.host, &other.host),
            (true, false) => under(&other.host, &self.host),
            (true, true) => {
                self.host == other.host || under(&self.host, &other.host) || under(&other.host, &self.host)
            }
        };
        ports && hosts
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", if self.wildcard { "*." } else { "" }, self.host)?;
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

const GROUP: &str = "group:";
const GROUP_NAME_MAX: usize = 100;
const HOST_NAME_MAX: usize = 254;

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> String {
        Domain::parse(text).map_or_else(|error| error.to_string(), |domain| domain.to_string())
    }

    /// B15
    #[test]
    fn all_spellings_of_a_domain_have_one_canonical_name() {
        assert_eq!(name("Finance.Yahoo.COM"), "finance.yahoo.com");
        assert_eq!(name("reuters.com."), "reuters.com");
        assert_eq!(name("www.reuters.com"), "reuters.com");
        assert_eq!(name("www.www.reuters.com"), "reuters.com");
        assert_eq!(name("news.reuters.com"), "news.reuters.com");
        assert_eq!(name("münchen.example"), "xn--mnchen-3ya.example");
        assert_eq!(name("XN--MNCHEN-3YA.example"), "xn--mnchen-3ya.example");
        assert_eq!(name("127.0.0.1:8080"), "127.0.0.1:8080");
        assert_eq!(name("[0:0:0:0:0:0:0:1]:8080"), "[::1]:8080");
        assert_eq!(name("[::ffff:127.0.0.1]:8080"), "127.0.0.1:8080");
        assert_eq!(name("www"), "www");
        assert_eq!(name("group:thomson"), "group:thomson");
        assert_eq!(name("group:8080"), "group:8080");
    }

    #[test]
    fn a_port_other_than_the_schemes_default_is_part_of_the_domain() {
        for (url, domain) in [
            ("http://example.org/a?b", "example.org"),
            ("https://www.Example.org:443/", "example.org"),
            ("http://example.org:80", "example.org"),
            ("http://example.org:443", "example.org:443"),
            ("https://example.org:8443", "example.org:8443"),
            ("https://user:secret@example.org/", "example.org"),
            ("http://[::1]:8080/", "[::1]:8080"),
        ] {
            assert_eq!(Domain::of_url(url).unwrap().as_str(), domain, "{url}");
        }
    }

    #[test]
    fn host_and_port_can_be_split() {
        for (text, host, port) in [
            ("example.org", "example.org", None),
            ("example.org:8080", "example.org", Some(8080)),
            ("[::1]:1", "[::1]", Some(1)),
            ("group:thomson", "group:thomson", None),
        ] {
            let domain = Domain::parse(text).unwrap();
            assert_eq!((domain.host(), domain.port()), (host, port));
            assert_eq!(Domain::parse(domain.as_str()).unwrap(), domain);
        }
    }

    #[test]
    fn text_that_is_not_a_domain_is_a_clear_error() {
        for text in
            ["", ".", "a b", "a:b", "a:0", "a:99999", "a:+1", "%61.org", "a..b", "[::1", "http://a", "\u{0}"]
        {
            assert!(name(text).starts_with("domain = "), "{text:?} became {}", name(text));
        }
        for text in ["", "example.org", "ftp://example.org", "file:///etc/passwd", "data:,x", "http://"] {
            assert!(Domain::of_url(text).unwrap_err().to_string().contains("http or https"), "{text:?}");
        }
        for group in ["", "a b", "8080"] {
            assert!(Domain::group(group).unwrap_err().to_string().contains("group name"));
        }
        assert!(Domain::of_url(&format!("http://{}.org/", "a.".repeat(200))).is_err());
        let long = Domain::parse(&" ".repeat(1000)).unwrap_err().to_string();
        assert!(long.len() < 300, "{long}");
    }

    #[test]
    fn patterns_are_hosts_or_wildcards() {
        assert_eq!(Pattern::parse("*.Company-IR").unwrap().to_string(), "*.company-ir");
        assert_eq!(Pattern::parse("www.EIA.gov:8080").unwrap().to_string(), "eia.gov:8080");
        for text in ["*", "*.", "a.*", "*.127.0.0.1", "*.*.org", "a:x"] {
            assert!(Pattern::parse(text).is_err(), "{text}");
        }
    }
}
