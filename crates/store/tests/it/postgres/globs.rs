//! A glob selects the same URLs as in SQLite, which has globs of its own.

use std::sync::Arc;

use comity_conformance::process::{at, failed, taken};
use comity_core::domain::Domain;
use comity_core::task::{JobId, JobStep};
use comity_store::Store;
use comity_store::jobs::RetryFilter;
use comity_store::tasks::{Claim, NewTask, Settle};
use serde_json::Value;

use super::server::Server;

#[tokio::test]
async fn a_glob_selects_the_same_urls_as_in_sqlite() {
    let url = tokio::task::spawn_blocking(|| Server::shared().fresh_url()).await.unwrap();
    let ours = comity_store::open(&url).unwrap();
    let theirs = comity_store::open("memory:").unwrap();
    let mut jobs = Vec::new();
    for url in URLS {
        jobs.push((url, job_that_failed(&*ours, url).await, job_that_failed(&*theirs, url).await));
    }
    for glob in GLOBS {
        for (url, ours_job, theirs_job) in &jobs {
            let selects = async |store: &dyn Store, job: JobId| {
                let filter = RetryFilter { matching: Some((*glob).to_owned()), ..RetryFilter::default() };
                store.can_retry(job, filter).await.unwrap()
            };
            let (found, expected) = (selects(&*ours, *ours_job).await, selects(&*theirs, *theirs_job).await);
            assert_eq!(found, expected, "{glob:?} and {url:?}");
        }
    }
}

/// A job with only this URL, which failed.
async fn job_that_failed(store: &dyn Store, url: &str) -> JobId {
    let holder = store.register("one".to_owned(), at(0)).await.unwrap();
    let domain = Domain::parse("a.example").unwrap();
    let job = store.open_job(url.to_owned(), Value::Null, at(0)).await.unwrap().0.id;
    store.enqueue(job, vec![NewTask::listed(url.to_owned(), domain)], at(0)).await.unwrap();
    let claimed = store.claim(holder, Claim { job, lanes: 1, tasks: 1 }, at(0)).await.unwrap().remove(0);
    let settle = Settle {
        task: claimed.tasks[0].id,
        job,
        tenure: taken(claimed.take).tenure,
        attempts: Vec::new(),
        url_key: None,
        robots: None,
        facts: Arc::default(),
        step: failed(),
    };
    store.settle(holder, [settle].into(), at(0)).await.unwrap();
    store.step_job(job, JobStep::Finish, None, at(0)).await.unwrap();
    store.deregister(holder, at(0)).await.unwrap();
    job
}

const URLS: [&str; 24] = [
    "a",
    "b",
    "c",
    "z",
    "A",
    "é",
    "\u{1f600}",
    "]",
    "[",
    "^",
    "-",
    "\\",
    "*",
    "?",
    ".",
    "/",
    ":",
    "{",
    "a\nb",
    "ab",
    "abc",
    "a.c",
    "https://a.example/x?y=[1]&z=a+b",
    "(a|b){2}$",
];
const GLOBS: [&str; 58] = [
    "",
    "*",
    "?",
    "??",
    "a",
    "A",
    "a*",
    "*b",
    "a?b",
    "a?c",
    "a.c",
    "*[bc]",
    "*[0-9]*",
    "[a-c]",
    "[^a-c]",
    "[a-c]*",
    "[z-a]",
    "[]]",
    "[^]]",
    "[]-a]",
    "[a-]",
    "[-a]",
    "[^-a]",
    "[^^]",
    "[a^]",
    "[[]",
    "[*]",
    "[?]",
    "[*?[]",
    "[.]",
    "[\\]",
    "\\",
    "\\*",
    "[a-c-e]",
    "[--/]",
    "[+--]",
    "[a-cx-z]",
    "[:alpha:]",
    "[[:alpha:]]",
    "[[.a.]]",
    "[é]",
    "[a-ü]",
    "é",
    "[!a]",
    "[",
    "[a",
    "[]",
    "[^]",
    "*[a",
    "(a|b){2}$",
    "(*){2}$",
    "https://*[[]1]*",
    "*=a+b",
    "***a***",
    "*?*?*",
    "\0",
    "a\0b",
    "{",
];
