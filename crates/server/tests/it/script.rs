//! Plays a one-line script of calls, and returns the answers as one line.
//!
//! A step is `TIME VERB …`, with the time since the start of the clock. `check [INTENT] [NAME]` and `peek [INTENT]`
//! ask. `STATUS-or-OUTCOME [of NAME] [after=RETRY-AFTER] [took=MS]` records: with the permit of that name, or else by
//! the domain.

use std::collections::HashMap;

use comity::core::time::{Span, Timestamp};
use serde_json::{Value, json};

use crate::server::{START, TestServer};

/// Plays a script on one domain.
pub(crate) async fn play(server: &TestServer, domain: &str, script: &str) -> String {
    let mut permits = HashMap::new();
    let mut results = Vec::new();
    for step in script.split(" | ") {
        let mut words = step.split_whitespace();
        let (time, verb) = (words.next().unwrap(), words.next().unwrap());
        server.until(Span::parse(time).unwrap()).await;
        let rest: Vec<&str> = words.collect();
        results.push(match verb {
            "check" | "peek" => {
                let intent = rest.iter().find(|word| INTENTS.contains(word)).unwrap_or(&"fetch");
                let body = json!({ "domain": domain, "intent": intent });
                let decision = server.post(&format!("/v1/{verb}"), body).await.ok();
                if let Some(name) = rest.iter().find(|word| !INTENTS.contains(word)) {
                    permits.insert((*name).to_owned(), decision["permit"].clone());
                }
                decided(&decision)
            }
            what => recorded(&server.record(record(domain, what, &rest, &permits)).await),
        });
    }
    results.join(" | ")
}

fn record(domain: &str, what: &str, rest: &[&str], permits: &HashMap<String, Value>) -> Value {
    let mut record = match what.parse::<u16>() {
        Ok(status) => json!({ "status": status }),
        Err(_) => json!({ "outcome": what }),
    };
    match rest.iter().position(|word| *word == "of") {
        Some(at) => record["permit"] = permits[rest[at + 1]].clone(),
        None => record["domain"] = domain.into(),
    }
    if let Some(after) = rest.iter().find_map(|word| word.strip_prefix("after=")) {
        record["retry_after"] = after.into();
    }
    if let Some(took) = rest.iter().find_map(|word| word.strip_prefix("took=")) {
        record["latency_ms"] = took.parse::<u64>().unwrap().into();
    }
    record
}

/// A decision in a few words. Panics if the decision contradicts itself.
pub(crate) fn decided(decision: &Value) -> String {
    assert!(decision["reason"].as_str().is_some_and(|reason| !reason.is_empty()), "{decision}");
    let wait = decision["wait_ms"].as_u64().unwrap();
    match decision["proceed"].as_bool().unwrap() {
        true => {
            assert!(wait == 0 && decision["limit"].is_null() && decision["origin"].is_null(), "{decision}");
            "proceed".to_owned()
        }
        false => {
            assert!(wait > 0 && decision["permit"].is_null(), "{decision}");
            format!("wait {wait} ({})", decision["limit"].as_str().unwrap())
        }
    }
}

/// The result of recording in a few words: its standing, and the hold that was set.
pub(crate) fn recorded(recorded: &Value) -> String {
    let standing = recorded["standing"].as_str().unwrap();
    match seconds_since_start(&recorded["held_until"]) {
        Some(held) => format!("{standing}, held to {held}s"),
        None => standing.to_owned(),
    }
}

/// A time in a response, as seconds since the start of the clock.
pub(crate) fn seconds_since_start(time: &Value) -> Option<f64> {
    let time = Timestamp::parse(time.as_str()?).unwrap();
    Some(time.since(START).as_micros() as f64 / 1e6)
}

const INTENTS: [&str; 3] = ["fetch", "search", "api"];
