//! Cached robots.txt files.

use comity_core::time::Span;
use comity_store::robots::RobotsRow;

use crate::backend::Backend;
use crate::process::{at, ms};

pub(crate) async fn a_saved_file_comes_back_unchanged(backend: &dyn Backend) {
    let (one, other) = (backend.store().await, backend.store().await);
    let every_byte: Vec<u8> = (0..=255).collect();
    for (origin, status, body) in
        [("https://a.example", 200, every_byte), ("http://a.example:8080", 404, Vec::new())]
    {
        let (fetched_at, crawl_delay) = (at(0) + ms(1), ms(1_500));
        let row = RobotsRow { origin: origin.to_owned(), fetched_at, status, body, crawl_delay };
        one.keep_robots(row.clone()).await.unwrap();
        assert_eq!(other.robots(origin.to_owned()).await.unwrap(), Some(row));
    }
    assert_eq!(one.robots("http://a.example".to_owned()).await.unwrap(), None);
}

pub(crate) async fn a_newer_response_replaces_the_older_one(backend: &dyn Backend) {
    let one = backend.store().await;
    let origin = "https://a.example".to_owned();
    for (secs, status, body) in [(0, 200, "User-agent: *"), (86_400, 503, "")] {
        let (fetched_at, crawl_delay) = (at(secs), Span::from_secs(secs.unsigned_abs()));
        let row = RobotsRow { origin: origin.clone(), fetched_at, status, body: body.into(), crawl_delay };
        one.keep_robots(row.clone()).await.unwrap();
        assert_eq!(one.robots(origin.clone()).await.unwrap(), Some(row));
    }
}

/// Nothing used to be deleted.
pub(crate) async fn old_files_are_deleted_in_batches(backend: &dyn Backend) {
    let one = backend.store().await;
    for secs in 0..5 {
        one.keep_robots(file_of(&format!("https://{secs}.example"), secs, Span::ZERO)).await.unwrap();
    }
    assert!(one.prune_robots(at(3), 2).await.unwrap(), "there may be more");
    assert!(!one.prune_robots(at(3), 2).await.unwrap());
    for secs in 0..5 {
        let kept = one.robots(format!("https://{secs}.example")).await.unwrap().is_some();
        assert_eq!(kept, secs >= 3, "{secs}");
    }
}

/// A file that asks for a delay is needed for as long as requests have to wait for it.
pub(crate) async fn long_crawl_delays_are_listed_and_keep_their_files(backend: &dyn Backend) {
    let one = backend.store().await;
    for (name, delay) in [("a", 0), ("b", 9), ("c", 10), ("d", 11), ("e", 1_000)] {
        let origin = format!("https://{name}.example");
        one.keep_robots(file_of(&origin, 100, Span::from_secs(delay))).await.unwrap();
    }
    let mut long = one.long_crawl_delays(Span::from_secs(10)).await.unwrap();
    long.sort();
    let expected = [("d", 11), ("e", 1_000)];
    assert_eq!(
        long,
        expected.map(|(name, secs)| (format!("https://{name}.example"), Span::from_secs(secs))).to_vec()
    );
    for (before, left) in [(101, "bcde"), (118, "bcde"), (119, "cde"), (122, "de"), (2_100, "e"), (2_101, "")]
    {
        one.prune_robots(at(before), 10).await.unwrap();
        let mut found = String::new();
        for name in ["a", "b", "c", "d", "e"] {
            if one.robots(format!("https://{name}.example")).await.unwrap().is_some() {
                found += name;
            }
        }
        assert_eq!(found, left, "before {before}");
    }
}

fn file_of(origin: &str, secs: i64, crawl_delay: Span) -> RobotsRow {
    let body = b"User-agent: *".to_vec();
    RobotsRow { origin: origin.to_owned(), fetched_at: at(secs), status: 200, body, crawl_delay }
}
