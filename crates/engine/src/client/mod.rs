//! An HTTP client that is polite by itself: every hop waits for the domain it really goes to (B44), and leaves by way of
//! `attempt`, the one way out.
//!
//! - here: [`Client`], for whoever wants pages
//! - `ask`: what is asked for, and how
//! - `keeper`: robots.txt files, fetched once and kept for a day

mod ask;
mod keeper;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use comity_core::decision::{Limit, Reason};
use comity_core::domain::Domain;
use comity_core::intent::Intent;
use comity_core::line::Owner;
use comity_core::outcome::Outcome;
use comity_core::retry::{self, Spent};
use comity_core::task::{JobId, TaskStep};
use comity_core::time::Span;
use comity_store::Store;
use comity_store::tasks::{Lead, Onward};
use http::Method;
use url::Url;

use crate::attempt::{
    Came, Collect, Ended, Footing, Lists, Next, Out, Unsent, Wanted, attempt, footing, may_repeat, next_hop,
    onward,
};
use crate::clock::Clock;
use crate::config::{Config, ConfigError, HttpSettings, Sources, environment};
use crate::event::Events;
use crate::gate::{Gate, GateError, Permit};
use crate::request::{JobRequest, RequestError, Requests, Trust, header};
use crate::shown;
use crate::transport::{self, Proxies, ProxyError, Transport, TransportError};

pub use ask::Ask;
use keeper::GIVEN_UP_MAX;
pub(crate) use keeper::{Asker, Keeper, LATER, place};
pub use keeper::{RobotsUnavailable, known_crawl_delay, recall_crawl_delay};

/// A polite HTTP client. Clones share one gate, one set of connections and one memory of robots.txt files.
///
/// Every request waits for its turn on the domain it goes to, redirects and robots.txt included. A refusal (429,
/// 403, 503) or a failure is tried again when the domain lets it, as often as the configuration says; there are no
/// other retries.
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
/// let page = client.get(&url).await?; // asks robots.txt, waits a second, and fetches
/// assert_eq!((page.status, &page.body[..]), (200, &b"hello"[..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Client {
    gate: Gate,
    transport: Transport,
    keeper: Option<Arc<Keeper>>,
    /// The job in whose room its requests take their place.
    job: Option<JobId>,
    redirects_max: u32,
    retries_max: u32,
}

/// A page as it was answered.
#[derive(Debug, Clone)]
pub struct Page {
    /// Where redirects led.
    pub url: Url,
    /// The status of the answer.
    pub status: u16,
    /// Its headers.
    pub headers: http::HeaderMap,
    /// Its body, decoded.
    pub body: Bytes,
    /// What it came to.
    pub outcome: Outcome,
    /// The redirects that led to it.
    pub hops: Vec<Hop>,
}

/// A redirect that was followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hop {
    /// Its status.
    pub status: u16,
    /// Where it led.
    pub to: Url,
}

/// Why there is no page.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// That cannot be fetched.
    #[error("url = {url:?}: expected an http or https URL with a host, such as \"https://example.org/page\"")]
    Url {
        /// What was given, without secrets.
        url: String,
    },
    /// The site's robots.txt forbids it.
    #[error("{url}: forbidden by robots.txt")]
    Robots {
        /// What was asked for.
        url: String,
    },
    /// The site's robots.txt could not be had, which counts as forbidden for now.
    #[error(transparent)]
    RobotsUnavailable(#[from] RobotsUnavailable),
    /// More redirects than allowed.
    #[error("{url}: redirected to itself, or more than {max} times")]
    Redirects {
        /// Where the last one led.
        url: String,
        /// How many are allowed.
        max: u32,
    },
    /// What was to be sent is not meant for where the redirect leads.
    #[error("{url}: the redirect leads to another host, where the body is not sent")]
    Body {
        /// Where it led.
        url: String,
    },
    /// A header that cannot be sent that way.
    #[error("header {name}: {why}")]
    Header {
        /// Which.
        name: String,
        /// Why not.
        why: String,
    },
    /// The redirect leads where nobody may follow.
    #[error("{url}: redirected to something that isn't a valid http or https URL")]
    Leads {
        /// Who redirected.
        url: String,
    },
    /// The connection did not work.
    #[error("{url}: {cause}")]
    Transport {
        /// What was asked for.
        url: String,
        /// What happened.
        #[source]
        cause: TransportError,
    },
    /// The domain is held back for longer than the caller wants to wait.
    #[error("{host}: {reason}")]
    Held {
        /// Which.
        host: Domain,
        /// By what, and until when.
        reason: Reason,
    },
    /// The caller does not want it any more; nothing was sent.
    #[error("stopped before anything was sent")]
    Stopped,
    /// Nobody can be let go.
    #[error(transparent)]
    Gate(#[from] GateError),
}

/// Why a client cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// The configuration has problems.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A proxy in the environment has one.
    #[error(transparent)]
    Proxy(#[from] ProxyError),
    /// What requests are to be sent with cannot be looked up.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The connections cannot be set up.
    #[error(transparent)]
    Transport(#[from] TransportError),
}

impl Client {
    /// A client with the defaults and what the environment says.
    pub fn new() -> Result<Self, SetupError> {
        let config = Config::load(Sources { env: environment(), ..Sources::default() })?;
        let gate = Gate::new(config.rules().clone(), Clock::new(), Events::new());
        Self::with(&config, gate)
    }

    /// A client that goes by `config` and shares `gate` with others.
    pub fn with(config: &Config, gate: Gate) -> Result<Self, SetupError> {
        Ok(Self::over(config, gate, transport(config)?, None))
    }

    /// The same, on connections that others use too; robots.txt files are kept in the store.
    pub fn over(config: &Config, gate: Gate, transport: Transport, store: Option<Arc<dyn Store>>) -> Self {
        let keeper = Keeper::new(gate.clone(), transport.clone(), config, store, None);
        Self::keeping(config, gate, transport, keeper, None)
    }

    /// The same, with robots.txt files that others have too, and requests that take their place in the room of a job.
    pub(crate) fn keeping(
        config: &Config,
        gate: Gate,
        transport: Transport,
        keeper: Option<Arc<Keeper>>,
        job: Option<JobId>,
    ) -> Self {
        let (redirects_max, retries_max) = (config.http.redirects_max, config.job.max_retries);
        Self { gate, transport, keeper, job, redirects_max, retries_max }
    }

    /// How often it tries a failure again.
    pub fn retries_max(&self) -> u32 {
        self.retries_max
    }

    /// The gate its requests pass.
    pub fn gate(&self) -> &Gate {
        &self.gate
    }

    /// Fetches a page, politely. An answer that is no success is still an answer: see [`Page::outcome`].
    pub async fn get(&self, url: &str) -> Result<Page, ClientError> {
        let url = Url::parse(url).map_err(|_| ClientError::Url { url: shown::text(url) })?;
        self.ask(&Ask { retries_max: self.retries_max, ..Ask::new(url, Lead::Listed) }).await
    }

    /// The same, asked in a particular way.
    pub async fn ask(&self, ask: &Ask) -> Result<Page, ClientError> {
        let (mut url, mut spent, mut given_up) = (ask.url.clone(), Spent::default(), 0);
        let mut on = match ask.lead {
            Lead::Listed => Footing { lead: Lead::Listed, trust: Trust::Listed },
            Lead::Remote => Footing { lead: Lead::Remote, trust: Trust::Led },
        };
        for (name, _) in &ask.headers {
            let wrong = |why| ClientError::Header { name: name.to_string(), why };
            header::name(name.as_str()).map_err(wrong)?;
        }
        // Whether its own headers, and its method and body, go to where it is now.
        let (mut own, mut sends) = (true, true);
        let mut hops: Vec<Hop> = Vec::new();
        loop {
            let host = Domain::of(&url).ok_or_else(|| ClientError::Url { url: shown::text(url.as_str()) })?;
            if let Some(keeper) = &self.keeper {
                // A robots.txt that fails is tried again at the pace of the ladder, and what comes of it is kept.
                let patience = ask.patience.max(ROBOTS_PATIENCE);
                // On the heap, as the attempt below: a request takes much room, and callers have little on their stack.
                let rules =
                    Box::pin(keeper.rules(&url, on.lead, Asker { job: self.job, owner: Owner::NONE }));
                let rules = self.patiently(&host, patience, ask, rules).await???;
                if !rules.allows(path_and_query(&url)) {
                    return Err(ClientError::Robots { url: shown::url(&url) });
                }
            }
            let acquiring = self.acquire(&host);
            let mut permit = self.patiently(&host, ask.patience, ask, acquiring).await??;
            let headers = ask.headers_for(&url, own);
            let request = transport::Request { headers: &headers, ..ask.request(&url, on.lead, sends) };
            let (trust, recording) = (on.trust, None);
            let out = Out { transport: &self.transport, request, trust, recording };
            let mut sink = Collect::new(Wanted::Whole { max: ask.body_max.unwrap_or(u64::MAX) });
            let ended = match Box::pin(attempt(out, &mut permit, (), &mut sink)).await {
                Ok(ended) => ended,
                Err(Unsent::Withheld) => continue,
                Err(Unsent::Never(cause)) => {
                    return Err(ClientError::Transport { url: shown::url(&url), cause });
                }
            };
            let (outcome, standing) = (ended.outcome, ended.standing);
            let page = page(&url, ended, sink);
            if let Ok(page) = &page
                && let Some(next) = next_hop(&url, page.status, &page.headers)
            {
                match next {
                    Next::Astray => return Err(ClientError::Leads { url: shown::url(&url) }),
                    Next::To(next) if next == url || hops.len() >= self.redirects_max as usize => {
                        return Err(ClientError::Redirects {
                            url: shown::url(&url),
                            max: self.redirects_max,
                        });
                    }
                    Next::To(next) => {
                        on = footing(&ask.url, ask.lead, &next, Lists::default());
                        let own_footing = footing(&ask.url, Lead::Listed, &next, Lists::default());
                        own = own_footing.trust == Trust::Listed;
                        match onward(&ask.method, page.status, own_footing) {
                            Some(Onward::Kept) => {}
                            Some(Onward::Dropped) => sends = false,
                            None if !sends || ask.method == Method::GET && ask.body.is_empty() => {}
                            None => return Err(ClientError::Body { url: shown::url(&next) }),
                        }
                        hops.push(Hop { status: page.status, to: next.clone() });
                        url = next;
                        continue;
                    }
                }
            }
            let cause = page.as_ref().err();
            if sends && !may_repeat(&ask.method, outcome, cause) && cause.is_some() {
                return page.map_err(|cause| ClientError::Transport { url: shown::url(&url), cause });
            }
            let verdict = match page {
                // It made way for others, and waits in line again, also where no failure is tried again.
                Err(TransportError::GivenUp) if ask.retries_max == 0 && given_up < GIVEN_UP_MAX => {
                    given_up += 1;
                    continue;
                }
                Err(TransportError::GivenUp) => retry::judge_forgivable(spent, ask.retries_max),
                _ => retry::judge(outcome, standing, spent, ask.retries_max),
            };
            spent = verdict.spent;
            let is_final = page.as_ref().is_err_and(TransportError::is_final);
            let again = !sends || may_repeat(&ask.method, outcome, page.as_ref().err());
            if verdict.step == TaskStep::Retry && !is_final && again {
                continue;
            }
            return match page {
                Ok(page) => Ok(Page { hops, ..page }),
                Err(cause) => Err(ClientError::Transport { url: shown::url(&url), cause }),
            };
        }
    }

    async fn acquire(&self, host: &Domain) -> Result<Permit, GateError> {
        match self.job {
            Some(job) => self.gate.acquire_for(job, Owner::NONE, host).await,
            None => self.gate.acquire(host, Intent::Fetch).await,
        }
    }

    /// Waits, unless the domain is held back for longer than the patience lasts or nobody wants it any more.
    async fn patiently<T>(
        &self,
        host: &Domain,
        patience: Span,
        ask: &Ask,
        waiting: impl Future<Output = T>,
    ) -> Result<T, ClientError> {
        tokio::select! {
            biased;
            done = waiting => Ok(done),
            () = ask.stopped() => Err(ClientError::Stopped),
            error = self.held_for_long(host, patience) => Err(error),
        }
    }

    /// Looks now and then until a domain is held back for longer than the patience lasts.
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
            let hold = reasons.into_iter().filter(is_hold).max_by_key(|reason| reason.until);
            if let Some(reason) = hold.filter(|reason| reason.until.since(now) > patience) {
                return ClientError::Held { host: host.clone(), reason };
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// The page that an attempt came to.
fn page(url: &Url, ended: Ended<Infallible>, sink: Collect) -> Result<Page, TransportError> {
    let head = match ended.came {
        Came::Answer(head) => head,
        Came::Broken(cause) => return Err(cause),
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

/// Whether it keeps everybody away for a while, rather than requests apart.
pub(crate) fn is_hold(reason: &Reason) -> bool {
    matches!(
        reason.limit,
        Limit::RetryAfter
            | Limit::QuotaSpent
            | Limit::Backoff { .. }
            | Limit::WaitOn429
            | Limit::LearnedHold
            | Limit::Paused
    )
}

/// However little patience somebody has, a robots.txt is waited for this long.
const ROBOTS_PATIENCE: Span = Span::from_secs(90);
/// Whoever waits with little patience looks this often whether it is worth it.
const LOOK: Duration = Duration::from_secs(1);

/// The connections that a configuration describes, with the proxies of the environment.
pub fn transport(config: &Config) -> Result<Transport, SetupError> {
    transport_for(config, &JobRequest::default())
}

/// The same for a job whose requests have headers, cookies or credentials of their own; where they come from is looked up.
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

/// What robots.txt rules are asked about.
pub(crate) fn path_and_query(url: &Url) -> &str {
    &url[url::Position::BeforePath..url::Position::AfterQuery]
}
