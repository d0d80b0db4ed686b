//! Rows that cannot be read, whatever wrote them: an older build, a disk error, a person with a shell (B82).

use comity_conformance::follower::feed;
use comity_conformance::process::{at, done, tenure_of, urls_of};
use comity_store::StoreError;
use comity_store::jobs::Counts;
use comity_store::sources::SourceChange;
use comity_store::tasks::RemainingWork;

use crate::file::TestFile;

/// B82: names that an older build stored, and that were read back as another site's or not at all.
#[tokio::test]
async fn an_unreadable_domain_fails_only_its_own_tasks() {
    let file = TestFile::new();
    let one = file.process("one").await;
    let names = [
        "victim.",
        "a..b",
        ".a",
        ".",
        "*",
        "a*b",
        "www..a",
        "WWW.example",
        "www.example",
        "a:0",
        "",
        "group:",
    ];
    let urls: Vec<String> = (0..names.len()).map(|nth| format!("https://{nth}.bad.example/")).collect();
    let mut all: Vec<&str> = urls.iter().map(String::as_str).collect();
    all.extend(["https://victim/", "https://good.example/"]);
    let job = one.job_of("job", &all, at(0)).await;
    for (nth, name) in names.iter().enumerate() {
        file.query(&format!("UPDATE domains SET domain = '{name}' WHERE domain = '{nth}.bad.example'"));
    }
    let lanes = one.claim(job, at(0)).await;
    assert_eq!(urls_of(&lanes), "victim/ | good.example/", "everything else continues");
    let counts = Counts { tasks: 14, failed: 12, ..Counts::default() };
    assert_eq!(one.counts(job).await, counts);
    let failed = one.store.list_tasks(job, "failed".to_owned(), 20).await.unwrap();
    let victim = failed.iter().find(|task| task.url == "https://0.bad.example/").unwrap();
    let error = victim.error.as_deref().unwrap();
    assert!(error.contains("domain") && error.contains("\"victim.\""), "{error}");
    assert_eq!(one.claim(job, at(1)).await, [], "and they are not claimed again");
    assert_eq!(one.store.backlog(job, 100, 100).await.unwrap().len(), 2);
    assert_eq!(one.store.list_domains(String::new(), String::new(), 100).await.unwrap().len(), 13);
}

/// B82
#[tokio::test]
async fn an_unreadable_task_fails_alone() {
    let file = TestFile::new();
    let one = file.process("one").await;
    let urls: Vec<String> = (0..20).map(|nth| format!("https://a.example/{nth:02}")).collect();
    let job = one.job_of("job", &urls.iter().map(String::as_str).collect::<Vec<_>>(), at(0)).await;
    file.query("UPDATE tasks SET hops = -1 WHERE url LIKE '%0'; UPDATE tasks SET retries = 1 << 40 WHERE url LIKE '%/1%'");
    file.query("UPDATE tasks SET url = CAST(x'68ff' AS TEXT) WHERE url LIKE '%/05'");
    let lane = one.claim_one(job, at(0)).await;
    let urls: Vec<_> = lane.tasks.iter().map(|task| task.url.as_str()).collect();
    assert_eq!(urls.len(), 8, "{urls:?}");
    for task in &lane.tasks {
        one.settle(job, tenure_of(&lane), task.id, done(), at(1)).await;
    }
    assert_eq!(one.counts(job).await, Counts { tasks: 20, done: 8, failed: 12, ..Counts::default() });
    // Lists skip rows that cannot even be shown.
    assert_eq!(one.store.list_tasks(job, "failed".to_owned(), 50).await.unwrap().len(), 11);
    let rest = one.store.give_up(one.holder, lane.lane, "gave up on it".to_owned()).await.unwrap();
    assert_eq!(rest, RemainingWork::Nothing);
}

/// B82: a task that no claim returns used to keep its job waiting for ever.
#[tokio::test]
async fn tasks_that_cannot_be_claimed_any_more_are_set_aside() {
    for (damage, failed) in [
        ("UPDATE tasks SET state = CAST(x'ff' AS TEXT) WHERE url LIKE '%/2'", 1),
        ("UPDATE tasks SET lane_id = 99 WHERE url LIKE '%/2'", 1),
        ("UPDATE tasks SET state = '' WHERE url LIKE '%/2'; UPDATE lanes SET due_us = NULL", 1),
        ("DELETE FROM tasks WHERE url LIKE '%/2'", 0),
        ("UPDATE jobs SET tasks = 4", 0),
    ] {
        let file = TestFile::new();
        let one = file.process("one").await;
        let urls = ["https://a.example/1", "https://a.example/2", "https://b.example/3"];
        let job = one.job_of("job", &urls, at(0)).await;
        assert_eq!(one.store.set_aside_stranded(job, at(0)).await.unwrap(), 0, "a lane is due");
        file.query(damage);
        let mut settled = 0;
        loop {
            for lane in one.claim(job, at(1)).await {
                assert_eq!(one.store.set_aside_stranded(job, at(1)).await.unwrap(), 0, "a lane is served");
                for task in &lane.tasks {
                    one.settle(job, tenure_of(&lane), task.id, done(), at(1)).await;
                    settled += 1;
                }
                one.store.park(one.holder, vec![(lane.lane, at(1))]).await.unwrap();
            }
            if one.store.set_aside_stranded(job, at(1)).await.unwrap() == 0 {
                break;
            }
        }
        let counts = one.counts(job).await;
        assert_eq!((counts.waiting(), counts.done, counts.failed), (0, settled, failed), "{damage}");
        assert!(settled >= 2, "{damage}");
    }
}

/// B82: a lane whose site is gone.
#[tokio::test]
async fn the_tasks_of_a_site_that_is_gone_fail() {
    let file = TestFile::new();
    let one = file.process("one").await;
    let job = one.job_of("job", &["https://a.example/1", "https://b.example/2"], at(0)).await;
    file.query("PRAGMA foreign_keys = OFF; DELETE FROM domains WHERE domain = 'a.example'");
    assert_eq!(urls_of(&one.claim(job, at(0)).await), "b.example/2");
    assert_eq!(one.counts(job).await, Counts { tasks: 2, failed: 1, ..Counts::default() });
}

/// B82: a boot that can't be read is another boot.
#[tokio::test]
async fn an_unreadable_boot_does_not_stop_the_time() {
    let file = TestFile::new();
    drop(file.process("one").await);
    file.query("UPDATE timeline SET boot = CAST(x'ff00fe' AS TEXT)");
    let two = file.process("two").await;
    two.store.time().await.unwrap();
}

/// B82
#[tokio::test]
async fn unreadable_jobs_and_sources_are_left_out() {
    let file = TestFile::new();
    let one = file.process("one").await;
    for name in ["bad", "good"] {
        one.open_job(name).await;
        one.store.add_source(feed(&format!("https://{name}.example/")), at(0)).await.unwrap();
    }
    file.query("UPDATE jobs SET message = CAST(x'ff' AS TEXT) WHERE name = 'bad'");
    file.query("UPDATE sources SET failures = -1, min_scrape_interval = 1e300 WHERE url LIKE '%bad%'");
    file.query("UPDATE sources SET min_scrape_interval = 1e300");
    let jobs = one.store.list_jobs().await.unwrap();
    assert_eq!(jobs.iter().map(|job| job.name.as_str()).collect::<Vec<_>>(), ["good"]);
    let sources = one.store.list_sources().await.unwrap();
    assert_eq!(
        sources.iter().map(|source| source.url.as_str()).collect::<Vec<_>>(),
        ["https://good.example/"]
    );
    let error = one.store.find_job("bad".to_owned()).await.unwrap_err().to_string();
    assert!(error.contains("a row of the table jobs cannot be read"), "{error}");
    assert!(one.store.find_job("good".to_owned()).await.unwrap().is_some());
}

/// B82: requests that arrive at the same moment share a transaction, and an error concerns only its caller.
#[tokio::test]
async fn an_error_of_one_caller_does_not_affect_others() {
    let file = TestFile::new();
    let one = file.process("one").await;
    let (source, _) = one.store.add_source(feed("https://bad.example/"), at(0)).await.unwrap();
    file.query("UPDATE sources SET failures = -1");
    let store = &one.store;
    // The first request keeps the thread busy while the others queue up behind it.
    let locked = file.lock();
    let first = store.next_due(comity_core::task::JobId(1));
    let before = store.open_job("before".to_owned(), serde_json::Value::Null, at(1));
    let bad = store.change_source(source.id, SourceChange::default());
    let after = store.open_job("after".to_owned(), serde_json::Value::Null, at(2));
    drop(locked);
    let (first, before, bad, after) = tokio::join!(first, before, bad, after);
    assert!(first.is_ok() && before.is_ok() && after.is_ok());
    let bad = bad.unwrap_err();
    assert!(matches!(bad, StoreError::Rejected { .. }), "{bad:?}");
    assert!(bad.to_string().contains("comity.db"), "it names the store: {bad}");
    assert_eq!(file.query_one("SELECT group_concat(name) FROM jobs"), "after,before");
}
