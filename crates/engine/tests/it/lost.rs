//! Domains that were lost while somebody was at work on them: what is said of them reaches whoever has them now.

use std::time::Duration;

use comity::gate::GateError;
use comity::store::domains::HolderId;
use comity_core::intent::Intent;
use comity_core::pace::{Departure, LEASE, Passed};
use comity_core::time::Span;

use crate::support::{Beats, eventually, ms, retry_after, soon};
use crate::tenancy::{Place, by_hand, host, rule};

/// B83: what a server asked for was said to be heard, and was not saved: the domain was somebody else's by then.
#[tokio::test]
async fn a_record_after_the_lease_was_lost_reaches_whoever_holds_the_domain() {
    let (place, (clock, _)) = (Place::new(), by_hand());
    let a = place.process(&rule(10), &clock).await;
    let permit = a.ask(&host()).await;
    let passed = Passed { id: permit.id(), granted_at: permit.started_at(), took: None };
    permit.lend(LEASE);
    // Others take it for dead, which it learns when it saves.
    let other = place.open();
    other.deregister(HolderId(1), clock.now()).await.unwrap();
    assert!(a.gate.holds(&host()), "it does not know yet");
    let answer = retry_after(Span::from_secs(120));
    let recorded = soon("an answer", a.gate.record_passed(&host(), passed, &answer)).await.unwrap();
    assert!(recorded.server_until.is_some(), "{recorded:?}");
    let row = other.find_domain(host()).await.unwrap().unwrap();
    assert_eq!(row.kept.server.map(|(until, _)| until), recorded.server_until);
    assert!(row.epoch > 1 && row.holder.is_some(), "under another hold: {row:?}");
}

/// B83: an operator's word that was not saved is not said to be.
#[tokio::test]
async fn a_change_after_the_lease_was_lost_is_refused() {
    let (place, (clock, _)) = (Place::new(), by_hand());
    let a = place.process(&rule(10), &clock).await;
    a.send(&host()).await;
    place.open().deregister(HolderId(1), clock.now()).await.unwrap();
    let until = Some(clock.now() + Span::from_secs(60));
    let paused = soon("an answer", a.gate.with_pace(&host(), |pace, _, _| pace.pause(until))).await;
    assert!(matches!(paused, Err(GateError::Lost)), "{paused:?}");
    soon("an answer", a.gate.with_pace(&host(), |pace, _, _| pace.pause(until))).await.unwrap();
    let row = a.store.find_domain(host()).await.unwrap().unwrap();
    assert_eq!(row.steering.paused_until, until);
}

/// B20, B37: what a server asked for was told to nobody when the domain went while the request was on the wire.
#[tokio::test]
async fn a_refusal_to_whoever_lost_the_domain_is_passed_on() {
    let (place, (stopped, its_hands), (clock, hands)) = (Place::new(), by_hand(), by_hand());
    let (a, b) = (place.process(&rule(10), &stopped).await, place.process(&rule(10), &clock).await);
    let mut permit = a.ask(&host()).await;
    assert_eq!(permit.depart(), Departure::Go);
    // The first one is stopped for so long that it loses its domain.
    let (gate, there) = (b.gate.clone(), host());
    let taking = tokio::spawn(async move { gate.acquire(&there, Intent::Fetch).await.map(drop) });
    let beats = Beats::of(&b.gate);
    while !taking.is_finished() {
        beats.advance(&hands, ms(2_500)).await;
    }
    taking.await.unwrap().unwrap();
    its_hands.advance(Span::from_secs(12));
    eventually("its loss", || !a.gate.holds(&host())).await;
    permit.record(&retry_after(Span::from_secs(120)));
    let heard = async {
        while a.store.find_domain(host()).await.unwrap().is_none_or(|row| row.kept.server.is_none()) {
            hands.advance(ms(100));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    soon("the word", heard).await;
}
