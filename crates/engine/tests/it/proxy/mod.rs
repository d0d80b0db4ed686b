//! The proxy: what clients and sites see of it.

mod https;
mod streaming;
mod support;

use std::time::Duration;

use comity::config::{RobotsPolicy, Role, Token};
use comity::proxy::ProxySettings;
use comity_core::time::Span;
use http::Version;
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::{TokioExecutor, TokioIo};

use self::support::{OPEN, body, header, proxied, rest, short_wait, status};
use crate::support::{Site, eventually, ms, reply, waiting};

const PACED: &str = "[default]\nmin_delay = \"300ms\"\n[http]\nallow_private = [\"127.0.0.0/8\"]\n";

#[tokio::test]
async fn requests_wait_for_their_turn_and_say_for_how_long_and_why() {
    let site = Site::start(|_| reply(200)).await;
    let proxied = proxied(PACED, ProxySettings::default()).await;
    let first = proxied.get(&site.url("/1")).await;
    let (second, third) = (site.url("/2"), site.url("/3"));
    let (second, third) = tokio::join!(proxied.get(&second), proxied.get(&third));
    for response in [&first, &second, &third] {
        assert_eq!((status(response), body(response)), (200, "a page"), "{response}");
    }
    assert_eq!(header(&first, "Comity-Reason"), None);
    assert!(header(&second, "Comity-Waited").unwrap().parse::<u64>().unwrap() > 0, "{second}");
    assert!(header(&second, "Comity-Reason").unwrap().contains("minimum delay 300 ms"), "{second}");
    assert_eq!(site.asked().len(), 3);
    assert!(site.gaps(1).iter().all(|gap| *gap >= ms(299)), "{:?}", site.gaps(1));
    let counts = proxied.proxy.counts();
    assert_eq!((counts.requests, counts.refused, counts.rate_limited), (3, 0, 0));
    assert!(counts.waited >= ms(300));
}

/// B86
#[tokio::test]
async fn a_request_is_passed_on_as_it_came_without_credentials_of_ours() {
    let site = Site::start(|_| {
        reply(200)
            .header("Alt-Svc", "h3=\":443\"")
            .header("Keep-Alive", "timeout=9")
            .header("X-Theirs", "kept")
    })
    .await;
    let host = site.url("").replace("http://", "");
    let toml = format!(
        "{OPEN}user_agent = \"Configured/1.0\"\ncontact = \"ops@example.org\"\n[default.request]\nheaders = {{ \"Accept-Language\" = \"de\" }}\n\
         [domains.\"{host}\".request]\nheaders = {{ \"X-Api-Key\" = \"secret\" }}\ncookies = {{ session = \"secret\" }}\n"
    );
    let proxied = proxied(&toml, ProxySettings::default()).await;
    let lines = "User-Agent: theirs/2\r\nX-Twice: 1\r\nX-Twice: 2\r\nProxy-Connection: keep-alive\r\nTE: trailers\r\n";
    let response = proxied.get_with(&site.url("/a%2Fb/../c?d=|"), lines).await;
    assert_eq!(header(&response, "x-theirs"), Some("kept"));
    assert_eq!((header(&response, "alt-svc"), header(&response, "keep-alive")), (None, None));
    let asked = site.asked().remove(0);
    assert_eq!(asked.path, "/a%2Fb/../c?d=|", "as the client wrote it");
    assert_eq!(asked.header("user-agent"), Some("theirs/2"));
    assert_eq!(asked.head.matches("x-twice").count(), 2);
    assert!(asked.header("via").unwrap().starts_with("1.1 comity-"));
    for name in
        ["x-api-key", "cookie", "accept-language", "accept", "proxy-connection", "te", "accept-encoding"]
    {
        assert_eq!(asked.header(name), None, "{name}");
    }
}

/// B76
#[tokio::test]
async fn the_proxy_is_no_way_into_private_networks() {
    let site = Site::start(|_| reply(200)).await;
    let proxied = proxied("", ProxySettings::default()).await;
    let response = proxied.get(&site.url("/")).await;
    assert_eq!(status(&response), 403, "{response}");
    assert!(body(&response).contains("http.allow_private"), "{response}");
    let metadata = proxied.get("http://169.254.169.254/latest/meta-data/").await;
    assert_eq!(status(&metadata), 403, "{metadata}");
    assert!(site.asked().is_empty());
}

#[tokio::test]
async fn a_request_that_waited_for_too_long_gets_503_with_the_reason() {
    let site = Site::start(|_| reply(429).header("Retry-After", "90")).await;
    let proxied = proxied(OPEN, short_wait()).await;
    let first = proxied.get(&site.url("/")).await;
    assert_eq!((status(&first), header(&first, "retry-after")), (429, Some("90")), "{first}");
    let second = proxied.get(&site.url("/")).await;
    assert_eq!(status(&second), 503);
    let seconds: u64 = header(&second, "retry-after").unwrap().parse().unwrap();
    assert!((1..=90).contains(&seconds), "{second}");
    assert_eq!(header(&second, "content-type"), Some("application/problem+json"));
    let problem: serde_json::Value = serde_json::from_str(body(&second)).unwrap();
    assert_eq!((&problem["status"], &problem["type"]), (&503.into(), &"urn:comity:problem:wait".into()));
    assert!(problem["detail"].as_str().unwrap().contains("the server asked to wait"), "{problem}");
    assert!(header(&second, "comity-reason").unwrap().contains("the server asked to wait"));
    assert!(header(&second, "comity-waited").unwrap().parse::<u64>().unwrap() >= 50, "{second}");
    assert_eq!(site.asked().len(), 1, "nothing early");
    assert_eq!(proxied.proxy.counts().rate_limited, 1);
}

#[tokio::test]
async fn fail_fast_answers_429_at_once() {
    let site = Site::start(|_| reply(200)).await;
    let toml = PACED.replace("300ms", "60s");
    let settings = ProxySettings { fail_fast: true, ..ProxySettings::default() };
    let proxied = proxied(&toml, settings).await;
    assert_eq!(status(&proxied.get(&site.url("/")).await), 200);
    let second = proxied.get(&site.url("/")).await;
    assert_eq!(status(&second), 429);
    assert!((1..=60).contains(&header(&second, "retry-after").unwrap().parse::<u64>().unwrap()));
    assert_eq!(site.asked().len(), 1);
}

#[tokio::test]
async fn responses_are_passed_on_as_they_are_and_only_retry_hides_some() {
    let answer = |asked: &crate::support::Asked| match asked.before {
        0 => reply(503).header("Retry-After", "0"),
        _ => reply(200),
    };
    let rules =
        "[default]\nmin_delay = \"0s\"\nbackoff = \"none\"\n[http]\nallow_private = [\"127.0.0.0/8\"]\n";
    let (plain, retried) = (Site::start(answer).await, Site::start(answer).await);
    let without = proxied(rules, ProxySettings::default()).await;
    assert_eq!(status(&without.get(&plain.url("/")).await), 503);
    let with = proxied(rules, ProxySettings { retries_max: 1, ..ProxySettings::default() }).await;
    assert_eq!(status(&with.get(&retried.url("/")).await), 200);
    assert_eq!((plain.asked().len(), retried.asked().len()), (1, 2));
}

#[tokio::test]
async fn requests_with_two_lengths_are_refused() {
    let site = Site::start(|_| reply(200)).await;
    let proxied = proxied(OPEN, ProxySettings::default()).await;
    let url = site.url("/");
    for lines in
        ["Content-Length: 3\r\nTransfer-Encoding: chunked", "Transfer-Encoding: chunked\r\nContent-Length: 3"]
    {
        let response =
            proxied.send(&format!("POST {url} HTTP/1.1\r\nHost: a\r\n{lines}\r\n\r\n0\r\n\r\n")).await;
        assert_eq!((status(&response), header(&response, "connection")), (400, Some("close")), "{response}");
    }
    assert!(site.asked().is_empty());
}

#[tokio::test]
async fn with_tokens_nobody_gets_in_without_one() {
    let site = Site::start(|_| reply(200)).await;
    let token = || vec![Token::of(Role::Use, "correct-horse-battery")];
    let proxied = proxied(OPEN, ProxySettings { tokens: token(), ..ProxySettings::default() }).await;
    let refused = proxied.get(&site.url("/")).await;
    assert_eq!(
        (status(&refused), header(&refused, "proxy-authenticate")),
        (407, Some("Basic realm=\"comity\""))
    );
    let tunnel =
        proxied.send("CONNECT a.example:443 HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n").await;
    assert_eq!(status(&tunnel), 407);
    let gateway =
        proxied.send("GET /http://a.example/ HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n").await;
    assert_eq!(status(&gateway), 407);
    let allowed =
        proxied.get_with(&site.url("/"), "Proxy-Authorization: Bearer correct-horse-battery\r\n").await;
    assert_eq!(status(&allowed), 200);
    assert_eq!(site.asked()[0].header("proxy-authorization"), None);
    assert!(proxied.proxy.may_listen_on("0.0.0.0".parse().unwrap()));
    let open = support::proxied(OPEN, ProxySettings::default()).await;
    assert!(!open.proxy.may_listen_on("0.0.0.0".parse().unwrap()));
    assert!(open.proxy.may_listen_on("::1".parse().unwrap()));
}

#[tokio::test]
async fn robots_txt_is_obeyed_if_wanted() {
    let site = Site::start(|asked| match &*asked.path {
        "/robots.txt" => reply(200).body("User-agent: *\nDisallow: /private"),
        _ => reply(200),
    })
    .await;
    let obeying = ProxySettings { robots: RobotsPolicy::Obey, ..ProxySettings::default() };
    let proxied = proxied(OPEN, obeying).await;
    let refused = proxied.get(&site.url("/private/1")).await;
    assert_eq!(status(&refused), 403);
    assert!(body(&refused).contains("forbidden by robots.txt"));
    assert_eq!(status(&proxied.get(&site.url("/public")).await), 200);
    assert_eq!(site.paths(), ["/robots.txt", "/public"]);
}

#[tokio::test]
async fn a_client_that_hangs_up_leaves_the_line() {
    let site = Site::start(|_| reply(200)).await;
    let proxied = proxied(&PACED.replace("300ms", "1h"), ProxySettings::default()).await;
    assert_eq!(status(&proxied.get(&site.url("/")).await), 200);
    let url = site.url("/waits");
    let client = proxied.open(&format!("GET {url} HTTP/1.1\r\nHost: a\r\n\r\n")).await;
    eventually("it waits", || waiting(&proxied.gate, &site.domain(1)) == 1).await;
    drop(client);
    eventually("it has left", || waiting(&proxied.gate, &site.domain(1)) == 0).await;
    assert_eq!(site.asked().len(), 1);
}

#[tokio::test]
async fn those_in_line_get_an_answer_when_the_proxy_stops() {
    let site = Site::start(|_| reply(200)).await;
    let proxied = proxied(&PACED.replace("300ms", "1h"), ProxySettings::default()).await;
    assert_eq!(status(&proxied.get(&site.url("/")).await), 200);
    let mut client = proxied.open(&format!("GET {} HTTP/1.1\r\nHost: a\r\n\r\n", site.url("/"))).await;
    eventually("it waits", || waiting(&proxied.gate, &site.domain(1)) == 1).await;
    proxied.proxy.stop();
    assert_eq!(status(&rest(&mut client).await), 503);
}

#[tokio::test]
async fn http2_with_prior_knowledge_works_too() {
    let site = Site::start(|_| reply(200)).await;
    let proxied = proxied(OPEN, ProxySettings::default()).await;
    let stream = tokio::net::TcpStream::connect(proxied.address).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let request = http::Request::get(site.url("/two")).header("cookie", "a=1").header("cookie", "b=2");
    let request = request.version(Version::HTTP_2).body(Empty::<bytes::Bytes>::new()).unwrap();
    let response = sender.send_request(request).await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(&response.into_body().collect().await.unwrap().to_bytes()[..], b"a page");
    assert_eq!(site.asked()[0].header("cookie"), Some("a=1; b=2"));
}

#[tokio::test]
async fn a_request_that_comes_back_is_recognized() {
    let proxied = proxied(OPEN, ProxySettings::default()).await;
    // Its own address as a site: what it sends there arrives with its name in Via.
    let inner = format!("http://{}/http://example.org/", proxied.address);
    let response = proxied.get(&inner).await;
    assert_eq!(status(&response), 508, "{response}");
}

#[tokio::test]
async fn a_silent_client_is_disconnected() {
    let settings = ProxySettings { idle_timeout: Span::from_millis(100), ..ProxySettings::default() };
    let proxied = proxied(OPEN, settings).await;
    for text in ["", "GET http://a.example/ HTTP/1.1\r\nHost: a"] {
        let mut client = proxied.open(text).await;
        rest(&mut client).await;
    }
}

#[tokio::test]
async fn too_many_connections_are_refused_with_503() {
    let settings = ProxySettings { connections_max: 1, ..ProxySettings::default() };
    let proxied = proxied(OPEN, settings).await;
    let _first = proxied.open("GET http").await;
    let refused = loop {
        let mut second = proxied.open("").await;
        if let Ok(text) = tokio::time::timeout(Duration::from_secs(5), rest(&mut second)).await {
            break text;
        }
    };
    assert_eq!(status(&refused), 503);
}
