//! Tokens and roles, and protection against web pages.

use comity::clock::Clock;
use comity_server::ServeError;
use http::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::server::{
    COLLECTOR, START, TestServer, config, config_with_env, serve, serve_with, serve_with_clock,
};

const USE: &str = "a-token-to-use-the-service";
const ADMIN: &str = "a-token-to-steer-the-service";

/// A service with tokens in its configuration, as hashes.
async fn guarded() -> TestServer {
    let line = |role, plain| comity::config::Token::of(role, plain).line();
    let tokens = [line(comity::config::Role::Use, USE), line(comity::config::Role::Admin, ADMIN)];
    assert!(!tokens.concat().contains("token"));
    serve(&format!("{COLLECTOR}[serve]\ntokens = [\"{}\", \"{}\"]\n", tokens[0], tokens[1])).await
}

#[tokio::test]
async fn requests_without_a_valid_token_are_refused() {
    let server = guarded().await;
    assert!(!server.is_open());
    for (method, path) in [
        (Method::POST, "/v1/check"),
        (Method::POST, "/v1/acquire"),
        (Method::POST, "/v1/record"),
        (Method::GET, "/v1/domains"),
        (Method::DELETE, "/v1/domains/a.example"),
        (Method::GET, "/v1/jobs"),
        (Method::GET, "/v1/sources"),
        (Method::GET, "/v1/events"),
        (Method::GET, "/metrics"),
    ] {
        for value in
            ["", "Bearer", "Bearer ", "Bearer wrong", &format!("Basic {USE}"), USE, &format!("Bearer {USE}x")]
        {
            let mut ask = server.request(method.clone(), path);
            if !value.is_empty() {
                ask = ask.header("authorization", value);
            }
            let answer = ask.send().await;
            answer.problem(401);
            assert_eq!(answer.header("www-authenticate"), "Bearer realm=\"comity\"", "{path}");
        }
    }
    for path in ["/healthz", "/readyz", "/openapi.json"] {
        assert_eq!(server.get(path).await.status, 200, "{path} needs no token");
    }
}

#[tokio::test]
async fn the_role_use_may_ask_and_inspect() {
    let server = guarded().await.with_token(USE);
    let permit = server.permit("a.example").await;
    assert_eq!(server.peek("a.example").await["proceed"], false);
    let acquired = server.post("/v1/acquire", json!({ "domain": "b.example" })).await.ok();
    assert_eq!(acquired["proceed"], true);
    assert_eq!(server.record(json!({ "permit": permit, "status": 429 })).await["standing"], "fresh");
    for path in [
        "/v1/domains",
        "/v1/domains/a.example",
        "/v1/domains/a.example/explain",
        "/v1/jobs",
        "/v1/sources",
        "/metrics",
    ] {
        assert_eq!(server.get(path).await.status, 200, "{path}");
    }
}

/// B25: recording without a permit could close a domain for everybody.
#[tokio::test]
async fn the_role_use_records_only_with_a_permit() {
    let server = guarded().await.with_token(USE);
    let record = json!({ "domain": "a.example", "status": 429, "retry_after": 86_400 });
    server.post("/v1/record", record.clone()).await.problem(403);
    let permit = server.permit("a.example").await;
    let records = json!({ "records": [{ "permit": permit, "status": 500 }, record] });
    server.post("/v1/record/batch", records).await.problem(403);
    let shown = server.get("/v1/domains/a.example").await.ok();
    assert_eq!(shown["live"]["penalties"], 0, "nothing was recorded");
}

#[tokio::test]
async fn the_role_use_may_not_change_domains_or_jobs() {
    let server = guarded().await.with_token(USE);
    server.permit("a.example").await;
    for (method, path, body) in [
        (Method::PATCH, "/v1/domains/a.example", json!({ "paused": true })),
        (Method::DELETE, "/v1/domains/a.example", Value::Null),
        (Method::POST, "/v1/jobs", json!({ "name": "news" })),
        (Method::POST, "/v1/jobs/news/tasks", json!({ "urls": ["https://a.example/"] })),
        (Method::POST, "/v1/jobs/news/cancel", Value::Null),
        (Method::POST, "/v1/jobs/news/retry", Value::Null),
    ] {
        let ask =
            server.request(method, path).header("content-type", "application/json").body(body.to_string());
        ask.send().await.problem(403);
    }
    let server = server.with_token(ADMIN);
    assert_eq!(server.patch("/v1/domains/a.example", json!({ "paused": true })).await.status, 200);
    assert_eq!(server.post("/v1/jobs", json!({ "name": "news" })).await.status, 201);
    let record = json!({ "domain": "a.example", "status": 429 });
    assert_eq!(server.post("/v1/record", record).await.status, 200);
}

#[tokio::test]
async fn tokens_can_come_from_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokens");
    let (made, line) = comity_server::make_token(comity::config::Role::Admin);
    std::fs::write(&path, format!("# who may ask\n\nuse:{USE}\n{line}\n")).unwrap();
    let toml = format!("{COLLECTOR}[serve]\ntokens_file = \"{}\"\n", path.display());
    let server = serve(&toml).await.with_token(USE);
    assert_eq!(server.check("a.example").await["proceed"], true);
    server.delete("/v1/domains/a.example").await.problem(403);
    assert_eq!(server.with_token(&made).delete("/v1/domains/a.example").await.status, 200);
}

/// B71, B75: the error names the file and the line, but does not repeat the line.
#[tokio::test]
async fn an_invalid_tokens_file_prevents_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokens");
    let toml = format!("[serve]\ntokens_file = \"{}\"\n", path.display());
    let start = async || {
        let (clock, control) = Clock::manual(START);
        match serve_with_clock(config(&toml), clock, control).await {
            Err(error) => error.to_string(),
            Ok(_) => panic!("the service started"),
        }
    };
    assert!(start().await.starts_with("serve.tokens_file = "), "{}", start().await);
    for text in [
        "use:short",
        "somebody:a-long-enough-secret",
        "a-long-enough-secret",
        "use:with a space in the secret",
    ] {
        std::fs::write(&path, format!("use:{USE}\n{text}\n")).unwrap();
        let error = start().await;
        assert!(error.contains("line 2") && !error.contains("secret"), "{error}");
    }
}

#[tokio::test]
async fn tokens_can_come_from_the_environment() {
    let tokens = format!("use:{USE},admin:{ADMIN}");
    let server =
        serve_with(config_with_env(COLLECTOR, &[("COMITY_SERVE_TOKENS", &tokens)])).await.with_token(USE);
    assert_eq!(server.check("a.example").await["proceed"], true);
    server.delete("/v1/domains/a.example").await.problem(403);
    assert_eq!(server.with_token(ADMIN).delete("/v1/domains/a.example").await.status, 200);
}

#[tokio::test]
async fn listening_beyond_loopback_requires_tokens() {
    let start = async |toml: &str| {
        let (clock, control) = Clock::manual(START);
        serve_with_clock(config(toml), clock, control).await
    };
    for listen in ["0.0.0.0:0", "[::]:0"] {
        match start(&format!("[serve]\nlisten = \"{listen}\"\n")).await {
            Err(ServeError::NoTokens(_)) => {}
            Err(error) if listen.starts_with('[') => eprintln!("no IPv6 on this machine: {error}"),
            Err(error) => panic!("{error}"),
            Ok(_) => panic!("the service listens on {listen} without tokens"),
        }
    }
    let line = comity::config::Token::of(comity::config::Role::Use, USE).line();
    let server = start(&format!("[serve]\nlisten = \"0.0.0.0:0\"\ntokens = [\"{line}\"]\n")).await.unwrap();
    assert!(!server.is_open());
}

/// Without tokens, on loopback: no web page in a browser can use the service.
#[tokio::test]
async fn web_pages_and_other_host_names_are_refused() {
    let server = serve(COLLECTOR).await;
    assert!(server.is_open());
    let port = server.address().port();
    let body = json!({ "domain": "a.example" });
    let ask = |name: &str, value: &str| server.post_request("/v1/check", &body).header(name, value).send();
    for host in [
        "evil.example",
        &format!("evil.example:{port}"),
        "localhost.evil.example",
        "10.0.0.1",
        "127.0.0.1.nip.io",
    ] {
        ask("host", host).await.problem(403);
    }
    for origin in ["https://evil.example", "null", "http://localhost:1", "file://"] {
        ask("origin", origin).await.problem(403);
    }
    for site in ["cross-site", "same-site"] {
        ask("sec-fetch-site", site).await.problem(403);
    }
    assert_eq!(server.peek("a.example").await["proceed"], true, "none of these requests reserved a slot");
    for host in ["localhost", &format!("localhost:{port}"), "127.0.0.1", &format!("[::1]:{port}")] {
        assert_eq!(ask("host", host).await.status, 200, "{host}");
    }
    let own = format!("http://127.0.0.1:{port}");
    assert_eq!(ask("origin", &own).await.status, 200);
    for path in ["/v1/domains", "/metrics", "/v1/events", "/v1/jobs"] {
        server.request(Method::GET, path).header("host", "evil.example").send().await.problem(403);
    }
}

/// B82: sent as raw bytes, both to paths that bypass the router and to others.
#[tokio::test]
async fn duplicate_or_partially_matching_host_headers_are_refused() {
    let server = serve(COLLECTOR).await;
    let port = server.address().port();
    let ours = format!("localhost:{port}");
    for (method, path) in
        [("POST", "/v1/check"), ("POST", "/v1/record"), ("GET", "/v1/domains"), ("GET", "/metrics")]
    {
        let raw = async |target: String, hosts: &[&str]| {
            let hosts: String = hosts.iter().map(|host| format!("Host: {host}\r\n")).collect();
            let body = "Content-Type: application/json\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
            let mut stream = tokio::net::TcpStream::connect(server.address()).await.unwrap();
            let head = format!("{method} {target} HTTP/1.1\r\n{hosts}{body}");
            stream.write_all(head.as_bytes()).await.unwrap();
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).await.unwrap();
            String::from_utf8_lossy(&answer).split(' ').nth(1).unwrap().to_owned()
        };
        let refused: &[&[&str]] = &[
            &[],
            &[&ours, &ours],
            &[&ours, "evil.example"],
            &["evil.example", &ours],
            &["[::1].evil"],
            &["127.0.0.1.evil"],
            &["localhost.evil"],
            &["localhost:7878.evil"],
            &["localhost:7878@evil"],
            &["evil@localhost"],
        ];
        for hosts in refused {
            assert_eq!(raw(path.to_owned(), hosts).await, "403", "{path} {hosts:?}");
        }
        assert_eq!(raw(format!("http://evil.example{path}"), &[&ours]).await, "403", "{path}");
        assert_ne!(raw(format!("http://{ours}{path}"), &[&ours]).await, "403", "{path}");
        assert_ne!(raw(path.to_owned(), &["[::1]:80"]).await, "403", "{path}");
    }
}

#[tokio::test]
async fn host_names_listed_in_serve_hosts_are_accepted() {
    let server = serve("[serve]\nhosts = [\"comity.internal\"]\n").await;
    let ask = |host: &str| {
        server.post_request("/v1/check", &json!({ "domain": "a.example" })).header("host", host).send()
    };
    assert_eq!(ask("comity.internal").await.status, 200);
    assert_eq!(ask("COMITY.internal:7878").await.status, 200);
    ask("other.internal").await.problem(403);
}
