//! Which sites the URLs of a job wait for, and why: for a run that ends with `--max-wait`.

use std::cmp::Reverse;
use std::sync::Arc;

use comity::clock::Clock;
use comity::core::domain::Domain;
use comity::core::intent::Intent;
use comity::core::pace::Terms;
use comity::core::rule::RuleTable;
use comity::core::time::{Span, Timestamp};
use comity::gate::{DomainView, Inspector};
use comity::status::HeldBack;
use comity::store::Store;
use comity::store::jobs::Job;
use comity::store::status::Backlog;
use serde_json::{Value, json};

/// The sites that a job waits for, the longest wait first. `seen` is what this process knew of them; sites that it did not
/// even start with are looked up in the store.
pub(super) async fn longest(
    store: &Arc<dyn Store>,
    rules: &Arc<RuleTable>,
    clock: &Clock,
    job: &Job,
    seen: Vec<HeldBack>,
) -> anyhow::Result<Vec<HeldBack>> {
    let mut waits = seen;
    let mut unseen = store.backlog(job.id, LANES, TASKS).await?;
    unseen.retain(|one| waits.iter().all(|seen| seen.domain != one.domain.as_str()));
    let mut rows = Vec::new();
    for one in &unseen {
        rows.extend(store.find_domain(one.domain.clone()).await?);
    }
    let views = Inspector::new(store.clone(), rules.clone(), clock.clone()).inspect_rows(rows).await?;
    let now = clock.now();
    for one in &unseen {
        let view = views.iter().find(|view| view.row.domain == one.domain.as_str());
        waits.extend(wait(one, view, rules, now));
    }
    // A pause without an end is the longest wait.
    waits.sort_by_key(|held| Reverse(held.until().unwrap_or(Timestamp::MAX)));
    waits.truncate(SHOWN);
    Ok(waits)
}

/// Why the tasks of a domain wait: because of its pace, or because their retries are not due yet.
fn wait(one: &Backlog, view: Option<&DomainView>, rules: &RuleTable, now: Timestamp) -> Option<HeldBack> {
    let domain: &Domain = &one.domain;
    let terms = Terms { rule: rules.rule_of(domain), crawl_delay: Span::ZERO };
    let reason = view.and_then(|view| view.peek(terms, Intent::Fetch, now));
    // A retry is ready when the pace allows it, so that a retry which is due much later has another reason.
    let reason = reason.filter(|reason| one.due_at.is_none_or(|due_at| due_at <= reason.until + SAME));
    let (origin, why, until) = match reason {
        Some(reason) => (reason.origin().to_string(), reason.brief(), reason.until),
        None => ("retry".to_owned(), "the next retry is not due yet".to_owned(), one.due_at?),
    };
    let until_us = Some(until).filter(|until| *until != Timestamp::MAX).map(Timestamp::as_micros);
    let domain = domain.to_string();
    (until > now).then_some(HeldBack {
        domain,
        origin,
        why,
        until_us,
        in_line: 0,
        backlog: Some(one.waiting),
    })
}

/// A wait as JSON, as in `comity top --json`, and until when in words.
pub(super) fn object(held: &HeldBack) -> Value {
    let mut object = serde_json::to_value(held).unwrap_or_default();
    object["until"] = json!(held.until().map(|until| until.to_string()));
    object
}

/// Times that are closer than this are the same.
const SAME: Span = Span::from_secs(1);
/// How many sites are looked at.
const LANES: u32 = 200;
/// Up to how many tasks are counted per site.
const TASKS: u32 = 1_000;
/// Maximum number of sites to return.
const SHOWN: usize = 20;
