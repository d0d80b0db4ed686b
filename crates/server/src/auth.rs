//! Who asks, and what they may do.
//!
//! With tokens, whoever has one may do what its role allows. Without, everybody may do everything, and that only on
//! loopback: there the name that the service was called by is checked, and whether a web page asks, so that no page in
//! somebody's browser can drive it.

use std::borrow::Cow;
use std::net::IpAddr;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use comity::config::{Role, Token};
use http::header::{AUTHORIZATION, HOST, ORIGIN};
use http::{HeaderMap, HeaderName};
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
    lines
        .map(|(nth, line)| {
            Token::parse(line).ok_or_else(|| TokensError::Line { path: shown.clone(), line: nth + 1 })
        })
        .collect()
}

impl Door {
    pub(crate) fn new(tokens: Vec<Token>, hosts: Vec<String>, listens_on: IpAddr) -> Self {
        Self { tokens, hosts, everywhere: !listens_on.is_loopback() }
    }

    /// Whether everybody may do everything.
    pub(crate) fn is_open(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Who asks with these headers.
    pub(crate) fn admit(&self, headers: &HeaderMap) -> Result<Caller, Problem> {
        if self.is_open() {
            self.is_for_us(headers)?;
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
    fn is_for_us(&self, headers: &HeaderMap) -> Result<(), Problem> {
        let host = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
        let host = lower_case(host);
        if !self.is_ours(without_port(&host)) {
            return Err(Problem::new(
                Kind::Foreign,
                "the Host of the request is not a name of this service; serve.hosts lists more names",
            ));
        }
        let same = |origin: &str| {
            let origin = origin.to_ascii_lowercase();
            origin.strip_prefix("http://").or(origin.strip_prefix("https://")) == Some(&*host)
        };
        let foreign = match headers.get(ORIGIN) {
            Some(origin) => !origin.to_str().is_ok_and(same),
            None => false,
        };
        let site = headers.get(SEC_FETCH_SITE).and_then(|site| site.to_str().ok());
        if foreign || site.is_some_and(|site| !matches!(site, "same-origin" | "none")) {
            return Err(Problem::new(Kind::Foreign, "web pages of other sites may not use this service"));
        }
        Ok(())
    }

    fn is_ours(&self, name: &str) -> bool {
        let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        match address {
            Ok(address) => address.is_loopback() || self.everywhere,
            Err(_) => name == "localhost" || self.hosts.iter().any(|host| host == name),
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

fn without_port(host: &str) -> &str {
    match host.rfind(']') {
        Some(end) => &host[..=end],
        None => host.split(':').next().unwrap_or_default(),
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

    fn open(listens_on: &str) -> Door {
        Door::new(Vec::new(), vec!["comity.internal".to_owned()], listens_on.parse().unwrap())
    }

    #[test]
    fn on_loopback_it_must_be_called_by_its_name_and_by_no_web_page() {
        let door = open("127.0.0.1");
        for host in
            ["127.0.0.1:7878", "localhost:7878", "[::1]:7878", "127.9.9.9", "comity.internal", "LOCALHOST"]
        {
            assert!(door.admit(&headers(&[("host", host)])).is_ok(), "{host}");
        }
        for host in ["evil.example", "10.0.0.1:7878", "127.0.0.1.evil.example", "localhost.evil.example", ""]
        {
            assert!(door.admit(&headers(&[("host", host)])).is_err(), "{host}");
        }
        assert!(door.admit(&HeaderMap::new()).is_err());
        let from = |name, value| door.admit(&headers(&[("host", "localhost:7878"), (name, value)])).is_ok();
        assert!(from("origin", "http://localhost:7878") && from("sec-fetch-site", "same-origin"));
        for origin in ["https://evil.example", "null", "http://localhost:1234", "http://localhost"] {
            assert!(!from("origin", origin), "{origin}");
        }
        assert!(!from("sec-fetch-site", "cross-site") && !from("sec-fetch-site", "same-site"));
    }

    #[test]
    fn elsewhere_any_address_will_do_but_no_name_that_others_gave_us() {
        let door = open("0.0.0.0");
        assert!(door.admit(&headers(&[("host", "10.0.0.1:7878")])).is_ok());
        assert!(door.admit(&headers(&[("host", "evil.example")])).is_err());
    }

    #[test]
    fn with_tokens_the_token_decides() {
        let (use_token, admin) = ("a-token-to-use-it", "a-token-to-steer-it");
        let tokens = vec![Token::of(Role::Use, use_token), Token::of(Role::Admin, admin)];
        let door = Door::new(tokens, Vec::new(), "0.0.0.0".parse().unwrap());
        let role =
            |value: &str| door.admit(&headers(&[("authorization", value)])).map(|caller| caller.role).ok();
        assert_eq!(role(&format!("Bearer {use_token}")), Some(Role::Use));
        assert_eq!(role(&format!("bearer  {admin} ")), Some(Role::Admin));
        for value in
            ["", "Bearer", "Bearer ", "Basic a-token-to-use-it", "Bearer a-token-to-use-i", use_token]
        {
            assert_eq!(role(value), None, "{value}");
        }
        assert!(door.admit(&headers(&[("host", "127.0.0.1")])).is_err());
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
            |token: &str| before.admit(&headers(&[("authorization", &format!("Bearer {token}"))])).unwrap();
        let after = door(&[(Role::Use, changed), (Role::Use, kept)]);
        assert!(after.still_admits(caller(kept)));
        assert!(!after.still_admits(caller(gone)) && !after.still_admits(caller(changed)));
        let anybody = open("127.0.0.1").admit(&headers(&[("host", "localhost")])).unwrap();
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
