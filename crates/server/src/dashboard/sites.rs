//! All sites: searched and sorted by the store, a page at a time.

use askama::Template;
use axum::extract::State;
use axum::response::Response;
use comity::core::time::Timestamp;
use comity::gate::DomainSummary;
use comity::store::activity::{DomainQuery, DomainSort, Order};

use super::guard::{Values, Viewer};
use super::page::{Failure, Section, Shell, show, state};
use super::text::{self, count, encoded};
use crate::api::{DOMAIN_MAX, validate_length};
use crate::service::Service;

#[derive(Template)]
#[template(path = "sites.html")]
struct SitesPage {
    shell: Shell,
    like: String,
    sort: &'static str,
    found: String,
    heads: Vec<Head>,
    rows: Vec<Row>,
    next: Option<String>,
    first: Option<String>,
}

/// The head of a column that can be sorted by.
struct Head {
    text: &'static str,
    class: &'static str,
    path: String,
    /// `ascending` or `descending`, if the list is sorted by it.
    sorted: Option<&'static str>,
}

struct Row {
    domain: String,
    path: String,
    chips: Vec<(&'static str, &'static str)>,
    until: Option<Timestamp>,
    why: String,
    delay: String,
    learned: String,
    floor: String,
    waiting: String,
    streak: String,
    streak_class: &'static str,
    last: Option<Timestamp>,
    last_text: String,
    last_class: &'static str,
    holder: String,
    machine: String,
}

/// The page.
pub(super) async fn page(
    State(service): State<Service>,
    viewer: Viewer,
    values: Values,
) -> Result<Response, Failure> {
    let state = state(&service)?;
    let like = values.get("like").to_lowercase();
    validate_length("like", &like, DOMAIN_MAX)?;
    let sort = DomainSort::parse(values.get("sort")).unwrap_or(DomainSort::Waiting);
    let order = match values.get("order") {
        "ascending" => Order::Ascending,
        "descending" => Order::Descending,
        _ => first_order(sort),
    };
    let after = values.get("after").parse().ok();
    let is_first = after.is_none();
    let query = DomainQuery { like: like.clone(), sort, order, after, limit: PAGE };
    let listed = state.gate.page_domains(query).await?;
    let now = state.gate.clock().now();
    let more = |after: String| format!("{}&after={}", address(&like, sort, order), encoded(&after));
    let first = (!is_first).then(|| address(&like, sort, order));
    let page = SitesPage {
        shell: Shell::new(&service, viewer, Section::Sites, "Sites"),
        sort: sort.as_str(),
        found: if listed.found >= comity::store::activity::FOUND_MAX {
            format!("more than {} sites", count(listed.found))
        } else {
            text::counted(listed.found, "site", "sites")
        },
        heads: COLUMNS.iter().map(|column| head(column, &like, sort, order)).collect(),
        next: listed.next.map(|next| more(next.to_string())),
        rows: listed.domains.into_iter().map(|summary| row(summary, now)).collect(),
        like,
        first,
    };
    show(&page)
}

/// The page of a site.
pub(crate) fn path(domain: &str) -> String {
    format!("/sites/{}", encoded(domain))
}

fn address(like: &str, sort: DomainSort, order: Order) -> String {
    let order = match order {
        Order::Ascending => "ascending",
        Order::Descending => "descending",
    };
    format!("/sites?like={}&sort={}&order={order}", encoded(like), sort.as_str())
}

/// What people want to see first.
fn first_order(sort: DomainSort) -> Order {
    if sort == DomainSort::Name { Order::Ascending } else { Order::Descending }
}

fn head(
    column: &(DomainSort, &'static str, &'static str),
    like: &str,
    sort: DomainSort,
    order: Order,
) -> Head {
    let (of, text, class) = *column;
    let is_sorted = of == sort;
    let next = match (is_sorted, order) {
        (true, Order::Ascending) => Order::Descending,
        (true, Order::Descending) => Order::Ascending,
        (false, _) => first_order(of),
    };
    let word = if order == Order::Ascending { "ascending" } else { "descending" };
    Head { text, class, path: address(like, of, next), sorted: is_sorted.then_some(word) }
}

fn row(summary: DomainSummary, now: Timestamp) -> Row {
    let domain = summary.domain.to_string();
    let mut chips = Vec::new();
    if summary.paused_until.is_some_and(|until| until > now) {
        chips.push(("paused", "chip wait"));
    }
    if summary.pinned {
        chips.push(("pinned", "chip"));
    }
    let until = summary.held_until.filter(|until| *until > now);
    let limit = summary.limit.as_deref().map(super::overview::reason_text);
    let why = match (&summary.reason, limit) {
        (Some(reason), _) => reason.brief(),
        (None, Some(limit)) => limit.to_owned(),
        (None, None) => String::new(),
    };
    let (streak, streak_class) = match (summary.streaks.error, summary.streaks.success) {
        (0, 0) => ("–".to_owned(), ""),
        (0, good) => (format!("{} ok", count(u64::from(good))), ""),
        (bad, _) => (format!("{} × 429", count(u64::from(bad))), "stop"),
    };
    let (last, last_text, last_class) = match summary.last {
        Some(last) => {
            let status = last.status.map_or_else(String::new, |status| format!("{status} "));
            let word = outcome_text(last.outcome.as_str());
            (Some(last.at), format!("{status}{word}"), outcome_class(last.outcome.as_str()))
        }
        None => (None, String::new(), ""),
    };
    let plus = if summary.waiting.or_more { "+" } else { "" };
    Row {
        path: path(&domain),
        chips,
        until,
        why,
        delay: text::delay(summary.delay),
        learned: text::delay(summary.learned),
        floor: text::delay(summary.floor),
        waiting: format!("{}{plus}", count(summary.waiting.number)),
        streak,
        streak_class,
        last,
        last_text,
        last_class,
        holder: summary.holder.unwrap_or_default(),
        machine: summary.machine.unwrap_or_default(),
        domain,
    }
}

/// An outcome in words, by its name in JSON.
pub(super) fn outcome_text(outcome: &str) -> &str {
    match outcome {
        "success" => "ok",
        "answered" => "answered",
        "rate_limited" => "rate limited",
        "blocked" => "blocked",
        "unavailable" => "unavailable",
        "server_error" => "server error",
        "timeout" => "timeout",
        "network_error" => "network error",
        other => other,
    }
}

/// The color of an outcome.
pub(super) fn outcome_class(outcome: &str) -> &'static str {
    match outcome {
        "success" | "answered" => "",
        _ => "stop",
    }
}

/// The columns that can be sorted by, with the class of their head.
const COLUMNS: [(DomainSort, &str, &str); 6] = [
    (DomainSort::Name, "Site", ""),
    (DomainSort::HeldUntil, "Next request", ""),
    (DomainSort::Waiting, "Waiting", "n"),
    (DomainSort::Delay, "Delay", "n p2"),
    (DomainSort::Learned, "Learned", "n p2"),
    (DomainSort::LastAnswer, "Last answer", "p2"),
];
const PAGE: u32 = 50;
