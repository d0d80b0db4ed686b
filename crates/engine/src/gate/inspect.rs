//! Looks at domains without taking them: domains held here as they are, domains held elsewhere as their holders
//! published them, and domains that nobody holds as the store keeps them. Every view says how old it is.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use comity_core::decision::Reason;
use comity_core::domain::Domain;
use comity_core::intent::Intent;
use comity_core::pace::{LastHolder, Pace, Pinned, Terms};
use comity_core::paces::DomainId;
use comity_core::rule::RuleTable;
use comity_core::time::{Span, Timestamp};
use comity_store::domains::{DomainKey, DomainRow, LastHolderBuf};
use comity_store::status::DomainSnapshot;
use comity_store::{Store, StoreError};
use serde_json::{Value, json};

use super::Gate;
use super::activity::RecentAttempt;
use super::query::DomainStatus;
use super::state::State;
use crate::clock::Clock;
use crate::event::Streaks;

/// Looks at domains on a store, whoever holds them. Holds nothing itself.
#[derive(Clone)]
pub struct Inspector {
    store: Arc<dyn Store>,
    rules: Arc<RuleTable>,
    clock: Clock,
}

/// A domain as it was at some time.
#[derive(Debug, Clone)]
pub struct DomainView {
    /// Its row in the store.
    pub row: DomainRow,
    /// The time of this view: when its holder published it, or now if nobody holds the domain. `None` if its holder did
    /// not publish it.
    pub as_of: Option<Timestamp>,
    pub(super) pace: Pace,
    pub(super) in_line: usize,
    pub(super) crawl_delay: Span,
    /// Its latest attempts, oldest first, if its holder was asked for it.
    pub(super) attempts: Vec<RecentAttempt>,
}

/// What a holder publishes about a domain.
#[derive(Debug)]
pub(super) struct Published {
    domain: String,
    epoch: i64,
    pace: String,
    in_line: usize,
    crawl_delay_us: u64,
    /// Only if somebody asked for it.
    attempts: Vec<RecentAttempt>,
}

/// Older and newer versions on the same store read and write this too: keys may be added.
impl Published {
    fn to_json(&self) -> Value {
        let Self { domain, epoch, pace, in_line, crawl_delay_us, attempts } = self;
        let mut value = json!({
            "domain": domain, "epoch": epoch, "pace": pace, "in_line": in_line, "crawl_delay_us": crawl_delay_us
        });
        if !attempts.is_empty() {
            value["attempts"] = attempts.iter().map(attempt_to_json).collect();
        }
        value
    }

    fn of_json(value: &Value) -> Option<Self> {
        Some(Self {
            domain: value["domain"].as_str()?.to_owned(),
            epoch: value["epoch"].as_i64()?,
            pace: value["pace"].as_str()?.to_owned(),
            in_line: value["in_line"].as_u64().and_then(|count| count.try_into().ok()).unwrap_or_default(),
            crawl_delay_us: value["crawl_delay_us"].as_u64().unwrap_or_default(),
            attempts: value["attempts"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(attempt_of_json)
                .collect(),
        })
    }
}

impl Inspector {
    /// An inspector for the domains on `store`.
    pub fn new(store: Arc<dyn Store>, rules: Arc<RuleTable>, clock: Clock) -> Self {
        Self { store, rules, clock }
    }

    /// The domain of `host`, up to date if its holder responds. `None` if it isn't in the store.
    pub async fn inspect(&self, host: &Domain) -> Result<Option<DomainView>, StoreError> {
        let domain = self.rules.domain(host);
        let Some(row) = self.store.find_domain(domain.clone()).await? else { return Ok(None) };
        if row.holder.is_none() {
            return Ok(Some(self.seen(row, None)));
        }
        let mut shown = self.ask_for(vec![domain.clone()]).await?;
        if shown.is_empty() {
            shown = self.published().await?;
        }
        // Another process may have taken it in the meantime.
        let Some(row) = self.store.find_domain(domain).await? else { return Ok(None) };
        let published = shown.remove(&row.domain).filter(|(published, _)| published.epoch == row.epoch);
        Ok(Some(self.seen(row, published)))
    }

    /// The domains of these rows, in the same order, as last published. Holders are asked for those that were not
    /// published.
    pub async fn inspect_rows(&self, rows: Vec<DomainRow>) -> Result<Vec<DomainView>, StoreError> {
        let mut shown = self.published().await?;
        let is_shown = |row: &DomainRow, shown: &HashMap<String, (Published, Timestamp)>| {
            shown.get(&row.domain).is_some_and(|(published, _)| published.epoch == row.epoch)
        };
        let hidden = rows.iter().filter(|row| row.holder.is_some() && !is_shown(row, &shown));
        let hidden: Vec<Domain> = hidden.filter_map(|row| Domain::read_back(&row.domain).ok()).collect();
        if !hidden.is_empty() {
            shown.extend(self.ask_for(hidden).await?);
        }
        let seen = rows.into_iter().map(|row| {
            let published = shown.remove(&row.domain).filter(|(published, _)| published.epoch == row.epoch);
            self.seen(row, published)
        });
        Ok(seen.collect())
    }

    /// Like [`Self::inspect_rows`], without waiting for holders: what nobody published has no time.
    pub(super) async fn look_at_rows(&self, rows: Vec<DomainRow>) -> Result<Vec<DomainView>, StoreError> {
        let held: Vec<Domain> = rows
            .iter()
            .filter(|row| row.holder.is_some())
            .filter_map(|row| Domain::read_back(&row.domain).ok())
            .collect();
        let mut shown = HashMap::new();
        if !held.is_empty() {
            shown = self.answered(held).await?;
            shown.extend(self.published().await?);
        }
        let seen = rows.into_iter().map(|row| {
            let published = shown.remove(&row.domain).filter(|(published, _)| published.epoch == row.epoch);
            self.seen(row, published)
        });
        Ok(seen.collect())
    }

    /// Recently published domains with their spacing and remaining wait.
    pub(super) async fn slowest(&self) -> Result<Vec<(Domain, Span, Span)>, StoreError> {
        let now = self.clock.now();
        let of = |(name, (published, published_at)): (String, (Published, Timestamp))| {
            let domain = Domain::read_back(&name).ok()?;
            let pace = published.pace()?;
            let crawl_delay = Span::from_micros(published.crawl_delay_us);
            let terms = Terms { rule: self.rules.rule_of(&domain), crawl_delay };
            (now.since(published_at) <= STALE).then(|| {
                let wait = pace.wait(terms, Intent::Fetch, now);
                (domain, pace.spacing(terms), wait)
            })
        };
        Ok(self.published().await?.into_iter().filter_map(of).collect())
    }

    /// What holders publish with each heartbeat.
    async fn published(&self) -> Result<HashMap<String, (Published, Timestamp)>, StoreError> {
        let mut published = HashMap::new();
        for working in self.store.live_processes().await? {
            let (Some((_, published_at)), Value::Array(sights)) = (working.status, working.sights) else {
                continue;
            };
            // Skip what another version wrote and this one can't read.
            let sights = sights.into_iter().filter_map(|sight| Published::of_json(&sight));
            published.extend(sights.map(|sight: Published| (sight.domain.clone(), (sight, published_at))));
        }
        Ok(published)
    }

    /// Asks the holders to publish these domains, and waits a moment for it.
    async fn ask_for(
        &self,
        domains: Vec<Domain>,
    ) -> Result<HashMap<String, (Published, Timestamp)>, StoreError> {
        self.store.request_snapshots(domains.clone(), self.clock.now()).await?;
        let mut shown = HashMap::new();
        for _ in 0..VIEW_POLLS_MAX {
            tokio::time::sleep(VIEW_POLL).await;
            shown = self.answered(domains.clone()).await?;
            if shown.len() == domains.len() {
                break;
            }
        }
        Ok(shown)
    }

    /// What holders answered when somebody asked for these domains.
    async fn answered(
        &self,
        domains: Vec<Domain>,
    ) -> Result<HashMap<String, (Published, Timestamp)>, StoreError> {
        let shown = self.store.snapshots(domains.clone()).await?;
        let read = |(domain, shown): (Domain, Option<(Value, Timestamp)>)| {
            let (value, published_at) = shown?;
            Some((domain.as_str().to_owned(), (Published::of_json(&value)?, published_at)))
        };
        Ok(domains.into_iter().zip(shown).filter_map(read).collect())
    }

    fn seen(&self, row: DomainRow, published: Option<(Published, Timestamp)>) -> DomainView {
        let now = self.clock.now();
        let domain = Domain::read_back(&row.domain).ok();
        let rule = domain.as_ref().map(|domain| self.rules.rule_of(domain));
        if let Some((published, published_at)) = published
            && let Some(pace) = published.pace()
        {
            let crawl_delay = Span::from_micros(published.crawl_delay_us);
            return DomainView {
                row,
                as_of: Some(published_at),
                pace,
                in_line: published.in_line,
                crawl_delay,
                attempts: published.attempts,
            };
        }
        let left = match &row.last_holder {
            // Its holder publishes nothing, so only the saved limits are known.
            None | Some(LastHolderBuf::None) => LastHolder::None,
            Some(LastHolderBuf::HandedOver(pace)) => LastHolder::HandedOver(pace),
            Some(LastHolderBuf::Stopped(pace)) => LastHolder::Stopped(pace),
            Some(LastHolderBuf::Died { latest }) => LastHolder::Died { latest: *latest },
        };
        let lost = LastHolder::Died { latest: now };
        let mut pace = rule.map_or_else(Pace::default, |rule| {
            let terms = Terms { rule, crawl_delay: Span::ZERO };
            let inherited = Pace::inherit(terms, &row.kept, left, now);
            inherited.or_else(|_| Pace::inherit(terms, &row.kept, lost, now)).unwrap_or_default()
        });
        if row.steering.pinned {
            pace.pin(Pinned::Yes);
        }
        if let Some(until) = row.steering.paused_until {
            pace.pause(Some(until));
        }
        let as_of = Some(now).filter(|_| row.holder.is_none());
        DomainView { row, as_of, pace, in_line: 0, crawl_delay: Span::ZERO, attempts: Vec::new() }
    }
}

impl DomainView {
    /// The status of the domain under these rules.
    pub fn status(&self, rules: &RuleTable, now: Timestamp) -> Option<DomainStatus> {
        let domain = Domain::read_back(&self.row.domain).ok()?;
        let terms = Terms { rule: rules.rule_of(&domain), crawl_delay: self.crawl_delay };
        Some(DomainStatus::of(&self.pace, terms, self.in_line, now))
    }

    /// All constraints on the next request, the binding one first.
    pub fn explain(&self, terms: Terms<'_>, intent: Intent, now: Timestamp) -> Vec<Reason> {
        self.pace.explain(self.terms(terms), intent, now)
    }

    /// What would keep a request from leaving, if anything.
    pub fn peek(&self, terms: Terms<'_>, intent: Intent, now: Timestamp) -> Option<Reason> {
        self.pace.peek(self.terms(terms), intent, now)
    }

    /// The terms with the longer crawl-delay, because the holder may know a newer robots.txt.
    fn terms<'a>(&self, terms: Terms<'a>) -> Terms<'a> {
        Terms { crawl_delay: terms.crawl_delay.max(self.crawl_delay), ..terms }
    }
}

impl Published {
    fn pace(&self) -> Option<Pace> {
        Pace::decode(&of_hex(&self.pace)?).ok()
    }
}

impl Gate {
    /// An inspector for all domains on the gate's store; `None` without a store.
    pub fn inspector(&self) -> Option<Inspector> {
        let registration = self.0.registration.as_ref()?;
        Some(Inspector::new(registration.store.clone(), self.0.rules.clone(), self.0.clock.clone()))
    }

    /// The domains that observers are most likely to ask for: the slowest, and those with the longest lines.
    pub(super) fn publish(&self, limit: usize) -> Value {
        let mut state = self.lock();
        let now = self.now();
        let mut survey = std::mem::take(&mut state.surveys.published);
        let found = self.heaviest(&state, &mut survey, limit, |terms, pace, in_line| {
            let slow = pace.spacing(terms).max(pace.wait(terms, Intent::Fetch, now));
            Some((slow + Span::from_secs(in_line as u64), ()))
        });
        state.surveys.published = survey;
        let ids = found.heaviest.into_iter().filter_map(|(domain, ())| state.dispatch.paces().find(&domain));
        let sights = ids.filter_map(|id| self.published(&state, id, Vec::new()));
        Value::Array(sights.map(|(_, value)| value).collect())
    }

    /// Snapshots of held domains, for observers who asked for them.
    pub(super) fn shows(&self, keys: &[DomainKey]) -> Vec<DomainSnapshot> {
        let state = self.lock();
        let ids = keys.iter().filter_map(|key| state.keys.get(key).copied());
        ids.filter_map(|id| self.published(&state, id, state.activities.recent(id)))
            .map(|(tenure, value)| DomainSnapshot { tenure, value })
            .collect()
    }

    fn published(
        &self,
        state: &State,
        id: DomainId,
        attempts: Vec<RecentAttempt>,
    ) -> Option<(comity_store::domains::Tenure, Value)> {
        let (held, pace) = (state.held.get(&id)?, state.dispatch.paces().pace(id)?);
        let crawl_delay = self.group_terms(state).terms(&held.domain).crawl_delay;
        let published = Published {
            domain: held.domain.as_str().to_owned(),
            epoch: held.tenure.epoch,
            pace: hex(&pace.encode()),
            in_line: state.dispatch.waiting(id),
            crawl_delay_us: crawl_delay.as_micros(),
            attempts,
        };
        Some((held.tenure, published.to_json()))
    }
}

impl DomainStatus {
    /// The current status of a pace.
    pub(super) fn of(pace: &Pace, terms: Terms<'_>, in_line: usize, now: Timestamp) -> Self {
        Self {
            spacing: pace.spacing(terms),
            delay: pace.learned().delay(),
            floor: pace.learned().floor(),
            penalties: pace.penalties(),
            streaks: Streaks::of(pace),
            in_flight: pace.in_flight(now),
            lent: pace.lent_permits(now).count(),
            waiting: in_line,
            wait: pace.wait(terms, Intent::Fetch, now),
            pinned: pace.learned().pinned(),
            paused_until: pace.paused_at(now),
            server_until: pace.server_until(),
            last_start: pace.last_start(),
            last_success: pace.last_success(),
        }
    }
}

impl DomainStatus {
    /// When the next request could leave; [`Timestamp::MAX`] if not until an operator resumes the domain.
    pub fn next_available(&self, now: Timestamp) -> Timestamp {
        match self.paused_until {
            Some(Timestamp::MAX) => Timestamp::MAX,
            _ => now + self.wait,
        }
    }
}

/// An attempt as a list: times in microseconds, and what is not known as null.
fn attempt_to_json(attempt: &RecentAttempt) -> Value {
    let RecentAttempt { at, took, outcome, status, waited, delay } = attempt;
    json!([at.as_micros(), took.as_micros(), outcome.as_str(), status, waited.as_micros(), delay.as_micros()])
}

fn attempt_of_json(value: &Value) -> Option<RecentAttempt> {
    let span = |nth: usize| value[nth].as_u64().map(Span::from_micros);
    Some(RecentAttempt {
        at: Timestamp::from_micros(value[0].as_i64()?),
        took: span(1)?,
        outcome: value[2].as_str()?.parse().ok()?,
        status: value[3].as_u64().and_then(|status| status.try_into().ok()),
        waited: span(4)?,
        delay: span(5)?,
    })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn of_hex(text: &str) -> Option<Vec<u8>> {
    let pair = |nth| u8::from_str_radix(text.get(nth..nth + 2)?, 16).ok();
    (0..text.len()).step_by(2).map(pair).collect()
}

/// How often to check for a requested snapshot.
const VIEW_POLL: Duration = Duration::from_millis(50);
/// How many times to check for a requested snapshot.
const VIEW_POLLS_MAX: u32 = 50;
/// A published domain older than this is out of date.
const STALE: Span = Span::from_secs(10);
