//! Invalid requests are refused, and the response says what is wrong.

use serde_json::{Value, json};

use crate::script::decided;
use crate::server::{COLLECTOR, serve};

/// B71
#[tokio::test]
async fn an_invalid_field_is_named_with_its_value_and_what_is_allowed() {
    let server = serve(COLLECTOR).await;
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
        ("/v1/record", json!({ "domain": a, "status": 99 }), "status", "99", "100 to 999"),
        ("/v1/record", json!({ "domain": a, "status": 1_000 }), "status", "1000", "100 to 999"),
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
        let problem = server.post(path, body.clone()).await.problem(422);
        let text = |name: &str| problem[name].as_str().unwrap_or_default().to_owned();
        assert_eq!(text("field"), *field, "{path} {body}: {problem}");
        assert!(text("value").contains(value), "{path} {body}: {problem}");
        assert!(!text("allowed").is_empty() && text("allowed").contains(allowed), "{path} {body}: {problem}");
        assert!(text("detail").starts_with(field), "{path} {body}: {problem}");
        assert!(!text("allowed").contains("struct "), "no type names in errors: {problem}");
    }
    assert_eq!(
        decided(&server.check(a).await),
        "proceed",
        "none of these requests reserved or recorded anything"
    );
}

#[tokio::test]
async fn invalid_json_is_refused() {
    let server = serve(COLLECTOR).await;
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
        let ask = server.post_request("/v1/check", &json!(null)).body(*body);
        ask.send().await.problem(400);
    }
    assert_eq!(decided(&server.check("a.example").await), "proceed");
}

/// A field with two values is ambiguous.
#[tokio::test]
async fn a_duplicate_field_is_named() {
    let server = serve(COLLECTOR).await;
    for (path, body, field) in [
        ("/v1/check", r#"{"domain": "a.example", "domain": "b.example"}"#, "domain"),
        ("/v1/record", r#"{"domain": "a.example", "status": 200, "status": 429}"#, "status"),
        (
            "/v1/check/batch",
            r#"{"checks": [{"domain": "a.example", "domain": "b.example"}]}"#,
            "checks[0].domain",
        ),
    ] {
        let problem = server.post_request(path, &json!(null)).body(body).send().await.problem(422);
        assert_eq!(problem["field"], field, "{problem}");
        assert!(problem["detail"].as_str().unwrap().contains("more than once"), "{problem}");
    }
}

#[tokio::test]
async fn a_content_type_other_than_json_is_refused() {
    let server = serve(COLLECTOR).await;
    let body = json!({ "domain": "a.example" });
    for path in ["/v1/check", "/v1/peek", "/v1/acquire", "/v1/record", "/v1/check/batch", "/v1/jobs"] {
        server.post_request(path, &body).without("content-type").send().await.problem(415);
        for value in ["text/plain", "application/x-www-form-urlencoded", "application/jsonx", "json"] {
            server.post_request(path, &body).header("content-type", value).send().await.problem(415);
        }
    }
    for value in ["application/json; charset=utf-8", "Application/JSON", "application/json ;x=y"] {
        let answer = server.post_request("/v1/peek", &body).header("content-type", value).send().await;
        assert_eq!(answer.status, 200, "{value}");
    }
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused() {
    let server = serve("[serve]\nbody_max = \"1KiB\"\n").await;
    let fits = json!({ "url": format!("https://a.example/{}", "x".repeat(900)) });
    assert_eq!(server.post("/v1/peek", fits).await.status, 200);
    let large = json!({ "url": format!("https://a.example/{}", "x".repeat(1_100)) });
    for keyed in [false, true] {
        let mut ask = server.post_request("/v1/check", &large);
        if keyed {
            ask = ask.header("idempotency-key", "one");
        }
        let problem = ask.send().await.problem(413);
        assert!(problem["detail"].as_str().unwrap().contains("1024"), "{problem}");
    }
}

#[tokio::test]
async fn unsupported_methods_are_refused() {
    let server = serve(COLLECTOR).await;
    for (method, path) in [
        (http::Method::GET, "/v1/check"),
        (http::Method::PUT, "/v1/domains/a.example"),
        (http::Method::POST, "/v1/domains"),
        (http::Method::DELETE, "/v1/jobs"),
        (http::Method::POST, "/healthz"),
        (http::Method::OPTIONS, "/v1/check"),
    ] {
        let answer = server.request(method, path).send().await;
        answer.problem(405);
        assert!(!answer.header("allow").is_empty(), "{path}");
    }
}
