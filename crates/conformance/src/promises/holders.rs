//! Which holders are alive, and what happens to what dead ones held.

use comity_core::pace::SavedLimits;
use comity_store::domains::{LastHolderBuf, ReleaseMode, Saved, Take};
use comity_store::tasks::Settled;
use comity_store::{LEASE, StoreError};

use crate::backend::Backend;
use crate::process::{Process, at, died_at, done, ms, nothing_learned, tenure_of, urls_of};

/// B74, B77
pub(crate) async fn a_holder_without_heartbeats_loses_its_domains_after_its_lease(backend: &dyn Backend) {
    let (silent, other) = (start(backend, "silent").await, start(backend, "other").await);
    let job = silent.job_of("job", &["https://a.example/1"], at(0)).await;
    let lane = silent.claim_one(job, at(0)).await;

    other.beat(at(0)).await.unwrap();
    other.beat(at(0) + LEASE - ms(1)).await.unwrap();
    assert!(matches!(other.take("a.example", at(9)).await, Take::Held { .. }), "its lease has not ended yet");

    other.beat(at(0) + LEASE).await.unwrap();
    assert!(matches!(silent.beat(at(10)).await, Err(StoreError::Lost)));
    let settled = silent.settle(job, tenure_of(&lane), lane.tasks[0].id, done(), at(10)).await;
    assert_eq!(settled, Settled::Fenced);
    assert_eq!(silent.claim(job, at(10)).await, []);

    let left = other.taken("a.example", at(11)).await;
    assert!(died_at(&left) >= at(10) && died_at(&left) <= at(11), "{left:?}");
    assert_eq!(urls_of(&other.claim(job, at(11)).await), "a.example/1");
}

/// B77: late writes must not hide that the holder was lost, even while nobody else holds the domain.
pub(crate) async fn writes_of_a_lost_holder_are_skipped(backend: &dyn Backend) {
    let (silent, other) = (start(backend, "silent").await, start(backend, "other").await);
    let tenure = silent.taken("a.example", at(0)).await.tenure;
    let now = other.outlive(at(0)).await;

    assert_eq!(silent.save(learned(tenure)).await, [tenure], "and the caller learns of it");
    silent.release(tenure, b"late", ReleaseMode::HandOver, now).await;

    let taken = other.taken("a.example", now).await;
    assert!(matches!(taken.last_holder, LastHolderBuf::Died { .. }), "{taken:?}");
    assert_eq!(taken.kept, SavedLimits::default());
}

pub(crate) async fn a_holder_whose_domain_was_taken_overwrites_nothing(backend: &dyn Backend) {
    let (silent, other) = (start(backend, "silent").await, start(backend, "other").await);
    let old = silent.taken("a.example", at(0)).await.tenure;
    let now = other.outlive(at(0)).await;
    let new = other.taken("a.example", now).await.tenure;

    assert_eq!(silent.save(learned(old)).await, [old], "and the caller learns of it");
    assert_eq!(other.save(nothing_learned(new)).await, []);
    silent.release(old, b"late", ReleaseMode::HandOver, now).await;

    let row = other.row("a.example").await;
    assert_eq!(
        (row.kept, row.holder.as_deref(), row.epoch),
        (SavedLimits::default(), Some("other"), new.epoch)
    );
    assert_eq!(other.take("a.example", now).await, Take::Ours);
}

/// B9: the two clocks may differ by an hour either way.
pub(crate) async fn a_holder_that_sends_heartbeats_is_never_declared_dead(backend: &dyn Backend) {
    for (nth, skew) in [-3600, 0, 3600].into_iter().enumerate() {
        let name = format!("{nth}.example");
        let holder = Process::start(backend, "holder", at(skew)).await;
        let other = start(backend, "other").await;
        holder.taken(&name, at(skew)).await;
        for secs in (0..100).step_by(9) {
            holder.beat(at(skew + secs)).await.unwrap();
            other.beat(at(secs)).await.unwrap();
            let take = other.take(&name, at(secs)).await;
            assert_eq!(take, Take::Held { by: "holder".to_owned() }, "{skew} s apart, after {secs} s");
        }
        // Unregister, or the next round would notice these as silent.
        holder.store.deregister(holder.holder, at(skew + 100)).await.unwrap();
        other.store.deregister(other.holder, at(100)).await.unwrap();
    }
}

pub(crate) async fn an_observer_that_slept_declares_nobody_dead(backend: &dyn Backend) {
    let (holder, sleeper) = (start(backend, "holder").await, start(backend, "sleeper").await);
    holder.taken("a.example", at(0)).await;
    sleeper.beat(at(0)).await.unwrap();
    holder.beat(at(95)).await.unwrap();
    sleeper.beat(at(100)).await.unwrap();
    assert_eq!(sleeper.take("a.example", at(100)).await, Take::Held { by: "holder".to_owned() });
    holder.beat(at(101)).await.unwrap();
}

/// B74, B77
pub(crate) async fn a_death_frees_domains_and_lanes_at_once(backend: &dyn Backend) {
    let (victim, heir) = (start(backend, "victim").await, start(backend, "heir").await);
    let urls = ["https://a.example/1", "https://a.example/2", "https://b.example/1"];
    let job = heir.job_of("job", &urls, at(0)).await;
    let lanes = victim.claim(job, at(0)).await;
    let first = lanes[0].tasks[0].id;
    victim.settle(job, tenure_of(&lanes[0]), first, done(), at(1)).await;
    assert_eq!(heir.claim(job, at(1)).await, []);

    backend.kill(victim, at(2)).await;
    let taken = heir.taken("a.example", at(3)).await;
    assert!(died_at(&taken) >= at(2) && died_at(&taken) <= at(3), "{taken:?}");
    heir.beat(at(3)).await.unwrap();
    assert_eq!(
        urls_of(&heir.claim(job, at(3)).await),
        "a.example/2 | b.example/1",
        "tasks that are done are not claimed again"
    );
}

/// B77: its clock is an hour behind, but its last request was not an hour ago.
pub(crate) async fn a_death_is_dated_by_the_clock_of_the_process_that_notices(backend: &dyn Backend) {
    let victim = Process::start(backend, "victim", at(-3600)).await;
    let heir = start(backend, "heir").await;
    victim.taken("a.example", at(-3600)).await;
    heir.beat(at(0)).await.unwrap();
    victim.beat(at(-3600 + 4)).await.unwrap();
    heir.beat(at(5)).await.unwrap();
    backend.kill(victim, at(6)).await;
    let taken = heir.taken("a.example", at(7)).await;
    assert!(
        died_at(&taken) >= at(4),
        "its heartbeat was seen at {}, so it did not die at {}",
        at(4),
        died_at(&taken)
    );
}

pub(crate) async fn a_holder_that_stops_without_releasing_counts_as_dead(backend: &dyn Backend) {
    let (careless, heir) = (start(backend, "careless").await, start(backend, "heir").await);
    careless.taken("a.example", at(0)).await;
    careless.store.deregister(careless.holder, at(1)).await.unwrap();
    assert_eq!(died_at(&heir.taken("a.example", at(2)).await), at(1));
}

pub(crate) async fn a_clean_stop_does_not_count_as_a_death(backend: &dyn Backend) {
    let (clean, heir) = (start(backend, "clean").await, start(backend, "heir").await);
    let tenure = clean.taken("a.example", at(0)).await.tenure;
    clean.release(tenure, b"pace", ReleaseMode::Stop, at(1)).await;
    clean.store.deregister(clean.holder, at(1)).await.unwrap();
    assert_eq!(heir.taken("a.example", at(2)).await.last_holder, LastHolderBuf::Stopped(b"pace".to_vec()));
}

pub(crate) async fn holder_ids_are_never_reused(backend: &dyn Backend) {
    let store = backend.store().await;
    let mut given = Vec::new();
    for secs in 0..5 {
        let holder = store.register("one".to_owned(), at(secs)).await.unwrap();
        assert!(!given.contains(&holder), "{holder:?} again");
        given.push(holder);
        store.deregister(holder, at(secs)).await.unwrap();
    }
}

async fn start(backend: &dyn Backend, name: &str) -> Process {
    Process::start(backend, name, at(0)).await
}

fn learned(tenure: comity_store::domains::Tenure) -> Saved {
    let kept = SavedLimits { delay: ms(7_000), ..SavedLimits::default() };
    Saved { kept, ..nothing_learned(tenure) }
}
