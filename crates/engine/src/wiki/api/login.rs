//! Who asks: a session that is begun with a bot password, and begun again when it is lost.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use http::header::{COOKIE, SET_COOKIE};
use http::{HeaderMap, HeaderName, HeaderValue};

use super::{Api, Fields};
use crate::lock;
use crate::wiki::answers::{Answered, Tokens};
use crate::wiki::error::WikiError;

/// An account of a wiki, with a password from its page `Special:BotPasswords`.
#[derive(Clone)]
pub struct Login {
    /// Such as `Somebody@archive`.
    pub user: String,
    /// Its password.
    pub password: String,
}

impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Login").field("user", &self.user).finish_non_exhaustive()
    }
}

/// What a wiki knows us by.
#[derive(Default)]
pub(super) struct Session {
    is_on: AtomicBool,
    cookies: Mutex<BTreeMap<String, String>>,
    /// One logs in, the others wait for it.
    beginning: tokio::sync::Mutex<()>,
}

impl Session {
    /// The header that says so.
    pub(super) fn cookies(&self) -> Vec<(HeaderName, HeaderValue)> {
        let cookies = lock(&self.cookies);
        let pairs: Vec<String> = cookies.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let mut value = HeaderValue::try_from(pairs.join("; ")).ok().filter(|value| !value.is_empty());
        if let Some(value) = &mut value {
            value.set_sensitive(true);
        }
        value.map(|value| (COOKIE, value)).into_iter().collect()
    }

    /// Takes what an answer sets. The cookies go to this one address only, so that where and how long they are meant
    /// for does not matter.
    pub(super) fn take_cookies(&self, headers: &HeaderMap) {
        let mut cookies = lock(&self.cookies);
        for header in headers.get_all(SET_COOKIE) {
            let pair = header.to_str().ok().and_then(|text| text.split(';').next()?.trim().split_once('='));
            match pair {
                // As PHP takes one back.
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
    /// Logs in, if somebody is to ask and that did not happen yet.
    pub(super) async fn be_logged_in(&self) -> Result<(), WikiError> {
        let Some(login) = &self.options.login else { return Ok(()) };
        let _beginning = self.session.beginning.lock().await;
        if self.session.is_on.load(Ordering::Relaxed) {
            return Ok(());
        }
        let mut fields = Fields::bare("query");
        fields.extend([("meta", "tokens"), ("type", "login")]);
        let tokens: Answered<Tokens> = self.exchange(&fields.asked(&self.url)).await?;
        let mut fields = Fields::bare("login");
        let token = tokens.query.tokens.logintoken;
        fields.extend([("lgname", &*login.user), ("lgpassword", &*login.password), ("lgtoken", &*token)]);
        let answered: Answered<serde_json::Value> = self.exchange(&fields.posted(&self.url)).await?;
        let said = answered.login.unwrap_or_default();
        if said["result"] != "Success" {
            let why = said["reason"].as_str().or(said["result"].as_str()).unwrap_or("it does not say why");
            return Err(WikiError::Login { user: login.user.clone(), why: why.to_owned() });
        }
        self.session.is_on.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Whether a refusal means that the wiki does not know us any more, although it did.
    pub(super) fn lost_session(&self, code: &str) -> bool {
        let is_lost = matches!(code, "assertuserfailed" | "assertbotfailed" | "assertnameduserfailed");
        is_lost && self.session.is_on.swap(false, Ordering::Relaxed)
    }
}

/// A wiki sets a handful.
const COOKIES_MAX: usize = 50;
