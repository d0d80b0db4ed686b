//! An HTTP client that is polite by itself: permit, send, classify, record, for every hop on the domain it really
//! goes to (B44).
//!
//! - here: [`Client`], for whoever wants pages
//! - `hop`: one attempt, shared with the jobs
//! - `keeper`: robots.txt files, fetched once and kept for a day

mod hop;
mod keeper;

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use comity_core::domain::Domain;
use comity_core::intent::Intent;
use comity_core::outcome::{Answer, Outcome};
use comity_core::retry;
use comity_core::task::TaskStep;
use comity_store::tasks::Lead;
use url::Url;

use crate::clock::Clock;
use crate::config::{Config, ConfigError, HttpSettings, RobotsPolicy, Sources, environment};
use crate::event::{Events, shown, shown_text};
use crate::gate::{Gate, GateError};
use crate::transport::{self, Proxies, ProxyError, Transport, TransportError};

pub(crate) use hop::{Next, Unsent, lead as redirected_lead, next_hop, send, told};
pub(crate) use keeper::{Keeper, place};
pub use keeper::{RobotsUnavailable, recall_crawl_delay};

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
    #[error("{url}: more than {max} redirects")]
    Redirects {
        /// Where the last one led.
        url: String,
        /// How many are allowed.
        max: u32,
    },
    /// The redirect leads where nobody may follow.
    #[error("{url}: redirected to something that is not http or https")]
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
        let transport = transport(config)?;
        let keeper = match config.robots {
            RobotsPolicy::Ignore => None,
            RobotsPolicy::Obey => Some(Arc::new(Keeper::new(gate.clone(), transport.clone(), config, None))),
        };
        let (redirects_max, retries_max) = (config.http.redirects_max, config.job.max_retries);
        Ok(Self { gate, transport, keeper, redirects_max, retries_max })
    }

    /// The gate its requests pass.
    pub fn gate(&self) -> &Gate {
        &self.gate
    }

    /// Fetches a page, politely. An answer that is no success is still an answer: see [`Page::outcome`].
    pub async fn get(&self, url: &str) -> Result<Page, ClientError> {
        let wrong = |url: &str| ClientError::Url { url: shown_text(url) };
        let listed = Url::parse(url).map_err(|_| wrong(url))?;
        let (mut url, mut lead, mut hops, mut retries) = (listed.clone(), Lead::Listed, 0, 0);
        loop {
            let host = Domain::of(&url).ok_or_else(|| wrong(url.as_str()))?;
            if let Some(keeper) = &self.keeper
                && !keeper.rules(&url, lead).await?.allows(path_and_query(&url))
            {
                return Err(ClientError::Robots { url: shown(&url) });
            }
            let mut permit = self.gate.acquire(&host, Intent::Fetch).await?;
            let attempt = match send(&self.transport, &url, lead, &mut permit).await {
                Ok(answered) => self.read(&url, answered).await,
                Err(Unsent::Withheld) => continue,
                Err(Unsent::Broken(cause)) => Err((cause, None)),
            };
            let answer = match &attempt {
                Ok((_, answer)) => *answer,
                // Nothing was asked of the site, or it answered more than we want: it is not to blame.
                Err((cause, answer)) if cause.is_final() => match answer {
                    Some(answer) => *answer,
                    None => {
                        drop(permit);
                        return Err(failed(&url, attempt));
                    }
                },
                Err((cause, _)) => Answer::of_breakdown(cause.breakdown()),
            };
            let recorded = permit.record(&answer);
            if let Ok((page, _)) = &attempt
                && let Some(next) = next_hop(&url, page.status, &page.headers)
            {
                match next {
                    Next::Astray => return Err(ClientError::Leads { url: shown(&url) }),
                    Next::To(_) if hops >= self.redirects_max => {
                        return Err(ClientError::Redirects { url: shown(&url), max: self.redirects_max });
                    }
                    Next::To(next) => {
                        lead = redirected_lead(&listed, Lead::Listed, &next);
                        url = next;
                        hops += 1;
                        continue;
                    }
                }
            }
            let verdict = retry::judge(answer.outcome, recorded.standing, retries, self.retries_max);
            retries = verdict.retries;
            let is_final = attempt.as_ref().err().is_some_and(|(cause, _)| cause.is_final());
            match attempt {
                _ if verdict.step == TaskStep::Retry && !is_final => {}
                Ok((page, _)) => return Ok(page),
                attempt => return Err(failed(&url, attempt)),
            }
        }
    }

    /// Reads a body to its end.
    async fn read(&self, url: &Url, mut answered: transport::Answered) -> Attempt {
        let told = told(&answered.headers, self.gate.clock().now());
        let answer = Answer::of_status(answered.status, told);
        let mut body = BytesMut::new();
        while let Some(chunk) = answered.body.chunk().await {
            body.extend_from_slice(&chunk.map_err(|cause| (cause, Some(answer)))?);
        }
        let (status, headers, outcome) = (answered.status, answered.headers, answer.outcome);
        Ok((Page { url: url.clone(), status, headers, body: body.freeze(), outcome }, answer))
    }
}

/// What an attempt came to; with an error, the answer whose body broke.
type Attempt = Result<(Page, Answer), (TransportError, Option<Answer>)>;

/// The error of an attempt that has one.
fn failed(url: &Url, attempt: Attempt) -> ClientError {
    match attempt {
        Err((cause, _)) => ClientError::Transport { url: shown(url), cause },
        Ok(_) => ClientError::Gate(GateError::Closed),
    }
}

/// The connections that a configuration describes, with the proxies of the environment.
pub fn transport(config: &Config) -> Result<Transport, SetupError> {
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
    Ok(Transport::new(settings)?)
}

/// What robots.txt rules are asked about.
pub(crate) fn path_and_query(url: &Url) -> &str {
    &url[url::Position::BeforePath..url::Position::AfterQuery]
}
