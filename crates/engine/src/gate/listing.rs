//! Lists of domains and what happened on them, for people: what is known here, what other processes published, and what is in
//! the store, whichever is the latest. Nothing here waits for another process, except to see one domain in detail.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use comity_core::decision::Reason;
use comity_core::domain::Domain;
use comity_core::intent::Intent;
use comity_core::outcome::Outcome;
use comity_core::pace::{Pace, Terms};
use comity_core::paces::DomainId;
use comity_core::time::{Span, Timestamp};
use comity_store::StoreError;
use comity_store::activity::{
    DomainActivity, DomainCursor, DomainQuery, DomainReport, DomainSort, LastAnswer, ListedDomain, Order,
    Sample,
};
use comity_store::domains::Tenure;
use comity_store::jobs::Counted;

use super::activity::{RecentAttempt, ToReport};
use super::query::DomainStatus;
use super::registration::Registration;
use super::state::State;
use super::{Gate, Inner};
use crate::event::Streaks;

/// Some of the domains on a store.
#[derive(Debug, Clone, Default)]
pub struct DomainSummaries {
    /// The domains.
    pub domains: Vec<DomainSummary>,
    /// Where to continue, if there are more.
    pub next: Option<DomainCursor>,
    /// How many there are with such a name on all pages, counted up to
    /// [`FOUND_MAX`](comity_store::activity::FOUND_MAX).
    pub found: u64,
}

/// A domain in a list.
#[derive(Debug, Clone)]
pub struct DomainSummary {
    /// The domain.
    pub domain: Domain,
    /// The minimum time between request starts.
    pub delay: Span,
    /// The learned delay.
    pub learned: Span,
    /// The floor of the learned delay.
    pub floor: Span,
    /// Until when it is closed, by the server, by backoff or by an operator; `None` if it is open.
    pub held_until: Option<Timestamp>,
    /// What delays the next request most; `None` if nothing does, or if that is not known.
    pub reason: Option<Reason>,
    /// The limit that delays the next request most, by its name in JSON: that of `reason`, or as last reported.
    pub limit: Option<String>,
    /// Successes or failures in a row.
    pub streaks: Streaks,
    /// The last answer, if one was reported.
    pub last: Option<LastAnswer>,
    /// Tasks of all jobs that wait for it.
    pub waiting: Counted,
    /// Callers and tasks in line in its holder.
    pub in_line: usize,
    /// Requests in flight.
    pub in_flight: usize,
    /// The process that holds it, if any.
    pub holder: Option<String>,
    /// The machine of that process, if the store knows.
    pub machine: Option<String>,
    /// Whether an operator pinned the learned delay.
    pub pinned: bool,
    /// Until when an operator paused it; [`Timestamp::MAX`] means until resumed.
    pub paused_until: Option<Timestamp>,
    /// The time of this information.
    pub as_of: Option<Timestamp>,
}

/// What happened on a domain.
#[derive(Debug, Clone, Default)]
pub struct Timeline {
    /// The latest attempts, oldest first, as far as the process remembers that holds the domain.
    pub attempts: Vec<RecentAttempt>,
    /// What happened during the last day, oldest first.
    pub samples: Vec<Sample>,
}

/// A site that refuses requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// The domain.
    pub domain: String,
    /// Why it is closed, in a few words.
    pub why: String,
    /// Until when.
    pub until: Option<Timestamp>,
}

/// A domain that is no longer held here, with what was not reported about it.
#[derive(Debug)]
pub(super) struct Departed {
    pub(super) domain: Domain,
    pub(super) tenure: Tenure,
    pub(super) pace: Pace,
    pub(super) left: ToReport,
}

impl Gate {
    /// Domains on the gate's store in pages, sorted and searched. Their order is that of what was last reported to the
    /// store; what is shown is the latest that is known.
    pub async fn page_domains(&self, query: DomainQuery) -> Result<DomainSummaries, StoreError> {
        let Some(registration) = &self.0.registration else { return Ok(DomainSummaries::default()) };
        self.0.listed_at.store(self.now().as_micros(), Ordering::Relaxed);
        let page = registration.store.page_domains(query).await?;
        let statuses = self.statuses(registration, &page.domains).await?;
        let now = self.now();
        let domains = page.domains.into_iter().zip(statuses);
        let domains = domains.filter_map(|(listed, status)| self.summary(listed, status, now)).collect();
        Ok(DomainSummaries { domains, next: page.next, found: page.found })
    }

    /// What happened on the domain of `host`. If another process holds it, that one is asked for its latest attempts.
    pub async fn timeline(&self, host: &Domain) -> Result<Timeline, StoreError> {
        let domain = self.0.rules.domain(host);
        let here = {
            let state = self.lock();
            let id = state.dispatch.paces().find(&domain).filter(|_| state.is_held(&domain));
            id.map(|id| (state.activities.recent(id), state.activities.unreported(id).1.to_vec()))
        };
        let Some(registration) = &self.0.registration else {
            let (attempts, samples) = here.unwrap_or_default();
            return Ok(Timeline { attempts, samples });
        };
        let mut samples = registration.store.domain_history(domain.clone()).await?;
        let attempts = match here {
            Some((attempts, unreported)) => {
                unreported.iter().for_each(|sample| add_sample(&mut samples, sample));
                attempts
            }
            None => match self.inspector() {
                Some(inspector) => {
                    inspector.inspect(host).await?.map(|view| view.attempts).unwrap_or_default()
                }
                None => Vec::new(),
            },
        };
        Ok(Timeline { attempts, samples })
    }

    /// The sites that are closed for longest because they refuse requests, at most `limit`.
    pub async fn trouble(&self, limit: u32) -> Result<Vec<Trouble>, StoreError> {
        let query = DomainQuery {
            sort: DomainSort::HeldUntil,
            order: Order::Descending,
            // Some may be paused, or open again.
            limit: limit.saturating_mul(2),
            ..DomainQuery::default()
        };
        let now = self.now();
        let closed = self.page_domains(query).await?.domains.into_iter().filter_map(|site| {
            let until = site.held_until.filter(|until| *until > now && site.paused_until.is_none())?;
            let why = match (&site.reason, site.last) {
                (Some(reason), _) if reason.is_hold() => reason.brief(),
                (_, Some(last)) if last.outcome.is_penalty() => words(last.outcome).to_owned(),
                _ => "closed".to_owned(),
            };
            Some(Trouble { domain: site.domain.to_string(), why, until: Some(until) })
        });
        Ok(closed.take(limit as usize).collect())
    }

    /// The latest known status of each domain: as it is here, as its holder published it, or as it was left.
    async fn statuses(
        &self,
        registration: &Registration,
        listed: &[ListedDomain],
    ) -> Result<Vec<Option<Known>>, StoreError> {
        let now = self.now();
        let mut known: Vec<Option<Known>> = {
            let state = self.lock();
            let whole = self.group_terms(&state);
            let here = |listed: &ListedDomain| {
                let domain = Domain::read_back(&listed.row.domain).ok()?;
                let id = state.dispatch.paces().find(&domain).filter(|_| state.is_held(&domain))?;
                let pace = state.dispatch.paces().pace(id)?;
                let last = state.activities.unreported(id).0;
                let terms = whole.terms(&domain);
                Some(Known { last, ..Known::of(pace, terms, state.dispatch.waiting(id), now, now) })
            };
            listed.iter().map(here).collect()
        };
        let elsewhere = listed.iter().zip(&known).filter(|(_, known)| known.is_none());
        let rows: Vec<_> = elsewhere.map(|(listed, _)| listed.row.clone()).collect();
        let Some(inspector) = self.inspector().filter(|_| !rows.is_empty()) else { return Ok(known) };
        let mut views = inspector.look_at_rows(rows).await?.into_iter();
        // They answer for the next look.
        let hidden: Vec<Domain> = views
            .as_slice()
            .iter()
            .filter(|view| view.as_of.is_none())
            .filter_map(|view| Domain::read_back(&view.row.domain).ok())
            .collect();
        if !hidden.is_empty() {
            let (store, asked_at) = (registration.store.clone(), now);
            registration.spawn(async move {
                if let Err(error) = store.request_snapshots(hidden, asked_at).await {
                    tracing::debug!(%error, "could not ask other processes for their sites");
                }
            });
        }
        for known in known.iter_mut().filter(|known| known.is_none()) {
            let Some(view) = views.next() else { break };
            *known = view.as_of.and_then(|as_of| {
                let domain = Domain::read_back(&view.row.domain).ok()?;
                let terms = Terms { rule: self.0.rules.rule_of(&domain), crawl_delay: view.crawl_delay };
                let last = view.attempts.last().map(|last| LastAnswer {
                    at: last.at + last.took,
                    outcome: last.outcome,
                    status: last.status,
                });
                Some(Known { last, ..Known::of(&view.pace, terms, view.in_line, as_of, now) })
            });
        }
        Ok(known)
    }

    fn summary(&self, listed: ListedDomain, known: Option<Known>, now: Timestamp) -> Option<DomainSummary> {
        let ListedDomain { row, machine, reported, waiting } = listed;
        let domain = Domain::read_back(&row.domain).ok()?;
        let (activity, reported_at) = reported.unzip();
        let activity = activity.unwrap_or_default();
        let exact = Counted { number: row.waiting, or_more: false };
        let waiting = match row.waiting {
            ROW_COUNTED_MAX.. => Counted { number: row.waiting.max(waiting), or_more: true },
            _ => exact,
        };
        let last = later(known.as_ref().and_then(|known| known.last), activity.last);
        let summary = match known {
            Some(Known { status, reason, held_until, as_of, .. }) => DomainSummary {
                delay: status.spacing,
                learned: status.delay,
                floor: status.floor,
                held_until,
                limit: reason.map(|reason| reason.limit.as_str().to_owned()),
                reason,
                streaks: status.streaks,
                last,
                waiting,
                in_line: status.waiting,
                in_flight: status.in_flight,
                pinned: status.pinned,
                paused_until: status.paused_until,
                as_of: Some(as_of),
                holder: row.holder,
                machine,
                domain,
            },
            // Its holder has not published it yet: the last report is the best that is known.
            None => DomainSummary {
                delay: activity.delay,
                learned: row.kept.delay,
                floor: row.kept.floor,
                held_until: activity.held_until.filter(|until| *until > now),
                reason: None,
                limit: activity.limit,
                streaks: Streaks { success: activity.success_streak, error: activity.error_streak },
                last,
                waiting,
                in_line: 0,
                in_flight: 0,
                pinned: row.steering.pinned,
                paused_until: row.steering.paused_at(now),
                as_of: reported_at,
                holder: row.holder,
                machine,
                domain,
            },
        };
        Some(summary)
    }
}

/// The later one of two answers.
fn later(one: Option<LastAnswer>, other: Option<LastAnswer>) -> Option<LastAnswer> {
    one.into_iter().chain(other).max_by_key(|answer| answer.at)
}

/// What is known about a domain.
struct Known {
    status: DomainStatus,
    reason: Option<Reason>,
    held_until: Option<Timestamp>,
    last: Option<LastAnswer>,
    as_of: Timestamp,
}

impl Known {
    fn of(pace: &Pace, terms: Terms<'_>, in_line: usize, as_of: Timestamp, now: Timestamp) -> Self {
        let reasons = pace.explain(terms, Intent::Fetch, now);
        Self {
            status: DomainStatus::of(pace, terms, in_line, now),
            reason: reasons.first().filter(|reason| reason.binds()).copied(),
            held_until: held_until(&reasons).filter(|until| *until > now),
            last: None,
            as_of,
        }
    }
}

/// The end of the last hold, which may be in the past.
fn held_until(reasons: &[Reason]) -> Option<Timestamp> {
    reasons.iter().filter(|reason| reason.is_hold()).map(|reason| reason.until).max()
}

/// How a domain is doing, for a report.
fn activity_of(pace: &Pace, terms: Terms<'_>, last: Option<LastAnswer>, now: Timestamp) -> DomainActivity {
    let reasons = pace.explain(terms, Intent::Fetch, now);
    let streaks = Streaks::of(pace);
    DomainActivity {
        delay: pace.spacing(terms),
        learned: pace.learned().delay(),
        held_until: held_until(&reasons),
        limit: reasons.first().filter(|reason| reason.binds()).map(|reason| reason.limit.as_str().to_owned()),
        success_streak: streaks.success,
        error_streak: streaks.error,
        last,
    }
}

/// Adds what was not reported yet to what was.
fn add_sample(samples: &mut Vec<Sample>, more: &Sample) {
    match samples.last_mut().filter(|last| last.from + last.span > more.from) {
        Some(last) => {
            last.requests += more.requests;
            last.rate_limited += more.rate_limited;
            last.failed += more.failed;
            last.held += more.held;
            last.learned = more.learned;
        }
        None => samples.push(*more),
    }
}

fn words(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::RateLimited => "rate limited (429)",
        Outcome::Blocked => "blocked (403)",
        Outcome::Unavailable => "unavailable (503)",
        Outcome::ServerError => "server errors",
        Outcome::Timeout => "timeouts",
        Outcome::NetworkError => "network errors",
        Outcome::Success | Outcome::Answered => "closed",
    }
}

/// Takes what is to be reported by `now` about at most `limit` domains.
pub(super) fn take_reports(inner: &Arc<Inner>, limit: usize, now: Timestamp) -> Vec<DomainReport> {
    let gate = Gate(inner.clone());
    let mut state = inner.lock();
    let due: HashMap<DomainId, ToReport> = state.activities.take_due(now, limit).into_iter().collect();
    let departed = std::mem::take(&mut state.departed);
    let at = inner.clock.now();
    let whole = gate.group_terms(&state);
    let report =
        |(id, due): (DomainId, ToReport)| report_of(&state, id, due, |domain| whole.terms(domain), at);
    let mut reports: Vec<DomainReport> = due.into_iter().filter_map(report).collect();
    reports.extend(departed.into_iter().map(|Departed { domain, tenure, pace, left }| DomainReport {
        tenure,
        activity: activity_of(&pace, whole.terms(&domain), left.last, at),
        samples: left.samples,
    }));
    reports
}

fn report_of<'a>(
    state: &State,
    id: DomainId,
    due: ToReport,
    terms: impl Fn(&Domain) -> Terms<'a>,
    now: Timestamp,
) -> Option<DomainReport> {
    let (held, pace) = (state.held.get(&id)?, state.dispatch.paces().pace(id)?);
    let activity = activity_of(pace, terms(&held.domain), due.last, now);
    Some(DomainReport { tenure: held.tenure, activity, samples: due.samples })
}

/// [`DomainRow::waiting`](comity_store::domains::DomainRow::waiting) doesn't count beyond this.
const ROW_COUNTED_MAX: u64 = 1_000;
