//! State of a domain that outlives its holder.

use comity_core::pace::SavedLimits;
use comity_core::time::{Span, Timestamp};
use comity_store::domains::{LastHolderBuf, ReleaseMode, Released, Saved, Stated, Steering};

use crate::backend::Backend;
use crate::process::{Process, at, died_at, domain, ms, nothing_learned};

/// B35: after being saved a hundred times, a delay is still the same.
pub(crate) async fn learned_delays_come_back_to_the_microsecond(backend: &dyn Backend) {
    let one = Process::start(backend, "one", at(0)).await;
    let tenure = one.taken("a.example", at(0)).await.tenure;
    let mut random = fastrand::Rng::with_seed(35);
    let some = std::iter::repeat_with(|| random.u64(0..600_000_000)).take(100);
    for micros in [0, 1, 250_000, 999_999, 1_100_000, 3_333_333, 2_007_000].into_iter().chain(some) {
        let (delay, floor) = (Span::from_micros(micros), Span::from_micros(micros / 2));
        one.save(Saved {
            kept: SavedLimits { delay, floor, ..SavedLimits::default() },
            ..nothing_learned(tenure)
        })
        .await;
        let kept = one.row("a.example").await.kept;
        assert_eq!((kept.delay, kept.floor), (delay, floor), "{micros} microseconds");
    }
}

/// B37: a deadline that the server stated survives even a kill.
pub(crate) async fn deadlines_come_back_after_a_death(backend: &dyn Backend) {
    let victim = Process::start(backend, "victim", at(0)).await;
    let heir = Process::start(backend, "heir", at(0)).await;
    let tenure = victim.taken("a.example", at(0)).await.tenure;
    let kept = SavedLimits {
        delay: ms(1_500),
        floor: ms(250),
        floor_at: Some(at(-7) + ms(1)),
        server: Some((at(3600) + Span::from_micros(1), at(0) + ms(3))),
    };
    victim.save(Saved { kept, ..nothing_learned(tenure) }).await;
    backend.kill(victim, at(1)).await;
    let taken = heir.taken("a.example", at(2)).await;
    assert_eq!(taken.kept, kept);
    assert!(died_at(&taken) <= at(2));

    heir.save(nothing_learned(taken.tenure)).await;
    assert_eq!(heir.row("a.example").await.kept, SavedLimits::default(), "what no longer applies is cleared");
}

/// B37, B77: a store that lost writes gets deadlines back from processes that lost their domains, whoever holds these by now.
pub(crate) async fn deadlines_can_be_stated_again_but_not_shortened(backend: &dyn Backend) {
    let one = Process::start(backend, "one", at(0)).await;
    let state = async |name, until| {
        let stated = Stated { domain: domain(name), until: at(until), stated_at: at(5) };
        one.store.restate(vec![stated]).await.unwrap();
        one.row(name).await.kept.server
    };
    let tenure = one.taken("a.example", at(0)).await.tenure;
    assert_eq!(state("a.example", 90).await, Some((at(90), at(5))));
    assert_eq!(state("a.example", 60).await, Some((at(90), at(5))));
    assert_eq!(state("new.example", 60).await, Some((at(60), at(5))));
    // What was learned stays, and so does the tenure.
    let kept = SavedLimits { delay: ms(1_500), ..SavedLimits::default() };
    one.save(Saved { kept, ..nothing_learned(tenure) }).await;
    assert_eq!(state("a.example", 70).await, Some((at(70), at(5))));
    assert_eq!(one.row("a.example").await.kept.delay, ms(1_500));
    one.store.restate(Vec::new()).await.unwrap();
}

/// B39
pub(crate) async fn operator_settings_survive_a_change_of_holder(backend: &dyn Backend) {
    let one = Process::start(backend, "one", at(0)).await;
    let other = Process::start(backend, "other", at(0)).await;
    for (pinned, paused_until) in
        [(true, None), (false, Some(at(60))), (true, Some(Timestamp::MAX)), (false, None)]
    {
        let steering = Steering { pinned, paused_until };
        let tenure = one.taken("a.example", at(0)).await.tenure;
        let saved = Saved { steering, ..nothing_learned(tenure) };
        let released = Released { saved, pace: b"pace".to_vec(), mode: ReleaseMode::Stop };
        one.store.release(one.holder, vec![released], at(0)).await.unwrap();
        assert_eq!(one.row("a.example").await.steering, steering);
        let taken = other.taken("a.example", at(0)).await;
        assert_eq!(taken.steering, steering);
        other.release(taken.tenure, b"pace", ReleaseMode::Stop, at(0)).await;
    }
}

pub(crate) async fn a_tenure_from_an_earlier_take_cannot_write(backend: &dyn Backend) {
    let one = Process::start(backend, "one", at(0)).await;
    let other = Process::start(backend, "other", at(0)).await;
    let old = one.taken("a.example", at(0)).await.tenure;
    one.release(old, b"first", ReleaseMode::Stop, at(0)).await;
    let new = one.taken("a.example", at(0)).await.tenure;
    let kept = SavedLimits { delay: ms(7_000), ..SavedLimits::default() };

    one.save(Saved { kept, ..nothing_learned(old) }).await;
    one.release(old, b"second", ReleaseMode::Stop, at(1)).await;
    other.save(Saved { kept, ..nothing_learned(new) }).await;
    other.release(new, b"third", ReleaseMode::Stop, at(1)).await;

    let row = one.row("a.example").await;
    assert_eq!(
        (row.kept, row.holder.as_deref(), row.epoch),
        (SavedLimits::default(), Some("one"), new.epoch)
    );
    one.release(new, b"fourth", ReleaseMode::Stop, at(2)).await;
    assert_eq!(one.row("a.example").await.last_holder, Some(LastHolderBuf::Stopped(b"fourth".to_vec())));
}

/// B39
pub(crate) async fn domains_are_listed_in_pages(backend: &dyn Backend) {
    let one = Process::start(backend, "one", at(0)).await;
    let urls = ["https://b.example/1", "https://b.example/2", "https://a.example/1", "https://c.test/1"];
    one.job_of("job", &urls, at(0)).await;
    let tenure = one.taken("b.example", at(0)).await.tenure;

    let page =
        |like: &str, after: &str, limit| one.store.list_domains(like.to_owned(), after.to_owned(), limit);
    let names = |rows: Vec<comity_store::domains::DomainRow>| {
        rows.into_iter().map(|row| row.domain).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(names(page("", "", 2).await.unwrap()), "a.example b.example");
    assert_eq!(names(page("", "b.example", 2).await.unwrap()), "c.test");
    assert_eq!(names(page("example", "a.example", 9).await.unwrap()), "b.example");

    let row = one.row("b.example").await;
    assert_eq!((row.waiting, row.holder.as_deref(), row.epoch), (2, Some("one"), tenure.epoch));
    assert_eq!(one.row("a.example").await.holder, None);
    assert_eq!(one.store.find_domain(domain("other.example")).await.unwrap(), None);
}
