//! Attempts: response headers take effect before the body, whoever sends the request.

use std::sync::Arc;

use comity::client::Client;
use comity::clock::Clock;
use comity::event::Events;
use comity::gate::Gate;
use comity::limiter::{Limits, RateLimiter};
use comity::pipeline::{RunOptions, Scraping};
use comity::wiki::Api;
use comity::wiki::api::Options;
use comity_core::decision::Limit;
use comity_core::domain::Domain;
use comity_core::intent::Intent;
use comity_core::time::Span;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::station::{DiskStore, every, rss};
use crate::support::{Asked, Site, at, config, eventually, reply, soon};

const META: &[(&str, &str)] = &[("meta", "siteinfo")];

/// A site that sends its headers immediately and its body on command, and counts requests.
struct SlowSite {
    port: u16,
    asked: Arc<std::sync::atomic::AtomicUsize>,
    go: watch::Sender<bool>,
}

impl SlowSite {
    async fn start(head: impl Into<String>) -> Self {
        let head = head.into();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (asked, go) = (Arc::<std::sync::atomic::AtomicUsize>::default(), watch::Sender::new(false));
        let (counts, goes) = (asked.clone(), go.subscribe());
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let (counts, mut goes, head) = (counts.clone(), goes.clone(), head.clone());
                tokio::spawn(async move {
                    let _ = stream.read(&mut [0; 4_096]).await;
                    counts.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                    let head = format!("HTTP/1.1 {head}\r\nContent-Length: 5\r\nConnection: close\r\n\r\n");
                    stream.write_all(head.as_bytes()).await.unwrap();
                    let _ = goes.wait_for(|go| *go).await;
                    let _ = stream.write_all(b"hello").await;
                });
            }
        });
        Self { port, asked, go }
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}/page", self.port)
    }

    fn host(&self) -> Domain {
        Domain::parse(&format!("127.0.0.1:{}", self.port)).unwrap()
    }

    fn asked(&self) -> usize {
        self.asked.load(std::sync::atomic::Ordering::SeqCst)
    }
}

/// How much longer the server's Retry-After applies.
async fn hold_remaining(gate: &Gate, host: &Domain, intent: Intent) -> Option<Span> {
    let reasons = gate.explain(host, intent).await.unwrap();
    let tenure = reasons.into_iter().find(|reason| reason.limit == Limit::RetryAfter)?;
    Some(tenure.until.since(gate.clock().now()))
}

async fn until_held(gate: &Gate, host: &Domain, intent: Intent) -> Span {
    soon("a tenure", async {
        loop {
            if let Some(left) = hold_remaining(gate, host, intent).await {
                return left;
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    })
    .await
}

/// B20, B24: even with unlimited requests in flight, a success with Retry-After holds all others while its body is
/// still being read.
#[tokio::test]
async fn headers_of_a_success_take_effect_before_its_body() {
    let site = SlowSite::start("200 OK\r\nRetry-After: 30").await;
    let config = config("robots = \"ignore\"\n[default]\nmin_delay = \"1ms\"\nin_flight = \"unlimited\"\n");
    let gate = Gate::new(config.rules().clone(), Clock::new(), Events::new());
    let client = Client::with(&config, gate.clone()).unwrap();
    let first = tokio::spawn({
        let (client, url) = (client.clone(), site.url());
        async move { client.get(&url).await }
    });
    let left = until_held(&gate, &site.host(), Intent::Fetch).await;
    assert!(left > Span::from_secs(20), "{left}");
    let others: Vec<_> = (0..20)
        .map(|_| {
            let (client, url) = (client.clone(), site.url());
            tokio::spawn(async move { client.get(&url).await.map(|_| ()) })
        })
        .collect();
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    assert_eq!(site.asked(), 1);
    let before = hold_remaining(&gate, &site.host(), Intent::Fetch).await.unwrap();
    site.go.send_replace(true);
    let page = soon("the page", first).await.unwrap().unwrap();
    assert_eq!((page.status, &page.body[..]), (200, &b"hello"[..]));
    let after = hold_remaining(&gate, &site.host(), Intent::Fetch).await.unwrap();
    assert!(after <= before, "the end of the body changes nothing: {before}, then {after}");
    assert_eq!(site.asked(), 1);
    others.iter().for_each(tokio::task::JoinHandle::abort);
}

/// B20, B82: a `Retry-After` counts however many headers precede it, and however it is written. It used to be lost, and
/// the site was asked again much too early.
#[tokio::test]
async fn a_wait_among_many_headers_is_kept() {
    for lines in [99, 101, 150, 1_000] {
        // With the three that follow.
        let others: String = (3..lines).map(|nth| format!("X-{nth}: y\r\n")).collect();
        for wait in ["Retry-After: 30", "Retry-After:\r\n 30"] {
            let site = SlowSite::start(format!("429 Too Many Requests\r\n{others}{wait}")).await;
            let config = config("robots = \"ignore\"\n");
            let gate = Gate::new(config.rules().clone(), Clock::new(), Events::new());
            let client = Client::with(&config, gate.clone()).unwrap();
            let asking = tokio::spawn({
                let url = site.url();
                async move { client.get(&url).await.map(|_| ()) }
            });
            let left = until_held(&gate, &site.host(), Intent::Fetch).await;
            assert!(left > Span::from_secs(20) && left <= Span::from_secs(30), "{lines} lines: {left}");
            assert_eq!(site.asked(), 1);
            asking.abort();
        }
    }
}

/// B24, B67: a wiki's refusal takes effect with its headers, however long its body takes.
#[tokio::test]
async fn a_wikis_refusal_takes_effect_before_its_body() {
    let site = SlowSite::start("429 Too Many Requests\r\nRetry-After: 40").await;
    let limiter = RateLimiter::default();
    let api = Arc::new(Api::with_limiter(&site.url(), &limiter, Options::default()).unwrap());
    let asking = tokio::spawn({
        let api = api.clone();
        async move { api.query(META, None).await.map(|_| ()) }
    });
    let left = until_held(api.gate(), api.host(), Intent::Api).await;
    assert!(left > Span::from_secs(30), "{left}");
    asking.abort();
}

/// B44: the robots.txt of an origin is fetched once per process.
#[tokio::test]
async fn robots_txt_is_fetched_once_per_run() {
    let site = Site::start(|asked: &Asked| match asked.path.as_str() {
        "/robots.txt" => reply(200).body("User-agent: *\nDisallow: /private\n"),
        "/feed" => {
            let items: Vec<String> = (0..5).map(|nth| format!("/item{nth}")).collect();
            reply(200).body(rss("", &items.iter().map(String::as_str).collect::<Vec<_>>()))
        }
        _ => reply(200),
    })
    .await;
    let disk = DiskStore::new();
    let station = disk.process(&every("0", "").replace("robots = \"ignore\"", "robots = \"obey\"")).await;
    station.follow(&site.url("/feed")).await;
    station.run_as(&RunOptions { scraping: Scraping::On, ..station.run_options() }).await;
    station.scrape().await;
    eventually("the items", || site.paths().iter().filter(|path| path.starts_with("/item")).count() == 5)
        .await;
    assert_eq!(site.asked_for("/robots.txt").len(), 1, "{:?}", site.paths());
}

/// B19: waiting for a turn says nothing about outcomes, so the backoff of others stays as it is.
#[tokio::test]
async fn waiting_for_a_turn_does_not_count_as_a_success() {
    let site = Site::start(|_| reply(429)).await;
    let (clock, _control) = Clock::automatic(at(0));
    let limiter = RateLimiter::with_clock(Limits::default(), clock.clone()).unwrap();
    let options = Options { retries_max: 0, ..Options::default() };
    let api = Api::with_limiter(&site.url("/api.php"), &limiter, options).unwrap();
    let mut waits = Vec::new();
    for _ in 0..4 {
        soon("a refusal", api.query(META, None)).await.unwrap_err();
        let refused_at = clock.now();
        limiter.wait();
        waits.push(clock.now().since(refused_at).as_secs_f64());
    }
    assert_eq!(waits, [5.0, 10.0, 20.0, 40.0]);
}

/// B79, B13: without pacing a call still ends, and its retries are a second apart.
#[tokio::test]
async fn retries_of_an_unpaced_wiki_end() {
    let site = Site::start(|_| reply(429).header("retry-after", "1")).await;
    let (clock, _control) = Clock::automatic(at(0));
    let limits = Limits { enabled: false, ..Limits::default() };
    let limiter = RateLimiter::with_clock(limits, clock.clone()).unwrap();
    let options = Options { retries_max: 2, ..Options::default() };
    let api = Api::with_limiter(&site.url("/api.php"), &limiter, options).unwrap();
    soon("the end", api.query(META, None)).await.unwrap_err();
    assert_eq!(site.asked().len(), 3);
    assert_eq!(clock.now(), at(2_000));
}

/// B79: refusals use up retries unless the server states a Retry-After.
#[tokio::test]
async fn a_wiki_that_sends_retry_after_is_waited_for() {
    let named = Site::start(|asked: &Asked| match asked.before {
        0..10 => reply(503).header("retry-after", "7"),
        _ => reply(200).body("{\"query\":{}}"),
    })
    .await;
    let silent = Site::start(|_| reply(503)).await;
    let (clock, _control) = Clock::automatic(at(0));
    let options = Options { retries_max: 3, ..Options::default() };
    let ask = |site: &Site| {
        let limiter = RateLimiter::with_clock(Limits::default(), clock.clone()).unwrap();
        Api::with_limiter(&site.url("/api.php"), &limiter, options.clone()).unwrap()
    };
    soon("the answer", ask(&named).query(META, None)).await.unwrap();
    assert_eq!(named.asked().len(), 11);
    assert!(clock.now() >= at(70_000), "{}", clock.now());
    soon("the end", ask(&silent).query(META, None)).await.unwrap_err();
    assert_eq!(silent.asked().len(), 4);
}
