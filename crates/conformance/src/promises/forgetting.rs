//! Domains of which nothing is worth keeping.

use comity_core::pace::Kept;
use comity_core::time::{Span, Timestamp};
use comity_store::domains::{
    DomainKey, Hold, IdleDomain, LeftBehind, Parting, Released, Saved, Steering, Take,
};
use comity_store::tasks::Settled;

use crate::backend::Backend;
use crate::process::{Process, at, domain, done, hold_of, ms, nothing_learned};

/// B82
pub(crate) async fn a_domain_with_nothing_learned_is_forgotten(backend: &dyn Backend) {
    let one = Process::start(backend, "one", at(0)).await;
    let names: Vec<String> = (0..250).map(|nth| format!("{nth}.example")).collect();
    for name in &names {
        let hold = one.taken(name, at(0)).await.hold;
        one.release(hold, name.as_bytes(), Parting::HandOver, at(10)).await;
    }
    one.taken("last.example", at(0)).await;
    assert_eq!(idle(&one, at(10)).await, [], "it was used a moment ago");
    let idle = idle(&one, at(11)).await;
    assert_eq!(idle.len(), 250, "each once, however many are looked at together");
    for (idle, name) in idle.iter().zip(&names) {
        assert_eq!((idle.domain.as_str(), idle.kept), (name.as_str(), Kept::default()));
        assert_eq!(
            idle.left,
            LeftBehind::HandedOver(name.clone().into_bytes()),
            "whoever judges it sees its pace"
        );
    }
    let holds = idle.iter().map(|idle| idle.hold).collect();
    assert_eq!(one.store.forget_domains(holds, at(11)).await.unwrap(), 250);
    let rows = one.store.list_domains(String::new(), String::new(), 1_000).await.unwrap();
    assert_eq!(rows.iter().map(|row| row.domain.as_str()).collect::<Vec<_>>(), ["last.example"]);
    assert_eq!(one.taken("7.example", at(12)).await.left, LeftBehind::New);
}

/// B35, B37, B39
pub(crate) async fn whatever_is_worth_keeping_stays(backend: &dyn Backend) {
    let (one, other) = (start(backend, "one").await, start(backend, "other").await);
    let kept = Kept::default();
    let server = Some((at(3_600), at(0)));
    let paused = Steering { paused_until: Some(Timestamp::MAX), ..Steering::default() };
    let cases = [
        ("delay.example", Kept { delay: ms(1), ..kept }, Steering::default()),
        ("floor.example", Kept { floor: ms(1), floor_at: Some(at(0)), ..kept }, Steering::default()),
        ("deadline.example", Kept { server, ..kept }, Steering::default()),
        ("pinned.example", kept, Steering { pinned: true, ..Steering::default() }),
        ("paused.example", kept, paused),
    ];
    let mut holds = Vec::new();
    for (name, kept, steering) in cases {
        let hold = one.taken(name, at(0)).await.hold;
        holds.push(hold);
        let saved = Saved { hold, kept, steering };
        let released = Released { saved, pace: b"pace".to_vec(), parting: Parting::HandOver };
        one.store.release(one.holder, vec![released], at(0)).await.unwrap();
    }
    let hold = one.taken("wanted.example", at(0)).await.hold;
    other.take("wanted.example", at(0)).await;
    one.release(hold, b"pace", Parting::HandOver, at(0)).await;
    holds.extend([hold, one.taken("held.example", at(0)).await.hold]);
    let job = one.job_of("job", &["https://lane.example/1"], at(0)).await;
    let lane = one.claim_one(job, at(0)).await;
    assert_eq!(one.settle(job, hold_of(&lane), lane.tasks[0].id, done(), at(0)).await, Settled::Yes);
    one.release(hold_of(&lane), b"pace", Parting::HandOver, at(0)).await;
    let hold = one.taken("gone.example", at(0)).await.hold;
    one.release(hold, b"pace", Parting::HandOver, at(0)).await;
    holds.extend([hold_of(&lane), hold, one.taken("last.example", at(0)).await.hold]);

    let found = idle(&one, at(3_600)).await;
    assert_eq!(found.iter().map(|idle| idle.domain.as_str()).collect::<Vec<_>>(), ["gone.example"]);
    // Whoever judges a pace may be wrong about the row; the store is not.
    let rows = one.store.list_domains(String::new(), String::new(), 1_000).await.unwrap();
    let any_epoch = |hold: Hold| (0..3).map(move |epoch| Hold { epoch, ..hold });
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

/// B9: between the look and the deed, somebody uses it.
pub(crate) async fn a_domain_that_was_taken_since_stays(backend: &dyn Backend) {
    let (one, other) = (start(backend, "one").await, start(backend, "other").await);
    for name in ["a.example", "b.example", "last.example"] {
        let hold = one.taken(name, at(0)).await.hold;
        one.release(hold, b"pace", Parting::HandOver, at(0)).await;
    }
    let holds: Vec<Hold> = idle(&one, at(1)).await.iter().map(|idle| idle.hold).collect();
    other.taken("a.example", at(1)).await;
    let again = other.taken("b.example", at(1)).await.hold;
    other.release(again, b"later", Parting::HandOver, at(0)).await;
    assert_eq!(one.store.forget_domains(holds, at(1)).await.unwrap(), 0);
    assert_eq!(other.take("a.example", at(1)).await, Take::Ours);
    assert_eq!(other.taken("b.example", at(1)).await.left, LeftBehind::HandedOver(b"later".to_vec()));
}

/// A service that was killed leaves thousands of domains in its name.
pub(crate) async fn a_domain_left_by_a_death_is_forgotten_after_a_day(backend: &dyn Backend) {
    let (victim, heir) = (start(backend, "victim").await, start(backend, "heir").await);
    victim.taken("a.example", at(0)).await;
    heir.taken("last.example", at(0)).await;
    backend.kill(victim, at(1)).await;
    heir.beat(at(2)).await.unwrap();
    assert_eq!(idle(&heir, at(0)).await, []);
    let idle = idle(&heir, at(3)).await;
    assert_eq!(idle.len(), 1);
    assert!(matches!(idle[0].left, LeftBehind::Died { latest } if latest <= at(2)), "{idle:?}");
    assert_eq!(heir.store.forget_domains(vec![idle[0].hold], at(3)).await.unwrap(), 1);
    heir.beat(at(4)).await.unwrap();
    assert_eq!(heir.taken("a.example", at(4)).await.left, LeftBehind::New);
}

/// A process that remembered the number of a domain took, or filled, whatever had that number later.
pub(crate) async fn what_another_process_forgot_is_entered_anew(backend: &dyn Backend) {
    let (one, other) = (start(backend, "one").await, start(backend, "other").await);
    for process in [&one, &other] {
        let hold = process.taken("a.example", at(0)).await.hold;
        process.release(hold, b"pace", Parting::HandOver, at(0)).await;
    }
    one.taken("last.example", at(0)).await;
    forget_all(&one).await;
    assert_eq!(other.taken("a.example", at(2)).await.left, LeftBehind::New);
    let job = one.job_of("job", &["https://b.example/1"], at(2)).await;
    assert_eq!(one.claim_one(job, at(2)).await.domain, domain("b.example"));
    assert_eq!(one.take("a.example", at(2)).await, Take::Held { by: "other".to_owned() });
}

/// B83: the row is entered anew and counts its takings from the start.
pub(crate) async fn a_hold_of_a_forgotten_domain_writes_nothing(backend: &dyn Backend) {
    let one = start(backend, "one").await;
    let old = one.taken("a.example", at(0)).await.hold;
    one.release(old, b"pace", Parting::HandOver, at(0)).await;
    one.taken("last.example", at(0)).await;
    forget_all(&one).await;
    let new = one.taken("a.example", at(2)).await.hold;
    assert_ne!(old, new);
    one.save(Saved { kept: Kept { delay: ms(7_000), ..Kept::default() }, ..nothing_learned(old) }).await;
    one.release(old, b"old", Parting::HandOver, at(3)).await;
    let row = one.row("a.example").await;
    assert_eq!((row.kept.delay, row.holder.as_deref()), (ms(0), Some("one")));
}

pub(crate) async fn numbers_of_domains_are_never_given_out_twice(backend: &dyn Backend) {
    let one = start(backend, "one").await;
    let mut given = Vec::new();
    for round in 0..20 {
        let hold = one.taken(&format!("{round}.example"), at(round)).await.hold;
        assert!(!given.contains(&hold.key), "{hold:?} again");
        given.push(hold.key);
        one.release(hold, b"pace", Parting::HandOver, at(round)).await;
        forget_all(&one).await;
        let rows = one.store.list_domains(String::new(), String::new(), 1_000).await.unwrap();
        assert!(rows.len() <= 1, "no more than the latest stays: {rows:?}");
    }
}

/// All that may be forgotten since `before`, looked for a few rows at a time.
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
    let holds = idle(process, before).await.iter().map(|idle| idle.hold).collect();
    process.store.forget_domains(holds, before).await.unwrap();
}

async fn start(backend: &dyn Backend, name: &str) -> Process {
    Process::start(backend, name, at(0)).await
}
