//! An HTTP client that is polite automatically: every hop waits for the domain it goes to.
//!
//! - here: [`Client`]
//! - `fetch_request`: the options of a request
//! - `robots_cache`: robots.txt files, fetched once and kept for a day
//!
//! The requests themselves are sent by `attempt`.

mod fetch_request;
mod robots_cache;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use comity_core::decision::Reason;
use comity_core::domain::Domain;
use comity_core::intent::Intent;
use comity_core::line::Owner;
use comity_core::outcome::Outcome;
use comity_core::retry::{self, RetriesUsed};
use comity_core::task::{JobId, TaskStep};
use comity_core::time::Span;
use comity_store::Store;
use comity_store::tasks::{Lead, RedirectBody};
use http::Method;
use url::Url;

use crate::attempt::{
    AttemptResult, Collect, OriginListed, Outgoing, Provenance, Received, Redirect, Unsent, Wanted, attempt,
    body_after_redirect, may_resend, next_hop, provenance,
};
use crate::clock::Clock;
use crate::config::{Config, ConfigError, HttpSettings, Sources, environment};
use crate::event::Events;
use crate::gate::{Gate, GateError, Permit};
use crate::redact;
use crate::request::{JobRequest, RequestError, Requests, Trust, header};
use crate::transport::{self, Proxies, ProxyError, Transport, TransportError};

pub use fetch_request::FetchRequest;
use robots_cache::GIVEN_UP_MAX;
pub use robots_cache::{KnownRobots, RobotsUnavailable, known_crawl_delay, known_robots, load_crawl_delay};
pub(crate) use robots_cache::{ROBOTS_RETRY, Requester, RobotsCache, cache_key};

/// A polite HTTP client. Clones share one gate, one connection pool and one cache of robots.txt files.
///
/// Every request waits for its turn on its domain, including redirects and robots.txt. Responses with 429, 403 or
/// 503, and failures, are retried when the domain allows it, up to the configured number of retries; there are no other
/// retries.
///
/// ```
/// # use std::io::{Read, Write};
/// # let site = std::net::TcpListener::bind("127.0.0.1:0")?;
/// # let address = site.local_addr()?;
/// # std::thread::spawn(move || {
/// #     for mut stream in site.incoming().flatten() {
/// #         let _ = stream.read(&mut [0; 1024]);
/// #         let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello";
/// #         let _ = stream.write_all(answer);
/// #     }
/// # });
/// # let url = format!("http://{address}/page");
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// let client = comity::client::Client::new()?;
/// let page = client.get(&url).await?; // fetches robots.txt, waits a second, and fetches the page
/// assert_eq!((page.status, &page.body[..]), (200, &b"hello"[..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Client {
    gate: Gate,
    transport: Transport,
    robots_cache: Option<Arc<RobotsCache>>,
    /// The job whose concurrency its requests count toward.
    job: Option<JobId>,
    redirects_max: u32,
    retries_max: u32,
}

/// A fetched page.
#[derive(Debug, Clone)]
pub struct Page {
    /// Its URL, after redirects.
    pub url: Url,
    /// The HTTP status.
    pub status: u16,
    /// The response headers.
    pub headers: http::HeaderMap,
    /// The decoded body.
    pub body: Bytes,
    /// The outcome.
    pub outcome: Outcome,
    /// The redirects that were followed.
    pub hops: Vec<Hop>,
}

/// A redirect that was followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hop {
    /// The status of the redirect.
    pub status: u16,
    /// Its target.
    pub to: Url,
}

/// Why there is no page.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Not an http or https URL with a host.
    #[error("url = {url:?}: expected an http or https URL with a host, such as \"https://example.org/page\"")]
    Url {
        /// The given text, without secrets.
        url: String,
    },
    /// The site's robots.txt forbids it.
    #[error("{url}: forbidden by robots.txt")]
    Robots {
        /// The requested URL.
        url: String,
    },
    /// The site's robots.txt could not be fetched, so everything is forbidden for now.
    #[error(transparent)]
    RobotsUnavailable(#[from] RobotsUnavailable),
    /// More redirects than allowed.
    #[error("{url}: redirected to itself, or more than {max} times")]
    Redirects {
        /// The URL that redirected last.
        url: String,
        /// The limit.
        max: u32,
    },
    /// The redirect target must not receive the request body.
    #[error("{url}: redirected to another host, which does not receive the request body")]
    Body {
        /// The redirect target.
        url: String,
    },
    /// A header that can't be set by the caller.
    #[error("header {name}: {why}")]
    Header {
        /// The name of the header.
        name: String,
        /// Why not.
        why: String,
    },
    /// The redirect target isn't a valid http or https URL.
    #[error("{url}: redirected to something that isn't a valid http or https URL")]
    BadRedirect {
        /// The URL that redirected.
        url: String,
    },
    /// The request failed.
    #[error("{url}: {cause}")]
    Transport {
        /// The requested URL.
        url: String,
        /// Why it failed.
        #[source]
        cause: TransportError,
    },
    /// The domain is held for longer than the caller wants to wait.
    #[error("{host}: {reason}")]
    Held {
        /// The host.
        host: Domain,
        /// Why it is held, and until when.
        reason: Reason,
    },
    /// The caller stopped waiting. Nothing was sent.
    #[error("stopped before anything was sent")]
    Stopped,
    /// The gate cannot grant permits.
    #[error(transparent)]
    Gate(#[from] GateError),
}

/// Why a client could not be created.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A proxy variable in the environment is invalid.
    #[error(transparent)]
    Proxy(#[from] ProxyError),
    /// Headers, cookies or credentials for requests could not be read.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The transport could not be set up.
    #[error(transparent)]
    Transport(#[from] TransportError),
}

impl Client {
    /// A client with default settings, overridden by environment variables.
    pub fn new() -> Result<Self, SetupError> {
        let config = Config::load(Sources { env: environment(), ..Sources::default() })?;
        let gate = Gate::new(config.rules().clone(), Clock::new(), Events::new());
        Self::with(&config, gate)
    }

    /// A client with this configuration on a gate that may be shared.
    pub fn with(config: &Config, gate: Gate) -> Result<Self, SetupError> {
        Ok(Self::with_transport(config, gate, transport(config)?, None))
    }

    /// A client that also shares its connections; robots.txt files are saved in the store, if there is one.
    pub fn with_transport(
        config: &Config,
        gate: Gate,
        transport: Transport,
        store: Option<Arc<dyn Store>>,
    ) -> Self {
        let robots_cache = RobotsCache::new(gate.clone(), transport.clone(), config, store, None);
        Self::with_robots_cache(config, gate, transport, robots_cache, None)
    }

    /// A client that also shares a cache of robots.txt files, and whose requests count toward the concurrency of a job.
    pub(crate) fn with_robots_cache(
        config: &Config,
        gate: Gate,
        transport: Transport,
        robots_cache: Option<Arc<RobotsCache>>,
        job: Option<JobId>,
    ) -> Self {
        let (redirects_max, retries_max) = (config.http.redirects_max, config.job.max_retries);
        Self { gate, transport, robots_cache, job, redirects_max, retries_max }
    }

    /// The configured maximum number of retries.
    pub fn retries_max(&self) -> u32 {
        self.retries_max
    }

    /// The gate.
    pub fn gate(&self) -> &Gate {
        &self.gate
    }

    /// Fetches a page politely. A response that isn't a success is returned as well: see [`Page::outcome`].
    pub async fn get(&self, url: &str) -> Result<Page, ClientError> {
        let url = Url::parse(url).map_err(|_| ClientError::Url { url: redact::text(url) })?;
        self.fetch(&FetchRequest { retries_max: self.retries_max, ..FetchRequest::new(url, Lead::Listed) })
            .await
    }

    /// Fetches a page with options.
    pub async fn fetch(&self, request: &FetchRequest) -> Result<Page, ClientError> {
        let (mut url, mut spent, mut given_up) = (request.url.clone(), RetriesUsed::default(), 0);
        let mut on = match request.lead {
            Lead::Listed => Provenance { lead: Lead::Listed, trust: Trust::Listed },
            Lead::Remote => Provenance { lead: Lead::Remote, trust: Trust::Remote },
        };
        for (name, _) in &request.headers {
            let wrong = |why| ClientError::Header { name: name.to_string(), why };
            header::name(name.as_str()).map_err(wrong)?;
        }
        // Whether the current URL receives the request's own headers (`own`), and its method and body (`sends`).
        let (mut own, mut sends) = (true, true);
        let mut hops: Vec<Hop> = Vec::new();
        loop {
            let host =
                Domain::of(&url).ok_or_else(|| ClientError::Url { url: redact::text(url.as_str()) })?;
            // Without the credentials of the site nothing is requested, not even robots.txt.
            if let Err(cause) = self.transport.requests().check(&url, on.trust) {
                return Err(ClientError::Transport { url: redact::url(&url), cause });
            }
            if let Some(robots_cache) = &self.robots_cache {
                // A failing robots.txt is retried with backoff, and the result is cached.
                let patience = request.patience.max(ROBOTS_PATIENCE);
                // Boxed, like the attempt below: these futures are large, and callers' stacks may be small.
                let rules = Box::pin(robots_cache.rules(
                    &url,
                    on.lead,
                    Requester { job: self.job, owner: Owner::NONE },
                ));
                let rules = self.wait_patiently(&host, patience, request, rules).await???;
                if !rules.allows(path_and_query(&url)) {
                    return Err(ClientError::Robots { url: redact::url(&url) });
                }
            }
            let acquiring = self.acquire(&host);
            let mut permit = self.wait_patiently(&host, request.patience, request, acquiring).await??;
            let headers = request.headers_for(&url, own);
            let hop = transport::Request { headers: &headers, ..request.hop(&url, on.lead, sends) };
            let (trust, recording) = (on.trust, None);
            let out = Outgoing { transport: &self.transport, request: hop, trust, recording };
            let mut sink = Collect::new(Wanted::Whole { max: request.body_max.unwrap_or(u64::MAX) });
            let ended = match Box::pin(attempt(out, &mut permit, (), &mut sink)).await {
                Ok(ended) => ended,
                Err(Unsent::Withheld) => continue,
                Err(Unsent::Never(cause)) => {
                    return Err(ClientError::Transport { url: redact::url(&url), cause });
                }
            };
            let (outcome, freshness) = (ended.outcome, ended.freshness);
            let page = page(&url, ended, sink);
            if let Ok(page) = &page
                && let Some(next) = next_hop(&url, page.status, &page.headers)
            {
                match next {
                    Redirect::Invalid => return Err(ClientError::BadRedirect { url: redact::url(&url) }),
                    Redirect::To(next) if next == url || hops.len() >= self.redirects_max as usize => {
                        return Err(ClientError::Redirects {
                            url: redact::url(&url),
                            max: self.redirects_max,
                        });
                    }
                    Redirect::To(next) => {
                        on = provenance(&request.url, request.lead, &next, OriginListed::default());
                        let own_provenance =
                            provenance(&request.url, Lead::Listed, &next, OriginListed::default());
                        own = own_provenance.trust == Trust::Listed;
                        match body_after_redirect(&request.method, page.status, own_provenance) {
                            Some(RedirectBody::Kept) => {}
                            Some(RedirectBody::Dropped) => sends = false,
                            None if !sends || request.method == Method::GET && request.body.is_empty() => {}
                            None => return Err(ClientError::Body { url: redact::url(&next) }),
                        }
                        hops.push(Hop { status: page.status, to: next.clone() });
                        url = next;
                        continue;
                    }
                }
            }
            let cause = page.as_ref().err();
            if sends && !may_resend(&request.method, outcome, cause) && cause.is_some() {
                return page.map_err(|cause| ClientError::Transport { url: redact::url(&url), cause });
            }
            let verdict = match page {
                // The request was recalled to make room for others. It waits in line again, even without retries.
                Err(TransportError::GivenUp) if request.retries_max == 0 && given_up < GIVEN_UP_MAX => {
                    given_up += 1;
                    continue;
                }
                Err(TransportError::GivenUp) => retry::judge_forgivable(spent, request.retries_max),
                _ => retry::judge(outcome, freshness, spent, request.retries_max),
            };
            spent = verdict.used;
            let is_final = page.as_ref().is_err_and(TransportError::is_final);
            let again = !sends || may_resend(&request.method, outcome, page.as_ref().err());
            if verdict.step == TaskStep::Retry && !is_final && again {
                continue;
            }
            return match page {
                Ok(page) => Ok(Page { hops, ..page }),
                Err(cause) => Err(ClientError::Transport { url: redact::url(&url), cause }),
            };
        }
    }

    async fn acquire(&self, host: &Domain) -> Result<Permit, GateError> {
        match self.job {
            Some(job) => self.gate.acquire_for(job, Owner::NONE, host).await,
            None => self.gate.acquire(host, Intent::Fetch).await,
        }
    }

    /// Awaits `waiting`, but gives up if the domain is held for longer than `patience` or the request is stopped.
    async fn wait_patiently<T>(
        &self,
        host: &Domain,
        patience: Span,
        request: &FetchRequest,
        waiting: impl Future<Output = T>,
    ) -> Result<T, ClientError> {
        tokio::select! {
            biased;
            done = waiting => Ok(done),
            () = request.stopped() => Err(ClientError::Stopped),
            error = self.held_for_long(host, patience) => Err(error),
        }
    }

    /// Checks now and then; returns an error once the domain is held for longer than `patience`.
    async fn held_for_long(&self, host: &Domain, patience: Span) -> ClientError {
        if patience == Span::MAX {
            return std::future::pending().await;
        }
        loop {
            let now = self.gate.clock().now();
            let reasons = match self.gate.explain(host, Intent::Fetch).await {
                Ok(reasons) => reasons,
                Err(error) => return error.into(),
            };
            let hold = reasons.into_iter().filter(Reason::is_hold).max_by_key(|reason| reason.until);
            if let Some(reason) = hold.filter(|reason| reason.until.since(now) > patience) {
                return ClientError::Held { host: host.clone(), reason };
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// The page that an attempt resulted in.
fn page(url: &Url, ended: AttemptResult<Infallible>, sink: Collect) -> Result<Page, TransportError> {
    let head = match ended.received {
        Received::Response(head) => head,
        Received::Failed(cause) => return Err(cause),
    };
    Ok(Page {
        url: url.clone(),
        status: head.status,
        headers: head.headers,
        body: sink.body.freeze(),
        outcome: ended.outcome,
        hops: Vec::new(),
    })
}

/// A robots.txt is waited for at least this long, whatever the caller's patience.
const ROBOTS_PATIENCE: Span = Span::from_secs(90);
/// How often a request with limited patience checks its domain.
const LOOK: Duration = Duration::from_secs(1);

/// The transport for a configuration, with the proxies from the environment.
pub fn transport(config: &Config) -> Result<Transport, SetupError> {
    transport_for(config, &JobRequest::default())
}

/// The transport for a job with its own headers, cookies or credentials, which are read from where the job says.
pub fn transport_for(config: &Config, job: &JobRequest) -> Result<Transport, SetupError> {
    let HttpSettings { connect_timeout, first_byte_timeout, total_timeout, body_max, header_max, .. } =
        config.http;
    let settings = transport::Settings {
        user_agent: config.user_agent(),
        connect_timeout,
        first_byte_timeout,
        total_timeout,
        body_max: body_max.bytes(),
        header_max: usize::try_from(header_max.bytes()).unwrap_or(usize::MAX),
        allowance: Arc::new(config.http.allow_private.clone()),
        proxies: Proxies::from_env(std::env::vars())?,
        ..transport::Settings::default()
    };
    let env = |name: &str| std::env::var(name).ok();
    let requests = Requests::open(config, job, &env)?;
    Ok(Transport::new(settings)?.with(requests))
}

/// The part of a URL that robots.txt rules apply to.
pub(crate) fn path_and_query(url: &Url) -> &str {
    &url[url::Position::BeforePath..url::Position::AfterQuery]
}
