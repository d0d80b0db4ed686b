//! Two callers that want the same domain, the second while the first is about to commit.

use comity_core::intent::Intent;
use comity_core::pace::LentPermit;
use comity_core::time::Timestamp;
use comity_store::domains::{DomainKey, LastHolderBuf, ReleaseMode, Take, Taken, Tenure};
use comity_store::{LEASE, StoreError};

use crate::backend::Backend;
use crate::process::{Process, at, nothing_learned, taken};

/// B9
pub(crate) async fn of_two_concurrent_takes_one_succeeds(backend: &dyn Backend) {
    let (one, other) = two(backend).await;
    let tenure = one.taken("known.example", at(0)).await.tenure;
    one.release(tenure, b"pace", ReleaseMode::Stop, at(0)).await;
    for name in ["known.example", "new.example"] {
        let takes = one.overlap(one.take(name, at(1)), other.take(name, at(1))).await;
        let (winner, loser) = match &takes {
            (Take::Taken(_), Take::Held { by }) => (&one, by),
            (Take::Held { by }, Take::Taken(_)) => (&other, by),
            _ => panic!("{name}: {takes:?}"),
        };
        assert_eq!(winner.row(name).await.holder.as_ref(), Some(loser), "{name}");
        assert_eq!(winner.take(name, at(1)).await, Take::Ours, "{name}");
    }
}

/// B9, B37: whoever asks for a domain while it is being released gets it with its pace, at once or at the next attempt.
pub(crate) async fn a_take_during_a_release_gets_the_domain(backend: &dyn Backend) {
    let (holder, other) = two(backend).await;
    for (name, mode) in [("a.example", ReleaseMode::HandOver), ("b.example", ReleaseMode::Stop)] {
        let tenure = holder.taken(name, at(0)).await.tenure;
        let release = holder.release(tenure, b"pace", mode, at(1));
        let ((), take) = holder.overlap(release, other.take(name, at(1))).await;
        let got = match take {
            Take::Held { .. } => other.taken(name, at(1)).await,
            take => taken(take),
        };
        assert!(
            matches!(&got.last_holder, LastHolderBuf::HandedOver(pace) | LastHolderBuf::Stopped(pace) if pace == b"pace")
        );
        assert_eq!(holder.take(name, at(1)).await, Take::Held { by: "other".to_owned() });
    }
}

/// B37: a holder that stops hands over a domain that somebody wants, even if that was only said a moment ago.
pub(crate) async fn a_release_during_a_take_hands_over(backend: &dyn Backend) {
    let (holder, other) = two(backend).await;
    let tenure = holder.taken("a.example", at(0)).await.tenure;
    let release = holder.release(tenure, b"pace", ReleaseMode::Stop, at(1));
    let (take, ()) = other.overlap(other.take("a.example", at(1)), release).await;
    match take {
        // It was told that the domain is held, so it asked before the release.
        Take::Held { .. } => {
            let got = other.taken("a.example", at(1)).await;
            assert_eq!(got.last_holder, LastHolderBuf::HandedOver(b"pace".to_vec()));
        }
        take => assert_eq!(taken(take).last_holder, LastHolderBuf::Stopped(b"pace".to_vec())),
    }
}

/// B74, B77: either the holder's heartbeat counts, or another process's finding that it was silent for too long.
pub(crate) async fn a_heartbeat_during_a_takeover_keeps_everything_or_nothing(backend: &dyn Backend) {
    for first in [First::Holder, First::Heir] {
        let (name, late) = (first.domain(), at(0) + LEASE);
        let (silent, heir) = silent_and_heir(backend, name).await.0;
        let (beat, take) = match first {
            First::Holder => silent.overlap(silent.beat(late), heir.take(name, late)).await,
            First::Heir => {
                let (take, beat) = heir.overlap(heir.take(name, late), silent.beat(late)).await;
                (beat, take)
            }
        };
        match (&beat, &take) {
            (Ok(()), Take::Held { .. }) => assert_eq!(silent.take(name, late).await, Take::Ours),
            (Err(StoreError::Lost), Take::Taken(_)) => assert_eq!(heir.take(name, late).await, Take::Ours),
            both => panic!("{first:?}: {both:?}"),
        }
        leave([silent, heir], late).await;
    }
}

/// B77, B78: a permit lent during a takeover is either refused, or known to the next holder.
pub(crate) async fn a_permit_lent_during_a_takeover_is_refused_or_known(backend: &dyn Backend) {
    for first in [First::Holder, First::Heir] {
        let (name, late) = (first.domain(), at(0) + LEASE);
        let ((silent, heir), tenure) = silent_and_heir(backend, name).await;
        let permit = lent(7, late);
        let lend = async { silent.store.lend(silent.holder, tenure, permit).await };
        let (lend, take) = match first {
            First::Holder => silent.overlap(lend, heir.take(name, late)).await,
            First::Heir => {
                let (take, lend) = heir.overlap(heir.take(name, late), lend).await;
                (lend, take)
            }
        };
        let got = taken_over(&heir, take, name, late).await;
        match lend {
            Ok(()) => assert_eq!(got.lent, [permit], "{first:?}"),
            Err(StoreError::Lost) => assert_eq!(got.lent, [], "{first:?}"),
            Err(error) => panic!("{first:?}: {error}"),
        }
        leave([silent, heir], late + LEASE).await;
    }
}

/// B78: permits lent at once by two callers of one holder are both known after its death.
pub(crate) async fn permits_lent_at_once_are_both_kept(backend: &dyn Backend) {
    let (victim, heir) = two(backend).await;
    let same = backend.store().await;
    let tenure = victim.taken("a.example", at(0)).await.tenure;
    let (first, second) = (lent(1, at(1)), lent(2, at(2)));
    let lends = victim.overlap(async { victim.store.lend(victim.holder, tenure, first).await }, async {
        same.lend(victim.holder, tenure, second).await
    });
    let lends = lends.await;
    assert!(lends.0.is_ok() && lends.1.is_ok(), "{lends:?}");
    backend.kill(victim, at(3)).await;
    assert_eq!(heir.taken("a.example", at(4)).await.lent, [first, second]);
}

/// B9, B82: the domain is either deleted first or taken as it was; whoever took it holds it in both cases.
pub(crate) async fn a_domain_taken_while_it_is_deleted_is_held(backend: &dyn Backend) {
    let (one, other) = two(backend).await;
    for first in [First::Holder, First::Heir] {
        let name = first.domain();
        let tenure = one.taken(name, at(0)).await.tenure;
        one.release(tenure, b"pace", ReleaseMode::HandOver, at(0)).await;
        one.taken(&format!("after.{name}"), at(0)).await;
        let idle = one.store.idle_domains(DomainKey(0), at(60), 100).await.unwrap();
        assert!(idle.domains.iter().any(|idle| idle.tenure == tenure), "{idle:?}");
        let forget = async { one.store.forget_domains(vec![tenure], at(60)).await.unwrap() };
        let (forgotten, take) = match first {
            First::Holder => one.overlap(forget, other.take(name, at(61))).await,
            First::Heir => {
                let (take, forgotten) = other.overlap(other.take(name, at(61)), forget).await;
                (forgotten, take)
            }
        };
        let got = taken(take);
        let left =
            if forgotten == 1 { LastHolderBuf::None } else { LastHolderBuf::HandedOver(b"pace".to_vec()) };
        assert_eq!(got.last_holder, left, "{first:?}");
        assert_eq!(other.save(nothing_learned(got.tenure)).await, [], "{first:?}: its tenure is valid");
        assert_eq!(one.take(name, at(61)).await, Take::Held { by: "other".to_owned() }, "{first:?}");
    }
}

/// Who is inside its transaction when the other one arrives.
#[derive(Debug, Clone, Copy)]
enum First {
    Holder,
    Heir,
}

impl First {
    /// A domain for each case, because both run on one store.
    fn domain(self) -> &'static str {
        match self {
            Self::Holder => "a.example",
            Self::Heir => "b.example",
        }
    }
}

async fn two(backend: &dyn Backend) -> (Process, Process) {
    (Process::start(backend, "one", at(0)).await, Process::start(backend, "other", at(0)).await)
}

/// A holder of a domain that is silent from 0 on, and a process that has seen it then.
async fn silent_and_heir(backend: &dyn Backend, name: &str) -> ((Process, Process), Tenure) {
    let (silent, heir) = two(backend).await;
    let tenure = silent.taken(name, at(0)).await.tenure;
    heir.beat(at(0)).await.unwrap();
    ((silent, heir), tenure)
}

/// The domain, after a take that may have come too early: a process that was blocked for long does not know how long
/// others were silent.
async fn taken_over(heir: &Process, take: Take, name: &str, from: Timestamp) -> Taken {
    match take {
        Take::Held { .. } => {
            let now = heir.outlive(from).await;
            heir.taken(name, now).await
        }
        take => taken(take),
    }
}

/// Unregisters them, or the next round would notice them as silent.
async fn leave(processes: [Process; 2], now: Timestamp) {
    for process in processes {
        process.store.deregister(process.holder, now).await.unwrap();
    }
}

fn lent(id: u32, granted_at: Timestamp) -> LentPermit {
    LentPermit { id, intent: Intent::Fetch, granted_at, until: at(600) }
}
