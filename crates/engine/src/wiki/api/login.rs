//! Logs in with a bot password, and again when the session is lost.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use http::header::{COOKIE, SET_COOKIE};
use http::{HeaderMap, HeaderName, HeaderValue};

use super::{Api, Fields};
use crate::lock;
use crate::wiki::error::WikiError;
use crate::wiki::responses::{QueryResponse, Tokens};

/// An account of a wiki, with a password from `Special:BotPasswords`.
#[derive(Clone)]
pub struct Login {
    /// The name, such as `Somebody@archive`.
    pub user: String,
    /// The password.
    pub password: String,
}

impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Login").field("user", &self.user).finish_non_exhaustive()
    }
}

/// A session with a wiki.
#[derive(Default)]
pub(super) struct Session {
    is_logged_in: AtomicBool,
    cookies: Mutex<BTreeMap<String, String>>,
    /// Held while logging in, so that others wait for it.
    login_lock: tokio::sync::Mutex<()>,
}

impl Session {
    /// The cookie header of the session.
    pub(super) fn cookies(&self) -> Vec<(HeaderName, HeaderValue)> {
        let cookies = lock(&self.cookies);
        let pairs: Vec<String> = cookies.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let mut value = HeaderValue::try_from(pairs.join("; ")).ok().filter(|value| !value.is_empty());
        if let Some(value) = &mut value {
            value.set_sensitive(true);
        }
        value.map(|value| (COOKIE, value)).into_iter().collect()
    }

    /// Takes the cookies that a response sets. They are sent to this one URL only, so their attributes don't matter.
    pub(super) fn take_cookies(&self, headers: &HeaderMap) {
        let mut cookies = lock(&self.cookies);
        for header in headers.get_all(SET_COOKIE) {
            let pair = header.to_str().ok().and_then(|text| text.split(';').next()?.trim().split_once('='));
            match pair {
                // PHP deletes a cookie this way.
                Some((name, "deleted")) => drop(cookies.remove(name)),
                Some((name, value)) if cookies.len() < COOKIES_MAX || cookies.contains_key(name) => {
                    cookies.insert(name.to_owned(), value.to_owned());
                }
                _ => {}
            }
        }
    }
}

impl Api {
    /// Logs in, if there is an account and it is not logged in yet.
    pub(super) async fn ensure_logged_in(&self) -> Result<(), WikiError> {
        let Some(login) = &self.options.login else { return Ok(()) };
        let _guard = self.session.login_lock.lock().await;
        if self.session.is_logged_in.load(Ordering::Relaxed) {
            return Ok(());
        }
        let mut fields = Fields::bare("query");
        fields.extend([("meta", "tokens"), ("type", "login")]);
        let tokens: QueryResponse<Tokens> = self.exchange(&fields.into_request(&self.url)).await?;
        let mut fields = Fields::bare("login");
        let token = tokens.query.tokens.logintoken;
        fields.extend([("lgname", &*login.user), ("lgpassword", &*login.password), ("lgtoken", &*token)]);
        let response: QueryResponse<serde_json::Value> = self.exchange(&fields.into_post(&self.url)).await?;
        let result = response.login.unwrap_or_default();
        if result["result"] != "Success" {
            let why = result["reason"].as_str().or(result["result"].as_str()).unwrap_or("no reason given");
            return Err(WikiError::Login { user: login.user.clone(), why: why.to_owned() });
        }
        self.session.is_logged_in.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Whether an error code means that the session was lost.
    pub(super) fn lost_session(&self, code: &str) -> bool {
        let is_lost = matches!(code, "assertuserfailed" | "assertbotfailed" | "assertnameduserfailed");
        is_lost && self.session.is_logged_in.swap(false, Ordering::Relaxed)
    }
}

/// Wikis only set a few cookies.
const COOKIES_MAX: usize = 50;
