//! One source is asked: the request, what its answer holds, and what that changes.
//!
//! A fetch is one attempt: what fails is asked again in a later run, no sooner than the backoff says (B63), and a
//! domain that is held back for long is not waited for (B61).

use std::sync::atomic::Ordering;

use comity_core::cadence::RunWindow;
use comity_core::domain::Domain;
use comity_core::headers::RetryAfter;
use comity_core::time::{Span, Timestamp};
use comity_store::StoreError;
use comity_store::sources::{Asking, FetchEnd, FetchResult, Kept, Kind, NewItem, Source};
use comity_store::tasks::Lead;
use http::HeaderValue;
use http::header::CONTENT_TYPE;
use url::Url;

use super::Pipeline;
use super::cursor::{Cursor, CursorChange};
use super::later::{backoff, jitter};
use super::{Turn, caching, hints};
use crate::attempt::{redirected_lead, told};
use crate::client::{Ask, ClientError, Page};
use crate::connectors::{self, Harvest, normalise};
use crate::gate::GateError;

/// What became of asking a source.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Fetched {
    pub(super) result: FetchResult,
    pub(super) http_status: Option<u16>,
    pub(super) found: u64,
    pub(super) kept: Kept,
    pub(super) error: Option<String>,
}

/// Why nothing was read.
pub(super) enum Unread {
    /// It is not to be asked for a while.
    Held { until: Timestamp, why: String },
    /// It failed; not asked again before then, if its server said so.
    Failed { why: String, status: Option<u16>, until: Option<Timestamp> },
    /// It is gone for good.
    Gone,
    /// The run was told to stop.
    Stopped,
    /// Our own store does not work, which is not the source's fault.
    Store(StoreError),
}

/// What was read of a source so far.
#[derive(Default)]
pub(super) struct Tally {
    pub(super) found: u64,
    kept: Kept,
    problems: Vec<String>,
    problems_count: u64,
}

impl Pipeline {
    /// Asks a source, keeps its items, and commits how it ended; nothing when it was stopped before it was asked.
    pub(super) async fn fetch(
        &self,
        source: &Source,
        asking: Asking,
        window: RunWindow,
        turn: Turn,
    ) -> Result<Option<Fetched>, StoreError> {
        let started_at = self.0.gate.clock().now();
        let mut fetched = match self.ask(source, Url::parse(&source.url), source.lead).await {
            Ok(page) => self.read(source, asking, page, turn).await?,
            Err(Unread::Stopped) => return Ok(None),
            Err(Unread::Store(error)) => return Err(error),
            Err(unread) => self.unread(source, unread),
        };
        let moved = self.end(asking, window, started_at, &fetched).await?;
        if let FetchResult::Read { moved_to, .. } = &mut fetched.result {
            // Where another source is already, it did not move.
            moved_to.take_if(|_| !moved);
        }
        Ok(Some(fetched))
    }

    /// Commits how a fetch ended, or that there was none; whether the source is at another place now.
    pub(super) async fn end(
        &self,
        asking: Asking,
        window: RunWindow,
        started_at: Timestamp,
        fetched: &Fetched,
    ) -> Result<bool, StoreError> {
        let Fetched { result, http_status, found, kept, error } = fetched.clone();
        let ended_at = self.0.gate.clock().now();
        let window = window.looked_at(ended_at);
        let end = FetchEnd { asking, window, started_at, ended_at, result, http_status, found, kept, error };
        self.0.store.end_fetch(end).await
    }

    pub(super) async fn ask(
        &self,
        source: &Source,
        url: Result<Url, url::ParseError>,
        lead: Lead,
    ) -> Result<Page, Unread> {
        let failed = |why: String| Unread::Failed { why, status: None, until: None };
        let url = url.map_err(|error| failed(format!("url: {error}")))?;
        let ask = Ask {
            accept: Some(HeaderValue::from_static(accept(source.kind))),
            conditions: Cursor::of(source).conditions(),
            body_max: Some(body_max(source.kind)),
            patience: PATIENCE,
            stop: Some(self.0.stopping.subscribe()),
            ..Ask::new(url, lead)
        };
        let page = self.0.client.ask(&ask).await.map_err(|error| match error {
            ClientError::Held { reason, .. } => Unread::Held { until: reason.until, why: reason.to_string() },
            ClientError::Stopped => Unread::Stopped,
            ClientError::Gate(GateError::Store(error)) => Unread::Store(error),
            ClientError::Gate(GateError::Closed) => Unread::Store(StoreError::Closed),
            ClientError::Gate(GateError::Lost) => Unread::Store(StoreError::Lost),
            error => failed(error.to_string()),
        })?;
        match page.status {
            200..=299 | 304 => Ok(page),
            410 => Err(Unread::Gone),
            status => {
                let now = self.0.gate.clock().now();
                let until = match told(&page.headers, now).retry_after {
                    RetryAfter::After(asked) => Some(now + asked.min(self.retry_after_max(&page.url))),
                    RetryAfter::Absent | RetryAfter::Unusable => None,
                };
                Err(Unread::Failed { why: format!("answered {status}"), status: Some(status), until })
            }
        }
    }

    /// The longest that a server's wish is heeded for.
    fn retry_after_max(&self, url: &Url) -> Span {
        let host = Domain::of(url).unwrap_or_else(|| self.0.nowhere.clone());
        self.0.gate.rules().rule(&host).retry_after_max()
    }

    /// Keeps what an answer holds.
    async fn read(
        &self,
        source: &Source,
        asking: Asking,
        page: Page,
        turn: Turn,
    ) -> Result<Fetched, StoreError> {
        let cursor = Cursor::of(source);
        let mut change = CursorChange::default();
        let moved_to = moved_to(&page);
        let believed = moved_to.as_ref().filter(|url| cursor.moved_to() == Some(url.as_str()));
        change.moved_to(moved_to.as_ref().filter(|_| believed.is_none()));
        let believed = believed.map(|url| (url.to_string(), lead_to(source, url)));
        let now = self.0.gate.clock().now();
        let (status, headers) = (page.status, &page.headers);
        if status == 304 {
            change.not_before(later(headers, &cursor.hints(), now));
            return Ok(Tally::default().fetched(change, believed, status));
        }
        let harvest = match read_answer(source.kind, &page).await {
            Ok(harvest) => harvest,
            Err(why) => {
                let unread = Unread::Failed { why, status: Some(status), until: None };
                return Ok(self.unread(source, unread));
            }
        };
        // What broke off, or names others that may change without it, is asked for as a whole next time.
        let none = http::HeaderMap::new();
        let whole = !harvest.is_cut && harvest.more.is_empty();
        change.validators(&page.url, if whole { headers } else { &none });
        change.hints(&harvest.hints);
        change.not_before(later(headers, &harvest.hints, now));
        let mut tally = Tally::default();
        let more = self.keep(source, asking, harvest, &mut tally).await?;
        self.follow(source, asking, more, turn, &mut tally).await?;
        Ok(tally.fetched(change, believed, status))
    }

    /// Keeps the items of an answer, a part at a time; the further answers that it names.
    pub(super) async fn keep(
        &self,
        source: &Source,
        asking: Asking,
        harvest: Harvest,
        tally: &mut Tally,
    ) -> Result<Vec<Url>, StoreError> {
        let now = self.0.gate.clock().now();
        tally.found += harvest.items.len() as u64;
        harvest.problems.into_iter().for_each(|problem| tally.problems.push(problem));
        tally.problems_count += harvest.problems_count;
        for note in &harvest.notes {
            tracing::info!(source = source.id.0, name = source.name, "{note}");
        }
        let mut items = harvest.items.into_iter().peekable();
        while items.peek().is_some() {
            let (mut part, mut size) = (Vec::new(), 0);
            while let Some(found) = items.next_if(|_| part.len() < KEEP && size < KEEP_BYTES) {
                size += found.details.size();
                part.push(NewItem {
                    identity: found.identity,
                    lead: lead_to(source, &found.url),
                    page_key: Some(normalise::page_key(&found.url)),
                    wants_hook: self.0.hooks.load(Ordering::Relaxed),
                    url: found.url.into(),
                    title: found.title,
                    published_at: found.published_at,
                    content_hash: found.hash,
                    details: found.details,
                });
            }
            let part = self.0.store.keep_items(asking, part, now).await?;
            tally.kept.new += part.new;
            tally.kept.known += part.known;
            tally.kept.changed += part.changed;
        }
        Ok(harvest.more)
    }

    /// What follows from an answer that could not be read, or none.
    fn unread(&self, source: &Source, unread: Unread) -> Fetched {
        let now = self.0.gate.clock().now();
        let (result, http_status, error) = match unread {
            Unread::Held { until, why } => (FetchResult::Held { until }, None, why),
            Unread::Gone => {
                let id = source.id;
                let error =
                    format!("answered 410: gone for good; comity sources set {id} --enabled on asks again");
                (FetchResult::Gone, Some(410), error)
            }
            Unread::Failed { why, status, until } => {
                let own = now + backoff(source.failures, jitter(source.id.0 as u64, now));
                let retry_at = until.map_or(own, |until| until.max(own));
                (FetchResult::Failed { retry_at }, status, why)
            }
            // Neither is an end of a fetch.
            Unread::Stopped | Unread::Store(_) => (FetchResult::Held { until: now }, None, String::new()),
        };
        Fetched { result, http_status, found: 0, kept: Kept::default(), error: Some(error) }
    }

    /// A source that fails without being asked.
    pub(super) fn invalid(&self, source: &Source, error: &str) -> Fetched {
        self.unread(source, Unread::Failed { why: error.to_owned(), status: None, until: None })
    }

    /// A source that is due but not asked.
    pub(super) fn held(&self, source: &Source, until: Timestamp, why: &str) -> Fetched {
        self.unread(source, Unread::Held { until, why: why.to_owned() })
    }
}

/// Reads an answer, on a thread of its own: a hostile one takes its time.
pub(super) async fn read_answer(kind: Kind, page: &Page) -> Result<Harvest, String> {
    let content_type =
        page.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let (body, url) = (page.body.clone(), page.url.clone());
    let reading =
        tokio::task::spawn_blocking(move || connectors::read(kind, &body, content_type.as_deref(), &url));
    match reading.await {
        Ok(read) => read.map_err(|error| error.to_string()),
        Err(_) => Err("the answer could not be read: it is not what its kind should be".to_owned()),
    }
}

impl Tally {
    pub(super) fn note(&mut self, problem: String) {
        self.problems.push(problem);
        self.problems_count += 1;
    }

    fn fetched(self, change: CursorChange, moved_to: Option<(String, Lead)>, status: u16) -> Fetched {
        let error = self.problems.first().map(|first| match self.problems_count {
            0 | 1 => first.clone(),
            count => format!("{first} (and {} more problems)", count - 1),
        });
        let result = FetchResult::Read { whole: error.is_none(), cursor: change.0, moved_to };
        Fetched { result, http_status: Some(status), found: self.found, kept: self.kept, error }
    }
}

/// Until when it is not worth asking: the later of what the headers and the feed say.
fn later(headers: &http::HeaderMap, said: &connectors::Hints, now: Timestamp) -> Option<(Timestamp, String)> {
    let server =
        caching::fresh_until(headers, now).map(|until| (until, "its server says nothing is new before"));
    let feed = hints::next_at(said, now).map(|until| (until, "the feed asks not to be fetched more often"));
    let latest = [server, feed].into_iter().flatten().max_by_key(|(until, _)| *until)?;
    (latest.0 > now).then(|| (latest.0, latest.1.to_owned()))
}

/// Where a source leads is not trusted, unless it is the very host that the operator listed (B76).
pub(super) fn lead_to(source: &Source, url: &Url) -> Lead {
    Url::parse(&source.url).map_or(Lead::Remote, |listed| redirected_lead(&listed, source.lead, url))
}

/// Where permanent redirects, and only those, led.
fn moved_to(page: &Page) -> Option<Url> {
    let permanent = page.hops.iter().take_while(|hop| matches!(hop.status, 301 | 308));
    permanent.last().map(|hop| hop.to.clone())
}

fn accept(kind: Kind) -> &'static str {
    match kind {
        Kind::Feed => {
            "application/atom+xml, application/rss+xml, application/feed+json, application/xml;q=0.9, \
             text/xml;q=0.9, */*;q=0.1"
        }
        Kind::Page => "text/html, application/xhtml+xml, */*;q=0.1",
        Kind::Sitemap => "application/xml, text/xml, application/gzip;q=0.9, */*;q=0.1",
        Kind::Urls => "text/plain, */*;q=0.1",
    }
}

/// The largest answer that is read, in bytes. Sitemaps may have 50 MB by their own rules.
fn body_max(kind: Kind) -> u64 {
    match kind {
        Kind::Feed | Kind::Page => 16 << 20,
        Kind::Sitemap | Kind::Urls => 52 << 20,
    }
}

/// A domain that is held back for longer than this is not waited for.
const PATIENCE: Span = Span::from_secs(10);
/// Items kept in one transaction,
const KEEP: usize = 2_000;
/// and about so many bytes of what is said about them.
const KEEP_BYTES: usize = 4 << 20;
