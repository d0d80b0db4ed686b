//! Permits that leave this process with a lease, and their rows in the store.
//!
//! If a rule limits how many requests may be in flight, a permit is saved in the store before it goes out. Whoever
//! takes the domain after a crash waits for the permits whose leases have not ended. When a permit is recorded or
//! released, its row is deleted before the caller gets an answer. Rows of expired permits are deleted with the next
//! flush, and before the domain is handed over.

use comity_core::domain::Domain;
use comity_core::pace::{LentPermit, PermitRef};
use comity_core::paces::DomainId;
use comity_core::time::{Span, Timestamp};
use comity_store::StoreError;
use comity_store::domains::Tenure;

use super::registration::Registration;
use super::state::{self, State};
use super::{Gate, GateError, Inner, Permit};

impl Permit {
    /// Saves the permit in the store, so that it survives a crash. Call it before [`Self::lend`]; after an error the
    /// permit must not be given out.
    pub async fn persist(&self, lease: Span) -> Result<(), GateError> {
        let Some(registration) = self.inner().registration.as_ref().filter(|_| self.is_limited()) else {
            return Ok(());
        };
        let tenure = {
            let mut state = self.inner().lock();
            state.note_lent(self.holding(), self.id()).ok_or(StoreError::Lost)?
        };
        let granted_at = self.started_at();
        let until = self.inner().clock.now() + lease;
        let lent = LentPermit { id: self.id(), intent: self.intent(), granted_at, until };
        let turns = registration.availability.turns();
        registration.store.lend(registration.holder(), tenure, lent).await?;
        match registration.availability.turns() == turns {
            true => Ok(()),
            // The store was unavailable in between. A request that leaves only now would be too close to the next one.
            false => Err(GateError::Lost),
        }
    }

    /// Gives the permit out with a lease. Whoever has it records it later by its number, which is returned.
    pub fn lend(self, lease: Span) -> u32 {
        let (inner, (domain, serial), id) = (self.inner().clone(), self.holding(), self.id());
        self.disarm();
        let mut state = inner.lock();
        let now = inner.clock.now();
        if state.owns(domain, serial)
            && let Some(pace) = state.dispatch.pace_of(domain, now)
        {
            pace.lend(id, lease, now);
            state.note_lending(domain);
        }
        state.returned(domain, serial);
        // Plans a check for when its lease ends, for those who wait for it.
        state::pump(&inner, state);
        id
    }

    /// Whether the number of requests in flight is limited for its domain.
    fn is_limited(&self) -> bool {
        let limits = [self.terms().rule, self.inner().rules.rule_of(self.domain())];
        limits.iter().any(|rule| rule.in_flight().is_some())
    }
}

impl Gate {
    /// Renews the lease of a permit. Returns when it ends; `None` if the permit was recorded or released, or has
    /// expired.
    pub async fn renew(
        &self,
        host: &Domain,
        passed: PermitRef,
        lease: Span,
    ) -> Result<Option<Timestamp>, GateError> {
        let domain = self.rules().domain(host);
        let (lent, tenure) = {
            let mut state = self.lock_held(&domain, host).await?;
            let now = self.now();
            let pace = state.dispatch.pace_mut(&domain, now).ok_or(GateError::Closed)?;
            let renewed = pace.renew(passed, lease, now).is_some();
            let Some(lent) = pace.lent_permits(now).find(|lent| renewed && lent.id == passed.id) else {
                return Ok(None);
            };
            let held = state.dispatch.paces().find(&domain).and_then(|id| state.held.get(&id));
            let tenure = held.filter(|held| held.lent.contains(&lent.id)).map(|held| held.tenure);
            self.pump(state);
            (lent, tenure)
        };
        if let (Some(tenure), Some(registration)) = (tenure, &self.0.registration) {
            registration.store.lend(registration.holder(), tenure, lent).await?;
        }
        Ok(Some(lent.until))
    }

    /// Ends the leases of all lent permits of a domain on behalf of an operator, and returns how many there were. What
    /// was learned is kept.
    pub async fn release(&self, host: &Domain) -> Result<usize, GateError> {
        let released = self.with_pace(host, |pace, _, now| pace.release(now)).await?;
        self.forget_settled(&self.rules().domain(host)).await?;
        Ok(released)
    }

    /// Deletes the rows of a domain's settled permits from the store, so that nobody waits for them after a crash.
    pub(super) async fn forget_settled(&self, domain: &Domain) -> Result<(), StoreError> {
        let Some(registration) = &self.0.registration else { return Ok(()) };
        let settled = {
            let mut state = self.lock();
            let id = state.dispatch.paces().find(domain).filter(|id| state.lent.contains(id));
            let now = self.now();
            id.map(|id| state.settled_leases(id, now)).unwrap_or_default()
        };
        registration.forget_lent(settled).await
    }
}

impl State {
    /// Notes that a permit is about to be saved in the store, and returns the tenure to save it under. `None` if its
    /// domain is no longer held here.
    fn note_lent(&mut self, (id, serial): (DomainId, u64), permit: u32) -> Option<Tenure> {
        let held = self.held.get_mut(&id).filter(|held| held.serial == serial)?;
        held.lent.insert(permit);
        self.lent.insert(id);
        Some(held.tenure)
    }

    /// The permits of a domain that are in the store but settled or expired.
    pub(super) fn settled_leases(&mut self, id: DomainId, now: Timestamp) -> Vec<(Tenure, u32)> {
        let (Some(held), Some(pace)) = (self.held.get_mut(&id), self.dispatch.paces().pace(id)) else {
            self.lent.remove(&id);
            return Vec::new();
        };
        let is_over = |permit: &u32| pace.permit(*permit).is_none() || pace.has_expired(*permit, now);
        let over: Vec<u32> = held.lent.iter().copied().filter(is_over).collect();
        over.iter().for_each(|permit| _ = held.lent.remove(permit));
        let tenure = held.tenure;
        if held.lent.is_empty() {
            self.lent.remove(&id);
        }
        over.into_iter().map(|permit| (tenure, permit)).collect()
    }
}

/// The permits of all domains that are in the store but settled or expired.
pub(super) fn settled(inner: &Inner) -> Vec<(Tenure, u32)> {
    let mut state = inner.lock();
    let (now, ids) = (inner.clock.now(), state.lent.clone());
    ids.into_iter().flat_map(|id| state.settled_leases(id, now)).collect()
}

impl Registration {
    /// Deletes the rows of settled permits from the store.
    pub(super) async fn forget_lent(&self, settled: Vec<(Tenure, u32)>) -> Result<(), StoreError> {
        match settled.is_empty() {
            true => Ok(()),
            false => self.store.forget_lent(self.holder(), settled).await,
        }
    }
}
