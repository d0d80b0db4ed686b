//! Two callers that want the same domain, the second while the first is about to commit.

use comity_core::intent::Intent;
use comity_core::pace::Lent;
use comity_core::time::Timestamp;
use comity_store::domains::{DomainKey, Hold, LeftBehind, Parting, Take, Taken};
use comity_store::{LEASE, StoreError};

use crate::backend::Backend;
use crate::process::{Process, at, nothing_learned, taken};

/// B9
pub(crate) async fn of_two_takes_one_succeeds(backend: &dyn Backend) {
    let (one, other) = two(backend).await;
    let hold = one.taken("known.example", at(0)).await.hold;
    one.release(hold, b"pace", Parting::Stop, at(0)).await;
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

/// B9, B37: whoever asks as a domain is let go gets it with its pace, now or with its next question.
pub(crate) async fn a_wish_that_overlaps_with_a_release_is_granted(backend: &dyn Backend) {
    let (holder, other) = two(backend).await;
    for (name, parting) in [("a.example", Parting::HandOver), ("b.example", Parting::Stop)] {
        let hold = holder.taken(name, at(0)).await.hold;
        let release = holder.release(hold, b"pace", parting, at(1));
        let ((), take) = holder.overlap(release, other.take(name, at(1))).await;
        let got = match take {
            Take::Held { .. } => other.taken(name, at(1)).await,
            take => taken(take),
        };
        assert!(
            matches!(&got.left, LeftBehind::HandedOver(pace) | LeftBehind::Stopped(pace) if pace == b"pace")
        );
        assert_eq!(holder.take(name, at(1)).await, Take::Held { by: "other".to_owned() });
    }
}

/// B37: a holder that stops hands over what somebody wants, also if that was said a moment ago.
pub(crate) async fn a_release_that_overlaps_with_a_wish_hands_over(backend: &dyn Backend) {
    let (holder, other) = two(backend).await;
    let hold = holder.taken("a.example", at(0)).await.hold;
    let release = holder.release(hold, b"pace", Parting::Stop, at(1));
    let (take, ()) = other.overlap(other.take("a.example", at(1)), release).await;
    match take {
        // It heard that the domain is held, so it asked before the release.
        Take::Held { .. } => {
            let got = other.taken("a.example", at(1)).await;
            assert_eq!(got.left, LeftBehind::HandedOver(b"pace".to_vec()));
        }
        take => assert_eq!(taken(take).left, LeftBehind::Stopped(b"pace".to_vec())),
    }
}

/// B74, B77: of a holder's beat and another's finding that it was silent for too long, one counts.
pub(crate) async fn a_beat_that_overlaps_with_a_takeover_keeps_everything_or_nothing(backend: &dyn Backend) {
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

/// B77, B78: a permit that a holder lends as it is taken over is refused, or the next holder knows of it.
pub(crate) async fn a_permit_lent_during_a_takeover_is_refused_or_known(backend: &dyn Backend) {
    for first in [First::Holder, First::Heir] {
        let (name, late) = (first.domain(), at(0) + LEASE);
        let ((silent, heir), hold) = silent_and_heir(backend, name).await;
        let permit = lent(7, late);
        let lend = async { silent.store.lend(silent.holder, hold, permit).await };
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

/// B78: permits that two callers of one holder lend at once both come back after its death.
pub(crate) async fn permits_lent_at_once_are_both_kept(backend: &dyn Backend) {
    let (victim, heir) = two(backend).await;
    let same = backend.store().await;
    let hold = victim.taken("a.example", at(0)).await.hold;
    let (first, second) = (lent(1, at(1)), lent(2, at(2)));
    let lends = victim.overlap(async { victim.store.lend(victim.holder, hold, first).await }, async {
        same.lend(victim.holder, hold, second).await
    });
    let lends = lends.await;
    assert!(lends.0.is_ok() && lends.1.is_ok(), "{lends:?}");
    backend.kill(victim, at(3)).await;
    assert_eq!(heir.taken("a.example", at(4)).await.lent, [first, second]);
}

/// B9, B82: a domain is forgotten, or taken as it was; whoever took it holds it either way.
pub(crate) async fn a_domain_taken_as_it_is_forgotten_is_held(backend: &dyn Backend) {
    let (one, other) = two(backend).await;
    for first in [First::Holder, First::Heir] {
        let name = first.domain();
        let hold = one.taken(name, at(0)).await.hold;
        one.release(hold, b"pace", Parting::HandOver, at(0)).await;
        one.taken(&format!("after.{name}"), at(0)).await;
        let idle = one.store.idle_domains(DomainKey(0), at(60), 100).await.unwrap();
        assert!(idle.domains.iter().any(|idle| idle.hold == hold), "{idle:?}");
        let forget = async { one.store.forget_domains(vec![hold], at(60)).await.unwrap() };
        let (forgotten, take) = match first {
            First::Holder => one.overlap(forget, other.take(name, at(61))).await,
            First::Heir => {
                let (take, forgotten) = other.overlap(other.take(name, at(61)), forget).await;
                (forgotten, take)
            }
        };
        let got = taken(take);
        let left = if forgotten == 1 { LeftBehind::New } else { LeftBehind::HandedOver(b"pace".to_vec()) };
        assert_eq!(got.left, left, "{first:?}");
        assert_eq!(other.save(nothing_learned(got.hold)).await, [], "{first:?}: its hold is valid");
        assert_eq!(one.take(name, at(61)).await, Take::Held { by: "other".to_owned() }, "{first:?}");
    }
}

/// Who is inside its transaction when the other comes.
#[derive(Debug, Clone, Copy)]
enum First {
    Holder,
    Heir,
}

impl First {
    /// A domain for each, since both play on one store.
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

/// A holder of a domain that is silent from 0 on, and one that has seen it then.
async fn silent_and_heir(backend: &dyn Backend, name: &str) -> ((Process, Process), Hold) {
    let (silent, heir) = two(backend).await;
    let hold = silent.taken(name, at(0)).await.hold;
    heir.beat(at(0)).await.unwrap();
    ((silent, heir), hold)
}

/// The domain, from a take that may have come too early: whoever waited for long does not know how long others were silent.
async fn taken_over(heir: &Process, take: Take, name: &str, from: Timestamp) -> Taken {
    match take {
        Take::Held { .. } => {
            let now = heir.outlive(from).await;
            heir.taken(name, now).await
        }
        take => taken(take),
    }
}

/// They end, so that nobody of the next round misses them.
async fn leave(processes: [Process; 2], now: Timestamp) {
    for process in processes {
        process.store.deregister(process.holder, now).await.unwrap();
    }
}

fn lent(id: u32, granted_at: Timestamp) -> Lent {
    Lent { id, intent: Intent::Fetch, granted_at, until: at(600) }
}
