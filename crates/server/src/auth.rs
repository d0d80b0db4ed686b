//! Who asks, and what they may do.
//!
//! With tokens, whoever has one may do what its role allows. Without, everybody may do everything, and that only on
//! loopback: there the name that the service was called by is checked, and whether a web page asks, so that no page in
//! somebody's browser can drive it.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use comity::config::{Role, Token};
use http::header::{AUTHORIZATION, HOST, ORIGIN};
use http::{HeaderMap, HeaderName, Uri};
use ring::rand::{SecureRandom, SystemRandom};

use crate::problem::{Kind, Problem};

/// Who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Caller {
    pub(crate) role: Role,
    /// Tells callers apart.
    pub(crate) id: u64,
}

/// Who may ask.
#[derive(Debug, Clone)]
pub(crate) struct Door {
    tokens: Vec<Token>,
    /// Names that it may be called by, without tokens.
    hosts: Vec<String>,
    /// Whether it may be called by any address, not only by those of loopback.
    everywhere: bool,
}

/// A file of tokens that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokensError {
    /// It cannot be read.
    #[error("serve.tokens_file = {path}: {error}")]
    Unreadable {
        /// Which file.
        path: String,
        /// Why.
        error: std::io::Error,
    },
    /// Nothing is in it, and without tokens everybody may do everything.
    #[error(
        "serve.tokens_file = {path}: no token is in it: add one of `comity serve --make-token use`, or leave the key out"
    )]
    Empty {
        /// Which file.
        path: String,
    },
    /// A line is no token.
    #[error(
        "serve.tokens_file = {path}: line {line} is no token: expected use:TOKEN or admin:TOKEN, with a token of at \
         least 16 visible characters or as sha256:HEX"
    )]
    Line {
        /// Which file.
        path: String,
        /// Which line, counted from 1.
        line: usize,
    },
}

/// A new token, and the line that stands for it in a configuration.
pub fn make_token(role: Role) -> (String, String) {
    let token = URL_SAFE_NO_PAD.encode(random());
    let line = Token::of(role, &token).line();
    (token, line)
}

/// Bytes that nobody can guess.
pub(crate) fn random() -> [u8; 32] {
    let mut bytes = [0; 32];
    // A system without randomness is broken beyond what a program can mend.
    SystemRandom::new().fill(&mut bytes).unwrap_or_else(|_| unreachable!("the system gives random numbers"));
    bytes
}

/// The tokens in a file: one a line, blank lines and those that begin with `#` passed over.
pub(crate) fn read_tokens(path: &Path) -> Result<Vec<Token>, TokensError> {
    let shown = path.display().to_string();
    let text = std::fs::read_to_string(path)
        .map_err(|error| TokensError::Unreadable { path: shown.clone(), error })?;
    let lines =
        text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'));
    let tokens: Vec<Token> = lines
        .map(|(nth, line)| {
            Token::parse(line).ok_or_else(|| TokensError::Line { path: shown.clone(), line: nth + 1 })
        })
        .collect::<Result<_, _>>()?;
    if tokens.is_empty() {
        return Err(TokensError::Empty { path: shown });
    }
    Ok(tokens)
}

impl Door {
    pub(crate) fn new(tokens: Vec<Token>, hosts: Vec<String>, listens_on: IpAddr) -> Self {
        Self { tokens, hosts, everywhere: !listens_on.is_loopback() }
    }

    /// Whether everybody may do everything.
    pub(crate) fn is_open(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Who asks for `uri` with these headers.
    pub(crate) fn admit(&self, uri: &Uri, headers: &HeaderMap) -> Result<Caller, Problem> {
        let host = only_host(uri, headers)?;
        if self.is_open() {
            self.is_for_us(&host, headers)?;
            return Ok(Caller { role: Role::Admin, id: 0 });
        }
        let missing = || {
            Problem::new(
                Kind::Unauthorized,
                "expected Authorization: Bearer TOKEN with a token that is known",
            )
        };
        let said = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()).ok_or_else(missing)?;
        let (scheme, token) = said.split_once(' ').ok_or_else(missing)?;
        if !scheme.eq_ignore_ascii_case("bearer") {
            return Err(missing());
        }
        let found = self.tokens.iter().find(|known| known.is(token.trim()));
        found.map(|known| Caller { role: known.role, id: known.fingerprint() }).ok_or_else(missing)
    }

    /// Whether a caller that was admitted, perhaps by another door, would still be: the token is known, in the same role.
    pub(crate) fn still_admits(&self, caller: Caller) -> bool {
        let is_theirs = |known: &Token| known.fingerprint() == caller.id && known.role == caller.role;
        self.is_open() || self.tokens.iter().any(is_theirs)
    }

    /// Called by a name of ours, and not by a web page.
    fn is_for_us(&self, host: &str, headers: &HeaderMap) -> Result<(), Problem> {
        if !Name::parse(host).is_some_and(|name| self.is_ours(&name)) {
            return Err(Problem::new(
                Kind::Foreign,
                "the Host of the request is not a name of this service; serve.hosts lists more names",
            ));
        }
        let same = |origin: &str| {
            let origin = origin.to_ascii_lowercase();
            origin.strip_prefix("http://").or(origin.strip_prefix("https://")) == Some(host)
        };
        let is_foreign = headers.get_all(ORIGIN).iter().any(|origin| !origin.to_str().is_ok_and(same));
        let mut sites = headers.get_all(SEC_FETCH_SITE).iter();
        if is_foreign || sites.any(|site| !matches!(site.as_bytes(), b"same-origin" | b"none")) {
            return Err(Problem::new(Kind::Foreign, "web pages of other sites may not use this service"));
        }
        Ok(())
    }

    fn is_ours(&self, name: &Name<'_>) -> bool {
        match name {
            Name::Address(address) => address.is_loopback() || self.everywhere,
            Name::Text(name) => *name == "localhost" || self.hosts.iter().any(|host| host == name),
        }
    }
}

impl Caller {
    /// Refuses whoever may only use the service.
    pub(crate) fn must_steer(self) -> Result<(), Problem> {
        match self.role {
            Role::Admin => Ok(()),
            Role::Use => Err(Problem::new(Kind::Forbidden, "this needs a token with the role admin")),
        }
    }
}

/// As it is, for nearly all.
fn lower_case(text: &str) -> Cow<'_, str> {
    match text.bytes().any(|byte| byte.is_ascii_uppercase()) {
        true => Cow::Owned(text.to_ascii_lowercase()),
        false => Cow::Borrowed(text),
    }
}

/// What the service was called by, in lower case; empty if nobody said. Whoever says it twice, or one thing in the
/// request line and another below it, may mean anything.
fn only_host<'a>(uri: &'a Uri, headers: &'a HeaderMap) -> Result<Cow<'a, str>, Problem> {
    let mut said = headers.get_all(HOST).iter();
    let host = match (said.next(), said.next()) {
        (None, _) => Cow::Borrowed(""),
        (Some(host), None) => lower_case(host.to_str().unwrap_or_default()),
        (Some(_), Some(_)) => return Err(Problem::new(Kind::Foreign, "the request has more than one Host")),
    };
    if uri.authority().is_some_and(|authority| !authority.as_str().eq_ignore_ascii_case(&host)) {
        return Err(Problem::new(Kind::Foreign, "the Host of the request is not that of its request line"));
    }
    Ok(host)
}

/// A host as a `Host` header names it.
#[derive(Debug, PartialEq, Eq)]
enum Name<'a> {
    Address(IpAddr),
    Text(&'a str),
}

impl<'a> Name<'a> {
    /// Reads a host with or without a port: all of the text, or nothing.
    fn parse(host: &'a str) -> Option<Self> {
        let (name, after) = match host.strip_prefix('[') {
            Some(bracketed) => {
                let (address, after) = bracketed.split_once(']')?;
                (Self::Address(address.parse::<Ipv6Addr>().ok()?.into()), after)
            }
            None => {
                let (name, after) = host.split_at(host.find(':').unwrap_or(host.len()));
                let address = name.parse::<Ipv4Addr>().ok();
                (address.map_or(Self::Text(name), |address| Self::Address(address.into())), after)
            }
        };
        let is_port =
            |port: &str| port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok();
        (after.is_empty() || after.strip_prefix(':').is_some_and(is_port)).then_some(name)
    }
}

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &str)| {
            (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
        };
        pairs.iter().map(pair).collect()
    }

    /// Who asks for a path.
    fn admit(door: &Door, headers: &HeaderMap) -> Result<Caller, Problem> {
        door.admit(&Uri::from_static("/v1/check"), headers)
    }

    fn open(listens_on: &str) -> Door {
        Door::new(Vec::new(), vec!["comity.internal".to_owned()], listens_on.parse().unwrap())
    }

    #[test]
    fn on_loopback_it_must_be_called_by_its_name_and_by_no_web_page() {
        let door = open("127.0.0.1");
        for host in
            ["127.0.0.1:7878", "localhost:7878", "[::1]:7878", "127.9.9.9", "comity.internal", "LOCALHOST"]
        {
            assert!(admit(&door, &headers(&[("host", host)])).is_ok(), "{host}");
        }
        for host in ["evil.example", "10.0.0.1:7878", "127.0.0.1.evil.example", "localhost.evil.example", ""]
        {
            assert!(admit(&door, &headers(&[("host", host)])).is_err(), "{host}");
        }
        assert!(admit(&door, &HeaderMap::new()).is_err());
        let from = |name, value| admit(&door, &headers(&[("host", "localhost:7878"), (name, value)])).is_ok();
        assert!(from("origin", "http://localhost:7878") && from("sec-fetch-site", "same-origin"));
        for origin in ["https://evil.example", "null", "http://localhost:1234", "http://localhost"] {
            assert!(!from("origin", origin), "{origin}");
        }
        assert!(!from("sec-fetch-site", "cross-site") && !from("sec-fetch-site", "same-site"));
    }

    /// B82: what begins like a name of ours and goes on is another name.
    #[test]
    fn a_host_is_read_to_its_end() {
        let door = open("127.0.0.1");
        for ours in ["[::1]", "127.0.0.1", "localhost", "comity.internal"] {
            assert!(admit(&door, &headers(&[("host", ours)])).is_ok(), "{ours}");
            assert!(admit(&door, &headers(&[("host", &format!("{ours}:65535"))])).is_ok(), "{ours}");
            for more in [
                ".evil",
                ":7878.evil",
                ":7878@evil",
                ":+80",
                ":65536",
                ":",
                ":80:80",
                "@evil",
                "/evil",
                "]",
                "%25",
                " evil",
                ",evil",
            ] {
                let host = format!("{ours}{more}");
                assert!(admit(&door, &headers(&[("host", &host)])).is_err(), "{host}");
            }
            for before in ["evil@", "evil:80@", "evil.", "[", "http://"] {
                let host = format!("{before}{ours}");
                assert!(admit(&door, &headers(&[("host", &host)])).is_err(), "{host}");
            }
        }
        for other in ["::1", "[127.0.0.1]", "[localhost]", "[::1", "[::1%25lo]", "127.1", "0x7f.0.0.1"] {
            assert!(admit(&door, &headers(&[("host", other)])).is_err(), "{other}");
        }
    }

    /// Whatever is accepted is one of our names with an optional port, and nothing else.
    #[test]
    fn no_text_put_together_from_pieces_gets_past() {
        let door = open("127.0.0.1");
        // Nothing is a longer address.
        let ours = ["[::1]", "127.0.0.255", "localhost"];
        let pieces = ["[::1]", "127.0.0.255", "localhost", ":", "80", ".", "evil", "@", "[", "]"];
        let mut texts = vec![String::new()];
        let mut accepted = 0;
        for _ in 0..4 {
            texts = texts.iter().flat_map(|text| pieces.map(|piece| format!("{text}{piece}"))).collect();
            for text in texts.iter().filter(|text| admit(&door, &headers(&[("host", text)])).is_ok()) {
                let rest = ours.iter().find_map(|name| text.strip_prefix(name)).unwrap();
                let port = rest.strip_prefix(':').map(|port| port.bytes().all(|byte| byte.is_ascii_digit()));
                assert!(rest.is_empty() || port == Some(true), "{text}");
                accepted += 1;
            }
        }
        assert_eq!(accepted, 3 * 3, "bare, with a port of two digits and with one of four");
    }

    #[test]
    fn two_hosts_or_two_opinions_about_it_are_refused() {
        let tokens =
            Door::new(vec![Token::of(Role::Use, "a-token-to-use-it")], Vec::new(), IpAddr::from([0; 4]));
        let token = ("authorization", "Bearer a-token-to-use-it");
        for door in [open("127.0.0.1"), tokens] {
            for two in [["localhost", "localhost"], ["localhost", "evil"], ["evil", "localhost"]] {
                let both = headers(&[("host", two[0]), ("host", two[1]), token]);
                assert!(admit(&door, &both).is_err(), "{two:?}");
            }
            let by =
                |uri: &str| door.admit(&uri.parse().unwrap(), &headers(&[("host", "localhost:7878"), token]));
            assert!(by("http://LOCALHOST:7878/v1/check").is_ok());
            for uri in ["http://evil/v1/check", "http://localhost/v1/check", "http://me@localhost:7878/"] {
                assert!(by(uri).is_err(), "{uri}");
            }
        }
        let pages =
            headers(&[("host", "localhost"), ("origin", "http://localhost"), ("origin", "http://evil")]);
        assert!(admit(&open("127.0.0.1"), &pages).is_err());
    }

    #[test]
    fn elsewhere_any_address_will_do_but_no_name_that_others_gave_us() {
        let door = open("0.0.0.0");
        assert!(admit(&door, &headers(&[("host", "10.0.0.1:7878")])).is_ok());
        assert!(admit(&door, &headers(&[("host", "evil.example")])).is_err());
    }

    #[test]
    fn with_tokens_the_token_decides() {
        let (use_token, admin) = ("a-token-to-use-it", "a-token-to-steer-it");
        let tokens = vec![Token::of(Role::Use, use_token), Token::of(Role::Admin, admin)];
        let door = Door::new(tokens, Vec::new(), "0.0.0.0".parse().unwrap());
        let role =
            |value: &str| admit(&door, &headers(&[("authorization", value)])).map(|caller| caller.role).ok();
        assert_eq!(role(&format!("Bearer {use_token}")), Some(Role::Use));
        assert_eq!(role(&format!("bearer  {admin} ")), Some(Role::Admin));
        for value in
            ["", "Bearer", "Bearer ", "Basic a-token-to-use-it", "Bearer a-token-to-use-i", use_token]
        {
            assert_eq!(role(value), None, "{value}");
        }
        assert!(admit(&door, &headers(&[("host", "127.0.0.1")])).is_err());
    }

    #[test]
    fn whoever_was_admitted_stays_for_as_long_as_the_token_is_known_in_its_role() {
        let (kept, gone, changed) = ("a-token-that-stays", "a-token-that-goes", "a-token-that-changes");
        let door = |tokens: &[(Role, &str)]| {
            let tokens = tokens.iter().map(|(role, plain)| Token::of(*role, plain)).collect();
            Door::new(tokens, Vec::new(), "127.0.0.1".parse().unwrap())
        };
        let before = door(&[(Role::Use, kept), (Role::Use, gone), (Role::Admin, changed)]);
        let caller =
            |token: &str| admit(&before, &headers(&[("authorization", &format!("Bearer {token}"))])).unwrap();
        let after = door(&[(Role::Use, changed), (Role::Use, kept)]);
        assert!(after.still_admits(caller(kept)));
        assert!(!after.still_admits(caller(gone)) && !after.still_admits(caller(changed)));
        let anybody = admit(&open("127.0.0.1"), &headers(&[("host", "localhost")])).unwrap();
        assert!(!after.still_admits(anybody), "tokens are asked for now");
        assert!(open("127.0.0.1").still_admits(caller(gone)), "nothing is asked for any more");
    }

    #[test]
    fn a_token_that_was_made_is_known() {
        let (token, line) = make_token(Role::Use);
        assert!(Token::parse_hashed(&line).unwrap().is(&token) && token.len() >= 40);
        assert_ne!(make_token(Role::Use).0, token);
    }
}
