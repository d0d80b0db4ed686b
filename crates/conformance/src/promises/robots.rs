//! Cached robots.txt files.

use comity_store::robots::RobotsRow;

use crate::backend::Backend;
use crate::process::{at, ms};

pub(crate) async fn a_saved_file_comes_back_unchanged(backend: &dyn Backend) {
    let (one, other) = (backend.store().await, backend.store().await);
    let every_byte: Vec<u8> = (0..=255).collect();
    for (origin, status, body) in
        [("https://a.example", 200, every_byte), ("http://a.example:8080", 404, Vec::new())]
    {
        let row = RobotsRow { origin: origin.to_owned(), fetched_at: at(0) + ms(1), status, body };
        one.keep_robots(row.clone()).await.unwrap();
        assert_eq!(other.robots(origin.to_owned()).await.unwrap(), Some(row));
    }
    assert_eq!(one.robots("http://a.example".to_owned()).await.unwrap(), None);
}

pub(crate) async fn a_newer_response_replaces_the_older_one(backend: &dyn Backend) {
    let one = backend.store().await;
    let origin = "https://a.example".to_owned();
    for (secs, status, body) in [(0, 200, "User-agent: *"), (86_400, 503, "")] {
        let row = RobotsRow { origin: origin.clone(), fetched_at: at(secs), status, body: body.into() };
        one.keep_robots(row.clone()).await.unwrap();
        assert_eq!(one.robots(origin.clone()).await.unwrap(), Some(row));
    }
}

/// Nothing used to be deleted.
pub(crate) async fn old_files_are_deleted_in_batches(backend: &dyn Backend) {
    let one = backend.store().await;
    for secs in 0..5 {
        let origin = format!("https://{secs}.example");
        let row = RobotsRow { origin, fetched_at: at(secs), status: 200, body: b"User-agent: *".to_vec() };
        one.keep_robots(row).await.unwrap();
    }
    assert!(one.prune_robots(at(3), 2).await.unwrap(), "there may be more");
    assert!(!one.prune_robots(at(3), 2).await.unwrap());
    for secs in 0..5 {
        let kept = one.robots(format!("https://{secs}.example")).await.unwrap().is_some();
        assert_eq!(kept, secs >= 3, "{secs}");
    }
}
