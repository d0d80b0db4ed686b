//! Permits that were given out of a process, and what is known of them when it dies.

use comity_core::intent::Intent;
use comity_core::pace::Lent;
use comity_core::time::Timestamp;
use comity_store::StoreError;
use comity_store::domains::Parting;

use crate::backend::Backend;
use crate::process::{Process, at};

fn lent(id: u32, granted_at: Timestamp, until: Timestamp) -> Lent {
    Lent { id, intent: Intent::Search, granted_at, until }
}

/// B78: whoever takes the domain of a holder that died knows what may be on the wire.
pub(crate) async fn a_permit_that_was_lent_comes_back_after_a_death(backend: &dyn Backend) {
    let victim = Process::start(backend, "victim", at(0)).await;
    let heir = Process::start(backend, "heir", at(0)).await;
    let hold = victim.taken("a.example", at(0)).await.hold;
    let other = victim.taken("b.example", at(0)).await.hold;
    let (long, short) = (lent(u32::MAX, at(1), at(61)), lent(7, at(2), at(4)));
    for one in [long, short] {
        victim.store.lend(victim.holder, hold, one).await.unwrap();
    }
    victim.store.lend(victim.holder, other, lent(8, at(3), at(600))).await.unwrap();
    backend.kill(victim, at(4)).await;
    let taken = heir.taken("a.example", at(5)).await;
    assert_eq!(taken.lent, [long], "the lease of the other one has ended");
}

/// B80: what was recorded or released keeps nobody waiting after a death, and a lease that was renewed ends later.
pub(crate) async fn a_permit_that_is_over_does_not_come_back(backend: &dyn Backend) {
    let victim = Process::start(backend, "victim", at(0)).await;
    let heir = Process::start(backend, "heir", at(0)).await;
    let hold = victim.taken("a.example", at(0)).await.hold;
    for one in [lent(1, at(1), at(61)), lent(2, at(2), at(62)), lent(2, at(2), at(99))] {
        victim.store.lend(victim.holder, hold, one).await.unwrap();
    }
    victim.store.forget_lent(victim.holder, vec![(hold, 1), (hold, 77)]).await.unwrap();
    backend.kill(victim, at(4)).await;
    assert_eq!(heir.taken("a.example", at(5)).await.lent, [lent(2, at(2), at(99))]);
}

/// B77: a hold that ended lends nothing and forgets nothing, and what a pace tells itself is not told twice.
pub(crate) async fn a_hold_that_ended_lends_nothing(backend: &dyn Backend) {
    let one = Process::start(backend, "one", at(0)).await;
    let hold = one.taken("a.example", at(0)).await.hold;
    one.store.lend(one.holder, hold, lent(1, at(1), at(61))).await.unwrap();
    one.release(hold, b"pace", Parting::HandOver, at(2)).await;
    let refused = one.store.lend(one.holder, hold, lent(2, at(2), at(62))).await;
    assert!(matches!(refused, Err(StoreError::Lost)), "{refused:?}");
    let taken = one.taken("a.example", at(3)).await;
    assert_eq!(taken.lent, [], "the pace that was handed over knows of it");
    one.store.forget_lent(one.holder, vec![(hold, 1)]).await.unwrap();
    let heir = Process::start(backend, "heir", at(3)).await;
    backend.kill(one, at(4)).await;
    assert_eq!(heir.taken("a.example", at(5)).await.lent, [lent(1, at(1), at(61))]);
}
