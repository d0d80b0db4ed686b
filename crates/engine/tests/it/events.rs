//! Log lines: their levels, and that they contain no secrets.

use std::cell::RefCell;
use std::fmt::Write;
use std::sync::{Arc, Mutex, Once};

use comity::clock::Clock;
use comity::event::{CounterValues, Events};
use comity::gate::{CloseMode, Gate};
use comity::limiter::{Limits, RateLimiter};
use comity_core::intent::Intent;
use comity_core::outcome::Outcome;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::client::QUICK;
use crate::jobs::Worker;
use crate::support::{Site, a_moment, at, config, domain, manual_gate, ms, reply, retry_after, success};

/// The lines logged by this thread.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<(Level, String)>>>);

/// One subscriber for the whole binary, because tracing caches globally whether a line is wanted.
struct GlobalSubscriber;

thread_local! {
    static HERE: RefCell<Option<Lines>> = const { RefCell::new(None) };
}

impl Lines {
    /// Captures what this thread logs from now on.
    fn keep() -> Self {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| tracing::subscriber::set_global_default(GlobalSubscriber).unwrap());
        let lines = Self::default();
        HERE.with(|here| *here.borrow_mut() = Some(lines.clone()));
        lines
    }

    fn with(&self, level: Level, part: &str) -> Vec<String> {
        let lines = self.0.lock().unwrap();
        lines
            .iter()
            .filter(|(of, line)| *of == level && line.contains(part))
            .map(|(_, line)| line.clone())
            .collect()
    }

    fn all(&self) -> String {
        self.0.lock().unwrap().iter().map(|(level, line)| format!("{level} {line}\n")).collect()
    }
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let _ = write!(self.0, "{}={value:?} ", field.name());
    }
}

impl Subscriber for GlobalSubscriber {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("comity")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let Some(lines) = HERE.with(|here| here.borrow().clone()) else { return };
        let mut line = Line(String::new());
        event.record(&mut line);
        lines.0.lock().unwrap().push((*event.metadata().level(), line.0));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// B72
#[tokio::test]
async fn backoffs_are_warnings_delay_changes_are_info_and_waits_are_debug() {
    let lines = Lines::keep();
    let (gate, control) = manual_gate("profile = \"crawler\"\n");
    let host = domain("a.example");
    let permit = gate.acquire(&host, Intent::Fetch).await.unwrap();
    permit.record(&Outcome::RateLimited.into());
    let [backoff] = &lines.with(Level::WARN, "backing off")[..] else { panic!("{}", lines.all()) };
    assert!(backoff.contains("a.example") && backoff.contains("rate_limited"), "{backoff}");
    let [change] = &lines.with(Level::INFO, "delay changed")[..] else { panic!("{}", lines.all()) };
    for part in ["a.example", "old=0s", "new=1.5s", "success_streak=0", "error_streak=1"] {
        assert!(change.contains(part), "{part}: {change}");
    }
    let (theirs, there) = (gate.clone(), host.clone());
    let waits =
        tokio::spawn(async move { theirs.acquire(&there, Intent::Fetch).await.unwrap().record(&success()) });
    a_moment().await;
    assert!(!lines.with(Level::DEBUG, "a.example").is_empty(), "{}", lines.all());
    assert!(
        lines.with(Level::DEBUG, "waiting").iter().any(|line| line.contains("a.example")),
        "{}",
        lines.all()
    );
    control.advance(ms(2_000));
    waits.await.unwrap();
    assert_eq!(lines.with(Level::WARN, "").len(), 1, "a success logs no warning: {}", lines.all());
}

/// B21, B72
#[tokio::test]
async fn a_retry_after_that_is_too_long_is_logged() {
    let lines = Lines::keep();
    let (gate, _control) = manual_gate("[default]\nretry_after_max = \"1h\"\n");
    let permit = gate.acquire(&domain("a.example"), Intent::Fetch).await.unwrap();
    permit.record(&retry_after(ms(7_200_000)));
    assert_eq!(lines.with(Level::WARN, "longer than allowed").len(), 1, "{}", lines.all());
}

/// B13, B72
#[test]
fn the_rate_limiter_warns_only_when_it_backs_off() {
    let lines = Lines::keep();
    RateLimiter::with(Limits { backoff_base: ms(1), ..Limits::default() }).unwrap().backoff(0);
    assert_eq!(lines.with(Level::WARN, "backing off").len(), 1, "{}", lines.all());
    RateLimiter::disabled().backoff(0);
    assert_eq!(lines.with(Level::WARN, "backing off").len(), 1, "a no-op does nothing: {}", lines.all());
}

/// B72, B75
#[tokio::test]
async fn a_job_logs_its_retries_and_no_secrets() {
    let lines = Lines::keep();
    let site = Site::start(|asked| reply(if asked.before == 0 { 503 } else { 404 })).await;
    let worker = Worker::start(QUICK).await;
    let url = format!("http://user:hunter2@127.0.0.1:{}/page?token=s3cret", site.port);
    worker.fetch(&[url]).await;
    assert_eq!(lines.with(Level::INFO, "will retry").len(), 1, "{}", lines.all());
    assert_eq!(lines.with(Level::WARN, "backing off").len(), 1, "{}", lines.all());
    let all = lines.all();
    assert!(!all.contains("hunter2") && !all.contains("s3cret"), "{all}");
}

/// B73: counts that the store did not take used to get lost.
#[tokio::test]
async fn counts_that_the_store_did_not_take_are_added_next_time() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("comity.db");
    let store = comity::store::open(&format!("sqlite:{}", file.display())).unwrap();
    let (clock, _control) = Clock::manual(at(0));
    let (rules, events) = (config("").rules().clone(), Events::new());
    let open = || Gate::with_store(rules.clone(), clock.clone(), events.clone(), store.clone(), "a test");
    let gate = open().await.unwrap();
    let permit = gate.acquire(&domain("a.example"), Intent::Fetch).await.unwrap();
    let sql = rusqlite::Connection::open(&file).unwrap();
    sql.execute_batch("ALTER TABLE counts RENAME TO elsewhere").unwrap();
    permit.record(&Outcome::RateLimited.into());
    assert!(gate.close(CloseMode::Stop).await.is_err());
    sql.execute_batch("ALTER TABLE elsewhere RENAME TO counts").unwrap();
    open().await.unwrap().close(CloseMode::Stop).await.unwrap();
    let counted = CounterValues::from_store(&store.counts().await.unwrap());
    assert_eq!((counted.outcome(Outcome::RateLimited), counted.other("granted")), (1, 1));
}
