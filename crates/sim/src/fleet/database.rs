//! A model of the store in PostgreSQL: rows, and what each transaction does to them. Pacing is the core's, and when messages arrive is
//! decided in `play`.

use std::collections::BTreeMap;

use comity_core::pace::SavedLimits;
use comity_core::retry::RetriesUsed;
use comity_core::task::TaskState;
use comity_core::time::{Span, Timestamp};

use super::Rule;

/// Everything that is committed.
#[derive(Debug, Clone)]
pub(super) struct Database {
    /// The timeline, which a promotion increments.
    pub(super) history: u32,
    /// Counts starts of the server.
    pub(super) started: u32,
    /// By how much its clock is ahead of the true time, in microseconds.
    pub(super) ahead: i64,
    pub(super) holders: BTreeMap<u64, HolderRow>,
    pub(super) domains: Vec<DomainRow>,
    pub(super) tasks: Vec<TaskRow>,
}

/// A process that registered.
#[derive(Debug, Clone)]
pub(super) struct HolderRow {
    pub(super) beat: u64,
    pub(super) is_dead: bool,
    /// How far its clock is ahead of the database's, as of its last heartbeat.
    pub(super) offset: i64,
    /// When its lease ends by the database's clock. Only without [`Rule::OwnClock`] does anybody read it.
    pub(super) until: Timestamp,
}

#[derive(Debug, Clone, Default)]
pub(super) struct DomainRow {
    pub(super) holder: Option<u64>,
    pub(super) epoch: u64,
    /// The timeline on which it was last taken or released; at first, the one that the store was created on.
    pub(super) history: u32,
    pub(super) wanted_by: Option<u64>,
    /// The pace that its last holder released.
    pub(super) pace: Option<Vec<u8>>,
    pub(super) limits: SavedLimits,
}

#[derive(Debug, Clone)]
pub(super) struct TaskRow {
    pub(super) state: TaskState,
    pub(super) used: RetriesUsed,
    pub(super) ready_at: Timestamp,
    pub(super) ended: Option<Timestamp>,
}

/// A heartbeat as somebody saw it.
pub(super) type Seen = BTreeMap<u64, (u64, Timestamp)>;

/// Who looks for domains to take.
pub(super) struct Observer<'a> {
    pub(super) holder: u64,
    /// The heartbeats that it saw, and since when, on its own clock.
    pub(super) seen: &'a mut Seen,
    /// Since when it knows this timeline, on its own clock.
    pub(super) history_since: Timestamp,
    /// Its own clock now.
    pub(super) now: Timestamp,
    pub(super) without: Option<Rule>,
}

/// Whether a domain was taken, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Take {
    /// Its last holder released it with this pace.
    Released(Vec<u8>),
    /// Nobody ever held it.
    New,
    /// Its last holder is dead, or its commits may be lost.
    Died,
    /// Somebody holds it.
    Held,
    /// Nobody may take it for now.
    TooSoon,
}

impl Database {
    pub(super) fn clock(&self, now: Timestamp) -> Timestamp {
        moved(now, self.ahead)
    }

    pub(super) fn is_alive(&self, holder: u64) -> bool {
        self.holders.get(&holder).is_some_and(|row| !row.is_dead)
    }

    /// Takes a domain if the rules allow it.
    pub(super) fn take(&mut self, domain: usize, epoch: u64, observer: &mut Observer<'_>) -> Take {
        let take = self.judge(domain, observer);
        if !matches!(take, Take::Held | Take::TooSoon) {
            let history = self.history;
            let row = &mut self.domains[domain];
            (row.holder, row.epoch, row.history) = (Some(observer.holder), epoch, history);
            (row.wanted_by, row.pace) = (None, None);
        }
        take
    }

    fn judge(&mut self, domain: usize, observer: &mut Observer<'_>) -> Take {
        let row = &self.domains[domain];
        let is_older = row.history != self.history;
        let waits =
            observer.without != Some(Rule::WaitAfterChange) && observer.without != Some(Rule::Timeline);
        if is_older && waits {
            // Who held it may be in one of the lost commits, and sends until its lease ends.
            let waited = observer.now.since(observer.history_since) >= LEASE;
            return if waited { Take::Died } else { Take::TooSoon };
        }
        match row.holder {
            None => match &row.pace {
                Some(pace) => Take::Released(pace.clone()),
                None if row.epoch == 0 => Take::New,
                None => Take::Died,
            },
            // The answer to a take was lost.
            Some(holder) if holder == observer.holder => Take::Died,
            Some(holder) if !self.is_alive(holder) => Take::Died,
            Some(holder) if self.is_silent(holder, observer) => {
                if observer.without != Some(Rule::MarkDead) {
                    self.mark_dead(holder);
                    observer.seen.remove(&holder);
                }
                Take::Died
            }
            Some(_) => Take::Held,
        }
    }

    fn is_silent(&self, holder: u64, observer: &mut Observer<'_>) -> bool {
        let Some(row) = self.holders.get(&holder) else { return true };
        if observer.without == Some(Rule::OwnClock) {
            return self.clock(observer.now) > row.until;
        }
        let seen = observer.seen.entry(holder).or_insert((row.beat, observer.now));
        if seen.0 != row.beat {
            *seen = (row.beat, observer.now);
        }
        observer.now.since(seen.1) >= LEASE
    }

    pub(super) fn mark_dead(&mut self, holder: u64) {
        if let Some(row) = self.holders.get_mut(&holder) {
            row.is_dead = true;
        }
    }

    /// The offset of those that run, from their last heartbeats.
    pub(super) fn offset(&self) -> Option<i64> {
        let alive = self.holders.values().filter(|row| !row.is_dead);
        alive.max_by_key(|row| row.until).map(|row| row.offset)
    }

    /// Whether every task has ended.
    pub(super) fn is_over(&self) -> bool {
        self.tasks.iter().all(|task| task.ended.is_some())
    }
}

pub(super) fn moved(at: Timestamp, by: i64) -> Timestamp {
    at.ever().map_or(at, |at| Timestamp::from_micros(at.as_micros().saturating_add(by)))
}

/// How long a holder that sends no heartbeat keeps its domains.
pub(super) const LEASE: Span = Span::from_secs(10);
