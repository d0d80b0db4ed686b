//! Permits that are lent to other processes, and their leases.
//!
//! A permit that is used by the process that drew it is its *own*: it counts as in flight for as long as its
//! request takes; callers that wait for it should ask again after the length of a lease. A permit that is given to another
//! process, which may never come back, is *lent*: when its lease ends, it no longer counts as in flight. Its slot is
//! not refunded, and if it is recorded after all, the server's headers count.

use super::{Pace, PermitRef, Terms};
use crate::decision::Permit;
use crate::intent::Intent;
use crate::time::{Span, Timestamp};

/// A lent permit, as it is saved in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LentPermit {
    /// Its number among the permits of its domain.
    pub id: u32,
    /// What its request is for.
    pub intent: Intent,
    /// When it was granted.
    pub granted_at: Timestamp,
    /// When its lease ends.
    pub until: Timestamp,
}

/// A permit with the end of its lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lease {
    pub(super) permit: Permit,
    pub(super) until: Timestamp,
}

impl Pace {
    /// Lends an own permit to another process, and returns when the lease ends; `None` if it isn't one of this process.
    pub fn lend(&mut self, id: u32, lease: Span, now: Timestamp) -> Option<Timestamp> {
        self.observe_clock(now);
        let own = self.opens().find(|open| open.id == id).copied()?;
        self.settle(&own);
        let until = now + lease.min(LEASE_MAX);
        self.cold_mut().lend(Lease { permit: own, until }, now);
        Some(until)
    }

    /// Renews the lease of a permit, and returns when it ends; `None` if the permit was recorded or released, or has
    /// expired.
    pub fn renew(&mut self, reference: PermitRef, lease: Span, now: Timestamp) -> Option<Timestamp> {
        self.observe_clock(now);
        let until = now + lease.min(LEASE_MAX);
        let leases = self.cold.as_mut()?.lent.iter_mut();
        let mut own = leases.filter(|lent| lent.until > now && reference.refers_to(&lent.permit));
        own.next().map(|own| {
            own.until = until;
            until
        })
    }

    /// Operator command: ends all leases and returns how many there were. Learned delays, holds and charges don't
    /// change.
    pub fn release(&mut self, now: Timestamp) -> usize {
        self.observe_clock(now);
        let leases = self.cold.iter_mut().flat_map(|cold| &mut cold.lent);
        leases.filter(|lent| lent.until > now).map(|lent| lent.until = now).count()
    }

    /// The lent permits whose leases have not ended.
    pub fn lent_permits(&self, now: Timestamp) -> impl Iterator<Item = LentPermit> {
        self.leases().filter(move |lent| lent.until > now).map(|Lease { permit, until }| LentPermit {
            id: permit.id,
            intent: permit.intent,
            granted_at: permit.started_at,
            until: *until,
        })
    }

    /// Whether the permit was lent and its lease has ended.
    pub fn has_expired(&self, id: u32, now: Timestamp) -> bool {
        self.leases().any(|lent| lent.permit.id == id && lent.until <= now)
    }

    /// Restores from the store the permits that were lent by a holder that died; their requests may be in flight.
    pub fn restore_lent(&mut self, terms: Terms<'_>, lent: &[LentPermit], now: Timestamp) {
        self.observe_clock(now);
        let (spacing, probe) = (self.spacing(terms), self.learned.probe);
        for LentPermit { id, intent, granted_at, until } in lent {
            // If the clock is behind what it was then, the wait must not get longer.
            let until = (*until).min(now + LEASE_MAX);
            if until > now && self.permit(*id).is_none() {
                let permit = Permit {
                    started_at: (*granted_at).min(now),
                    spacing,
                    id: *id,
                    probe,
                    intent: *intent,
                    departed: true,
                };
                self.cold_mut().lend(Lease { permit, until }, now);
            }
        }
    }

    /// Turns all own permits into lent ones, because the process that drew them no longer has them.
    pub fn lend_own(&mut self, now: Timestamp) {
        self.observe_clock(now);
        let own: Vec<Permit> = self.opens().copied().collect();
        for permit in own {
            self.lend(permit.id, LEASE, now);
        }
    }

    pub(super) fn leases(&self) -> impl Iterator<Item = &Lease> {
        self.cold.iter().flat_map(|cold| &cold.lent)
    }
}

impl PermitRef {
    /// Whether this refers to `permit`. Numbers restart after a crash and wrap around, so a permit that
    /// started before `granted_at` is a different one.
    pub(super) fn refers_to(&self, permit: &Permit) -> bool {
        permit.id == self.id && permit.started_at >= self.granted_at
    }
}

/// When to check again whether the request of an own permit is finished: at multiples of a lease since `started_at`.
pub(super) fn renewed_until(started_at: Timestamp, now: Timestamp) -> Timestamp {
    started_at + LEASE.times(now.since(started_at).whole_times(LEASE) + 1)
}

/// The default lease of a lent permit.
pub const LEASE: Span = Span::from_secs(60);
/// The longest lease.
pub const LEASE_MAX: Span = Span::from_mins(10);
