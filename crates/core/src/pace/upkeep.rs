//! What happens to a pace besides asking and recording: clock steps, hand-over, lost and restored state, and
//! an operator's hand (B7, B36, B37, B39, B77).

use super::record::whole_ms;
use super::{DecodeError, Pace, ServerWord, Terms};
use crate::learn::{Bounds, DelayChange, Learned};
use crate::time::{Span, Timestamp};
use crate::timeline::Shift;
use crate::window::Window;

impl Pace {
    /// The clock reads `now`. If it stepped back since the last call, everything that happened steps back with
    /// it: what was left to wait is still left, and no more (B7).
    #[inline]
    pub(super) fn meet(&mut self, now: Timestamp) {
        if now < self.seen_at {
            self.rebase(self.seen_at.since(now), now);
        }
        self.seen_at = now;
    }

    #[cold]
    fn rebase(&mut self, step: Span, now: Timestamp) {
        self.each_past(|moment| *moment = *moment - step);
        let seen_at = self.seen_at;
        if let Some(holds) = &mut self.holds {
            holds.server_until = rebase_hold(holds.server_until, holds.server_ms, seen_at, now);
            holds.guess_until = rebase_hold(holds.guess_until, holds.guess_ms, seen_at, now);
        }
        for quota in self.rare.iter_mut().flat_map(|rare| &mut rare.quotas) {
            quota.until = quota.until.min(now + quota.length);
        }
        // An operator's pause ends by the wall clock that the operator read.
    }

    /// The timeline on which everything here happened was set: all of it moves along (B7).
    pub fn move_along(&mut self, shift: Shift) {
        self.each_past(|moment| *moment = shift.of(*moment));
        self.seen_at = shift.of(self.seen_at);
        if let Some(holds) = &mut self.holds {
            holds.server_until = shift.of(holds.server_until);
            holds.guess_until = shift.of(holds.guess_until);
        }
        for quota in self.rare.iter_mut().flat_map(|rare| &mut rare.quotas) {
            quota.until = shift.of(quota.until);
        }
    }

    /// Every moment at which something happened, and the ends of leases; nothing else that is to come is among them.
    fn each_past(&mut self, mut change: impl FnMut(&mut Timestamp)) {
        change(&mut self.last_start);
        change(&mut self.last_success);
        self.holds.iter_mut().for_each(|holds| change(&mut holds.penalty_at));
        self.learned.bounds.iter_mut().for_each(|bounds| change(&mut bounds.floor_at));
        self.open.iter_mut().for_each(|permit| change(&mut permit.started_at));
        if let Some(rare) = &mut self.rare {
            rare.all_mut().for_each(|permit| change(&mut permit.started_at));
            rare.lent.iter_mut().for_each(|lent| change(&mut lent.until));
            rare.starts.iter_mut().for_each(&mut change);
            rare.window.iter_mut().for_each(&mut change);
            rare.windows.iter_mut().flat_map(Window::iter_mut).for_each(&mut change);
            change(&mut rare.lost_at);
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
        // A window that remembers fewer starts than fit into it takes the rest for lost.
        rare.window = Window::default();
        rare.windows = Default::default();
        rare.starts = rare.starts.map(|start| start.max(latest));
        self.last_start = self.last_start.max(latest);
    }

    /// A deadline that the server stated earlier, at `stated_at`, is read back from the store.
    pub fn restore_server_until(&mut self, until: Timestamp, stated_at: Timestamp, now: Timestamp) {
        self.meet(now);
        // A clock that now reads less than it did then must not make the wait longer than it was.
        let length = until.since(stated_at);
        let until = until.min(now + length);
        let holds = self.holds_mut();
        if until > holds.server_until {
            holds.server_until = until;
            holds.server_ms = whole_ms(length);
            holds.server_word = ServerWord::RetryAfter;
        }
    }

    /// Learned delay and floor are read back from the store. They never replace what is newer here (B36). A
    /// floor whose age nobody kept counts as confirmed now.
    pub fn seed(&mut self, terms: Terms<'_>, kept: &Kept, now: Timestamp) -> Option<DelayChange> {
        if self.learned.touched {
            return None;
        }
        let Kept { delay, floor, floor_at, .. } = *kept;
        let floor = floor.min(terms.rule.learning().most(terms.learn_base()));
        let delay = terms.rule.learning().limit(delay, floor, terms.learn_base());
        let confirmed_at = if floor.is_zero() { Timestamp::NEVER } else { floor_at.unwrap_or(now) };
        self.learned.changing(|learned| {
            learned.delay = delay;
            learned.bound(Bounds { floor, floor_at: confirmed_at, probe_from: Span::ZERO });
        })
    }

    /// Takes a domain over, in the way its last holder left it (B35–B37, B77).
    pub fn inherit(
        terms: Terms<'_>,
        kept: &Kept,
        left: Left<'_>,
        now: Timestamp,
    ) -> Result<Self, DecodeError> {
        let mut pace = match left {
            Left::HandedOver(bytes) | Left::Stopped(bytes) => Self::decode(bytes)?,
            Left::New | Left::Died { .. } => Self::default(),
        };
        // Whoever held permits when it was last heard of does not hold them any more.
        pace.lend_held(pace.seen_at);
        pace.meet(now);
        if let Left::Stopped(_) = left {
            pace.restarted();
        }
        pace.seed(terms, kept, now);
        if let Some((until, stated_at)) = kept.server {
            pace.restore_server_until(until, stated_at, now);
        }
        if let Left::Died { latest } = left {
            // A clock that is behind must not make the wait longer than it was.
            pace.lost(latest.min(now));
        }
        Ok(pace)
    }

    /// What a store keeps of this pace beside the whole of it.
    pub fn kept(&self) -> Kept {
        let bounds = self.learned.bounds();
        let server = self.holds.as_ref().and_then(|holds| {
            let until = holds.server_until.ever()?;
            Some((until, until - Span::from_millis(holds.server_ms.into())))
        });
        Kept { delay: self.learned.delay, floor: bounds.floor, floor_at: bounds.floor_at.ever(), server }
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
        let floor = floor.min(terms.rule.learning().most(terms.learn_base()));
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

    /// Until when an operator closed the domain, past or not: what must survive a crash. [`Timestamp::MAX`] is until
    /// resumed.
    pub fn paused_until(&self) -> Option<Timestamp> {
        self.rare.as_ref().and_then(|rare| rare.paused_until.ever())
    }

    /// The same if it is closed at `now`.
    pub fn paused_at(&self, now: Timestamp) -> Option<Timestamp> {
        self.paused_until().filter(|until| *until > now)
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

/// What a store keeps of a domain beside its whole pace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Kept {
    /// The learned delay (`adaptive_delay_seconds`).
    pub delay: Span,
    /// Its floor (`adaptive_delay_floor_seconds`).
    pub floor: Span,
    /// When a broken probe last confirmed the floor.
    pub floor_at: Option<Timestamp>,
    /// Until when the server asked us to stay away, and when it did.
    pub server: Option<(Timestamp, Timestamp)>,
}

/// How the last holder of a domain left it. Whole paces are as [`Pace::encode`] wrote them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left<'a> {
    /// Nobody ever held it.
    New,
    /// A living process passes it on.
    HandedOver(&'a [u8]),
    /// Its holder stopped cleanly, and this is a restart.
    Stopped(&'a [u8]),
    /// Its holder died, or its state was lost.
    Died {
        /// The last moment at which it may have sent.
        latest: Timestamp,
    },
}

/// A hold that was in force has as much left as it had. One that the clock had passed is in force again if the
/// clock says so, but for no longer than it was set for.
fn rebase_hold(until: Timestamp, ms: u32, seen_at: Timestamp, now: Timestamp) -> Timestamp {
    match until > seen_at {
        true => until - seen_at.since(now),
        false => until.min(now + Span::from_millis(ms.into())),
    }
}
