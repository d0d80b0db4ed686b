//! Prometheus metrics. What the engine counts is read when `/metrics` is scraped; what only the service knows is
//! counted here. The number of series is bounded: label values are fixed words, routes, and the names of the few
//! slowest domains.

use std::sync::{Mutex, PoisonError};

use comity::core::decision::Decision;
use comity::core::outcome::Outcome;
use comity::core::task::JobState;
use comity::core::time::Span;
use comity::event::{CounterValues, Event, Listener};
use comity::gate::Overview;
use comity::store::jobs::Job;
use prometheus::core::Collector;
use prometheus::proto::MetricFamily;
use prometheus::{
    GaugeVec, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, TextEncoder,
};

/// The metrics that the service counts itself.
#[derive(Debug)]
pub(crate) struct Metrics {
    decisions: IntCounterVec,
    waits: Histogram,
    fetches: Histogram,
    requests: IntCounterVec,
    store: Histogram,
    /// The store's counters as last read. They are shown while the store is unavailable, so that counters never reset.
    last_counters: Mutex<CounterValues>,
    pub(crate) connections: IntGauge,
    pub(crate) connections_refused: IntCounter,
}

/// What is read from the engine and the store at each scrape.
pub(crate) struct Snapshot {
    /// The counters of all processes on the store.
    pub(crate) counters: CounterValues,
    /// `None` while the store is unavailable.
    pub(crate) overview: Option<Overview>,
    /// `None` if the store did not answer.
    pub(crate) jobs: Option<Vec<Job>>,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        Self {
            decisions: counters(
                "comity_decisions_total",
                "Decisions by answer and by the limit that caused a wait.",
                &["answer", "reason"],
            ),
            waits: histogram(
                "comity_wait_seconds",
                "Time that callers of acquire waited in line for a permit.",
                &WAITS,
            ),
            fetches: histogram(
                "comity_fetch_seconds",
                "Duration of requests to sites, as reported by callers (latency_ms).",
                &LATENCIES,
            ),
            requests: counters(
                "comity_http_requests_total",
                "HTTP requests to this service by route and status.",
                &["route", "status"],
            ),
            store: histogram(
                "comity_store_seconds",
                "Time the store took to answer a heartbeat.",
                &LATENCIES,
            ),
            last_counters: Mutex::default(),
            connections: gauge("comity_http_connections", "Open connections to this service."),
            connections_refused: counter(
                "comity_http_connections_refused_total",
                "Connections refused because serve.connections_max was reached.",
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

    /// The counters of all processes as just read, or as last read if the store did not answer.
    pub(crate) fn counters(&self, read: Option<&[(String, u64)]>) -> CounterValues {
        let mut last = self.last_counters.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(read) = read {
            *last = CounterValues::from_store(read);
        }
        *last
    }

    /// All metrics in the Prometheus text format.
    pub(crate) fn render(&self, snapshot: &Snapshot) -> String {
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
        families.extend(counter_families(&snapshot.counters));
        if let Some(overview) = &snapshot.overview {
            families.extend(overview_families(overview));
        }
        families.extend(snapshot.jobs.iter().flat_map(|jobs| job_families(jobs)));
        let up = gauge("comity_store_up", "1 if the store is available, 0 if not.");
        up.set(i64::from(snapshot.overview.is_some() && snapshot.jobs.is_some()));
        families.extend(up.collect());
        let info = gauges("comity_build_info", "The version of this service.", &["version"]);
        info.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        families.extend(info.collect());
        // Families without samples are left out.
        families.retain(|family: &MetricFamily| !family.get_metric().is_empty());
        families.sort_by(|a, b| a.name().cmp(b.name()));
        TextEncoder::new().encode_to_string(&families).unwrap_or_default()
    }
}

impl Listener for Metrics {
    fn on_event(&self, event: &Event<'_>) {
        if let Event::Heartbeat { took } = event {
            self.store.observe(took.as_secs_f64());
        }
    }
}

fn counter_families(counters: &CounterValues) -> Vec<MetricFamily> {
    let requests = self::counters("comity_requests_total", "Requests to sites by outcome.", &["outcome"]);
    let retries =
        self::counters("comity_retries_total", "Failed attempts that were retried, by outcome.", &["reason"]);
    for outcome in Outcome::ALL {
        requests.with_label_values(&[outcome.as_str()]).inc_by(counters.outcome(outcome));
        if outcome.is_penalty() {
            retries.with_label_values(&[outcome.as_str()]).inc_by(counters.retried(outcome));
        }
    }
    let mut families = requests.collect();
    families.extend(retries.collect());
    for (name, help, value) in [
        (
            "comity_rate_limited_total",
            "Responses that were rate limited (429).",
            counters.outcome(Outcome::RateLimited),
        ),
        ("comity_grants_total", "Permits granted.", counters.other("granted")),
        (
            "comity_deferrals_total",
            "Scrapes deferred because their source was scraped too recently.",
            counters.other("deferred"),
        ),
        ("comity_skips_total", "URLs of jobs that were skipped.", counters.other("skipped")),
        ("comity_cancellations_total", "Jobs cancelled.", counters.other("cancelled")),
        (
            "comity_concurrency_overrides_total",
            "How often a learned delay lowered the concurrency of a job.",
            counters.other("overridden"),
        ),
        ("comity_handovers_total", "Sites handed over to other processes.", counters.other("handed_over")),
        ("comity_store_errors_total", "How often the store failed.", counters.other("store_failed")),
    ] {
        let counter = counter(name, help);
        counter.inc_by(value);
        families.extend(counter.collect());
    }
    families
}

fn overview_families(overview: &Overview) -> Vec<MetricFamily> {
    let mut families = Vec::new();
    for (name, help, value) in [
        ("comity_domains", "Sites that this service is in charge of.", overview.domains),
        ("comity_in_flight", "Permits that are neither recorded nor expired.", overview.in_flight),
        ("comity_waiting", "Callers and URLs of jobs waiting in line.", overview.waiting),
    ] {
        let gauge = gauge(name, help);
        gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        families.extend(gauge.collect());
    }
    let delay =
        by_domain("comity_domain_delay_seconds", "Minimum time between requests, for the slowest sites.");
    let backoff = by_domain(
        "comity_domain_backoff_seconds",
        "Time until the next request may be sent, for the slowest sites.",
    );
    for slow in &overview.slowest {
        let set =
            |of: &GaugeVec, span: Span| of.with_label_values(&[slow.domain.as_str()]).set(span.as_secs_f64());
        set(&delay, slow.spacing);
        set(&backoff, slow.wait);
    }
    families.extend(delay.collect());
    families.extend(backoff.collect());
    families
}

fn job_families(jobs: &[Job]) -> Vec<MetricFamily> {
    let by_state = gauges("comity_jobs", "Jobs by state.", &["state"]);
    for state in ["running", "stopped", "done", "failed", "cancelled"] {
        let count = jobs.iter().filter(|job| job.state_word() == state).count();
        by_state.with_label_values(&[state]).set(i64::try_from(count).unwrap_or(i64::MAX));
    }
    let waiting = gauge("comity_tasks_waiting", "URLs of running and stopped jobs that are not finished.");
    let running = jobs.iter().filter(|job| job.state == JobState::Running);
    waiting.set(running.map(|job| i64::try_from(job.counts.waiting()).unwrap_or(i64::MAX)).sum());
    let mut families = by_state.collect();
    families.extend(waiting.collect());
    families
}

// Names and labels are constants here, so creating a metric can't fail.

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
