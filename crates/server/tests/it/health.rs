//! Health and readiness, metrics, and the API description.

use serde_json::json;

use crate::script::play;
use crate::server::{COLLECTOR, eventually, metric, serve};

#[tokio::test]
async fn the_service_is_alive_and_ready() {
    let server = serve(COLLECTOR).await;
    for path in ["/healthz", "/readyz"] {
        assert_eq!(server.get(path).await.ok(), json!({ "status": "ok" }));
    }
    server.get("/v1/nothing").await.problem(404);
    let answer = server.get("/v1/check").await;
    answer.problem(405);
    assert_eq!(answer.header("allow"), "POST");
    for (route, status) in [("none", 404), ("/v1/check", 405)] {
        let name = format!("comity_http_requests_total{{route=\"{route}\",status=\"{status}\"}}");
        assert_eq!(server.metric(&name).await, 1.0, "requests to unknown paths are counted too");
    }
}

/// B73
#[tokio::test]
async fn decisions_and_outcomes_are_counted() {
    let server = serve(COLLECTOR).await;
    play(&server, "finance.yahoo.com", "0s check A | 0s check | 0s 429 of A after=30 | 0s check | 0s peek")
        .await;
    play(&server, "b.example", "0s check | 0s success").await;
    server.post("/v1/check", json!({ "domain": "nothing at all" })).await.problem(422);
    // The counters of all processes are added up in the store, once per second.
    server.advance(crate::server::secs(5)).await;
    let added_up = async || {
        let text = server.get("/metrics").await.text();
        metric(&text, "comity_grants_total") == 2.0
            && metric(&text, "comity_requests_total{outcome=\"success\"}") == 1.0
    };
    eventually("the counters to be added up", added_up).await;
    let answer = server.get("/metrics").await;
    assert_eq!(answer.header("content-type"), "text/plain; version=0.0.4; charset=utf-8");
    let text = answer.text();
    for (name, value) in [
        ("comity_decisions_total{answer=\"proceed\",reason=\"none\"}", 2.0),
        ("comity_decisions_total{answer=\"wait\",reason=\"min_delay\"}", 1.0),
        ("comity_decisions_total{answer=\"wait\",reason=\"retry_after\"}", 1.0),
        ("comity_requests_total{outcome=\"rate_limited\"}", 1.0),
        ("comity_requests_total{outcome=\"success\"}", 1.0),
        ("comity_requests_total{outcome=\"timeout\"}", 0.0),
        ("comity_rate_limited_total", 1.0),
        ("comity_grants_total", 2.0),
        ("comity_http_requests_total{route=\"/v1/check\",status=\"200\"}", 4.0),
        ("comity_http_requests_total{route=\"/v1/check\",status=\"422\"}", 1.0),
        ("comity_domains", 2.0),
        ("comity_in_flight", 0.0),
        ("comity_waiting", 0.0),
        ("comity_store_up", 1.0),
        ("comity_domain_delay_seconds{domain=\"finance.yahoo.com\"}", 2.0),
        ("comity_domain_backoff_seconds{domain=\"finance.yahoo.com\"}", 25.0),
        ("comity_jobs{state=\"running\"}", 0.0),
    ] {
        assert!(text.contains(&format!("{name} ")), "{name} is missing:\n{text}");
        assert_eq!(metric(&text, name), value, "{name}");
    }
    for family in ["retries", "cancellations", "concurrency_overrides", "deferrals", "skips"] {
        assert!(text.contains(&format!("# TYPE comity_{family}_total counter")), "{family}:\n{text}");
    }
    // Every family is described once, and every sample has its family.
    let mut families: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
    let described = families.len();
    families.dedup();
    assert_eq!(families.len(), described);
}

/// B73: only the slowest domains appear in labels, and unknown paths don't.
#[tokio::test]
async fn the_number_of_metrics_is_bounded() {
    let server = serve("[serve]\nmetrics_domains = 3\n").await;
    for nth in 0..30 {
        server.check(&format!("d{nth}.example")).await;
        server.get(&format!("/v1/strange/{nth}")).await.problem(404);
        server.get(&format!("/v1/jobs/strange{nth}")).await.problem(404);
    }
    let text = server.get("/metrics").await.text();
    assert_eq!(text.matches("comity_domain_delay_seconds{").count(), 3, "{text}");
    assert!(!text.contains("strange"), "{text}");
}

#[tokio::test]
async fn every_described_operation_exists() {
    let server = serve(COLLECTOR).await;
    let described = server.get("/openapi.json").await.ok();
    assert_eq!(described["openapi"].as_str().unwrap().split('.').next(), Some("3"));
    for (path, methods) in described["paths"].as_object().unwrap() {
        for method in methods.as_object().unwrap().keys().filter(|method| *method != "parameters") {
            let path = path.replace("{id}", "1").replace("{domain}", "a.example").replace("{name}", "news");
            if path == "/v1/events" {
                continue;
            }
            let method = method.to_uppercase().parse().unwrap();
            let answer = server.request(method, &path).send().await;
            assert_ne!(answer.status, 405, "{path}");
            assert!(answer.status < 500, "{path}: {}", answer.text());
        }
    }
}
