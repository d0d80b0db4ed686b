//! How the client obeys robots.txt.

use comity::client::{self, Client, ClientError, load_crawl_delay};
use comity::clock::Clock;
use comity::event::Events;
use comity::gate::{CloseMode, Gate, GateError};
use comity::store;
use comity::store::robots::RobotsRow;
use comity_core::intent::Intent;
use comity_core::outcome::Outcome;
use comity_core::time::{Span, Timestamp};

use crate::client::{LOOPBACK, QUICK, client};
use crate::support::{Asked, Site, at, config, domain, eventually, ms, reply, soon};

fn obeying() -> String {
    QUICK.replace("\"ignore\"", "\"obey\"")
}

async fn site(body: &'static str) -> Site {
    Site::start(move |asked: &Asked| match asked.path.as_str() {
        "/robots.txt" => reply(200).body(body),
        _ => reply(200),
    })
    .await
}

/// B44: robots.txt is fetched once, and what it forbids is not fetched.
#[tokio::test]
async fn forbidden_pages_are_not_fetched() {
    let site = site("User-agent: *\nDisallow: /private\n").await;
    let client = client(&obeying());
    let error = soon("the refusal", client.get(&site.url("/private/page"))).await.unwrap_err();
    assert!(matches!(error, ClientError::Robots { .. }), "{error}");
    assert_eq!(soon("the page", client.get(&site.url("/page"))).await.unwrap().status, 200);
    assert_eq!(site.paths(), ["/robots.txt", "/page"]);
}

#[tokio::test]
async fn a_missing_file_allows_everything() {
    for status in [404, 410, 401] {
        let site = Site::start(move |asked: &Asked| match asked.path.as_str() {
            "/robots.txt" => reply(status),
            _ => reply(200),
        })
        .await;
        assert_eq!(soon("the page", client(&obeying()).get(&site.url("/"))).await.unwrap().status, 200);
    }
}

/// B43
#[tokio::test]
async fn a_file_that_could_not_be_fetched_forbids_everything_for_now() {
    let site = Site::start(|_| reply(500)).await;
    let client = client(&obeying());
    for _ in 0..2 {
        let error = soon("the refusal", client.get(&site.url("/"))).await.unwrap_err();
        assert!(matches!(error, ClientError::RobotsUnavailable(_)), "{error}");
    }
    assert_eq!(site.paths(), ["/robots.txt"; 4], "it is retried like a task, and then not for a while");
}

/// B44
#[tokio::test]
async fn a_429_for_robots_txt_is_a_penalty_like_any_other() {
    let site = Site::start(|asked: &Asked| match (asked.path.as_str(), asked.before) {
        ("/robots.txt", 0) => reply(429).header("retry-after", "1"),
        ("/robots.txt", _) => reply(404),
        _ => reply(200),
    })
    .await;
    let client = client(&obeying());
    assert_eq!(soon("the page", client.get(&site.url("/page"))).await.unwrap().status, 200);
    assert_eq!(site.paths(), ["/robots.txt", "/robots.txt", "/page"]);
    assert!(site.gaps(1)[0] >= ms(990), "{:?}", site.gaps(1));
    assert_eq!(client.gate().events().counters().outcome(Outcome::RateLimited), 1);
}

/// B4, B34
#[tokio::test]
async fn the_crawl_delay_is_respected() {
    let site = site("User-agent: *\nCrawl-delay: 0.3\n").await;
    let client = client(&obeying());
    for path in ["/a", "/b", "/c"] {
        soon("the page", client.get(&site.url(path))).await.unwrap();
    }
    // The first page follows robots.txt itself, which was fetched before the delay was known.
    assert!(site.gaps(1)[1..].iter().all(|gap| *gap >= ms(250)), "{:?}", site.gaps(1));
}

/// B34: a delay of days is honoured in full, also by processes that run now and then. The file used to expire first: then
/// it would have been requested again and again, and never a page.
#[tokio::test]
async fn a_crawl_delay_of_days_is_respected_by_every_process() {
    let site = site("User-agent: *\nCrawl-delay: 259200\n").await;
    let (config, store) = (config(&obeying()), store::open("memory:").unwrap());
    let (host, days) = (site.domain(1), |days: u64| Span::from_hours(24 * days));
    let process_at = async |now: Timestamp| {
        let (clock, _) = Clock::manual(now);
        let rules = config.rules().clone();
        let gate = Gate::with_store(rules, clock, Events::new(), store.clone(), "a test").await.unwrap();
        let transport = client::transport(&config).unwrap();
        let client = Client::with_transport(&config, gate.clone(), transport, Some(store.clone()));
        load_crawl_delay(&gate, &*store, &config, &host).await;
        (gate, client)
    };
    let (gate, client) = process_at(at(0)).await;
    let url = site.url("/a");
    let waiting = tokio::spawn(async move { client.get(&url).await.map(|_| ()) });
    eventually("the page waits", || gate.wait(&host) == days(3)).await;
    waiting.abort();
    gate.close(CloseMode::Stop).await.unwrap();
    for now in [at(0) + days(2), at(0) + days(3).less(ms(1))] {
        let (gate, _) = process_at(now).await;
        let reasons = gate.explain(&host, Intent::Fetch).await.unwrap();
        let latest = reasons.iter().max_by_key(|reason| reason.until).unwrap();
        assert_eq!((latest.until, latest.limit.as_str()), (at(0) + days(3), "crawl_delay"), "{latest:?}");
        gate.close(CloseMode::Stop).await.unwrap();
    }
    let (gate, client) = process_at(at(0) + days(3)).await;
    soon("the page", client.get(&site.url("/a"))).await.unwrap();
    gate.close(CloseMode::Stop).await.unwrap();
    assert_eq!(site.paths(), ["/robots.txt", "/a"]);
}

/// B44: one fetch per origin, no matter how many requests wait for it.
#[tokio::test]
async fn robots_txt_is_fetched_once_for_many_waiting_requests() {
    let site = site("User-agent: *\nAllow: /\n").await;
    let client = client(&format!("{}{LOOPBACK}", obeying()));
    let urls: Vec<String> = (0..20).map(|nth| site.url_on(1 + nth % 2, &format!("/{nth}"))).collect();
    let gets = urls.into_iter().map(|url| {
        let client = client.clone();
        tokio::spawn(async move { client.get(&url).await.unwrap().status })
    });
    for get in gets.collect::<Vec<_>>() {
        assert_eq!(soon("a page", get).await.unwrap(), 200);
    }
    let files = site.paths().into_iter().filter(|path| path == "/robots.txt").count();
    assert_eq!((files, site.asked().len()), (2, 22));
}

/// A file that exceeds the limit for robots.txt, or that for pages, is obeyed as far as it is read.
#[tokio::test]
async fn a_file_that_is_too_long_is_obeyed_up_to_the_limit() {
    let rules = "User-agent: *\nDisallow: /private\n#";
    let long = format!("{rules}{}\nDisallow: /late\n", "x".repeat(600 << 10));
    let site = Site::start(move |asked: &Asked| match asked.path.as_str() {
        "/robots.txt" => reply(200).body(long.clone()),
        _ => reply(200),
    })
    .await;
    let client = client(&format!("{}[http]\nbody_max = \"100KiB\"\n", obeying()));
    let error = soon("the refusal", client.get(&site.url("/private/page"))).await.unwrap_err();
    assert!(matches!(error, ClientError::Robots { .. }), "{error}");
    assert_eq!(soon("the page", client.get(&site.url("/late"))).await.unwrap().status, 200);
    assert_eq!(site.paths(), ["/robots.txt", "/late"]);
}

/// Regression: the limit cut `Allow: /opening-hours` to `Allow: /open`, which was obeyed.
#[tokio::test]
async fn a_line_truncated_by_the_limit_is_ignored() {
    let rules = "User-agent: *\nDisallow: /open\n#";
    let last = "\nAllow: /opening-hours\n";
    let filler = (500 << 10) - rules.len() - "\nAllow: /open".len();
    let long = format!("{rules}{}{last}", "x".repeat(filler));
    let site = Site::start(move |asked: &Asked| match asked.path.as_str() {
        "/robots.txt" => reply(200).body(long.clone()),
        _ => reply(200),
    })
    .await;
    let error = soon("the refusal", client(&obeying()).get(&site.url("/open"))).await.unwrap_err();
    assert!(matches!(error, ClientError::Robots { .. }), "{error}");
}

/// B74. Regression: an error of our own gate was stored as a failure of the site.
#[tokio::test]
async fn an_error_of_the_gate_is_not_a_failure_of_the_site() {
    let site = site("").await;
    let (config, store) = (config(&obeying()), store::open("memory:").unwrap());
    let rules = config.rules().clone();
    let gate = Gate::with_store(rules, Clock::new(), Events::new(), store.clone(), "a test").await.unwrap();
    let client =
        Client::with_transport(&config, gate.clone(), client::transport(&config).unwrap(), Some(store));
    gate.close(CloseMode::Stop).await.unwrap();
    let error = soon("the refusal", client.get(&site.url("/"))).await.unwrap_err();
    assert!(matches!(error, ClientError::Gate(GateError::Closed)), "{error}");
    assert_eq!(site.asked().len(), 0);
}

/// Regression: a store that can't be read removed the known crawl delay.
#[tokio::test]
async fn a_known_crawl_delay_is_kept_if_the_store_cannot_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("comity.db");
    let store = store::open(&format!("sqlite:{}", file.display())).unwrap();
    let (config, host) = (config(""), domain("a.example"));
    let gate = Gate::new(config.rules().clone(), Clock::new(), Events::new());
    let row = RobotsRow {
        origin: "https://a.example".to_owned(),
        fetched_at: gate.clock().now(),
        status: 200,
        body: b"User-agent: *\nCrawl-delay: 7".to_vec(),
        crawl_delay: Span::from_secs(7),
    };
    store.keep_robots(row).await.unwrap();
    let spacing = async || gate.with_pace(&host, |pace, terms, _| pace.spacing(terms)).await.unwrap();
    load_crawl_delay(&gate, &*store, &config, &host).await;
    assert_eq!(spacing().await, Span::from_secs(7));
    rusqlite::Connection::open(&file).unwrap().execute_batch("DROP TABLE robots").unwrap();
    assert!(store.robots("https://a.example".to_owned()).await.is_err());
    load_crawl_delay(&gate, &*store, &config, &host).await;
    assert_eq!(spacing().await, Span::from_secs(7));
}
