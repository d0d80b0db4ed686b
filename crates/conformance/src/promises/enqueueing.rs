//! Adding tasks to jobs.

use comity_core::task::JobId;
use comity_store::domains::ReleaseMode;
use comity_store::tasks::{Enqueued, Lead, NewTask, RedirectBody, RequestParts, Step};

use crate::backend::Backend;
use crate::process::{Process, at, listed, moved, retry, tenure_of, urls_of};

/// B54
pub(crate) async fn a_url_is_added_to_a_job_once(backend: &dyn Backend) {
    let one = Process::start(backend, "one", at(0)).await;
    let job = one.open_job("job").await;
    let (a, b, c) = ("https://a.example/", "https://b.example/", "https://c.example/");
    assert_eq!(one.enqueue(job, &[a, b, a, a], at(0)).await, Enqueued { new: 2, known: 2, refused: 0 });
    assert_eq!(one.enqueue(job, &[b, c, c], at(1)).await, Enqueued { new: 1, known: 2, refused: 0 });

    // The rules may assign the URL to another domain by now; it is still the same URL.
    let grouped = NewTask { domain: listed(b).domain, ..listed(a) };
    assert_eq!(one.store.enqueue(job, vec![grouped], at(2)).await.unwrap().known, 1);
    assert_eq!(one.enqueue(job, &[], at(2)).await, Enqueued::default());
    assert_eq!(one.counts(job).await.tasks, 3);
    assert_eq!(urls_of(&one.claim(job, at(2)).await), "a.example/ | b.example/ | c.example/");
}

pub(crate) async fn a_lane_keeps_the_order_in_which_it_was_filled(backend: &dyn Backend) {
    let one = Process::start(backend, "one", at(0)).await;
    let job = one.open_job("job").await;
    one.enqueue(job, &["https://a.example/3", "https://b.example/9", "https://a.example/1"], at(0)).await;
    one.enqueue(job, &["https://a.example/2", "https://b.example/8", "https://a.example/0"], at(0)).await;
    one.enqueue(job, &["https://a.example/00"], at(1)).await;
    let lanes = urls_of(&one.claim(job, at(1)).await);
    assert_eq!(
        lanes,
        "a.example/3 a.example/1 a.example/2 a.example/0 a.example/00 | b.example/9 b.example/8"
    );
}

/// B49
pub(crate) async fn a_job_that_failed_or_was_cancelled_refuses_tasks(backend: &dyn Backend) {
    use comity_core::task::JobStep;
    let one = Process::start(backend, "one", at(0)).await;
    for (name, step) in [("b", JobStep::Cancel), ("c", JobStep::Fail)] {
        let job = one.open_job(name).await;
        one.step(job, step, at(0)).await;
        let refused = one.enqueue(job, &["https://a.example/1", "https://a.example/2"], at(1)).await;
        assert_eq!(refused, Enqueued { new: 0, known: 0, refused: 2 }, "{step}");
        assert_eq!(one.counts(job).await.tasks, 0);

        one.step(job, JobStep::Reopen, at(2)).await;
        assert_eq!(one.enqueue(job, &["https://a.example/1"], at(2)).await.new, 1);
    }
    assert_eq!(one.enqueue(JobId(999), &["https://a.example/1"], at(0)).await.refused, 1);
}

pub(crate) async fn two_jobs_may_have_the_same_url(backend: &dyn Backend) {
    let one = Process::start(backend, "one", at(0)).await;
    let first = one.job_of("first", &["https://a.example/"], at(0)).await;
    let second = one.job_of("second", &["https://a.example/"], at(0)).await;
    assert_eq!(urls_of(&one.claim(first, at(0)).await), "a.example/");
    assert_eq!(urls_of(&one.claim(second, at(0)).await), "a.example/");
    assert_eq!(one.row("a.example").await.waiting, 2);
}

/// B76: through a retry, a redirect and a change of holder.
pub(crate) async fn a_task_remembers_where_its_url_comes_from(backend: &dyn Backend) {
    let one = Process::start(backend, "one", at(0)).await;
    let other = Process::start(backend, "other", at(0)).await;
    let job = one.open_job("job").await;
    let remote = NewTask { lead: Lead::Remote, ..listed("https://a.example/remote") };
    one.store.enqueue(job, vec![listed("https://a.example/listed"), remote], at(0)).await.unwrap();

    let lane = one.claim_one(job, at(0)).await;
    let leads =
        |lane: &comity_store::tasks::Claimed| lane.tasks.iter().map(|task| task.lead).collect::<Vec<_>>();
    assert_eq!(leads(&lane), [Lead::Listed, Lead::Remote]);
    for task in &lane.tasks {
        one.settle(job, tenure_of(&lane), task.id, retry(at(1)), at(1)).await;
        one.settle(job, tenure_of(&lane), task.id, moved("b.example"), at(1)).await;
    }
    one.release(tenure_of(&lane), b"pace", ReleaseMode::Stop, at(1)).await;
    assert_eq!(leads(&other.claim_one(job, at(2)).await), [Lead::Listed, Lead::Remote]);
}

/// B76: exactly that origin, after the task ended, after a redirect and after a change of holder.
pub(crate) async fn a_job_remembers_which_origins_were_listed(backend: &dyn Backend) {
    let one = Process::start(backend, "one", at(0)).await;
    let other = Process::start(backend, "other", at(0)).await;
    let (job, other_job) = (one.open_job("job").await, one.open_job("beside").await);
    let remote = NewTask { lead: Lead::Remote, ..listed("https://remote.example/") };
    let tasks = vec![listed("https://a.example/1"), listed("http://me:secret@b.example:8080/"), remote];
    one.store.enqueue(job, tasks, at(0)).await.unwrap();
    let asked = [
        ("https://a.example", true),
        ("http://a.example", false),
        ("https://www.a.example", false),
        ("https://a.example:8443", false),
        ("http://b.example:8080", true),
        ("http://me:secret@b.example:8080", false),
        ("https://remote.example", false),
    ];
    let origins: Vec<String> = asked.iter().map(|(origin, _)| (*origin).to_owned()).collect();
    let expected: Vec<bool> = asked.iter().map(|(_, listed)| *listed).collect();
    assert_eq!(one.store.lists(job, origins.clone()).await.unwrap(), expected);
    assert_eq!(one.store.lists(other_job, origins.clone()).await.unwrap(), vec![false; asked.len()]);

    for lane in one.claim(job, at(0)).await {
        for task in &lane.tasks {
            one.settle(job, tenure_of(&lane), task.id, moved("c.example"), at(1)).await;
        }
        one.release(tenure_of(&lane), b"pace", ReleaseMode::Stop, at(1)).await;
    }
    assert_eq!(other.store.lists(job, origins).await.unwrap(), expected);
    assert_eq!(other.store.lists(job, vec!["https://c.example".to_owned()]).await.unwrap(), [false]);
}

/// A task is identified by URL, method and body. A redirect may turn it into a plain GET, also for the process that
/// continues it.
pub(crate) async fn a_task_is_identified_by_url_method_and_body(backend: &dyn Backend) {
    let one = Process::start(backend, "one", at(0)).await;
    let job = one.open_job("job").await;
    let posted = |body: &str| {
        let headers = vec![("content-type".to_owned(), "text/plain".to_owned())];
        let sends = RequestParts { method: "POST".to_owned(), body: body.as_bytes().to_vec(), headers };
        NewTask { sends: Some(Box::new(sends)), ..listed("https://a.example/form") }
    };
    let put = NewTask {
        sends: Some(Box::new(RequestParts {
            method: "PUT".to_owned(),
            body: b"x".to_vec(),
            headers: Vec::new(),
        })),
        ..listed("https://a.example/form")
    };
    let tasks = vec![posted("x"), listed("https://a.example/form"), posted("y"), posted("x"), put.clone()];
    let enqueued = one.store.enqueue(job, tasks, at(0)).await.unwrap();
    assert_eq!(enqueued, Enqueued { new: 4, known: 1, refused: 0 });
    assert_eq!(one.store.enqueue(job, vec![posted("y"), put], at(1)).await.unwrap().known, 2);

    let lane = one.claim_one(job, at(1)).await;
    let sent: Vec<_> = lane.tasks.iter().map(|task| task.sends.clone()).collect();
    assert_eq!((&sent[0], &sent[1], &sent[2]), (&posted("x").sends, &None, &posted("y").sends));

    let redirected = |body| {
        let (domain, at_url) = (listed("https://b.example/").domain, Some("https://b.example/".to_owned()));
        Step::Moved { domain, at_url, hops: 1, body }
    };
    one.settle(job, tenure_of(&lane), lane.tasks[0].id, redirected(RedirectBody::Dropped), at(2)).await;
    one.settle(job, tenure_of(&lane), lane.tasks[2].id, redirected(RedirectBody::Kept), at(2)).await;
    let there = one.claim_one(job, at(2)).await;
    let sent: Vec<_> = there.tasks.iter().map(|task| task.sends.clone()).collect();
    assert_eq!(sent, [None, posted("y").sends]);
    one.settle(job, tenure_of(&there), there.tasks[0].id, moved("a.example"), at(3)).await;
    assert!(
        one.claim(job, at(3))
            .await
            .iter()
            .flat_map(|lane| &lane.tasks)
            .all(|task| task.sends.is_none() || task.sends == posted("y").sends)
    );
}
