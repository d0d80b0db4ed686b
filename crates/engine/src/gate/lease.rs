//! Permits that leave this process with a lease (B80), and what a store knows of them (B78).
//!
//! Where a rule limits how many requests are in flight, a permit is kept in the store before it goes out. Whoever takes
//! the domain after a crash waits for those whose leases have not ended. The row of a permit that is recorded or released goes
//! before that is answered; what is left of them goes with the next flush, and before the domain is handed over.

use comity_core::domain::Domain;
use comity_core::pace::{Lent, Passed};
use comity_core::paces::DomainId;
use comity_core::time::{Span, Timestamp};
use comity_store::StoreError;
use comity_store::domains::Hold;

use super::state::{self, State};
use super::tenancy::Tenancy;
use super::{Gate, GateError, Inner, Permit};

impl Permit {
    /// Keeps the permit in the store, so that it is known after a crash too. To be done before [`Self::lend`]; an error
    /// means that nobody may have it.
    pub async fn keep(&self, lease: Span) -> Result<(), GateError> {
        let Some(tenancy) = self.inner().tenancy.as_ref().filter(|_| self.is_limited()) else {
            return Ok(());
        };
        let hold = {
            let mut state = self.inner().lock();
            state.note_lent(self.tenure(), self.id()).ok_or(StoreError::Lost)?
        };
        let granted_at = self.started_at();
        let until = self.inner().clock.now() + lease;
        let lent = Lent { id: self.id(), intent: self.intent(), granted_at, until };
        let turns = tenancy.availability.turns();
        tenancy.store.lend(tenancy.holder(), hold, lent).await?;
        match tenancy.availability.turns() == turns {
            true => Ok(()),
            // It had to wait for the store: a request that leaves only now would be too close to the next one.
            false => Err(GateError::Lost),
        }
    }

    /// Gives the permit out with a lease, to whoever records it later by its number. Its number.
    pub fn lend(self, lease: Span) -> u32 {
        let (inner, (domain, serial), id) = (self.inner().clone(), self.tenure(), self.id());
        self.let_go();
        let mut state = inner.lock();
        let now = inner.clock.now();
        if state.owns(domain, serial)
            && let Some(pace) = state.dispatch.pace_of(domain, now)
        {
            pace.lend(id, lease, now);
        }
        state.returned(domain, serial);
        // Whoever waits for it is looked at again when its lease ends.
        state::pump(&inner, state);
        id
    }

    /// Whether it matters how many requests to its domain are in flight.
    fn is_limited(&self) -> bool {
        let limits = [self.terms().rule, self.inner().rules.rule_of(self.domain())];
        limits.iter().any(|rule| rule.in_flight().is_some())
    }
}

impl Gate {
    /// Begins the lease of a permit anew. When it ends; `None` when it was recorded, released or has expired.
    pub async fn renew(
        &self,
        host: &Domain,
        passed: Passed,
        lease: Span,
    ) -> Result<Option<Timestamp>, GateError> {
        let domain = self.rules().domain(host);
        let (lent, hold) = {
            let mut state = self.lock_held(&domain, host).await?;
            let now = self.now();
            let pace = state.dispatch.pace_mut(&domain, now).ok_or(GateError::Closed)?;
            let renewed = pace.renew(passed, lease, now).is_some();
            let Some(lent) = pace.lent(now).find(|lent| renewed && lent.id == passed.id) else {
                return Ok(None);
            };
            let tenure = state.dispatch.paces().find(&domain).and_then(|id| state.tenures.get(&id));
            let hold = tenure.filter(|tenure| tenure.lent.contains(&lent.id)).map(|tenure| tenure.hold);
            self.pump(state);
            (lent, hold)
        };
        if let (Some(hold), Some(tenancy)) = (hold, &self.0.tenancy) {
            tenancy.store.lend(tenancy.holder(), hold, lent).await?;
        }
        Ok(Some(lent.until))
    }

    /// An operator ends the leases of all permits of a domain, and learns how many there were. Nothing that was learned is
    /// forgotten.
    pub async fn release(&self, host: &Domain) -> Result<usize, GateError> {
        let released = self.with_pace(host, |pace, _, now| pace.release(now)).await?;
        self.forget_settled(&self.rules().domain(host)).await?;
        Ok(released)
    }

    /// Tells the store which permits of a domain are over: after a crash nobody shall wait for one that was recorded.
    pub(super) async fn forget_settled(&self, domain: &Domain) -> Result<(), StoreError> {
        let Some(tenancy) = &self.0.tenancy else { return Ok(()) };
        let settled = {
            let mut state = self.lock();
            let id = state.dispatch.paces().find(domain).filter(|id| state.lent.contains(id));
            let now = self.now();
            id.map(|id| state.settled_leases(id, now)).unwrap_or_default()
        };
        tenancy.forget_lent(settled).await
    }
}

impl State {
    /// A permit is about to be kept in the store; the hold it is kept under. `None` when its domain is not ours any more.
    fn note_lent(&mut self, (id, serial): (DomainId, u64), permit: u32) -> Option<Hold> {
        let tenure = self.tenures.get_mut(&id).filter(|tenure| tenure.serial == serial)?;
        tenure.lent.insert(permit);
        self.lent.insert(id);
        Some(tenure.hold)
    }

    /// The permits of a domain that the store knows of and that are over.
    pub(super) fn settled_leases(&mut self, id: DomainId, now: Timestamp) -> Vec<(Hold, u32)> {
        let (Some(tenure), Some(pace)) = (self.tenures.get_mut(&id), self.dispatch.paces().pace(id)) else {
            self.lent.remove(&id);
            return Vec::new();
        };
        let is_over = |permit: &u32| pace.permit(*permit).is_none() || pace.has_expired(*permit, now);
        let over: Vec<u32> = tenure.lent.iter().copied().filter(is_over).collect();
        over.iter().for_each(|permit| _ = tenure.lent.remove(permit));
        let hold = tenure.hold;
        if tenure.lent.is_empty() {
            self.lent.remove(&id);
        }
        over.into_iter().map(|permit| (hold, permit)).collect()
    }
}

/// The permits that the store knows of and that are over.
pub(super) fn settled(inner: &Inner) -> Vec<(Hold, u32)> {
    let mut state = inner.lock();
    let (now, ids) = (inner.clock.now(), state.lent.clone());
    ids.into_iter().flat_map(|id| state.settled_leases(id, now)).collect()
}

impl Tenancy {
    /// Tells the store which permits are over.
    pub(super) async fn forget_lent(&self, settled: Vec<(Hold, u32)>) -> Result<(), StoreError> {
        match settled.is_empty() {
            true => Ok(()),
            false => self.store.forget_lent(self.holder(), settled).await,
        }
    }
}
