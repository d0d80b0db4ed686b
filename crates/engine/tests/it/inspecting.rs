//! Inspecting domains that other processes hold, without taking them.

use std::time::Duration;

use comity::gate::CloseMode;
use comity_core::intent::Intent;
use comity_core::time::Span;

use crate::shared_store::{DiskStore, host, manual_clock, rule};
use crate::support::{Heartbeats, domain, ms, soon};

/// B81: inspecting a domain used to make its holder hand it over.
#[tokio::test]
async fn inspecting_a_domain_does_not_take_it_from_its_holder() {
    let (disk, (clock, _)) = (DiskStore::new(), manual_clock());
    let (a, b) = (disk.process(&rule(60_000), &clock).await, disk.process(&rule(60_000), &clock).await);
    a.send(&host()).await;
    let before = b.store.find_domain(host()).await.unwrap().unwrap();
    let reason = soon("a view", b.gate.peek(&host(), Intent::Fetch)).await.unwrap();
    assert_eq!(reason.map(|reason| reason.wait_ms()), Some(60_000));
    let (reasons, as_of) = soon("a view", b.gate.explain_as_of(&host(), Intent::Fetch)).await.unwrap();
    assert!(reasons[0].binds() && as_of == Some(clock.now()), "{reasons:?} {as_of:?}");
    let seen = soon("a view", b.gate.inspector().unwrap().inspect(&host())).await.unwrap().unwrap();
    assert_eq!(seen.status(b.gate.rules(), clock.now()), a.gate.domain_status(&host()));
    assert_eq!(b.store.find_domain(host()).await.unwrap().unwrap(), before, "neither taken nor wanted");
    assert!(a.gate.holds(&host()) && !b.gate.holds(&host()));

    // A domain that nobody holds is not taken either.
    a.gate.close(CloseMode::HandOver).await.unwrap();
    let reason = soon("a view", b.gate.peek(&host(), Intent::Fetch)).await.unwrap();
    assert_eq!(reason.map(|reason| reason.wait_ms()), Some(60_000));
    let left = b.store.find_domain(host()).await.unwrap().unwrap();
    assert_eq!((left.holder, left.epoch, b.gate.holds(&host())), (None, before.epoch, false));
    let unknown = soon("a view", b.gate.peek(&domain("unknown.example"), Intent::Fetch)).await.unwrap();
    assert_eq!(unknown, None);
    assert_eq!(b.store.find_domain(domain("unknown.example")).await.unwrap(), None, "nor added");
}

/// B81: an unresponsive holder is not waited for. Only the saved limits are shown, without a time.
#[tokio::test]
async fn the_domain_of_an_unresponsive_holder_is_shown_without_a_time() {
    let (disk, (clock, _)) = (DiskStore::new(), manual_clock());
    let crashing = disk.crashing(&rule(60_000), &clock);
    crashing.process.send(&host()).await;
    let b = disk.process(&rule(60_000), &clock).await;
    // The process is alive but does nothing any more.
    crashing.runtime.shutdown_background();
    let (_, as_of) = soon("a view", b.gate.explain_as_of(&host(), Intent::Fetch)).await.unwrap();
    assert_eq!(as_of, None);
}

/// B81: the slowest domains are published with each heartbeat, at most a hundred.
#[tokio::test]
async fn the_slowest_domains_are_published() {
    let (disk, (clock, control)) = (DiskStore::new(), manual_clock());
    let slow = "[domains.\"slow.example\"]\nmin_delay = \"90s\"\n";
    let toml = format!("{}\n{slow}", rule(10));
    let (a, b) = (disk.process(&toml, &clock).await, disk.process(&toml, &clock).await);
    for nth in 0..110 {
        a.send(&domain(&format!("{nth}.example"))).await;
    }
    a.send(&domain("slow.example")).await;
    Heartbeats::of(&a.gate).advance(&control, ms(2_500)).await;
    let seen = async {
        loop {
            let overview = b.gate.overview_all(3).await;
            if let Some(slowest) = overview.slowest.first() {
                return (slowest.domain.clone(), slowest.spacing, overview.slowest.len());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    assert_eq!(soon("its published domains", seen).await, (domain("slow.example"), Span::from_secs(90), 3));
    let working = b.store.live_processes().await.unwrap();
    let counts: Vec<usize> = working.iter().filter_map(|one| Some(one.sights.as_array()?.len())).collect();
    assert_eq!(counts.iter().max(), Some(&100), "{counts:?}");
}
