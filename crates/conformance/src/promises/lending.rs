//! Permits lent to other processes, and what is known about them when the lender dies.

use comity_core::intent::Intent;
use comity_core::pace::LentPermit;
use comity_core::time::Timestamp;
use comity_store::StoreError;
use comity_store::domains::ReleaseMode;

use crate::backend::Backend;
use crate::process::{Process, at};

fn lent(id: u32, granted_at: Timestamp, until: Timestamp) -> LentPermit {
    LentPermit { id, intent: Intent::Search, granted_at, until }
}

/// B78: the next holder of a dead holder's domain knows which requests may be in flight.
pub(crate) async fn a_lent_permit_is_known_after_a_death(backend: &dyn Backend) {
    let victim = Process::start(backend, "victim", at(0)).await;
    let heir = Process::start(backend, "heir", at(0)).await;
    let tenure = victim.taken("a.example", at(0)).await.tenure;
    let other = victim.taken("b.example", at(0)).await.tenure;
    let (long, short) = (lent(u32::MAX, at(1), at(61)), lent(7, at(2), at(4)));
    for one in [long, short] {
        victim.store.lend(victim.holder, tenure, one).await.unwrap();
    }
    victim.store.lend(victim.holder, other, lent(8, at(3), at(600))).await.unwrap();
    backend.kill(victim, at(4)).await;
    let taken = heir.taken("a.example", at(5)).await;
    assert_eq!(taken.lent, [long], "the lease of the other one has ended");
}

/// B80: a permit that was recorded or released delays nobody after a death, and a renewed lease ends later.
pub(crate) async fn a_settled_permit_is_not_reported_after_a_death(backend: &dyn Backend) {
    let victim = Process::start(backend, "victim", at(0)).await;
    let heir = Process::start(backend, "heir", at(0)).await;
    let tenure = victim.taken("a.example", at(0)).await.tenure;
    for one in [lent(1, at(1), at(61)), lent(2, at(2), at(62)), lent(2, at(2), at(99))] {
        victim.store.lend(victim.holder, tenure, one).await.unwrap();
    }
    victim.store.forget_lent(victim.holder, vec![(tenure, 1), (tenure, 77)]).await.unwrap();
    backend.kill(victim, at(4)).await;
    assert_eq!(heir.taken("a.example", at(5)).await.lent, [lent(2, at(2), at(99))]);
}

/// B77: an expired tenure can neither lend nor delete permits, and permits that are part of a pace are not reported
/// twice.
pub(crate) async fn an_expired_tenure_cannot_lend_permits(backend: &dyn Backend) {
    let one = Process::start(backend, "one", at(0)).await;
    let tenure = one.taken("a.example", at(0)).await.tenure;
    one.store.lend(one.holder, tenure, lent(1, at(1), at(61))).await.unwrap();
    one.release(tenure, b"pace", ReleaseMode::HandOver, at(2)).await;
    let refused = one.store.lend(one.holder, tenure, lent(2, at(2), at(62))).await;
    assert!(matches!(refused, Err(StoreError::Lost)), "{refused:?}");
    let taken = one.taken("a.example", at(3)).await;
    assert_eq!(taken.lent, [], "the pace that was handed over contains it");
    one.store.forget_lent(one.holder, vec![(tenure, 1)]).await.unwrap();
    let heir = Process::start(backend, "heir", at(3)).await;
    backend.kill(one, at(4)).await;
    assert_eq!(heir.taken("a.example", at(5)).await.lent, [lent(1, at(1), at(61))]);
}
