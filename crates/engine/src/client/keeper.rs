//! The robots.txt files of origins: fetched politely, kept for a day, asked for once however many wait.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use comity_core::domain::Domain;
use comity_core::intent::Intent;
use comity_core::line::Owner;
use comity_core::task::JobId;
use comity_core::time::{Span, Timestamp};
use comity_store::robots::RobotsRow;
use comity_store::tasks::Lead;
use comity_store::{Store, StoreError};
use tokio::sync::{OnceCell, Semaphore};
use url::Url;

use crate::archive::Archive;
use crate::attempt::{Came, Collect, Next, Out, Unsent, Wanted, attempt, next_hop, redirected_lead};
use crate::config::{Config, RobotsPolicy};
use crate::event::Event;
use crate::gate::{Gate, GateError};
use crate::lock;
use crate::request::{Freely, Trust};
use crate::robots::{BODY_MAX, Robots, Verdict, verdict};
use crate::transport::{Request, Transport, TransportError};

/// A robots.txt that could not be had: everything is forbidden for now.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{}", unavailable(origin, why, *again_at))]
pub struct RobotsUnavailable {
    /// Whose.
    pub origin: String,
    /// Why.
    pub why: String,
    /// It is worth asking again then; never, when the host cannot be reached at all.
    pub again_at: Option<Timestamp>,
}

/// A site that cannot be reached is the problem, not its robots.txt; one that refuses the file forbids everything.
fn unavailable(origin: &str, why: &str, again_at: Option<Timestamp>) -> String {
    match again_at {
        None => format!("{why} (while fetching robots.txt)"),
        Some(_) => {
            format!("robots.txt of {origin} could not be fetched ({why}), so nothing may be fetched for now")
        }
    }
}

/// The robots.txt files of origins.
pub(crate) struct Keeper {
    gate: Gate,
    transport: Transport,
    store: Option<Arc<dyn Store>>,
    archive: Option<Arc<Archive>>,
    /// What robots.txt files know us by, where a site is not told another name.
    product: String,
    retries_max: u32,
    /// So many files that are no job's are fetched at once, at most.
    slots: Semaphore,
    known: Mutex<HashMap<String, Arc<OnceCell<Known>>>>,
}

/// On whose behalf a file is asked for: a job's take their place in its room.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asker {
    pub(crate) job: Option<JobId>,
    pub(crate) owner: Owner,
}

/// What is known of an origin: its rules, or why it has none for now.
pub(crate) type Rules = Result<Arc<Robots>, RobotsUnavailable>;

#[derive(Debug, Clone)]
struct Known {
    rules: Rules,
    until: Timestamp,
}

impl Keeper {
    /// One for everything that passes `gate`, so that no file is asked for twice; none where robots.txt is ignored. What is
    /// fetched is recorded in `archive` too, if exchanges are.
    pub(crate) fn new(
        gate: Gate,
        transport: Transport,
        config: &Config,
        store: Option<Arc<dyn Store>>,
        archive: Option<Arc<Archive>>,
    ) -> Option<Arc<Self>> {
        let keeper = || Self {
            product: product(&config.http.user_agent),
            slots: Semaphore::new(config.job.concurrency as usize),
            retries_max: config.job.max_retries,
            known: Mutex::default(),
            gate,
            transport,
            store,
            archive,
        };
        (config.robots == RobotsPolicy::Obey).then(|| Arc::new(keeper()))
    }

    /// The rules of a URL's origin, if they need not be asked for.
    pub(crate) fn known(&self, url: &Url, lead: Lead) -> Option<Rules> {
        let now = self.gate.clock().now();
        let known = lock(&self.known);
        let known = known.get(&place(url, lead))?.get()?;
        (known.until > now).then(|| known.rules.clone())
    }

    /// The rules of a URL's origin. They are asked for once, however many ask here. That the gate lets nobody go says
    /// nothing about them, and is not kept.
    pub(crate) async fn rules(&self, url: &Url, lead: Lead, asker: Asker) -> Result<Rules, GateError> {
        let origin = origin(url);
        let cell = {
            let now = self.gate.clock().now();
            let mut known = lock(&self.known);
            if known.len() >= KNOWN_MAX {
                known.retain(|_, cell| cell.get().is_none());
            }
            let cell = known.entry(place(url, lead)).or_default();
            if cell.get().is_some_and(|known| known.until <= now) {
                *cell = Arc::default();
            }
            cell.clone()
        };
        let known = cell.get_or_try_init(|| self.learn(url, &origin, lead, asker)).await?;
        Ok(known.rules.clone())
    }

    async fn learn(&self, url: &Url, origin: &str, lead: Lead, asker: Asker) -> Result<Known, GateError> {
        let row = match self.stored(origin).await {
            Some(row) => Ok(row),
            None => self.fetch(url, origin, lead, asker).await?,
        };
        let now = self.gate.clock().now();
        let known = match row {
            Ok(row) => {
                let rules = match verdict(row.status) {
                    Verdict::Read => Robots::parse(&row.body, &self.product_for(url)),
                    _ => Robots::allow_all(),
                };
                Known { rules: Ok(Arc::new(rules)), until: row.fetched_at + KEPT }
            }
            Err((why, again)) => {
                let again_at = again.then_some(now + LATER);
                let rules = Err(RobotsUnavailable { origin: origin.to_owned(), why, again_at });
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
        Ok(known)
    }

    /// The name by which the robots.txt of a site knows us.
    fn product_for(&self, url: &Url) -> String {
        let host = Domain::of(url);
        let own = host.as_ref().and_then(|host| self.transport.requests().agent(host));
        own.map_or_else(|| self.product.clone(), product)
    }

    /// What the store has, if it is young enough.
    async fn stored(&self, origin: &str) -> Option<RobotsRow> {
        let row = self.store.as_ref()?.robots(origin.to_owned()).await.ok()??;
        let now = self.gate.clock().now();
        // A file from the future is of another clock, and not to be trusted for longer than a day.
        (row.fetched_at <= now && now.since(row.fetched_at) < KEPT).then_some(row)
    }

    /// Asks for the file, as often as a task would be tried, and keeps what was answered.
    async fn fetch(
        &self,
        url: &Url,
        origin: &str,
        lead: Lead,
        asker: Asker,
    ) -> Result<Result<RobotsRow, (String, bool)>, GateError> {
        let mut why = (String::new(), false);
        let (mut tries, mut given_up) = (0, 0);
        while tries <= self.retries_max {
            tries += 1;
            // In a place of its own: whoever fetches a page rarely has to ask for this, and should not be larger for it.
            match Box::pin(self.try_once(url, lead, asker)).await? {
                Tried::Read(status, body) => {
                    let fetched_at = self.gate.clock().now();
                    let row = RobotsRow { origin: origin.to_owned(), fetched_at, status, body };
                    if let Some(store) = &self.store
                        && let Err(error) = store.keep_robots(row.clone()).await
                    {
                        tracing::warn!(origin, %error, "robots.txt could not be kept");
                    }
                    return Ok(Ok(row));
                }
                Tried::Refused(reason) => why = (reason, true),
                Tried::Broken(reason) => why = (reason, false),
                Tried::GivenUp(reason) => {
                    why = (reason, false);
                    // That spends no try, but it does not go on for ever.
                    given_up += 1;
                    tries -= u32::from(given_up <= GIVEN_UP_MAX);
                }
                Tried::Never(reason) => return Ok(Err((reason, false))),
            }
        }
        Ok(Err(why))
    }

    /// Asks once, following redirects; each hop waits for its own domain.
    async fn try_once(&self, url: &Url, lead: Lead, asker: Asker) -> Result<Tried, GateError> {
        let mut at = url.clone();
        at.set_path("/robots.txt");
        at.set_query(None);
        at.set_fragment(None);
        let first = at.clone();
        let mut lead = lead;
        let mut hops = 0;
        loop {
            let Some(host) = Domain::of(&at) else { return Ok(Tried::Never("no host".to_owned())) };
            let mut permit = match asker.job {
                Some(job) => self.gate.acquire_for(job, asker.owner, &host).await?,
                None => self.gate.acquire(&host, Intent::Fetch).await?,
            };
            let _slot = match asker.job {
                Some(_) => None,
                None => self.slots.acquire().await.ok(),
            };
            let recording = self.archive.as_ref().and_then(|archive| archive.record(&at));
            // However long a file is, it is obeyed as far as this. The octet past the limit shows that there is more, so
            // that the line which the limit cuts in two is not taken for a whole one.
            let wanted = Wanted::Cut(BODY_MAX as u64 + 1);
            let otherwise = if recording.is_some() { wanted } else { Wanted::Nothing };
            let mut sink = Collect::new(wanted).otherwise(otherwise);
            let freely = if lead == Lead::Listed { Freely::Listed } else { Freely::Led };
            let (request, trust) = (Request::new(&at, lead), Trust::Robots(freely));
            let out = Out { transport: &self.transport, request, trust, recording };
            let ended = match attempt(out, &mut permit, (), &mut sink).await {
                Ok(ended) => ended,
                Err(Unsent::Withheld) => continue,
                Err(Unsent::Never(cause)) => return Ok(Tried::Never(cause.to_string())),
            };
            if let Err(error) = &ended.kept {
                // A page whose records cannot be kept ends the work; this is not worth it.
                tracing::warn!(%error, "robots.txt could not be recorded");
            }
            let head = match ended.came {
                Came::Answer(head) => head,
                Came::Broken(cause) => return Ok(Tried::broken(&cause)),
            };
            match next_hop(&at, head.status, &head.headers) {
                Some(Next::To(next)) if hops < HOPS_MAX => {
                    lead = redirected_lead(&first, lead, &next);
                    at = next;
                    hops += 1;
                    continue;
                }
                // More redirects than are followed, or one that leads astray: as if there were no file.
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

enum Tried {
    Read(u16, Vec<u8>),
    /// The site answered, but not with the file: it may later.
    Refused(String),
    /// The site did not answer.
    Broken(String),
    /// It made way for others that wait.
    GivenUp(String),
    /// It is not to be asked.
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

/// Whose file it is.
fn origin(url: &Url) -> String {
    url.origin().ascii_serialization()
}

/// Under which name a file is known here. What a remote answer led to is known by itself: it may have been refused.
pub(crate) fn place(url: &Url, lead: Lead) -> String {
    match lead {
        Lead::Listed => origin(url),
        Lead::Remote => format!("{} (led to)", origin(url)),
    }
}

/// Takes the crawl-delay of a host from the files that other processes fetched.
pub async fn recall_crawl_delay(gate: &Gate, store: &dyn Store, config: &Config, host: &Domain) {
    // When nobody knows, what is known here stays.
    if let Ok(delay) = known_crawl_delay(store, config, host, gate.clock().now()).await {
        gate.set_crawl_delay(host, delay);
    }
}

/// The crawl-delay of a host, as far as any process on the store knows.
pub async fn known_crawl_delay(
    store: &dyn Store,
    config: &Config,
    host: &Domain,
    now: Timestamp,
) -> Result<Span, StoreError> {
    let mut delay = Span::ZERO;
    // A domain stands for its `www.` too.
    let spellings = ["https://", "http://", "https://www.", "http://www."];
    for origin in spellings.map(|scheme| format!("{scheme}{host}")) {
        let Some(row) = store.robots(origin).await? else { continue };
        if row.fetched_at <= now && now.since(row.fetched_at) < KEPT && verdict(row.status) == Verdict::Read {
            let agent = config.request.user_agent(host).unwrap_or(&config.http.user_agent);
            let rules = Robots::parse(&row.body, &product(agent));
            delay = delay.max(rules.crawl_delay().unwrap_or_default());
        }
    }
    Ok(delay)
}

/// The name by which robots.txt files know us.
fn product(agent: &str) -> String {
    let letters = |c: &char| c.is_ascii_alphabetic() || matches!(c, '-' | '_');
    agent.chars().take_while(letters).collect()
}

/// A file is kept for a day.
const KEPT: Span = Span::from_hours(24);
/// One that could not be had is asked for again after this long, and so are the pages that it counts for.
pub(crate) const LATER: Span = Span::from_mins(5);
/// Redirects of a robots.txt that are followed.
const HOPS_MAX: u32 = 5;
/// How often a try that made way for others is not counted.
pub(super) const GIVEN_UP_MAX: u32 = 3;
/// Origins remembered at once.
const KNOWN_MAX: usize = 50_000;
