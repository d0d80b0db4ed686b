//! A paced client for the API of a wiki. Every attempt waits for its turn, and its outcome is recorded, including
//! errors in the body of a response with status 200.
//!
//! - this file: [`Api`], which builds requests and retries them
//! - `judge`: what a response means
//! - `login`: logging in
//!
//! robots.txt is not consulted, because an API is made for programs. The pace is that of the gate.

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
use comity_core::retry::{self, RetriesUsed};
use comity_core::task::TaskStep;
use comity_core::time::Span;
use comity_store::tasks::Lead;
use http::{HeaderName, HeaderValue};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::watch;
use url::{Host, Url, form_urlencoded};

use super::error::{Code, WikiError};
use super::loop_detector::{ListResponse, LoopDetector};
use super::responses::{Continuation, QueryResponse};
use crate::attempt::{Outgoing, Received, Unsent, attempt};
use crate::client::{self, SetupError};
use crate::config::{Config, Sources, environment};
use crate::gate::{Gate, Permit};
use crate::limiter::RateLimiter;
use crate::redact;
use crate::request::Trust;
use crate::transport::{Request, Transport};

use judge::ResponseSink;
pub use login::Login;
use login::Session;

/// The API of one wiki.
///
/// ```no_run
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// use comity::wiki::Api;
///
/// let api = Api::new("https://wiki.example/w/api.php")?; // one request per second
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
    /// Whether it has ever sent a response of an API.
    is_api: AtomicBool,
    warned: Mutex<BTreeSet<String>>,
    session: Session,
}

/// The options of an API client.
#[derive(Debug, Clone)]
pub struct Options {
    /// The maximum lag of the wiki's databases in seconds; `None` for no limit.
    pub maxlag: Option<u32>,
    /// The user that the API must recognize us as.
    pub assert: Option<Assert>,
    /// The account to log in with; anonymous by default. Some accounts get larger batches.
    pub login: Option<Login>,
    /// Maximum retries per request.
    pub retries_max: u32,
    /// Stops waiting when this becomes true.
    pub stop: Option<watch::Receiver<bool>>,
}

/// The kind of user that the API must recognize us as; otherwise it returns an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Assert {
    /// An anonymous user.
    Anon,
    /// A user with an account.
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
    /// The value of the parameter `assert`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Anon => "anon",
            Self::User => "user",
            Self::Bot => "bot",
        }
    }
}

impl Api {
    /// The API at the URL `address`, with one request per second.
    pub fn new(address: &str) -> Result<Self, WikiError> {
        Self::with_limiter(address, &RateLimiter::default(), Options::default())
    }

    /// The same at the pace of `limiter`, which can be shared: if one is told to wait, all wait.
    pub fn with_limiter(address: &str, limiter: &RateLimiter, options: Options) -> Result<Self, WikiError> {
        let config = Config::load(Sources { env: environment(), ..Sources::default() });
        let config = config.map_err(SetupError::from)?;
        let transport = client::transport(&config)?;
        let (gate, host) = limiter.gate_and_host();
        let url = parse(address)?;
        check_contact(&url, &config)?;
        check_login(&url, &options)?;
        Ok(Self::on(url, host.clone(), gate.clone(), transport, options))
    }

    /// The same at the pace that `gate` has for its host.
    pub fn with_gate(
        address: &str,
        config: &Config,
        gate: Gate,
        transport: Transport,
        options: Options,
    ) -> Result<Self, WikiError> {
        let url = parse(address)?;
        check_contact(&url, config)?;
        check_login(&url, &options)?;
        let host = Domain::of(&url).ok_or_else(|| WikiError::InvalidUrl(redact::text(address)))?;
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
            is_api: AtomicBool::new(false),
            warned: Mutex::default(),
            session: Session::default(),
        }
    }

    /// Its URL, without secrets.
    pub fn address(&self) -> String {
        redact::url(&self.url)
    }

    pub(super) fn url(&self) -> &Url {
        &self.url
    }

    pub(super) fn options(&self) -> &Options {
        &self.options
    }

    /// The host whose pace its requests use.
    pub fn host(&self) -> &Domain {
        &self.host
    }

    /// The gate that its requests pass.
    pub fn gate(&self) -> &Gate {
        &self.gate
    }

    /// The current time between requests.
    pub fn spacing(&self) -> Span {
        let rule = self.gate.rules().rule(&self.host);
        let known = self.gate.domain_status(&self.gate.rules().domain(&self.host)).map(|live| live.spacing);
        let spacing = known.unwrap_or_else(|| Terms { rule, crawl_delay: Span::ZERO }.baseline());
        spacing.max(rule.intent(Intent::Api).min_delay)
    }

    /// Requests sent so far.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// How often it rate limited us.
    pub fn rate_limited(&self) -> u64 {
        self.rate_limited.load(Ordering::Relaxed)
    }

    /// Sends a query (`action=query`). Returns the result, and the parameters that continue it if there is more.
    pub async fn query(
        &self,
        params: &[(&str, &str)],
        rest: Option<&Continuation>,
    ) -> Result<(Value, Option<Continuation>), WikiError> {
        let response = self.ask::<Value>(params, rest).await?;
        Ok((response.query, response.rest))
    }

    /// The same, read as `T`.
    pub(super) async fn ask<T: DeserializeOwned + Default + Send>(
        &self,
        params: &[(&str, &str)],
        rest: Option<&Continuation>,
    ) -> Result<QueryResponse<T>, WikiError> {
        let mut fields = Fields::of(&self.options);
        fields.extend(params.iter().copied());
        fields.extend(rest.into_iter().flatten().map(|(name, value)| (&**name, &**value)));
        let request = fields.into_request(&self.url);
        self.ensure_logged_in().await?;
        let response: QueryResponse<T> = match self.exchange(&request).await {
            // Sessions expire.
            Err(WikiError::Refused { code: Code::Denied(code), .. }) if self.lost_session(&code) => {
                self.ensure_logged_in().await?;
                self.exchange(&request).await?
            }
            response => response?,
        };
        if rest.is_some() && response.rest.as_ref() == rest {
            return Err(self.endless(params, "its continuation never advances"));
        }
        Ok(response)
    }

    /// The next response of a list that is followed to its end; an error if the list never ends.
    pub(super) async fn follow<T: DeserializeOwned + Default + ListResponse + Send>(
        &self,
        params: &[(&str, &str)],
        rest: Option<&Continuation>,
        loop_detector: &mut LoopDetector,
    ) -> Result<QueryResponse<T>, WikiError> {
        if rest.is_none() {
            *loop_detector = LoopDetector::default();
        }
        let response = self.ask::<T>(params, rest).await?;
        let followed = loop_detector.follow(response.rest.as_ref(), response.query.entries_hash());
        followed.map_err(|why| self.endless(params, why))?;
        Ok(response)
    }

    fn endless(&self, params: &[(&str, &str)], why: &'static str) -> WikiError {
        let named = |what: &str| params.iter().find(|(name, _)| *name == what);
        let list = ["list", "generator", "prop"].into_iter().find_map(named);
        let list = list.map_or_else(|| "query".to_owned(), |(name, value)| format!("{name}={value}"));
        WikiError::Endless { api: self.address(), list, why }
    }

    /// Sends a request until there is a response, or retrying does not help.
    async fn exchange<T: DeserializeOwned + Default + Send>(
        &self,
        api_request: &ApiRequest,
    ) -> Result<QueryResponse<T>, WikiError> {
        let began = self.gate.clock().now();
        let is_paced = self.gate.rules().rule(&self.host).enabled();
        let mut spent = RetriesUsed::default();
        loop {
            let mut permit = self.turn().await?;
            let cookies = self.session.cookies();
            let mut sink = ResponseSink::<T>::new(self, &api_request.url);
            let request = api_request.request(&cookies);
            let (trust, recording) = (Trust::Listed, None);
            let out = Outgoing { transport: &self.transport, request, trust, recording };
            let ended = match attempt(out, &mut permit, (), &mut sink).await {
                Ok(ended) => ended,
                Err(Unsent::Withheld) => continue,
                // Nothing was sent to the wiki.
                Err(Unsent::Never(cause)) => {
                    return Err(WikiError::Transport { api: self.address(), cause });
                }
            };
            self.requests.fetch_add(1, Ordering::Relaxed);
            if ended.outcome == Outcome::RateLimited {
                self.rate_limited.fetch_add(1, Ordering::Relaxed);
            }
            let is_final = matches!(&ended.received, Received::Failed(cause) if cause.is_final());
            let error = match (ended.received, sink.result) {
                (Received::Failed(cause), _) => WikiError::Transport { api: self.address(), cause },
                (Received::Response(_), Some(Ok(response))) => return Ok(response),
                (Received::Response(_), Some(Err(error))) => error,
                // Cannot happen, because every response is judged.
                (Received::Response(_), None) => continue,
            };
            let is_api = self.is_api.load(Ordering::Relaxed);
            let retries_max = self.options.retries_max.min(if is_api { u32::MAX } else { FIRST_RETRIES_MAX });
            let verdict = retry::judge(ended.outcome, ended.freshness, spent, retries_max);
            // If it never was an API, it won't become one.
            let is_not_api = matches!(error, WikiError::NotJson { .. }) && !is_api;
            if verdict.step != TaskStep::Retry || is_not_api || is_final {
                return Err(error);
            }
            // If the server states when to retry, that doesn't use up a retry, unless it takes days. Without pacing,
            // the stated time is not waited for, so it does.
            let is_free =
                sink.has_deadline && is_paced && self.gate.clock().now().since(began) <= FREE_RETRIES_MAX;
            if !is_free {
                spent = verdict.used;
            }
            tracing::warn!(%error, retries = spent.retries, "request to the wiki failed; will retry when its pace allows");
            if !is_paced {
                self.gate.clock().sleep_until(self.gate.clock().now() + UNPACED_DELAY).await;
            }
        }
    }

    /// Waits for the next turn.
    async fn turn(&self) -> Result<Permit, WikiError> {
        let acquiring = self.gate.acquire(&self.host, Intent::Api);
        let Some(mut stop) = self.options.stop.clone() else { return Ok(acquiring.await?) };
        // If the sender is gone, the request can't be stopped any more.
        let stopped = async { stop.wait_for(|stop| *stop).await.is_ok() };
        tokio::select! {
            biased;
            true = stopped => Err(WikiError::Stopped),
            permit = acquiring => Ok(permit?),
        }
    }
}

/// A request, which may be sent several times.
struct ApiRequest {
    url: Url,
    /// The body of a POST.
    form: Option<Bytes>,
}

impl ApiRequest {
    fn request<'a>(&'a self, cookies: &'a [(HeaderName, HeaderValue)]) -> Request<'a> {
        let (accept, posted) = (Some(&JSON), self.form.as_ref());
        Request { accept, headers: cookies, posted, ..Request::new(&self.url, Lead::Listed) }
    }
}

/// The fields of a request, encoded.
struct Fields(String);

impl Fields {
    /// The fields of a query.
    fn of(options: &Options) -> Self {
        let mut fields = Self::bare("query");
        fields.extend([("curtimestamp", "1")]);
        if let Some(maxlag) = options.maxlag {
            fields.extend([("maxlag", &*maxlag.to_string())]);
        }
        let default = options.login.as_ref().map(|_| Assert::User);
        fields.extend(options.assert.or(default).map(|assert| ("assert", assert.as_str())));
        fields
    }

    /// The fields of any action.
    fn bare(action: &str) -> Self {
        let mut fields = Self(String::new());
        fields.extend([("action", action), ("format", "json"), ("formatversion", "2")]);
        fields
    }

    fn extend<'a>(&mut self, pairs: impl IntoIterator<Item = (&'a str, &'a str)>) {
        let mut encoded = form_urlencoded::Serializer::new(std::mem::take(&mut self.0));
        self.0 = encoded.extend_pairs(pairs).finish();
    }

    /// A GET request, or a POST request if the URL would be too long for servers.
    fn into_request(self, api: &Url) -> ApiRequest {
        if self.0.len() > QUERY_MAX {
            return self.into_post(api);
        }
        let mut url = api.clone();
        url.set_query(Some(&self.0));
        ApiRequest { url, form: None }
    }

    fn into_post(self, api: &Url) -> ApiRequest {
        ApiRequest { url: api.clone(), form: Some(self.0.into()) }
    }
}

/// The URL of an API without secrets, which identifies its archive.
pub fn address(text: &str) -> Result<String, WikiError> {
    Ok(redact::url(&parse(text)?))
}

/// Parses the URL of an API.
fn parse(address: &str) -> Result<Url, WikiError> {
    let invalid = || WikiError::InvalidUrl(redact::text(address));
    let mut url = Url::parse(address).map_err(|_| invalid())?;
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        return Err(invalid());
    }
    // It may have been copied from a browser.
    url.set_query(None);
    url.set_fragment(None);
    Ok(url)
}

/// Checks that there is a contact, except for a wiki on this machine.
fn check_contact(url: &Url, config: &Config) -> Result<(), WikiError> {
    if is_loopback(url) || config.http.contact.is_some() { Ok(()) } else { Err(WikiError::NoContact) }
}

/// Checks that a password is not sent without encryption.
fn check_login(url: &Url, options: &Options) -> Result<(), WikiError> {
    let is_safe = options.login.is_none() || url.scheme() == "https" || is_loopback(url);
    if is_safe { Ok(()) } else { Err(WikiError::InsecureLogin(redact::url(url))) }
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
/// The delay between attempts if pacing is disabled.
const UNPACED_DELAY: Span = Span::from_secs(1);
/// The value that MediaWiki recommends.
const MAXLAG: u32 = 5;
/// Enough for about an hour of failures at the pace of an archiver.
const RETRIES_MAX: u32 = 20;
/// For how long retries at a time stated by the server don't count.
const FREE_RETRIES_MAX: Span = Span::from_hours(24);
/// Maximum retries before the first valid response, because it may not be an API at all.
const FIRST_RETRIES_MAX: u32 = 3;
/// Some servers reject longer URLs.
const QUERY_MAX: usize = 2_000;
