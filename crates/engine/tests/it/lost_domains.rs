//! Domains that are lost while requests are in flight: what a server asked for still reaches the new holder.

use std::time::Duration;

use comity::gate::GateError;
use comity::store::domains::HolderId;
use comity_core::intent::Intent;
use comity_core::pace::{Departure, LEASE, PermitRef};
use comity_core::time::Span;

use crate::shared_store::{DiskStore, host, manual_clock, rule};
use crate::support::{Heartbeats, eventually, ms, retry_after, soon};

/// B83: a recorded Retry-After used to be confirmed but not saved, because another process held the domain by then.
#[tokio::test]
async fn a_record_after_losing_the_lease_reaches_the_new_holder() {
    let (disk, (clock, _)) = (DiskStore::new(), manual_clock());
    let a = disk.process(&rule(10), &clock).await;
    let permit = a.ask(&host()).await;
    let passed = PermitRef { id: permit.id(), granted_at: permit.started_at(), took: None };
    permit.lend(LEASE);
    // Others take the process for dead. It learns that when it saves.
    let other = disk.open();
    other.deregister(HolderId(1), clock.now()).await.unwrap();
    assert!(a.gate.holds(&host()), "it hasn't noticed yet");
    let answer = retry_after(Span::from_secs(120));
    let recorded = soon("a result", a.gate.record_passed(&host(), passed, &answer)).await.unwrap();
    assert!(recorded.server_until.is_some(), "{recorded:?}");
    let row = other.find_domain(host()).await.unwrap().unwrap();
    assert_eq!(row.kept.server.map(|(until, _)| until), recorded.server_until);
    assert!(row.epoch > 1 && row.holder.is_some(), "under another tenure: {row:?}");
}

/// B83: an operator's change that was not saved is not confirmed.
#[tokio::test]
async fn a_change_after_losing_the_lease_is_refused() {
    let (disk, (clock, _)) = (DiskStore::new(), manual_clock());
    let a = disk.process(&rule(10), &clock).await;
    a.send(&host()).await;
    disk.open().deregister(HolderId(1), clock.now()).await.unwrap();
    let until = Some(clock.now() + Span::from_secs(60));
    let paused = soon("a result", a.gate.with_pace(&host(), |pace, _, _| pace.pause(until))).await;
    assert!(matches!(paused, Err(GateError::Lost)), "{paused:?}");
    soon("a result", a.gate.with_pace(&host(), |pace, _, _| pace.pause(until))).await.unwrap();
    let row = a.store.find_domain(host()).await.unwrap().unwrap();
    assert_eq!(row.steering.paused_until, until);
}

/// B20, B37: a Retry-After used to get lost if the domain was taken while the request was in flight.
#[tokio::test]
async fn a_retry_after_received_after_losing_the_domain_reaches_the_new_holder() {
    let (disk, (stopped, stopped_control), (clock, control)) =
        (DiskStore::new(), manual_clock(), manual_clock());
    let (a, b) = (disk.process(&rule(10), &stopped).await, disk.process(&rule(10), &clock).await);
    let mut permit = a.ask(&host()).await;
    assert_eq!(permit.depart(), Departure::Go);
    // The first process is suspended for so long that it loses its domain.
    let (gate, there) = (b.gate.clone(), host());
    let taking = tokio::spawn(async move { gate.acquire(&there, Intent::Fetch).await.map(drop) });
    let heartbeats = Heartbeats::of(&b.gate);
    while !taking.is_finished() {
        heartbeats.advance(&control, ms(2_500)).await;
    }
    taking.await.unwrap().unwrap();
    stopped_control.advance(Span::from_secs(12));
    eventually("losing the domain", || !a.gate.holds(&host())).await;
    permit.record(&retry_after(Span::from_secs(120)));
    let heard = async {
        while a.store.find_domain(host()).await.unwrap().is_none_or(|row| row.kept.server.is_none()) {
            control.advance(ms(100));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    soon("the deadline", heard).await;
}
