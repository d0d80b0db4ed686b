//! Deleting domains with nothing worth keeping.

use comity_core::pace::SavedLimits;
use comity_core::time::{Span, Timestamp};
use comity_store::domains::{
    DomainKey, IdleDomain, LastHolderBuf, ReleaseMode, Released, Saved, Steering, Take, Tenure,
};
use comity_store::tasks::Settled;

use crate::backend::Backend;
use crate::process::{Process, at, domain, done, ms, nothing_learned, tenure_of};

/// B82
pub(crate) async fn a_domain_with_nothing_learned_is_deleted(backend: &dyn Backend) {
    let one = Process::start(backend, "one", at(0)).await;
    let names: Vec<String> = (0..250).map(|nth| format!("{nth}.example")).collect();
    for name in &names {
        let tenure = one.taken(name, at(0)).await.tenure;
        one.release(tenure, name.as_bytes(), ReleaseMode::HandOver, at(10)).await;
    }
    one.taken("last.example", at(0)).await;
    assert_eq!(idle(&one, at(10)).await, [], "it was used a moment ago");
    let idle = idle(&one, at(11)).await;
    assert_eq!(idle.len(), 250, "each once, however many are looked at per call");
    for (idle, name) in idle.iter().zip(&names) {
        assert_eq!((idle.domain.as_str(), idle.kept), (name.as_str(), SavedLimits::default()));
        assert_eq!(
            idle.last_holder,
            LastHolderBuf::HandedOver(name.clone().into_bytes()),
            "its pace is available for judging it"
        );
    }
    let holds = idle.iter().map(|idle| idle.tenure).collect();
    assert_eq!(one.store.forget_domains(holds, at(11)).await.unwrap(), 250);
    let rows = one.store.list_domains(String::new(), String::new(), 1_000).await.unwrap();
    assert_eq!(rows.iter().map(|row| row.domain.as_str()).collect::<Vec<_>>(), ["last.example"]);
    assert_eq!(one.taken("7.example", at(12)).await.last_holder, LastHolderBuf::None);
}

/// B35, B37, B39
pub(crate) async fn domains_with_anything_worth_keeping_stay(backend: &dyn Backend) {
    let (one, other) = (start(backend, "one").await, start(backend, "other").await);
    let kept = SavedLimits::default();
    let server = Some((at(3_600), at(0)));
    let paused = Steering { paused_until: Some(Timestamp::MAX), ..Steering::default() };
    let cases = [
        ("delay.example", SavedLimits { delay: ms(1), ..kept }, Steering::default()),
        ("floor.example", SavedLimits { floor: ms(1), floor_at: Some(at(0)), ..kept }, Steering::default()),
        ("deadline.example", SavedLimits { server, ..kept }, Steering::default()),
        ("pinned.example", kept, Steering { pinned: true, ..Steering::default() }),
        ("paused.example", kept, paused),
    ];
    let mut holds = Vec::new();
    for (name, kept, steering) in cases {
        let tenure = one.taken(name, at(0)).await.tenure;
        holds.push(tenure);
        let saved = Saved { tenure, kept, steering };
        let released = Released { saved, pace: b"pace".to_vec(), mode: ReleaseMode::HandOver };
        one.store.release(one.holder, vec![released], at(0)).await.unwrap();
    }
    let tenure = one.taken("wanted.example", at(0)).await.tenure;
    other.take("wanted.example", at(0)).await;
    one.release(tenure, b"pace", ReleaseMode::HandOver, at(0)).await;
    holds.extend([tenure, one.taken("held.example", at(0)).await.tenure]);
    let job = one.job_of("job", &["https://lane.example/1"], at(0)).await;
    let lane = one.claim_one(job, at(0)).await;
    assert_eq!(one.settle(job, tenure_of(&lane), lane.tasks[0].id, done(), at(0)).await, Settled::Yes);
    one.release(tenure_of(&lane), b"pace", ReleaseMode::HandOver, at(0)).await;
    let tenure = one.taken("gone.example", at(0)).await.tenure;
    one.release(tenure, b"pace", ReleaseMode::HandOver, at(0)).await;
    holds.extend([tenure_of(&lane), tenure, one.taken("last.example", at(0)).await.tenure]);

    let found = idle(&one, at(3_600)).await;
    assert_eq!(found.iter().map(|idle| idle.domain.as_str()).collect::<Vec<_>>(), ["gone.example"]);
    // Whoever judged the pace may be wrong about the row; the store checks again.
    let rows = one.store.list_domains(String::new(), String::new(), 1_000).await.unwrap();
    let any_epoch =
        |tenure: Tenure| (tenure.epoch - 1..=tenure.epoch + 1).map(move |epoch| Tenure { epoch, ..tenure });
    let all = holds.into_iter().flat_map(any_epoch).collect();
    assert_eq!(one.store.forget_domains(all, at(3_600)).await.unwrap(), 1);
    assert_eq!(
        one.store.list_domains(String::new(), String::new(), 1_000).await.unwrap().len(),
        rows.len() - 1
    );

    let over = idle(&one, at(3_601)).await;
    assert_eq!(over.iter().map(|idle| idle.domain.as_str()).collect::<Vec<_>>(), ["deadline.example"]);
    assert_eq!(over[0].kept.server, server);
}

/// B9: somebody uses it between the check and the deletion.
pub(crate) async fn a_domain_taken_meanwhile_stays(backend: &dyn Backend) {
    let (one, other) = (start(backend, "one").await, start(backend, "other").await);
    for name in ["a.example", "b.example"] {
        let tenure = one.taken(name, at(0)).await.tenure;
        one.release(tenure, b"pace", ReleaseMode::HandOver, at(0)).await;
    }
    let holds: Vec<Tenure> = idle(&one, at(1)).await.iter().map(|idle| idle.tenure).collect();
    other.taken("a.example", at(1)).await;
    let again = other.taken("b.example", at(1)).await.tenure;
    other.release(again, b"later", ReleaseMode::HandOver, at(0)).await;
    assert_eq!(one.store.forget_domains(holds, at(1)).await.unwrap(), 0);
    assert_eq!(other.take("a.example", at(1)).await, Take::Ours);
    assert_eq!(
        other.taken("b.example", at(1)).await.last_holder,
        LastHolderBuf::HandedOver(b"later".to_vec())
    );
}

/// A service that was killed leaves thousands of domains in its name.
pub(crate) async fn a_domain_of_a_dead_holder_can_be_deleted(backend: &dyn Backend) {
    let (victim, heir) = (start(backend, "victim").await, start(backend, "heir").await);
    victim.taken("a.example", at(0)).await;
    heir.taken("last.example", at(0)).await;
    backend.kill(victim, at(1)).await;
    heir.beat(at(2)).await.unwrap();
    assert_eq!(idle(&heir, at(0)).await, []);
    let idle = idle(&heir, at(3)).await;
    assert_eq!(idle.len(), 1);
    assert!(matches!(idle[0].last_holder, LastHolderBuf::Died { latest } if latest <= at(2)), "{idle:?}");
    assert_eq!(heir.store.forget_domains(vec![idle[0].tenure], at(3)).await.unwrap(), 1);
    heir.beat(at(4)).await.unwrap();
    assert_eq!(heir.taken("a.example", at(4)).await.last_holder, LastHolderBuf::None);
}

/// A process that had cached a domain's id used whatever domain had that id later.
pub(crate) async fn a_domain_deleted_by_another_process_is_created_again(backend: &dyn Backend) {
    let (one, other) = (start(backend, "one").await, start(backend, "other").await);
    for process in [&one, &other] {
        let tenure = process.taken("a.example", at(0)).await.tenure;
        process.release(tenure, b"pace", ReleaseMode::HandOver, at(0)).await;
    }
    one.taken("last.example", at(0)).await;
    forget_all(&one).await;
    assert_eq!(other.taken("a.example", at(2)).await.last_holder, LastHolderBuf::None);
    let job = one.job_of("job", &["https://b.example/1"], at(2)).await;
    assert_eq!(one.claim_one(job, at(2)).await.domain, domain("b.example"));
    assert_eq!(one.take("a.example", at(2)).await, Take::Held { by: "other".to_owned() });
}

/// B83: the row is created again, and its epochs start over.
pub(crate) async fn a_tenure_on_a_deleted_domain_cannot_write(backend: &dyn Backend) {
    let one = start(backend, "one").await;
    let old = one.taken("a.example", at(0)).await.tenure;
    one.release(old, b"pace", ReleaseMode::HandOver, at(0)).await;
    one.taken("last.example", at(0)).await;
    forget_all(&one).await;
    let new = one.taken("a.example", at(2)).await.tenure;
    assert_ne!(old, new);
    one.save(Saved {
        kept: SavedLimits { delay: ms(7_000), ..SavedLimits::default() },
        ..nothing_learned(old)
    })
    .await;
    one.release(old, b"old", ReleaseMode::HandOver, at(3)).await;
    let row = one.row("a.example").await;
    assert_eq!((row.kept.delay, row.holder.as_deref()), (ms(0), Some("one")));
}

pub(crate) async fn domain_ids_are_never_reused(backend: &dyn Backend) {
    let one = start(backend, "one").await;
    let mut given = Vec::new();
    for round in 0..20 {
        let tenure = one.taken(&format!("{round}.example"), at(round)).await.tenure;
        assert!(!given.contains(&tenure.key), "{tenure:?} again");
        given.push(tenure.key);
        one.release(tenure, b"pace", ReleaseMode::HandOver, at(round)).await;
        forget_all(&one).await;
        let rows = one.store.list_domains(String::new(), String::new(), 1_000).await.unwrap();
        assert!(rows.is_empty(), "none stays, not even the latest: {rows:?}");
    }
}

/// All domains that may be deleted since `before`, found a few rows at a time.
async fn idle(process: &Process, before: Timestamp) -> Vec<IdleDomain> {
    let (mut idle, mut after) = (Vec::new(), DomainKey(0));
    loop {
        let some = process.store.idle_domains(after, before, 3).await.unwrap();
        idle.extend(some.domains);
        match some.next {
            Some(next) => after = next,
            None => return idle,
        }
    }
}

async fn forget_all(process: &Process) {
    let before = at(0) + Span::from_hours(1);
    let holds = idle(process, before).await.iter().map(|idle| idle.tenure).collect();
    process.store.forget_domains(holds, before).await.unwrap();
}

async fn start(backend: &dyn Backend, name: &str) -> Process {
    Process::start(backend, name, at(0)).await
}
