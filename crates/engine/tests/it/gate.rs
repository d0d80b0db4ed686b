//! The gate on a manual clock: who is granted when.

use std::sync::{Arc, Mutex};

use comity::clock::ClockControl;
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

/// One request per second, any number in flight.
const WIDE: &str = "[default]\nmin_delay = \"1s\"\nlearning = \"off\"\nin_flight = \"unlimited\"\n";

/// Records which caller was granted when.
#[derive(Clone, Default)]
pub(crate) struct Grants(Arc<Mutex<Vec<(usize, Timestamp)>>>);

impl Grants {
    pub(crate) fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    pub(crate) fn log(&self) -> Vec<(usize, Timestamp)> {
        self.0.lock().unwrap().clone()
    }

    fn note(&self, who: usize, permit: &Permit) {
        self.0.lock().unwrap().push((who, permit.started_at()));
    }

    /// Joins the line as number `who`; its request succeeds immediately.
    async fn join(&self, gate: &Gate, host: &Domain, who: usize) {
        let (gate, host, grants) = (gate.clone(), host.clone(), self.clone());
        let before = waiting(&gate, &host);
        tokio::spawn({
            let (gate, host) = (gate.clone(), host.clone());
            async move {
                let mut permit = gate.acquire(&host, Intent::Fetch).await.unwrap();
                permit.depart();
                grants.note(who, &permit);
                permit.record(&success());
            }
        });
        eventually("joining", || waiting(&gate, &host) > before).await;
    }
}

/// Advances the clock in steps of `millis` until `count` callers have been granted in total.
async fn run(control: &ClockControl, millis: u64, grants: &Grants, count: usize) {
    while grants.len() < count {
        let before = grants.len();
        control.advance(ms(millis));
        eventually("a grant", || grants.len() > before).await;
    }
}

/// B3, B8
#[tokio::test]
async fn one_of_fifty_tasks_is_granted_per_interval() {
    let (gate, control) = manual_gate(WIDE);
    let (host, grants) = (domain("a.example"), Grants::default());
    let barrier = Arc::new(tokio::sync::Barrier::new(50));
    for who in 0..50 {
        let (gate, host, grants, barrier) = (gate.clone(), host.clone(), grants.clone(), barrier.clone());
        tokio::spawn(async move {
            barrier.wait().await;
            let permit = gate.acquire(&host, Intent::Fetch).await.unwrap();
            grants.note(who, &permit);
            permit.record(&success());
        });
    }
    eventually("all being in line", || grants.len() == 1 && waiting(&gate, &host) == 49).await;
    run(&control, 1_000, &grants, 50).await;
    let times: Vec<Timestamp> = grants.log().into_iter().map(|(_, at)| at).collect();
    assert_eq!(times, (0..50).map(|nth| at(nth * 1_000)).collect::<Vec<_>>());
}

/// B3
#[tokio::test]
async fn a_long_jump_of_the_clock_grants_one_slot_not_many() {
    let (gate, control) = manual_gate(WIDE);
    let (host, grants) = (domain("a.example"), Grants::default());
    let first = gate.acquire(&host, Intent::Fetch).await.unwrap();
    for who in 0..5 {
        grants.join(&gate, &host, who).await;
    }
    first.record(&success());
    control.advance(ms(100_000));
    eventually("a grant", || grants.len() > 0).await;
    a_moment().await;
    assert_eq!(grants.log(), [(0, at(100_000))]);
}

/// B3
#[tokio::test]
async fn check_overtakes_nobody_and_takes_a_slot() {
    let (gate, control) = manual_gate(WIDE);
    let (host, grants) = (domain("a.example"), Grants::default());
    let (decision, permit) = gate.check(&host, Intent::Fetch).await.unwrap();
    assert!(decision.proceeds());
    permit.unwrap().lend(LEASE);
    let (decision, permit) = gate.check(&host, Intent::Fetch).await.unwrap();
    assert_eq!((decision.wait_ms(at(0)), permit.is_none()), (1_000, true));
    grants.join(&gate, &host, 0).await;
    grants.join(&gate, &host, 1).await;
    let (decision, permit) = gate.check(&host, Intent::Fetch).await.unwrap();
    let Decision::Wait { until, reason } = decision else { panic!("{decision:?}") };
    assert!(permit.is_none());
    assert_eq!((until, reason.limit), (at(3_000), Limit::Line { ahead: 2 }));
    run(&control, 1_000, &grants, 2).await;
    assert_eq!(grants.log(), [(0, at(1_000)), (1, at(2_000))]);
    control.advance(ms(1_000));
    assert!(gate.check(&host, Intent::Fetch).await.unwrap().0.proceeds());
}

/// B10
#[tokio::test]
async fn a_held_domain_delays_no_other() {
    let (gate, control) = manual_gate(WIDE);
    let (held, grants) = (domain("held.example"), Grants::default());
    let permit = gate.acquire(&held, Intent::Fetch).await.unwrap();
    permit.record(&retry_after(ms(3_600_000)));
    for who in 0..3 {
        grants.join(&gate, &held, who).await;
    }
    for second in 0..3 {
        for nth in 0..20 {
            let host = domain(&format!("{nth}.example"));
            let permit = soon("a grant elsewhere", gate.acquire(&host, Intent::Fetch)).await.unwrap();
            assert_eq!(permit.started_at(), at(second * 1_000));
            permit.record(&success());
        }
        control.advance(ms(1_000));
    }
    assert_eq!(grants.len(), 0);
}

/// B12
#[tokio::test]
async fn waiters_are_served_in_order() {
    let (gate, control) = manual_gate(WIDE);
    let (host, grants) = (domain("a.example"), Grants::default());
    gate.acquire(&host, Intent::Fetch).await.unwrap().record(&success());
    for who in 0..12 {
        grants.join(&gate, &host, who).await;
    }
    run(&control, 1_000, &grants, 12).await;
    let expected: Vec<_> = (0..12).map(|nth| (nth, at(1_000 + nth as i64 * 1_000))).collect();
    assert_eq!(grants.log(), expected);
}

/// B12, B22, B23
#[tokio::test]
async fn a_penalty_delays_all_waiters_without_a_stampede_when_it_ends() {
    let (gate, control) = manual_gate(WIDE);
    let (host, grants) = (domain("a.example"), Grants::default());
    let first = gate.acquire(&host, Intent::Fetch).await.unwrap();
    for who in 0..5 {
        grants.join(&gate, &host, who).await;
    }
    control.advance(ms(500));
    let recorded = first.record(&retry_after(ms(30_000)));
    assert_eq!(recorded.held_until, Some(at(30_500)));
    control.advance(ms(29_999));
    a_moment().await;
    assert_eq!(grants.len(), 0, "a tenure stops every request");
    run(&control, 1, &grants, 1).await;
    a_moment().await;
    assert_eq!(grants.log(), [(0, at(30_500))], "one request leaves when it ends");
    run(&control, 1_000, &grants, 5).await;
    let expected: Vec<_> = (0..5).map(|nth| (nth, at(30_500 + nth as i64 * 1_000))).collect();
    assert_eq!(grants.log(), expected);
}

/// B13
#[tokio::test]
async fn a_disabled_domain_is_not_paced() {
    let (gate, _control) = manual_gate("[domains.\"free.example\"]\nenabled = false\n");
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
async fn threads_and_tasks_wait_in_one_line() {
    let (gate, control) = manual_gate(WIDE);
    let (host, grants) = (domain("a.example"), Grants::default());
    gate.acquire(&host, Intent::Fetch).await.unwrap().record(&success());
    let mut threads = Vec::new();
    for who in 0..10 {
        if who % 2 == 0 {
            grants.join(&gate, &host, who).await;
            continue;
        }
        let (theirs, there, seen) = (gate.clone(), host.clone(), grants.clone());
        threads.push(std::thread::spawn(move || {
            let permit = theirs.acquire_blocking(&there, Intent::Fetch).unwrap();
            seen.note(who, &permit);
            permit.record(&success());
        }));
        eventually("joining", || waiting(&gate, &host) == who + 1).await;
    }
    run(&control, 1_000, &grants, 10).await;
    let expected: Vec<_> = (0..10).map(|nth| (nth, at(1_000 + nth as i64 * 1_000))).collect();
    assert_eq!(grants.log(), expected);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

/// B2
#[tokio::test]
async fn explain_lists_all_constraints_the_binding_one_first() {
    let (gate, control) = manual_gate(WIDE);
    let host = domain("a.example");
    gate.set_crawl_delay(&host, ms(4_000));
    let permit = gate.acquire(&host, Intent::Fetch).await.unwrap();
    control.advance(ms(200));
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
    control.advance(ms(10_000));
    let (decision, _) = gate.check(&host, Intent::Fetch).await.unwrap();
    assert!(decision.proceeds(), "explain reserves nothing, and one wait is enough");
}

/// B2, B73
#[tokio::test]
async fn status_lists_the_domains_that_hold_callers_back_longest() {
    let (gate, _control) = manual_gate(WIDE);
    let grants = Grants::default();
    for (nth, span) in [5_000, 60_000, 20_000].into_iter().enumerate() {
        let host = domain(&format!("{nth}.example"));
        gate.acquire(&host, Intent::Fetch).await.unwrap().record(&retry_after(ms(span)));
        grants.join(&gate, &host, nth).await;
    }
    let idle = domain("idle.example");
    gate.acquire(&idle, Intent::Fetch).await.unwrap().record(&retry_after(ms(900_000)));
    grants.join(&gate, &domain("2.example"), 3).await;
    let status = gate.status(2);
    let told = |held: &HeldBack| (held.domain.clone(), held.in_line, held.until().unwrap());
    let slowest: Vec<_> = status.held_back.iter().map(told).collect();
    let named = |name: &str, in_line, until| (name.to_owned(), in_line, at(until));
    assert_eq!(slowest, [named("1.example", 1, 60_000), named("2.example", 2, 20_000)]);
    assert_eq!((status.more, status.in_line, status.domains), (1, 4, 4));
    assert_eq!(gate.status(10).held_back.len(), 3, "domains without waiters are not listed");
    let first = &status.held_back[0];
    assert_eq!((first.origin.as_str(), first.why.as_str()), ("server", "the server asked to wait"));
}

/// B15: the hosts of a group wait in one line.
#[tokio::test]
async fn hosts_of_a_group_share_their_slots() {
    let toml = "[default]\nmin_delay = \"1s\"\nin_flight = \"unlimited\"\n\
        [domains.\"a.example\"]\ngroup = \"shared\"\n[domains.\"b.example\"]\ngroup = \"shared\"\n";
    let (gate, _control) = manual_gate(toml);
    let (decision, permit) = gate.check(&domain("a.example"), Intent::Fetch).await.unwrap();
    assert!(decision.proceeds());
    assert_eq!(permit.unwrap().domain(), &config(toml).rules().domain(&domain("b.example")));
    let (decision, _) = gate.check(&domain("b.example"), Intent::Fetch).await.unwrap();
    assert_eq!(decision.wait_ms(at(0)), 1_000);
}
