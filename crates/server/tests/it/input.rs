//! What is asked wrongly is refused, and told what is wrong with it.

use serde_json::{Value, json};

use crate::script::decided;
use crate::served::{COLLECTOR, serve};

/// B71: field, value and what is allowed.
#[tokio::test]
async fn a_field_that_is_wrong_is_named_with_its_value_and_what_is_allowed() {
    let served = serve(COLLECTOR).await;
    let a = "a.example";
    let cases: &[(&str, Value, &str, &str, &str)] = &[
        ("/v1/check", json!({}), "domain", "", "both are missing"),
        ("/v1/check", json!({ "domain": a, "url": "https://a.example/" }), "domain", "", "not both"),
        ("/v1/check", json!({ "domain": "" }), "domain", "", ""),
        ("/v1/check", json!({ "domain": "a b" }), "domain", "a b", ""),
        ("/v1/check", json!({ "domain": "https://a.example/" }), "domain", "https://a.example/", ""),
        ("/v1/check", json!({ "domain": "*.example" }), "domain", "*.example", ""),
        ("/v1/check", json!({ "domain": "a.example:99999" }), "domain", "99999", ""),
        ("/v1/check", json!({ "domain": "\u{0}" }), "domain", "", ""),
        ("/v1/check", json!({ "domain": "x".repeat(300) }), "domain", "…", "260"),
        ("/v1/check", json!({ "url": "no url" }), "url", "", ""),
        ("/v1/check", json!({ "url": "https://" }), "url", "", ""),
        ("/v1/check", json!({ "url": "ftp://a.example/" }), "url", "", ""),
        ("/v1/check", json!({ "url": "file:///etc/passwd" }), "url", "", ""),
        ("/v1/check", json!({ "url": "//a.example/" }), "url", "", ""),
        ("/v1/check", json!({ "domain": a, "intent": "post" }), "intent", "post", "fetch"),
        ("/v1/check", json!({ "domain": a, "intent": "FETCH" }), "intent", "FETCH", "search"),
        ("/v1/check", json!({ "domain": a, "intent": 1 }), "intent", "1", ""),
        ("/v1/check", json!({ "domain": a, "intent": null }), "intent", "null", ""),
        ("/v1/check", json!({ "domain": 5 }), "domain", "5", "string"),
        ("/v1/check", json!({ "domain": null }), "domain", "null", "string"),
        ("/v1/check", json!({ "domain": [a] }), "domain", "[…]", "string"),
        ("/v1/check", json!({ "domain": { "name": a } }), "domain", "{…}", "string"),
        ("/v1/check", json!({ "domian": a }), "domian", "", "domain"),
        ("/v1/check", json!({ "domain": a, "max_wait_ms": 5 }), "max_wait_ms", "", "intent"),
        ("/v1/check", json!([]), "body", "[…]", "an object"),
        ("/v1/check", json!(["https://a.example/"]), "body", "[…]", "an object"),
        ("/v1/check/batch", json!({ "checks": [["https://a.example/"]] }), "checks[0]", "[…]", "an object"),
        ("/v1/check", json!("a.example"), "body", "…", ""),
        ("/v1/check", json!(null), "body", "null", ""),
        ("/v1/peek", json!({ "domain": a, "permit": "p1." }), "permit", "", "domain"),
        ("/v1/acquire", json!({ "domain": a, "max_wait_ms": -1 }), "max_wait_ms", "-1", ""),
        ("/v1/acquire", json!({ "domain": a, "max_wait_ms": 1.5 }), "max_wait_ms", "1.5", ""),
        ("/v1/acquire", json!({ "domain": a, "max_wait_ms": "5" }), "max_wait_ms", "5", ""),
        ("/v1/acquire", json!({ "domain": a, "max_wait_ms": null }), "max_wait_ms", "null", ""),
        ("/v1/record", json!({ "domain": a }), "outcome", "", "both are missing"),
        ("/v1/record", json!({ "outcome": "success" }), "domain", "", "both are missing"),
        (
            "/v1/record",
            json!({ "domain": a, "outcome": "success", "status": 200 }),
            "outcome",
            "",
            "not both",
        ),
        ("/v1/record", json!({ "domain": a, "outcome": "ok" }), "outcome", "ok", "rate_limited"),
        ("/v1/record", json!({ "domain": a, "outcome": null }), "outcome", "null", ""),
        ("/v1/record", json!({ "domain": a, "status": 99 }), "status", "99", "100 to 599"),
        ("/v1/record", json!({ "domain": a, "status": 600 }), "status", "600", "100 to 599"),
        ("/v1/record", json!({ "domain": a, "status": 70_000 }), "status", "70000", ""),
        ("/v1/record", json!({ "domain": a, "status": "200" }), "status", "200", ""),
        ("/v1/record", json!({ "domain": a, "status": -200 }), "status", "-200", ""),
        (
            "/v1/record",
            json!({ "domain": a, "status": 200, "retry_after": true }),
            "retry_after",
            "true",
            "seconds",
        ),
        (
            "/v1/record",
            json!({ "domain": a, "status": 200, "retry_after": null }),
            "retry_after",
            "null",
            "seconds",
        ),
        ("/v1/record", json!({ "domain": a, "status": 200, "ratelimit": 5 }), "ratelimit", "5", "string"),
        ("/v1/record", json!({ "domain": a, "status": 200, "headers": [] }), "headers", "[…]", "map"),
        (
            "/v1/record",
            json!({ "domain": a, "status": 200, "headers": { "Retry-After": 5 } }),
            "headers.Retry-After",
            "5",
            "string",
        ),
        ("/v1/record", json!({ "domain": a, "status": 200, "latency_ms": -5 }), "latency_ms", "-5", ""),
        ("/v1/record", json!({ "permit": "p1.x", "domain": a, "status": 200 }), "permit", "", "alone"),
        ("/v1/check/batch", json!({ "checks": {} }), "checks", "{…}", "sequence"),
        ("/v1/check/batch", json!({}), "checks", "", "missing"),
        (
            "/v1/check/batch",
            json!({ "checks": [{ "domain": a, "intent": "post" }] }),
            "checks[0].intent",
            "post",
            "fetch",
        ),
        (
            "/v1/record/batch",
            json!({ "records": [{ "domain": a, "outcome": "ok" }] }),
            "records[0].outcome",
            "ok",
            "timeout",
        ),
        ("/v1/jobs", json!({ "urls": [] }), "name", "", "missing"),
        ("/v1/jobs", json!({ "name": "n", "urls": [5] }), "urls[0]", "5", "string"),
    ];
    for (path, body, field, value, allowed) in cases {
        let problem = served.post(path, body.clone()).await.refused(422);
        let text = |name: &str| problem[name].as_str().unwrap_or_default().to_owned();
        assert_eq!(text("field"), *field, "{path} {body}: {problem}");
        assert!(text("value").contains(value), "{path} {body}: {problem}");
        assert!(!text("allowed").is_empty() && text("allowed").contains(allowed), "{path} {body}: {problem}");
        assert!(text("detail").starts_with(field), "{path} {body}: {problem}");
        assert!(!text("allowed").contains("struct "), "words of ours, not of the code: {problem}");
    }
    assert_eq!(decided(&served.check(a).await), "proceed", "nothing of it reserved or recorded anything");
}

#[tokio::test]
async fn what_is_not_json_is_refused_before_anything_is_read_into_it() {
    let served = serve(COLLECTOR).await;
    let deep = [vec![b'['; 100_000], vec![b']'; 100_000]].concat();
    let deep_field =
        format!("{{\"domain\": \"a.example\", \"x\": {}1{}}}", "[".repeat(1_000), "]".repeat(1_000));
    let bodies: &[&[u8]] = &[
        b"",
        b" ",
        b"{",
        b"{\"domain\": \"a.example\"",
        b"{\"domain\": \"a.example\",}",
        b"{'domain': 'a.example'}",
        b"{\"domain\": \"a.example\"} {}",
        b"domain=a.example",
        b"\xef\xbb\xbf{\"domain\": \"a.example\"}",
        b"{\"domain\": \"\xff\xfe\"}",
        b"\xff",
        b"{\"domain\": NaN}",
        b"{\"domain\": 1e999}",
        b"{\"domain\": \"\x01\"}",
        b"{\"domain\": \"\\ud800\"}",
        &deep,
        deep_field.as_bytes(),
    ];
    for body in bodies {
        let ask = served.posting("/v1/check", &json!(null)).body(*body);
        ask.send().await.refused(400);
    }
    assert_eq!(decided(&served.check("a.example").await), "proceed");
}

/// One value for each field: whoever sends two may mean either.
#[tokio::test]
async fn a_field_that_is_there_twice_is_named() {
    let served = serve(COLLECTOR).await;
    for (path, body, field) in [
        ("/v1/check", r#"{"domain": "a.example", "domain": "b.example"}"#, "domain"),
        ("/v1/record", r#"{"domain": "a.example", "status": 200, "status": 429}"#, "status"),
        (
            "/v1/check/batch",
            r#"{"checks": [{"domain": "a.example", "domain": "b.example"}]}"#,
            "checks[0].domain",
        ),
    ] {
        let problem = served.posting(path, &json!(null)).body(body).send().await.refused(422);
        assert_eq!(problem["field"], field, "{problem}");
        assert!(problem["detail"].as_str().unwrap().contains("more than once"), "{problem}");
    }
}

#[tokio::test]
async fn a_body_must_be_said_to_be_json() {
    let served = serve(COLLECTOR).await;
    let body = json!({ "domain": "a.example" });
    for path in ["/v1/check", "/v1/peek", "/v1/acquire", "/v1/record", "/v1/check/batch", "/v1/jobs"] {
        served.posting(path, &body).without("content-type").send().await.refused(415);
        for said in ["text/plain", "application/x-www-form-urlencoded", "application/jsonx", "json"] {
            served.posting(path, &body).header("content-type", said).send().await.refused(415);
        }
    }
    for said in ["application/json; charset=utf-8", "Application/JSON", "application/json ;x=y"] {
        let answer = served.posting("/v1/peek", &body).header("content-type", said).send().await;
        assert_eq!(answer.status, 200, "{said}");
    }
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused() {
    let served = serve("[serve]\nbody_max = \"1KiB\"\n").await;
    let fits = json!({ "url": format!("https://a.example/{}", "x".repeat(900)) });
    assert_eq!(served.post("/v1/peek", fits).await.status, 200);
    let large = json!({ "url": format!("https://a.example/{}", "x".repeat(1_100)) });
    for keyed in [false, true] {
        let mut ask = served.posting("/v1/check", &large);
        if keyed {
            ask = ask.header("idempotency-key", "one");
        }
        let problem = ask.send().await.refused(413);
        assert!(problem["detail"].as_str().unwrap().contains("1024"), "{problem}");
    }
}

#[tokio::test]
async fn a_path_takes_its_own_methods_only() {
    let served = serve(COLLECTOR).await;
    for (method, path) in [
        (http::Method::GET, "/v1/check"),
        (http::Method::PUT, "/v1/domains/a.example"),
        (http::Method::POST, "/v1/domains"),
        (http::Method::DELETE, "/v1/jobs"),
        (http::Method::POST, "/healthz"),
        (http::Method::OPTIONS, "/v1/check"),
    ] {
        let answer = served.ask(method, path).send().await;
        answer.refused(405);
        assert!(!answer.header("allow").is_empty(), "{path}");
    }
}
