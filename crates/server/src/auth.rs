//! Authentication: who is calling, and what they may do.
//!
//! With tokens, each request needs one, and its role decides what is allowed. Without tokens, every caller may do
//! everything, so the service listens on loopback only. The Host header and the origin are checked then, so that no web
//! page in somebody's browser can use the service (DNS rebinding, cross-site requests).

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use comity::config::{Role, Token};
use http::header::{AUTHORIZATION, HOST, ORIGIN};
use http::{HeaderMap, HeaderName, Method, Uri};
use ring::rand::{SecureRandom, SystemRandom};

use crate::problem::{Kind, Problem};

/// An authenticated caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Caller {
    pub(crate) role: Role,
    /// The fingerprint of the caller's token; 0 without tokens.
    pub(crate) id: u64,
}

/// Who may use the service.
#[derive(Debug, Clone)]
pub(crate) struct Access {
    tokens: Vec<Token>,
    /// Host names it answers to when there are no tokens, besides `localhost`.
    hosts: Vec<String>,
    /// Whether the Host header may be any IP address. Otherwise it must be a loopback address.
    any_address: bool,
}

/// Why a file of tokens can't be used.
#[derive(Debug, thiserror::Error)]
pub enum TokensError {
    /// The file can't be read.
    #[error("serve.tokens_file = {path}: {error}")]
    Unreadable {
        /// The file.
        path: String,
        /// The cause.
        error: std::io::Error,
    },
    /// The file has no tokens. Starting without tokens would give everybody access.
    #[error(
        "serve.tokens_file = {path}: the file has no tokens; create one with comity serve --make-token use, or remove the \
         setting"
    )]
    Empty {
        /// The file.
        path: String,
    },
    /// A line is not a valid token.
    #[error(
        "serve.tokens_file = {path}: line {line} is not a valid token: expected view:TOKEN, use:TOKEN or admin:TOKEN, \
         where TOKEN has at least 16 visible characters or is sha256:HEX"
    )]
    Line {
        /// The file.
        path: String,
        /// The line number, counted from 1.
        line: usize,
    },
}

/// Makes a new token. Returns the token, and the line with its hash for the configuration.
pub fn make_token(role: Role) -> (String, String) {
    let token = URL_SAFE_NO_PAD.encode(random());
    let line = Token::of(role, &token).line();
    (token, line)
}

/// Random bytes, suitable as a secret.
pub(crate) fn random() -> [u8; 32] {
    let mut bytes = [0; 32];
    // A system without a random number generator is beyond what a program can handle.
    SystemRandom::new()
        .fill(&mut bytes)
        .unwrap_or_else(|_| unreachable!("the system has a random number generator"));
    bytes
}

/// Reads a file of tokens, one per line. Blank lines and lines that start with `#` are skipped.
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

impl Access {
    pub(crate) fn new(tokens: Vec<Token>, hosts: Vec<String>, listens_on: IpAddr) -> Self {
        Self { tokens, hosts, any_address: !listens_on.is_loopback() }
    }

    /// Whether there are no tokens, so that every caller may do everything.
    pub(crate) fn is_open(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Authenticates a request by its URI and headers.
    pub(crate) fn authenticate(&self, uri: &Uri, headers: &HeaderMap) -> Result<Caller, Problem> {
        let host = single_host(uri, headers)?;
        if self.is_open() {
            self.check_origin(&host, headers, FromElsewhere::Refused)?;
            return Ok(Caller { role: Role::Admin, id: 0 });
        }
        let unauthorized = || {
            Problem::new(
                Kind::Unauthorized,
                "missing or unknown token: expected the header Authorization: Bearer TOKEN",
            )
        };
        let header =
            headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()).ok_or_else(unauthorized)?;
        let (scheme, token) = header.split_once(' ').ok_or_else(unauthorized)?;
        if !scheme.eq_ignore_ascii_case("bearer") {
            return Err(unauthorized());
        }
        self.caller_with(token).ok_or_else(unauthorized)
    }

    /// The caller that has this token.
    pub(crate) fn caller_with(&self, token: &str) -> Option<Caller> {
        let found = self.tokens.iter().find(|known| known.matches(token.trim()));
        found.map(|known| Caller { role: known.role, id: known.fingerprint() })
    }

    /// Refuses requests for the dashboard that a page of another site sent, or that are for another host, with tokens as
    /// well as without: browsers send its cookie by themselves. Links from elsewhere may lead to a page.
    pub(crate) fn check_browser(
        &self,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> Result<(), Problem> {
        let host = single_host(uri, headers)?;
        let says = |name: HeaderName, value: &str| headers.get(name).is_some_and(|said| said == value);
        let is_link =
            method == Method::GET && says(SEC_FETCH_MODE, "navigate") && says(SEC_FETCH_DEST, "document");
        self.check_origin(
            &host,
            headers,
            if is_link { FromElsewhere::Allowed } else { FromElsewhere::Refused },
        )
    }

    /// Whether a caller that was authenticated, perhaps before a reload, still has access: its token exists and has the
    /// same role.
    pub(crate) fn still_allows(&self, caller: Caller) -> bool {
        let is_callers = |known: &Token| known.fingerprint() == caller.id && known.role == caller.role;
        self.is_open() || self.tokens.iter().any(is_callers)
    }

    /// Refuses a Host header that names another host, and requests from web pages of other sites.
    fn check_origin(
        &self,
        host: &str,
        headers: &HeaderMap,
        from_elsewhere: FromElsewhere,
    ) -> Result<(), Problem> {
        if !HostName::parse(host).is_some_and(|name| self.answers_to(&name)) {
            return Err(Problem::new(
                Kind::Foreign,
                "the Host header does not name this service; add the name to serve.hosts to allow it",
            ));
        }
        let is_same = |origin: &str| {
            let origin = origin.to_ascii_lowercase();
            origin.strip_prefix("http://").or(origin.strip_prefix("https://")) == Some(host)
        };
        let is_foreign = headers.get_all(ORIGIN).iter().any(|origin| !origin.to_str().is_ok_and(is_same));
        let mut sites = headers.get_all(SEC_FETCH_SITE).iter();
        let is_ours = |site: &[u8]| {
            matches!(site, b"same-origin" | b"none") || from_elsewhere == FromElsewhere::Allowed
        };
        if is_foreign || sites.any(|site| !is_ours(site.as_bytes())) {
            return Err(Problem::new(Kind::Foreign, "requests from web pages of other sites are refused"));
        }
        Ok(())
    }

    fn answers_to(&self, name: &HostName<'_>) -> bool {
        match name {
            HostName::Address(address) => address.is_loopback() || self.any_address,
            HostName::Text(name) => *name == "localhost" || self.hosts.iter().any(|host| host == name),
        }
    }
}

impl Caller {
    /// Who somebody is, for the log and the audit list. Tokens have no names, so they are known by the beginning of their
    /// hash.
    pub(crate) fn name(self) -> String {
        match self.id {
            0 => "someone on this machine".to_owned(),
            id => format!("{} token {:08x}", self.role.as_str(), id >> 32),
        }
    }

    /// Refuses requests that would change something to callers who may only look.
    pub(crate) fn require_reading(self, method: &Method, path: &str) -> Result<(), Problem> {
        let reads = matches!(*method, Method::GET | Method::HEAD) || path == "/v1/peek";
        match self.role {
            Role::View if !reads => {
                Err(Problem::new(Kind::Forbidden, "this requires a token with the role use or admin"))
            }
            Role::View | Role::Use | Role::Admin => Ok(()),
        }
    }

    /// Refuses callers without the role `admin`.
    pub(crate) fn require_admin(self) -> Result<(), Problem> {
        match self.role {
            Role::Admin => Ok(()),
            Role::View | Role::Use => {
                Err(Problem::new(Kind::Forbidden, "this requires a token with the role admin"))
            }
        }
    }
}

/// Whether a request may come from a page of another site.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FromElsewhere {
    /// It may: it is a link to a page, which changes nothing.
    Allowed,
    /// It may not.
    Refused,
}

/// Lower-cases a text, without copying it in the usual case that it is lower-case already.
fn lower_case(text: &str) -> Cow<'_, str> {
    match text.bytes().any(|byte| byte.is_ascii_uppercase()) {
        true => Cow::Owned(text.to_ascii_lowercase()),
        false => Cow::Borrowed(text),
    }
}

/// The Host header in lower case; empty if there is none. Two Host headers, or one that contradicts the request line,
/// are ambiguous and refused.
fn single_host<'a>(uri: &'a Uri, headers: &'a HeaderMap) -> Result<Cow<'a, str>, Problem> {
    let mut values = headers.get_all(HOST).iter();
    let host = match (values.next(), values.next()) {
        (None, _) => Cow::Borrowed(""),
        (Some(host), None) => lower_case(host.to_str().unwrap_or_default()),
        (Some(_), Some(_)) => {
            return Err(Problem::new(Kind::Foreign, "the request has more than one Host header"));
        }
    };
    if uri.authority().is_some_and(|authority| !authority.as_str().eq_ignore_ascii_case(&host)) {
        return Err(Problem::new(Kind::Foreign, "the Host header differs from the host in the request line"));
    }
    Ok(host)
}

/// The host in a Host header, without its port.
#[derive(Debug, PartialEq, Eq)]
enum HostName<'a> {
    Address(IpAddr),
    Text(&'a str),
}

impl<'a> HostName<'a> {
    /// Parses a host with or without a port. The whole text must match.
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

const SEC_FETCH_DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");
const SEC_FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");
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

    fn authenticate(access: &Access, headers: &HeaderMap) -> Result<Caller, Problem> {
        access.authenticate(&Uri::from_static("/v1/check"), headers)
    }

    fn open(listens_on: &str) -> Access {
        Access::new(Vec::new(), vec!["comity.internal".to_owned()], listens_on.parse().unwrap())
    }

    #[test]
    fn on_loopback_other_host_names_and_web_pages_are_refused() {
        let access = open("127.0.0.1");
        for host in
            ["127.0.0.1:7878", "localhost:7878", "[::1]:7878", "127.9.9.9", "comity.internal", "LOCALHOST"]
        {
            assert!(authenticate(&access, &headers(&[("host", host)])).is_ok(), "{host}");
        }
        for host in ["evil.example", "10.0.0.1:7878", "127.0.0.1.evil.example", "localhost.evil.example", ""]
        {
            assert!(authenticate(&access, &headers(&[("host", host)])).is_err(), "{host}");
        }
        assert!(authenticate(&access, &HeaderMap::new()).is_err());
        let from = |name, value| {
            authenticate(&access, &headers(&[("host", "localhost:7878"), (name, value)])).is_ok()
        };
        assert!(from("origin", "http://localhost:7878") && from("sec-fetch-site", "same-origin"));
        for origin in ["https://evil.example", "null", "http://localhost:1234", "http://localhost"] {
            assert!(!from("origin", origin), "{origin}");
        }
        assert!(!from("sec-fetch-site", "cross-site") && !from("sec-fetch-site", "same-site"));
    }

    /// B82: a name that only starts with an allowed one is another name.
    #[test]
    fn the_whole_host_header_must_match() {
        let access = open("127.0.0.1");
        for ours in ["[::1]", "127.0.0.1", "localhost", "comity.internal"] {
            assert!(authenticate(&access, &headers(&[("host", ours)])).is_ok(), "{ours}");
            assert!(authenticate(&access, &headers(&[("host", &format!("{ours}:65535"))])).is_ok(), "{ours}");
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
                assert!(authenticate(&access, &headers(&[("host", &host)])).is_err(), "{host}");
            }
            for before in ["evil@", "evil:80@", "evil.", "[", "http://"] {
                let host = format!("{before}{ours}");
                assert!(authenticate(&access, &headers(&[("host", &host)])).is_err(), "{host}");
            }
        }
        for other in ["::1", "[127.0.0.1]", "[localhost]", "[::1", "[::1%25lo]", "127.1", "0x7f.0.0.1"] {
            assert!(authenticate(&access, &headers(&[("host", other)])).is_err(), "{other}");
        }
    }

    /// Tries all combinations of up to four pieces. Only an allowed name with an optional port is accepted.
    #[test]
    fn no_combination_of_host_pieces_gets_past_the_check() {
        let access = open("127.0.0.1");
        // No digits can be appended that make this a longer address.
        let ours = ["[::1]", "127.0.0.255", "localhost"];
        let pieces = ["[::1]", "127.0.0.255", "localhost", ":", "80", ".", "evil", "@", "[", "]"];
        let mut texts = vec![String::new()];
        let mut accepted = 0;
        for _ in 0..4 {
            texts = texts.iter().flat_map(|text| pieces.map(|piece| format!("{text}{piece}"))).collect();
            for text in texts.iter().filter(|text| authenticate(&access, &headers(&[("host", text)])).is_ok())
            {
                let rest = ours.iter().find_map(|name| text.strip_prefix(name)).unwrap();
                let port = rest.strip_prefix(':').map(|port| port.bytes().all(|byte| byte.is_ascii_digit()));
                assert!(rest.is_empty() || port == Some(true), "{text}");
                accepted += 1;
            }
        }
        assert_eq!(accepted, 3 * 3, "each name bare, with a two-digit port and with a four-digit port");
    }

    #[test]
    fn duplicate_or_contradicting_host_headers_are_refused() {
        let tokens =
            Access::new(vec![Token::of(Role::Use, "a-token-to-use-it")], Vec::new(), IpAddr::from([0; 4]));
        let token = ("authorization", "Bearer a-token-to-use-it");
        for access in [open("127.0.0.1"), tokens] {
            for two in [["localhost", "localhost"], ["localhost", "evil"], ["evil", "localhost"]] {
                let both = headers(&[("host", two[0]), ("host", two[1]), token]);
                assert!(authenticate(&access, &both).is_err(), "{two:?}");
            }
            let by = |uri: &str| {
                access.authenticate(&uri.parse().unwrap(), &headers(&[("host", "localhost:7878"), token]))
            };
            assert!(by("http://LOCALHOST:7878/v1/check").is_ok());
            for uri in ["http://evil/v1/check", "http://localhost/v1/check", "http://me@localhost:7878/"] {
                assert!(by(uri).is_err(), "{uri}");
            }
        }
        let pages =
            headers(&[("host", "localhost"), ("origin", "http://localhost"), ("origin", "http://evil")]);
        assert!(authenticate(&open("127.0.0.1"), &pages).is_err());
    }

    #[test]
    fn beyond_loopback_any_address_is_accepted_but_no_unlisted_name() {
        let access = open("0.0.0.0");
        assert!(authenticate(&access, &headers(&[("host", "10.0.0.1:7878")])).is_ok());
        assert!(authenticate(&access, &headers(&[("host", "evil.example")])).is_err());
    }

    #[test]
    fn with_tokens_the_role_comes_from_the_token() {
        let (use_token, admin) = ("a-token-to-use-it", "a-token-to-steer-it");
        let tokens = vec![Token::of(Role::Use, use_token), Token::of(Role::Admin, admin)];
        let access = Access::new(tokens, Vec::new(), "0.0.0.0".parse().unwrap());
        let role = |value: &str| {
            authenticate(&access, &headers(&[("authorization", value)])).map(|caller| caller.role).ok()
        };
        assert_eq!(role(&format!("Bearer {use_token}")), Some(Role::Use));
        assert_eq!(role(&format!("bearer  {admin} ")), Some(Role::Admin));
        for value in
            ["", "Bearer", "Bearer ", "Basic a-token-to-use-it", "Bearer a-token-to-use-i", use_token]
        {
            assert_eq!(role(value), None, "{value}");
        }
        assert!(authenticate(&access, &headers(&[("host", "127.0.0.1")])).is_err());
    }

    #[test]
    fn a_caller_keeps_access_while_its_token_exists_with_the_same_role() {
        let (kept, gone, changed) = ("a-token-that-stays", "a-token-that-goes", "a-token-that-changes");
        let access = |tokens: &[(Role, &str)]| {
            let tokens = tokens.iter().map(|(role, plain)| Token::of(*role, plain)).collect();
            Access::new(tokens, Vec::new(), "127.0.0.1".parse().unwrap())
        };
        let before = access(&[(Role::Use, kept), (Role::Use, gone), (Role::Admin, changed)]);
        let caller = |token: &str| {
            authenticate(&before, &headers(&[("authorization", &format!("Bearer {token}"))])).unwrap()
        };
        let after = access(&[(Role::Use, changed), (Role::Use, kept)]);
        assert!(after.still_allows(caller(kept)));
        assert!(!after.still_allows(caller(gone)) && !after.still_allows(caller(changed)));
        let anybody = authenticate(&open("127.0.0.1"), &headers(&[("host", "localhost")])).unwrap();
        assert!(!after.still_allows(anybody), "a token is required now");
        assert!(open("127.0.0.1").still_allows(caller(gone)), "no token is required any more");
    }

    #[test]
    fn a_new_token_matches_its_hash() {
        let (token, line) = make_token(Role::Use);
        assert!(Token::parse_hashed(&line).unwrap().matches(&token) && token.len() >= 40);
        assert_ne!(make_token(Role::Use).0, token);
    }
}
