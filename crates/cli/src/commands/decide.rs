//! `comity check`, `comity record`, `comity explain`: the decision, from a shell.

use comity::client::recall_crawl_delay;
use comity::config::{Config, RobotsPolicy};
use comity::core::decision::{Decision, Reason};
use comity::core::domain::Domain;
use comity::core::headers::Told;
use comity::core::intent::Intent;
use comity::core::outcome::{Answer, Outcome};
use comity::core::time::Timestamp;
use comity::gate::{Gate, HandsOff};
use serde_json::{Value, json};

use super::report;
use crate::args::{Check, Explain, Global, Record};
use crate::{exit, output, setup};

pub(crate) async fn check(global: &Global, config: &Config, check: Check) -> anyhow::Result<u8> {
    let (host, intent) = (setup::host(&check.url)?, intent(&check.intent)?);
    let gate = open(config, "check", &host).await?;
    let (decision, permit) = match check.peek {
        false => {
            let (decision, permit) = setup::in_time(gate.check(&host, intent)).await?;
            // It stays open for whoever records it.
            (Some(decision), permit.map(comity::gate::Permit::leave_open))
        }
        true => (None, None),
    };
    let now = gate.clock().now();
    let reason = match &decision {
        Some(decision) => decision.reason().copied(),
        None => setup::in_time(gate.explain(&host, intent)).await?.into_iter().find(Reason::binds),
    };
    gate.close(HandsOff::Pass).await?;
    let wait_ms = match (&decision, &reason) {
        (Some(decision), _) => decision.wait_ms(now),
        (None, Some(reason)) => reason.until.since(now).as_millis_up(),
        (None, None) => 0,
    };
    let proceed = reason.is_none();
    let text =
        reason.map_or_else(|| "nothing keeps a request from leaving".to_owned(), |reason| reason.to_string());
    if global.json {
        let permit = permit.map(|id| format!("{}#{id}", config.rules().domain(&host)));
        output::object(&json!({ "proceed": proceed, "wait_ms": wait_ms, "reason": text, "permit": permit }));
    } else if proceed {
        output::line(&format!("proceed: {text}"));
    } else if matches!(decision, Some(Decision::Refuse(_))) {
        output::line(&format!("refused: {text}"));
    } else {
        output::line(&format!("wait {wait_ms} ms: {text}"));
    }
    Ok(if proceed { exit::DONE } else { exit::FAILURES })
}

pub(crate) async fn record(global: &Global, config: &Config, record: Record) -> anyhow::Result<u8> {
    let (host, intent) = (setup::host(&record.domain)?, intent(&record.intent)?);
    let gate = open(config, "record", &host).await?;
    let answer = answer(&record, gate.clock().now())?;
    let recorded = setup::in_time(gate.record_unasked(&host, intent, &answer)).await?;
    gate.close(HandsOff::Pass).await?;
    let domain = config.rules().domain(&host);
    if global.json {
        output::object(&json!({
            "domain": domain.as_str(),
            "outcome": answer.outcome.as_str(),
            "held_until": recorded.held_until.map(|until| until.to_string()),
            "adaptive_delay_seconds": recorded.delay.map(|change| change.to.as_secs_f64()),
        }));
        return Ok(exit::DONE);
    }
    let held = recorded.held_until.map(|until| format!("; nothing leaves before {}", report::moment(until)));
    let learnt = recorded.delay.map(|change| format!("; learned delay {} → {}", change.from, change.to));
    output::line(&format!(
        "{domain}: {} recorded{}{}",
        answer.outcome,
        held.unwrap_or_default(),
        learnt.unwrap_or_default()
    ));
    Ok(exit::DONE)
}

pub(crate) async fn explain(global: &Global, config: &Config, explain: Explain) -> anyhow::Result<u8> {
    let (host, intent) = (setup::host(&explain.url)?, intent(&explain.intent)?);
    let gate = open(config, "explain", &host).await?;
    let reasons = setup::in_time(gate.explain(&host, intent)).await?;
    let now = gate.clock().now();
    gate.close(HandsOff::Pass).await?;
    let domain = config.rules().domain(&host);
    if global.json {
        output::object(&explained(&domain, &reasons, now));
        return Ok(exit::DONE);
    }
    let next = match reasons.first().filter(|reason| reason.binds()) {
        None => "a request could leave now".to_owned(),
        Some(reason) if reason.until == Timestamp::MAX => {
            "no request leaves until an operator resumes it".to_owned()
        }
        Some(reason) => format!("the next request could leave in {}", reason.until.since(now).about()),
    };
    output::line(&format!("{domain}: {next}"));
    for reason in &reasons {
        let mark = if reason.binds() { "waits" } else { "  met" };
        output::line(&format!("  {mark}  {:8} {reason}", reason.origin().as_str()));
    }
    if reasons.is_empty() {
        output::line("  nothing is known of it yet, and its rule asks for nothing");
    }
    Ok(exit::DONE)
}

fn explained(domain: &Domain, reasons: &[Reason], now: Timestamp) -> Value {
    let constraints: Vec<Value> = reasons
        .iter()
        .map(|reason| {
            let until = (reason.until != Timestamp::MAX).then(|| reason.until.to_string());
            json!({
                "limit": reason.limit.as_str(),
                "origin": reason.origin().as_str(),
                "binds": reason.binds(),
                "until": until,
                "wait_ms": reason.until.since(now).as_millis_up(),
                "text": reason.to_string(),
            })
        })
        .collect();
    let wait_ms = reasons.iter().map(|reason| reason.until.since(now).as_millis_up()).max().unwrap_or(0);
    json!({ "domain": domain.as_str(), "wait_ms": wait_ms, "constraints": constraints })
}

fn intent(text: &str) -> anyhow::Result<Intent> {
    text.parse().map_err(|error: comity::core::intent::UnknownIntent| exit::usage(error.to_string()))
}

/// What was told, as an answer.
fn answer(record: &Record, now: Timestamp) -> anyhow::Result<Answer> {
    let told = match &record.retry_after {
        Some(value) => Told::read([("retry-after", value.as_bytes())].into_iter(), now),
        None => Told::default(),
    };
    if let Ok(status) = record.outcome.parse::<u16>() {
        if !(100..600).contains(&status) {
            return Err(exit::usage(format!("outcome = {status}: expected a status from 100 to 599")));
        }
        return Ok(Answer::of_status(status, told));
    }
    let outcome: Outcome =
        record.outcome.parse().map_err(|error: comity::core::outcome::UnknownOutcome| {
            exit::usage(format!("{error}, or a status such as 429"))
        })?;
    Ok(Answer { outcome, told })
}

async fn open(config: &Config, name: &str, host: &Domain) -> anyhow::Result<Gate> {
    let store = setup::open_store(config)?;
    let gate = setup::gate(config, store.clone(), name).await?;
    if config.robots == RobotsPolicy::Obey {
        recall_crawl_delay(&gate, &*store, config, host).await;
    }
    Ok(gate)
}
