//! Takes domains from the store and installs them in memory in one step.
//!
//! Between the store's response and the installation, a domain belongs to this process without being in memory. Closing
//! the gate waits until no domain is in that state, and domains that can no longer be installed are returned unchanged.
//! Callers that may be cancelled run this in a task of its own.

use comity_core::domain::Domain;
use comity_core::pace::{LastHolder, Pace, Pinned, Terms};
use comity_core::time::{Span, Timestamp};
use comity_store::StoreError;
use comity_store::domains::{HolderId, LastHolderBuf, ReleaseMode, Released, Saved, Take, Taken, Tenure};
use comity_store::tasks::{Claim, Claimed, LaneId, TaskRow};
use url::Url;

use super::Gate;
use super::registration::Registration;
use crate::event::Event;

/// A claimed lane whose domain is held here, with its first tasks.
#[derive(Debug)]
pub(crate) struct ClaimedLane {
    pub(crate) lane: LaneId,
    pub(crate) domain: Domain,
    pub(crate) tenure: Tenure,
    pub(crate) tasks: Vec<TaskRow>,
}

/// The result of a claim.
#[derive(Debug, Default)]
pub(crate) struct ClaimResult {
    pub(crate) lanes: Vec<ClaimedLane>,
    /// How many lanes were due, including those whose domain is just being handed over, which will be due again soon.
    pub(crate) due: usize,
}

/// The holder that asks the store for domains, and its generation. If everything was lost in between, what it got
/// belongs to somebody else by now.
#[derive(Debug, Clone, Copy)]
struct Taker {
    holder: HolderId,
    generation: u64,
}

impl Gate {
    /// Claims lanes of a job, and installs the domains that come with them.
    pub(crate) async fn claim(&self, claim: Claim) -> Result<ClaimResult, StoreError> {
        let Some(registration) = &self.0.registration else { return Ok(ClaimResult::default()) };
        let _taking = registration.taking_lock.read().await;
        // Read only now: registering as a new holder waits until nobody is taking domains.
        let Some(taker) = self.taker() else { return Ok(ClaimResult::default()) };
        let now = self.now();
        let claimed = registration.store.claim(taker.holder, claim, now).await?;
        let mut result = ClaimResult { lanes: Vec::with_capacity(claimed.len()), due: claimed.len() };
        let (mut back, mut parked) = (Vec::new(), Vec::new());
        for Claimed { lane, domain, take, tasks, .. } in claimed {
            let tenure = match take {
                Take::Taken(taken) => match self.install(taker, *taken, &first_host(&tasks, &domain)) {
                    Ok(tenure) => Some(tenure),
                    Err(taken) => {
                        back.push(*taken);
                        None
                    }
                },
                Take::Ours => self.held(&domain),
                Take::Held { .. } => None,
            };
            match tenure {
                Some(tenure) => result.lanes.push(ClaimedLane { lane, domain, tenure, tasks }),
                None => parked.push((lane, now + LANE_RECHECK)),
            }
        }
        registration.return_unused(taker, back, now).await?;
        if !parked.is_empty() {
            registration.store.park(taker.holder, parked).await?;
        }
        Ok(result)
    }

    /// Whether domains are just being taken: some may belong to this process although [`Self::holds`] doesn't say so yet.
    pub fn is_taking(&self) -> bool {
        self.0.registration.as_ref().is_some_and(|registration| registration.taking_lock.try_write().is_err())
    }

    /// The current holder and generation, to be read before asking the store.
    fn taker(&self) -> Option<Taker> {
        // In this order, because a new holder registers after the old generation has ended.
        let holder = self.holder()?;
        Some(Taker { holder, generation: self.lock().generation })
    }

    /// Installs a domain that the store gave us. Returns it if everything was lost since then or the gate was closed.
    fn install(&self, taker: Taker, taken: Taken, host: &Domain) -> Result<Tenure, Box<Taken>> {
        let rule = self.0.rules.rule(host);
        let mut state = self.lock();
        if state.is_closed() || state.generation != taker.generation {
            return Err(Box::new(taken));
        }
        let Taken { domain, tenure, kept, steering, last_holder: left, lent } = taken;
        let now = self.now();
        let crawl_delay = state.crawl_delay(host);
        let terms = Terms { rule, crawl_delay };
        let last_holder = match &left {
            LastHolderBuf::None => LastHolder::None,
            LastHolderBuf::HandedOver(pace) => LastHolder::HandedOver(pace),
            LastHolderBuf::Stopped(pace) => LastHolder::Stopped(pace),
            LastHolderBuf::Died { latest } => LastHolder::Died { latest: *latest },
        };
        let lost = LastHolder::Died { latest: now };
        let remembered = state.remembered.remove(&domain);
        let (mut pace, damage) = match Pace::inherit(terms, &kept, last_holder, now) {
            // Nobody held the domain since our store became unavailable, or the store lost it. What we knew still
            // applies, plus the uncertainty about what was sent in the meantime.
            Ok(_)
                if let (LastHolder::Died { .. } | LastHolder::None, Some(mut ours)) =
                    (last_holder, remembered) =>
            {
                let latest = if let LastHolder::Died { latest } = last_holder { latest } else { now };
                if let Some((until, stated_at)) = kept.server {
                    ours.restore_server_until(until, stated_at, now);
                }
                ours.lost(latest.min(now));
                ours.lend_own(now);
                (ours, None)
            }
            Ok(pace) => (pace, None),
            // A pace that can't be decoded counts as lost. Lost state costs time, never politeness.
            Err(error) => (Pace::inherit(terms, &kept, lost, now).unwrap_or_default(), Some(error)),
        };
        pace.restore_lent(terms, &lent, now);
        if steering.pinned {
            pace.pin(Pinned::Yes);
        }
        if let Some(until) = steering.paused_until {
            pace.pause(Some(until));
        }
        state.adopt(&domain, tenure, pace, now);
        self.pump(state);
        // Others in this process who want the domain don't need to ask the store.
        if let Some(registration) = &self.0.registration {
            registration.changed.notify_waiters();
        }
        if let Some(error) = damage {
            self.0.events.emit(&Event::PaceUnreadable { domain: &domain, error: &error });
        }
        self.0.events.emit(&Event::TookOver { domain: &domain, left: &left });
        Ok(tenure)
    }
}

/// Takes a domain unless somebody else holds it. Returns whether it is held here now.
pub(super) async fn take_one(gate: Gate, domain: Domain, host: Domain) -> Result<bool, StoreError> {
    let Some(registration) = &gate.0.registration else { return Ok(true) };
    let _taking = registration.taking_lock.read().await;
    let Some(taker) = gate.taker() else { return Ok(true) };
    let mut takes = registration.store.take(taker.holder, vec![domain.clone()], gate.now()).await?;
    match takes.pop() {
        Some(Take::Taken(taken)) => match gate.install(taker, *taken, &host) {
            Ok(_) => Ok(true),
            Err(taken) => {
                registration.return_unused(taker, vec![*taken], gate.now()).await?;
                Ok(false)
            }
        },
        Some(Take::Held { by }) => {
            gate.0.events.emit(&Event::HeldElsewhere { domain: &domain, by: &by });
            Ok(false)
        }
        // It is just being handed over or taken; the next check shows which.
        Some(Take::Ours) | None => Ok(false),
    }
}

/// Returns a taken but not installed domain as it was. There is nothing to return if its last holder died.
fn release_unchanged(taken: Taken) -> Option<Released> {
    let Taken { tenure, kept, steering, last_holder, .. } = taken;
    let (pace, mode) = match last_holder {
        LastHolderBuf::None => (Pace::default().encode(), ReleaseMode::HandOver),
        LastHolderBuf::HandedOver(pace) => (pace, ReleaseMode::HandOver),
        LastHolderBuf::Stopped(pace) => (pace, ReleaseMode::Stop),
        LastHolderBuf::Died { .. } => return None,
    };
    Some(Released { saved: Saved { tenure, kept, steering }, pace, mode })
}

impl Registration {
    /// Returns taken domains that can't be installed to the store, unchanged. Domains that were lost are not ours to
    /// return, and the store knows that.
    async fn return_unused(&self, taker: Taker, taken: Vec<Taken>, now: Timestamp) -> Result<(), StoreError> {
        let back: Vec<Released> = taken.into_iter().filter_map(release_unchanged).collect();
        match back.is_empty() {
            true => Ok(()),
            false => self.store.release(taker.holder, back, now).await,
        }
    }
}

/// The host of the first task.
fn first_host(tasks: &[TaskRow], domain: &Domain) -> Domain {
    let url = tasks.first().and_then(|task| Url::parse(task.at_url.as_ref().unwrap_or(&task.url)).ok());
    url.as_ref().and_then(Domain::of).unwrap_or_else(|| domain.clone())
}

/// When to check a lane again whose domain is just being handed over.
const LANE_RECHECK: Span = Span::from_millis(50);

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use comity_core::rule::RuleTable;

    use super::*;
    use crate::clock::Clock;
    use crate::event::Events;
    use crate::gate::upkeep::lose_all;

    /// B9: a domain that was taken right before the process lost everything used to be installed afterwards, so that
    /// two processes paced it.
    #[tokio::test]
    async fn a_domain_taken_before_everything_was_lost_is_not_installed() {
        let store = comity_store::open("memory:").unwrap();
        let (rules, events) = (Arc::new(RuleTable::default()), Events::new());
        let gate = Gate::with_store(rules, Clock::new(), events, store.clone(), "a test").await.unwrap();
        let (taker, domains) = (gate.taker().unwrap(), ["a.example", "b.example"]);
        let domains = domains.map(|name| Domain::parse(name).unwrap());
        let takes = store.take(taker.holder, domains.to_vec(), gate.now()).await.unwrap();
        let mut taken = takes.into_iter().map(|take| match take {
            Take::Taken(taken) => *taken,
            other => panic!("{other:?}"),
        });
        let (first, second) = (taken.next().unwrap(), taken.next().unwrap());
        assert_eq!(gate.install(taker, first, &domains[0]).ok(), gate.held(&domains[0]));
        assert!(gate.holds(&domains[0]));
        lose_all(&gate.0, gate.0.registration.as_ref().unwrap());
        assert!(gate.install(taker, second, &domains[1]).is_err());
        assert!(!gate.is_taking());
        let taking = gate.0.registration.as_ref().unwrap().taking_lock.read().await;
        assert!(gate.is_taking(), "a domain that is being taken counted as held by another process");
        drop(taking);
        assert_eq!(domains.map(|domain| gate.holds(&domain)), [false, false]);
    }
}
