//! The robots.txt files of origins.

use comity_store::robots::RobotsRow;

use crate::backend::Backend;
use crate::process::{at, ms};

pub(crate) async fn what_was_kept_comes_back(backend: Backend) {
    let (one, other) = (backend.open(), backend.open());
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

pub(crate) async fn a_newer_answer_replaces_the_older(backend: Backend) {
    let one = backend.open();
    let origin = "https://a.example".to_owned();
    for (secs, status, body) in [(0, 200, "User-agent: *"), (86_400, 503, "")] {
        let row = RobotsRow { origin: origin.clone(), fetched_at: at(secs), status, body: body.into() };
        one.keep_robots(row.clone()).await.unwrap();
        assert_eq!(one.robots(origin.clone()).await.unwrap(), Some(row));
    }
}
