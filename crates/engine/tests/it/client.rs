//! The polite client against sites on loopback, judged by the sites' logs.

use std::sync::Arc;

use comity::client::{Client, ClientError, FetchRequest};
use comity::clock::Clock;
use comity::event::Events;
use comity::gate::Gate;
use comity::store::tasks::Lead;
use comity_core::intent::Intent;
use comity_core::outcome::Outcome;
use comity_core::time::Span;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

use crate::support::{Asked, ClosedPort, Reply, Site, config, domain, eventually, ms, reply, soon, waiting};

/// A fast configuration.
pub(crate) const QUICK: &str = "robots = \"ignore\"\n[default]\nmin_delay = \"10ms\"\nlearning = \"off\"\n\
    backoff_base = \"50ms\"\nbackoff_max = \"200ms\"\n";
pub(crate) const LOOPBACK: &str = "[http]\nallow_private = [\"127.0.0.0/8\"]\n";

pub(crate) fn client(toml: &str) -> Client {
    let config = config(toml);
    let gate = Gate::new(config.rules().clone(), Clock::new(), Events::new());
    Client::with(&config, gate).unwrap()
}

fn quick(more: &str) -> Client {
    client(&format!("{QUICK}{more}"))
}

async fn refusing(status: u16) -> Site {
    Site::start(move |_| reply(status)).await
}

/// B44
#[tokio::test]
async fn every_hop_is_paced_on_its_own_domain() {
    let site = Site::start(|asked: &Asked| {
        let port =
            asked.head.lines().find_map(|line| line.strip_prefix("host: ")?.split(':').nth(1)).unwrap();
        match asked.path.as_str() {
            "/a" => reply(302).header("location", &format!("http://127.0.0.2:{port}/b")),
            "/b" => reply(301).header("location", "/c"),
            "/c" => reply(307).header("location", "/d"),
            _ => reply(200),
        }
    })
    .await;
    let toml = QUICK.replace("10ms", "200ms");
    let client = client(&format!("{toml}{LOOPBACK}"));
    let page = soon("the page", client.get(&site.url("/a"))).await.unwrap();
    assert_eq!((page.status, page.url.as_str()), (200, site.url_on(2, "/d").as_str()));
    assert_eq!(site.paths(), ["/a", "/b", "/c", "/d"]);
    // The log has arrival times; the starts are 200 ms apart.
    assert!(site.gaps(2).iter().all(|gap| *gap >= ms(150)), "{:?}", site.gaps(2));
    let asked = site.asked();
    assert_ne!(asked[0].host, asked[1].host, "another domain has its own pace");
}

/// B44
#[tokio::test]
async fn endless_and_invalid_redirects_are_errors() {
    let site = Site::start(|asked: &Asked| reply(302).header("location", &format!("{}x", asked.path))).await;
    let error = soon("the end", quick("").get(&site.url("/"))).await.unwrap_err();
    assert!(matches!(error, ClientError::Redirects { max: 10, .. }), "{error}");
    assert_eq!(site.asked().len(), 11);
    let astray = Site::start(|_| reply(302).header("location", "file:///etc/passwd")).await;
    let error = quick("").get(&astray.url("/")).await.unwrap_err();
    assert!(matches!(error, ClientError::BadRedirect { .. }), "{error}");
}

/// B41, B43
#[tokio::test]
async fn refusals_and_failures_are_retried_up_to_the_limit() {
    for (status, outcome) in [
        (429, Outcome::RateLimited),
        (403, Outcome::Blocked),
        (503, Outcome::Unavailable),
        (500, Outcome::ServerError),
        (502, Outcome::ServerError),
    ] {
        let site = refusing(status).await;
        let client = quick("");
        let page = soon("the answer", client.get(&site.url("/"))).await.unwrap();
        assert_eq!((page.status, page.outcome), (status, outcome));
        assert_eq!(site.asked().len(), 4, "{status}");
        // The backoff is 50, 100, 200 ms; the log has arrival times.
        for (gap, least) in site.gaps(1).into_iter().zip([40, 90, 190]) {
            assert!(gap >= ms(least), "{status}: {:?}", site.gaps(1));
        }
        assert_eq!(client.gate().events().counters().outcome(outcome), 4);
    }
}

/// B41
#[tokio::test]
async fn a_site_that_recovers_is_fetched() {
    let site = Site::start(|asked: &Asked| reply([503, 429, 500, 200][asked.before])).await;
    let page = soon("the page", quick("").get(&site.url("/"))).await.unwrap();
    assert_eq!((page.status, &page.body[..]), (200, &b"a page"[..]));
}

/// B45
#[tokio::test]
async fn without_retries_there_is_one_attempt() {
    for status in [429, 403, 503, 500] {
        let site = refusing(status).await;
        let page = soon("the answer", quick("[job]\nmax_retries = 0\n").get(&site.url("/"))).await.unwrap();
        assert_eq!((page.status, site.asked().len()), (status, 1));
    }
    let site = Site::start(|_| reply(200).after(60_000)).await;
    let client = quick("[job]\nmax_retries = 0\n[http]\nfirst_byte_timeout = \"2s\"\n");
    let error = soon("the timeout", client.get(&site.url("/"))).await.unwrap_err();
    assert!(matches!(error, ClientError::Transport { .. }), "{error}");
    assert_eq!(site.asked().len(), 1);
}

/// B43
#[tokio::test]
async fn timeouts_and_broken_connections_are_retried() {
    let site = Site::start(|asked: &Asked| reply(200).after(if asked.before < 2 { 60_000 } else { 0 })).await;
    let client = quick("[http]\nfirst_byte_timeout = \"2s\"\n");
    assert_eq!(soon("the page", client.get(&site.url("/"))).await.unwrap().status, 200);
    assert_eq!(site.asked().len(), 3);
    assert_eq!(client.gate().events().counters().outcome(Outcome::Timeout), 2);
    let closed = ClosedPort::new();
    let url = closed.url("/");
    let client = quick("[job]\nmax_retries = 2\n");
    let error = soon("the failure", client.get(&url)).await.unwrap_err();
    assert!(matches!(error, ClientError::Transport { .. }), "{error}");
    assert_eq!(client.gate().events().counters().outcome(Outcome::NetworkError), 3);
}

/// B20, B41
#[tokio::test]
async fn retry_after_is_obeyed_by_all() {
    let site = Site::start(|asked: &Asked| match (asked.path.as_str(), asked.before) {
        ("/a", 0) => reply(429).header("retry-after", "1"),
        _ => reply(200),
    })
    .await;
    let client = Arc::new(quick(""));
    let (first, second) = (site.url("/a"), site.url("/b"));
    let theirs = client.clone();
    let other = async move {
        let refused = || theirs.gate().events().counters().outcome(Outcome::RateLimited) == 1;
        eventually("the refusal", refused).await;
        theirs.get(&second).await
    };
    let (a, b) = soon("both", async { tokio::join!(client.get(&first), other) }).await;
    assert_eq!((a.unwrap().status, b.unwrap().status), (200, 200));
    let asked = site.asked();
    let refused_at = asked[0].at;
    assert!(asked[1..].iter().all(|later| later.at.since(refused_at) >= ms(990)), "{asked:?}");
}

/// B20, B22, B37: a Retry-After used to be ignored if the body of the response broke off.
#[tokio::test]
async fn retry_after_applies_even_if_the_body_breaks_off() {
    let site = Site::start(|_| reply(429).header("retry-after", "120").cut()).await;
    let client = quick("[job]\nmax_retries = 0\n");
    let page = soon("the answer", client.get(&site.url("/"))).await.unwrap();
    assert_eq!((page.status, page.outcome), (429, Outcome::RateLimited));
    let (wait, now) = (client.gate().domain_status(&site.domain(1)).unwrap(), client.gate().clock().now());
    assert!(wait.server_until.unwrap().since(now) > Span::from_secs(110), "{wait:?}");
    // An incomplete page is an error, but its Retry-After still applies.
    let site = Site::start(|_| reply(200).header("retry-after", "120").cut()).await;
    let error = soon("the answer", client.get(&site.url("/"))).await.unwrap_err();
    assert!(matches!(error, ClientError::Transport { .. }), "{error}");
    let wait = client.gate().domain_status(&site.domain(1)).unwrap();
    assert!(wait.server_until.unwrap().since(now) > Span::from_secs(110), "{wait:?}");
}

/// B23: a refusal used to take effect only after its body had been read, which may take minutes.
#[tokio::test]
async fn a_refusal_takes_effect_before_its_body_is_read() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let dripping = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let head = b"HTTP/1.1 429 no\r\nretry-after: 120\r\ncontent-length: 9\r\n\r\n";
        stream.write_all(head).await.unwrap();
        std::future::pending::<()>().await;
    });
    let client = quick("[job]\nmax_retries = 0\n");
    let asking = tokio::spawn({
        let (client, url) = (client.clone(), format!("http://{address}/"));
        async move { client.get(&url).await }
    });
    let host = domain(&address.to_string());
    let held = || client.gate().domain_status(&host).is_some_and(|domain| domain.server_until.is_some());
    eventually("the tenure", held).await;
    assert!(!asking.is_finished(), "its body is still being read");
    let page = soon("the answer", asking).await.unwrap().unwrap();
    assert_eq!((page.status, page.body.len()), (429, 0), "its body is not waited for as long as a page");
    dripping.abort();
}

/// A request that waits however long it takes could not be stopped once.
#[tokio::test]
async fn a_waiting_request_can_be_stopped() {
    let site = Site::start(|_| reply(429).header("retry-after", "3600")).await;
    let client = quick("");
    let (stop, stopping) = tokio::sync::watch::channel(false);
    let ask = FetchRequest {
        stop: Some(stopping),
        retries_max: 3,
        ..FetchRequest::new(site.url("/").parse().unwrap(), Lead::Listed)
    };
    let asking = tokio::spawn({
        let client = client.clone();
        async move { client.fetch(&ask).await }
    });
    eventually("the wait", || waiting(client.gate(), &site.domain(1)) == 1).await;
    stop.send_replace(true);
    let stopped = soon("the end", asking).await.unwrap();
    assert!(matches!(stopped, Err(ClientError::Stopped)), "{stopped:?}");
    assert_eq!(waiting(client.gate(), &site.domain(1)), 0);
}

/// B24
#[tokio::test]
async fn a_404_is_not_retried() {
    for status in [404, 401, 410] {
        let site = refusing(status).await;
        let page = soon("the answer", quick("").get(&site.url("/"))).await.unwrap();
        assert_eq!((page.outcome, site.asked().len()), (Outcome::Answered, 1));
    }
}

/// A body over the limit is not the site's fault.
#[tokio::test]
async fn a_body_over_the_limit_is_refused_and_the_site_not_blamed() {
    let site = Site::start(|asked: &Asked| match asked.path.as_str() {
        "/large" => reply(200).body(vec![b'x'; 4_096]),
        _ => reply(200),
    })
    .await;
    let client = quick("[http]\nbody_max = \"1KiB\"\n");
    let error = soon("the refusal", client.get(&site.url("/large"))).await.unwrap_err();
    assert!(error.to_string().contains("1024 bytes"), "{error}");
    assert_eq!(site.asked().len(), 1, "a retry doesn't help");
    let penalties = client.gate().with_pace(&site.domain(1), |pace, _, _| pace.penalties()).await.unwrap();
    assert_eq!(penalties, 0, "the site answered; the limit is ours");
}

/// B76
#[tokio::test]
async fn a_redirect_to_an_unlisted_private_address_is_blocked() {
    let site = Site::start(|asked: &Asked| {
        let port: u16 = asked
            .head
            .lines()
            .find_map(|line| line.strip_prefix("host: ")?.split(':').nth(1))
            .unwrap()
            .parse()
            .unwrap();
        match asked.path.as_str() {
            "/other-host" => reply(302).header("location", &format!("http://127.0.0.2:{port}/inside")),
            "/other-port" => reply(302).header("location", &format!("http://127.0.0.1:{}/inside", port ^ 1)),
            "/same" => reply(302).header("location", "/inside"),
            _ => reply(200),
        }
    })
    .await;
    let client = quick("");
    for path in ["/other-host", "/other-port"] {
        let error = soon("the refusal", client.get(&site.url(path))).await.unwrap_err();
        assert!(
            matches!(&error, ClientError::Transport { cause, .. } if cause.is_final()),
            "{path}: {error}"
        );
    }
    assert_eq!(site.paths(), ["/other-host", "/other-port"], "nothing was sent there");
    let penalties = client.gate().with_pace(&site.domain(2), |pace, _, _| pace.penalties()).await.unwrap();
    assert_eq!(penalties, 0, "a host that received no request is not blamed");
    assert_eq!(soon("the page", client.get(&site.url("/same"))).await.unwrap().status, 200);
}

/// B75
#[tokio::test]
async fn errors_contain_no_secrets() {
    let site = Site::start(|asked: &Asked| -> Reply {
        match asked.path.split('?').next().unwrap() {
            "/robots.txt" => reply(200).body("User-agent: *\nDisallow: /private"),
            "/slow" => reply(200).after(60_000),
            "/loop" => reply(302).header("location", "/loop?token=s3cret"),
            "/astray" => reply(302).header("location", "file:///?token=s3cret"),
            _ => reply(200).body(vec![b'x'; 4_096]),
        }
    })
    .await;
    let toml = QUICK.replace("\"ignore\"", "\"obey\"");
    let client = client(&format!(
        "{toml}[job]\nmax_retries = 0\n[http]\nfirst_byte_timeout = \"2s\"\nbody_max = \"1KiB\"\n"
    ));
    let secret = |path: &str| format!("http://user:hunter2@127.0.0.1:{}{path}?token=s3cret", site.port);
    let closed = "http://user:hunter2@127.0.0.1:9/?token=s3cret".to_owned();
    let wrong = [
        "ftp://user:hunter2@a.example/?token=s3cret",
        "http://user:hunter2@/?token=s3cret",
        "user:hunter2@a b?token=s3cret",
        // The query starts inside the password.
        "http://user:hunter2?s3cret@a b/",
        "http://user:hunter2#s3cret@a b/",
    ];
    let urls = ["/private", "/slow", "/loop", "/astray", "/large"].map(secret);
    for url in urls.into_iter().chain([closed]).chain(wrong.map(str::to_owned)) {
        let error = soon("the error", client.get(&url)).await.unwrap_err();
        let texts =
            format!("{error} {error:?} {:?}", std::error::Error::source(&error).map(ToString::to_string));
        assert!(!texts.contains("hunter2") && !texts.contains("s3cret"), "{url}: {texts}");
    }
}

/// B66
#[tokio::test]
async fn requests_name_the_user_agent_and_the_contact() {
    let site = refusing(200).await;
    let client = quick("[http]\nuser_agent = \"Tester/2\"\ncontact = \"ops@example.org\"\n");
    client.get(&site.url("/")).await.unwrap();
    let head = site.asked()[0].head.to_ascii_lowercase();
    assert!(head.contains("user-agent: tester/2 (+ops@example.org)\r\n"), "{head}");
}

/// B9, B14: clients and callers of one gate share a pace.
#[tokio::test]
async fn a_client_shares_its_gate() {
    let site = refusing(200).await;
    let client = client(&QUICK.replace("10ms", "60s"));
    client.get(&site.url("/")).await.unwrap();
    let (decision, _) = client.gate().check(&site.domain(1), Intent::Fetch).await.unwrap();
    assert!(decision.wait_ms(client.gate().clock().now()) > 0);
    assert!(Span::from_millis(decision.wait_ms(client.gate().clock().now())) <= ms(60_000));
}

/// B86: a request's method, body and own headers are sent only to the host they were meant for.
#[tokio::test]
async fn method_body_and_headers_stay_with_their_host() {
    let site = Site::start(|asked: &Asked| match asked.path.as_str() {
        "/again" => reply(307).header("location", "/form"),
        "/see" => reply(303).header("location", "/form"),
        "/away" => reply(307).header("location", &asked.url_on(2, "/form")),
        "/led" => reply(302).header("location", &asked.url_on(2, "/page")),
        "/broken" => reply(500),
        _ => reply(200),
    })
    .await;
    let ask = |path: &str| FetchRequest {
        method: http::Method::POST,
        body: "a=b".into(),
        headers: vec![(http::HeaderName::from_static("x-key"), http::HeaderValue::from_static("secret"))],
        retries_max: 3,
        ..FetchRequest::new(site.url(path).parse().unwrap(), Lead::Listed)
    };
    // A new client each time: the site doesn't read posted bodies, which would precede the next request.
    for (path, expected) in [("/form", "POST /form "), ("/again", "POST /form "), ("/see", "GET /form ")] {
        let page = soon("the answer", quick(LOOPBACK).fetch(&ask(path))).await.unwrap();
        assert_eq!(page.status, 200);
        let last = site.asked().pop().unwrap();
        assert!(last.head.contains(expected), "{path}: {}", last.head);
        let length = if expected.starts_with("POST") { Some("3") } else { None };
        assert_eq!((last.header("content-length"), last.header("x-key")), (length, Some("secret")));
    }
    let error = soon("the answer", quick(LOOPBACK).fetch(&ask("/away"))).await.unwrap_err();
    assert!(matches!(error, ClientError::Body { .. }), "{error}");
    let plain = FetchRequest { method: http::Method::GET, body: Default::default(), ..ask("/led") };
    soon("the answer", quick(LOOPBACK).fetch(&plain)).await.unwrap();
    let there = site.asked().pop().unwrap();
    assert_eq!((there.path.as_str(), there.header("x-key")), ("/page", None));

    let before = site.asked().len();
    let page = soon("the answer", quick(LOOPBACK).fetch(&ask("/broken"))).await.unwrap();
    assert_eq!((page.status, site.asked().len() - before), (500, 1), "a POST that arrived is not retried");
    let wrong = FetchRequest { headers: vec![(http::header::HOST, "evil".parse().unwrap())], ..ask("/form") };
    assert!(matches!(quick("").fetch(&wrong).await, Err(ClientError::Header { .. })));
}
