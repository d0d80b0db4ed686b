//! A cache of robots.txt files: fetched politely, kept for a day, and requested only once however many wait for them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use comity_core::domain::Domain;
use comity_core::intent::Intent;
use comity_core::line::Owner;
use comity_core::task::JobId;
use comity_core::time::{Span, Timestamp};
use comity_store::robots::RobotsRow;
use comity_store::tasks::{Attempt, Lead, RobotsAttempts};
use comity_store::{Store, StoreError};
use tokio::sync::{OnceCell, Semaphore};
use url::Url;

use super::path_and_query;
use crate::archive::Archive;
use crate::attempt::{
    Collect, OriginListed, Outgoing, Provenance, Received, Redirect, Unsent, Wanted, attempt, next_hop,
    origin_listed, provenance,
};
use crate::config::{Config, RobotsPolicy};
use crate::event::Event;
use crate::gate::{Gate, GateError};
use crate::lock;
use crate::request::{RobotsLead, Trust};
use crate::robots::{BODY_MAX, Robots, Verdict, verdict};
use crate::transport::{Request, Transport, TransportError};

/// A robots.txt could not be fetched, so everything on its origin is forbidden for now.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{}", unavailable(origin, why, *retry_at))]
pub struct RobotsUnavailable {
    /// The origin.
    pub origin: String,
    /// Why.
    pub why: String,
    /// When to try again; `None` if the host can't be reached at all.
    pub retry_at: Option<Timestamp>,
    /// The requests that were sent for it, if any were.
    pub attempts: Option<RobotsAttempts>,
}

/// The error message. If a site can't be reached, that is the problem, and not its robots.txt; if it refuses to serve
/// the file, everything is forbidden.
fn unavailable(origin: &str, why: &str, retry_at: Option<Timestamp>) -> String {
    match retry_at {
        None => format!("{why} (while fetching robots.txt)"),
        Some(_) => {
            format!("robots.txt of {origin} could not be fetched ({why}), so nothing may be fetched for now")
        }
    }
}

/// A cache of robots.txt files by origin.
pub(crate) struct RobotsCache {
    gate: Gate,
    transport: Transport,
    store: Option<Arc<dyn Store>>,
    archive: Option<Arc<Archive>>,
    /// The product token to look for in robots.txt files, unless a site has a user agent of its own.
    product: String,
    retries_max: u32,
    /// Limits how many files are fetched at once outside of jobs.
    slots: Semaphore,
    known: Mutex<HashMap<String, Arc<OnceCell<Known>>>>,
}

/// On whose behalf a file is fetched. For a job, the request counts toward the job's concurrency.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Requester {
    pub(crate) job: Option<JobId>,
    pub(crate) owner: Owner,
}

/// The rules of an origin, or why they are unavailable.
pub(crate) type Rules = Result<Arc<Robots>, RobotsUnavailable>;

#[derive(Debug, Clone)]
struct Known {
    rules: Rules,
    until: Timestamp,
}

impl RobotsCache {
    /// Creates the cache; `None` if the configuration ignores robots.txt. Use one cache for everything that goes
    /// through `gate`, so that no file is fetched twice. Exchanges are recorded in `archive` if it records exchanges.
    pub(crate) fn new(
        gate: Gate,
        transport: Transport,
        config: &Config,
        store: Option<Arc<dyn Store>>,
        archive: Option<Arc<Archive>>,
    ) -> Option<Arc<Self>> {
        let robots_cache = || Self {
            product: product(&config.http.user_agent),
            slots: Semaphore::new(config.job.concurrency as usize),
            retries_max: config.job.max_retries,
            known: Mutex::default(),
            gate,
            transport,
            store,
            archive,
        };
        (config.robots == RobotsPolicy::Obey).then(|| Arc::new(robots_cache()))
    }

    /// The rules of a URL's origin, if they are in the cache.
    pub(crate) fn known(&self, url: &Url, lead: Lead) -> Option<Rules> {
        let now = self.gate.clock().now();
        let known = lock(&self.known);
        let known = known.get(&cache_key(url, lead))?.get()?;
        (known.until > now).then(|| known.rules.clone())
    }

    /// The rules of a URL's origin. Concurrent callers share one request. An error of the gate says nothing about the
    /// rules and is not cached.
    pub(crate) async fn rules(
        &self,
        url: &Url,
        lead: Lead,
        requester: Requester,
    ) -> Result<Rules, GateError> {
        let origin = origin(url);
        let cell = {
            let now = self.gate.clock().now();
            let mut known = lock(&self.known);
            if known.len() >= KNOWN_MAX {
                known.retain(|_, cell| cell.get().is_none());
            }
            let cell = known.entry(cache_key(url, lead)).or_default();
            if cell.get().is_some_and(|known| known.until <= now) {
                *cell = Arc::default();
            }
            cell.clone()
        };
        let known = cell.get_or_try_init(|| self.learn(url, &origin, lead, requester)).await?;
        Ok(known.rules.clone())
    }

    async fn learn(
        &self,
        url: &Url,
        origin: &str,
        lead: Lead,
        requester: Requester,
    ) -> Result<Known, GateError> {
        let row = match self.stored(origin).await {
            Some(row) => Ok(row),
            None => self.fetch(url, origin, lead, requester).await?,
        };
        let now = self.gate.clock().now();
        let known = match row {
            Ok(row) => {
                let rules = self.parse(url, row.status, &row.body);
                Known { rules: Ok(Arc::new(rules)), until: row.fetched_at + validity(&row) }
            }
            Err(Unfetched { why, again, attempts }) => {
                let (origin, retry_at) = (origin.to_owned(), again.then_some(now + ROBOTS_RETRY));
                let rules = Err(RobotsUnavailable { origin, why, retry_at, attempts });
                Known { rules, until: now + ROBOTS_RETRY }
            }
        };
        if let (Ok(rules), Some(host)) = (&known.rules, Domain::of(url)) {
            self.gate.set_crawl_delay(&host, rules.crawl_delay().unwrap_or_default());
        }
        let what = match &known.rules {
            Ok(_) => "read",
            Err(error) => &error.why,
        };
        self.gate.events().emit(&Event::Robots { origin, what });
        Ok(known)
    }

    /// The rules for a site in a response to a request for its robots.txt.
    fn parse(&self, url: &Url, status: u16, body: &[u8]) -> Robots {
        match verdict(status) {
            Verdict::Read => Robots::parse(body, &self.product_for(url)),
            _ => Robots::allow_all(),
        }
    }

    /// The product token to look for in the robots.txt of a site.
    fn product_for(&self, url: &Url) -> String {
        let host = Domain::of(url);
        let own = host.as_ref().and_then(|host| self.transport.requests().agent(host));
        own.map_or_else(|| self.product.clone(), product)
    }

    /// The file from the store, if it isn't too old.
    async fn stored(&self, origin: &str) -> Option<RobotsRow> {
        let row = self.store.as_ref()?.robots(origin.to_owned()).await.ok()??;
        is_valid(&row, self.gate.clock().now()).then_some(row)
    }

    /// Fetches the file, with as many retries as a task, and saves the result.
    async fn fetch(
        &self,
        url: &Url,
        origin: &str,
        lead: Lead,
        requester: Requester,
    ) -> Result<Result<RobotsRow, Unfetched>, GateError> {
        let mut why = (String::new(), false);
        let (mut tries, mut given_up, mut rounds) = (0, 0, 0);
        let mut sent: Vec<Attempt> = Vec::new();
        let unfetched = |why: String, again: bool, sent: Vec<Attempt>| {
            let count = sent.len() as u32;
            let attempts = sent.into_iter().next_back().map(|last| RobotsAttempts { count, last });
            Ok(Err(Unfetched { why, again, attempts }))
        };
        while tries <= self.retries_max {
            (tries, rounds) = (tries + 1, rounds + 1);
            // Boxed, because this is rarely needed and would otherwise make every future that fetches a page larger.
            match Box::pin(self.try_once(url, lead, requester, &mut sent)).await? {
                Tried::Read(status, body) => {
                    let fetched_at = self.gate.clock().now();
                    let crawl_delay = self.parse(url, status, &body).crawl_delay().unwrap_or_default();
                    let row = RobotsRow { origin: origin.to_owned(), fetched_at, status, body, crawl_delay };
                    if let Some(store) = &self.store
                        && let Err(error) = store.keep_robots(row.clone()).await
                    {
                        tracing::warn!(origin, %error, "could not save robots.txt in the store");
                    }
                    return Ok(Ok(row));
                }
                Tried::Refused(reason) => why = (reason, true),
                Tried::Broken(reason) => why = (reason, false),
                Tried::GivenUp(reason) => {
                    why = (reason, false);
                    // This uses up no try, but only a limited number of times.
                    given_up += 1;
                    tries -= u32::from(given_up <= GIVEN_UP_MAX);
                }
                Tried::Never(reason) => return unfetched(reason, false, sent),
            }
        }
        let (mut why, again) = why;
        if rounds > 1 {
            why += &format!(" after {rounds} attempts");
        }
        unfetched(why, again, sent)
    }

    /// Makes one try, following redirects. Each hop waits for its own domain. Requests that were sent are added to `sent`.
    async fn try_once(
        &self,
        url: &Url,
        lead: Lead,
        requester: Requester,
        sent: &mut Vec<Attempt>,
    ) -> Result<Tried, GateError> {
        let mut at = url.clone();
        at.set_path("/robots.txt");
        at.set_query(None);
        at.set_fragment(None);
        let first = at.clone();
        let trust = if lead == Lead::Listed { Trust::Listed } else { Trust::Remote };
        let mut on = Provenance { lead, trust };
        let mut hops = 0;
        loop {
            let Some(host) = Domain::of(&at) else { return Ok(Tried::Never("no host".to_owned())) };
            let robots_lead = if on.trust == Trust::Listed { RobotsLead::Listed } else { RobotsLead::Remote };
            self.transport.requests().strip_robots_url(&mut at, robots_lead);
            let mut permit = match requester.job {
                Some(job) => self.gate.acquire_for(job, requester.owner, &host).await?,
                None => self.gate.acquire(&host, Intent::Fetch).await?,
            };
            let _slot = match requester.job {
                Some(_) => None,
                None => self.slots.acquire().await.ok(),
            };
            let recording = self.archive.as_ref().and_then(|archive| archive.record(&at));
            // Files are read up to a limit. One extra byte shows whether there is more, so that a line cut in two by
            // the limit is not mistaken for a complete one.
            let wanted = Wanted::Cut(BODY_MAX as u64 + 1);
            let otherwise = if recording.is_some() { wanted } else { Wanted::Nothing };
            let mut sink = Collect::new(wanted).unless_success(otherwise);
            let (request, trust) = (Request::new(&at, on.lead), Trust::Robots(robots_lead));
            let out = Outgoing { transport: &self.transport, request, trust, recording };
            let ended = match attempt(out, &mut permit, (), &mut sink).await {
                Ok(ended) => ended,
                Err(Unsent::Withheld) => continue,
                Err(Unsent::Never(cause)) => return Ok(Tried::Never(cause.to_string())),
            };
            let (started_at, outcome, status) = (permit.started_at(), ended.outcome, ended.status);
            let took = self.gate.clock().now().since(started_at);
            sent.push(Attempt { started_at, took, outcome, status });
            if let Err(error) = &ended.archived {
                // Unlike for a page, this isn't worth ending the work for.
                tracing::warn!(%error, "could not archive the robots.txt exchange");
            }
            let head = match ended.received {
                Received::Response(head) => head,
                Received::Failed(cause) => return Ok(Tried::broken(&cause)),
            };
            match next_hop(&at, head.status, &head.headers) {
                Some(Redirect::To(next)) if hops < HOPS_MAX => {
                    // As for pages: the operator may have listed the target, too.
                    let listed = match (&self.store, requester.job) {
                        (Some(store), Some(job)) => origin_listed(&**store, job, &next).await,
                        _ => OriginListed::default(),
                    };
                    on = provenance(&first, lead, &next, listed);
                    at = next;
                    hops += 1;
                    continue;
                }
                // Too many redirects, or an invalid one, count as if there were no file.
                Some(_) => return Ok(Tried::Read(404, Vec::new())),
                None => {}
            }
            return Ok(match (head.status, verdict(head.status)) {
                (200..300, _) => Tried::Read(head.status, sink.body.into()),
                (_, Verdict::Read | Verdict::Allowed) => Tried::Read(head.status, Vec::new()),
                (status, Verdict::RateLimited | Verdict::Unavailable) => {
                    Tried::Refused(format!("status {status}"))
                }
            });
        }
    }
}

/// Why a file could not be fetched.
struct Unfetched {
    why: String,
    /// Whether the site may serve it later.
    again: bool,
    attempts: Option<RobotsAttempts>,
}

enum Tried {
    Read(u16, Vec<u8>),
    /// The site refused to serve the file; it may do so later.
    Refused(String),
    /// The request failed.
    Broken(String),
    /// The request was recalled to make room for others.
    GivenUp(String),
    /// The request must not be sent.
    Never(String),
}

impl Tried {
    fn broken(cause: &TransportError) -> Self {
        match cause {
            TransportError::GivenUp => Self::GivenUp(cause.to_string()),
            _ => Self::Broken(cause.to_string()),
        }
    }
}

/// The origin of a URL, which its robots.txt applies to.
fn origin(url: &Url) -> String {
    url.origin().ascii_serialization()
}

/// The cache key for a file. URLs that a remote response led to have their own entries, because their request may have
/// been blocked.
pub(crate) fn cache_key(url: &Url, lead: Lead) -> String {
    match lead {
        Lead::Listed => origin(url),
        Lead::Remote => format!("{} (remote)", origin(url)),
    }
}

/// Sets the crawl-delay of a host in `gate` from a robots.txt in the store, which another process may have fetched.
pub async fn load_crawl_delay(gate: &Gate, store: &dyn Store, config: &Config, host: &Domain) {
    // If the store fails, the known crawl-delay stays.
    if let Ok(delay) = known_crawl_delay(store, config, host, gate.clock().now()).await {
        gate.set_crawl_delay(host, delay);
    }
}

/// The crawl-delay of a host according to the robots.txt files in the store.
pub async fn known_crawl_delay(
    store: &dyn Store,
    config: &Config,
    host: &Domain,
    now: Timestamp,
) -> Result<Span, StoreError> {
    let mut delay = Span::ZERO;
    // A domain includes its `www.` host.
    let spellings = ["https://", "http://", "https://www.", "http://www."];
    for origin in spellings.map(|scheme| format!("{scheme}{host}")) {
        let Some(row) = store.robots(origin).await? else { continue };
        if is_valid(&row, now) && verdict(row.status) == Verdict::Read {
            let rules = Robots::parse(&row.body, &product_for(config, host));
            delay = delay.max(rules.crawl_delay().unwrap_or_default());
        }
    }
    Ok(delay)
}

/// What a robots.txt file in the store says about a URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownRobots {
    /// Whether the URL may be fetched.
    pub allowed: bool,
    /// When the file was fetched.
    pub fetched_at: Timestamp,
}

/// What the robots.txt of a URL's origin says about the URL, if the store has the file and it is still valid. Nothing is
/// fetched; `None` too if the configuration ignores robots.txt.
pub async fn known_robots(
    store: &dyn Store,
    config: &Config,
    url: &Url,
    now: Timestamp,
) -> Result<Option<KnownRobots>, StoreError> {
    let (RobotsPolicy::Obey, Some(host)) = (config.robots, Domain::of(url)) else { return Ok(None) };
    let row = store.robots(origin(url)).await?;
    Ok(row.filter(|row| is_valid(row, now)).map(|row| {
        let rules = || Robots::parse(&row.body, &product_for(config, &host));
        let allowed = verdict(row.status) != Verdict::Read || rules().allows(path_and_query(url));
        KnownRobots { allowed, fetched_at: row.fetched_at }
    }))
}

fn is_valid(row: &RobotsRow, now: Timestamp) -> bool {
    // A file from the future was stored with another clock and isn't trusted.
    row.fetched_at <= now && now.since(row.fetched_at) < validity(row)
}

/// How long a file is valid. Fetching it again is a request to the site, too: if its own crawl-delay is about a day or
/// longer, a file that is valid for a day would be requested each time before a page may be, and never the page.
fn validity(row: &RobotsRow) -> Span {
    KEPT.max(row.crawl_delay.times(2))
}

/// The product token that a host's robots.txt is searched for.
fn product_for(config: &Config, host: &Domain) -> String {
    product(config.request.user_agent(host).unwrap_or(&config.http.user_agent))
}

/// The product token of a user agent.
fn product(agent: &str) -> String {
    let letters = |c: &char| c.is_ascii_alphabetic() || matches!(c, '-' | '_');
    agent.chars().take_while(letters).collect()
}

/// How long a file is valid at least.
const KEPT: Span = Span::from_hours(24);
/// When to fetch an unavailable file again, and to retry the pages that depend on it.
pub(crate) const ROBOTS_RETRY: Span = Span::from_mins(5);
/// How many redirects of a robots.txt are followed.
const HOPS_MAX: u32 = 5;
/// How many recalled tries are not counted.
pub(super) const GIVEN_UP_MAX: u32 = 3;
/// The maximum number of cached origins.
const KNOWN_MAX: usize = 50_000;
