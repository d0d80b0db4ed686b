//! What goes around a service (contrib/) speaks of metrics that there are.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Value, json};

use crate::comity::World;
use crate::service::{Service, ask};

/// B73
#[test]
fn every_metric_of_the_dashboard_and_the_alerts_exists() {
    let shown = shown();
    for file in ["grafana/comity.json", "prometheus/alerts.yml"] {
        let named = names(&read(file));
        assert!(named.len() >= 5, "{file}: {named:?}");
        let unknown: Vec<&String> = named.difference(&shown).collect();
        assert!(unknown.is_empty(), "{file}: {unknown:?} are not in:\n{shown:#?}");
    }
    // And the dashboard leaves none out.
    let dashboard = names(&read("grafana/comity.json"));
    let family = |name: &String| !["_sum", "_count", "_bucket"].iter().any(|end| name.ends_with(end));
    let histograms = |name: &&String| shown.contains(&format!("{name}_bucket"));
    let missing: Vec<&String> = shown
        .iter()
        .filter(|name| family(name) && !dashboard.contains(*name))
        .filter(|name| !histograms(name) || !dashboard.contains(&format!("{name}_bucket")))
        .collect();
    assert!(missing.is_empty(), "the dashboard does not show {missing:?}");
}

/// Each panel has a title of its own and asks something.
#[test]
fn the_dashboard_is_whole() {
    let dashboard: Value = serde_json::from_str(&read("grafana/comity.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let titles: BTreeSet<&str> = panels.iter().map(|panel| panel["title"].as_str().unwrap()).collect();
    assert_eq!(titles.len(), panels.len(), "{titles:?}");
    for panel in panels {
        let targets = panel["targets"].as_array().unwrap();
        assert!(!targets.is_empty(), "{panel}");
        for target in targets {
            assert!(target["expr"].as_str().unwrap().contains("comity_"), "{target}");
        }
    }
}

/// The names of all samples after some of everything happened.
fn shown() -> BTreeSet<String> {
    let world = World::new();
    let service = Service::start(&world);
    service.post("/v1/check", &json!({"domain": "a.example"}));
    service.post("/v1/acquire", &json!({"domain": "b.example"}));
    service.post("/v1/record", &json!({"domain": "a.example", "status": 429, "latency_ms": 5}));
    let text = ask(service.address, "GET", "/metrics", "", "").unwrap().body;
    let families = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    let samples = samples.filter_map(|line| line.split(['{', ' ']).next());
    families.chain(samples).map(str::to_owned).collect()
}

/// The names of metrics in a text.
fn names(text: &str) -> BTreeSet<String> {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.split(|c| !word(c)).filter(|name| name.starts_with("comity_")).map(str::to_owned).collect()
}

fn read(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib").join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
