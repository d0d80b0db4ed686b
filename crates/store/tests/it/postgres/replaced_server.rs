//! A server that was promoted, and whose rows are from before: the test changes what they say of their history.

use std::time::Duration;

use comity_conformance::Backend;
use comity_conformance::process::{Process, at, domain};
use comity_store::LEASE;
use comity_store::domains::{LastHolderBuf, ReleaseMode, Take};

use super::server::Server;

/// B77: whoever was in charge in commits that were lost may send until its lease ends, and nobody knows when it sent last.
#[tokio::test]
async fn a_process_that_finds_a_promoted_server_takes_no_site_for_a_lease() {
    let schema = super::schema().await;
    let backend: &dyn Backend = &schema;
    let before = Process::start(backend, "before", at(0)).await;
    let taken = before.taken("a.example", at(0)).await;
    before.release(taken.tenure, b"pace", ReleaseMode::HandOver, at(1)).await;
    let name = schema.url.split_once("schema=").unwrap().1.split('&').next().unwrap();
    let older = "SET history = history - 1";
    Server::shared().run_sql(&format!("UPDATE {name}.server {older}; UPDATE {name}.domain {older}"));

    let (first, second) =
        (Process::start(backend, "first", at(2)).await, Process::start(backend, "second", at(2)).await);
    let refused = Take::Held { by: "nobody yet: the database was replaced a moment ago".to_owned() };
    assert_eq!(first.take("a.example", at(2)).await, refused);
    assert_eq!(second.take("a.example", at(2)).await, refused);
    assert_eq!(first.take("new.example", at(3)).await, refused);
    // On this machine's clock, whatever the store's time is.
    assert_eq!(second.take("a.example", at(30)).await, refused);
    tokio::time::sleep(Duration::from(LEASE) + Duration::from_millis(100)).await;
    for name in ["a.example", "new.example"] {
        let Take::Taken(taken) = second.take(name, at(13)).await else { panic!("{name} is still held") };
        assert_eq!(taken.domain, domain(name));
        assert_eq!(taken.last_holder, LastHolderBuf::Died { latest: at(2) + LEASE });
        second.release(taken.tenure, b"pace", ReleaseMode::HandOver, at(13)).await;
    }
    // What was left since then is known.
    assert_eq!(
        second.taken("a.example", at(14)).await.last_holder,
        LastHolderBuf::HandedOver(b"pace".to_vec())
    );
}
