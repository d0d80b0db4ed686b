//! One site: why the next request waits, until when and who said so; what happened in the last hours; which rule applies.

use askama::Template;
use axum::extract::State;
use axum::response::Response;
use comity::config::RuleOrigins;
use comity::core::decision::{Limit, Reason};
use comity::core::intent::Intent;
use comity::core::time::{Span, Timestamp};
use comity::gate::{DomainStatus, Timeline};
use comity::store::activity::Sample;

use super::chart::{self, Axis, Column, Columns, Steps};
use super::guard::{Values, Viewer};
use super::page::{Failure, Section, Shell, sentence, show, state};
use super::rules::{RuleView, place};
use super::sites::{outcome_class, outcome_text};
use super::text::{self, count};
use crate::api::{Path, domain};
use crate::service::Service;

#[derive(Template)]
#[template(path = "site.html")]
struct SitePage {
    shell: Shell,
    domain: String,
    path: String,
    is_known: bool,
    paused_until: Option<Timestamp>,
    pinned: bool,
    lead: String,
    until: Option<Timestamp>,
    as_of: Option<Timestamp>,
    says: Vec<Said>,
    facts: Vec<(&'static str, String)>,
    history: Option<History>,
    attempts: Vec<Attempt>,
    rule: RuleView,
}

/// A constraint, as people read it.
struct Said {
    state: String,
    class: &'static str,
    text: String,
    from: String,
}

struct Attempt {
    at: Timestamp,
    class: &'static str,
    outcome: String,
    waited: String,
    delay: String,
}

/// The last hours as charts.
struct History {
    requests: String,
    requests_axis: Axis,
    requests_summary: String,
    delay: String,
    delay_axis: Axis,
    delay_summary: String,
    times: Vec<String>,
    rows: Vec<HistoryRow>,
}

struct HistoryRow {
    from: String,
    requests: u64,
    rate_limited: u64,
    failed: u64,
    closed: String,
    learned: String,
}

/// The page.
pub(super) async fn page(
    State(service): State<Service>,
    viewer: Viewer,
    Path(name): Path<String>,
    values: Values,
) -> Result<Response, Failure> {
    let host = domain(&name)?;
    let state = state(&service)?;
    let site = state.gate.rules().domain(&host);
    state.load_crawl_delay(&host).await;
    let (reasons, as_of) = state.gate.explain_as_of(&host, Intent::Fetch).await?;
    let now = state.gate.clock().now();
    let row = state.store.find_domain(site.clone()).await?;
    let (is_known, holder) = (row.is_some(), row.as_ref().and_then(|row| row.holder.clone()));
    let status = match state.gate.domain_status(&site) {
        Some(status) => Some(status),
        None => match (state.gate.inspector(), row) {
            (Some(inspector), Some(row)) => {
                let seen = inspector.inspect_rows(vec![row]).await?;
                seen.first().and_then(|seen| seen.status(state.gate.rules(), now))
            }
            _ => None,
        },
    };
    let Timeline { attempts, samples } = state.gate.timeline(&host).await?;
    let waiting = state.store.waiting_for(site.clone(), WAITING_MAX).await?;
    let origins = state.config.explain_rule(&host);
    let binding = reasons.iter().find(|reason| reason.binds());
    let paused_until = status.as_ref().and_then(|status| status.paused_until).filter(|until| *until > now);
    let attempts = attempts.iter().rev().take(ATTEMPTS_MAX).map(|one| Attempt {
        at: one.at,
        class: outcome_class(one.outcome.as_str()),
        outcome: match one.status {
            Some(status) => format!("{status} {}", outcome_text(one.outcome.as_str())),
            None => outcome_text(one.outcome.as_str()).to_owned(),
        },
        waited: text::delay(one.waited),
        delay: text::delay(one.delay),
    });
    let page = SitePage {
        shell: Shell::new(&service, viewer, Section::Sites, site.to_string()).every(1_000).noticing(&values),
        path: super::sites::path(site.as_str()),
        domain: site.to_string(),
        is_known,
        paused_until,
        pinned: status.as_ref().is_some_and(|status| status.pinned),
        lead: lead(binding),
        until: binding.map(|reason| reason.until).filter(|until| *until != Timestamp::MAX),
        as_of: as_of.filter(|as_of| now.since(*as_of) > Span::from_secs(3)),
        says: reasons.iter().map(|reason| said(reason, &origins)).collect(),
        facts: facts(status.as_ref(), holder, waiting, now),
        history: history(&samples, now),
        attempts: attempts.collect(),
        rule: RuleView::of(&origins),
    };
    show(&page)
}

/// Why the next request waits.
fn lead(binding: Option<&Reason>) -> String {
    match binding {
        None => "The next request can be sent now.".to_owned(),
        Some(reason) if reason.until == Timestamp::MAX => {
            "No request is sent until an operator resumes this site.".to_owned()
        }
        Some(reason) => {
            format!("The next request waits: {}.", super::overview::reason_text(reason.limit.as_str()))
        }
    }
}

fn said(reason: &Reason, origins: &RuleOrigins) -> Said {
    let (state, class) = match reason.binds() {
        true if reason.until == Timestamp::MAX => ("waits".to_owned(), "wait"),
        true => (text::until(reason.until, reason.asked_at), "wait"),
        false => ("no wait".to_owned(), "soft"),
    };
    let who = super::overview::origin_text(reason.origin().as_str());
    let key = rule_key(&reason.limit);
    let field = key.and_then(|key| origins.fields.iter().find(|field| field.key == key));
    let from = match field {
        Some(field) => format!("Set by {}", place(field)),
        None => format!("Set by {who}"),
    };
    Said { state, class, text: sentence(&reason.to_string()), from }
}

/// The key of the rule that a limit comes from.
fn rule_key(limit: &Limit) -> Option<&'static str> {
    match limit {
        Limit::MinDelay(_) => Some("min_delay"),
        Limit::Rate(_) => Some("requests_per_second"),
        Limit::Burst(_) => Some("burst"),
        Limit::Backoff { .. } => Some("backoff"),
        Limit::WaitOn429 => Some("wait_on_429"),
        Limit::InFlight { .. } | Limit::Lease { .. } => Some("in_flight"),
        _ => None,
    }
}

fn facts(
    status: Option<&DomainStatus>,
    holder: Option<String>,
    waiting: u64,
    now: Timestamp,
) -> Vec<(&'static str, String)> {
    let plus = if waiting >= u64::from(WAITING_MAX) { " or more" } else { "" };
    let mut facts = vec![("Waiting URLs", format!("{}{plus}", count(waiting)))];
    if let Some(status) = status {
        let ago = |at: Option<Timestamp>| {
            at.filter(|at| *at <= now && at.ever().is_some())
                .map_or_else(|| "–".to_owned(), |at| text::ago(at, now))
        };
        facts.extend([
            ("Spacing", text::delay(status.spacing)),
            ("Learned delay", text::delay(status.delay)),
            ("Floor", text::delay(status.floor)),
            ("In flight", count(status.in_flight as u64)),
            ("In line", count(status.waiting as u64)),
            ("Successes in a row", count(u64::from(status.streaks.success))),
            ("429s in a row", count(u64::from(status.streaks.error))),
            ("Failures in a row", count(u64::from(status.penalties))),
            ("Last request", ago(status.last_start)),
            ("Last success", ago(status.last_success)),
        ]);
    }
    facts.push(("In charge", holder.map_or_else(|| "no process".to_owned(), |name| chart::escaped(&name))));
    facts
}

fn history(samples: &[Sample], now: Timestamp) -> Option<History> {
    let first = samples.first()?;
    let from = first.from.max(now - HISTORY_MAX).min(now - HISTORY_MIN);
    let samples: Vec<&Sample> = samples.iter().filter(|sample| sample.from + sample.span > from).collect();
    let every = samples.iter().map(|sample| sample.span).min()?;
    // Longer intervals are drawn as several columns of the same height.
    let pieces = |sample: &&Sample| {
        let pieces = sample.span.whole_times(every).max(1);
        let answered = sample.requests.saturating_sub(sample.rate_limited + sample.failed);
        let parts = [answered, sample.rate_limited, sample.failed].map(|part| part.div_ceil(pieces));
        let (from, every) = (sample.from, every);
        (0..pieces).map(move |nth| Column { from: from + Span::from_micros(every.as_micros() * nth), parts })
    };
    let columns: Vec<Column> = samples.iter().flat_map(pieces).filter(|column| column.from >= from).collect();
    let columns = Columns { from, until: now, every, columns };
    let mut values: Vec<(Timestamp, f64)> =
        samples.iter().map(|sample| (sample.from.max(from), sample.learned.as_secs_f64())).collect();
    values.dedup_by(|later, earlier| later.1 == earlier.1);
    let share = |sample: &&Sample| {
        let share = sample.held.as_secs_f64() / sample.span.as_secs_f64().max(1e-6);
        (share > 0.0).then_some((sample.from.max(from), sample.span, share))
    };
    let steps = Steps { from, until: now, values, closed: samples.iter().filter_map(share).collect() };
    let sum = |of: fn(&Sample) -> u64| samples.iter().map(|sample| of(sample)).sum::<u64>();
    let requests_summary = format!(
        "{} in the last {}, {} of them rate limited (429) and {} failed",
        text::counted(sum(|sample| sample.requests), "request", "requests"),
        now.since(from).prose(),
        count(sum(|sample| sample.rate_limited)),
        count(sum(|sample| sample.failed))
    );
    let learned = samples.last().map_or(Span::ZERO, |sample| sample.learned);
    let most = samples.iter().map(|sample| sample.learned).max().unwrap_or_default();
    let held: u64 = samples.iter().map(|sample| sample.held.as_micros()).sum();
    let delay_summary = format!(
        "The learned delay is {}, at most {} in this time; the site was closed for {}",
        learned.prose(),
        most.prose(),
        Span::from_micros(held).prose()
    );
    let row = |sample: &&Sample| HistoryRow {
        from: text::clock(sample.from),
        requests: sample.requests,
        rate_limited: sample.rate_limited,
        failed: sample.failed,
        closed: text::delay(sample.held),
        learned: text::delay(sample.learned),
    };
    Some(History {
        requests: columns.svg(&requests_summary),
        requests_axis: columns.axis(),
        requests_summary,
        delay: steps.svg(&delay_summary),
        delay_axis: steps.axis(),
        delay_summary,
        times: chart::times(from, now),
        rows: samples.iter().rev().map(row).collect(),
    })
}

/// Waiting URLs are counted up to this.
pub(super) const WAITING_MAX: u32 = 100_000;
const ATTEMPTS_MAX: usize = 25;
/// How far back the charts go, at most and at least.
const HISTORY_MAX: Span = Span::from_secs(24 * 3_600);
const HISTORY_MIN: Span = Span::from_secs(1_800);
