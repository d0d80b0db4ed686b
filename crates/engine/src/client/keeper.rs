//! The robots.txt files of origins: fetched politely, kept for a day, asked for once however many wait.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use comity_core::domain::Domain;
use comity_core::intent::Intent;
use comity_core::outcome::Answer;
use comity_core::time::{Span, Timestamp};
use comity_store::Store;
use comity_store::robots::RobotsRow;
use comity_store::tasks::Lead;
use tokio::sync::OnceCell;
use url::Url;

use super::hop::{self, Next, Unsent, next_hop, send, told};
use crate::config::Config;
use crate::event::Event;
use crate::gate::{Gate, GateError};
use crate::robots::{BODY_MAX, Robots, Verdict, verdict};
use crate::transport::{Answered, Transport, TransportError};

/// A robots.txt that could not be had: everything is forbidden for now.
#[derive(Debug, Clone, thiserror::Error)]
#[error("robots.txt of {origin} cannot be had ({why}), which counts as forbidden for now")]
pub struct RobotsUnavailable {
    /// Whose.
    pub origin: String,
    /// Why.
    pub why: String,
}

/// The robots.txt files of origins.
pub(crate) struct Keeper {
    gate: Gate,
    transport: Transport,
    store: Option<Arc<dyn Store>>,
    product: String,
    retries_max: u32,
    known: Mutex<HashMap<String, Arc<OnceCell<Known>>>>,
}

#[derive(Debug, Clone)]
struct Known {
    rules: Result<Arc<Robots>, RobotsUnavailable>,
    until: Timestamp,
}

impl Keeper {
    pub(crate) fn new(
        gate: Gate,
        transport: Transport,
        config: &Config,
        store: Option<Arc<dyn Store>>,
    ) -> Self {
        let product: String = config
            .http
            .user_agent
            .chars()
            .take_while(|c| c.is_ascii_alphabetic() || matches!(c, '-' | '_'))
            .collect();
        Self { gate, transport, store, product, retries_max: config.job.max_retries, known: Mutex::default() }
    }

    /// The rules of a URL's origin, if they need not be asked for.
    pub(crate) fn known(&self, url: &Url) -> Option<Result<Arc<Robots>, RobotsUnavailable>> {
        let now = self.gate.clock().now();
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let known = known.get(&origin(url))?.get()?;
        (known.until > now).then(|| known.rules.clone())
    }

    /// The rules of a URL's origin. They are asked for once, however many ask here.
    pub(crate) async fn rules(&self, url: &Url, lead: Lead) -> Result<Arc<Robots>, RobotsUnavailable> {
        let origin = origin(url);
        let cell = {
            let now = self.gate.clock().now();
            let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            if known.len() >= KNOWN_MAX {
                known.retain(|_, cell| cell.get().is_none());
            }
            let cell = known.entry(origin.clone()).or_default();
            if cell.get().is_some_and(|known| known.until <= now) {
                *cell = Arc::default();
            }
            cell.clone()
        };
        let known = cell.get_or_init(|| self.learn(url, &origin, lead)).await;
        known.rules.clone()
    }

    async fn learn(&self, url: &Url, origin: &str, lead: Lead) -> Known {
        let row = match self.stored(origin).await {
            Some(row) => Ok(row),
            None => self.fetch(url, origin, lead).await,
        };
        let now = self.gate.clock().now();
        let known = match row {
            Ok(row) => {
                let rules = match verdict(row.status) {
                    Verdict::Read => Robots::parse(&row.body, &self.product),
                    _ => Robots::allow_all(),
                };
                Known { rules: Ok(Arc::new(rules)), until: row.fetched_at + KEPT }
            }
            Err(why) => {
                let rules = Err(RobotsUnavailable { origin: origin.to_owned(), why });
                Known { rules, until: now + LATER }
            }
        };
        if let (Ok(rules), Some(host)) = (&known.rules, Domain::of(url)) {
            self.gate.set_crawl_delay(&host, rules.crawl_delay().unwrap_or_default());
        }
        let what = match &known.rules {
            Ok(_) => "read",
            Err(error) => &error.why,
        };
        self.gate.events().tell(&Event::Robots { origin, what });
        known
    }

    /// What the store has, if it is young enough.
    async fn stored(&self, origin: &str) -> Option<RobotsRow> {
        let row = self.store.as_ref()?.robots(origin.to_owned()).await.ok()??;
        let now = self.gate.clock().now();
        // A file from the future is of another clock, and not to be trusted for longer than a day.
        (row.fetched_at <= now && now.since(row.fetched_at) < KEPT).then_some(row)
    }

    /// Asks for the file, as often as a task would be tried, and keeps what was answered.
    async fn fetch(&self, url: &Url, origin: &str, lead: Lead) -> Result<RobotsRow, String> {
        let mut why = String::new();
        for _ in 0..=self.retries_max {
            match self.try_once(url, lead).await.map_err(|error| error.to_string())? {
                Tried::Read(status, body) => {
                    let fetched_at = self.gate.clock().now();
                    let row = RobotsRow { origin: origin.to_owned(), fetched_at, status, body };
                    if let Some(store) = &self.store
                        && let Err(error) = store.keep_robots(row.clone()).await
                    {
                        tracing::warn!(origin, %error, "robots.txt could not be kept");
                    }
                    return Ok(row);
                }
                Tried::Again(reason) => why = reason,
                Tried::Never(reason) => return Err(reason),
            }
        }
        Err(why)
    }

    /// Asks once, following redirects; each hop waits for its own domain.
    async fn try_once(&self, url: &Url, lead: Lead) -> Result<Tried, GateError> {
        let mut at = url.clone();
        at.set_path("/robots.txt");
        at.set_query(None);
        at.set_fragment(None);
        let first = at.clone();
        let mut lead = lead;
        let mut hops = 0;
        loop {
            let Some(host) = Domain::of(&at) else { return Ok(Tried::Never("no host".to_owned())) };
            let mut permit = self.gate.acquire(&host, Intent::Fetch).await?;
            let answered = match send(&self.transport, &at, lead, &mut permit).await {
                Ok(answered) => answered,
                Err(Unsent::Withheld) => continue,
                Err(Unsent::Broken(cause)) => {
                    permit.record(&Answer::of_breakdown(cause.breakdown()));
                    return Ok(if cause.is_final() {
                        Tried::Never(cause.to_string())
                    } else {
                        Tried::Again(cause.to_string())
                    });
                }
            };
            let answer = Answer::of_status(answered.status, told(&answered.headers, self.gate.clock().now()));
            let (status, headers) = (answered.status, answered.headers.clone());
            let body = read(answered).await;
            match &body {
                Ok(_) => permit.record(&answer),
                Err(cause) => permit.record(&Answer::of_breakdown(cause.breakdown())),
            };
            let body = match body {
                Ok(body) => body,
                Err(cause) => return Ok(Tried::Again(cause.to_string())),
            };
            match next_hop(&at, status, &headers) {
                Some(Next::To(next)) if hops < HOPS_MAX => {
                    lead = hop::lead(&first, lead, &next);
                    at = next;
                    hops += 1;
                    continue;
                }
                // More redirects than are followed, or one that leads astray: as if there were no file.
                Some(_) => return Ok(Tried::Read(404, Vec::new())),
                None => {}
            }
            return Ok(match verdict(status) {
                Verdict::Read => Tried::Read(status, body),
                Verdict::Allowed => Tried::Read(status, Vec::new()),
                Verdict::RateLimited | Verdict::Unavailable => Tried::Again(format!("status {status}")),
            });
        }
    }
}

enum Tried {
    Read(u16, Vec<u8>),
    Again(String),
    Never(String),
}

/// Reads as much of a file as counts.
async fn read(mut answered: Answered) -> Result<Vec<u8>, TransportError> {
    let mut body = Vec::new();
    while let Some(chunk) = answered.body.chunk().await {
        body.extend_from_slice(&chunk?);
        if body.len() >= BODY_MAX {
            body.truncate(BODY_MAX);
            break;
        }
    }
    Ok(body)
}

/// Whose file it is.
pub(crate) fn origin(url: &Url) -> String {
    url.origin().ascii_serialization()
}

/// A file is kept for a day.
const KEPT: Span = Span::from_hours(24);
/// One that could not be had is asked for again after this long.
const LATER: Span = Span::from_mins(5);
/// Redirects of a robots.txt that are followed.
const HOPS_MAX: u32 = 5;
/// Origins remembered at once.
const KNOWN_MAX: usize = 50_000;
