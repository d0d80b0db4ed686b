//! What is old goes: tasks and attempts of jobs that ended, scrapes, fetches of sources (`upkeep.keep`), and domains of
//! which nothing is worth keeping, whatever that says. A few rows at a time; upkeep and `comity prune` do the same.

use comity_core::pace::{Left, Pace, Terms};
use comity_core::rule::RuleTable;
use comity_core::time::{Span, Timestamp};
use comity_store::domains::{DomainKey, Hold, IdleDomain, LeftBehind};
use comity_store::retention::{PruneFrom, Pruned};
use comity_store::{Store, StoreError};

/// A sweep over everything that may be old.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sweep {
    stage: Stage,
}

/// How far a sweep is.
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

/// What went, or would go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Swept {
    /// Rows.
    pub rows: Pruned,
    /// Domains that were forgotten.
    pub domains: u64,
}

impl std::ops::AddAssign for Swept {
    fn add_assign(&mut self, other: Self) {
        self.rows += other.rows;
        self.domains += other.domains;
    }
}

/// Whether a sweep goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum More {
    /// There is more to look at.
    Yes,
    /// It was looked at everything; the next step begins anew.
    No,
}

impl Sweep {
    /// Looks at the next rows, in one short transaction. Without `keep` only domains are looked at.
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
                self.domains(store, rules, DomainKey(0), now).await
            }
            (Stage::Domains(after), _) => self.domains(store, rules, after, now).await,
        }
    }

    async fn domains(
        &mut self,
        store: &dyn Store,
        rules: &RuleTable,
        after: DomainKey,
        now: Timestamp,
    ) -> Result<(Swept, More), StoreError> {
        let (idle, next) = idle(store, rules, after, now).await?;
        let domains = match idle.is_empty() {
            true => 0,
            false => store.forget_domains(idle, now - DOMAINS_KEPT).await?,
        };
        self.stage = next.map_or_else(Stage::default, Stage::Domains);
        let more = if next.is_some() { More::Yes } else { More::No };
        Ok((Swept { domains, ..Swept::default() }, more))
    }
}

/// How much a whole sweep would remove; more domains may be forgotten once the jobs that used them lost their tasks.
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
        let (found, next) = idle(store, rules, after, now).await?;
        domains += found.len() as u64;
        match next {
            Some(next) => after = next,
            None => return Ok(Swept { rows, domains }),
        }
    }
}

/// Some of the domains of which nothing is worth keeping, and where to look on.
async fn idle(
    store: &dyn Store,
    rules: &RuleTable,
    after: DomainKey,
    now: Timestamp,
) -> Result<(Vec<Hold>, Option<DomainKey>), StoreError> {
    let found = store.idle_domains(after, now - DOMAINS_KEPT, DOMAINS_AT_ONCE).await?;
    let idle = found.domains.into_iter().filter(|idle| is_worth_nothing(rules, idle, now));
    Ok((idle.map(|idle| idle.hold).collect(), found.next))
}

/// Whether whoever takes a domain waits no longer than if it had never been seen.
fn is_worth_nothing(rules: &RuleTable, idle: &IdleDomain, now: Timestamp) -> bool {
    // No robots.txt asks for more than this, and it may come to be known again.
    let terms = Terms { rule: rules.rule_of(&idle.domain), crawl_delay: DOMAINS_KEPT };
    let left = match &idle.left {
        LeftBehind::New => Left::New,
        LeftBehind::HandedOver(pace) => Left::HandedOver(pace),
        LeftBehind::Stopped(pace) => Left::Stopped(pace),
        LeftBehind::Died { latest } => Left::Died { latest: *latest },
    };
    // What cannot be read stays: whoever takes it is told.
    Pace::inherit(terms, &idle.kept, left, now).is_ok_and(|pace| pace.is_idle(terms, now))
}

/// Rows that are looked at together.
const ROWS_AT_ONCE: u32 = 1_000;
/// Domains that nobody used for so long are forgotten, when nothing is known of them;
const DOMAINS_KEPT: Span = Span::from_hours(24);
/// so many are looked at together.
const DOMAINS_AT_ONCE: u32 = 1_000;
