//! What processes are at, and how much is left for them.

use comity_store::domains::{Hold, Parting, Take};
use comity_store::status::Sight;
use comity_store::tasks::Step;
use serde_json::json;

use crate::backend::Backend;
use crate::process::{Process, at, domain, done, hold_of};

pub(crate) async fn what_a_holder_reported_is_seen_while_it_lives(backend: &dyn Backend) {
    let (one, other) =
        (Process::start(backend, "one", at(0)).await, Process::start(backend, "other", at(1)).await);
    one.store.tell(one.holder, json!({ "at": "first" }), json!(["some"]), at(2)).await.unwrap();
    one.store.tell(one.holder, json!({ "at": "second" }), json!(["others"]), at(3)).await.unwrap();

    let working = other.store.working().await.unwrap();
    let seen: Vec<_> = working.iter().map(|one| (one.name.as_str(), one.since, one.told.clone())).collect();
    let told = Some((json!({ "at": "second" }), at(3)));
    assert_eq!(seen, [("one", at(0), told), ("other", at(1), None)]);
    assert_eq!((&working[0].sights, &working[1].sights), (&json!(["others"]), &json!(null)));

    one.store.deregister(one.holder, at(4)).await.unwrap();
    let working = other.store.working().await.unwrap();
    assert_eq!(working.iter().map(|one| one.name.as_str()).collect::<Vec<_>>(), ["other"]);
    // What comes too late changes nothing.
    one.store.tell(one.holder, json!({ "at": "late" }), json!([]), at(5)).await.unwrap();
    assert_eq!(other.store.working().await.unwrap().len(), 1);
}

/// B81: who wishes to see a domain is shown it by its holder, who keeps it.
pub(crate) async fn a_wish_to_see_a_domain_is_answered_by_its_holder(backend: &dyn Backend) {
    let (one, other) =
        (Process::start(backend, "one", at(0)).await, Process::start(backend, "other", at(0)).await);
    let hold = one.taken("a.example", at(0)).await.hold;
    one.taken("b.example", at(0)).await;
    let names = || ["a.example", "b.example", "unknown.example"].map(domain).to_vec();
    assert_eq!(one.store.wished(one.holder).await.unwrap(), []);
    assert_eq!(other.store.shown(names()).await.unwrap(), [None, None, None]);

    other.store.wish(vec![domain("a.example"), domain("unknown.example")], at(1)).await.unwrap();
    assert_eq!(one.store.wished(one.holder).await.unwrap(), [hold.key]);
    assert_eq!(other.store.wished(other.holder).await.unwrap(), [], "it is not its own to show");
    assert_eq!(one.wanted().await, [], "and nobody wants to have it");

    one.store.show(one.holder, vec![Sight { hold, told: json!("slow") }], at(2)).await.unwrap();
    assert_eq!(other.store.shown(names()).await.unwrap(), [Some((json!("slow"), at(2))), None, None]);
    assert_eq!(one.store.wished(one.holder).await.unwrap(), [], "it was shown");
    assert_eq!(
        other.take("a.example", at(2)).await,
        Take::Held { by: "one".to_owned() },
        "and is held still"
    );

    other.store.wish(vec![domain("a.example")], at(3)).await.unwrap();
    assert_eq!(one.store.wished(one.holder).await.unwrap(), [hold.key], "somebody wants to see it again");
    assert_eq!(other.store.shown(names()).await.unwrap(), [None, None, None], "what was shown is old");
}

/// B81: what was shown by one that does not hold the domain any more is not what it is.
pub(crate) async fn only_whoever_holds_a_domain_shows_it(backend: &dyn Backend) {
    let (one, other) =
        (Process::start(backend, "one", at(0)).await, Process::start(backend, "other", at(0)).await);
    let hold = one.taken("a.example", at(0)).await.hold;
    let shown = async || other.store.shown(vec![domain("a.example")]).await.unwrap().remove(0);
    other.store.wish(vec![domain("a.example")], at(1)).await.unwrap();
    let wrong = Hold { epoch: hold.epoch - 1, ..hold };
    other.store.show(other.holder, vec![Sight { hold, told: json!("theirs") }], at(1)).await.unwrap();
    one.store.show(one.holder, vec![Sight { hold: wrong, told: json!("before") }], at(1)).await.unwrap();
    assert_eq!(shown().await, None);
    one.store.show(one.holder, vec![Sight { hold, told: json!("now") }], at(1)).await.unwrap();
    assert_eq!(shown().await, Some((json!("now"), at(1))));
    one.release(hold, b"pace", Parting::HandOver, at(2)).await;
    assert_eq!(shown().await, None, "nobody holds it");
    let hold = other.taken("a.example", at(9)).await.hold;
    assert_eq!(shown().await, None, "another holds it");
    other.store.show(other.holder, vec![Sight { hold, told: json!("theirs") }], at(9)).await.unwrap();
    assert_eq!(shown().await, Some((json!("theirs"), at(9))));
}

/// B81: what nobody wishes to see any more takes no room.
pub(crate) async fn wishes_are_forgotten(backend: &dyn Backend) {
    let one = Process::start(backend, "one", at(0)).await;
    let keys = [one.taken("a.example", at(0)).await.hold.key, one.taken("b.example", at(0)).await.hold.key];
    one.store.wish(vec![domain("a.example")], at(0)).await.unwrap();
    one.store.wish(vec![domain("b.example")], at(30)).await.unwrap();
    assert_eq!(one.store.wished(one.holder).await.unwrap(), keys);
    one.store.wish(vec![], at(61)).await.unwrap();
    assert_eq!(one.store.wished(one.holder).await.unwrap(), [keys[1]]);
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

    // A lane that is served counts as one that waits to be.
    let claimed = one.claim(job, at(1)).await;
    let lane = claimed.iter().find(|lane| lane.domain.as_str() == "a.example").unwrap();
    one.settle(job, hold_of(lane), lane.tasks[0].id, done(), at(2)).await;
    assert_eq!(backlog(10, 100).await, "a.example 4, b.example 2");
}

pub(crate) async fn a_backlog_says_from_when_on_nobody_serves_it(backend: &dyn Backend) {
    let one = Process::start(backend, "one", at(0)).await;
    let job = one.job_of("job", &["https://a.example/"], at(0)).await;
    let due_at = async || one.store.backlog(job, 10, 100).await.unwrap()[0].due_at;
    assert!(due_at().await.is_some_and(|due_at| due_at <= at(0)), "it may be served");
    let claimed = one.claim(job, at(1)).await;
    assert_eq!(due_at().await, None, "it is served");
    let retry = Step::Retry { ready_at: at(300), retries: 1, forgiven: 0, error: "status 503".to_owned() };
    one.settle(job, hold_of(&claimed[0]), claimed[0].tasks[0].id, retry, at(2)).await;
    one.store.park(one.holder, vec![(claimed[0].lane, at(300))]).await.unwrap();
    assert_eq!(due_at().await, Some(at(300)), "nobody serves it before its task may go");
}
