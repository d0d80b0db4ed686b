//! Processes on one store whose machine slept, or whose wall clock was set, between their starts (B7). Waits are
//! measured with this machine's own time since boot.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use comity::clock::Clock;
use comity::event::Events;
use comity::gate::{CloseMode, Gate};
use comity::store::Store;
use comity::store::machine::{Machine, ThisMachine};
use comity::store::sqlite::Sqlite;
use comity_core::domain::Domain;
use comity_core::intent::Intent;
use comity_core::pace::Departure;
use comity_core::time::{Span, Timestamp};
use tempfile::TempDir;

use crate::support::{config, domain, ms, retry_after, soon, success};

/// This machine, as if it had slept and its wall clock had been set.
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

struct SkewedWorld {
    folder: TempDir,
    machine: Arc<Skewed>,
}

impl SkewedWorld {
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

/// Sends a request that is answered immediately. Returns when it was sent, as time since boot.
async fn send(gate: &Gate, host: &Domain, answer: &comity_core::outcome::Answer) -> Span {
    let mut permit = soon("a grant", gate.acquire(host, Intent::Fetch)).await.unwrap();
    assert_eq!(permit.depart(), Departure::Go);
    let left = ThisMachine.up();
    permit.record(answer);
    left
}

/// What happens between the starts of two processes: seconds of sleep, and seconds by which the clock is set.
const BETWEEN: [(u64, i64); 5] = [(8 * 3_600, 0), (0, 60), (0, -60), (0, 3_600), (0, -3_600)];

/// B7, B37: `serve` starts, the laptop sleeps, `fetch` starts; `serve` gets a Retry-After and hands over, and `fetch`
/// used to send immediately.
#[tokio::test]
async fn a_handover_keeps_deadlines_and_spacing_despite_sleep_and_clock_changes() {
    for (slept, set) in BETWEEN {
        let (world, host) = (SkewedWorld::new(), domain("a.example"));
        let serve = world.process("serve").await;
        send(&serve, &host, &success()).await;
        world.machine.slept.store(slept, Ordering::Relaxed);
        world.machine.set.store(set, Ordering::Relaxed);
        let fetch = world.process("fetch").await;
        let now = serve.clock().now();
        assert!(fetch.clock().now().since(now) < ms(60_000) && fetch.clock().now() >= now, "they agree");

        let closed = send(&serve, &host, &retry_after(ms(1_500))).await;
        let first = send(&fetch, &host, &success()).await;
        let waited = first.less(closed);
        assert!(waited >= ms(1_495), "slept {slept} s, set by {set} s: {waited}");
        let back = send(&serve, &host, &success()).await.less(first);
        assert!(back >= ms(295), "slept {slept} s, set by {set} s: {back}");
        for gate in [serve, fetch] {
            gate.close(CloseMode::Stop).await.unwrap();
        }
    }
}

/// B7, B37: the same across a clean stop: the next process finds the deadline where it was, and waits no longer.
#[tokio::test]
async fn deadlines_survive_a_clean_stop_despite_sleep_and_clock_changes() {
    for (slept, set) in &BETWEEN[1..] {
        let (world, host) = (SkewedWorld::new(), domain("a.example"));
        let serve = world.process("serve").await;
        let closed = send(&serve, &host, &retry_after(ms(1_500))).await;
        serve.close(CloseMode::Stop).await.unwrap();
        world.machine.slept.store(*slept, Ordering::Relaxed);
        world.machine.set.store(*set, Ordering::Relaxed);
        let fetch = world.process("fetch").await;
        let wall = world.machine.wall();
        let off = wall.since(fetch.clock().now()).max(fetch.clock().now().since(wall));
        assert!(off < ms(60_000), "alone, it uses the wall clock again: {off}");
        let waited = send(&fetch, &host, &success()).await.less(closed);
        // A wait of an hour would time out long before.
        assert!(waited >= ms(1_495), "slept {slept} s, set by {set} s: {waited}");
        fetch.close(CloseMode::Stop).await.unwrap();
    }
}

/// B7: a deadline that passes while the machine sleeps has passed.
#[tokio::test]
async fn a_deadline_can_pass_while_the_machine_sleeps() {
    let (world, host) = (SkewedWorld::new(), domain("a.example"));
    let gate = world.process("serve").await;
    let closed = send(&gate, &host, &retry_after(Span::from_secs(3_600))).await;
    let machine = world.machine.clone();
    let asleep = async move {
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        machine.slept.store(8 * 3_600, Ordering::Relaxed);
    };
    let answer = success();
    let (left, ()) = tokio::join!(send(&gate, &host, &answer), asleep);
    let waited = left.less(closed);
    assert!(waited < Span::from_secs(600), "{waited}");
    gate.close(CloseMode::Stop).await.unwrap();
}
