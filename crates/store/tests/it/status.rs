//! What processes are at, and how much is left for them.

use serde_json::json;

use crate::backend::Backend;
use crate::process::{Process, at, done, hold_of};

pub(crate) async fn what_a_holder_told_is_seen_while_it_lives(backend: Backend) {
    let (one, other) =
        (Process::start(&backend, "one", at(0)).await, Process::start(&backend, "other", at(1)).await);
    one.store.tell(one.holder, json!({ "at": "first" }), at(2)).await.unwrap();
    one.store.tell(one.holder, json!({ "at": "second" }), at(3)).await.unwrap();

    let working = other.store.working().await.unwrap();
    let seen: Vec<_> = working.iter().map(|one| (one.name.as_str(), one.since, one.told.clone())).collect();
    let told = Some((json!({ "at": "second" }), at(3)));
    assert_eq!(seen, [("one", at(0), told), ("other", at(1), None)]);

    one.store.deregister(one.holder, at(4)).await.unwrap();
    let working = other.store.working().await.unwrap();
    assert_eq!(working.iter().map(|one| one.name.as_str()).collect::<Vec<_>>(), ["other"]);
    // What comes too late changes nothing.
    one.store.tell(one.holder, json!({ "at": "late" }), at(5)).await.unwrap();
    assert_eq!(other.store.working().await.unwrap().len(), 1);
}

pub(crate) async fn a_backlog_is_counted_by_domain_up_to_a_limit(backend: Backend) {
    let one = Process::start(&backend, "one", at(0)).await;
    let urls: Vec<String> = (0..5)
        .map(|page| format!("https://a.example/{page}"))
        .chain((0..2).map(|page| format!("https://b.example/{page}")))
        .collect();
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    let job = one.job_of("job", &urls, at(0)).await;
    one.job_of("other", &["https://c.example/"], at(0)).await;
    let backlog = async |lanes, tasks| {
        let mut backlog = one.store.backlog(job, lanes, tasks).await.unwrap();
        backlog.sort_by(|a, b| a.domain.as_str().cmp(b.domain.as_str()));
        backlog.iter().map(|one| format!("{} {}", one.domain, one.waiting)).collect::<Vec<_>>().join(", ")
    };
    assert_eq!(backlog(10, 100).await, "a.example 5, b.example 2");
    assert_eq!(backlog(10, 3).await, "a.example 3, b.example 2");
    assert_eq!(one.store.backlog(job, 1, 100).await.unwrap().len(), 1);

    // A lane that is served counts as one that waits to be.
    let claimed = one.claim(job, at(1)).await;
    let lane = claimed.iter().find(|lane| lane.domain.as_str() == "a.example").unwrap();
    one.settle(job, hold_of(lane), lane.tasks[0].id, done(), at(2)).await;
    assert_eq!(backlog(10, 100).await, "a.example 4, b.example 2");
}
