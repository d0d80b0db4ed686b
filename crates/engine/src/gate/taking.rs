//! Taking domains: what the store says is ours becomes ours, in one piece.
//!
//! Between the store's word and the domain in memory there is a moment in which a domain belongs to this process and
//! nobody in it knows. Whoever closes the gate waits until nobody is in that moment, and what cannot be taken up any
//! more goes back as it came. Callers that may be cancelled run this in a task of its own (B11).

use comity_core::domain::Domain;
use comity_core::pace::{Left, Pace, Pinned, Terms};
use comity_core::time::{Span, Timestamp};
use comity_store::StoreError;
use comity_store::domains::{Hold, HolderId, LeftBehind, Parting, Released, Saved, Take, Taken};
use comity_store::tasks::{Claim, Claimed, LaneId, TaskRow};
use url::Url;

use super::Gate;
use super::tenancy::Tenancy;
use crate::event::Event;

/// A lane whose domain is ours, with its first tasks.
#[derive(Debug)]
pub(crate) struct LaneInHand {
    pub(crate) lane: LaneId,
    pub(crate) domain: Domain,
    pub(crate) hold: Hold,
    pub(crate) tasks: Vec<TaskRow>,
}

/// What a claim brought.
#[derive(Debug, Default)]
pub(crate) struct Brought {
    pub(crate) lanes: Vec<LaneInHand>,
    /// How many lanes were due, those included whose domain is on its way out: they come again soon.
    pub(crate) due: usize,
}

/// Who asks the store for domains, and in which of its lives: when it lost everything in between, what it got is
/// somebody else's by now.
#[derive(Debug, Clone, Copy)]
struct Taker {
    holder: HolderId,
    life: u64,
}

impl Gate {
    /// Claims lanes of a job, and takes up the domains that come with them.
    pub(crate) async fn claim(&self, claim: Claim) -> Result<Brought, StoreError> {
        let Some(tenancy) = &self.0.tenancy else { return Ok(Brought::default()) };
        let _taking = tenancy.takings.read().await;
        // Known only now: whoever becomes another holder waits until nobody takes anything.
        let Some(taker) = self.taker() else { return Ok(Brought::default()) };
        let now = self.now();
        let claimed = tenancy.store.claim(taker.holder, claim, now).await?;
        let mut brought = Brought { lanes: Vec::with_capacity(claimed.len()), due: claimed.len() };
        let (mut back, mut parked) = (Vec::new(), Vec::new());
        for Claimed { lane, domain, take, tasks, .. } in claimed {
            let hold = match take {
                Take::Taken(taken) => match self.take_up(taker, *taken, &first_host(&tasks, &domain)) {
                    Ok(hold) => Some(hold),
                    Err(taken) => {
                        back.push(*taken);
                        None
                    }
                },
                Take::Ours => self.held(&domain),
                Take::Held { .. } => None,
            };
            match hold {
                Some(hold) => brought.lanes.push(LaneInHand { lane, domain, hold, tasks }),
                None => parked.push((lane, now + AGAIN)),
            }
        }
        tenancy.pass_back(taker, back, now).await?;
        if !parked.is_empty() {
            tenancy.store.park(taker.holder, parked).await?;
        }
        Ok(brought)
    }

    /// Who asks the store for domains. To be known before it is asked.
    fn taker(&self) -> Option<Taker> {
        // In this order: a new holder begins after a life has ended.
        let holder = self.holder()?;
        Some(Taker { holder, life: self.lock().life })
    }

    /// Takes up a domain that the store says is ours. It comes back when everything was lost since the store said so, or
    /// the gate was closed.
    fn take_up(&self, taker: Taker, taken: Taken, host: &Domain) -> Result<Hold, Box<Taken>> {
        let rule = self.0.rules.rule(host);
        let mut state = self.lock();
        if state.is_closed() || state.life != taker.life {
            return Err(Box::new(taken));
        }
        let Taken { domain, hold, kept, steering, left, lent } = taken;
        let now = self.now();
        let crawl_delay = state.crawl_delay(host);
        let terms = Terms { rule, crawl_delay };
        let told = match &left {
            LeftBehind::New => Left::New,
            LeftBehind::HandedOver(pace) => Left::HandedOver(pace),
            LeftBehind::Stopped(pace) => Left::Stopped(pace),
            LeftBehind::Died { latest } => Left::Died { latest: *latest },
        };
        let lost = Left::Died { latest: now };
        let remains = state.remains.remove(&domain);
        let (mut pace, damage) = match Pace::inherit(terms, &kept, told, now) {
            // Nobody had it since our store went away, or the store lost it: what we knew then still goes, and that
            // we do not know what left meanwhile comes on top (B77).
            Ok(_) if let (Left::Died { .. } | Left::New, Some(mut ours)) = (told, remains) => {
                let latest = if let Left::Died { latest } = told { latest } else { now };
                if let Some((until, stated_at)) = kept.server {
                    ours.restore_server_until(until, stated_at, now);
                }
                ours.lost(latest.min(now));
                ours.lend_held(now);
                (ours, None)
            }
            Ok(pace) => (pace, None),
            // What cannot be read is lost, and lost state costs time, never politeness (B77).
            Err(error) => (Pace::inherit(terms, &kept, lost, now).unwrap_or_default(), Some(error)),
        };
        pace.restore_lent(terms, &lent, now);
        if steering.pinned {
            pace.pin(Pinned::Yes);
        }
        if let Some(until) = steering.paused_until {
            pace.pause(Some(until));
        }
        state.adopt(&domain, hold, pace, now);
        self.pump(state);
        // Whoever else wants it need not look at the store.
        if let Some(tenancy) = &self.0.tenancy {
            tenancy.changed.notify_waiters();
        }
        if let Some(error) = damage {
            self.0.events.tell(&Event::PaceDamaged { domain: &domain, error: &error });
        }
        self.0.events.tell(&Event::TookOver { domain: &domain, left: &left });
        Ok(hold)
    }
}

/// Takes a domain, unless somebody else holds it; whether it is ours now.
pub(super) async fn take_one(gate: Gate, domain: Domain, host: Domain) -> Result<bool, StoreError> {
    let Some(tenancy) = &gate.0.tenancy else { return Ok(true) };
    let _taking = tenancy.takings.read().await;
    let Some(taker) = gate.taker() else { return Ok(true) };
    let mut takes = tenancy.store.take(taker.holder, vec![domain.clone()], gate.now()).await?;
    match takes.pop() {
        Some(Take::Taken(taken)) => match gate.take_up(taker, *taken, &host) {
            Ok(_) => Ok(true),
            Err(taken) => {
                tenancy.pass_back(taker, vec![*taken], gate.now()).await?;
                Ok(false)
            }
        },
        Some(Take::Held { by }) => {
            gate.0.events.tell(&Event::HeldElsewhere { domain: &domain, by: &by });
            Ok(false)
        }
        // It is on its way out, or on its way in: the next look tells.
        Some(Take::Ours) | None => Ok(false),
    }
}

/// A domain that was taken and not taken up, as it was. Of one whose holder died nothing is there to be passed on.
fn untouched(taken: Taken) -> Option<Released> {
    let Taken { hold, kept, steering, left, .. } = taken;
    let (pace, parting) = match left {
        LeftBehind::New => (Pace::default().encode(), Parting::HandOver),
        LeftBehind::HandedOver(pace) => (pace, Parting::HandOver),
        LeftBehind::Stopped(pace) => (pace, Parting::Stop),
        LeftBehind::Died { .. } => return None,
    };
    Some(Released { saved: Saved { hold, kept, steering }, pace, parting })
}

impl Tenancy {
    /// Passes on as they came what was taken and cannot be taken up. What was lost is not ours to pass on, and the store
    /// knows.
    async fn pass_back(&self, taker: Taker, taken: Vec<Taken>, now: Timestamp) -> Result<(), StoreError> {
        let back: Vec<Released> = taken.into_iter().filter_map(untouched).collect();
        match back.is_empty() {
            true => Ok(()),
            false => self.store.release(taker.holder, back, now).await,
        }
    }
}

/// The host that the first of these tasks asks.
fn first_host(tasks: &[TaskRow], domain: &Domain) -> Domain {
    let url = tasks.first().and_then(|task| Url::parse(task.at_url.as_ref().unwrap_or(&task.url)).ok());
    url.as_ref().and_then(Domain::of).unwrap_or_else(|| domain.clone())
}

/// A lane whose domain is on its way out is looked at again after this long.
const AGAIN: Span = Span::from_millis(50);

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use comity_core::rule::RuleTable;

    use super::*;
    use crate::clock::Clock;
    use crate::event::Events;
    use crate::gate::upkeep::lose;

    /// B9: a domain that was taken right before the process lost everything was taken up after it, and paced by two.
    #[tokio::test]
    async fn what_was_taken_before_everything_was_lost_is_not_taken_up() {
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
        assert_eq!(gate.take_up(taker, first, &domains[0]).ok(), gate.held(&domains[0]));
        assert!(gate.holds(&domains[0]));
        lose(&gate.0, gate.0.tenancy.as_ref().unwrap());
        assert!(gate.take_up(taker, second, &domains[1]).is_err());
        assert_eq!(domains.map(|domain| gate.holds(&domain)), [false, false]);
    }
}
