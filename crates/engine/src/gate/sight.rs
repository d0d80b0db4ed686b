//! Domains as they are to be seen without taking them (B81): those held here as they are, those that others hold as their
//! holders published them, those that nobody holds as the store keeps them. What is seen says how old it is.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use comity_core::decision::Reason;
use comity_core::domain::Domain;
use comity_core::intent::Intent;
use comity_core::pace::{Left, Pace, Pinned, Terms};
use comity_core::paces::DomainId;
use comity_core::rule::RuleTable;
use comity_core::time::{Span, Timestamp};
use comity_store::domains::{DomainKey, DomainRow, LeftBehind};
use comity_store::status::Sight;
use comity_store::{Store, StoreError};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Gate;
use super::look::Live;
use super::state::State;
use crate::clock::Clock;
use crate::event::Streaks;

/// Looks at domains on a store, whoever holds them. It holds nothing itself.
#[derive(Clone)]
pub struct Looker {
    store: Arc<dyn Store>,
    rules: Arc<RuleTable>,
    clock: Clock,
}

/// A domain as it was at some moment.
#[derive(Debug, Clone)]
pub struct Seen {
    /// Its row in the store.
    pub row: DomainRow,
    /// When its holder saw it so; now, when nobody holds it. Nothing when its holder did not show it.
    pub as_of: Option<Timestamp>,
    pace: Pace,
    in_line: usize,
    crawl_delay: Span,
}

/// What a holder publishes of a domain.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Published {
    domain: String,
    epoch: i64,
    pace: String,
    #[serde(default)]
    in_line: usize,
    #[serde(default)]
    crawl_delay_us: u64,
}

impl Looker {
    /// Looks at what is on `store`, by these rules.
    pub fn new(store: Arc<dyn Store>, rules: Arc<RuleTable>, clock: Clock) -> Self {
        Self { store, rules, clock }
    }

    /// The domain that `host` belongs to, as it is now if its holder answers; nothing when it is not known.
    pub async fn look(&self, host: &Domain) -> Result<Option<Seen>, StoreError> {
        let domain = self.rules.domain(host);
        let Some(row) = self.store.find_domain(domain.clone()).await? else { return Ok(None) };
        if row.holder.is_none() {
            return Ok(Some(self.seen(row, None)));
        }
        let mut shown = self.ask_for(vec![domain.clone()]).await?;
        if shown.is_empty() {
            shown = self.published().await?;
        }
        // Somebody else may have it by now.
        let Some(row) = self.store.find_domain(domain).await? else { return Ok(None) };
        let published = shown.remove(&row.domain).filter(|(published, _)| published.epoch == row.epoch);
        Ok(Some(self.seen(row, published)))
    }

    /// The domains of these rows, in this order, as they were published; those that were not are asked for.
    pub async fn see(&self, rows: Vec<DomainRow>) -> Result<Vec<Seen>, StoreError> {
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

    /// The domains that were published lately: their spacing, and how long they still wait.
    pub(super) async fn slowest(&self) -> Result<Vec<(Domain, Span, Span)>, StoreError> {
        let now = self.clock.now();
        let of = |(name, (published, seen_at)): (String, (Published, Timestamp))| {
            let domain = Domain::read_back(&name).ok()?;
            let pace = published.pace()?;
            let crawl_delay = Span::from_micros(published.crawl_delay_us);
            let terms = Terms { rule: self.rules.rule_of(&domain), crawl_delay };
            (now.since(seen_at) <= STALE).then(|| {
                let wait = pace.wait(terms, Intent::Fetch, now);
                (domain, pace.spacing(terms), wait)
            })
        };
        Ok(self.published().await?.into_iter().filter_map(of).collect())
    }

    /// What holders publish with each beat.
    async fn published(&self) -> Result<HashMap<String, (Published, Timestamp)>, StoreError> {
        let mut published = HashMap::new();
        for working in self.store.working().await? {
            let (Some((_, told_at)), Value::Array(sights)) = (working.told, working.sights) else { continue };
            // What another version wrote may not be understood.
            let sights = sights.into_iter().filter_map(|sight| serde_json::from_value(sight).ok());
            published.extend(sights.map(|sight: Published| (sight.domain.clone(), (sight, told_at))));
        }
        Ok(published)
    }

    /// Wishes to see domains, and waits until their holders show them, for a moment.
    async fn ask_for(
        &self,
        domains: Vec<Domain>,
    ) -> Result<HashMap<String, (Published, Timestamp)>, StoreError> {
        self.store.wish(domains.clone(), self.clock.now()).await?;
        let mut shown = Vec::new();
        for _ in 0..LOOKS {
            tokio::time::sleep(LOOK).await;
            shown = self.store.shown(domains.clone()).await?;
            if shown.iter().all(Option::is_some) {
                break;
            }
        }
        let read = |(domain, shown): (Domain, Option<(Value, Timestamp)>)| {
            let (told, seen_at) = shown?;
            Some((domain.as_str().to_owned(), (serde_json::from_value(told).ok()?, seen_at)))
        };
        Ok(domains.into_iter().zip(shown).filter_map(read).collect())
    }

    fn seen(&self, row: DomainRow, published: Option<(Published, Timestamp)>) -> Seen {
        let now = self.clock.now();
        let domain = Domain::read_back(&row.domain).ok();
        let rule = domain.as_ref().map(|domain| self.rules.rule_of(domain));
        if let Some((published, seen_at)) = published
            && let Some(pace) = published.pace()
        {
            let crawl_delay = Span::from_micros(published.crawl_delay_us);
            return Seen { row, as_of: Some(seen_at), pace, in_line: published.in_line, crawl_delay };
        }
        let left = match &row.left {
            // Its holder shows nothing: what is kept of it is true.
            None | Some(LeftBehind::New) => Left::New,
            Some(LeftBehind::HandedOver(pace)) => Left::HandedOver(pace),
            Some(LeftBehind::Stopped(pace)) => Left::Stopped(pace),
            Some(LeftBehind::Died { latest }) => Left::Died { latest: *latest },
        };
        let lost = Left::Died { latest: now };
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
        Seen { row, as_of, pace, in_line: 0, crawl_delay: Span::ZERO }
    }
}

impl Seen {
    /// What there is to know of it, by these rules.
    pub fn live(&self, rules: &RuleTable, now: Timestamp) -> Option<Live> {
        let domain = Domain::read_back(&self.row.domain).ok()?;
        let terms = Terms { rule: rules.rule_of(&domain), crawl_delay: self.crawl_delay };
        Some(Live::of(&self.pace, terms, self.in_line, now))
    }

    /// Every constraint on the next request, the binding one first.
    pub fn explain(&self, terms: Terms<'_>, intent: Intent, now: Timestamp) -> Vec<Reason> {
        self.pace.explain(self.terms(terms), intent, now)
    }

    /// What would keep a request from leaving.
    pub fn peek(&self, terms: Terms<'_>, intent: Intent, now: Timestamp) -> Option<Reason> {
        self.pace.peek(self.terms(terms), intent, now)
    }

    /// Its holder may know better what robots.txt asks for.
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
    /// Looks at domains whoever holds them; nothing on a gate without a store.
    pub fn looker(&self) -> Option<Looker> {
        let tenancy = self.0.tenancy.as_ref()?;
        Some(Looker::new(tenancy.store.clone(), self.0.rules.clone(), self.0.clock.clone()))
    }

    /// The domains that whoever looks on is most likely to ask for: the slowest, and those with most in line.
    pub(super) fn publish(&self, limit: usize) -> Value {
        let state = self.lock();
        let now = self.now();
        let (_, worst, _) = self.walk(&state, now, limit, |terms, pace, in_line| {
            let slow = pace.spacing(terms).max(pace.wait(terms, Intent::Fetch, now));
            Some((slow + Span::from_secs(in_line as u64), ()))
        });
        let ids = worst.into_iter().filter_map(|(domain, ())| state.dispatch.paces().find(domain));
        let sights = ids.filter_map(|id| self.published(&state, id));
        Value::Array(sights.map(|(_, told)| told).collect())
    }

    /// Some of the domains held here, for those who wish to see them.
    pub(super) fn shows(&self, keys: &[DomainKey]) -> Vec<Sight> {
        let state = self.lock();
        let ids = keys.iter().filter_map(|key| state.keys.get(key).copied());
        ids.filter_map(|id| self.published(&state, id)).map(|(hold, told)| Sight { hold, told }).collect()
    }

    fn published(&self, state: &State, id: DomainId) -> Option<(comity_store::domains::Hold, Value)> {
        let (tenure, pace) = (state.tenures.get(&id)?, state.dispatch.paces().pace(id)?);
        let crawl_delay = self.whole(state).terms(&tenure.domain).crawl_delay;
        let published = Published {
            domain: tenure.domain.as_str().to_owned(),
            epoch: tenure.hold.epoch,
            pace: hex(&pace.encode()),
            in_line: state.dispatch.waiting(id),
            crawl_delay_us: crawl_delay.as_micros(),
        };
        Some((tenure.hold, serde_json::to_value(published).ok()?))
    }
}

impl Live {
    /// A pace as it is now.
    pub(super) fn of(pace: &Pace, terms: Terms<'_>, in_line: usize, now: Timestamp) -> Self {
        Self {
            spacing: pace.spacing(terms),
            delay: pace.learned().delay(),
            floor: pace.learned().floor(),
            penalties: pace.penalties(),
            streaks: Streaks::of(pace),
            in_flight: pace.in_flight(now),
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

impl Live {
    /// When the next request could leave; [`Timestamp::MAX`] is when an operator resumes it.
    pub fn next_available(&self, now: Timestamp) -> Timestamp {
        match self.paused_until {
            Some(Timestamp::MAX) => Timestamp::MAX,
            _ => now + self.wait,
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn of_hex(text: &str) -> Option<Vec<u8>> {
    let pair = |nth| u8::from_str_radix(text.get(nth..nth + 2)?, 16).ok();
    (0..text.len()).step_by(2).map(pair).collect()
}

/// Whoever wishes to see a domain looks so often whether it is shown,
const LOOK: Duration = Duration::from_millis(50);
/// and so many times.
const LOOKS: u32 = 50;
/// What was published longer ago is not what is.
const STALE: Span = Span::from_secs(10);
