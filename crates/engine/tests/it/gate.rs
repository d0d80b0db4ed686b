//! The gate on a clock that is moved by hand: who goes when.

use std::sync::{Arc, Mutex};

use comity::clock::Hands;
use comity::gate::{Gate, Permit};
use comity::status::HeldBack;
use comity_core::decision::{Decision, Limit};
use comity_core::domain::Domain;
use comity_core::intent::Intent;
use comity_core::pace::LEASE;
use comity_core::time::Timestamp;

use crate::support::{
    a_moment, at, config, domain, eventually, manual_gate, ms, retry_after, soon, success, waiting,
};

/// One request a second, any number on the wire.
const WIDE: &str = "[default]\nmin_delay = \"1s\"\nlearning = \"off\"\nin_flight = \"unlimited\"\n";

/// Callers that wait, and who of them went when.
#[derive(Clone, Default)]
pub(crate) struct Went(Arc<Mutex<Vec<(usize, Timestamp)>>>);

impl Went {
    pub(crate) fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    pub(crate) fn log(&self) -> Vec<(usize, Timestamp)> {
        self.0.lock().unwrap().clone()
    }

    fn note(&self, who: usize, permit: &Permit) {
        self.0.lock().unwrap().push((who, permit.started_at()));
    }

    /// Joins the line as number `who`; the request is answered at once.
    async fn join(&self, gate: &Gate, host: &Domain, who: usize) {
        let (gate, host, went) = (gate.clone(), host.clone(), self.clone());
        let before = waiting(&gate, &host);
        tokio::spawn({
            let (gate, host) = (gate.clone(), host.clone());
            async move {
                let mut permit = gate.acquire(&host, Intent::Fetch).await.unwrap();
                permit.depart();
                went.note(who, &permit);
                permit.record(&success());
            }
        });
        eventually("joining", || waiting(&gate, &host) > before).await;
    }
}

/// Moves the clock on by steps of `millis` until `count` have gone in all.
async fn run(hands: &Hands, millis: u64, went: &Went, count: usize) {
    while went.len() < count {
        let before = went.len();
        hands.advance(ms(millis));
        eventually("a grant", || went.len() > before).await;
    }
}

/// B3, B8
#[tokio::test]
async fn of_fifty_tasks_one_goes_per_interval() {
    let (gate, hands) = manual_gate(WIDE);
    let (host, went) = (domain("a.example"), Went::default());
    let barrier = Arc::new(tokio::sync::Barrier::new(50));
    for who in 0..50 {
        let (gate, host, went, barrier) = (gate.clone(), host.clone(), went.clone(), barrier.clone());
        tokio::spawn(async move {
            barrier.wait().await;
            let permit = gate.acquire(&host, Intent::Fetch).await.unwrap();
            went.note(who, &permit);
            permit.record(&success());
        });
    }
    eventually("all being in line", || went.len() == 1 && waiting(&gate, &host) == 49).await;
    run(&hands, 1_000, &went, 50).await;
    let times: Vec<Timestamp> = went.log().into_iter().map(|(_, at)| at).collect();
    assert_eq!(times, (0..50).map(|nth| at(nth * 1_000)).collect::<Vec<_>>());
}

/// B3
#[tokio::test]
async fn a_long_jump_of_the_clock_grants_one_slot_not_many() {
    let (gate, hands) = manual_gate(WIDE);
    let (host, went) = (domain("a.example"), Went::default());
    let first = gate.acquire(&host, Intent::Fetch).await.unwrap();
    for who in 0..5 {
        went.join(&gate, &host, who).await;
    }
    first.record(&success());
    hands.advance(ms(100_000));
    eventually("a grant", || went.len() > 0).await;
    a_moment().await;
    assert_eq!(went.log(), [(0, at(100_000))]);
}

/// B3
#[tokio::test]
async fn check_overtakes_nobody_and_reserves() {
    let (gate, hands) = manual_gate(WIDE);
    let (host, went) = (domain("a.example"), Went::default());
    let (decision, permit) = gate.check(&host, Intent::Fetch).await.unwrap();
    assert!(decision.proceeds());
    permit.unwrap().lend(LEASE);
    let (decision, permit) = gate.check(&host, Intent::Fetch).await.unwrap();
    assert_eq!((decision.wait_ms(at(0)), permit.is_none()), (1_000, true));
    went.join(&gate, &host, 0).await;
    went.join(&gate, &host, 1).await;
    let (decision, permit) = gate.check(&host, Intent::Fetch).await.unwrap();
    let Decision::Wait { until, reason } = decision else { panic!("{decision:?}") };
    assert!(permit.is_none());
    assert_eq!((until, reason.limit), (at(3_000), Limit::Line { ahead: 2 }));
    run(&hands, 1_000, &went, 2).await;
    assert_eq!(went.log(), [(0, at(1_000)), (1, at(2_000))]);
    hands.advance(ms(1_000));
    assert!(gate.check(&host, Intent::Fetch).await.unwrap().0.proceeds());
}

/// B10
#[tokio::test]
async fn a_domain_that_waits_delays_no_other() {
    let (gate, hands) = manual_gate(WIDE);
    let (held, went) = (domain("held.example"), Went::default());
    let permit = gate.acquire(&held, Intent::Fetch).await.unwrap();
    permit.record(&retry_after(ms(3_600_000)));
    for who in 0..3 {
        went.join(&gate, &held, who).await;
    }
    for second in 0..3 {
        for nth in 0..20 {
            let host = domain(&format!("{nth}.example"));
            let permit = soon("a grant elsewhere", gate.acquire(&host, Intent::Fetch)).await.unwrap();
            assert_eq!(permit.started_at(), at(second * 1_000));
            permit.record(&success());
        }
        hands.advance(ms(1_000));
    }
    assert_eq!(went.len(), 0);
}

/// B12
#[tokio::test]
async fn the_order_of_waiters_is_kept() {
    let (gate, hands) = manual_gate(WIDE);
    let (host, went) = (domain("a.example"), Went::default());
    gate.acquire(&host, Intent::Fetch).await.unwrap().record(&success());
    for who in 0..12 {
        went.join(&gate, &host, who).await;
    }
    run(&hands, 1_000, &went, 12).await;
    let expected: Vec<_> = (0..12).map(|nth| (nth, at(1_000 + nth as i64 * 1_000))).collect();
    assert_eq!(went.log(), expected);
}

/// B12, B22, B23
#[tokio::test]
async fn a_penalty_moves_all_who_wait_and_nobody_stampedes_when_it_ends() {
    let (gate, hands) = manual_gate(WIDE);
    let (host, went) = (domain("a.example"), Went::default());
    let first = gate.acquire(&host, Intent::Fetch).await.unwrap();
    for who in 0..5 {
        went.join(&gate, &host, who).await;
    }
    hands.advance(ms(500));
    let recorded = first.record(&retry_after(ms(30_000)));
    assert_eq!(recorded.held_until, Some(at(30_500)));
    hands.advance(ms(29_999));
    a_moment().await;
    assert_eq!(went.len(), 0, "a hold stops everybody");
    run(&hands, 1, &went, 1).await;
    a_moment().await;
    assert_eq!(went.log(), [(0, at(30_500))], "one goes when it ends");
    run(&hands, 1_000, &went, 5).await;
    let expected: Vec<_> = (0..5).map(|nth| (nth, at(30_500 + nth as i64 * 1_000))).collect();
    assert_eq!(went.log(), expected);
}

/// B13
#[tokio::test]
async fn what_is_not_enabled_is_not_paced() {
    let (gate, _hands) = manual_gate("[domains.\"free.example\"]\nenabled = false\n");
    let (free, paced) = (domain("free.example"), domain("paced.example"));
    for _ in 0..100 {
        let permit = soon("a grant", gate.acquire(&free, Intent::Fetch)).await.unwrap();
        assert_eq!(permit.started_at(), at(0));
        permit.record(&retry_after(ms(60_000)));
        assert!(gate.check(&free, Intent::Fetch).await.unwrap().0.proceeds());
    }
    assert!(gate.check(&paced, Intent::Fetch).await.unwrap().0.proceeds());
    assert!(!gate.check(&paced, Intent::Fetch).await.unwrap().0.proceeds());
}

/// B14
#[tokio::test]
async fn threads_and_tasks_stand_in_one_line() {
    let (gate, hands) = manual_gate(WIDE);
    let (host, went) = (domain("a.example"), Went::default());
    gate.acquire(&host, Intent::Fetch).await.unwrap().record(&success());
    let mut threads = Vec::new();
    for who in 0..10 {
        if who % 2 == 0 {
            went.join(&gate, &host, who).await;
            continue;
        }
        let (theirs, there, seen) = (gate.clone(), host.clone(), went.clone());
        threads.push(std::thread::spawn(move || {
            let permit = theirs.acquire_blocking(&there, Intent::Fetch).unwrap();
            seen.note(who, &permit);
            permit.record(&success());
        }));
        eventually("joining", || waiting(&gate, &host) == who + 1).await;
    }
    run(&hands, 1_000, &went, 10).await;
    let expected: Vec<_> = (0..10).map(|nth| (nth, at(1_000 + nth as i64 * 1_000))).collect();
    assert_eq!(went.log(), expected);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

/// B2
#[tokio::test]
async fn explain_names_every_constraint_the_binding_one_first() {
    let (gate, hands) = manual_gate(WIDE);
    let host = domain("a.example");
    gate.set_crawl_delay(&host, ms(4_000));
    let permit = gate.acquire(&host, Intent::Fetch).await.unwrap();
    hands.advance(ms(200));
    permit.record(&retry_after(ms(10_000)));
    let reasons = gate.explain(&host, Intent::Fetch).await.unwrap();
    let untils: Vec<Timestamp> = reasons.iter().map(|reason| reason.until).collect();
    assert!(untils.is_sorted_by(|a, b| a >= b), "{reasons:?}");
    assert_eq!((reasons[0].limit, reasons[0].until), (Limit::RetryAfter, at(10_200)));
    assert!(
        reasons
            .iter()
            .any(|reason| matches!(reason.limit, Limit::CrawlDelay(_)) && reason.until == at(4_000))
    );
    assert!(
        reasons.iter().any(|reason| matches!(reason.limit, Limit::MinDelay(_)) && reason.until == at(1_000))
    );
    hands.advance(ms(10_000));
    let (decision, _) = gate.check(&host, Intent::Fetch).await.unwrap();
    assert!(decision.proceeds(), "explaining reserved nothing, and one sleep was enough");
}

/// B2, B73
#[tokio::test]
async fn the_slowest_are_those_who_keep_callers_the_longest() {
    let (gate, _hands) = manual_gate(WIDE);
    let went = Went::default();
    for (nth, span) in [5_000, 60_000, 20_000].into_iter().enumerate() {
        let host = domain(&format!("{nth}.example"));
        gate.acquire(&host, Intent::Fetch).await.unwrap().record(&retry_after(ms(span)));
        went.join(&gate, &host, nth).await;
    }
    let idle = domain("idle.example");
    gate.acquire(&idle, Intent::Fetch).await.unwrap().record(&retry_after(ms(900_000)));
    went.join(&gate, &domain("2.example"), 3).await;
    let status = gate.status(2);
    let told = |held: &HeldBack| (held.domain.clone(), held.in_line, held.until().unwrap());
    let slowest: Vec<_> = status.held_back.iter().map(told).collect();
    let named = |name: &str, in_line, until| (name.to_owned(), in_line, at(until));
    assert_eq!(slowest, [named("1.example", 1, 60_000), named("2.example", 2, 20_000)]);
    assert_eq!((status.more, status.in_line, status.domains), (1, 4, 4));
    assert_eq!(gate.status(10).held_back.len(), 3, "where nobody waits, nobody is kept");
    let first = &status.held_back[0];
    assert_eq!((first.origin.as_str(), first.why.as_str()), ("server", "the server asked to wait"));
}

/// B15: hosts of a group wait in one line.
#[tokio::test]
async fn hosts_of_a_group_share_their_slots() {
    let toml = "[default]\nmin_delay = \"1s\"\nin_flight = \"unlimited\"\n\
        [domains.\"a.example\"]\ngroup = \"shared\"\n[domains.\"b.example\"]\ngroup = \"shared\"\n";
    let (gate, _hands) = manual_gate(toml);
    let (decision, permit) = gate.check(&domain("a.example"), Intent::Fetch).await.unwrap();
    assert!(decision.proceeds());
    assert_eq!(permit.unwrap().domain(), &config(toml).rules().domain(&domain("b.example")));
    let (decision, _) = gate.check(&domain("b.example"), Intent::Fetch).await.unwrap();
    assert_eq!(decision.wait_ms(at(0)), 1_000);
}
