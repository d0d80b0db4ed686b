//! What is asked when, in a line; what was answered, in another.
//!
//! A step is `TIME VERB …`, with the time since the beginning. `check [INTENT] [NAME]` and `peek [INTENT]` ask,
//! `STATUS-or-OUTCOME [of NAME] [after=RETRY-AFTER]` records: by the permit of that name, or else by the domain.

use std::collections::HashMap;

use comity::core::time::{Span, Timestamp};
use serde_json::{Value, json};

use crate::served::{BEGIN, Served};

/// Plays a script on one domain.
pub(crate) async fn play(served: &Served, domain: &str, script: &str) -> String {
    let mut permits = HashMap::new();
    let mut told = Vec::new();
    for step in script.split(" | ") {
        let mut words = step.split_whitespace();
        let (time, verb) = (words.next().unwrap(), words.next().unwrap());
        served.until(Span::parse(time).unwrap()).await;
        let rest: Vec<&str> = words.collect();
        told.push(match verb {
            "check" | "peek" => {
                let intent = rest.iter().find(|word| INTENTS.contains(word)).unwrap_or(&"fetch");
                let body = json!({ "domain": domain, "intent": intent });
                let decision = served.post(&format!("/v1/{verb}"), body).await.ok();
                if let Some(name) = rest.iter().find(|word| !INTENTS.contains(word)) {
                    permits.insert((*name).to_owned(), decision["permit"].clone());
                }
                decided(&decision)
            }
            what => recorded(&served.record(record(domain, what, &rest, &permits)).await),
        });
    }
    told.join(" | ")
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

/// A decision in few words; one that contradicts itself is refused here.
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

/// What recording came to: its standing, and a hold that was set.
pub(crate) fn recorded(recorded: &Value) -> String {
    let standing = recorded["standing"].as_str().unwrap();
    match since_begin(&recorded["held_until"]) {
        Some(held) => format!("{standing}, held to {held}s"),
        None => standing.to_owned(),
    }
}

/// A moment that was told, in seconds since the beginning.
pub(crate) fn since_begin(moment: &Value) -> Option<f64> {
    let moment = Timestamp::parse(moment.as_str()?).unwrap();
    Some(moment.since(BEGIN).as_micros() as f64 / 1e6)
}

const INTENTS: [&str; 3] = ["fetch", "search", "api"];
