//! Who may ask what.

use comity::clock::Clock;
use comity_server::ServeError;
use http::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::served::{BEGIN, COLLECTOR, Served, config, configured, serve, serve_by, serve_with};

const USE: &str = "a-token-to-use-the-service";
const ADMIN: &str = "a-token-to-steer-the-service";

/// With the tokens in the configuration, as hashes.
async fn guarded() -> Served {
    let line = |role, plain| comity::config::Token::of(role, plain).line();
    let tokens = [line(comity::config::Role::Use, USE), line(comity::config::Role::Admin, ADMIN)];
    assert!(!tokens.concat().contains("token"));
    serve(&format!("{COLLECTOR}[serve]\ntokens = [\"{}\", \"{}\"]\n", tokens[0], tokens[1])).await
}

#[tokio::test]
async fn without_a_token_nobody_is_let_in() {
    let served = guarded().await;
    assert!(!served.is_open());
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
        for said in
            ["", "Bearer", "Bearer ", "Bearer wrong", &format!("Basic {USE}"), USE, &format!("Bearer {USE}x")]
        {
            let mut ask = served.ask(method.clone(), path);
            if !said.is_empty() {
                ask = ask.header("authorization", said);
            }
            let answer = ask.send().await;
            answer.refused(401);
            assert_eq!(answer.header("www-authenticate"), "Bearer realm=\"comity\"", "{path}");
        }
    }
    for path in ["/healthz", "/readyz", "/openapi.json"] {
        assert_eq!(served.get(path).await.status, 200, "{path} is for everybody");
    }
}

#[tokio::test]
async fn a_token_to_use_it_asks_and_looks() {
    let served = guarded().await.by(USE);
    let permit = served.permit("a.example").await;
    assert_eq!(served.peek("a.example").await["proceed"], false);
    let acquired = served.post("/v1/acquire", json!({ "domain": "b.example" })).await.ok();
    assert_eq!(acquired["proceed"], true);
    assert_eq!(served.record(json!({ "permit": permit, "status": 429 })).await["standing"], "fresh");
    for path in [
        "/v1/domains",
        "/v1/domains/a.example",
        "/v1/domains/a.example/explain",
        "/v1/jobs",
        "/v1/sources",
        "/metrics",
    ] {
        assert_eq!(served.get(path).await.status, 200, "{path}");
    }
}

/// B25: what it has no permit for it cannot tell, and so cannot close a domain for others.
#[tokio::test]
async fn a_token_to_use_it_records_with_a_permit_only() {
    let served = guarded().await.by(USE);
    let record = json!({ "domain": "a.example", "status": 429, "retry_after": 86_400 });
    served.post("/v1/record", record.clone()).await.refused(403);
    let permit = served.permit("a.example").await;
    let records = json!({ "records": [{ "permit": permit, "status": 500 }, record] });
    served.post("/v1/record/batch", records).await.refused(403);
    let shown = served.get("/v1/domains/a.example").await.ok();
    assert_eq!(shown["live"]["penalties"], 0, "nothing of it was recorded");
}

#[tokio::test]
async fn a_token_to_use_it_steers_nothing() {
    let served = guarded().await.by(USE);
    served.permit("a.example").await;
    for (method, path, body) in [
        (Method::PATCH, "/v1/domains/a.example", json!({ "paused": true })),
        (Method::DELETE, "/v1/domains/a.example", Value::Null),
        (Method::POST, "/v1/jobs", json!({ "name": "news" })),
        (Method::POST, "/v1/jobs/news/tasks", json!({ "urls": ["https://a.example/"] })),
        (Method::POST, "/v1/jobs/news/cancel", Value::Null),
        (Method::POST, "/v1/jobs/news/retry", Value::Null),
    ] {
        let ask = served.ask(method, path).header("content-type", "application/json").body(body.to_string());
        ask.send().await.refused(403);
    }
    let served = served.by(ADMIN);
    assert_eq!(served.patch("/v1/domains/a.example", json!({ "paused": true })).await.status, 200);
    assert_eq!(served.post("/v1/jobs", json!({ "name": "news" })).await.status, 201);
    let record = json!({ "domain": "a.example", "status": 429 });
    assert_eq!(served.post("/v1/record", record).await.status, 200);
}

#[tokio::test]
async fn tokens_come_from_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokens");
    let (made, line) = comity_server::make_token(comity::config::Role::Admin);
    std::fs::write(&path, format!("# who may ask\n\nuse:{USE}\n{line}\n")).unwrap();
    let toml = format!("{COLLECTOR}[serve]\ntokens_file = \"{}\"\n", path.display());
    let served = serve(&toml).await.by(USE);
    assert_eq!(served.check("a.example").await["proceed"], true);
    served.delete("/v1/domains/a.example").await.refused(403);
    assert_eq!(served.by(&made).delete("/v1/domains/a.example").await.status, 200);
}

/// B71, B75: a file that cannot be used is named, its lines are not repeated.
#[tokio::test]
async fn a_file_that_cannot_be_used_stops_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokens");
    let toml = format!("[serve]\ntokens_file = \"{}\"\n", path.display());
    let start = async || {
        let (clock, hands) = Clock::manual(BEGIN);
        match serve_by(config(&toml), clock, hands).await {
            Err(error) => error.to_string(),
            Ok(_) => panic!("it started"),
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
async fn tokens_come_from_the_environment() {
    let tokens = format!("use:{USE},admin:{ADMIN}");
    let served = serve_with(configured(COLLECTOR, &[("COMITY_SERVE_TOKENS", &tokens)])).await.by(USE);
    assert_eq!(served.check("a.example").await["proceed"], true);
    served.delete("/v1/domains/a.example").await.refused(403);
    assert_eq!(served.by(ADMIN).delete("/v1/domains/a.example").await.status, 200);
}

/// An empty file of tokens is no door that stands open.
#[tokio::test]
async fn beyond_loopback_it_listens_with_tokens_only() {
    let start = async |toml: &str| {
        let (clock, hands) = Clock::manual(BEGIN);
        serve_by(config(toml), clock, hands).await
    };
    for listen in ["0.0.0.0:0", "[::]:0"] {
        match start(&format!("[serve]\nlisten = \"{listen}\"\n")).await {
            Err(ServeError::Open(_)) => {}
            Err(error) if listen.starts_with('[') => eprintln!("no IPv6 here: {error}"),
            Err(error) => panic!("{error}"),
            Ok(_) => panic!("it listens on {listen} without tokens"),
        }
    }
    let line = comity::config::Token::of(comity::config::Role::Use, USE).line();
    let served = start(&format!("[serve]\nlisten = \"0.0.0.0:0\"\ntokens = [\"{line}\"]\n")).await.unwrap();
    assert!(!served.is_open());
}

/// Without tokens, on loopback: no page in a browser can drive it.
#[tokio::test]
async fn web_pages_and_other_names_are_refused() {
    let served = serve(COLLECTOR).await;
    assert!(served.is_open());
    let port = served.address().port();
    let body = json!({ "domain": "a.example" });
    let ask = |name: &str, value: &str| served.posting("/v1/check", &body).header(name, value).send();
    for host in [
        "evil.example",
        &format!("evil.example:{port}"),
        "localhost.evil.example",
        "10.0.0.1",
        "127.0.0.1.nip.io",
    ] {
        ask("host", host).await.refused(403);
    }
    for origin in ["https://evil.example", "null", "http://localhost:1", "file://"] {
        ask("origin", origin).await.refused(403);
    }
    for site in ["cross-site", "same-site"] {
        ask("sec-fetch-site", site).await.refused(403);
    }
    assert_eq!(served.peek("a.example").await["proceed"], true, "nothing of it took the slot");
    for host in ["localhost", &format!("localhost:{port}"), "127.0.0.1", &format!("[::1]:{port}")] {
        assert_eq!(ask("host", host).await.status, 200, "{host}");
    }
    let own = format!("http://127.0.0.1:{port}");
    assert_eq!(ask("origin", &own).await.status, 200);
    for path in ["/v1/domains", "/metrics", "/v1/events", "/v1/jobs"] {
        served.ask(Method::GET, path).header("host", "evil.example").send().await.refused(403);
    }
}

/// B82: as bytes on the wire, on the way that most requests take and on that of the others.
#[tokio::test]
async fn two_host_lines_or_half_a_name_are_refused() {
    let served = serve(COLLECTOR).await;
    let port = served.address().port();
    let ours = format!("localhost:{port}");
    for (method, path) in
        [("POST", "/v1/check"), ("POST", "/v1/record"), ("GET", "/v1/domains"), ("GET", "/metrics")]
    {
        let raw = async |target: String, hosts: &[&str]| {
            let hosts: String = hosts.iter().map(|host| format!("Host: {host}\r\n")).collect();
            let body = "Content-Type: application/json\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
            let mut stream = tokio::net::TcpStream::connect(served.address()).await.unwrap();
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
async fn names_that_are_listed_are_answered_to() {
    let served = serve("[serve]\nhosts = [\"comity.internal\"]\n").await;
    let ask = |host: &str| {
        served.posting("/v1/check", &json!({ "domain": "a.example" })).header("host", host).send()
    };
    assert_eq!(ask("comity.internal").await.status, 200);
    assert_eq!(ask("COMITY.internal:7878").await.status, 200);
    ask("other.internal").await.refused(403);
}
