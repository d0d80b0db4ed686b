//! `comity check`, `comity record` and `comity explain`: decisions for shell scripts, made on the store or, with
//! `--server`, by a running service.

use std::sync::Arc;
use std::time::Duration;

use comity::client::{known_crawl_delay, known_robots, load_crawl_delay};
use comity::clock::Clock;
use comity::config::{Config, RobotsPolicy};
use comity::core::decision::Reason;
use comity::core::domain::Domain;
use comity::core::headers::PacingHints;
use comity::core::intent::Intent;
use comity::core::outcome::{Answer, Outcome, STATUSES};
use comity::core::pace::{Freshness, LEASE, LEASE_MAX, Pace, PermitRef, Terms};
use comity::core::time::{Span, Timestamp};
use comity::gate::{self, CloseMode, DomainView, Gate, Inspector};
use comity::redact;
use comity::store::Store;
use comity_server::{
    DecisionResponse, ExplainResponse, PERMIT_PREFIX, PermitClaims, PermitSigner, RecordResponse,
    looks_like_permit,
};
use serde_json::{Value, json};
use url::Url;

use super::remote::{Remote, named};
use super::report;
use crate::args::{Check, Explain, Global, Record};
use crate::signals::Signals;
use crate::{exit, output, setup};

pub(crate) async fn check(global: &Global, config: &Config, check: Check) -> anyhow::Result<u8> {
    let (host, intent) = (setup::host(&check.url)?, intent(&check.intent)?);
    let lease = lease(check.lease.as_deref())?;
    if let Some(remote) = Remote::of(&check.server)? {
        return check_remotely(global, &remote, &check, intent).await;
    }
    if check.peek {
        let store = setup::open_existing_store(config)?;
        let inspected = inspect(config, &store, &host, |view, terms, now| match view {
            Some(view) => view.peek(terms, intent, now),
            None => Pace::default().peek(terms, intent, now),
        });
        let (reason, as_of) = inspected.await?;
        let decision = DecisionResponse::of(&config.rules().domain(&host), reason.as_ref(), None, Span::ZERO);
        return Ok(print_decision(global, &serde_json::to_value(decision.as_of(as_of))?));
    }
    let (gate, store) = open(config, "check", &host).await?;
    let began = gate.clock().now();
    let Some((reason, permit)) = decide(global, &gate, &host, intent, &check).await? else {
        gate.close(CloseMode::HandOver).await?;
        return Ok(exit::INTERRUPTED);
    };
    let signer = PermitSigner::of(&*store).await?;
    // The permit counts as in flight until it is recorded or its lease ends.
    let permit = match permit {
        Some(permit) => {
            permit.persist(lease).await?;
            let (host, granted_at) = (host.clone(), permit.started_at());
            let id = permit.lend(lease);
            Some((signer.sign(&PermitClaims { host, id, intent, granted_at }), lease))
        }
        None => None,
    };
    let waited = if check.wait { gate.clock().now().since(began) } else { Span::ZERO };
    gate.close(CloseMode::HandOver).await?;
    let domain = config.rules().domain(&host);
    let decision = DecisionResponse::of(&domain, reason.as_ref(), permit, waited);
    Ok(print_decision(global, &serde_json::to_value(decision)?))
}

/// Why the request has to wait, or the permit for it; none if the wait was interrupted.
async fn decide(
    global: &Global,
    gate: &Gate,
    host: &Domain,
    intent: Intent,
    check: &Check,
) -> anyhow::Result<Option<(Option<Reason>, Option<gate::Permit>)>> {
    if !check.wait {
        let (decision, permit) = setup::with_timeout(gate.check(host, intent)).await?;
        return Ok(Some((decision.reason().copied(), permit)));
    }
    let reason = setup::with_timeout(gate.peek(host, intent)).await?;
    // A pause without an end is not worth waiting for.
    if reason.is_some_and(|reason| reason.until == Timestamp::MAX) {
        return Ok(Some((reason, None)));
    }
    if let Some(reason) = reason {
        let wait = reason.until.since(gate.clock().now());
        print_wait(global, wait, &reason.to_string());
    }
    let mut signals = Signals::new()?;
    tokio::select! {
        permit = gate.acquire(host, intent) => Ok(Some((None, Some(permit?)))),
        _ = signals.next() => Ok(None),
    }
}

/// Says what `--wait` waits for, once.
fn print_wait(global: &Global, wait: Span, reason: &str) {
    if !global.quiet {
        output::remark(&format!("Waiting {}: {}", wait.countdown(), report::readable(reason)));
    }
}

/// `check` with `--server`.
async fn check_remotely(
    global: &Global,
    remote: &Remote,
    check: &Check,
    intent: Intent,
) -> anyhow::Result<u8> {
    let mut ask = named(&check.url);
    ask["intent"] = json!(intent.as_str());
    let path = match (check.peek, check.wait) {
        (true, _) => "/v1/peek",
        (false, false) => "/v1/check",
        (false, true) => "/v1/acquire",
    };
    if check.wait {
        ask["max_wait_ms"] = json!(MAX_WAIT_MS);
    }
    if check.lease.is_some() && !check.peek {
        ask["lease_ms"] = json!(lease(check.lease.as_deref())?.as_millis_up());
    }
    if check.wait && !check.peek {
        let peeked = remote.post("/v1/peek", named(&check.url)).await?;
        if let (Some(wait @ 1..), Some(reason)) = (peeked["wait_ms"].as_u64(), peeked["reason"].as_str()) {
            print_wait(global, Span::from_millis(wait), reason);
        }
    }
    loop {
        let decision = remote.post(path, ask.clone()).await?;
        // The service limits how long a call may wait, so ask again until it may proceed.
        if !check.wait || decision["proceed"] == true || decision["refused"] == true {
            return Ok(print_decision(global, &decision));
        }
        if decision["origin"] == "service" {
            tokio::time::sleep(Duration::from_millis(decision["wait_ms"].as_u64().unwrap_or(1_000))).await;
        }
    }
}

fn print_decision(global: &Global, decision: &Value) -> u8 {
    let proceed = decision["proceed"] == true;
    let text = report::readable(decision["reason"].as_str().unwrap_or_default());
    let wait = Span::from_millis(decision["wait_ms"].as_u64().unwrap_or(0)).countdown();
    if global.json {
        output::object(decision);
    } else if proceed {
        output::line(&format!("proceed: {text}"));
    } else if decision["refused"] == true {
        output::line(&format!("refused: {text}"));
    } else {
        output::line(&format!("wait {wait}: {text}"));
        if decision["limit"] == LEASE_LIMIT {
            output::remark(&how_to_end_lease(decision["domain"].as_str().unwrap_or_default()));
        }
    }
    if proceed { exit::DONE } else { exit::FAILURES }
}

/// What to do about a permit that was never recorded.
fn how_to_end_lease(domain: &str) -> String {
    let domain = redact::shell_word(domain);
    format!(
        "To end the wait: comity record {domain} STATUS, or without an outcome: comity domains release {domain}"
    )
}

pub(crate) async fn record(global: &Global, config: &Config, record: Record) -> anyhow::Result<u8> {
    let intent = intent(&record.intent)?;
    let is_permit = is_permit(&record.domain)?;
    if let Some(remote) = Remote::of(&record.server)? {
        return record_remotely(global, &remote, &record, is_permit).await;
    }
    let permit = match is_permit {
        true => {
            let store = setup::open_existing_store(config)?;
            let permit = PermitSigner::of(&*store).await?.verify(&record.domain);
            Some(permit.ok_or_else(|| {
                exit::usage("permit = \"…\": expected a permit that was issued on this store")
            })?)
        }
        false => None,
    };
    let host = match &permit {
        Some(permit) => permit.host.clone(),
        None => setup::host(&record.domain)?,
    };
    let (gate, _) = open(config, "record", &host).await?;
    let passed = permit.map(|PermitClaims { id, granted_at, .. }| PermitRef { id, granted_at, took: None });
    let domain = config.rules().domain(&host);
    let result = match passed {
        Some(passed) if record.outcome == ABANDONED => {
            let given_back = setup::with_timeout(gate.give_back(&host, passed)).await?;
            (ABANDONED, if given_back { Freshness::Fresh } else { Freshness::Repeated }, None)
        }
        passed => {
            let answer = answer(&record, gate.clock().now())?;
            let recorded = match passed {
                Some(passed) => setup::with_timeout(gate.record_passed(&host, passed, &answer)).await?,
                None => setup::with_timeout(gate.record_unasked(&host, intent, &answer)).await?,
            };
            (answer.outcome.as_str(), recorded.freshness, Some(recorded))
        }
    };
    let wait = gate.wait(&host);
    gate.close(CloseMode::HandOver).await?;
    let (outcome, standing, recorded) = result;
    let recorded = RecordResponse::of(&domain, outcome, standing, recorded.as_ref(), wait);
    print_recorded(global, &serde_json::to_value(recorded)?);
    Ok(exit::DONE)
}

/// Whether a permit was passed instead of a site. One that was cut off or is still in the quotes of JSON must not be
/// mistaken for a site: the outcome would be lost.
fn is_permit(text: &str) -> anyhow::Result<bool> {
    let is_permit = looks_like_permit(text);
    // A host may start like a permit, such as p1.example.org, but nobody writes one like p1.g7zMiaAG.
    let is_encoded =
        |rest: &str| !rest.contains('.') && rest.contains(|c: char| c.is_ascii_uppercase() || c == '_');
    let is_cut = text.strip_prefix(PERMIT_PREFIX).is_some_and(is_encoded);
    match !is_permit && (is_cut || text.contains(['"', '\''])) {
        true => Err(exit::usage(
            "permit = \"…\": expected all of a permit, without quotes (jq -r .permit prints it like that), or a site",
        )),
        false => Ok(is_permit),
    }
}

/// `record` with `--server`.
async fn record_remotely(
    global: &Global,
    remote: &Remote,
    record: &Record,
    is_permit: bool,
) -> anyhow::Result<u8> {
    let mut body = match is_permit {
        true => json!({ "permit": record.domain }),
        false => named(&record.domain),
    };
    if !is_permit {
        body["intent"] = json!(record.intent);
    }
    match record.outcome.parse::<u16>() {
        Ok(0) => body["outcome"] = json!(Outcome::NetworkError.as_str()),
        Ok(status) => body["status"] = json!(status),
        Err(_) => body["outcome"] = json!(record.outcome),
    }
    if let Some(retry_after) = &record.retry_after {
        body["retry_after"] = json!(retry_after);
    }
    print_recorded(global, &remote.post("/v1/record", body).await?);
    Ok(exit::DONE)
}

fn print_recorded(global: &Global, recorded: &Value) {
    if global.json {
        output::object(recorded);
        return;
    }
    let text = |key: &str| recorded[key].as_str().unwrap_or_default().to_owned();
    let held = match recorded["held_until"].as_str().map(Timestamp::parse) {
        Some(Ok(until)) => format!("; closed until {}", report::moment(until)),
        _ => String::new(),
    };
    let learned = recorded["adaptive_delay_seconds"].as_f64().and_then(|secs| Span::from_secs_f64(secs).ok());
    let learned = learned.map(|delay| format!("; learned delay is now {}", delay.prose()));
    let repeated =
        if recorded["standing"] == "repeated" { "; already recorded, nothing changed" } else { "" };
    output::line(&format!(
        "{}: {} recorded{held}{}{repeated}",
        text("domain"),
        text("outcome"),
        learned.unwrap_or_default()
    ));
}

pub(crate) async fn explain(global: &Global, config: &Config, explain: Explain) -> anyhow::Result<u8> {
    let (host, intent) = (setup::host(&explain.url)?, intent(&explain.intent)?);
    if let Some(remote) = Remote::of(&explain.server)? {
        let segments = ["v1", "domains", host.as_str(), "explain"];
        let url = url_of(&explain.url).map(|url| redact::without_user(url.as_str()));
        let mut query = vec![("intent", intent.as_str())];
        query.extend(url.as_deref().map(|url| ("url", url)));
        let explained = remote.get(&segments, &query).await?;
        let note = RobotsNote::about(url.is_some() && explained["robots"].is_null(), config);
        print_explained(global, &explained, note);
        return Ok(exit::DONE);
    }
    let store = setup::open_existing_store(config)?;
    let inspected = inspect(config, &store, &host, |view, terms, now| match view {
        Some(view) => view.explain(terms, intent, now),
        None => Pace::default().explain(terms, intent, now),
    });
    let (reasons, as_of) = inspected.await?;
    let url = url_of(&explain.url);
    let robots = match &url {
        Some(url) => known_robots(&*store, config, url, Clock::of(&*store).await?.now()).await?,
        None => None,
    };
    let note = RobotsNote::about(url.is_some() && robots.is_none(), config);
    let explained = ExplainResponse::of(&config.rules().domain(&host), &reasons, as_of).with_robots(robots);
    print_explained(global, &serde_json::to_value(explained)?, note);
    Ok(exit::DONE)
}

/// What there is to say about the robots.txt of a URL, besides what is known of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RobotsNote {
    None,
    NotFetched,
}

impl RobotsNote {
    fn about(is_unknown: bool, config: &Config) -> Self {
        if is_unknown && config.robots == RobotsPolicy::Obey { Self::NotFetched } else { Self::None }
    }
}

/// The URL that was given, if it wasn't just a domain.
fn url_of(text: &str) -> Option<Url> {
    Url::parse(text.trim()).ok().filter(|url| Domain::of(url).is_some())
}

fn print_explained(global: &Global, explained: &Value, note: RobotsNote) {
    if global.json {
        output::object(explained);
        return;
    }
    let constraints = explained["constraints"].as_array().map(Vec::as_slice).unwrap_or_default();
    let next = match constraints.first().filter(|constraint| constraint["binds"] == true) {
        None => "a request can be sent now".to_owned(),
        Some(constraint) if constraint["until"].is_null() => {
            "no request can be sent until an operator resumes it".to_owned()
        }
        Some(_) => {
            let wait = Span::from_millis(explained["wait_ms"].as_u64().unwrap_or(0));
            format!("the next request can be sent in {}", wait.countdown())
        }
    };
    let robots = &explained["robots"];
    let forbidden = (robots["allowed"] == false).then(|| {
        let fetched_at = robots["fetched_at"].as_str().map(Timestamp::parse);
        let since =
            fetched_at.and_then(Result::ok).map(|at| format!(" (known since {})", report::moment(at)));
        format!("forbidden by robots.txt{}; apart from that, ", since.unwrap_or_default())
    });
    let age = report::age(explained["as_of"].as_str());
    let (domain, forbidden) =
        (explained["domain"].as_str().unwrap_or_default(), forbidden.unwrap_or_default());
    output::line(&format!("{domain}: {forbidden}{next}{age}"));
    for constraint in constraints {
        let mark = if constraint["binds"] == true { "waits" } else { "  met" };
        let text = |key: &str| constraint[key].as_str().unwrap_or_default().to_owned();
        output::line(&format!("  {mark}  {:8} {}", text("origin"), report::readable(&text("text"))));
    }
    if constraints.is_empty() {
        output::line("  no constraints: its rule sets no limits");
    }
    if note == RobotsNote::NotFetched {
        output::line("  robots.txt: not fetched yet; it may forbid this URL or ask for a delay");
    }
    if constraints.iter().any(|constraint| constraint["limit"] == LEASE_LIMIT) {
        output::line(&format!("  {}", how_to_end_lease(domain)));
    }
}

fn intent(text: &str) -> anyhow::Result<Intent> {
    text.parse().map_err(|error: comity::core::intent::UnknownIntent| exit::usage(error.to_string()))
}

/// The lease of a permit: how long it counts as in flight if its outcome is never recorded.
fn lease(text: Option<&str>) -> anyhow::Result<Span> {
    let Some(text) = text else { return Ok(LEASE) };
    let lease = Span::parse(text).ok().filter(|lease| !lease.is_zero() && *lease <= LEASE_MAX);
    let expected = format!("a duration such as \"2m\", at most {LEASE_MAX}");
    lease.ok_or_else(|| exit::usage(format!("--lease = \"{text}\": expected {expected}")))
}

/// The outcome given on the command line, as the answer of a site.
fn answer(record: &Record, now: Timestamp) -> anyhow::Result<Answer> {
    if record.outcome == ABANDONED {
        return Err(exit::usage(
            "outcome = \"abandoned\": expected a permit to give back (comity --json check prints it), not a site; comity domains \
             release gives back all permits of a site",
        ));
    }
    let hints = match &record.retry_after {
        Some(value) => PacingHints::read([("retry-after", value.as_bytes())].into_iter(), now),
        None => PacingHints::default(),
    };
    if let Ok(status) = record.outcome.parse::<u16>() {
        // curl prints 000 if there was no response.
        if status == 0 {
            return Ok(Outcome::NetworkError.into());
        }
        if !STATUSES.contains(&status) {
            return Err(exit::usage(format!("outcome = {status}: expected an HTTP status from 100 to 999")));
        }
        return Ok(Answer::of_status(status, hints));
    }
    let outcome: Outcome =
        record.outcome.parse().map_err(|error: comity::core::outcome::UnknownOutcome| {
            exit::usage(format!("{error}, or an HTTP status such as 429"))
        })?;
    Ok(Answer { hints, ..Answer::from(outcome) })
}

/// Inspects a domain without taking it from its holder; also returns how recent the view is.
async fn inspect<T>(
    config: &Config,
    store: &Arc<dyn Store>,
    host: &Domain,
    read: impl FnOnce(Option<&DomainView>, Terms<'_>, Timestamp) -> T,
) -> anyhow::Result<(T, Option<Timestamp>)> {
    let clock = Clock::of(&**store).await?;
    let crawl_delay = match config.robots {
        RobotsPolicy::Obey => known_crawl_delay(&**store, config, host, clock.now()).await?,
        _ => Span::ZERO,
    };
    let view = Inspector::new(store.clone(), config.rules().clone(), clock.clone()).inspect(host).await?;
    let (terms, now) = (Terms { rule: config.rules().rule(host), crawl_delay }, clock.now());
    let as_of = view.as_ref().map_or(Some(now), |view| view.as_of);
    Ok((read(view.as_ref(), terms, now), as_of))
}

async fn open(config: &Config, name: &str, host: &Domain) -> anyhow::Result<(Gate, Arc<dyn Store>)> {
    let store = setup::open_store(config)?;
    let gate = setup::gate(config, store.clone(), name).await?;
    if config.robots == RobotsPolicy::Obey {
        load_crawl_delay(&gate, &*store, config, host).await;
    }
    Ok((gate, store))
}

/// The limit of a permit that was not recorded.
const LEASE_LIMIT: &str = "lease";
/// The outcome of a permit whose request was not sent or was given up.
const ABANDONED: &str = "abandoned";
/// How long one call to a service waits in line.
const MAX_WAIT_MS: u64 = 20_000;
