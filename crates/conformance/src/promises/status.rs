//! What processes are doing, and how much work is left.

use comity_store::domains::{ReleaseMode, Take, Tenure};
use comity_store::status::DomainSnapshot;
use comity_store::tasks::Step;
use serde_json::json;

use crate::backend::Backend;
use crate::process::{Process, at, domain, done, tenure_of};

pub(crate) async fn a_status_report_is_visible_while_its_holder_lives(backend: &dyn Backend) {
    let (one, other) =
        (Process::start(backend, "one", at(0)).await, Process::start(backend, "other", at(1)).await);
    one.store.report_status(one.holder, json!({ "at": "first" }), json!(["some"]), at(2)).await.unwrap();
    one.store.report_status(one.holder, json!({ "at": "second" }), json!(["others"]), at(3)).await.unwrap();

    let processes = other.store.live_processes().await.unwrap();
    let seen: Vec<_> =
        processes.iter().map(|one| (one.name.as_str(), one.since, one.status.clone())).collect();
    let status = Some((json!({ "at": "second" }), at(3)));
    assert_eq!(seen, [("one", at(0), status), ("other", at(1), None)]);
    assert_eq!((&processes[0].sights, &processes[1].sights), (&json!(["others"]), &json!(null)));

    one.store.deregister(one.holder, at(4)).await.unwrap();
    let processes = other.store.live_processes().await.unwrap();
    assert_eq!(processes.iter().map(|one| one.name.as_str()).collect::<Vec<_>>(), ["other"]);
    // A late report changes nothing.
    one.store.report_status(one.holder, json!({ "at": "late" }), json!([]), at(5)).await.unwrap();
    assert_eq!(other.store.live_processes().await.unwrap().len(), 1);
}

/// B81: the holder publishes a snapshot of the domain on request, and keeps the domain.
pub(crate) async fn a_requested_snapshot_is_published_by_the_holder(backend: &dyn Backend) {
    let (one, other) =
        (Process::start(backend, "one", at(0)).await, Process::start(backend, "other", at(0)).await);
    let tenure = one.taken("a.example", at(0)).await.tenure;
    one.taken("b.example", at(0)).await;
    let names = || ["a.example", "b.example", "unknown.example"].map(domain).to_vec();
    assert_eq!(one.store.requested_snapshots(one.holder).await.unwrap(), []);
    assert_eq!(other.store.snapshots(names()).await.unwrap(), [None, None, None]);

    other.store.request_snapshots(vec![domain("a.example"), domain("unknown.example")], at(1)).await.unwrap();
    assert_eq!(one.store.requested_snapshots(one.holder).await.unwrap(), [tenure.key]);
    assert_eq!(
        other.store.requested_snapshots(other.holder).await.unwrap(),
        [],
        "it does not tenure the domain"
    );
    assert_eq!(one.wanted().await, [], "and the domain is not wanted");

    one.store
        .publish_snapshots(one.holder, vec![DomainSnapshot { tenure, value: json!("slow") }], at(2))
        .await
        .unwrap();
    assert_eq!(other.store.snapshots(names()).await.unwrap(), [Some((json!("slow"), at(2))), None, None]);
    assert_eq!(one.store.requested_snapshots(one.holder).await.unwrap(), [], "it was published");
    assert_eq!(
        other.take("a.example", at(2)).await,
        Take::Held { by: "one".to_owned() },
        "and is still held"
    );

    other.store.request_snapshots(vec![domain("a.example")], at(3)).await.unwrap();
    assert_eq!(
        one.store.requested_snapshots(one.holder).await.unwrap(),
        [tenure.key],
        "it was requested again"
    );
    assert_eq!(
        other.store.snapshots(names()).await.unwrap(),
        [None, None, None],
        "the earlier snapshot is out of date"
    );
}

/// B81: a snapshot by a process that no longer holds the domain is out of date.
pub(crate) async fn only_the_holder_can_publish_a_snapshot(backend: &dyn Backend) {
    let (one, other) =
        (Process::start(backend, "one", at(0)).await, Process::start(backend, "other", at(0)).await);
    let tenure = one.taken("a.example", at(0)).await.tenure;
    let shown = async || other.store.snapshots(vec![domain("a.example")]).await.unwrap().remove(0);
    other.store.request_snapshots(vec![domain("a.example")], at(1)).await.unwrap();
    let wrong = Tenure { epoch: tenure.epoch - 1, ..tenure };
    other
        .store
        .publish_snapshots(other.holder, vec![DomainSnapshot { tenure, value: json!("theirs") }], at(1))
        .await
        .unwrap();
    one.store
        .publish_snapshots(one.holder, vec![DomainSnapshot { tenure: wrong, value: json!("before") }], at(1))
        .await
        .unwrap();
    assert_eq!(shown().await, None);
    one.store
        .publish_snapshots(one.holder, vec![DomainSnapshot { tenure, value: json!("now") }], at(1))
        .await
        .unwrap();
    assert_eq!(shown().await, Some((json!("now"), at(1))));
    one.release(tenure, b"pace", ReleaseMode::HandOver, at(2)).await;
    assert_eq!(shown().await, None, "nobody holds it");
    let tenure = other.taken("a.example", at(9)).await.tenure;
    assert_eq!(shown().await, None, "another holds it");
    other
        .store
        .publish_snapshots(other.holder, vec![DomainSnapshot { tenure, value: json!("theirs") }], at(9))
        .await
        .unwrap();
    assert_eq!(shown().await, Some((json!("theirs"), at(9))));
}

/// B81: expired requests take up no space.
pub(crate) async fn snapshot_requests_expire(backend: &dyn Backend) {
    let one = Process::start(backend, "one", at(0)).await;
    let keys =
        [one.taken("a.example", at(0)).await.tenure.key, one.taken("b.example", at(0)).await.tenure.key];
    one.store.request_snapshots(vec![domain("a.example")], at(0)).await.unwrap();
    one.store.request_snapshots(vec![domain("b.example")], at(30)).await.unwrap();
    assert_eq!(one.store.requested_snapshots(one.holder).await.unwrap(), keys);
    one.store.request_snapshots(vec![], at(61)).await.unwrap();
    assert_eq!(one.store.requested_snapshots(one.holder).await.unwrap(), [keys[1]]);
}

pub(crate) async fn a_backlog_is_counted_by_domain_up_to_a_limit(backend: &dyn Backend) {
    let one = Process::start(backend, "one", at(0)).await;
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

    // A lane that is served counts just like one that is not.
    let claimed = one.claim(job, at(1)).await;
    let lane = claimed.iter().find(|lane| lane.domain.as_str() == "a.example").unwrap();
    one.settle(job, tenure_of(lane), lane.tasks[0].id, done(), at(2)).await;
    assert_eq!(backlog(10, 100).await, "a.example 4, b.example 2");
}

pub(crate) async fn a_backlog_shows_when_it_is_due(backend: &dyn Backend) {
    let one = Process::start(backend, "one", at(0)).await;
    let job = one.job_of("job", &["https://a.example/"], at(0)).await;
    let due_at = async || one.store.backlog(job, 10, 100).await.unwrap()[0].due_at;
    assert!(due_at().await.is_some_and(|due_at| due_at <= at(0)), "it may be served");
    let claimed = one.claim(job, at(1)).await;
    assert_eq!(due_at().await, None, "it is served");
    let retry = Step::Retry { ready_at: at(300), retries: 1, forgiven: 0, error: "status 503".to_owned() };
    one.settle(job, tenure_of(&claimed[0]), claimed[0].tasks[0].id, retry, at(2)).await;
    one.store.park(one.holder, vec![(claimed[0].lane, at(300))]).await.unwrap();
    assert_eq!(due_at().await, Some(at(300)), "nobody serves it before its task is ready");
}
