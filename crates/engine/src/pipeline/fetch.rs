//! Fetches one source: sends the request, parses the response, and stores the items and the new state of the source.
//!
//! A fetch is one attempt: a failed source is retried in a later run, after its backoff. A domain that is held back for
//! long is not waited for.

use std::sync::atomic::Ordering;

use comity_core::cadence::RunWindow;
use comity_core::domain::Domain;
use comity_core::headers::RetryAfter;
use comity_core::time::{Span, Timestamp};
use comity_store::StoreError;
use comity_store::sources::{
    FetchEnd, FetchResult, ItemChanges, Kind, NewItem, Source, SourceChange, SourceTenure,
};
use comity_store::tasks::Lead;
use http::HeaderValue;
use http::header::CONTENT_TYPE;
use url::Url;

use super::Pipeline;
use super::backoff::{backoff, jitter};
use super::cursor::{Cursor, CursorChange};
use super::{Turn, caching, hints, names};
use crate::attempt::{pacing_hints, redirected_lead};
use crate::client::{ClientError, FetchRequest, Page};
use crate::connectors::{self, ParsedSource, normalize};
use crate::gate::GateError;
use crate::transport::TransportError;

/// The result of fetching a source.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Fetched {
    pub(super) result: FetchResult,
    pub(super) http_status: Option<u16>,
    pub(super) found: u64,
    pub(super) kept: ItemChanges,
    pub(super) error: Option<String>,
}

/// Why there is no usable response.
pub(super) enum NotFetched {
    /// The domain is held back.
    Held { until: Timestamp, why: String },
    /// The request failed; `until` is the time from Retry-After.
    Failed { why: String, status: Option<u16>, until: Option<Timestamp> },
    /// A variable or file that the request options of the site refer to is missing; nothing was sent.
    Unconfigured(String),
    /// The source is gone (410).
    Gone,
    /// The run is stopping.
    Stopped,
    /// The store failed, which is not the fault of the source.
    Store(StoreError),
}

/// What was found in a source so far.
#[derive(Default)]
pub(super) struct Tally {
    pub(super) found: u64,
    kept: ItemChanges,
    problems: Vec<String>,
    problems_count: u64,
}

impl Pipeline {
    /// Fetches a source, stores its items, and commits the result; `None` if it was stopped before the request.
    pub(super) async fn fetch(
        &self,
        source: &Source,
        tenure: SourceTenure,
        window: RunWindow,
        turn: Turn,
    ) -> Result<Option<Fetched>, StoreError> {
        let started_at = self.0.gate.clock().now();
        let mut fetched = match self.request(source, Url::parse(&source.url), source.lead).await {
            Ok(page) => self.read(source, tenure, page, turn).await?,
            Err(NotFetched::Stopped) => return Ok(None),
            Err(NotFetched::Store(error)) => return Err(error),
            Err(error) => self.not_fetched(source, error),
        };
        let moved = self.end_fetch(tenure, window, started_at, &fetched).await?;
        if let FetchResult::Read { moved_to, .. } = &mut fetched.result {
            // It did not move if another source already has that URL.
            moved_to.take_if(|_| !moved);
        }
        Ok(Some(fetched))
    }

    /// Commits the result of a fetch, or that there was none. Returns whether the source has moved.
    pub(super) async fn end_fetch(
        &self,
        tenure: SourceTenure,
        window: RunWindow,
        started_at: Timestamp,
        fetched: &Fetched,
    ) -> Result<bool, StoreError> {
        let Fetched { result, http_status, found, kept, error } = fetched.clone();
        let ended_at = self.0.gate.clock().now();
        let window = window.looked_at(ended_at);
        let end = FetchEnd {
            tenure,
            window,
            started_at,
            ended_at,
            result,
            http_status,
            found,
            changes: kept,
            error,
        };
        self.0.store.end_fetch(end).await
    }

    pub(super) async fn request(
        &self,
        source: &Source,
        url: Result<Url, url::ParseError>,
        lead: Lead,
    ) -> Result<Page, NotFetched> {
        let failed = |why: String| NotFetched::Failed { why, status: None, until: None };
        let url = url.map_err(|error| failed(format!("url: {error}")))?;
        let request = FetchRequest {
            accept: Some(HeaderValue::from_static(accept(source.kind))),
            conditions: Cursor::of(source).conditions(),
            body_max: Some(body_max(source.kind)),
            patience: PATIENCE,
            stop: Some(self.0.stopping.subscribe()),
            ..FetchRequest::new(url, lead)
        };
        let page = self.0.client.fetch(&request).await.map_err(|error| match error {
            ClientError::Held { reason, .. } => {
                NotFetched::Held { until: reason.until, why: reason.to_string() }
            }
            ClientError::Stopped => NotFetched::Stopped,
            ClientError::Gate(GateError::Store(error)) => NotFetched::Store(error),
            ClientError::Gate(GateError::Closed) => NotFetched::Store(StoreError::Closed),
            ClientError::Gate(GateError::Lost) => NotFetched::Store(StoreError::Lost),
            ClientError::Transport { cause: cause @ TransportError::Options(_), .. } => {
                NotFetched::Unconfigured(cause.to_string())
            }
            error => failed(error.to_string()),
        })?;
        match page.status {
            200..=299 | 304 => Ok(page),
            410 => Err(NotFetched::Gone),
            status => {
                let now = self.0.gate.clock().now();
                let until = match pacing_hints(&page.headers, now).retry_after {
                    RetryAfter::After(asked) => Some(now + asked.min(self.retry_after_max(&page.url))),
                    RetryAfter::Absent | RetryAfter::Unusable => None,
                };
                Err(NotFetched::Failed { why: format!("answered {status}"), status: Some(status), until })
            }
        }
    }

    /// The longest Retry-After that is honored.
    fn retry_after_max(&self, url: &Url) -> Span {
        let host = Domain::of(url).unwrap_or_else(|| self.0.placeholder.clone());
        self.0.gate.rules().rule(&host).retry_after_max()
    }

    /// Parses a response and stores what it contains.
    async fn read(
        &self,
        source: &Source,
        tenure: SourceTenure,
        page: Page,
        turn: Turn,
    ) -> Result<Fetched, StoreError> {
        let cursor = Cursor::of(source);
        let mut change = CursorChange::default();
        let moved_to = moved_to(&page);
        // A source only moves when the same redirect was seen twice.
        let confirmed = moved_to.as_ref().filter(|url| cursor.moved_to() == Some(url.as_str()));
        change.moved_to(moved_to.as_ref().filter(|_| confirmed.is_none()));
        let confirmed = confirmed.map(|url| (url.to_string(), lead_to(source, url)));
        let now = self.0.gate.clock().now();
        let (status, headers) = (page.status, &page.headers);
        if status == 304 {
            change.not_before(not_before(headers, &cursor.hints(), now));
            return Ok(Tally::default().fetched(change, confirmed, status));
        }
        let parsed = match parse_response(source.kind, &page).await {
            Ok(parsed) => parsed,
            Err(why) => {
                let failed = NotFetched::Failed { why, status: Some(status), until: None };
                return Ok(self.not_fetched(source, failed));
            }
        };
        // A truncated response must be fetched completely next time, and so must a sitemap index, because its sitemaps
        // may change while the index does not.
        let none = http::HeaderMap::new();
        let is_conditional = !parsed.is_truncated && parsed.sitemaps.is_empty();
        change.validators(&page.url, if is_conditional { headers } else { &none });
        change.hints(&parsed.hints);
        change.not_before(not_before(headers, &parsed.hints, now));
        if let Some(rename) = names::from_title(source, parsed.title.as_deref()) {
            let change = SourceChange { rename: Some(rename), ..SourceChange::default() };
            self.0.store.change_source(source.id, change).await?;
        }
        let mut tally = Tally::default();
        let sitemaps = self.keep(source, tenure, parsed, &mut tally).await?;
        self.follow(source, tenure, sitemaps, turn, &mut tally).await?;
        Ok(tally.fetched(change, confirmed, status))
    }

    /// Stores the items of a response in parts, and returns the sitemaps that it lists.
    pub(super) async fn keep(
        &self,
        source: &Source,
        tenure: SourceTenure,
        parsed: ParsedSource,
        tally: &mut Tally,
    ) -> Result<Vec<Url>, StoreError> {
        let now = self.0.gate.clock().now();
        tally.found += parsed.items.len() as u64;
        parsed.problems.into_iter().for_each(|problem| tally.problems.push(problem));
        tally.problems_count += parsed.problems_count;
        for note in &parsed.notes {
            tracing::info!(source = source.id.0, name = source.name, "{note}");
        }
        let mut items = parsed.items.into_iter().peekable();
        while items.peek().is_some() {
            let (mut part, mut size) = (Vec::new(), 0);
            while let Some(found) = items.next_if(|_| part.len() < KEEP && size < KEEP_BYTES) {
                size += found.details.size();
                part.push(NewItem {
                    identity: found.identity,
                    lead: lead_to(source, &found.url),
                    page_key: Some(normalize::page_key(&found.url)),
                    wants_hook: self.0.hooks.load(Ordering::Relaxed),
                    url: found.url.into(),
                    title: found.title,
                    published_at: found.published_at,
                    content_hash: found.hash,
                    details: found.details,
                });
            }
            let part = self.0.store.keep_items(tenure, part, now).await?;
            tally.kept.new += part.new;
            tally.kept.known += part.known;
            tally.kept.changed += part.changed;
        }
        Ok(parsed.sitemaps)
    }

    /// The result of a fetch without a usable response.
    fn not_fetched(&self, source: &Source, reason: NotFetched) -> Fetched {
        let now = self.0.gate.clock().now();
        let (result, http_status, error) = match reason {
            NotFetched::Held { until, why } => (FetchResult::Held { until }, None, why),
            NotFetched::Gone => {
                let id = source.id;
                let error =
                    format!("answered 410 (gone); to fetch it again: comity sources set {id} --enabled on");
                (FetchResult::Gone, Some(410), error)
            }
            NotFetched::Failed { why, status, until } => {
                let own = now + backoff(source.failures, jitter(source.id.0 as u64, now));
                let retry_at = until.map_or(own, |until| until.max(own));
                (FetchResult::Failed { retry_at }, status, why)
            }
            // Nothing was sent, and it works as soon as the variable or file exists: no backoff.
            NotFetched::Unconfigured(why) => (FetchResult::Failed { retry_at: now }, None, why),
            // These are handled by the caller; the fetch has no result.
            NotFetched::Stopped | NotFetched::Store(_) => {
                (FetchResult::Held { until: now }, None, String::new())
            }
        };
        Fetched { result, http_status, found: 0, kept: ItemChanges::default(), error: Some(error) }
    }

    /// The result for a source that fails without a request.
    pub(super) fn invalid(&self, source: &Source, error: &str) -> Fetched {
        self.not_fetched(source, NotFetched::Failed { why: error.to_owned(), status: None, until: None })
    }

    /// The result for a source that is due but held back.
    pub(super) fn held(&self, source: &Source, until: Timestamp, why: &str) -> Fetched {
        self.not_fetched(source, NotFetched::Held { until, why: why.to_owned() })
    }
}

/// Parses a response on a blocking thread, because a hostile one may take long.
pub(super) async fn parse_response(kind: Kind, page: &Page) -> Result<ParsedSource, String> {
    let content_type =
        page.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let (body, url) = (page.body.clone(), page.url.clone());
    let reading =
        tokio::task::spawn_blocking(move || connectors::read(kind, &body, content_type.as_deref(), &url));
    match reading.await {
        Ok(read) => read.map_err(|error| error.to_string()),
        Err(_) => Err("parsing the response failed unexpectedly".to_owned()),
    }
}

impl Tally {
    pub(super) fn add_problem(&mut self, problem: String) {
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

/// The earliest time for the next request: the later of what the headers and the feed say.
fn not_before(
    headers: &http::HeaderMap,
    hints: &connectors::Hints,
    now: Timestamp,
) -> Option<(Timestamp, String)> {
    let server = caching::fresh_until(headers, now)
        .map(|until| (until, "its server's caching headers say there is nothing new before then"));
    let feed = hints::next_at(hints, now).map(|until| (until, "the feed asks not to be fetched more often"));
    let latest = [server, feed].into_iter().flatten().max_by_key(|(until, _)| *until)?;
    (latest.0 > now).then(|| (latest.0, latest.1.to_owned()))
}

/// URLs found via a source are not trusted, unless they are on the host that the operator listed.
pub(super) fn lead_to(source: &Source, url: &Url) -> Lead {
    Url::parse(&source.url).map_or(Lead::Remote, |listed| redirected_lead(&listed, source.lead, url))
}

/// Where permanent redirects led, up to the first temporary one.
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

/// The maximum size of a response in bytes. The sitemap protocol allows 50 MB.
fn body_max(kind: Kind) -> u64 {
    match kind {
        Kind::Feed | Kind::Page => 16 << 20,
        Kind::Sitemap | Kind::Urls => 52 << 20,
    }
}

/// A domain that is held back for longer than this is not waited for.
const PATIENCE: Span = Span::from_secs(10);
/// The maximum number of items stored in one transaction.
const KEEP: usize = 2_000;
/// The approximate maximum size of item details stored in one transaction.
const KEEP_BYTES: usize = 4 << 20;
