//! Permits that leave the process which drew them, and for how long they keep their place (B80).
//!
//! A permit in the hands of the process that drew it is *held*: its place is kept for as long as its request takes,
//! and whoever asks is told to look again when a lease of its would have to be renewed. One that is given to
//! somebody else, who may never come back, is *lent*: when its lease ends it no longer counts as being on the wire.
//! Its charge stays (B25), and if it is recorded after all, what the server said counts.

use super::{Pace, Passed, Terms};
use crate::decision::Permit;
use crate::intent::Intent;
use crate::time::{Span, Timestamp};

/// A permit that was lent, as a store keeps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lent {
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
    /// Gives a permit to somebody outside of this process, for as long as `lease` says. When that ends; `None` when the
    /// permit is not held here.
    pub fn lend(&mut self, id: u32, lease: Span, now: Timestamp) -> Option<Timestamp> {
        self.meet(now);
        let held = self.opens().find(|open| open.id == id).copied()?;
        self.settle(&held);
        let until = now + lease.min(LEASE_MAX);
        self.rare_mut().lend(Lease { permit: held, until }, now);
        Some(until)
    }

    /// Begins the lease of a permit anew. When it ends; `None` when it was recorded, released or has expired.
    pub fn renew(&mut self, passed: Passed, lease: Span, now: Timestamp) -> Option<Timestamp> {
        self.meet(now);
        let until = now + lease.min(LEASE_MAX);
        let leases = self.rare.as_mut()?.lent.iter_mut();
        let mut own = leases.filter(|lent| lent.until > now && passed.means(&lent.permit));
        own.next().map(|own| {
            own.until = until;
            until
        })
    }

    /// An operator ends all leases, and learns how many there were. Nothing else changes: not what was learned, no hold,
    /// no charge.
    pub fn release(&mut self, now: Timestamp) -> usize {
        self.meet(now);
        let leases = self.rare.iter_mut().flat_map(|rare| &mut rare.lent);
        leases.filter(|lent| lent.until > now).map(|lent| lent.until = now).count()
    }

    /// The permits whose leases have not ended.
    pub fn lent(&self, now: Timestamp) -> impl Iterator<Item = Lent> {
        self.leases().filter(move |lent| lent.until > now).map(|Lease { permit, until }| Lent {
            id: permit.id,
            intent: permit.intent,
            granted_at: permit.started_at,
            until: *until,
        })
    }

    /// Whether a permit was lent and its lease has ended.
    pub fn has_expired(&self, id: u32, now: Timestamp) -> bool {
        self.leases().any(|lent| lent.permit.id == id && lent.until <= now)
    }

    /// Permits that were lent by a holder that died are read back from the store: their requests may be on the wire
    /// (B78).
    pub fn restore_lent(&mut self, terms: Terms<'_>, lent: &[Lent], now: Timestamp) {
        self.meet(now);
        let (spacing, probe) = (self.spacing(terms), self.learned.probe);
        for Lent { id, intent, granted_at, until } in lent {
            // A clock that now reads less than it did then must not make the wait longer than it was.
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
                self.rare_mut().lend(Lease { permit, until }, now);
            }
        }
    }

    /// Whoever held these permits does not hold them any more: they have a lease from now on.
    pub fn lend_held(&mut self, now: Timestamp) {
        self.meet(now);
        let held: Vec<Permit> = self.opens().copied().collect();
        for permit in held {
            self.lend(permit.id, LEASE, now);
        }
    }

    pub(super) fn leases(&self) -> impl Iterator<Item = &Lease> {
        self.rare.iter().flat_map(|rare| &rare.lent)
    }
}

impl Passed {
    /// Whether this permit is meant. Numbers begin anew after a crash, and come round: one that was granted later is
    /// another's.
    pub(super) fn means(&self, permit: &Permit) -> bool {
        permit.id == self.id && permit.started_at >= self.granted_at
    }
}

/// When to look again at a request that is under way since `started_at`: as if its lease were renewed whenever it ends.
pub(super) fn renewed_until(started_at: Timestamp, now: Timestamp) -> Timestamp {
    started_at + LEASE.times(now.since(started_at).whole_times(LEASE) + 1)
}

/// How long a permit that is lent keeps its place when nobody says otherwise.
pub const LEASE: Span = Span::from_secs(60);
/// The longest lease that can be asked for.
pub const LEASE_MAX: Span = Span::from_mins(10);
