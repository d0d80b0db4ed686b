//! A wiki's API, asked politely: every attempt waits for its turn, and what it came to is told to the pace, also when it
//! stands in the body of an answer that looks like a success (B67).
//!
//! - here: [`Api`], and how a request is written and repeated
//! - `judge`: what an answer means
//! - `login`: who asks
//!
//! robots.txt is not asked: an API is made for programs. Its pace is what the gate says.

mod judge;
mod login;

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use comity_core::domain::Domain;
use comity_core::intent::Intent;
use comity_core::outcome::Outcome;
use comity_core::pace::Terms;
use comity_core::retry::{self, Spent};
use comity_core::task::TaskStep;
use comity_core::time::Span;
use comity_store::tasks::Lead;
use http::{HeaderName, HeaderValue};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::watch;
use url::{Host, Url, form_urlencoded};

use super::answers::{Answered, Rest};
use super::error::{Code, WikiError};
use super::trail::{Listed, Trail};
use crate::attempt::{Came, Out, Unsent, attempt};
use crate::client::{self, SetupError};
use crate::config::{Config, Sources, environment};
use crate::gate::{Gate, Permit};
use crate::limiter::RateLimiter;
use crate::request::Trust;
use crate::shown;
use crate::transport::{Request, Transport};

use judge::Taken;
pub use login::Login;
use login::Session;

/// The API of one wiki.
///
/// ```no_run
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// use comity::wiki::Api;
///
/// let api = Api::new("https://wiki.example/w/api.php")?; // one request a second
/// let (query, rest) = api.query(&[("meta", "siteinfo")], None).await?;
/// println!("{} of {rest:?}", query["general"]["sitename"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Api {
    url: Url,
    host: Domain,
    gate: Gate,
    transport: Transport,
    options: Options,
    requests: AtomicU64,
    rate_limited: AtomicU64,
    /// Whether it ever answered as an API does.
    is_one: AtomicBool,
    warned: Mutex<BTreeSet<String>>,
    session: Session,
}

/// How an API is asked.
#[derive(Debug, Clone)]
pub struct Options {
    /// The most seconds its databases may lag behind; `None` asks however far they do.
    pub maxlag: Option<u32>,
    /// Whom it must take us for.
    pub assert: Option<Assert>,
    /// Who asks; nobody in particular without it. Whoever is known may get more at once.
    pub login: Option<Login>,
    /// How often a failure is tried again.
    pub retries_max: u32,
    /// Gives up waiting when this becomes true.
    pub stop: Option<watch::Receiver<bool>>,
}

/// Whom an API must take us for; it refuses otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Assert {
    /// Nobody in particular.
    Anon,
    /// Somebody with an account.
    User,
    /// A bot.
    Bot,
}

impl Default for Options {
    fn default() -> Self {
        Self { maxlag: Some(MAXLAG), assert: None, login: None, retries_max: RETRIES_MAX, stop: None }
    }
}

impl Assert {
    /// The word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Anon => "anon",
            Self::User => "user",
            Self::Bot => "bot",
        }
    }
}

impl Api {
    /// The API at `address`, asked once a second (B68).
    pub fn new(address: &str) -> Result<Self, WikiError> {
        Self::with_limiter(address, &RateLimiter::default(), Options::default())
    }

    /// The same at the pace of `limiter`, which others may share: what one is told to wait, all wait.
    pub fn with_limiter(address: &str, limiter: &RateLimiter, options: Options) -> Result<Self, WikiError> {
        let config = Config::load(Sources { env: environment(), ..Sources::default() });
        let config = config.map_err(SetupError::from)?;
        let transport = client::transport(&config)?;
        let (gate, host) = limiter.line();
        let url = parse(address)?;
        must_have_contact(&url, &config)?;
        may_log_in(&url, &options)?;
        Ok(Self::on(url, host.clone(), gate.clone(), transport, options))
    }

    /// The same at the pace that `gate` keeps for its host.
    pub fn over(
        address: &str,
        config: &Config,
        gate: Gate,
        transport: Transport,
        options: Options,
    ) -> Result<Self, WikiError> {
        let url = parse(address)?;
        must_have_contact(&url, config)?;
        may_log_in(&url, &options)?;
        let host = Domain::of(&url).ok_or_else(|| WikiError::Address(shown::text(address)))?;
        Ok(Self::on(url, host, gate, transport, options))
    }

    fn on(url: Url, host: Domain, gate: Gate, transport: Transport, options: Options) -> Self {
        Self {
            url,
            host,
            gate,
            transport,
            options,
            requests: AtomicU64::new(0),
            rate_limited: AtomicU64::new(0),
            is_one: AtomicBool::new(false),
            warned: Mutex::default(),
            session: Session::default(),
        }
    }

    /// Its address, without secrets.
    pub fn address(&self) -> String {
        shown::url(&self.url)
    }

    pub(super) fn url(&self) -> &Url {
        &self.url
    }

    pub(super) fn options(&self) -> &Options {
        &self.options
    }

    /// Whose pace its requests keep.
    pub fn host(&self) -> &Domain {
        &self.host
    }

    /// The gate its requests pass.
    pub fn gate(&self) -> &Gate {
        &self.gate
    }

    /// The time between requests, as far as is known.
    pub fn spacing(&self) -> Span {
        let rule = self.gate.rules().rule(&self.host);
        let known = self.gate.look(&self.gate.rules().domain(&self.host)).map(|live| live.spacing);
        let spacing = known.unwrap_or_else(|| Terms { rule, crawl_delay: Span::ZERO }.baseline());
        spacing.max(rule.intent(Intent::Api).min_delay)
    }

    /// Requests sent so far.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// How often it said that this is too much.
    pub fn rate_limited(&self) -> u64 {
        self.rate_limited.load(Ordering::Relaxed)
    }

    /// Asks `action=query`. Beside the answer comes what to send along for the rest of it, if there is more.
    pub async fn query(
        &self,
        params: &[(&str, &str)],
        rest: Option<&Rest>,
    ) -> Result<(Value, Option<Rest>), WikiError> {
        let answered = self.ask::<Value>(params, rest).await?;
        Ok((answered.query, answered.rest))
    }

    /// The same, read as `T`.
    pub(super) async fn ask<T: DeserializeOwned + Default + Send>(
        &self,
        params: &[(&str, &str)],
        rest: Option<&Rest>,
    ) -> Result<Answered<T>, WikiError> {
        let mut fields = Fields::of(&self.options);
        fields.extend(params.iter().copied());
        fields.extend(rest.into_iter().flatten().map(|(name, value)| (&**name, &**value)));
        let asked = fields.asked(&self.url);
        self.be_logged_in().await?;
        let answered: Answered<T> = match self.exchange(&asked).await {
            // A session does not last for ever.
            Err(WikiError::Refused { code: Code::Denied(code), .. }) if self.lost_session(&code) => {
                self.be_logged_in().await?;
                self.exchange(&asked).await?
            }
            answered => answered?,
        };
        if rest.is_some() && answered.rest.as_ref() == rest {
            return Err(self.endless(params, "it continues where it was asked to continue"));
        }
        Ok(answered)
    }

    /// The next answer of a list that is followed to its end; an error when that would never come.
    pub(super) async fn follow<T: DeserializeOwned + Default + Listed + Send>(
        &self,
        params: &[(&str, &str)],
        rest: Option<&Rest>,
        trail: &mut Trail,
    ) -> Result<Answered<T>, WikiError> {
        if rest.is_none() {
            *trail = Trail::default();
        }
        let answered = self.ask::<T>(params, rest).await?;
        let followed = trail.follow(answered.rest.as_ref(), answered.query.found());
        followed.map_err(|why| self.endless(params, why))?;
        Ok(answered)
    }

    fn endless(&self, params: &[(&str, &str)], why: &'static str) -> WikiError {
        let named = |what: &str| params.iter().find(|(name, _)| *name == what);
        let list = ["list", "generator", "prop"].into_iter().find_map(named);
        let list = list.map_or_else(|| "query".to_owned(), |(name, value)| format!("{name}={value}"));
        WikiError::Endless { api: self.address(), list, why }
    }

    /// Asks until there is an answer, or asking again does not help.
    async fn exchange<T: DeserializeOwned + Default + Send>(
        &self,
        asked: &Asked,
    ) -> Result<Answered<T>, WikiError> {
        let began = self.gate.clock().now();
        let is_paced = self.gate.rules().rule(&self.host).enabled();
        let mut spent = Spent::default();
        loop {
            let mut permit = self.turn().await?;
            let cookies = self.session.cookies();
            let mut taken = Taken::<T>::new(self, &asked.url);
            let request = asked.request(&cookies);
            let (trust, recording) = (Trust::Listed, None);
            let out = Out { transport: &self.transport, request, trust, recording };
            let ended = match attempt(out, &mut permit, (), &mut taken).await {
                Ok(ended) => ended,
                Err(Unsent::Withheld) => continue,
                // Nothing was asked of the wiki.
                Err(Unsent::Never(cause)) => {
                    return Err(WikiError::Transport { api: self.address(), cause });
                }
            };
            self.requests.fetch_add(1, Ordering::Relaxed);
            if ended.outcome == Outcome::RateLimited {
                self.rate_limited.fetch_add(1, Ordering::Relaxed);
            }
            let is_final = matches!(&ended.came, Came::Broken(cause) if cause.is_final());
            let error = match (ended.came, taken.result) {
                (Came::Broken(cause), _) => WikiError::Transport { api: self.address(), cause },
                (Came::Answer(_), Some(Ok(answered))) => return Ok(answered),
                (Came::Answer(_), Some(Err(error))) => error,
                // Whatever comes is judged.
                (Came::Answer(_), None) => continue,
            };
            let is_one = self.is_one.load(Ordering::Relaxed);
            let retries_max = self.options.retries_max.min(if is_one { u32::MAX } else { FIRST_RETRIES_MAX });
            let verdict = retry::judge(ended.outcome, ended.standing, spent, retries_max);
            // What never was an API does not become one.
            let is_none = matches!(error, WikiError::NotJson { .. }) && !is_one;
            if verdict.step != TaskStep::Retry || is_none || is_final {
                return Err(error);
            }
            // Who is told when to come back does; that is no failure, unless it is told so for days. Without a pace nobody
            // waits for what it is told.
            let is_told = taken.is_told && is_paced && self.gate.clock().now().since(began) <= TOLD_MAX;
            if !is_told {
                spent = verdict.spent;
            }
            tracing::warn!(%error, retries = spent.retries, "the wiki is asked again when its pace allows");
            if !is_paced {
                self.gate.clock().sleep_until(self.gate.clock().now() + UNPACED).await;
            }
        }
    }

    /// Waits for the next turn.
    async fn turn(&self) -> Result<Permit, WikiError> {
        let acquiring = self.gate.acquire(&self.host, Intent::Api);
        let Some(mut stop) = self.options.stop.clone() else { return Ok(acquiring.await?) };
        // Nobody may be there any more to stop it: then it is not.
        let stopped = async { stop.wait_for(|stop| *stop).await.is_ok() };
        tokio::select! {
            biased;
            true = stopped => Err(WikiError::Stopped),
            permit = acquiring => Ok(permit?),
        }
    }
}

/// A request as it is sent, however often.
struct Asked {
    url: Url,
    /// What is posted there.
    form: Option<Bytes>,
}

impl Asked {
    fn request<'a>(&'a self, cookies: &'a [(HeaderName, HeaderValue)]) -> Request<'a> {
        let (accept, posted) = (Some(&JSON), self.form.as_ref());
        Request { accept, headers: cookies, posted, ..Request::new(&self.url, Lead::Listed) }
    }
}

/// The fields of a request, encoded.
struct Fields(String);

impl Fields {
    /// Those of a query.
    fn of(options: &Options) -> Self {
        let mut fields = Self::bare("query");
        fields.extend([("curtimestamp", "1")]);
        if let Some(maxlag) = options.maxlag {
            fields.extend([("maxlag", &*maxlag.to_string())]);
        }
        let unless_said = options.login.as_ref().map(|_| Assert::User);
        fields.extend(options.assert.or(unless_said).map(|assert| ("assert", assert.as_str())));
        fields
    }

    /// Those of any action.
    fn bare(action: &str) -> Self {
        let mut fields = Self(String::new());
        fields.extend([("action", action), ("format", "json"), ("formatversion", "2")]);
        fields
    }

    fn extend<'a>(&mut self, pairs: impl IntoIterator<Item = (&'a str, &'a str)>) {
        let mut encoded = form_urlencoded::Serializer::new(std::mem::take(&mut self.0));
        self.0 = encoded.extend_pairs(pairs).finish();
    }

    /// In the address, unless that would get too long for servers.
    fn asked(self, api: &Url) -> Asked {
        if self.0.len() > ADDRESS_MAX {
            return self.posted(api);
        }
        let mut url = api.clone();
        url.set_query(Some(&self.0));
        Asked { url, form: None }
    }

    fn posted(self, api: &Url) -> Asked {
        Asked { url: api.clone(), form: Some(self.0.into()) }
    }
}

/// The address of an API as an archive of it is known by, without secrets.
pub fn address(text: &str) -> Result<String, WikiError> {
    Ok(shown::url(&parse(text)?))
}

/// The address of an API.
fn parse(address: &str) -> Result<Url, WikiError> {
    let wrong = || WikiError::Address(shown::text(address));
    let mut url = Url::parse(address).map_err(|_| wrong())?;
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        return Err(wrong());
    }
    // As it is copied from a browser.
    url.set_query(None);
    url.set_fragment(None);
    Ok(url)
}

/// A wiki on this machine has its operator at hand; others must know whom to write to.
fn must_have_contact(url: &Url, config: &Config) -> Result<(), WikiError> {
    if is_loopback(url) || config.http.contact.is_some() { Ok(()) } else { Err(WikiError::NoContact) }
}

/// A password is not sent where others can read it.
fn may_log_in(url: &Url, options: &Options) -> Result<(), WikiError> {
    let is_safe = options.login.is_none() || url.scheme() == "https" || is_loopback(url);
    if is_safe { Ok(()) } else { Err(WikiError::Eavesdropped(shown::url(url))) }
}

fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        Some(Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        None => false,
    }
}

static JSON: HeaderValue = HeaderValue::from_static("application/json");
/// Tries of one call are so far apart, also where no pace is kept.
const UNPACED: Span = Span::from_secs(1);
/// What MediaWiki recommends.
const MAXLAG: u32 = 5;
/// About an hour of a wiki that fails, at the pace of an archiver.
const RETRIES_MAX: u32 = 20;
/// A wiki that says all the time that it cannot be asked is given up after this.
const TOLD_MAX: Span = Span::from_hours(24);
/// What did not answer as an API yet is perhaps none.
const FIRST_RETRIES_MAX: u32 = 3;
/// Longer addresses are refused by some servers.
const ADDRESS_MAX: usize = 2_000;
