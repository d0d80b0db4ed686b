//! Permits: dropped, held at departure, in flight, lent.

use comity::gate::Permit;
use comity_core::decision::Limit;
use comity_core::intent::Intent;
use comity_core::outcome::Outcome;
use comity_core::pace::{Departure, LEASE, PermitRef, Pinned};
use comity_core::time::Span;

use crate::support::{
    a_moment, at, domain, eventually, manual_gate, ms, retry_after, soon, success, waiting,
};

const WIDE: &str = "[default]\nmin_delay = \"1s\"\nlearning = \"off\"\nin_flight = \"unlimited\"\n";
const ONE_AT_A_TIME: &str = "[default]\nmin_delay = \"1s\"\nlearning = \"off\"\nin_flight = 1\n";

/// B11
#[tokio::test]
async fn callers_that_give_up_leave_nothing_behind() {
    let (gate, control) = manual_gate(WIDE);
    let host = domain("a.example");
    gate.acquire(&host, Intent::Fetch).await.unwrap().record(&success());
    let mut tasks = Vec::new();
    for nth in 1..=20 {
        let (gate, host) = (gate.clone(), host.clone());
        tasks.push(tokio::spawn({
            let (gate, host) = (gate.clone(), host.clone());
            async move { drop(gate.acquire(&host, Intent::Fetch).await) }
        }));
        eventually("joining", || waiting(&gate, &host) == nth).await;
    }
    tasks.iter().for_each(|task| task.abort());
    eventually("leaving", || waiting(&gate, &host) == 0).await;
    control.advance(ms(1_000));
    a_moment().await;
    let permit = soon("the next slot", gate.acquire(&host, Intent::Fetch)).await.unwrap();
    assert_eq!(permit.started_at(), at(1_000), "callers that gave up are not charged");
}

/// B11
#[tokio::test]
async fn a_caller_that_gives_up_while_its_permit_arrives_returns_it() {
    let (gate, control) = manual_gate(ONE_AT_A_TIME);
    let host = domain("a.example");
    for round in 0..20 {
        let first = soon("a grant", gate.acquire(&host, Intent::Fetch)).await.unwrap();
        let mut acquiring = Box::pin(gate.acquire(&host, Intent::Fetch));
        assert!(futures_pending(&mut acquiring).await, "round {round}");
        first.record(&success());
        // The timer grants the permit while nobody polls, and it is dropped with the future.
        control.advance(ms(1_000));
        a_moment().await;
        drop(acquiring);
        let on_the_wire = gate.with_pace(&host, |pace, _, now| pace.in_flight(now)).await.unwrap();
        assert_eq!(on_the_wire, 0);
        control.advance(ms(1_000));
    }
}

/// Polls a future once, and returns whether it is pending.
async fn futures_pending<T>(future: &mut std::pin::Pin<Box<impl Future<Output = T>>>) -> bool {
    std::future::poll_fn(|context| std::task::Poll::Ready(future.as_mut().poll(context).is_pending())).await
}

/// B11, B25, B78
#[tokio::test]
async fn a_dropped_permit_is_no_longer_in_flight_but_not_refunded() {
    let (gate, control) = manual_gate(ONE_AT_A_TIME);
    let host = domain("a.example");
    drop(gate.acquire(&host, Intent::Fetch).await.unwrap());
    let (decision, _) = gate.check(&host, Intent::Fetch).await.unwrap();
    assert_eq!(decision.wait_ms(at(0)), 1_000, "the slot stays charged");
    assert!(matches!(decision.reason().unwrap().limit, Limit::MinDelay(_)), "{decision:?}");
    control.advance(ms(1_000));
    assert!(gate.check(&host, Intent::Fetch).await.unwrap().0.proceeds());
}

/// B78
#[tokio::test]
async fn with_one_in_flight_the_next_request_waits_for_the_response() {
    let (gate, control) = manual_gate(ONE_AT_A_TIME);
    let host = domain("a.example");
    let first = gate.acquire(&host, Intent::Fetch).await.unwrap();
    control.advance(ms(7_500));
    let (decision, _) = gate.check(&host, Intent::Fetch).await.unwrap();
    assert_eq!(decision.reason().unwrap().limit, Limit::InFlight { limit: 1 });
    let (theirs, there) = (gate.clone(), host.clone());
    let second = tokio::spawn(async move { theirs.acquire(&there, Intent::Fetch).await.unwrap() });
    eventually("joining", || waiting(&gate, &host) == 1).await;
    a_moment().await;
    assert!(!second.is_finished());
    first.record(&success());
    assert_eq!(soon("the second", second).await.unwrap().started_at(), at(7_500));
}

/// B78
#[tokio::test]
async fn an_unlimited_profile_allows_any_number_in_flight() {
    let (gate, control) = manual_gate("profile = \"crawler\"\n");
    let host = domain("a.example");
    let mut permits: Vec<Permit> = Vec::new();
    for nth in 0..50 {
        permits.push(soon("a grant", gate.acquire(&host, Intent::Fetch)).await.unwrap());
        assert_eq!(permits[nth].started_at(), at(nth as i64 * 500));
        control.advance(ms(500));
    }
    let on_the_wire = gate.with_pace(&host, |pace, _, now| pace.in_flight(now)).await.unwrap();
    assert_eq!(on_the_wire, 50);
}

/// B23
#[tokio::test]
async fn a_hold_stops_permits_that_have_not_departed() {
    let (gate, control) = manual_gate(WIDE);
    let host = domain("a.example");
    let first = gate.acquire(&host, Intent::Fetch).await.unwrap();
    control.advance(ms(1_000));
    let mut second = gate.acquire(&host, Intent::Fetch).await.unwrap();
    let mut third = {
        control.advance(ms(1_000));
        gate.acquire(&host, Intent::Fetch).await.unwrap()
    };
    first.record(&retry_after(ms(10_000)));
    let Departure::Wait { until, reason } = second.depart() else { panic!("a tenure stops every request") };
    assert_eq!((until, reason.limit), (at(12_000), Limit::RetryAfter));
    assert!(!second.depart_within(ms(250)).await, "too long to wait with an open connection");
    drop(second);
    let waiting = tokio::spawn(async move { (third.depart_within(ms(20_000)).await, third) });
    a_moment().await;
    control.advance(ms(9_999));
    a_moment().await;
    assert!(!waiting.is_finished());
    control.advance(ms(1));
    let (went, third) = soon("the departure", waiting).await.unwrap();
    assert!(went);
    assert_eq!(third.started_at(), at(12_000));
    let (decision, _) = gate.check(&host, Intent::Fetch).await.unwrap();
    assert_eq!(decision.wait_ms(at(12_000)), 1_000, "the spacing counts from the start");
}

/// B25
#[tokio::test]
async fn departing_moves_the_charge_later_never_earlier() {
    let (gate, control) = manual_gate(WIDE);
    let host = domain("a.example");
    let mut permit = gate.acquire(&host, Intent::Fetch).await.unwrap();
    assert_eq!(permit.started_at(), at(0));
    control.advance(ms(700));
    assert_eq!(permit.depart(), Departure::Go);
    assert_eq!(permit.started_at(), at(700));
    let (decision, _) = gate.check(&host, Intent::Fetch).await.unwrap();
    assert_eq!(decision.wait_ms(at(700)), 1_000);
    permit.record(&success());
}

/// B80: a permit that nobody recorded used to block its site for ten minutes.
#[tokio::test]
async fn an_unrecorded_permit_counts_until_its_lease_ends() {
    let (gate, control) = manual_gate(ONE_AT_A_TIME);
    let host = domain("a.example");
    gate.acquire(&host, Intent::Fetch).await.unwrap().lend(LEASE);
    control.advance(ms(12_000));
    let (decision, _) = gate.check(&host, Intent::Fetch).await.unwrap();
    let reason = decision.reason().unwrap();
    assert_eq!((decision.wait_ms(at(12_000)), reason.limit.as_str()), (48_000, "lease"));
    let told = "a permit given out 12s ago has not been recorded; its lease ends in 48s";
    assert_eq!(reason.to_string(), told);
    let (theirs, there) = (gate.clone(), host.clone());
    let next = tokio::spawn(async move { theirs.acquire(&there, Intent::Fetch).await.unwrap() });
    eventually("joining", || waiting(&gate, &host) == 1).await;
    // Observers see what it waits for, and until when.
    let status = gate.status(5);
    assert_eq!(status.held_back[0].until(), Some(at(60_000)), "{status:?}");
    assert!(status.held_back[0].why.contains("not been recorded"), "{status:?}");
    assert_eq!(gate.domain_status(&host).unwrap().wait, ms(48_000));
    control.advance(ms(47_999));
    a_moment().await;
    assert!(!next.is_finished());
    control.advance(ms(1));
    assert_eq!(soon("the next one", next).await.unwrap().started_at(), at(60_000));
}

/// B80: renewed, released by an operator, returned.
#[tokio::test]
async fn a_lease_can_be_renewed_released_and_returned() {
    let (gate, control) = manual_gate(ONE_AT_A_TIME);
    let host = domain("a.example");
    let granted =
        |permit: &Permit| PermitRef { id: permit.id(), granted_at: permit.started_at(), took: None };
    let permit = gate.acquire(&host, Intent::Fetch).await.unwrap();
    let passed = granted(&permit);
    permit.lend(LEASE);
    control.advance(ms(50_000));
    assert_eq!(gate.renew(&host, passed, ms(90_000)).await.unwrap(), Some(at(140_000)));
    control.advance(ms(89_999));
    assert!(!gate.check(&host, Intent::Fetch).await.unwrap().0.proceeds());
    control.advance(ms(1));
    let (decision, permit) = gate.check(&host, Intent::Fetch).await.unwrap();
    assert!(decision.proceeds());
    assert_eq!(gate.renew(&host, passed, LEASE).await.unwrap(), None, "it has expired");
    let passed = granted(permit.as_ref().unwrap());
    permit.unwrap().lend(LEASE);
    control.advance(ms(1_000));
    assert_eq!(gate.release(&host).await.unwrap(), 1);
    let (decision, permit) = gate.check(&host, Intent::Fetch).await.unwrap();
    assert!(decision.proceeds());
    // A permit that was released but is recorded after all still counts.
    let recorded = gate.record_passed(&host, passed, &retry_after(ms(5_000))).await.unwrap();
    assert_eq!(recorded.server_until, Some(at(146_000)));
    let passed = granted(permit.as_ref().unwrap());
    permit.unwrap().lend(LEASE);
    assert!(gate.give_back(&host, passed).await.unwrap());
    assert_eq!(gate.domain_status(&host).unwrap().in_flight, 0);
}

/// B78, B80: a request of the process itself stays in flight for as long as it takes.
#[tokio::test]
async fn a_long_request_stays_in_flight() {
    let (gate, control) = manual_gate(ONE_AT_A_TIME);
    let host = domain("a.example");
    let first = gate.acquire(&host, Intent::Fetch).await.unwrap();
    let (theirs, there) = (gate.clone(), host.clone());
    let next = tokio::spawn(async move { theirs.acquire(&there, Intent::Fetch).await.unwrap() });
    eventually("joining", || waiting(&gate, &host) == 1).await;
    for _ in 0..40 {
        control.advance(ms(60_000));
        a_moment().await;
        assert!(!next.is_finished());
    }
    assert_eq!(gate.release(&host).await.unwrap(), 0, "an operator releases lent permits, not this one");
    assert!(gate.status(5).held_back[0].until().is_none(), "nobody knows when the response will come");
    first.record(&success());
    assert_eq!(soon("the next one", next).await.unwrap().started_at(), at(2_400_000));
}

/// B25: an outcome without a permit settles the oldest open one; if there is none, it is charged.
#[tokio::test]
async fn outcomes_recorded_without_a_permit_count() {
    let (gate, control) = manual_gate(ONE_AT_A_TIME);
    let host = domain("a.example");
    let id = gate.acquire(&host, Intent::Fetch).await.unwrap().lend(LEASE);
    assert!(gate.with_pace(&host, move |pace, _, _| pace.permit(id).is_some()).await.unwrap());
    control.advance(ms(1_000));
    gate.record_unasked(&host, Intent::Fetch, &success()).await.unwrap();
    assert!(gate.check(&host, Intent::Fetch).await.unwrap().0.proceeds(), "recording charges nothing");
    control.advance(ms(5_000));
    gate.record_unasked(&host, Intent::Fetch, &success()).await.unwrap();
    gate.record_unasked(&host, Intent::Fetch, &success()).await.unwrap();
    let (decision, _) = gate.check(&host, Intent::Fetch).await.unwrap();
    assert_eq!(decision.wait_ms(at(6_000)), 1_000, "a request without a permit is charged now");
}

/// B39
#[tokio::test]
async fn an_operator_pins_pauses_and_resets() {
    let (gate, control) = manual_gate("profile = \"crawler\"\n");
    let host = domain("a.example");
    let delay = |gate: &comity::gate::Gate| {
        let gate = gate.clone();
        async move { gate.with_pace(&domain("a.example"), |pace, _, _| pace.learned().delay()).await.unwrap() }
    };
    let changed = gate.with_pace(&host, |pace, terms, now| {
        pace.set_learned(terms, Span::from_secs(4), Span::from_secs(2), now);
        pace.pin(Pinned::Yes);
    });
    changed.await.unwrap();
    let permit = gate.acquire(&host, Intent::Fetch).await.unwrap();
    permit.record(&Outcome::RateLimited.into());
    assert_eq!(delay(&gate).await, Span::from_secs(4), "pinned: a 429 does not change it");
    let (decision, _) = gate.check(&host, Intent::Fetch).await.unwrap();
    assert_eq!(decision.wait_ms(at(0)), 4_000, "and the pinned delay applies");
    control.advance(ms(4_000));
    gate.with_pace(&host, |pace, _, _| pace.pause(None)).await.unwrap();
    assert!(matches!(
        gate.check(&host, Intent::Fetch).await.unwrap().0,
        comity_core::decision::Decision::Refuse(_)
    ));
    let (theirs, there) = (gate.clone(), host.clone());
    let caller = tokio::spawn(async move { theirs.acquire(&there, Intent::Fetch).await.unwrap() });
    eventually("joining", || waiting(&gate, &host) == 1).await;
    control.advance(ms(86_400_000));
    a_moment().await;
    assert!(!caller.is_finished(), "paused until resumed");
    gate.with_pace(&host, |pace, _, _| pace.resume()).await.unwrap();
    soon("the waiting request", caller).await.unwrap().record(&success());
    gate.with_pace(&host, |pace, _, now| pace.reset(now)).await.unwrap();
    assert_eq!(delay(&gate).await, Span::ZERO);
    control.advance(ms(500));
    assert!(gate.check(&host, Intent::Fetch).await.unwrap().0.proceeds(), "only the rule's delay remains");
}
