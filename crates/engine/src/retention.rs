//! Deletes old rows: tasks and attempts of finished jobs, scrapes and source fetches older than `upkeep.keep`. Also
//! deletes domains about which nothing worth keeping is known, independent of that setting. Works in small steps;
//! background upkeep and `comity prune` share this code.

use std::collections::HashMap;

use comity_core::domain::Domain;
use comity_core::pace::{LastHolder, Pace, Terms};
use comity_core::rule::RuleTable;
use comity_core::time::{Span, Timestamp};
use comity_store::domains::{DomainKey, IdleDomain, LastHolderBuf, Tenure};
use comity_store::retention::{PruneFrom, Pruned};
use comity_store::{Store, StoreError};

/// A sweep over all rows that may be old.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sweep {
    stage: Stage,
}

/// The position of a sweep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Rows(PruneFrom),
    Domains(DomainKey),
}

impl Default for Stage {
    fn default() -> Self {
        Self::Rows(PruneFrom::default())
    }
}

/// What was deleted, or would be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Swept {
    /// Deleted rows.
    pub rows: Pruned,
    /// Deleted domains.
    pub domains: u64,
}

impl std::ops::AddAssign for Swept {
    fn add_assign(&mut self, other: Self) {
        self.rows += other.rows;
        self.domains += other.domains;
    }
}

/// Whether a sweep has more to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum More {
    /// There is more to check.
    Yes,
    /// Everything has been checked; the next step starts over.
    No,
}

impl Sweep {
    /// Checks the next rows in one short transaction. Without `keep`, checks domains only.
    pub async fn step(
        &mut self,
        store: &dyn Store,
        rules: &RuleTable,
        keep: Option<Span>,
        now: Timestamp,
    ) -> Result<(Swept, More), StoreError> {
        let first = Stage::Domains(DomainKey(0));
        match (self.stage, keep) {
            (Stage::Rows(from), Some(keep)) => {
                let (rows, next) = store.prune(from, now - keep, ROWS_AT_ONCE).await?;
                self.stage = next.map_or(first, Stage::Rows);
                Ok((Swept { rows, domains: 0 }, More::Yes))
            }
            (Stage::Rows(_), None) => {
                self.stage = first;
                self.sweep_domains(store, rules, DomainKey(0), now).await
            }
            (Stage::Domains(after), _) => self.sweep_domains(store, rules, after, now).await,
        }
    }

    async fn sweep_domains(
        &mut self,
        store: &dyn Store,
        rules: &RuleTable,
        after: DomainKey,
        now: Timestamp,
    ) -> Result<(Swept, More), StoreError> {
        let (idle, next) = idle_domains(store, rules, after, now).await?;
        let domains = match idle.is_empty() {
            true => 0,
            false => store.forget_domains(idle, now - DOMAINS_KEPT).await?,
        };
        self.stage = next.map_or_else(Stage::default, Stage::Domains);
        let more = if next.is_some() { More::Yes } else { More::No };
        Ok((Swept { domains, ..Swept::default() }, more))
    }
}

/// Counts what a complete sweep would delete. A real sweep may delete more domains, once the tasks that used them are
/// gone.
pub async fn count(
    store: &dyn Store,
    rules: &RuleTable,
    keep: Option<Span>,
    now: Timestamp,
) -> Result<Swept, StoreError> {
    let rows = match keep {
        Some(keep) => store.count_prunable(now - keep).await?,
        None => Pruned::default(),
    };
    let (mut domains, mut after) = (0, DomainKey(0));
    loop {
        let (found, next) = idle_domains(store, rules, after, now).await?;
        domains += found.len() as u64;
        match next {
            Some(next) => after = next,
            None => return Ok(Swept { rows, domains }),
        }
    }
}

/// A batch of deletable domains, and where the next batch starts.
async fn idle_domains(
    store: &dyn Store,
    rules: &RuleTable,
    after: DomainKey,
    now: Timestamp,
) -> Result<(Vec<Tenure>, Option<DomainKey>), StoreError> {
    let found = store.idle_domains(after, now - DOMAINS_KEPT, DOMAINS_AT_ONCE).await?;
    if found.domains.is_empty() {
        return Ok((Vec::new(), found.next));
    }
    let mut delays: HashMap<Domain, Span> = HashMap::new();
    for (origin, delay) in store.long_crawl_delays(DOMAINS_KEPT).await? {
        let Ok(host) = Domain::of_url(&origin) else { continue };
        let longest = delays.entry(rules.domain(&host)).or_default();
        *longest = delay.max(*longest);
    }
    let crawl_delay = |domain: &Domain| delays.get(domain).copied().unwrap_or(DOMAINS_KEPT);
    let idle =
        found.domains.into_iter().filter(|idle| is_forgettable(rules, idle, crawl_delay(&idle.domain), now));
    Ok((idle.map(|idle| idle.tenure).collect(), found.next))
}

/// Whether deleting the domain delays nobody less: its next holder would wait no longer than for a new domain.
/// `crawl_delay` is the longest one that its robots.txt may ask for when it becomes known again.
fn is_forgettable(rules: &RuleTable, idle: &IdleDomain, crawl_delay: Span, now: Timestamp) -> bool {
    let terms = Terms { rule: rules.rule_of(&idle.domain), crawl_delay };
    let left = match &idle.last_holder {
        LastHolderBuf::None => LastHolder::None,
        LastHolderBuf::HandedOver(pace) => LastHolder::HandedOver(pace),
        LastHolderBuf::Stopped(pace) => LastHolder::Stopped(pace),
        LastHolderBuf::Died { latest } => LastHolder::Died { latest: *latest },
    };
    // Keep a pace that can't be decoded: its next holder reports the problem.
    Pace::inherit(terms, &idle.kept, left, now).is_ok_and(|pace| pace.is_idle(terms, now))
}

/// Rows checked per step.
const ROWS_AT_ONCE: u32 = 1_000;
/// Domains unused for this long are deleted if nothing worth keeping is known about them.
const DOMAINS_KEPT: Span = Span::from_hours(24);
/// Domains checked per step.
const DOMAINS_AT_ONCE: u32 = 1_000;
