//! The first page: what doesn't move and why, trouble first; then how much moves, and who moves it.

use std::collections::BTreeMap;

use askama::Template;
use axum::extract::State;
use axum::response::Response;
use comity::core::outcome::Outcome;
use comity::core::time::{Span, Timestamp};
use comity::status::{HeldBack, Status, Work};
use comity::store::activity::TrafficPoint;
use comity::store::jobs::JobTally;
use comity::store::sources::Source;

use super::chart::{self, Axis, Column, Columns};
use super::guard::{Values, Viewer};
use super::page::{Failure, Section, Shell, show, state};
use super::text::{self, count, counted};
use crate::service::Service;
use crate::state::ServingState;

#[derive(Template)]
#[template(path = "overview.html")]
struct OverviewPage {
    shell: Shell,
    lead: String,
    trouble: Vec<Trouble>,
    figures: Vec<Figure>,
    waits: Vec<Wait>,
    /// The sites with the longest waits.
    longest: Vec<HeldBack>,
    traffic: TrafficChart,
    processes: Vec<Process>,
    windows: [(&'static str, &'static str, bool); 3],
    is_new: bool,
}

/// Something that needs attention.
struct Trouble {
    what: String,
    why: String,
    path: String,
}

/// A number at the top.
struct Figure {
    name: &'static str,
    value: String,
    unit: &'static str,
    note: String,
}

/// Sites that wait for the same reason.
struct Wait {
    reason: String,
    origin: &'static str,
    sites: String,
    urls: String,
    meter: String,
}

/// Requests over time.
struct TrafficChart {
    svg: String,
    axis: Axis,
    times: Vec<String>,
    rows: Vec<TrafficRow>,
    summary: String,
    is_empty: bool,
}

struct TrafficRow {
    at: String,
    answered: u64,
    rate_limited: u64,
    failed: u64,
}

/// A process on the store.
struct Process {
    name: String,
    since: Timestamp,
    status: Option<Status>,
    meter: String,
    rate: String,
    left: String,
    progress: String,
    job: Option<String>,
}

/// The page.
pub(super) async fn page(
    State(service): State<Service>,
    viewer: Viewer,
    values: Values,
) -> Result<Response, Failure> {
    let state = state(&service)?;
    let shell = Shell::new(&service, viewer, Section::Overview, "Overview").every(1_000).noticing(&values);
    let now = state.gate.clock().now();
    let window = WINDOWS.iter().find(|(name, ..)| *name == values.get("over")).unwrap_or(&WINDOWS[0]);
    let (_, _, length, every) = *window;
    let points = state.store.traffic(now - length, every).await?;
    let recent = state.store.traffic(now - MINUTE, comity::store::activity::TRAFFIC_INTERVAL).await?;
    let tally = state.store.tally_jobs().await?;
    let processes = processes(&state).await?;
    let sources = state.store.list_sources().await?;
    let waits = waits(&processes);
    let longest = longest(&processes);
    let trouble = trouble(&state, &sources, &processes, now).await?;
    let traffic = traffic(&points, now - length, now, every);
    let is_new = tally == JobTally::default() && sources.is_empty() && traffic.is_empty && waits.is_empty();
    let page = OverviewPage {
        lead: lead(&waits, &longest),
        figures: figures(&recent, &points, &processes, tally),
        trouble,
        waits: waits.into_iter().map(Wait::of).collect(),
        longest,
        traffic,
        processes,
        windows: WINDOWS.map(|(name, text, length_of, _)| (name, text, length_of == length)),
        is_new,
        shell,
    };
    show(&page)
}

/// Sites and URLs that wait for one reason, over all processes.
struct Waiting {
    reason: String,
    origin: String,
    sites: u64,
    urls: u64,
    of: u64,
}

fn waits(processes: &[Process]) -> Vec<Waiting> {
    let mut groups: BTreeMap<(String, String), (u64, u64)> = BTreeMap::new();
    for group in processes.iter().filter_map(|one| one.status.as_ref()).flat_map(|status| &status.waits) {
        let sum = groups.entry((group.reason.clone(), group.origin.clone())).or_default();
        sum.0 += group.sites;
        sum.1 += group.in_line;
    }
    let of = groups.values().map(|(sites, _)| sites).sum();
    let group = |((reason, origin), (sites, urls))| Waiting { reason, origin, sites, urls, of };
    let mut groups: Vec<Waiting> = groups.into_iter().map(group).collect();
    groups.sort_by_key(|group| std::cmp::Reverse((group.sites, group.urls)));
    groups
}

impl Wait {
    fn of(waiting: Waiting) -> Self {
        let Waiting { reason, origin, sites, urls, of } = waiting;
        Self {
            meter: chart::meter(&[(sites, "f-wait")], of),
            reason: super::page::sentence(reason_text(&reason)).trim_end_matches('.').to_owned(),
            origin: origin_text(&origin),
            sites: counted(sites, "site", "sites"),
            urls: count(urls),
        }
    }
}

/// A limit in words, by its name in JSON.
pub(super) fn reason_text(limit: &str) -> &str {
    match limit {
        "retry_after" => "the server asked to wait (Retry-After)",
        "quota_spent" => "the server's quota is used up",
        "quota" => "the server's quota is spread evenly",
        "crawl_delay" => "robots.txt asks for a delay",
        "min_delay" => "the minimum delay between two requests",
        "requests_per_second" => "the limit on requests per second",
        "burst" => "the burst is used up",
        "intent_min_delay" => "the minimum delay for this intent",
        "intent_burst" => "the burst for this intent is used up",
        "backoff" => "backing off after failures",
        "wait_on_429" => "waiting after a 429",
        "in_flight" => "a request is in flight",
        "lease" => "a permit has not been recorded",
        "learned" => "the learned delay",
        "learned_hold" => "the learned delay after a 429",
        "paused" => "paused by an operator",
        "line" => "others are ahead in line",
        "changing_hands" => "moving to another process",
        "saving" => "waiting for the store to save",
        "store_unavailable" => "the store is unavailable",
        other => other,
    }
}

/// Who set a limit, in words.
pub(super) fn origin_text(origin: &str) -> &'static str {
    match origin {
        "server" => "the server",
        "robots" => "robots.txt",
        "rule" => "your rules",
        "learned" => "what Comity learned",
        "operator" => "an operator",
        "line" => "others in line",
        "store" => "the store",
        _ => "the service",
    }
}

fn longest(processes: &[Process]) -> Vec<HeldBack> {
    let held =
        processes.iter().filter_map(|one| one.status.as_ref()).flat_map(|status| status.held_back.clone());
    let mut held: Vec<HeldBack> = held.collect();
    held.sort_by(|a, b| (b.until_us, &a.domain).cmp(&(a.until_us, &b.domain)));
    held.truncate(LONGEST_MAX);
    held
}

/// The answer to the question with which people come here.
fn lead(waits: &[Waiting], longest: &[HeldBack]) -> String {
    let sites: u64 = waits.iter().map(|wait| wait.sites).sum();
    let Some(first) = waits.first() else {
        return "Nothing is waiting: every request that was asked for may be sent.".to_owned();
    };
    let until =
        longest.first().map(|held| format!(" The longest wait is for {}.", held.domain)).unwrap_or_default();
    let (sites, verb) = (counted(sites, "site", "sites"), if sites == 1 { "waits" } else { "wait" });
    let most = if waits.len() == 1 { "The reason" } else { "The most frequent reason" };
    format!("{sites} {verb}. {most}: {}.{until}", reason_text(&first.reason))
}

async fn processes(state: &ServingState) -> Result<Vec<Process>, Failure> {
    let live = state.store.live_processes().await?;
    let mut processes = Vec::new();
    for one in live {
        let status: Option<Status> = one.status.and_then(|(json, _)| serde_json::from_value(json).ok());
        let work = status.as_ref().and_then(|status| status.work.clone());
        let (meter, rate, left, progress) = work.as_ref().map(progress).unwrap_or_default();
        // Runs and archives have names, too.
        let job = match work {
            Some(work) => state.store.find_job(work.name).await?.map(|job| job.name),
            None => None,
        };
        let (name, since) = (one.name, one.since);
        processes.push(Process { name, since, status, meter, rate, left, progress, job });
    }
    Ok(processes)
}

/// The progress of a piece of work: a bar, the rate, the time that is left, and numbers.
pub(super) fn progress(work: &Work) -> (String, String, String, String) {
    let whole = work.all.unwrap_or(work.done).max(work.done);
    let fetched = work.done.saturating_sub(work.failed + work.skipped);
    let meter = chart::meter(&[(fetched, "f-go"), (work.failed, "f-stop"), (work.skipped, "f-mute")], whole);
    let rate = work.rate.map(|rate| format!("{}/s", text::rate(rate))).unwrap_or_default();
    let left = work.left_ms.map(|ms| {
        let most = if work.left_is_most { "at most " } else { "" };
        format!("{most}{} left", Span::from_millis(ms).countdown())
    });
    let of = work.all.map_or_else(String::new, |all| format!(" of {}", count(all)));
    (meter, rate, left.unwrap_or_default(), format!("{}{of} {}", count(work.done), work.unit))
}

/// Failing sources, sites that refuse, a store that is slow.
async fn trouble(
    state: &ServingState,
    sources: &[Source],
    processes: &[Process],
    now: Timestamp,
) -> Result<Vec<Trouble>, Failure> {
    let mut trouble = Vec::new();
    let slow = processes.iter().filter_map(|one| Some((one, one.status.as_ref()?.store_ms?)));
    if let Some((one, ms)) = slow.max_by_key(|(_, ms)| *ms).filter(|(_, ms)| *ms >= SLOW_MS) {
        trouble.push(Trouble {
            what: "The store is slow".to_owned(),
            why: format!("it took {} to answer {}", Span::from_millis(ms).prose(), one.name),
            path: String::new(),
        });
    }
    for site in state.gate.trouble(TROUBLE_MAX as u32).await? {
        let why = match site.until.filter(|until| *until > now) {
            Some(until) => format!("{}; closed for {}", site.why, until.since(now).prose()),
            None => site.why,
        };
        trouble.push(Trouble { path: super::sites::path(&site.domain), what: site.domain, why });
    }
    let failing = sources.iter().filter(|source| source.enabled && source.failures > 0);
    for source in failing.clone().take(TROUBLE_MAX) {
        let times = counted(u64::from(source.failures), "time", "times");
        let why = source.error.clone().unwrap_or_else(|| "no reason was saved".to_owned());
        trouble.push(Trouble {
            what: source.name.clone(),
            why: format!("source failed {times}: {why}"),
            path: "/sources".to_owned(),
        });
    }
    if failing.clone().count() > TROUBLE_MAX {
        trouble.push(Trouble {
            what: counted((failing.count() - TROUBLE_MAX) as u64, "more source fails", "more sources fail"),
            why: "see Sources".to_owned(),
            path: "/sources".to_owned(),
        });
    }
    Ok(trouble)
}

fn figures(
    recent: &[TrafficPoint],
    points: &[TrafficPoint],
    processes: &[Process],
    tally: JobTally,
) -> Vec<Figure> {
    let requests: u64 = recent.iter().map(|point| point.traffic.requests()).sum();
    let all: u64 = points.iter().map(|point| point.traffic.requests()).sum();
    let limited: u64 = points.iter().map(|point| point.traffic.outcome(Outcome::RateLimited)).sum();
    let status = || processes.iter().filter_map(|one| one.status.as_ref());
    let in_line: usize = status().map(|status| status.in_line).sum();
    let in_flight: usize = status().map(|status| status.in_flight).sum();
    let sites: usize = status().map(|status| status.domains).sum();
    vec![
        Figure {
            name: "Requests",
            value: text::rate(requests as f64 / MINUTE.as_secs_f64()),
            unit: "/s",
            note: "in the last minute".to_owned(),
        },
        Figure {
            name: "Rate limited (429)",
            value: text::percent(limited, all),
            unit: "",
            note: format!("{} of {}", count(limited), counted(all, "request", "requests")),
        },
        Figure {
            name: "Waiting in line",
            value: count(in_line as u64),
            unit: "",
            note: format!("{} in flight", count(in_flight as u64)),
        },
        Figure {
            name: "Active sites",
            value: count(sites as u64),
            unit: "",
            note: format!("in {}", counted(processes.len() as u64, "process", "processes")),
        },
        Figure {
            name: "Jobs running",
            value: count(tally.running),
            unit: "",
            note: format!("{} stopped, {} done", count(tally.stopped), count(tally.done)),
        },
    ]
}

fn traffic(points: &[TrafficPoint], from: Timestamp, until: Timestamp, every: Span) -> TrafficChart {
    let failed = [
        Outcome::Blocked,
        Outcome::Unavailable,
        Outcome::ServerError,
        Outcome::Timeout,
        Outcome::NetworkError,
    ];
    let row = |point: &TrafficPoint| {
        let traffic = &point.traffic;
        TrafficRow {
            at: text::clock(point.from),
            answered: traffic.outcome(Outcome::Success) + traffic.outcome(Outcome::Answered),
            rate_limited: traffic.outcome(Outcome::RateLimited),
            failed: failed.iter().map(|outcome| traffic.outcome(*outcome)).sum(),
        }
    };
    let rows: Vec<TrafficRow> = points.iter().map(row).collect();
    let columns = points.iter().zip(&rows).map(|(point, row)| Column {
        from: point.from.max(from),
        parts: [row.answered, row.rate_limited, row.failed],
    });
    let columns = Columns { from, until, every, columns: columns.collect() };
    let sum = |of: fn(&TrafficRow) -> u64| rows.iter().map(of).sum::<u64>();
    let (answered, limited, failed) =
        (sum(|row| row.answered), sum(|row| row.rate_limited), sum(|row| row.failed));
    let summary = format!(
        "{} in the last {}: {} answered, {} rate limited (429), {} failed",
        counted(answered + limited + failed, "request", "requests"),
        until.since(from).prose(),
        count(answered),
        count(limited),
        count(failed)
    );
    TrafficChart {
        svg: columns.svg(&summary),
        axis: columns.axis(),
        times: chart::times(from, until),
        is_empty: rows.is_empty(),
        summary,
        rows,
    }
}

/// What can be looked at: its name in the address, its text, how long it is, and the interval of a column.
const WINDOWS: [(&str, &str, Span, Span); 3] = [
    ("10m", "10 minutes", Span::from_secs(600), Span::from_secs(10)),
    ("3h", "3 hours", Span::from_secs(3 * 3_600), Span::from_secs(180)),
    ("24h", "24 hours", Span::from_secs(24 * 3_600), Span::from_secs(1_200)),
];
const MINUTE: Span = Span::from_secs(60);
/// A store that takes this long to answer is slow.
const SLOW_MS: u64 = 500;
const TROUBLE_MAX: usize = 5;
const LONGEST_MAX: usize = 8;
