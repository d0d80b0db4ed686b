//! `comity check`, `comity record`, `comity explain`: the decision, from a shell; made here on the store, or by a
//! service.

use std::sync::Arc;
use std::time::Duration;

use comity::client::{known_crawl_delay, recall_crawl_delay};
use comity::clock::Clock;
use comity::config::{Config, RobotsPolicy};
use comity::core::decision::Reason;
use comity::core::domain::Domain;
use comity::core::headers::Told;
use comity::core::intent::Intent;
use comity::core::outcome::{Answer, Outcome};
use comity::core::pace::{LEASE, LEASE_MAX, Pace, Passed, Standing, Terms};
use comity::core::time::{Span, Timestamp};
use comity::gate::{self, Gate, HandsOff, Looker, Seen};
use comity::store::Store;
use comity_server::{Decision, Explained, Mint, Permit, Recorded, is_permit};
use serde_json::{Value, json};

use super::remote::{Remote, named};
use super::report;
use crate::args::{Check, Explain, Global, Record};
use crate::signals::Signals;
use crate::{exit, output, setup};

pub(crate) async fn check(global: &Global, config: &Config, check: Check) -> anyhow::Result<u8> {
    let (host, intent) = (setup::host(&check.url)?, intent(&check.intent)?);
    let lease = lease(check.lease.as_deref())?;
    if let Some(remote) = Remote::of(&check.server)? {
        return check_there(global, &remote, &check, intent).await;
    }
    if check.peek {
        let looked = look(config, &host, |seen, terms, now| match seen {
            Some(seen) => seen.peek(terms, intent, now),
            None => Pace::default().peek(terms, intent, now),
        });
        let (reason, as_of) = looked.await?;
        let decision = Decision::of(&config.rules().domain(&host), reason.as_ref(), None, Span::ZERO);
        return Ok(tell_decision(global, &serde_json::to_value(decision.as_of(as_of))?));
    }
    let (gate, store) = open(config, "check", &host).await?;
    let began = gate.clock().now();
    let Some((reason, permit)) = decide(&gate, &host, intent, &check).await? else {
        gate.close(HandsOff::Pass).await?;
        return Ok(exit::INTERRUPTED);
    };
    let mint = Mint::of(&*store).await?;
    // It keeps its place for whoever records it, until its lease ends.
    let permit = match permit {
        Some(permit) => {
            permit.keep(lease).await?;
            let (host, granted_at) = (host.clone(), permit.started_at());
            let id = permit.lend(lease);
            Some((mint.write(&Permit { host, id, intent, granted_at }), lease))
        }
        None => None,
    };
    let waited = if check.wait { gate.clock().now().since(began) } else { Span::ZERO };
    gate.close(HandsOff::Pass).await?;
    let domain = config.rules().domain(&host);
    let decision = Decision::of(&domain, reason.as_ref(), permit, waited);
    Ok(tell_decision(global, &serde_json::to_value(decision)?))
}

/// What keeps a request from leaving, or the permit for it; nothing when somebody stopped the wait.
async fn decide(
    gate: &Gate,
    host: &Domain,
    intent: Intent,
    check: &Check,
) -> anyhow::Result<Option<(Option<Reason>, Option<gate::Permit>)>> {
    if !check.wait {
        let (decision, permit) = setup::in_time(gate.check(host, intent)).await?;
        return Ok(Some((decision.reason().copied(), permit)));
    }
    let reason = setup::in_time(gate.peek(host, intent)).await?;
    // An operator closed it until it is resumed: nobody waits in line for that.
    if reason.is_some_and(|reason| reason.until == Timestamp::MAX) {
        return Ok(Some((reason, None)));
    }
    let mut signals = Signals::new()?;
    tokio::select! {
        permit = gate.acquire(host, intent) => Ok(Some((None, Some(permit?)))),
        _ = signals.next() => Ok(None),
    }
}

/// The same from a service.
async fn check_there(global: &Global, remote: &Remote, check: &Check, intent: Intent) -> anyhow::Result<u8> {
    let mut ask = named(&check.url);
    ask["intent"] = json!(intent.as_str());
    let path = match (check.peek, check.wait) {
        (true, _) => "/v1/peek",
        (false, false) => "/v1/check",
        (false, true) => "/v1/acquire",
    };
    if check.wait {
        ask["max_wait_ms"] = json!(LINE_MS);
    }
    if check.lease.is_some() && !check.peek {
        ask["lease_ms"] = json!(lease(check.lease.as_deref())?.as_millis_up());
    }
    loop {
        let decision = remote.post(path, ask.clone()).await?;
        // The service lets nobody wait for ever; who waits goes on.
        if !check.wait || decision["proceed"] == true || decision["refused"] == true {
            return Ok(tell_decision(global, &decision));
        }
        if decision["origin"] == "service" {
            tokio::time::sleep(Duration::from_millis(decision["wait_ms"].as_u64().unwrap_or(1_000))).await;
        }
    }
}

fn tell_decision(global: &Global, decision: &Value) -> u8 {
    let proceed = decision["proceed"] == true;
    let (text, wait_ms) = (decision["reason"].as_str().unwrap_or_default(), &decision["wait_ms"]);
    if global.json {
        output::object(decision);
    } else if proceed {
        output::line(&format!("proceed: {text}"));
    } else if decision["refused"] == true {
        output::line(&format!("refused: {text}"));
    } else {
        output::line(&format!("wait {wait_ms} ms: {text}"));
    }
    if proceed { exit::DONE } else { exit::FAILURES }
}

pub(crate) async fn record(global: &Global, config: &Config, record: Record) -> anyhow::Result<u8> {
    let intent = intent(&record.intent)?;
    let is_permit = is_permit(&record.domain);
    if let Some(remote) = Remote::of(&record.server)? {
        return record_there(global, &remote, &record, is_permit).await;
    }
    let permit = match is_permit {
        true => {
            let store = setup::open_store(config)?;
            let permit = Mint::of(&*store).await?.read(&record.domain);
            Some(permit.ok_or_else(|| {
                exit::usage("permit = \"…\": expected one that was given out on this store")
            })?)
        }
        false => None,
    };
    let host = match &permit {
        Some(permit) => permit.host.clone(),
        None => setup::host(&record.domain)?,
    };
    let (gate, _) = open(config, "record", &host).await?;
    let passed = permit.map(|Permit { id, granted_at, .. }| Passed { id, granted_at, took: None });
    let domain = config.rules().domain(&host);
    let came = match passed {
        Some(passed) if record.outcome == ABANDONED => {
            let given_back = setup::in_time(gate.give_back(&host, passed)).await?;
            (ABANDONED, if given_back { Standing::Fresh } else { Standing::Repeated }, None)
        }
        passed => {
            let answer = answer(&record, gate.clock().now())?;
            let recorded = match passed {
                Some(passed) => setup::in_time(gate.record_passed(&host, passed, &answer)).await?,
                None => setup::in_time(gate.record_unasked(&host, intent, &answer)).await?,
            };
            (answer.outcome.as_str(), recorded.standing, Some(recorded))
        }
    };
    let wait = gate.wait(&host);
    gate.close(HandsOff::Pass).await?;
    let (outcome, standing, recorded) = came;
    let recorded = Recorded::of(&domain, outcome, standing, recorded.as_ref(), wait);
    tell_recorded(global, &serde_json::to_value(recorded)?);
    Ok(exit::DONE)
}

/// The same at a service.
async fn record_there(
    global: &Global,
    remote: &Remote,
    record: &Record,
    is_permit: bool,
) -> anyhow::Result<u8> {
    let mut told = match is_permit {
        true => json!({ "permit": record.domain }),
        false => named(&record.domain),
    };
    if !is_permit {
        told["intent"] = json!(record.intent);
    }
    match record.outcome.parse::<u16>() {
        Ok(0) => told["outcome"] = json!(Outcome::NetworkError.as_str()),
        Ok(status) => told["status"] = json!(status),
        Err(_) => told["outcome"] = json!(record.outcome),
    }
    if let Some(retry_after) = &record.retry_after {
        told["retry_after"] = json!(retry_after);
    }
    tell_recorded(global, &remote.post("/v1/record", told).await?);
    Ok(exit::DONE)
}

fn tell_recorded(global: &Global, recorded: &Value) {
    if global.json {
        output::object(recorded);
        return;
    }
    let text = |key: &str| recorded[key].as_str().unwrap_or_default().to_owned();
    let held = match recorded["held_until"].as_str().map(Timestamp::parse) {
        Some(Ok(until)) => format!("; nothing leaves before {}", report::moment(until)),
        _ => String::new(),
    };
    let learnt =
        recorded["adaptive_delay_seconds"].as_f64().map(|secs| format!("; learned delay now {secs} s"));
    let repeated =
        if recorded["standing"] == "repeated" { "; it was recorded before, nothing changed" } else { "" };
    output::line(&format!(
        "{}: {} recorded{held}{}{repeated}",
        text("domain"),
        text("outcome"),
        learnt.unwrap_or_default()
    ));
}

pub(crate) async fn explain(global: &Global, config: &Config, explain: Explain) -> anyhow::Result<u8> {
    let (host, intent) = (setup::host(&explain.url)?, intent(&explain.intent)?);
    if let Some(remote) = Remote::of(&explain.server)? {
        let segments = ["v1", "domains", host.as_str(), "explain"];
        let told = remote.get(&segments, &[("intent", intent.as_str())]).await?;
        tell_explained(global, &told);
        return Ok(exit::DONE);
    }
    let looked = look(config, &host, |seen, terms, now| match seen {
        Some(seen) => seen.explain(terms, intent, now),
        None => Pace::default().explain(terms, intent, now),
    });
    let (reasons, as_of) = looked.await?;
    let explained = Explained::of(&config.rules().domain(&host), &reasons, as_of);
    tell_explained(global, &serde_json::to_value(explained)?);
    Ok(exit::DONE)
}

fn tell_explained(global: &Global, explained: &Value) {
    if global.json {
        output::object(explained);
        return;
    }
    let constraints = explained["constraints"].as_array().map(Vec::as_slice).unwrap_or_default();
    let next = match constraints.first().filter(|constraint| constraint["binds"] == true) {
        None => "a request could leave now".to_owned(),
        Some(constraint) if constraint["until"].is_null() => {
            "no request leaves until an operator resumes it".to_owned()
        }
        Some(_) => {
            let wait = Span::from_millis(explained["wait_ms"].as_u64().unwrap_or(0));
            format!("the next request could leave in {}", wait.about())
        }
    };
    let age = report::age(explained["as_of"].as_str());
    output::line(&format!("{}: {next}{age}", explained["domain"].as_str().unwrap_or_default()));
    for constraint in constraints {
        let mark = if constraint["binds"] == true { "waits" } else { "  met" };
        let text = |key: &str| constraint[key].as_str().unwrap_or_default().to_owned();
        output::line(&format!("  {mark}  {:8} {}", text("origin"), text("text")));
    }
    if constraints.is_empty() {
        output::line("  nothing is known of it yet, and its rule asks for nothing");
    }
}

fn intent(text: &str) -> anyhow::Result<Intent> {
    text.parse().map_err(|error: comity::core::intent::UnknownIntent| exit::usage(error.to_string()))
}

/// For how long a permit keeps its place.
fn lease(text: Option<&str>) -> anyhow::Result<Span> {
    let Some(text) = text else { return Ok(LEASE) };
    let lease = Span::parse(text).ok().filter(|lease| !lease.is_zero() && *lease <= LEASE_MAX);
    let expected = format!("a duration such as \"2m\", at most {LEASE_MAX}");
    lease.ok_or_else(|| exit::usage(format!("--lease = \"{text}\": expected {expected}")))
}

/// What was told, as an answer.
fn answer(record: &Record, now: Timestamp) -> anyhow::Result<Answer> {
    if record.outcome == ABANDONED {
        let expected = "a permit with it: what else would be given back?";
        return Err(exit::usage(format!("outcome = \"abandoned\": expected {expected}")));
    }
    let told = match &record.retry_after {
        Some(value) => Told::read([("retry-after", value.as_bytes())].into_iter(), now),
        None => Told::default(),
    };
    if let Ok(status) = record.outcome.parse::<u16>() {
        // So curl writes that there was no answer.
        if status == 0 {
            return Ok(Outcome::NetworkError.into());
        }
        if !(100..600).contains(&status) {
            return Err(exit::usage(format!("outcome = {status}: expected a status from 100 to 599")));
        }
        return Ok(Answer::of_status(status, told));
    }
    let outcome: Outcome =
        record.outcome.parse().map_err(|error: comity::core::outcome::UnknownOutcome| {
            exit::usage(format!("{error}, or a status such as 429"))
        })?;
    Ok(Answer { told, ..Answer::from(outcome) })
}

/// Looks at a domain, whoever holds it, and leaves it to them; with when it was so.
async fn look<T>(
    config: &Config,
    host: &Domain,
    look: impl FnOnce(Option<&Seen>, Terms<'_>, Timestamp) -> T,
) -> anyhow::Result<(T, Option<Timestamp>)> {
    let store = setup::open_store(config)?;
    let clock = Clock::of(&*store).await?;
    let crawl_delay = match config.robots {
        RobotsPolicy::Obey => known_crawl_delay(&*store, config, host, clock.now()).await?,
        _ => Span::ZERO,
    };
    let seen = Looker::new(store, config.rules().clone(), clock.clone()).look(host).await?;
    let (terms, now) = (Terms { rule: config.rules().rule(host), crawl_delay }, clock.now());
    let as_of = seen.as_ref().map_or(Some(now), |seen| seen.as_of);
    Ok((look(seen.as_ref(), terms, now), as_of))
}

async fn open(config: &Config, name: &str, host: &Domain) -> anyhow::Result<(Gate, Arc<dyn Store>)> {
    let store = setup::open_store(config)?;
    let gate = setup::gate(config, store.clone(), name).await?;
    if config.robots == RobotsPolicy::Obey {
        recall_crawl_delay(&gate, &*store, config, host).await;
    }
    Ok((gate, store))
}

/// What it came to when the request was not sent, or given up.
const ABANDONED: &str = "abandoned";
/// How long one request to a service waits in line.
const LINE_MS: u64 = 20_000;
