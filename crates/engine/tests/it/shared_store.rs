//! Gates that share a store: domains are handed over with their paces, and survive stops and crashes.

use std::sync::Arc;
use std::time::Duration;

use comity::clock::{Clock, ClockControl};
use comity::event::{Event, Events, Listener};
use comity::gate::{CloseMode, Gate, GateError, Permit};
use comity::store::Store;
use comity_core::decision::Limit;
use comity_core::domain::Domain;
use comity_core::intent::Intent;
use comity_core::outcome::Outcome;
use comity_core::pace::{Departure, LEASE, PermitRef, Pinned};
use comity_core::time::{Span, Timestamp};
use tempfile::TempDir;

use crate::support::{Heartbeats, a_moment, at, config, domain, eventually, ms, retry_after, soon, success};

/// A store on disk that several processes open.
pub(crate) struct DiskStore(TempDir);

/// One process on the store.
pub(crate) struct Process {
    pub(crate) gate: Gate,
    pub(crate) store: Arc<dyn Store>,
}

pub(crate) struct CrashingProcess {
    pub(crate) process: Process,
    pub(crate) runtime: tokio::runtime::Runtime,
}

impl CrashingProcess {
    /// Ends the process without cleanup.
    async fn crash(self) {
        self.runtime.shutdown_background();
        let Process { gate, store } = self.process;
        drop(gate);
        eventually("its end", || Arc::strong_count(&store) == 1).await;
    }
}

impl DiskStore {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) async fn process(&self, toml: &str, clock: &Clock) -> Process {
        let store = self.open();
        let rules = config(toml).rules().clone();
        let gate =
            Gate::with_store(rules, clock.clone(), Events::new(), store.clone(), "a test").await.unwrap();
        Process { gate, store }
    }

    /// A process that will crash, with a runtime of its own.
    pub(crate) fn crashing(&self, toml: &str, clock: &Clock) -> CrashingProcess {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let process = std::thread::scope(|scope| {
            scope.spawn(|| runtime.block_on(self.process(toml, clock))).join().unwrap()
        });
        CrashingProcess { process, runtime }
    }

    pub(crate) fn open(&self) -> Arc<dyn Store> {
        comity::store::open(&format!("sqlite:{}", self.0.path().join("comity.db").display())).unwrap()
    }
}

impl Process {
    pub(crate) async fn ask(&self, host: &Domain) -> Permit {
        soon("a grant", self.gate.acquire(host, Intent::Fetch)).await.unwrap()
    }

    /// Sends a request that succeeds immediately. Returns when it started.
    pub(crate) async fn send(&self, host: &Domain) -> Timestamp {
        let mut permit = self.ask(host).await;
        assert_eq!(permit.depart(), Departure::Go);
        let started_at = permit.started_at();
        permit.record(&success());
        started_at
    }

    async fn learned(&self, host: &Domain) -> Span {
        soon("a view", self.gate.with_pace(host, |pace, _, _| pace.learned().delay())).await.unwrap()
    }
}

pub(crate) fn rule(delay: u64) -> String {
    format!("[default]\nmin_delay = \"{delay}ms\"\nlearning = \"off\"\nin_flight = \"unlimited\"\n")
}

pub(crate) fn host() -> Domain {
    domain("a.example")
}

/// A manual clock, so that nothing is saved just because time passes.
pub(crate) fn manual_clock() -> (Clock, ClockControl) {
    Clock::manual(at(0))
}

/// B9
#[tokio::test]
async fn a_wanted_domain_is_handed_over_within_a_second_and_keeps_its_spacing() {
    let (disk, clock) = (DiskStore::new(), Clock::new());
    let (a, b) = (disk.process(&rule(400), &clock).await, disk.process(&rule(400), &clock).await);
    let first = a.send(&host()).await;
    let asked_at = clock.now();
    let second = b.send(&host()).await;
    assert!(second.since(first) >= ms(400), "the pace was handed over: {}", second.since(first));
    // Within a second on an idle machine; this checks that it doesn't take until the lease ends.
    assert!(clock.now().since(asked_at) < Span::from_secs(30), "{}", clock.now().since(asked_at));
    let third = a.send(&host()).await;
    assert!(third.since(second) >= ms(400));
}

/// B3, B9
#[tokio::test]
async fn two_processes_that_take_turns_never_break_the_spacing() {
    let (disk, clock) = (DiskStore::new(), Clock::new());
    let (a, b) = (disk.process(&rule(20), &clock).await, disk.process(&rule(20), &clock).await);
    let ask = async |process: &Process| {
        let mut starts = Vec::new();
        for _ in 0..50 {
            starts.push(process.send(&host()).await);
        }
        starts
    };
    let (mut starts, more) = tokio::join!(ask(&a), ask(&b));
    starts.extend(more);
    starts.sort();
    let least = starts.windows(2).map(|two| two[1].since(two[0])).min().unwrap();
    assert!(least >= ms(20), "{least}");
    assert_eq!(starts.len(), 100);
}

/// B37, E11
#[tokio::test]
async fn backoffs_survive_a_handover_but_not_a_stop() {
    let toml = rule(10) + "wait_on_429 = \"60s\"\n";
    for (mode, held) in [(CloseMode::HandOver, true), (CloseMode::Stop, false)] {
        let (disk, clock) = (DiskStore::new(), Clock::new());
        let a = disk.process(&toml, &clock).await;
        let recorded = a.ask(&host()).await.record(&Outcome::RateLimited.into());
        a.gate.close(mode).await.unwrap();
        let b = disk.process(&toml, &clock).await;
        let reasons = b.gate.explain(&host(), Intent::Fetch).await.unwrap();
        let binding = reasons.iter().find(|reason| reason.limit == Limit::WaitOn429 && reason.binds());
        assert_eq!(binding.map(|reason| reason.until), recorded.held_until.filter(|_| held), "{mode:?}");
    }
}

/// B37: a process that wants a domain gets its backoff with it.
#[tokio::test]
async fn a_backoff_is_handed_over_with_the_domain() {
    let (disk, clock) = (DiskStore::new(), Clock::new());
    let toml = rule(10) + "wait_on_429 = \"1500ms\"\n";
    let (a, b) = (disk.process(&toml, &clock).await, disk.process(&toml, &clock).await);
    let recorded = a.ask(&host()).await.record(&Outcome::RateLimited.into());
    let started_at = b.send(&host()).await;
    assert!(started_at >= recorded.held_until.unwrap());
}

/// B35, B36
#[tokio::test]
async fn the_learned_delay_survives_a_restart() {
    let (disk, clock) = (DiskStore::new(), Clock::new());
    let a = disk.process("profile = \"crawler\"\n", &clock).await;
    a.ask(&host()).await.record(&Outcome::RateLimited.into());
    assert_eq!(a.learned(&host()).await, ms(1_500));
    a.gate.close(CloseMode::Stop).await.unwrap();
    let row = a.store.find_domain(host()).await.unwrap().unwrap();
    assert_eq!(row.kept.delay, ms(1_500));
    let b = disk.process("profile = \"crawler\"\n", &clock).await;
    assert_eq!(b.learned(&host()).await, ms(1_500));
}

/// B35: the row is updated within seconds, while the process keeps running.
#[tokio::test]
async fn the_learned_delay_is_saved_within_seconds() {
    let (disk, clock) = (DiskStore::new(), Clock::new());
    let a = disk.process("profile = \"crawler\"\n", &clock).await;
    a.ask(&host()).await.record(&Outcome::RateLimited.into());
    let kept = async {
        while disk.open().find_domain(host()).await.unwrap().is_none_or(|row| row.kept.delay != ms(1_500)) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    soon("the learned delay is in the store", kept).await;
}

/// B37
#[tokio::test]
async fn a_retry_after_deadline_is_saved_before_the_next_grant() {
    let (disk, (clock, control)) = (DiskStore::new(), manual_clock());
    let a = disk.process(&rule(10), &clock).await;
    for round in 1..=10 {
        let recorded = a.ask(&host()).await.record(&retry_after(ms(500)));
        // The deadline has passed before anything was saved; the next grant still waits for the save.
        control.advance(ms(1_000));
        drop(a.ask(&host()).await);
        let kept = a.store.find_domain(host()).await.unwrap().unwrap().kept.server;
        assert_eq!(kept.map(|(until, _)| until), recorded.server_until, "round {round}");
        control.advance(ms(1_000));
    }
}

/// B78, B80: permits that a service lent are not forgotten when it is killed, and end with their leases.
#[tokio::test]
async fn lent_permits_survive_a_crash_until_their_leases_end() {
    let rule = "[default]\nmin_delay = \"1s\"\nlearning = \"off\"\nin_flight = 2\n";
    let disk = DiskStore::new();
    let (clock, control) = manual_clock();
    let crashing = disk.crashing(rule, &clock);
    let mut passed = Vec::new();
    for lease in [ms(60_000), ms(300_000)] {
        let permit = crashing.process.ask(&host()).await;
        passed.push(PermitRef { id: permit.id(), granted_at: permit.started_at(), took: None });
        soon("saving it", permit.persist(lease)).await.unwrap();
        permit.lend(lease);
        control.advance(ms(1_000));
    }
    let third = crashing.process.gate.check(&host(), Intent::Fetch).await.unwrap().0;
    assert_eq!(third.reason().unwrap().limit.as_str(), "lease");
    crashing.crash().await;
    let heir = disk.process(rule, &clock).await;
    let heartbeats = Heartbeats::of(&heir.gate);
    let told = |wait: u64| format!("lease {wait}");
    let check = async |now: i64| {
        let (decision, _) = soon("a check", heir.gate.check(&host(), Intent::Fetch)).await.unwrap();
        decision.reason().map(|reason| format!("{} {}", reason.limit.as_str(), decision.wait_ms(at(now))))
    };
    heartbeats.advance(&control, ms(4_000)).await;
    assert_eq!(check(6_000).await, Some(told(54_000)), "two are in flight, which is the limit");
    // Recording one with the new holder makes room immediately.
    soon("a record", heir.gate.record_passed(&host(), passed[1], &success())).await.unwrap();
    heartbeats.advance(&control, ms(2_000)).await;
    assert_eq!(check(8_000).await, None);
    // A recorded permit does not come back after the next crash.
    eventually("the row is gone", || rows(&disk) == 1).await;
}

/// B78: without a limit on requests in flight, permits are not saved.
#[tokio::test]
async fn permits_of_a_domain_without_an_in_flight_limit_are_not_saved() {
    let (disk, clock) = (DiskStore::new(), Clock::new());
    let process = disk.process(&rule(10), &clock).await;
    let permit = process.ask(&host()).await;
    soon("saving it", permit.persist(LEASE)).await.unwrap();
    permit.lend(LEASE);
    assert_eq!(rows(&disk), 0);
}

/// The number of permits in the store.
fn rows(disk: &DiskStore) -> u32 {
    let sql = rusqlite::Connection::open(disk.0.path().join("comity.db")).unwrap();
    sql.query_row("SELECT count(*) FROM permits", [], |row| row.get(0)).unwrap()
}

/// B37, E11: a deadline survives a kill, with or without a permit.
#[tokio::test]
async fn a_retry_after_deadline_survives_a_crash() {
    for with_permit in [true, false] {
        let (disk, (clock, control)) = (DiskStore::new(), manual_clock());
        let crashing = disk.crashing(&rule(10), &clock);
        let (a, answer) = (&crashing.process, retry_after(Span::from_secs(120)));
        // Other changes are saved once a second. The clock stands still, so nothing is due by time.
        drop(a.ask(&host()).await);
        tokio::time::sleep(Duration::from_millis(100)).await;
        control.advance(ms(10));
        if with_permit {
            a.ask(&host()).await.record(&answer);
        } else {
            a.gate.record_unasked(&host(), Intent::Fetch, &answer).await.unwrap();
        }
        // Urgent changes don't wait for time to pass.
        let saved = async {
            while disk.open().find_domain(host()).await.unwrap().is_none_or(|row| row.kept.server.is_none()) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        soon("the deadline is in the store", saved).await;
        crashing.crash().await;
        control.advance(ms(5_000));
        let b = disk.process(&rule(10), &clock).await;
        let reasons = soon("a view", b.gate.explain(&host(), Intent::Fetch)).await.unwrap();
        let server = reasons.iter().find(|reason| reason.limit == Limit::RetryAfter);
        assert_eq!(server.map(|reason| reason.until), Some(at(120_010)), "with a permit: {with_permit}");
    }
}

/// B77
#[tokio::test]
async fn after_a_crash_the_next_holder_waits_as_if_a_request_had_just_left() {
    let (disk, clock) = (DiskStore::new(), Clock::new());
    let crashing = disk.crashing(&rule(600), &clock);
    crashing.process.send(&host()).await;
    crashing.crash().await;
    tokio::time::sleep(Duration::from_millis(700)).await;
    let b = disk.process(&rule(600), &clock).await;
    let asked_at = clock.now();
    let started_at = b.send(&host()).await;
    assert!(started_at.since(asked_at) >= ms(600), "{}", started_at.since(asked_at));
}

/// An unused gate is dropped together with what it holds: its timer and its upkeep don't keep it alive.
#[tokio::test]
async fn an_unused_gate_is_dropped() {
    let (disk, clock) = (DiskStore::new(), Clock::new());
    let process = disk.process(&rule(10), &clock).await;
    process.send(&host()).await;
    // Let its threads start working.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let Process { gate, store } = process;
    drop(gate);
    eventually("its end", || Arc::strong_count(&store) == 1).await;
}

/// B39
#[tokio::test]
async fn operator_settings_survive_a_stop_and_a_crash() {
    let (disk, clock, host) = (DiskStore::new(), Clock::new(), host());
    let crawler = "profile = \"crawler\"\n";
    let until = clock.now() + Span::from_hours(1);
    let process = disk.process(crawler, &clock).await;
    let steered = process.gate.with_pace(&host, |pace, terms, now| {
        pace.set_learned(terms, Span::from_secs(7), Span::ZERO, now);
        pace.pin(Pinned::Yes);
        pace.pause(Some(until));
    });
    steered.await.unwrap();
    process.gate.close(CloseMode::Stop).await.unwrap();
    let look = async |process: &Process| {
        let look = process.gate.with_pace(&host, |pace, _, _| {
            (pace.learned().delay(), pace.learned().pinned(), pace.paused_until())
        });
        soon("a view", look).await.unwrap()
    };
    let crashing = disk.crashing(crawler, &clock);
    assert_eq!(look(&crashing.process).await, (Span::from_secs(7), true, Some(until)), "after a stop");
    crashing.crash().await;
    let process = disk.process(crawler, &clock).await;
    assert_eq!(look(&process).await, (Span::from_secs(7), true, Some(until)), "after a crash");
}

/// Both waiting and new callers learn that the gate was closed.
#[tokio::test]
async fn a_closed_gate_is_an_error_for_waiting_and_new_callers() {
    let (disk, clock) = (DiskStore::new(), Clock::new());
    let a = disk.process(&rule(60_000), &clock).await;
    a.send(&host()).await;
    let (gate, there) = (a.gate.clone(), host());
    let waiting = tokio::spawn(async move { gate.acquire(&there, Intent::Fetch).await.map(drop) });
    a_moment().await;
    a.gate.close(CloseMode::Stop).await.unwrap();
    let later = soon("a new caller", a.gate.acquire(&host(), Intent::Fetch)).await.map(drop);
    assert!(matches!(later, Err(GateError::Closed)), "a new caller: {later:?}");
    let waited = soon("a waiting caller", waiting).await.unwrap();
    assert!(matches!(waited, Err(GateError::Closed)), "a waiting caller: {waited:?}");
}

/// B9, B77: a process that missed its heartbeats decides nothing, not even for a check.
#[tokio::test]
async fn a_holder_whose_lease_ended_grants_nothing() {
    let (disk, (clock, control)) = (DiskStore::new(), manual_clock());
    let a = disk.process(&rule(10), &clock).await;
    let mut permit = a.ask(&host()).await;
    control.advance(Span::from_secs(30));
    // Nothing ran in between, so it sent no heartbeat, and others may hold its domains.
    assert!(matches!(permit.depart(), Departure::Wait { .. }));
    assert!(!soon("the end", permit.depart_within(Span::from_secs(60))).await, "whatever its patience");
    let (decision, _) = a.gate.check(&host(), Intent::Fetch).await.unwrap();
    assert!(!decision.proceeds(), "{decision:?}");
}

/// B11, B78: a request that takes minutes does not block its domain for good.
#[tokio::test]
async fn a_domain_continues_after_a_long_request() {
    let (disk, (clock, control)) = (DiskStore::new(), manual_clock());
    let toml = rule(10).replace("\"unlimited\"", "1");
    let a = disk.process(&toml, &clock).await;
    let permit = a.ask(&host()).await;
    let heartbeats = Heartbeats::of(&a.gate);
    for _ in 0..16 {
        heartbeats.advance(&control, Span::from_secs(5)).await;
    }
    let (gate, there) = (a.gate.clone(), host());
    let next = tokio::spawn(async move { gate.acquire(&there, Intent::Fetch).await.map(drop) });
    a_moment().await;
    permit.record(&success());
    let gone = async {
        while !next.is_finished() {
            heartbeats.advance(&control, ms(2_500)).await;
        }
    };
    soon("the waiting request", gone).await;
}

/// After a panic in upkeep (in a listener) there were no heartbeats any more, and callers used to wait forever.
#[tokio::test]
async fn a_panic_in_upkeep_counts_as_a_store_failure() {
    struct Clumsy;

    impl Listener for Clumsy {
        fn on_event(&self, event: &Event<'_>) {
            assert!(!matches!(event, Event::Heartbeat { .. }), "a listener that panics");
        }
    }

    let (disk, events) = (DiskStore::new(), Events::new());
    events.listen(Arc::new(Clumsy));
    let rules = config("").rules().clone();
    let gate = Gate::with_store(rules, Clock::new(), events, disk.open(), "a test").await.unwrap();
    soon("the failure", gate.until_store_fails()).await;
    let asked = soon("a result", gate.acquire(&host(), Intent::Fetch)).await;
    assert!(matches!(asked, Err(GateError::Store(_))), "{asked:?}");
}
