//! Filling a job with every page that sitemaps lead to: a sitemap, an index of them, or the root of a site, whose robots.txt
//! names them.
//!
//! They are asked one after the other, at the pace of their sites, with the limits that sitemaps have as sources. What they
//! lead to is not trusted more than a redirect: see [`redirected_lead`]. Whoever is stopped on the way begins anew next time,
//! and what the job has already is added once only.

use std::collections::{HashSet, VecDeque};

use comity_core::domain::Domain;
use comity_store::StoreError;
use comity_store::sources::Kind;
use comity_store::tasks::{Lead, NewTask};
use http::HeaderValue;
use http::header::CONTENT_TYPE;
use url::Url;

use super::fill::{Fill, Filled};
use super::{Go, Inner};
use crate::attempt::redirected_lead;
use crate::client::{Ask, Asker, ClientError, Page};
use crate::connectors::{self, Harvest};
use crate::gate::GateError;
use crate::{robots, shown};

/// What is told about sitemaps that cannot be read.
pub type OnProblem = Box<dyn Fn(&str) + Send + Sync>;

/// Why a sitemap was not read.
enum Unread {
    /// It will not be another time either.
    Useless(String),
    /// It may be another time.
    NotNow(String),
    Stopped,
    Store(StoreError),
}

/// A walk over sitemaps.
pub(super) struct Walk<'a> {
    pool: &'a Inner,
    fill: &'a Fill,
    on_problem: OnProblem,
    queue: VecDeque<Step>,
    seen: HashSet<String>,
    filled: Filled,
}

/// A sitemap to be read.
struct Step {
    /// What the operator listed,
    listed: Url,
    /// the sitemap that this led to,
    url: Url,
    /// and how many others are between them.
    depth: u32,
}

impl<'a> Walk<'a> {
    pub(super) fn new(pool: &'a Inner, fill: &'a Fill, on_problem: OnProblem) -> Self {
        let (queue, seen) = (VecDeque::new(), HashSet::new());
        Self { pool, fill, on_problem, queue, seen, filled: Filled::default() }
    }

    /// Reads everything that `listed` leads to into the job.
    pub(super) async fn run(
        mut self,
        listed: Vec<Url>,
        added: impl Fn() -> Go,
    ) -> Result<Filled, StoreError> {
        for url in listed {
            let begun = match is_root(&url) {
                true => self.begin_at_root(&url).await,
                false => {
                    self.push(&url, url.clone(), 0);
                    Ok(())
                }
            };
            if self.heed(&url, begun)? == Go::Stop {
                return Ok(self.filled);
            }
        }
        while let Some(Step { listed, url, depth }) = self.queue.pop_front() {
            let read = match self.read(&listed, &url).await {
                Ok(harvest) => self.take(&listed, &url, harvest, depth).await,
                Err(unread) => Err(unread),
            };
            if self.heed(&url, read)? == Go::Stop {
                return Ok(self.filled);
            }
            if added() == Go::Stop || self.filled.refused > 0 {
                self.filled.stopped = true;
                return Ok(self.filled);
            }
        }
        Ok(self.filled)
    }

    /// What follows from a sitemap that was not read.
    fn heed(&mut self, url: &Url, read: Result<(), Unread>) -> Result<Go, StoreError> {
        let shown = shown::url(url);
        match read {
            Ok(()) => {}
            Err(Unread::Useless(why)) => {
                self.filled.bad_sitemaps += 1;
                (self.on_problem)(&format!("sitemap {shown}: {why}"));
            }
            Err(Unread::NotNow(why)) => {
                (self.on_problem)(&format!("sitemap {shown}: {why}"));
                self.filled.error.get_or_insert(format!("sitemap {shown}: {why}"));
            }
            Err(Unread::Stopped) => {
                self.filled.stopped = true;
                return Ok(Go::Stop);
            }
            Err(Unread::Store(error)) => return Err(error),
        }
        Ok(Go::On)
    }

    /// The sitemaps that the robots.txt of a site names, or else the one that sites have by custom.
    async fn begin_at_root(&mut self, root: &Url) -> Result<(), Unread> {
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

    /// The robots.txt of a site, as it is kept for everybody.
    async fn robots(&self, root: &Url) -> Result<Vec<u8>, Unread> {
        let Some(keeper) = &self.pool.keeper else {
            let url = root.join("/robots.txt").map_err(|error| Unread::Useless(error.to_string()))?;
            let page = self.ask(url, Lead::Listed, robots::BODY_MAX as u64).await?;
            return Ok(if page.status == 200 { page.body.to_vec() } else { Vec::new() });
        };
        let asker = Asker { job: None, owner: comity_core::line::Owner::NONE };
        let rules = tokio::select! {
            rules = keeper.rules(root, Lead::Listed, asker) => rules,
            () = self.pool.until_over() => return Err(Unread::Stopped),
        };
        match rules {
            Ok(Ok(_)) => {}
            Ok(Err(unavailable)) => return Err(Unread::NotNow(unavailable.to_string())),
            Err(error) => return Err(of_gate(error)),
        }
        let row = self.pool.store.robots(root.origin().ascii_serialization()).await.map_err(Unread::Store)?;
        Ok(row.filter(|row| row.status == 200).map(|row| row.body).unwrap_or_default())
    }

    fn push(&mut self, listed: &Url, url: Url, depth: u32) {
        if self.seen.len() >= READ_MAX {
            if self.seen.insert(String::new()) {
                (self.on_problem)(&format!(
                    "more than {READ_MAX} sitemaps: only the first {READ_MAX} are read"
                ));
            }
            return;
        }
        if self.seen.insert(url.to_string()) {
            self.queue.push_back(Step { listed: listed.clone(), url, depth });
        }
    }

    async fn read(&self, listed: &Url, url: &Url) -> Result<Harvest, Unread> {
        let lead = redirected_lead(listed, Lead::Listed, url);
        let page = self.ask(url.clone(), lead, BODY_MAX).await?;
        match page.status {
            200..=299 => {}
            status @ (429 | 403 | 503) => return Err(Unread::NotNow(format!("answered {status}"))),
            status if status >= 500 => return Err(Unread::NotNow(format!("answered {status}"))),
            status => return Err(Unread::Useless(format!("answered {status}"))),
        }
        let content_type =
            page.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).map(str::to_owned);
        // On a thread of its own: a hostile one takes its time.
        let reading = tokio::task::spawn_blocking(move || {
            connectors::read(Kind::Sitemap, &page.body, content_type.as_deref(), &page.url)
        });
        match reading.await {
            Ok(read) => read.map_err(|error| Unread::Useless(error.to_string())),
            Err(_) => Err(Unread::Useless("it could not be read".to_owned())),
        }
    }

    async fn ask(&self, url: Url, lead: Lead, body_max: u64) -> Result<Page, Unread> {
        let ask = Ask {
            accept: Some(HeaderValue::from_static(ACCEPT)),
            body_max: Some(body_max),
            retries_max: self.pool.settings.max_retries,
            stop: Some(self.pool.over.subscribe()),
            ..Ask::new(url, lead)
        };
        self.pool.client.ask(&ask).await.map_err(|error| match error {
            ClientError::Stopped => Unread::Stopped,
            ClientError::Gate(error) => of_gate(error),
            error @ (ClientError::Robots { .. }
            | ClientError::Url { .. }
            | ClientError::Leads { .. }
            | ClientError::Redirects { .. }) => Unread::Useless(error.to_string()),
            ClientError::Transport { cause, .. } if cause.is_final() => Unread::Useless(cause.to_string()),
            error => Unread::NotNow(error.to_string()),
        })
    }

    /// Adds the pages of a sitemap to the job, and the sitemaps it names to those to be read.
    async fn take(&mut self, listed: &Url, url: &Url, harvest: Harvest, depth: u32) -> Result<(), Unread> {
        let shown = shown::url(url);
        harvest.problems.iter().for_each(|problem| (self.on_problem)(&format!("sitemap {shown}: {problem}")));
        if harvest.more.len() > MORE_MAX {
            let left = harvest.more.len() - MORE_MAX;
            (self.on_problem)(&format!(
                "sitemap {shown}: names {left} more sitemaps than the {MORE_MAX} that are read"
            ));
        }
        for more in harvest.more.into_iter().take(MORE_MAX) {
            match depth < DEPTH_MAX {
                true => self.push(listed, more, depth + 1),
                false => (self.on_problem)(&format!("sitemap {shown}: too many indexes inside each other")),
            }
        }
        let room = FOUND_MAX.saturating_sub(self.filled.new + self.filled.known) as usize;
        if harvest.items.len() > room {
            (self.on_problem)(&format!("sitemap {shown}: more than {FOUND_MAX} pages: the rest is left out"));
        }
        let rules = self.pool.gate.rules();
        let tasks = harvest.items.into_iter().take(room).filter_map(|found| {
            let mut url = found.url;
            url.set_fragment(None);
            let domain = rules.domain(&Domain::of(&url)?);
            let lead = redirected_lead(listed, Lead::Listed, &url);
            Some(NewTask { url: url.into(), domain, lead, sends: None })
        });
        let tasks: Vec<NewTask> = tasks.collect();
        for part in tasks.chunks(PART) {
            let enqueued = self.fill.enqueue(part.to_vec()).await.map_err(Unread::Store)?;
            self.filled.new += enqueued.new;
            self.filled.known += enqueued.known;
            self.filled.refused += enqueued.refused;
        }
        Ok(())
    }
}

/// Whether a URL is the root of a site, and not a sitemap.
fn is_root(url: &Url) -> bool {
    url.path() == "/" && url.query().is_none()
}

fn of_gate(error: GateError) -> Unread {
    match error {
        GateError::Store(error) => Unread::Store(error),
        GateError::Closed => Unread::Store(StoreError::Closed),
        GateError::Lost => Unread::Store(StoreError::Lost),
    }
}

const ACCEPT: &str = "application/xml, text/xml, application/gzip;q=0.9, */*;q=0.1";
/// The largest sitemap that is read, in bytes: they may have 50 MB by their own rules.
const BODY_MAX: u64 = 52 << 20;
/// Sitemaps that one sitemap may name,
const MORE_MAX: usize = 200;
/// how many indexes may be inside each other,
const DEPTH_MAX: u32 = 3;
/// how many sitemaps are read at all,
const READ_MAX: usize = 1_000;
/// and how many pages they may lead to.
const FOUND_MAX: u64 = 1_000_000;
/// Tasks that go to the store at once.
const PART: usize = 10_000;
