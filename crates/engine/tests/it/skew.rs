//! Processes of one store whose machine slept, or whose wall clocks were set, between their starts (B7). Waits are
//! measured by this machine's own time since boot.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use comity::clock::Clock;
use comity::event::Events;
use comity::gate::{Gate, HandsOff};
use comity::store::Store;
use comity::store::machine::{Machine, ThisMachine};
use comity::store::sqlite::Sqlite;
use comity_core::domain::Domain;
use comity_core::intent::Intent;
use comity_core::pace::Departure;
use comity_core::time::{Span, Timestamp};
use tempfile::TempDir;

use crate::support::{config, domain, ms, retry_after, soon, success};

/// This machine, but that it slept, and that somebody set its wall clock.
#[derive(Debug, Default)]
struct Skewed {
    slept: AtomicU64,
    set: AtomicI64,
}

impl Machine for Skewed {
    fn boot(&self) -> String {
        ThisMachine.boot()
    }

    fn up(&self) -> Span {
        ThisMachine.up() + Span::from_secs(self.slept.load(Ordering::Relaxed))
    }

    fn wall(&self) -> Timestamp {
        let wall = ThisMachine.wall() + Span::from_secs(self.slept.load(Ordering::Relaxed));
        Timestamp::from_micros(wall.as_micros() + self.set.load(Ordering::Relaxed) * 1_000_000)
    }
}

struct Place {
    folder: TempDir,
    machine: Arc<Skewed>,
}

impl Place {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), machine: Arc::default() }
    }

    async fn process(&self, name: &str) -> Gate {
        let store = Sqlite::open(self.folder.path().join("comity.db")).unwrap().on(self.machine.clone());
        let store: Arc<dyn Store> = Arc::new(store);
        let rules = config("[default]\nmin_delay = \"300ms\"\nlearning = \"off\"\n").rules().clone();
        let clock = Clock::on(self.machine.clone());
        Gate::with_store(rules, clock, Events::new(), store, name).await.unwrap()
    }
}

/// Sends a request that is answered at once; when it left, by this machine.
async fn send(gate: &Gate, host: &Domain, answer: &comity_core::outcome::Answer) -> Span {
    let mut permit = soon("a grant", gate.acquire(host, Intent::Fetch)).await.unwrap();
    assert_eq!(permit.depart(), Departure::Go);
    let left = ThisMachine.up();
    permit.record(answer);
    left
}

/// What happens between the starts of two processes: so many seconds of sleep, and so many by which the clock is set.
const BETWEEN: [(u64, i64); 5] = [(8 * 3_600, 0), (0, 60), (0, -60), (0, 3_600), (0, -3_600)];

/// B7, B37: `serve` starts, the laptop sleeps, `fetch` starts; `serve` hears of a deadline and hands over, and `fetch`
/// sent at once.
#[tokio::test]
async fn a_hand_over_keeps_deadline_and_spacing_whatever_happened_between_the_starts() {
    for (slept, set) in BETWEEN {
        let (place, host) = (Place::new(), domain("a.example"));
        let serve = place.process("serve").await;
        send(&serve, &host, &success()).await;
        place.machine.slept.store(slept, Ordering::Relaxed);
        place.machine.set.store(set, Ordering::Relaxed);
        let fetch = place.process("fetch").await;
        let now = serve.clock().now();
        assert!(fetch.clock().now().since(now) < ms(60_000) && fetch.clock().now() >= now, "they agree");

        let closed = send(&serve, &host, &retry_after(ms(1_500))).await;
        let first = send(&fetch, &host, &success()).await;
        let waited = first.less(closed);
        assert!(waited >= ms(1_495), "slept {slept} s, set by {set} s: {waited}");
        let back = send(&serve, &host, &success()).await.less(first);
        assert!(back >= ms(295), "slept {slept} s, set by {set} s: {back}");
        for gate in [serve, fetch] {
            gate.close(HandsOff::Stop).await.unwrap();
        }
    }
}

/// B7, B37: the same over a clean stop: the next process finds the deadline where it was, and waits no longer.
#[tokio::test]
async fn a_clean_stop_keeps_deadlines_whatever_happened_until_the_next_start() {
    for (slept, set) in &BETWEEN[1..] {
        let (place, host) = (Place::new(), domain("a.example"));
        let serve = place.process("serve").await;
        let closed = send(&serve, &host, &retry_after(ms(1_500))).await;
        serve.close(HandsOff::Stop).await.unwrap();
        place.machine.slept.store(*slept, Ordering::Relaxed);
        place.machine.set.store(*set, Ordering::Relaxed);
        let fetch = place.process("fetch").await;
        let wall = place.machine.wall();
        let off = wall.since(fetch.clock().now()).max(fetch.clock().now().since(wall));
        assert!(off < ms(60_000), "alone, it goes by the wall clock again: {off}");
        let waited = send(&fetch, &host, &success()).await.less(closed);
        // Whoever waits for an hour is given up on long before.
        assert!(waited >= ms(1_495), "slept {slept} s, set by {set} s: {waited}");
        fetch.close(HandsOff::Stop).await.unwrap();
    }
}

/// B7: a deadline that passed while the machine slept has passed.
#[tokio::test]
async fn a_sleeper_waits_no_longer_than_the_machine_slept() {
    let (place, host) = (Place::new(), domain("a.example"));
    let gate = place.process("serve").await;
    let closed = send(&gate, &host, &retry_after(Span::from_secs(3_600))).await;
    let machine = place.machine.clone();
    let asleep = async move {
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        machine.slept.store(8 * 3_600, Ordering::Relaxed);
    };
    let answer = success();
    let (left, ()) = tokio::join!(send(&gate, &host, &answer), asleep);
    let waited = left.less(closed);
    assert!(waited < Span::from_secs(600), "{waited}");
    gate.close(HandsOff::Stop).await.unwrap();
}
