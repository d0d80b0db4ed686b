//! Gates that share a store: a domain goes from one to the other, and its pace goes with it.

use std::sync::Arc;
use std::time::Duration;

use comity::clock::{Clock, Hands};
use comity::event::{Event, Events, Listener};
use comity::gate::{Gate, GateError, HandsOff, Permit};
use comity::store::Store;
use comity_core::decision::Limit;
use comity_core::domain::Domain;
use comity_core::intent::Intent;
use comity_core::outcome::Outcome;
use comity_core::pace::{Departure, LEASE, Passed, Pinned};
use comity_core::time::{Span, Timestamp};
use tempfile::TempDir;

use crate::support::{Beats, a_moment, at, config, domain, eventually, ms, retry_after, soon, success};

/// A store on disk that several processes open.
pub(crate) struct Place(TempDir);

/// One of them.
pub(crate) struct Process {
    pub(crate) gate: Gate,
    pub(crate) store: Arc<dyn Store>,
}

pub(crate) struct Doomed {
    pub(crate) process: Process,
    pub(crate) runtime: tokio::runtime::Runtime,
}

impl Doomed {
    /// Ends it without a word.
    async fn die(self) {
        self.runtime.shutdown_background();
        let Process { gate, store } = self.process;
        drop(gate);
        eventually("its end", || Arc::strong_count(&store) == 1).await;
    }
}

impl Place {
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

    /// A process that will die: what keeps it going is its own.
    pub(crate) fn doomed(&self, toml: &str, clock: &Clock) -> Doomed {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let process = std::thread::scope(|scope| {
            scope.spawn(|| runtime.block_on(self.process(toml, clock))).join().unwrap()
        });
        Doomed { process, runtime }
    }

    pub(crate) fn open(&self) -> Arc<dyn Store> {
        comity::store::open(&format!("sqlite:{}", self.0.path().join("comity.db").display())).unwrap()
    }
}

impl Process {
    pub(crate) async fn ask(&self, host: &Domain) -> Permit {
        soon("a grant", self.gate.acquire(host, Intent::Fetch)).await.unwrap()
    }

    /// Sends a request and is answered at once; when it started.
    pub(crate) async fn send(&self, host: &Domain) -> Timestamp {
        let mut permit = self.ask(host).await;
        assert_eq!(permit.depart(), Departure::Go);
        let started_at = permit.started_at();
        permit.record(&success());
        started_at
    }

    async fn learned(&self, host: &Domain) -> Span {
        soon("a look", self.gate.with_pace(host, |pace, _, _| pace.learned().delay())).await.unwrap()
    }
}

pub(crate) fn rule(delay: u64) -> String {
    format!("[default]\nmin_delay = \"{delay}ms\"\nlearning = \"off\"\nin_flight = \"unlimited\"\n")
}

pub(crate) fn host() -> Domain {
    domain("a.example")
}

/// A clock moved by hand, so that nothing is saved because time went by.
pub(crate) fn by_hand() -> (Clock, Hands) {
    Clock::manual(at(0))
}

/// B9
#[tokio::test]
async fn a_wanted_domain_changes_hands_within_a_second_and_keeps_its_spacing() {
    let (place, clock) = (Place::new(), Clock::new());
    let (a, b) = (place.process(&rule(400), &clock).await, place.process(&rule(400), &clock).await);
    let first = a.send(&host()).await;
    let asked_at = clock.now();
    let second = b.send(&host()).await;
    assert!(second.since(first) >= ms(400), "the pace went with it: {}", second.since(first));
    // Within a second, on a machine with nothing else to do; not when its time ends, or never.
    assert!(clock.now().since(asked_at) < Span::from_secs(30), "{}", clock.now().since(asked_at));
    let third = a.send(&host()).await;
    assert!(third.since(second) >= ms(400));
}

/// B3, B9
#[tokio::test]
async fn two_processes_that_take_turns_never_break_the_spacing() {
    let (place, clock) = (Place::new(), Clock::new());
    let (a, b) = (place.process(&rule(20), &clock).await, place.process(&rule(20), &clock).await);
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
async fn guesses_go_to_whoever_lives_and_end_with_a_stop() {
    let toml = rule(10) + "wait_on_429 = \"60s\"\n";
    for (hands_off, held) in [(HandsOff::Pass, true), (HandsOff::Stop, false)] {
        let (place, clock) = (Place::new(), Clock::new());
        let a = place.process(&toml, &clock).await;
        let recorded = a.ask(&host()).await.record(&Outcome::RateLimited.into());
        a.gate.close(hands_off).await.unwrap();
        let b = place.process(&toml, &clock).await;
        let reasons = b.gate.explain(&host(), Intent::Fetch).await.unwrap();
        let binding = reasons.iter().find(|reason| reason.limit == Limit::WaitOn429 && reason.binds());
        assert_eq!(binding.map(|reason| reason.until), recorded.held_until.filter(|_| held), "{hands_off:?}");
    }
}

/// B37: whoever wants a domain gets the guesses with it.
#[tokio::test]
async fn a_guess_is_passed_over_with_the_domain() {
    let (place, clock) = (Place::new(), Clock::new());
    let toml = rule(10) + "wait_on_429 = \"1500ms\"\n";
    let (a, b) = (place.process(&toml, &clock).await, place.process(&toml, &clock).await);
    let recorded = a.ask(&host()).await.record(&Outcome::RateLimited.into());
    let started_at = b.send(&host()).await;
    assert!(started_at >= recorded.held_until.unwrap());
}

/// B35, B36
#[tokio::test]
async fn what_was_learnt_is_kept() {
    let (place, clock) = (Place::new(), Clock::new());
    let a = place.process("profile = \"crawler\"\n", &clock).await;
    a.ask(&host()).await.record(&Outcome::RateLimited.into());
    assert_eq!(a.learned(&host()).await, ms(1_500));
    a.gate.close(HandsOff::Stop).await.unwrap();
    let row = a.store.find_domain(host()).await.unwrap().unwrap();
    assert_eq!(row.kept.delay, ms(1_500));
    let b = place.process("profile = \"crawler\"\n", &clock).await;
    assert_eq!(b.learned(&host()).await, ms(1_500));
}

/// B35: it is in the row within seconds, without anybody stopping.
#[tokio::test]
async fn what_was_learnt_reaches_the_store_soon() {
    let (place, clock) = (Place::new(), Clock::new());
    let a = place.process("profile = \"crawler\"\n", &clock).await;
    a.ask(&host()).await.record(&Outcome::RateLimited.into());
    let kept = async {
        while place.open().find_domain(host()).await.unwrap().is_none_or(|row| row.kept.delay != ms(1_500)) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    soon("what was learnt is in the store", kept).await;
}

/// B37
#[tokio::test]
async fn the_servers_deadline_is_in_the_store_before_the_next_grant() {
    let (place, (clock, hands)) = (Place::new(), by_hand());
    let a = place.process(&rule(10), &clock).await;
    for round in 1..=10 {
        let recorded = a.ask(&host()).await.record(&retry_after(ms(500)));
        // Its time has passed before anything was saved: the next grant comes after that all the same.
        hands.advance(ms(1_000));
        drop(a.ask(&host()).await);
        let kept = a.store.find_domain(host()).await.unwrap().unwrap().kept.server;
        assert_eq!(kept.map(|(until, _)| until), recorded.server_until, "round {round}");
        hands.advance(ms(1_000));
    }
}

/// B78, B80: permits that a service had given out are not forgotten when it is killed, and end with their leases.
#[tokio::test]
async fn permits_that_were_given_out_survive_a_death_until_their_leases_end() {
    let rule = "[default]\nmin_delay = \"1s\"\nlearning = \"off\"\nin_flight = 2\n";
    let place = Place::new();
    let (clock, hands) = by_hand();
    let doomed = place.doomed(rule, &clock);
    let mut passed = Vec::new();
    for lease in [ms(60_000), ms(300_000)] {
        let permit = doomed.process.ask(&host()).await;
        passed.push(Passed { id: permit.id(), granted_at: permit.started_at(), took: None });
        soon("keeping it", permit.keep(lease)).await.unwrap();
        permit.lend(lease);
        hands.advance(ms(1_000));
    }
    let third = doomed.process.gate.check(&host(), Intent::Fetch).await.unwrap().0;
    assert_eq!(third.reason().unwrap().limit.as_str(), "lease");
    doomed.die().await;
    let heir = place.process(rule, &clock).await;
    let beats = Beats::of(&heir.gate);
    let told = |wait: u64| format!("lease {wait}");
    let check = async |now: i64| {
        let (decision, _) = soon("a check", heir.gate.check(&host(), Intent::Fetch)).await.unwrap();
        decision.reason().map(|reason| format!("{} {}", reason.limit.as_str(), decision.wait_ms(at(now))))
    };
    beats.advance(&hands, ms(4_000)).await;
    assert_eq!(check(6_000).await, Some(told(54_000)), "two are on the wire, which is all that is allowed");
    // Recorded at whoever holds the domain now, it makes room at once.
    soon("a record", heir.gate.record_passed(&host(), passed[1], &success())).await.unwrap();
    beats.advance(&hands, ms(2_000)).await;
    assert_eq!(check(8_000).await, None);
    // And what was recorded does not come back with the next death.
    eventually("the row is gone", || rows(&place) == 1).await;
}

/// B78: where any number may be in flight, nothing is written for it.
#[tokio::test]
async fn permits_of_a_domain_without_a_limit_are_not_kept() {
    let (place, clock) = (Place::new(), Clock::new());
    let process = place.process(&rule(10), &clock).await;
    let permit = process.ask(&host()).await;
    soon("keeping it", permit.keep(LEASE)).await.unwrap();
    permit.lend(LEASE);
    assert_eq!(rows(&place), 0);
}

/// The permits that a store knows of.
fn rows(place: &Place) -> u32 {
    let sql = rusqlite::Connection::open(place.0.path().join("comity.db")).unwrap();
    sql.query_row("SELECT count(*) FROM permits", [], |row| row.get(0)).unwrap()
}

/// B37, E11: a deadline survives a kill, whoever told of it.
#[tokio::test]
async fn the_servers_deadline_survives_a_death() {
    for with_permit in [true, false] {
        let (place, (clock, hands)) = (Place::new(), by_hand());
        let doomed = place.doomed(&rule(10), &clock);
        let (a, answer) = (&doomed.process, retry_after(Span::from_secs(120)));
        // What was changed before is saved once a second; the clock stands still, so nothing is due by time.
        drop(a.ask(&host()).await);
        tokio::time::sleep(Duration::from_millis(100)).await;
        hands.advance(ms(10));
        if with_permit {
            a.ask(&host()).await.record(&answer);
        } else {
            a.gate.record_unasked(&host(), Intent::Fetch, &answer).await.unwrap();
        }
        // What is urgent does not wait for time to go by.
        let saved = async {
            while place.open().find_domain(host()).await.unwrap().is_none_or(|row| row.kept.server.is_none())
            {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        soon("the deadline is in the store", saved).await;
        doomed.die().await;
        hands.advance(ms(5_000));
        let b = place.process(&rule(10), &clock).await;
        let reasons = soon("a look", b.gate.explain(&host(), Intent::Fetch)).await.unwrap();
        let server = reasons.iter().find(|reason| reason.limit == Limit::RetryAfter);
        assert_eq!(server.map(|reason| reason.until), Some(at(120_010)), "with a permit: {with_permit}");
    }
}

/// B77
#[tokio::test]
async fn after_a_death_the_next_one_waits_as_if_it_had_just_sent() {
    let (place, clock) = (Place::new(), Clock::new());
    let doomed = place.doomed(&rule(600), &clock);
    doomed.process.send(&host()).await;
    doomed.die().await;
    tokio::time::sleep(Duration::from_millis(700)).await;
    let b = place.process(&rule(600), &clock).await;
    let asked_at = clock.now();
    let started_at = b.send(&host()).await;
    assert!(started_at.since(asked_at) >= ms(600), "{}", started_at.since(asked_at));
}

/// A gate that nobody has any more ends, and with it what it holds: its timer and its upkeep keep nothing alive.
#[tokio::test]
async fn a_gate_that_nobody_has_ends() {
    let (place, clock) = (Place::new(), Clock::new());
    let process = place.process(&rule(10), &clock).await;
    process.send(&host()).await;
    // Its threads have begun their work.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let Process { gate, store } = process;
    drop(gate);
    eventually("its end", || Arc::strong_count(&store) == 1).await;
}

/// B39
#[tokio::test]
async fn an_operators_word_survives_a_stop_and_a_death() {
    let (place, clock, host) = (Place::new(), Clock::new(), host());
    let crawler = "profile = \"crawler\"\n";
    let until = clock.now() + Span::from_hours(1);
    let process = place.process(crawler, &clock).await;
    let steered = process.gate.with_pace(&host, |pace, terms, now| {
        pace.set_learned(terms, Span::from_secs(7), Span::ZERO, now);
        pace.pin(Pinned::Yes);
        pace.pause(Some(until));
    });
    steered.await.unwrap();
    process.gate.close(HandsOff::Stop).await.unwrap();
    let look = async |process: &Process| {
        let look = process.gate.with_pace(&host, |pace, _, _| {
            (pace.learned().delay(), pace.learned().pinned(), pace.paused_until())
        });
        soon("a look", look).await.unwrap()
    };
    let doomed = place.doomed(crawler, &clock);
    assert_eq!(look(&doomed.process).await, (Span::from_secs(7), true, Some(until)), "after a stop");
    doomed.die().await;
    let process = place.process(crawler, &clock).await;
    assert_eq!(look(&process).await, (Span::from_secs(7), true, Some(until)), "after a death");
}

/// A gate that was closed says so, to those who wait and to those who come.
#[tokio::test]
async fn a_closed_gate_says_so() {
    let (place, clock) = (Place::new(), Clock::new());
    let a = place.process(&rule(60_000), &clock).await;
    a.send(&host()).await;
    let (gate, there) = (a.gate.clone(), host());
    let waiting = tokio::spawn(async move { gate.acquire(&there, Intent::Fetch).await.map(drop) });
    a_moment().await;
    a.gate.close(HandsOff::Stop).await.unwrap();
    let later = soon("who comes later", a.gate.acquire(&host(), Intent::Fetch)).await.map(drop);
    assert!(matches!(later, Err(GateError::Closed)), "who comes later hears it: {later:?}");
    let waited = soon("who waits", waiting).await.unwrap();
    assert!(matches!(waited, Err(GateError::Closed)), "who waits hears it: {waited:?}");
}

/// B9, B77: whoever was silent for too long decides nothing, not even when it is only asked.
#[tokio::test]
async fn a_holder_whose_time_ran_out_grants_nothing() {
    let (place, (clock, hands)) = (Place::new(), by_hand());
    let a = place.process(&rule(10), &clock).await;
    let mut permit = a.ask(&host()).await;
    hands.advance(Span::from_secs(30));
    // Nothing ran in between: it could not beat, and others may have its domains.
    assert!(matches!(permit.depart(), Departure::Wait { .. }));
    assert!(!soon("the end", permit.departs(Span::from_secs(60))).await, "however patient it is");
    let (decision, _) = a.gate.check(&host(), Intent::Fetch).await.unwrap();
    assert!(!decision.proceeds(), "{decision:?}");
}

/// B11, B78: a request that takes minutes does not close its domain for good.
#[tokio::test]
async fn a_domain_whose_request_takes_long_goes_on_after_it() {
    let (place, (clock, hands)) = (Place::new(), by_hand());
    let toml = rule(10).replace("\"unlimited\"", "1");
    let a = place.process(&toml, &clock).await;
    let permit = a.ask(&host()).await;
    let beats = Beats::of(&a.gate);
    for _ in 0..16 {
        beats.advance(&hands, Span::from_secs(5)).await;
    }
    let (gate, there) = (a.gate.clone(), host());
    let next = tokio::spawn(async move { gate.acquire(&there, Intent::Fetch).await.map(drop) });
    a_moment().await;
    permit.record(&success());
    let gone = async {
        while !next.is_finished() {
            beats.advance(&hands, ms(2_500)).await;
        }
    };
    soon("whoever waited for it", gone).await;
}

/// Upkeep that panicked, in a listener, kept nobody's time any more, and who waited for a domain waited for ever.
#[tokio::test]
async fn upkeep_that_panics_is_a_store_that_fails() {
    struct Clumsy;

    impl Listener for Clumsy {
        fn hear(&self, event: &Event<'_>) {
            assert!(!matches!(event, Event::Beat { .. }), "a listener that panics");
        }
    }

    let (place, events) = (Place::new(), Events::new());
    events.listen(Arc::new(Clumsy));
    let rules = config("").rules().clone();
    let gate = Gate::with_store(rules, Clock::new(), events, place.open(), "a test").await.unwrap();
    soon("the failure", gate.until_store_fails()).await;
    let asked = soon("an answer", gate.acquire(&host(), Intent::Fetch)).await;
    assert!(matches!(asked, Err(GateError::Store(_))), "{asked:?}");
}
