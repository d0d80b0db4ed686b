//! Fills a job with all pages listed in sitemaps. Starts from a sitemap, a sitemap index, or the root of a site whose
//! robots.txt lists its sitemaps.
//!
//! Sitemaps are fetched one after the other at the pace of their sites, with the same limits as sitemaps that are
//! sources. The URLs they list are trusted no more than redirects: see [`redirected_lead`]. After an interruption the
//! next run starts over; URLs that the job already has are not added again.

use std::collections::{HashSet, VecDeque};

use comity_core::domain::Domain;
use comity_store::StoreError;
use comity_store::sources::Kind;
use comity_store::tasks::{Lead, NewTask};
use http::HeaderValue;
use http::header::CONTENT_TYPE;
use url::Url;

use super::fill::{Fill, Filled};
use super::{Flow, Inner};
use crate::attempt::redirected_lead;
use crate::client::{ClientError, FetchRequest, Page, Requester};
use crate::connectors::{self, ParsedSource};
use crate::gate::GateError;
use crate::request::RobotsLead;
use crate::transport::TransportError;
use crate::{redact, robots};

/// Called with a message about a sitemap that can't be read.
pub type OnProblem = Box<dyn Fn(&str) + Send + Sync>;

/// Why a sitemap was not read.
enum ReadError {
    /// Trying again later won't help.
    Useless(String),
    /// It may work later.
    NotNow(String),
    Stopped,
    Store(StoreError),
}

/// A traversal of sitemaps.
pub(super) struct Walk<'a> {
    pool: &'a Inner,
    fill: &'a Fill,
    on_problem: OnProblem,
    queue: VecDeque<QueuedSitemap>,
    seen: HashSet<String>,
    /// How many sitemaps were read.
    read_count: u64,
    filled: Filled,
}

/// A sitemap to read.
struct QueuedSitemap {
    /// The URL that the operator listed.
    listed: Url,
    /// The sitemap that it led to.
    url: Url,
    /// How many sitemap indexes are between the two.
    depth: u32,
}

impl<'a> Walk<'a> {
    pub(super) fn new(pool: &'a Inner, fill: &'a Fill, on_problem: OnProblem) -> Self {
        let (queue, seen) = (VecDeque::new(), HashSet::new());
        Self { pool, fill, on_problem, queue, seen, read_count: 0, filled: Filled::default() }
    }

    /// Adds all pages that `listed` leads to to the job.
    pub(super) async fn run(
        mut self,
        listed: Vec<Url>,
        added: impl Fn() -> Flow,
    ) -> Result<Filled, StoreError> {
        for url in listed {
            let begun = match is_root(&url) {
                true => self.begin_at_root(&url).await,
                false => {
                    self.push(&url, url.clone(), 0);
                    Ok(())
                }
            };
            if self.note_result(&url, begun)? == Flow::Stop {
                return Ok(self.filled);
            }
        }
        while let Some(QueuedSitemap { listed, url, depth }) = self.queue.pop_front() {
            let read = match self.read(&listed, &url).await {
                Ok(parsed) => {
                    self.read_count += 1;
                    self.take(&listed, &url, parsed, depth).await
                }
                Err(unread) => Err(unread),
            };
            if self.note_result(&url, read)? == Flow::Stop {
                return Ok(self.filled);
            }
            if added() == Flow::Stop || self.filled.refused > 0 {
                self.filled.stopped = true;
                return Ok(self.filled);
            }
        }
        // Without a single sitemap the job would be done and know nothing of the site.
        self.filled.sitemaps_unread |= self.read_count == 0;
        Ok(self.filled)
    }

    /// Reports a sitemap that could not be read, and decides whether to continue.
    fn note_result(&mut self, url: &Url, read: Result<(), ReadError>) -> Result<Flow, StoreError> {
        match read {
            Ok(()) => {}
            Err(ReadError::Useless(why)) => self.note_problem(url, &why),
            Err(ReadError::NotNow(why)) => {
                self.note_problem(url, &why);
                (self.filled.sitemaps_unread, self.filled.sitemaps_may_come) = (true, true);
            }
            Err(ReadError::Stopped) => {
                self.filled.stopped = true;
                return Ok(Flow::Stop);
            }
            Err(ReadError::Store(error)) => return Err(error),
        }
        Ok(Flow::Continue)
    }

    fn note_problem(&mut self, url: &Url, why: &str) {
        let problem = format!("sitemap {}: {why}", redact::url(url));
        (self.on_problem)(&problem);
        self.filled.bad_sitemaps += 1;
        self.filled.sitemap_error.get_or_insert(problem);
    }

    /// Queues the sitemaps listed in a site's robots.txt, or the conventional `/sitemap.xml` if there are none.
    async fn begin_at_root(&mut self, root: &Url) -> Result<(), ReadError> {
        let body = self.robots(root).await?;
        let named: Vec<Url> =
            robots::sitemaps(&body).iter().filter_map(|named| root.join(named).ok()).collect();
        let any = named.into_iter().filter(|url| Domain::of(url).is_some());
        let mut any = any.collect::<Vec<_>>();
        if any.is_empty() {
            any.extend(root.join("/sitemap.xml").ok());
        }
        any.into_iter().for_each(|url| self.push(root, url, 0));
        Ok(())
    }

    /// The robots.txt of a site, from the shared cache.
    async fn robots(&self, root: &Url) -> Result<Vec<u8>, ReadError> {
        let Some(robots_cache) = &self.pool.robots_cache else {
            let mut url = root.join("/robots.txt").map_err(|error| ReadError::Useless(error.to_string()))?;
            self.pool.transport.requests().strip_robots_url(&mut url, RobotsLead::Listed);
            let page = self.ask(url, Lead::Listed, robots::BODY_MAX as u64).await?;
            return Ok(if page.status == 200 { page.body.to_vec() } else { Vec::new() });
        };
        let requester = Requester { job: None, owner: comity_core::line::Owner::NONE };
        let rules = tokio::select! {
            rules = robots_cache.rules(root, Lead::Listed, requester) => rules,
            () = self.pool.until_stopping() => return Err(ReadError::Stopped),
        };
        match rules {
            Ok(Ok(_)) => {}
            Ok(Err(unavailable)) => return Err(ReadError::NotNow(unavailable.to_string())),
            Err(error) => return Err(of_gate(error)),
        }
        let row =
            self.pool.store.robots(root.origin().ascii_serialization()).await.map_err(ReadError::Store)?;
        Ok(row.filter(|row| row.status == 200).map(|row| row.body).unwrap_or_default())
    }

    fn push(&mut self, listed: &Url, url: Url, depth: u32) {
        if self.seen.len() >= READ_MAX {
            if self.seen.insert(String::new()) {
                (self.on_problem)(&format!(
                    "more than {READ_MAX} sitemaps; only the first {READ_MAX} are read"
                ));
            }
            return;
        }
        if self.seen.insert(url.to_string()) {
            self.queue.push_back(QueuedSitemap { listed: listed.clone(), url, depth });
        }
    }

    async fn read(&self, listed: &Url, url: &Url) -> Result<ParsedSource, ReadError> {
        let lead = redirected_lead(listed, Lead::Listed, url);
        let page = self.ask(url.clone(), lead, BODY_MAX).await?;
        match page.status {
            200..=299 => {}
            status @ (429 | 403 | 503) => return Err(ReadError::NotNow(format!("answered {status}"))),
            status if status >= 500 => return Err(ReadError::NotNow(format!("answered {status}"))),
            status => return Err(ReadError::Useless(format!("answered {status}"))),
        }
        let content_type =
            page.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).map(str::to_owned);
        // On a blocking thread, because a hostile sitemap can take a while to parse.
        let reading = tokio::task::spawn_blocking(move || {
            connectors::read(Kind::Sitemap, &page.body, content_type.as_deref(), &page.url)
        });
        match reading.await {
            Ok(read) => read.map_err(|error| ReadError::Useless(error.to_string())),
            Err(_) => Err(ReadError::Useless("could not be parsed".to_owned())),
        }
    }

    async fn ask(&self, url: Url, lead: Lead, body_max: u64) -> Result<Page, ReadError> {
        let request = FetchRequest {
            accept: Some(HeaderValue::from_static(ACCEPT)),
            body_max: Some(body_max),
            retries_max: self.pool.settings.max_retries,
            stop: Some(self.pool.stopping.subscribe()),
            ..FetchRequest::new(url, lead)
        };
        self.pool.client.fetch(&request).await.map_err(|error| match error {
            ClientError::Stopped => ReadError::Stopped,
            ClientError::Gate(error) => of_gate(error),
            error @ (ClientError::Robots { .. }
            | ClientError::Url { .. }
            | ClientError::BadRedirect { .. }
            | ClientError::Redirects { .. }) => ReadError::Useless(error.to_string()),
            // It can be read once the variable or file exists.
            ClientError::Transport { cause: cause @ TransportError::Options(_), .. } => {
                ReadError::NotNow(cause.to_string())
            }
            ClientError::Transport { cause, .. } if cause.is_final() => ReadError::Useless(cause.to_string()),
            error => ReadError::NotNow(error.to_string()),
        })
    }

    /// Adds the pages of a sitemap to the job, and queues the sitemaps it lists.
    async fn take(
        &mut self,
        listed: &Url,
        url: &Url,
        parsed: ParsedSource,
        depth: u32,
    ) -> Result<(), ReadError> {
        let shown = redact::url(url);
        parsed.problems.iter().for_each(|problem| (self.on_problem)(&format!("sitemap {shown}: {problem}")));
        if parsed.sitemaps.len() > MORE_MAX {
            let left = parsed.sitemaps.len() - MORE_MAX;
            (self.on_problem)(&format!(
                "sitemap {shown}: lists more than {MORE_MAX} sitemaps; skipping {left} of them"
            ));
        }
        for more in parsed.sitemaps.into_iter().take(MORE_MAX) {
            match depth < DEPTH_MAX {
                true => self.push(listed, more, depth + 1),
                false => {
                    (self.on_problem)(&format!("sitemap {shown}: sitemap indexes are nested too deeply"))
                }
            }
        }
        let room = FOUND_MAX.saturating_sub(self.filled.new + self.filled.known) as usize;
        if parsed.items.len() > room {
            (self.on_problem)(&format!("sitemap {shown}: more than {FOUND_MAX} pages; skipping the rest"));
        }
        let rules = self.pool.gate.rules();
        let tasks = parsed.items.into_iter().take(room).filter_map(|found| {
            let mut url = found.url;
            url.set_fragment(None);
            let domain = rules.domain(&Domain::of(&url)?);
            let lead = redirected_lead(listed, Lead::Listed, &url);
            Some(NewTask { url: url.into(), domain, lead, sends: None })
        });
        let tasks: Vec<NewTask> = tasks.collect();
        for part in tasks.chunks(PART) {
            let enqueued = self.fill.enqueue(part.to_vec()).await.map_err(ReadError::Store)?;
            self.filled.new += enqueued.new;
            self.filled.known += enqueued.known;
            self.filled.refused += enqueued.refused;
        }
        Ok(())
    }
}

/// Whether a URL is the root of a site rather than a sitemap.
fn is_root(url: &Url) -> bool {
    url.path() == "/" && url.query().is_none()
}

fn of_gate(error: GateError) -> ReadError {
    match error {
        GateError::Store(error) => ReadError::Store(error),
        GateError::Closed => ReadError::Store(StoreError::Closed),
        GateError::Lost => ReadError::Store(StoreError::Lost),
    }
}

const ACCEPT: &str = "application/xml, text/xml, application/gzip;q=0.9, */*;q=0.1";
/// The largest sitemap that is read, in bytes; the protocol limits them to 50 MB.
const BODY_MAX: u64 = 52 << 20;
/// How many sitemaps of one sitemap index are read.
const MORE_MAX: usize = 200;
/// How deeply sitemap indexes may be nested.
const DEPTH_MAX: u32 = 3;
/// How many sitemaps are read in total.
const READ_MAX: usize = 1_000;
/// How many pages are added in total.
const FOUND_MAX: u64 = 1_000_000;
/// How many tasks are added to the store at once.
const PART: usize = 10_000;
