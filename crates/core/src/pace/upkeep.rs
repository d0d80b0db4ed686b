//! What happens to a pace besides asking and recording: clock steps, hand-over, lost and restored state, and
//! an operator's hand (B7, B36, B37, B39, B77).

use super::rare::Rare;
use super::{Pace, ServerWord, Terms};
use crate::learn::DelayChange;
use crate::time::{Span, Timestamp};

impl Pace {
    /// The clock reads `now`. If it stepped back since the last call, everything remembered steps back with
    /// it: what was left to wait is still left, and no more (B7).
    pub(super) fn meet(&mut self, now: Timestamp) {
        if now < self.seen_at {
            self.rebase(self.seen_at.since(now));
        }
        self.seen_at = now;
    }

    fn rebase(&mut self, step: Span) {
        for at in [
            &mut self.last_start,
            &mut self.server_until,
            &mut self.guess_until,
            &mut self.penalty_at,
            &mut self.last_success,
            &mut self.learned.floor_at,
        ] {
            *at = *at - step;
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
        self.guess_until = Timestamp::NEVER;
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
        if until > self.server_until {
            self.server_until = until;
            self.server_word = ServerWord::RetryAfter;
        }
    }

    /// Learned delay and floor are read back from the store. They never replace what is newer here (B36).
    pub fn seed(&mut self, terms: Terms<'_>, delay: Span, floor: Span, floor_at: Timestamp) -> Option<DelayChange> {
        if self.learned.touched {
            return None;
        }
        let delay = terms.rule.learning().limit(delay, floor, terms.learn_base());
        self.learned.changing(|learned| {
            learned.delay = delay;
            learned.floor = floor;
            learned.floor_at = floor_at;
        })
    }

    /// An operator sets the learned delay and its floor, within what the rule allows.
    pub fn set_learned(&mut self, terms: Terms<'_>, delay: Span, floor: Span, now: Timestamp) -> Option<DelayChange> {
        self.meet(now);
        let delay = terms.rule.learning().limit(delay, floor, terms.learn_base());
        let change = self.learned.changing(|learned| {
            learned.delay = delay;
            learned.floor = floor;
            learned.floor_at = if floor.is_zero() { Timestamp::NEVER } else { now };
            learned.probe_from = Span::ZERO;
            learned.success_streak = 0;
        });
        self.learned.touched = true;
        // Requests that started under the old delay say nothing about the new one.
        self.penalty_at = self.penalty_at.max(now);
        change
    }

    /// An operator pins the learned state as it is, or lets it change again (B39). Holds still apply.
    pub fn pin(&mut self, pinned: Pinned) {
        self.learned.pinned = pinned == Pinned::Yes;
        self.learned.probe_from = Span::ZERO;
        self.learned.touched = true;
    }

    /// An operator forgets what was learnt and our own guesses; what the server said stays.
    pub fn reset(&mut self, now: Timestamp) -> Option<DelayChange> {
        self.meet(now);
        self.restarted();
        let probe = self.learned.probe;
        let change = self.learned.changing(|learned| {
            *learned = crate::learn::Learned { probe, ..Default::default() };
        });
        self.learned.touched = true;
        self.penalty_at = self.penalty_at.max(now);
        change
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
