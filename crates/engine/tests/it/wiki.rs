//! The pace of the wiki API client.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use comity::clock::Clock;
use comity::limiter::{Limits, RateLimiter};
use comity::wiki::Api;
use comity::wiki::api::Options;
use comity_core::time::{Span, Timestamp};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::support::{Site, at, eventually, ms, reply, soon};

const META: &[(&str, &str)] = &[("meta", "siteinfo")];

/// B68: one request per second by default; only a disabled limiter turns pacing off.
#[tokio::test]
async fn the_api_keeps_the_pace_of_its_limiter() {
    let site = Site::start(|_| reply(200).body("{\"query\":{}}")).await;
    let api = Api::new(&site.url("/api.php")).unwrap();
    for _ in 0..2 {
        soon("an answer", api.query(META, None)).await.unwrap();
    }
    assert!(site.gaps(1)[0] >= ms(950), "{:?}", site.gaps(1));
    let api = Api::with_limiter(&site.url("/api.php"), &RateLimiter::disabled(), Options::default()).unwrap();
    for _ in 0..20 {
        soon("an answer", api.query(META, None)).await.unwrap();
    }
    // At one request per second, no gap would be this short.
    assert!(site.gaps(1)[2..].iter().any(|gap| *gap < ms(500)), "{:?}", site.gaps(1));
}

/// B75. Regression: error messages of a wiki were stored and logged at any length and with any characters.
#[tokio::test]
async fn error_messages_of_a_wiki_are_shortened() {
    let long = "no \\u001b[31m".repeat(100_000);
    let refused = format!("{{\"error\":{{\"code\":\"{long}\",\"info\":\"{long}\"}}}}");
    let site = Site::start(move |_| reply(200).body(refused.clone())).await;
    let api = Api::with_limiter(&site.url("/api.php"), &RateLimiter::disabled(), Options::default()).unwrap();
    let error = soon("an answer", api.query(META, None)).await.unwrap_err().to_string();
    assert!(error.len() < 1_000 && !error.contains('\u{1b}'), "{}", error.len());
}

/// B68: if the wiki asks to wait, everybody on the same limiter waits.
#[tokio::test]
async fn a_limiter_is_shared_with_others() {
    let (clock, control) = Clock::manual(at(0));
    let limiter = RateLimiter::with_clock(Limits::default(), clock.clone()).unwrap();
    let refused = "{\"error\":{\"code\":\"ratelimited\",\"info\":\"too much\"}}";
    let site = Site::start(move |asked| match asked.path.contains("later") {
        true => reply(200).body("{\"query\":{}}"),
        false => reply(200).body(refused),
    })
    .await;
    let api = Arc::new(Api::with_limiter(&site.url("/api.php"), &limiter, Options::default()).unwrap());
    let asking = tokio::spawn({
        let api = api.clone();
        async move { api.query(META, None).await.map(|_| ()) }
    });
    eventually("the refusal", || api.rate_limited() == 1).await;
    let other = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.wait_async().await }
    });
    control.advance(ms(4_900));
    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    assert!(!other.is_finished() && site.paths().len() == 1, "5 s after the first refusal, not sooner");
    control.advance(ms(1_200));
    eventually("the next", || other.is_finished() || site.paths().len() == 2).await;
    asking.abort();
}

/// B70: 48 hours at one request per second: none is early, and memory doesn't grow. Runs in its own process, to measure
/// its memory.
#[test]
fn forty_eight_hours() {
    let alone = ["--exact", "wiki::forty_eight_hours_alone", "--ignored"];
    let ended = std::process::Command::new(std::env::current_exe().unwrap()).args(alone).output().unwrap();
    let said = String::from_utf8_lossy(&ended.stdout);
    assert!(ended.status.success() && said.contains("1 passed"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by forty_eight_hours"]
async fn forty_eight_hours_alone() {
    let (clock, control) = Clock::manual(at(0));
    let limiter = RateLimiter::with_clock(Limits::default(), clock.clone()).unwrap();
    let (early, came) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let port = tiny(clock, early.clone(), came.clone()).await;
    let api = Arc::new(
        Api::with_limiter(&format!("http://127.0.0.1:{port}/api.php"), &limiter, Options::default()).unwrap(),
    );
    // Each query is reported when it is done; the clock stands still until then.
    let (asks, asking) = tokio::sync::mpsc::unbounded_channel();
    let asked = tokio::spawn({
        let api = api.clone();
        async move {
            for _ in 0..HOURS_48 {
                api.query(META, None).await.unwrap();
                asks.send(()).unwrap();
            }
        }
    });
    let mut asking = asking;
    let mut before = 0;
    for nth in 0..HOURS_48 {
        asking.recv().await.unwrap();
        if nth == 1_000 {
            before = resident_kb();
        }
        control.advance(Span::from_secs(1));
    }
    asked.await.unwrap();
    assert_eq!((api.requests(), came.load(Ordering::Relaxed)), (HOURS_48, HOURS_48));
    assert_eq!(early.load(Ordering::Relaxed), 0);
    let grown = resident_kb().saturating_sub(before);
    assert!(grown < 8_192, "{grown} kB more than after 1,000 requests");
}

/// A site that sends the same response to every request, and counts requests less than a second after the previous one.
async fn tiny(clock: Clock, early: Arc<AtomicU64>, came: Arc<AtomicU64>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let mut last = Timestamp::MIN;
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = [0; 4_096];
            while stream.read(&mut head).await.is_ok_and(|read| read > 0) {
                let now = clock.now();
                early.fetch_add(u64::from(now.since(last) < Span::from_secs(1)), Ordering::Relaxed);
                came.fetch_add(1, Ordering::Relaxed);
                last = now;
                let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n{\"query\":{}}";
                if stream.write_all(answer).await.is_err() {
                    break;
                }
            }
        }
    });
    port
}

fn resident_kb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

const HOURS_48: u64 = 48 * 3_600;
