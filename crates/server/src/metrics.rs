//! Prometheus metrics (B73). What the engine counts is read when somebody asks; what only the service knows is counted
//! here. Labels are words of ours, and the names of a few slowest domains: their number is bounded.

use std::sync::{Mutex, PoisonError};

use comity::core::decision::Decision;
use comity::core::outcome::Outcome;
use comity::core::task::JobState;
use comity::core::time::Span;
use comity::event::{Counted, Event, Listener};
use comity::gate::Survey;
use comity::store::jobs::Job;
use prometheus::core::Collector;
use prometheus::proto::MetricFamily;
use prometheus::{
    GaugeVec, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, TextEncoder,
};

/// What the service counts by itself.
#[derive(Debug)]
pub(crate) struct Metrics {
    decisions: IntCounterVec,
    waits: Histogram,
    fetches: Histogram,
    requests: IntCounterVec,
    store: Histogram,
    /// What was last read of the counters in the store: they do not begin anew while it is away.
    last: Mutex<Counted>,
    pub(crate) connections: IntGauge,
    pub(crate) connections_refused: IntCounter,
}

/// What is read when somebody asks.
pub(crate) struct Reading {
    /// By all processes on the store.
    pub(crate) counted: Counted,
    /// `None` while the store is away.
    pub(crate) survey: Option<Survey>,
    /// `None` when the store did not tell.
    pub(crate) jobs: Option<Vec<Job>>,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        Self {
            decisions: counters(
                "comity_decisions_total",
                "Decisions, by answer and by what binds.",
                &["answer", "reason"],
            ),
            waits: histogram(
                "comity_wait_seconds",
                "How long callers waited in line for their permit.",
                &WAITS,
            ),
            fetches: histogram(
                "comity_fetch_seconds",
                "How long requests took, as callers told.",
                &LATENCIES,
            ),
            requests: counters(
                "comity_http_requests_total",
                "Requests to this service.",
                &["route", "status"],
            ),
            store: histogram("comity_store_seconds", "How long the store took to answer a beat.", &LATENCIES),
            last: Mutex::default(),
            connections: gauge("comity_http_connections", "Connections to this service."),
            connections_refused: counter(
                "comity_http_connections_refused_total",
                "Connections beyond the limit.",
            ),
        }
    }

    pub(crate) fn decided(&self, decision: &Decision) {
        let answer = match decision {
            Decision::Proceed(_) => "proceed",
            Decision::Wait { .. } => "wait",
            Decision::Refuse(_) => "refuse",
        };
        let reason = decision.reason().map_or("none", |reason| reason.limit.as_str());
        self.decided_as(answer, reason);
    }

    pub(crate) fn decided_as(&self, answer: &str, reason: &str) {
        self.decisions.with_label_values(&[answer, reason]).inc();
    }

    pub(crate) fn waited(&self, wait: Span) {
        self.waits.observe(wait.as_secs_f64());
    }

    pub(crate) fn fetched(&self, took: Span) {
        self.fetches.observe(took.as_secs_f64());
    }

    pub(crate) fn answered(&self, route: &str, status: http::StatusCode) {
        self.requests.with_label_values(&[route, status.as_str()]).inc();
    }

    /// The counters of all processes as they were just read, or else as they last were.
    pub(crate) fn counted(&self, read: Option<&[(String, u64)]>) -> Counted {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(read) = read {
            *last = Counted::of_store(read);
        }
        *last
    }

    /// All of it, as text.
    pub(crate) fn render(&self, reading: &Reading) -> String {
        let mut families = Vec::new();
        let mut take = |collector: &dyn Collector| families.extend(collector.collect());
        for own in [&self.decisions, &self.requests] {
            take(own);
        }
        for own in [&self.waits, &self.fetches, &self.store] {
            take(own);
        }
        take(&self.connections);
        take(&self.connections_refused);
        families.extend(of_counted(&reading.counted));
        if let Some(survey) = &reading.survey {
            families.extend(of_survey(survey));
        }
        families.extend(reading.jobs.iter().flat_map(|jobs| of_jobs(jobs)));
        let up = gauge("comity_store_up", "Whether the store works.");
        up.set(i64::from(reading.survey.is_some() && reading.jobs.is_some()));
        families.extend(up.collect());
        let info = gauges("comity_build_info", "What runs here.", &["version"]);
        info.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        families.extend(info.collect());
        // A family without a sample has nothing to say.
        families.retain(|family: &MetricFamily| !family.get_metric().is_empty());
        families.sort_by(|a, b| a.name().cmp(b.name()));
        TextEncoder::new().encode_to_string(&families).unwrap_or_default()
    }
}

impl Listener for Metrics {
    fn hear(&self, event: &Event<'_>) {
        if let Event::Beat { took } = event {
            self.store.observe(took.as_secs_f64());
        }
    }
}

fn of_counted(counted: &Counted) -> Vec<MetricFamily> {
    let requests =
        self::counters("comity_requests_total", "Requests to sites, by what they came to.", &["outcome"]);
    let retries =
        self::counters("comity_retries_total", "Attempts followed by another, by why.", &["reason"]);
    for outcome in Outcome::ALL {
        requests.with_label_values(&[outcome.as_str()]).inc_by(counted.outcome(outcome));
        if outcome.is_penalty() {
            retries.with_label_values(&[outcome.as_str()]).inc_by(counted.retried(outcome));
        }
    }
    let mut families = requests.collect();
    families.extend(retries.collect());
    for (name, help, value) in [
        (
            "comity_rate_limited_total",
            "Answers that said \"too many requests\".",
            counted.outcome(Outcome::RateLimited),
        ),
        ("comity_grants_total", "Permits granted.", counted.other("granted")),
        (
            "comity_deferrals_total",
            "Scrapes put off because their source was scraped a short time ago.",
            counted.other("deferred"),
        ),
        ("comity_skips_total", "Tasks not to be fetched.", counted.other("skipped")),
        ("comity_cancellations_total", "Jobs cancelled.", counted.other("cancelled")),
        (
            "comity_concurrency_overrides_total",
            "Times that a learned delay lowered the concurrency of a job.",
            counted.other("overridden"),
        ),
        ("comity_handovers_total", "Domains handed to other processes.", counted.other("handed_over")),
        ("comity_store_errors_total", "Times that the store did not work.", counted.other("store_failed")),
    ] {
        let counter = counter(name, help);
        counter.inc_by(value);
        families.extend(counter.collect());
    }
    families
}

fn of_survey(survey: &Survey) -> Vec<MetricFamily> {
    let mut families = Vec::new();
    for (name, help, value) in [
        ("comity_domains", "Domains that this service decides for at the moment.", survey.domains),
        ("comity_in_flight", "Permits neither recorded nor expired.", survey.in_flight),
        ("comity_waiting", "Callers and tasks in line.", survey.waiting),
    ] {
        let gauge = gauge(name, help);
        gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        families.extend(gauge.collect());
    }
    let delay = by_domain("comity_domain_delay_seconds", "The time between requests of the slowest domains.");
    let backoff = by_domain("comity_domain_backoff_seconds", "How long the slowest domains still wait.");
    for slow in &survey.slowest {
        let set =
            |of: &GaugeVec, span: Span| of.with_label_values(&[slow.domain.as_str()]).set(span.as_secs_f64());
        set(&delay, slow.spacing);
        set(&backoff, slow.wait);
    }
    families.extend(delay.collect());
    families.extend(backoff.collect());
    families
}

fn of_jobs(jobs: &[Job]) -> Vec<MetricFamily> {
    let by_state = gauges("comity_jobs", "Jobs, by state.", &["state"]);
    for state in ["running", "stopped", "done", "failed", "cancelled"] {
        let count = jobs.iter().filter(|job| job.state_word() == state).count();
        by_state.with_label_values(&[state]).set(i64::try_from(count).unwrap_or(i64::MAX));
    }
    let waiting = gauge("comity_tasks_waiting", "Tasks of running and stopped jobs that are not settled.");
    let running = jobs.iter().filter(|job| job.state == JobState::Running);
    waiting.set(running.map(|job| i64::try_from(job.counts.waiting()).unwrap_or(i64::MAX)).sum());
    let mut families = by_state.collect();
    families.extend(waiting.collect());
    families
}

// Names and labels here are constants: making a metric of them cannot fail.

fn counters(name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
    IntCounterVec::new(Opts::new(name, help), labels).unwrap_or_else(|error| unreachable!("{name}: {error}"))
}

fn gauges(name: &str, help: &str, labels: &[&str]) -> IntGaugeVec {
    IntGaugeVec::new(Opts::new(name, help), labels).unwrap_or_else(|error| unreachable!("{name}: {error}"))
}

fn by_domain(name: &str, help: &str) -> GaugeVec {
    GaugeVec::new(Opts::new(name, help), &["domain"]).unwrap_or_else(|error| unreachable!("{name}: {error}"))
}

fn counter(name: &str, help: &str) -> IntCounter {
    IntCounter::new(name, help).unwrap_or_else(|error| unreachable!("{name}: {error}"))
}

fn gauge(name: &str, help: &str) -> IntGauge {
    IntGauge::new(name, help).unwrap_or_else(|error| unreachable!("{name}: {error}"))
}

fn histogram(name: &str, help: &str, buckets: &[f64]) -> Histogram {
    let options = HistogramOpts::new(name, help).buckets(buckets.to_vec());
    Histogram::with_opts(options).unwrap_or_else(|error| unreachable!("{name}: {error}"))
}

const WAITS: [f64; 12] = [0.001, 0.01, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0];
const LATENCIES: [f64; 11] = [0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0];
