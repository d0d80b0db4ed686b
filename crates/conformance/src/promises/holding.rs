//! Taking, wanting and releasing domains.

use std::time::Duration;

use comity_store::domains::{LastHolderBuf, ReleaseMode, Take};

use crate::backend::Backend;
use crate::process::{Process, at, domain, ms};

pub(crate) async fn a_new_domain_has_no_last_holder_and_each_take_has_a_later_epoch(backend: &dyn Backend) {
    let one = Process::start(backend, "one", at(0)).await;
    let first = one.taken("a.example", at(0)).await;
    assert_eq!((&first.last_holder, first.domain.as_str()), (&LastHolderBuf::None, "a.example"));
    assert_eq!(one.take("a.example", at(0)).await, Take::Ours);

    let mut last = first.tenure;
    for secs in 1..4 {
        one.release(last, b"pace", ReleaseMode::HandOver, at(secs)).await;
        let next = one.taken("a.example", at(secs)).await.tenure;
        assert_eq!(next.key, last.key);
        assert!(next.epoch > last.epoch, "{next:?} after {last:?}");
        last = next;
    }
}

/// B37
pub(crate) async fn a_pace_comes_back_byte_for_byte(backend: &dyn Backend) {
    let (one, other) = (start(backend, "one").await, start(backend, "other").await);
    let every_byte: Vec<u8> = (0..=255).collect();
    for pace in [&every_byte[..], b"", b"\0", "schön".as_bytes()] {
        let tenure = one.taken("a.example", at(0)).await.tenure;
        one.release(tenure, pace, ReleaseMode::HandOver, at(0)).await;
        let handed = other.taken("a.example", at(0)).await;
        assert_eq!(handed.last_holder, LastHolderBuf::HandedOver(pace.to_vec()));
        other.release(handed.tenure, pace, ReleaseMode::Stop, at(0)).await;
        let stopped = one.taken("a.example", at(0)).await;
        assert_eq!(stopped.last_holder, LastHolderBuf::Stopped(pace.to_vec()));
        one.release(stopped.tenure, pace, ReleaseMode::Stop, at(0)).await;
    }
}

/// B9
pub(crate) async fn the_holder_sees_that_a_domain_is_wanted(backend: &dyn Backend) {
    let (holder, other) = (start(backend, "holder").await, start(backend, "other").await);
    let tenure = holder.taken("a.example", at(0)).await.tenure;
    holder.taken("b.example", at(0)).await;
    assert_eq!(holder.wanted().await, []);

    let taken = other.store.take(other.holder, ["a.example", "c.example"].map(domain).into(), at(1));
    let taken = taken.await.unwrap();
    assert_eq!(taken[0], Take::Held { by: "holder".to_owned() });
    assert!(matches!(taken[1], Take::Taken(_)), "{taken:?}");
    assert_eq!(holder.wanted().await, [tenure.key]);
    assert_eq!(other.wanted().await, []);

    holder.release(tenure, b"pace", ReleaseMode::HandOver, at(1)).await;
    assert_eq!(holder.wanted().await, []);
    assert_eq!(
        other.taken("a.example", at(1)).await.last_holder,
        LastHolderBuf::HandedOver(b"pace".to_vec())
    );
    assert_eq!(other.wanted().await, [], "the domain is no longer wanted");
}

/// B9: a process polls this number often, and looks further only when it has changed.
pub(crate) async fn the_version_changes_when_another_process_writes(backend: &dyn Backend) {
    let (holder, other) = (start(backend, "holder").await, start(backend, "other").await);
    holder.taken("a.example", at(0)).await;
    let version = || async { holder.store.version().await.unwrap() };
    let mut last = version().await;
    assert_eq!(version().await, last, "nobody wrote anything");
    // A database that notifies its clients takes a moment for that.
    let changed = async |last: i64| {
        let look = async {
            while version().await == last {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), look).await.is_ok()
    };
    other.take("a.example", at(1)).await;
    assert!(changed(last).await, "the domain is wanted");
    last = version().await;
    other.open_job("job").await;
    assert!(changed(last).await, "there is a job");
}

/// B9: a holder that yields after a few more grants, or that missed the first report, sees it again.
pub(crate) async fn a_domain_is_reported_as_wanted_until_it_is_released(backend: &dyn Backend) {
    let (holder, other) = (start(backend, "holder").await, start(backend, "other").await);
    let key = holder.taken("a.example", at(0)).await.tenure.key;
    other.take("a.example", at(1)).await;
    for _ in 0..3 {
        assert_eq!(holder.wanted().await, [key]);
    }
}

/// B9: two holders in one process, such as two gates on one store, are strangers to each other too.
pub(crate) async fn a_domain_wanted_by_a_holder_on_the_same_store_is_reported(backend: &dyn Backend) {
    let opened = backend.open().await;
    let holder = Process::with(opened.clone(), "holder", at(0)).await;
    let other = Process::with(opened, "other", at(0)).await;
    let key = holder.taken("a.example", at(0)).await.tenure.key;
    assert_eq!(holder.wanted().await, []);
    other.take("a.example", at(1)).await;
    assert_eq!(other.wanted().await, []);
    assert_eq!(holder.wanted().await, [key]);
}

/// B37: a clean handover passes on our own guesses, even if the holder is about to stop.
pub(crate) async fn a_wanted_domain_is_handed_over_even_if_its_holder_stops(backend: &dyn Backend) {
    let (stopping, other) = (start(backend, "stopping").await, start(backend, "other").await);
    let tenure = stopping.taken("a.example", at(0)).await.tenure;
    other.take("a.example", at(1)).await;
    stopping.release(tenure, b"pace", ReleaseMode::Stop, at(2)).await;
    assert_eq!(
        other.taken("a.example", at(2)).await.last_holder,
        LastHolderBuf::HandedOver(b"pace".to_vec())
    );
}

/// B9: a holder that released a domain for another process does not take it back first, and neither does a third one.
pub(crate) async fn the_process_that_wanted_a_domain_gets_it_first(backend: &dyn Backend) {
    let (former, other) = (start(backend, "former").await, start(backend, "other").await);
    let third = start(backend, "third").await;
    for name in ["a.example", "b.example"] {
        let tenure = former.taken(name, at(0)).await.tenure;
        other.take(name, at(1)).await;
        former.release(tenure, b"pace", ReleaseMode::HandOver, at(2)).await;
        for late in [former.take(name, at(2)).await, third.take(name, at(2) + ms(100)).await] {
            assert_eq!(late, Take::Held { by: "other".to_owned() });
        }
    }
    other.taken("a.example", at(2) + ms(200)).await;
    former.taken("b.example", at(9)).await;
}

pub(crate) async fn a_domain_wanted_by_a_dead_process_is_free_for_others(backend: &dyn Backend) {
    let (holder, victim) = (start(backend, "holder").await, start(backend, "victim").await);
    let tenure = holder.taken("a.example", at(0)).await.tenure;
    victim.take("a.example", at(1)).await;
    backend.kill(victim, at(1)).await;
    holder.release(tenure, b"pace", ReleaseMode::HandOver, at(2)).await;
    holder.taken("a.example", at(2)).await;
}

async fn start(backend: &dyn Backend, name: &str) -> Process {
    Process::start(backend, name, at(0)).await
}
