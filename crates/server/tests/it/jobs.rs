//! Jobs: the service manages them, and other processes work on them.

use std::sync::Arc;

use comity::core::task::JobStep;
use comity::core::time::Timestamp;
use comity::store::Store;
use serde_json::{Value, json};

use crate::server::{COLLECTOR, TestServer, serve, store_in};

#[tokio::test]
async fn a_job_is_created_and_shown() {
    let server = serve(COLLECTOR).await;
    assert_eq!(server.get("/v1/jobs").await.ok(), json!({ "jobs": [], "more": false, "next": null }));
    let urls = json!(["https://a.example/1", "https://b.example/2", "https://a.example/1"]);
    let made = server.post("/v1/jobs", json!({ "name": "news", "urls": urls })).await;
    assert_eq!((made.status, made.header("location")), (201, "/v1/jobs/news"));
    let job = made.json();
    assert_eq!(
        (&job["job"], &job["state"], &job["tasks"], &job["waiting"]),
        (&json!("news"), &json!("stopped"), &json!(2), &json!(2)),
        "nobody works on it yet"
    );
    assert_eq!(
        (&job["created_at"], &job["worked_on_by"]),
        (&json!("2026-11-16T10:00:00Z"), &json!("nobody: start comity fetch --job news"))
    );
    assert_eq!(server.get("/v1/jobs/news").await.ok(), job);
    assert_eq!(server.get("/v1/jobs").await.ok()["jobs"], json!([job]));
    assert_eq!(server.get("/v1/domains/a.example").await.status, 200, "its domains are listed");
    assert_eq!(server.get("/v1/domains/a.example").await.ok()["tasks_waiting"], 1);
}

#[tokio::test]
async fn a_job_name_can_be_used_only_once() {
    let server = serve(COLLECTOR).await;
    let urls = json!(["https://a.example/1"]);
    assert_eq!(server.post("/v1/jobs", json!({ "name": "news", "urls": urls })).await.status, 201);
    server.post("/v1/jobs", json!({ "name": "news", "urls": ["https://b.example/"] })).await.problem(409);
    assert_eq!(server.get("/v1/jobs/news").await.ok()["tasks"], 1);
}

#[tokio::test]
async fn urls_are_added_once() {
    let server = serve(COLLECTOR).await;
    server.post("/v1/jobs", json!({ "name": "news" })).await;
    let add = json!({ "urls": ["https://a.example/1", "https://a.example/2"] });
    assert_eq!(server.post("/v1/jobs/news/tasks", add.clone()).await.ok(), json!({ "new": 2, "known": 0 }));
    assert_eq!(server.post("/v1/jobs/news/tasks", add).await.ok(), json!({ "new": 0, "known": 2 }));
}

/// B49
#[tokio::test]
async fn a_cancelled_job_takes_no_urls_until_it_is_retried() {
    let server = serve(COLLECTOR).await;
    let add = json!({ "urls": ["https://a.example/1", "https://a.example/2"] });
    server.post("/v1/jobs", json!({ "name": "news", "urls": add["urls"] })).await;
    let job = server.post("/v1/jobs/news/retry", Value::Null).await.ok();
    assert_eq!((&job["state"], &job["waiting"]), (&json!("stopped"), &json!(2)), "nothing to retry");
    let job = server.post("/v1/jobs/news/cancel", Value::Null).await.ok();
    assert_eq!(
        (&job["state"], &job["skipped"], &job["waiting"]),
        (&json!("cancelled"), &json!(2), &json!(0))
    );
    assert_eq!(
        (&job["message"], &job["ended_at"]),
        (&json!("cancelled by hand"), &json!("2026-11-16T10:00:00Z"))
    );
    let shown = server.get("/v1/jobs/news").await.ok();
    assert_eq!(shown["troubles"].as_array().unwrap().len(), 2, "{shown}");
    server.post("/v1/jobs/news/cancel", Value::Null).await.problem(409);
    let problem =
        server.post("/v1/jobs/news/tasks", json!({ "urls": ["https://a.example/3"] })).await.problem(409);
    assert!(problem["detail"].as_str().unwrap().contains("cancelled"), "{problem}");
    let job = server.post("/v1/jobs/news/retry", Value::Null).await.ok();
    assert_eq!(
        (&job["state"], &job["waiting"], &job["message"]),
        (&json!("stopped"), &json!(2), &Value::Null)
    );
    assert_eq!(server.metric("comity_jobs{state=\"running\"}").await, 0.0);
    assert_eq!(server.metric("comity_jobs{state=\"stopped\"}").await, 1.0, "nobody works on it");
}

#[tokio::test]
async fn jobs_are_listed_page_by_page() {
    let server = serve(COLLECTOR).await;
    for name in ["one", "two", "three"] {
        server.post("/v1/jobs", json!({ "name": name })).await;
    }
    let names = |page: &Value| -> Vec<String> {
        let jobs = page["jobs"].as_array().unwrap().iter();
        jobs.map(|job| job["job"].as_str().unwrap().to_owned()).collect()
    };
    let first = server.get("/v1/jobs?limit=2").await.ok();
    assert_eq!(
        (names(&first), &first["more"], &first["next"]),
        (vec!["three".to_owned(), "two".to_owned()], &json!(true), &json!("two"))
    );
    let last = server.get("/v1/jobs?limit=2&after=two").await.ok();
    assert_eq!(
        (names(&last), &last["more"], &last["next"]),
        (vec!["one".to_owned()], &json!(false), &Value::Null)
    );
    server.get("/v1/jobs?after=none").await.problem(404);
}

/// B49
#[tokio::test]
async fn adding_urls_reopens_a_job_that_is_done() {
    let (_folder, store, server) = on_disk().await;
    server.post("/v1/jobs", json!({ "name": "news" })).await;
    let job = store.find_job("news".to_owned()).await.unwrap().unwrap();
    store.step_job(job.id, JobStep::Finish, None, NOW).await.unwrap();
    assert_eq!(server.get("/v1/jobs/news").await.ok()["state"], "done");
    let add = json!({ "urls": ["https://a.example/1"] });
    assert_eq!(server.post("/v1/jobs/news/tasks", add).await.ok()["new"], 1);
    let job = server.get("/v1/jobs/news").await.ok();
    assert_eq!(
        (&job["state"], &job["waiting"], &job["ended_at"]),
        (&json!("stopped"), &json!(1), &Value::Null)
    );
    server.post("/v1/jobs", json!({ "name": "news", "urls": ["https://a.example/2"] })).await.problem(409);
}

/// B49
#[tokio::test]
async fn creating_a_job_that_is_done_adds_to_it() {
    let (_folder, store, server) = on_disk().await;
    server.post("/v1/jobs", json!({ "name": "news" })).await;
    let job = store.find_job("news".to_owned()).await.unwrap().unwrap();
    store.step_job(job.id, JobStep::Finish, None, NOW).await.unwrap();
    let again = server.post("/v1/jobs", json!({ "name": "news", "urls": ["https://a.example/1"] })).await;
    assert_eq!(again.status, 200, "the job existed, and was reopened");
    assert_eq!((&again.json()["state"], &again.json()["waiting"]), (&json!("stopped"), &json!(1)));
}

#[tokio::test]
async fn unknown_jobs_are_not_found() {
    let server = serve(COLLECTOR).await;
    server.get("/v1/jobs/none").await.problem(404);
    server.post("/v1/jobs/none/tasks", json!({ "urls": ["https://a.example/"] })).await.problem(404);
    for step in ["cancel", "retry"] {
        server.post(&format!("/v1/jobs/none/{step}"), Value::Null).await.problem(404);
    }
}

#[tokio::test]
async fn invalid_names_and_urls_are_refused() {
    let server = serve(COLLECTOR).await;
    let long = "n".repeat(201);
    for name in ["", ".hidden", "a b", "a/b", "-x", "é", long.as_str()] {
        let problem = server.post("/v1/jobs", json!({ "name": name })).await.problem(422);
        assert_eq!(problem["field"], "name", "{name}");
    }
    for url in ["", "a.example", "ftp://a.example/", "http://", "javascript:alert(1)"] {
        let urls = json!(["https://a.example/", url]);
        let problem = server.post("/v1/jobs", json!({ "name": "news", "urls": urls })).await.problem(422);
        assert_eq!(problem["field"], "urls[1]", "{url}");
    }
    let many: Vec<String> = (0..10_001).map(|nth| format!("https://a.example/{nth}")).collect();
    assert_eq!(
        server.post("/v1/jobs", json!({ "name": "news", "urls": many })).await.problem(422)["field"],
        "urls"
    );
    server.get("/v1/jobs/news").await.problem(404);
    server.post("/v1/jobs", json!({ "name": "news" })).await;
    server.post("/v1/jobs/news/tasks", json!({ "urls": [] })).await.problem(422);
}

/// A service on disk, whose store another process has open too.
async fn on_disk() -> (tempfile::TempDir, Arc<dyn Store>, TestServer) {
    let folder = tempfile::tempdir().unwrap();
    let server = serve(&(store_in(folder.path()) + COLLECTOR)).await;
    let store =
        comity::store::open(&format!("sqlite:{}", folder.path().join("comity.db").display())).unwrap();
    (folder, store, server)
}

const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);
