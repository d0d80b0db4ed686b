//! robots.txt as the client goes by it.

use comity::client::{self, Client, ClientError, recall_crawl_delay};
use comity::clock::Clock;
use comity::event::Events;
use comity::gate::{Gate, GateError, HandsOff};
use comity::store;
use comity::store::robots::RobotsRow;
use comity_core::outcome::Outcome;
use comity_core::time::Span;

use crate::client::{LOOPBACK, QUICK, client};
use crate::support::{Asked, Site, config, domain, ms, reply, soon};

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

/// B44: asked for once, and what it forbids is not asked for.
#[tokio::test]
async fn what_it_forbids_is_not_fetched() {
    let site = site("User-agent: *\nDisallow: /private\n").await;
    let client = client(&obeying());
    let error = soon("the refusal", client.get(&site.url("/private/page"))).await.unwrap_err();
    assert!(matches!(error, ClientError::Robots { .. }), "{error}");
    assert_eq!(soon("the page", client.get(&site.url("/page"))).await.unwrap().status, 200);
    assert_eq!(site.paths(), ["/robots.txt", "/page"]);
}

#[tokio::test]
async fn no_file_allows_everything() {
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
async fn a_file_that_cannot_be_had_forbids_for_now() {
    let site = Site::start(|_| reply(500)).await;
    let client = client(&obeying());
    for _ in 0..2 {
        let error = soon("the refusal", client.get(&site.url("/"))).await.unwrap_err();
        assert!(matches!(error, ClientError::RobotsUnavailable(_)), "{error}");
    }
    assert_eq!(
        site.paths(),
        ["/robots.txt"; 4],
        "as often as a task would be tried, and then not for a while"
    );
}

/// B44
#[tokio::test]
async fn a_429_on_it_is_a_penalty_like_any_other() {
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
async fn its_crawl_delay_is_kept() {
    let site = site("User-agent: *\nCrawl-delay: 0.3\n").await;
    let client = client(&obeying());
    for path in ["/a", "/b", "/c"] {
        soon("the page", client.get(&site.url(path))).await.unwrap();
    }
    // The first page follows the file itself, which was asked for before the delay was known.
    assert!(site.gaps(1)[1..].iter().all(|gap| *gap >= ms(250)), "{:?}", site.gaps(1));
}

/// B44: one fetch of the file however many ask, each origin its own.
#[tokio::test]
async fn it_is_asked_for_once_however_many_wait() {
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

/// A file that is longer than anybody reads, or than a page may be, is obeyed as far as it is read.
#[tokio::test]
async fn a_file_of_any_length_is_obeyed_as_far_as_it_is_read() {
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

/// The limit cut `Allow: /open` out of `Allow: /opening-hours`, and that was obeyed.
#[tokio::test]
async fn the_line_that_the_limit_cuts_in_two_is_not_obeyed() {
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

/// B74: that our own gate lets nobody go was kept as a refusal of the site, and counted against it.
#[tokio::test]
async fn a_gate_that_lets_nobody_go_is_no_refusal_of_the_site() {
    let site = site("").await;
    let (config, store) = (config(&obeying()), store::open("memory:").unwrap());
    let rules = config.rules().clone();
    let gate = Gate::with_store(rules, Clock::new(), Events::new(), store.clone(), "a test").await.unwrap();
    let client = Client::over(&config, gate.clone(), client::transport(&config).unwrap(), Some(store));
    gate.close(HandsOff::Stop).await.unwrap();
    let error = soon("the refusal", client.get(&site.url("/"))).await.unwrap_err();
    assert!(matches!(error, ClientError::Gate(GateError::Closed)), "{error}");
    assert_eq!(site.asked().len(), 0);
}

/// A store that cannot be read took away the crawl-delay that was known.
#[tokio::test]
async fn a_crawl_delay_stays_known_when_the_store_cannot_be_read() {
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
    };
    store.keep_robots(row).await.unwrap();
    let spacing = async || gate.with_pace(&host, |pace, terms, _| pace.spacing(terms)).await.unwrap();
    recall_crawl_delay(&gate, &*store, &config, &host).await;
    assert_eq!(spacing().await, Span::from_secs(7));
    rusqlite::Connection::open(&file).unwrap().execute_batch("DROP TABLE robots").unwrap();
    assert!(store.robots("https://a.example".to_owned()).await.is_err());
    recall_crawl_delay(&gate, &*store, &config, &host).await;
    assert_eq!(spacing().await, Span::from_secs(7));
}
