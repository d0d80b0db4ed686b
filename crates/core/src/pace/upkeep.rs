//! What happens to a pace besides asking and recording: clock steps, hand-over, lost and restored state, and
//! an operator's hand (B7, B36, B37, B39, B77).

use super::rare::Rare;
use super::{Pace, ServerWord, Terms};
use crate::learn::{Bounds, DelayChange, Learned};
use crate::time::{Span, Timestamp};

impl Pace {
    /// The clock reads `now`. If it stepped back since the last call, everything remembered steps back with
    /// it: what was left to wait is still left, and no more (B7).
    #[inline]
    pub(super) fn meet(&mut self, now: Timestamp) {
        if now < self.seen_at {
            self.rebase(self.seen_at.since(now));
        }
        self.seen_at = now;
    }

    #[cold]
    fn rebase(&mut self, step: Span) {
        self.last_start = self.last_start - step;
        self.last_success = self.last_success - step;
        if let Some(holds) = &mut self.holds {
            holds.server_until = holds.server_until - step;
            holds.guess_until = holds.guess_until - step;
            holds.penalty_at = holds.penalty_at - step;
        }
        if let Some(bounds) = &mut self.learned.bounds {
            bounds.floor_at = bounds.floor_at - step;
        }
        if let Some(permit) = &mut self.open {
            permit.started_at = permit.started_at - step;
        }
        if let Some(rare) = &mut self.rare {
            rebase_rare(rare, step);
        }
    }

    /// This pace is taken up by a new process after a clean stop: our own guesses are void, what the server
    /// said and what was learnt go on (B37). A hand-over between living processes changes nothing.
    pub fn restarted(&mut self) {
        self.penalties = 0;
        if let Some(holds) = &mut self.holds {
            holds.guess_until = Timestamp::NEVER;
        }
    }

    /// State may have been lost: whoever held this domain may have sent until `latest`, as fast as it was
    /// allowed to, the last request at that moment (B77).
    pub fn lost(&mut self, latest: Timestamp) {
        let rare = self.rare_mut();
        rare.lost_at = rare.lost_at.max(latest);
        rare.starts = rare.starts.map(|start| start.max(latest));
        self.last_start = self.last_start.max(latest);
    }

    /// A deadline that the server stated earlier, at `stated_at`, is read back from the store.
    pub fn restore_server_until(&mut self, until: Timestamp, stated_at: Timestamp, now: Timestamp) {
        self.meet(now);
        // A clock that now reads less than it did then must not make the wait longer than it was.
        let until = if now < stated_at { now + until.since(stated_at) } else { until };
        let holds = self.holds_mut();
        if until > holds.server_until {
            holds.server_until = until;
            holds.server_word = ServerWord::RetryAfter;
        }
    }

    /// Learned delay and floor are read back from the store. They never replace what is newer here (B36).
    pub fn seed(
        &mut self,
        terms: Terms<'_>,
        delay: Span,
        floor: Span,
        floor_at: Timestamp,
    ) -> Option<DelayChange> {
        if self.learned.touched {
            return None;
        }
        let delay = terms.rule.learning().limit(delay, floor, terms.learn_base());
        self.learned.changing(|learned| {
            learned.delay = delay;
            learned.bound(Bounds { floor, floor_at, probe_from: Span::ZERO });
        })
    }

    /// An operator sets the learned delay and its floor, within what the rule allows.
    pub fn set_learned(
        &mut self,
        terms: Terms<'_>,
        delay: Span,
        floor: Span,
        now: Timestamp,
    ) -> Option<DelayChange> {
        self.meet(now);
        let delay = terms.rule.learning().limit(delay, floor, terms.learn_base());
        let change = self.learned.changing(|learned| {
            learned.delay = delay;
            let floor_at = if floor.is_zero() { Timestamp::NEVER } else { now };
            learned.bound(Bounds { floor, floor_at, probe_from: Span::ZERO });
            learned.success_streak = 0;
        });
        self.learned.touched = true;
        // Requests that started under the old delay say nothing about the new one.
        self.forgive(now);
        change
    }

    /// An operator pins the learned state as it is, or lets it change again (B39). Holds still apply.
    pub fn pin(&mut self, pinned: Pinned) {
        self.learned.pinned = pinned == Pinned::Yes;
        self.learned.end_probe();
        self.learned.touched = true;
    }

    /// An operator forgets what was learnt and our own guesses; what the server said stays.
    pub fn reset(&mut self, now: Timestamp) -> Option<DelayChange> {
        self.meet(now);
        self.restarted();
        let probe = self.learned.probe;
        let change = self.learned.changing(|learned| {
            *learned = Learned { probe, ..Learned::default() };
        });
        self.learned.touched = true;
        self.forgive(now);
        change
    }

    /// From now on only requests that start now or later are judged.
    fn forgive(&mut self, now: Timestamp) {
        let holds = self.holds_mut();
        holds.penalty_at = holds.penalty_at.max(now);
    }

    /// An operator closes the domain until a moment, or until resumed.
    pub fn pause(&mut self, until: Option<Timestamp>) {
        self.rare_mut().paused_until = until.unwrap_or(Timestamp::MAX);
    }

    /// An operator opens the domain again.
    pub fn resume(&mut self) {
        if let Some(rare) = &mut self.rare {
            rare.paused_until = Timestamp::NEVER;
        }
    }

    /// Until when an operator closed the domain; [`Timestamp::MAX`] is until resumed.
    pub fn paused_until(&self) -> Option<Timestamp> {
        self.rare.as_ref().and_then(|rare| rare.paused_until.ever())
    }
}

/// Whether an operator keeps the learned state as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pinned {
    /// It stays as it is.
    Yes,
    /// Answers change it.
    No,
}

fn rebase_rare(rare: &mut Rare, step: Span) {
    for permit in &mut rare.open {
        permit.started_at = permit.started_at - step;
    }
    for start in &mut rare.starts {
        *start = *start - step;
    }
    rare.window.rebase(step);
    rare.windows.iter_mut().for_each(|window| window.rebase(step));
    for quota in &mut rare.quotas {
        quota.until = quota.until - step;
    }
    rare.lost_at = rare.lost_at - step;
    if rare.paused_until != Timestamp::MAX {
        rare.paused_until = rare.paused_until - step;
    }
}
