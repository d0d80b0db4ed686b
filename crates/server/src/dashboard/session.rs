//! Who looks at the dashboard: sessions, their cookie, and the tokens that forms carry against forged requests.
//!
//! A session is a random text in a cookie. What it may do follows from the token it was begun with, and ends with that
//! token. Sessions are kept in memory: a restart ends them. Which requests need one is decided in `guard`.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use comity::core::time::{Span, Timestamp};
use http::HeaderMap;
use http::header::COOKIE;
use ring::hmac::{self, HMAC_SHA256, Key};

use crate::auth::{Caller, random};

/// All sessions.
pub(crate) struct Sessions {
    /// Makes the tokens of forms.
    key: Key,
    open: Mutex<HashMap<String, Session>>,
}

#[derive(Debug, Clone, Copy)]
struct Session {
    caller: Caller,
    began_at: Timestamp,
    used_at: Timestamp,
}

impl Sessions {
    pub(crate) fn new() -> Self {
        Self { key: Key::new(HMAC_SHA256, &random()), open: Mutex::default() }
    }

    /// Begins a session, and returns what its cookie contains.
    pub(crate) fn begin(&self, caller: Caller, now: Timestamp) -> String {
        let id = new_id();
        let mut open = self.lock();
        open.retain(|_, session| session.is_valid(now));
        if open.len() >= SESSIONS_MAX {
            let oldest = open.iter().min_by_key(|(_, session)| session.used_at).map(|(id, _)| id.clone());
            oldest.and_then(|id| open.remove(&id));
        }
        open.insert(id.clone(), Session { caller, began_at: now, used_at: now });
        id
    }

    /// Who a session belongs to. It stays open for as long as it is used, up to a limit.
    pub(crate) fn caller(&self, id: &str, now: Timestamp) -> Option<Caller> {
        let mut open = self.lock();
        let session = open.get_mut(id).filter(|session| session.is_valid(now))?;
        session.used_at = session.used_at.max(now);
        Some(session.caller)
    }

    pub(crate) fn end(&self, id: &str) {
        self.lock().remove(id);
    }

    /// The token that the forms of this session carry. Another site, or another port of this machine, can have a cookie
    /// sent or even set, but can't make this.
    pub(crate) fn form_token(&self, id: &str) -> String {
        URL_SAFE_NO_PAD.encode(hmac::sign(&self.key, id.as_bytes()))
    }

    /// Whether a form of this session carries the right token.
    pub(crate) fn is_form_token(&self, id: &str, token: &str) -> bool {
        let token = URL_SAFE_NO_PAD.decode(token).unwrap_or_default();
        hmac::verify(&self.key, id.as_bytes(), &token).is_ok()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Session>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Session {
    fn is_valid(&self, now: Timestamp) -> bool {
        now.since(self.used_at) < IDLE_MAX && now.since(self.began_at) < LENGTH_MAX
    }
}

/// A random text that nobody can guess.
pub(crate) fn new_id() -> String {
    URL_SAFE_NO_PAD.encode(random())
}

/// The name of the cookie. Cookies ignore ports, so the name has the port: services on one machine don't end each other's
/// sessions.
pub(crate) fn cookie_name(port: u16) -> String {
    format!("comity_{port}")
}

/// The value of a cookie of a request, if it is one that [`new_id`] could have made.
pub(crate) fn cookie(headers: &HeaderMap, name: &str) -> Option<String> {
    let lines = headers.get_all(COOKIE).iter().filter_map(|line| line.to_str().ok());
    let mut pairs = lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    let (_, value) = pairs.find(|(key, _)| *key == name)?;
    let is_id = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    (value.len() == ID_LENGTH && value.bytes().all(is_id)).then(|| value.to_owned())
}

/// The header that sets the cookie. It is sent along only by pages of this service, and no script can read it.
pub(crate) fn set_cookie(name: &str, id: &str, is_encrypted: bool) -> String {
    let secure = if is_encrypted { "; Secure" } else { "" };
    format!("{name}={id}; Path=/; HttpOnly; SameSite=Strict{secure}")
}

/// A session that nobody used for this long has ended.
const IDLE_MAX: Span = Span::from_secs(2 * 3_600);
/// No session is longer than this.
const LENGTH_MAX: Span = Span::from_secs(12 * 3_600);
const SESSIONS_MAX: usize = 1_000;
/// 32 bytes in base64.
const ID_LENGTH: usize = 43;

#[cfg(test)]
mod tests {
    use comity::config::Role;

    use super::*;

    const CALLER: Caller = Caller { role: Role::View, id: 7 };
    const NOW: Timestamp = Timestamp::from_secs(1_000_000);

    #[test]
    fn a_session_ends_when_it_is_idle_or_old() {
        let sessions = Sessions::new();
        let id = sessions.begin(CALLER, NOW);
        assert_eq!(sessions.caller(&id, NOW), Some(CALLER));
        assert_eq!(sessions.caller(&id, NOW + IDLE_MAX), None);

        let (id, mut now) = (sessions.begin(CALLER, NOW), NOW);
        while now + Span::from_secs(3_600) < NOW + LENGTH_MAX {
            now = now + Span::from_secs(3_600);
            assert_eq!(sessions.caller(&id, now), Some(CALLER));
        }
        assert_eq!(sessions.caller(&id, NOW + LENGTH_MAX), None);
        sessions.end(&id);
        assert_eq!(sessions.caller(&id, NOW), None);
    }

    #[test]
    fn old_sessions_give_way_to_new_ones() {
        let sessions = Sessions::new();
        let first = sessions.begin(CALLER, NOW);
        let later = NOW + Span::from_secs(1);
        let ids: Vec<String> = (0..SESSIONS_MAX).map(|_| sessions.begin(CALLER, later)).collect();
        assert_eq!(sessions.caller(&first, later), None);
        assert!(ids.iter().all(|id| sessions.caller(id, later).is_some()));
    }

    #[test]
    fn the_token_of_a_form_belongs_to_one_session() {
        let (sessions, others) = (Sessions::new(), Sessions::new());
        let (id, other) = (new_id(), new_id());
        let token = sessions.form_token(&id);
        assert!(sessions.is_form_token(&id, &token));
        assert!(!sessions.is_form_token(&other, &token) && !others.is_form_token(&id, &token));
        assert!(!sessions.is_form_token(&id, "") && !sessions.is_form_token(&id, &id));
    }

    #[test]
    fn only_cookies_of_this_service_count() {
        let headers = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(COOKIE, value.parse().unwrap());
            headers
        };
        let (id, name) = (new_id(), cookie_name(7878));
        assert_eq!(cookie(&headers(&format!("a=b; {name}={id}; c")), &name), Some(id.clone()));
        for wrong in [format!("comity_78={id}"), format!("{name}="), format!("{name}={id}x"), String::new()] {
            assert_eq!(cookie(&headers(&wrong), &name), None, "{wrong}");
        }
        assert!(set_cookie(&name, &id, false).ends_with("; Path=/; HttpOnly; SameSite=Strict"));
        assert!(set_cookie(&name, &id, true).ends_with("; Secure"));
    }
}
