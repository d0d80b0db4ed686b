//! Reads happen concurrently with writes, and do not affect them.

use comity_conformance::follower::feed;
use comity_conformance::process::{at, domain};
use comity_store::items::{ItemId, ItemQuery};
use comity_store::sources::SourceId;

use crate::file::TestFile;

/// B81: a list used to wait behind everything that was being written, and delayed it in turn.
#[tokio::test]
async fn reads_do_not_wait_for_the_writer() {
    let file = TestFile::new();
    let one = file.process("one").await;
    let job = one.job_of("job", &["https://a.example/1"], at(0)).await;
    one.store.add_source(feed("https://a.example/feed"), at(0)).await.unwrap();
    one.taken("a.example", at(0)).await;
    // Another program is in the middle of writing, and writers here wait for it.
    let locked = file.lock();
    let mut waits = one.store.open_job("later".to_owned(), serde_json::Value::Null, at(1));
    let looking = async {
        let store = &one.store;
        assert_eq!(store.list_jobs().await.unwrap().len(), 1);
        assert!(store.find_job("job".to_owned()).await.unwrap().is_some());
        assert_eq!(store.list_tasks(job, "waiting".to_owned(), 9).await.unwrap().len(), 1);
        assert_eq!(store.list_domains(String::new(), String::new(), 9).await.unwrap().len(), 1);
        assert!(store.find_domain(domain("a.example")).await.unwrap().unwrap().holder.is_some());
        assert_eq!(store.list_sources().await.unwrap().len(), 1);
        assert_eq!(store.list_fetches(SourceId(1), 9).await.unwrap(), []);
        assert_eq!(store.list_items(ItemQuery { limit: 9, ..ItemQuery::default() }).await.unwrap(), []);
        assert_eq!(store.find_item(ItemId(1)).await.unwrap(), None);
        assert_eq!(store.count_items(SourceId(1)).await.unwrap().items, 0);
        assert_eq!(store.live_processes().await.unwrap().len(), 1);
        assert_eq!(store.backlog(job, 9, 9).await.unwrap().len(), 1);
        assert_eq!(store.counts().await.unwrap(), []);
    };
    tokio::select! {
        biased;
        () = looking => {}
        done = &mut waits => panic!("it was locked: {done:?}"),
    }
    drop(locked);
    waits.await.unwrap();
    assert_eq!(one.store.list_jobs().await.unwrap().len(), 2, "acknowledged writes are visible");
}
