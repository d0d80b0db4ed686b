//! Changes to a pace other than requests and responses: clock steps, handover, lost and restored state, operator
//! commands.

use super::record::whole_ms;
use super::{DecodeError, Pace, ServerCause, Terms};
use crate::learn::{Bounds, DelayChange, Learned};
use crate::time::{Span, Timestamp};
use crate::timeline::Shift;
use crate::window::Window;

impl Pace {
    /// The clock reads `now`. If it stepped back since the last call, everything in the past is shifted back with it,
    /// so that the remaining waits stay the same.
    #[inline]
    pub(super) fn observe_clock(&mut self, now: Timestamp) {
        if now < self.latest_now {
            self.rebase(self.latest_now.since(now), now);
        }
        self.latest_now = now;
    }

    #[cold]
    fn rebase(&mut self, step: Span, now: Timestamp) {
        self.each_past(|moment| *moment = *moment - step);
        let latest_now = self.latest_now;
        if let Some(holds) = &mut self.holds {
            holds.server_until = rebase_hold(holds.server_until, holds.server_ms, latest_now, now);
            holds.own_until = rebase_hold(holds.own_until, holds.own_ms, latest_now, now);
        }
        for quota in self.cold.iter_mut().flat_map(|cold| &mut cold.quotas) {
            quota.until = quota.until.min(now + quota.length);
        }
        // An operator's pause ends at a wall-clock time, so it isn't shifted.
    }

    /// The store's timeline was corrected: shifts all times of this pace by the same amount.
    pub fn shift_times(&mut self, shift: Shift) {
        self.each_past(|moment| *moment = shift.of(*moment));
        self.latest_now = shift.of(self.latest_now);
        if let Some(holds) = &mut self.holds {
            holds.server_until = shift.of(holds.server_until);
            holds.own_until = shift.of(holds.own_until);
        }
        for quota in self.cold.iter_mut().flat_map(|cold| &mut cold.quotas) {
            quota.until = shift.of(quota.until);
        }
    }

    /// Changes all times in the past, and the ends of leases, which are the only times in the future among them.
    fn each_past(&mut self, mut change: impl FnMut(&mut Timestamp)) {
        change(&mut self.last_start);
        change(&mut self.last_success);
        self.holds.iter_mut().for_each(|holds| change(&mut holds.penalty_at));
        self.learned.bounds.iter_mut().for_each(|bounds| change(&mut bounds.floor_at));
        self.open.iter_mut().for_each(|permit| change(&mut permit.started_at));
        if let Some(cold) = &mut self.cold {
            cold.all_mut().for_each(|permit| change(&mut permit.started_at));
            cold.lent.iter_mut().for_each(|lent| change(&mut lent.until));
            cold.starts.iter_mut().for_each(&mut change);
            cold.window.iter_mut().for_each(&mut change);
            cold.windows.iter_mut().flat_map(Window::iter_mut).for_each(&mut change);
            change(&mut cold.lost_at);
            cold.bracket.iter_mut().flat_map(|state| state.times_mut()).for_each(change);
        }
    }

    /// A new process continues with this pace after a clean stop: our own holds end, while the server's deadlines and
    /// what was learned stay. (A handover between running processes changes nothing.)
    pub fn restarted(&mut self) {
        self.penalties = 0;
        self.cold.iter_mut().filter_map(|cold| cold.bracket.as_mut()).for_each(|state| state.restarted());
        if let Some(holds) = &mut self.holds {
            holds.own_until = Timestamp::NEVER;
        }
    }

    /// State may have been lost: assumes that the last holder of the domain sent requests as fast as allowed until
    /// `latest`, the last one at exactly that time.
    pub fn lost(&mut self, latest: Timestamp) {
        let cold = self.cold_mut();
        cold.lost_at = cold.lost_at.max(latest);
        // A window assumes that starts it doesn't remember were lost, so an empty one counts as full.
        cold.window = Window::default();
        cold.windows = Default::default();
        cold.starts = cold.starts.map(|start| start.max(latest));
        self.last_start = self.last_start.max(latest);
    }

    /// Restores a deadline from the store, which the server stated at `stated_at`.
    pub fn restore_server_until(&mut self, until: Timestamp, stated_at: Timestamp, now: Timestamp) {
        self.observe_clock(now);
        // If the clock is behind what it was then, the wait must not get longer.
        let length = until.since(stated_at);
        let until = until.min(now + length);
        let holds = self.holds_mut();
        if until > holds.server_until {
            holds.server_until = until;
            holds.server_ms = whole_ms(length);
            holds.server_cause = ServerCause::RetryAfter;
        }
    }

    /// Restores the learned delay and its floor from the store, unless this pace has newer values. A floor of unknown
    /// age counts as confirmed now.
    pub fn seed(&mut self, terms: Terms<'_>, saved: &SavedLimits, now: Timestamp) -> Option<DelayChange> {
        if self.learned.touched {
            return None;
        }
        let SavedLimits { delay, floor, floor_at, .. } = *saved;
        let floor = floor.min(terms.rule.learning().most(terms.learn_base()));
        let delay = terms.rule.learning().limit(delay, floor, terms.learn_base());
        let confirmed_at = if floor.is_zero() { Timestamp::NEVER } else { floor_at.unwrap_or(now) };
        self.learned.changing(|learned| {
            learned.delay = delay;
            learned.bound(Bounds { floor, floor_at: confirmed_at, probe_from: Span::ZERO });
        })
    }

    /// Takes over a domain in the state its last holder left it.
    pub fn inherit(
        terms: Terms<'_>,
        saved: &SavedLimits,
        last_holder: LastHolder<'_>,
        now: Timestamp,
    ) -> Result<Self, DecodeError> {
        let mut pace = match last_holder {
            LastHolder::HandedOver(bytes) | LastHolder::Stopped(bytes) => Self::decode(bytes)?,
            LastHolder::None | LastHolder::Died { .. } => Self::default(),
        };
        // The last holder no longer holds its permits, so they get a lease.
        pace.lend_own(pace.latest_now);
        pace.observe_clock(now);
        if let LastHolder::Stopped(_) = last_holder {
            pace.restarted();
        }
        pace.seed(terms, saved, now);
        if let Some((until, stated_at)) = saved.server {
            pace.restore_server_until(until, stated_at, now);
        }
        if let LastHolder::Died { latest } = last_holder {
            // If the clock is behind, the wait must not get longer.
            pace.lost(latest.min(now));
        }
        Ok(pace)
    }

    /// What the store saves whenever it changes, so that it survives a crash.
    pub fn saved_limits(&self) -> SavedLimits {
        let bounds = self.learned.bounds();
        let server = self.holds.as_ref().and_then(|holds| {
            let until = holds.server_until.ever()?;
            Some((until, until - Span::from_millis(holds.server_ms.into())))
        });
        SavedLimits {
            delay: self.learned.delay,
            floor: bounds.floor,
            floor_at: bounds.floor_at.ever(),
            server,
        }
    }

    /// Operator command: sets the learned delay and its floor, within the limits of the rule.
    pub fn set_learned(
        &mut self,
        terms: Terms<'_>,
        delay: Span,
        floor: Span,
        now: Timestamp,
    ) -> Option<DelayChange> {
        self.observe_clock(now);
        let floor = floor.min(terms.rule.learning().most(terms.learn_base()));
        let delay = terms.rule.learning().limit(delay, floor, terms.learn_base());
        let change = self.learned.changing(|learned| {
            learned.delay = delay;
            let floor_at = if floor.is_zero() { Timestamp::NEVER } else { now };
            learned.bound(Bounds { floor, floor_at, probe_from: Span::ZERO });
            learned.success_streak = 0;
        });
        self.learned.touched = true;
        self.forget_bracket();
        // Responses to requests that started with the old delay say nothing about the new one.
        self.forgive(now);
        change
    }

    /// Operator command: pins what was learned, or lets it change again. Holds still apply.
    pub fn pin(&mut self, pinned: Pinned) {
        self.learned.pinned = pinned == Pinned::Yes;
        self.learned.end_probe();
        self.learned.touched = true;
    }

    /// Operator command: forgets what was learned and our own holds; the server's deadlines stay.
    pub fn reset(&mut self, now: Timestamp) -> Option<DelayChange> {
        self.observe_clock(now);
        self.restarted();
        self.forget_bracket();
        let probe = self.learned.probe;
        let change = self.learned.changing(|learned| {
            *learned = Learned { probe, ..Learned::default() };
        });
        self.learned.touched = true;
        self.forgive(now);
        change
    }

    /// Operator command: drops a deadline that the server stated, and returns it if it was in force. The server may still
    /// refuse the next request.
    pub fn drop_server_deadline(&mut self, now: Timestamp) -> Option<Timestamp> {
        self.observe_clock(now);
        let holds = self.holds.as_mut()?;
        holds.server_ms = 0;
        let dropped = std::mem::replace(&mut holds.server_until, Timestamp::NEVER);
        Some(dropped).filter(|until| *until > now)
    }

    /// What an operator sets or resets is a new start for bracket learning.
    fn forget_bracket(&mut self) {
        if let Some(cold) = &mut self.cold {
            cold.bracket = None;
        }
    }

    /// Treats responses to requests that started before `now` as late.
    fn forgive(&mut self, now: Timestamp) {
        let holds = self.holds_mut();
        holds.penalty_at = holds.penalty_at.max(now);
    }

    /// Operator command: pauses the domain until a given time, or until it is resumed.
    pub fn pause(&mut self, until: Option<Timestamp>) {
        self.cold_mut().paused_until = until.unwrap_or(Timestamp::MAX);
    }

    /// Operator command: ends the pause.
    pub fn resume(&mut self) {
        if let Some(cold) = &mut self.cold {
            cold.paused_until = Timestamp::NEVER;
        }
    }

    /// Until when an operator paused the domain, even if that has passed; [`Timestamp::MAX`] means until resumed. This
    /// has to survive a crash.
    pub fn paused_until(&self) -> Option<Timestamp> {
        self.cold.as_ref().and_then(|cold| cold.paused_until.ever())
    }

    /// Until when the domain is paused; `None` if it isn't paused at `now`.
    pub fn paused_at(&self, now: Timestamp) -> Option<Timestamp> {
        self.paused_until().filter(|until| *until > now)
    }
}

/// Whether an operator pinned what was learned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pinned {
    /// Responses don't change it.
    Yes,
    /// Responses change it.
    No,
}

/// The limits of a domain that survive a crash, when the complete pace is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SavedLimits {
    /// The learned delay (`adaptive_delay_seconds`).
    pub delay: Span,
    /// Its floor (`adaptive_delay_floor_seconds`).
    pub floor: Span,
    /// When a failed probe last confirmed the floor.
    pub floor_at: Option<Timestamp>,
    /// Until when the server asked us to wait, and when it did so.
    pub server: Option<(Timestamp, Timestamp)>,
}

/// How the last holder of a domain gave it up. Complete paces are encoded with [`Pace::encode`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LastHolder<'a> {
    /// The domain never had a holder.
    None,
    /// A running process handed it over.
    HandedOver(&'a [u8]),
    /// The holder stopped cleanly.
    Stopped(&'a [u8]),
    /// The holder died, or its state was lost.
    Died {
        /// The latest time at which it may have sent a request.
        latest: Timestamp,
    },
}

/// The end of a hold after the clock stepped back. A hold that was active keeps its remaining time; one that had ended
/// may become active again, but for no longer than it was set for.
fn rebase_hold(until: Timestamp, ms: u32, latest_now: Timestamp, now: Timestamp) -> Timestamp {
    match until > latest_now {
        true => until - latest_now.since(now),
        false => until.min(now + Span::from_millis(ms.into())),
    }
}
