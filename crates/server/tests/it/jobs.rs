//! Jobs, kept by the service and worked on by others.

use std::sync::Arc;

use comity::core::task::JobStep;
use comity::core::time::Timestamp;
use comity::store::Store;
use serde_json::{Value, json};

use crate::served::{COLLECTOR, Served, serve, store_in};

#[tokio::test]
async fn a_job_is_made_and_shown() {
    let served = serve(COLLECTOR).await;
    assert_eq!(served.get("/v1/jobs").await.ok(), json!({ "jobs": [], "more": false, "next": null }));
    let urls = json!(["https://a.example/1", "https://b.example/2", "https://a.example/1"]);
    let made = served.post("/v1/jobs", json!({ "name": "news", "urls": urls })).await;
    assert_eq!((made.status, made.header("location")), (201, "/v1/jobs/news"));
    let job = made.json();
    assert_eq!(
        (&job["job"], &job["state"], &job["tasks"], &job["waiting"]),
        (&json!("news"), &json!("stopped"), &json!(2), &json!(2)),
        "nobody works on it yet"
    );
    assert_eq!(
        (&job["created_at"], &job["worked_on_by"]),
        (&json!("2026-11-16T10:00:00Z"), &json!("comity fetch --job news"))
    );
    assert_eq!(served.get("/v1/jobs/news").await.ok(), job);
    assert_eq!(served.get("/v1/jobs").await.ok()["jobs"], json!([job]));
    assert_eq!(served.get("/v1/domains/a.example").await.status, 200, "its domains are known");
    assert_eq!(served.get("/v1/domains/a.example").await.ok()["tasks_waiting"], 1);
}

#[tokio::test]
async fn a_name_is_taken_once() {
    let served = serve(COLLECTOR).await;
    let urls = json!(["https://a.example/1"]);
    assert_eq!(served.post("/v1/jobs", json!({ "name": "news", "urls": urls })).await.status, 201);
    served.post("/v1/jobs", json!({ "name": "news", "urls": ["https://b.example/"] })).await.refused(409);
    assert_eq!(served.get("/v1/jobs/news").await.ok()["tasks"], 1);
}

#[tokio::test]
async fn urls_are_added_once() {
    let served = serve(COLLECTOR).await;
    served.post("/v1/jobs", json!({ "name": "news" })).await;
    let add = json!({ "urls": ["https://a.example/1", "https://a.example/2"] });
    assert_eq!(served.post("/v1/jobs/news/tasks", add.clone()).await.ok(), json!({ "new": 2, "known": 0 }));
    assert_eq!(served.post("/v1/jobs/news/tasks", add).await.ok(), json!({ "new": 0, "known": 2 }));
}

/// B49
#[tokio::test]
async fn a_cancelled_job_takes_nothing_until_it_is_retried() {
    let served = serve(COLLECTOR).await;
    let add = json!({ "urls": ["https://a.example/1", "https://a.example/2"] });
    served.post("/v1/jobs", json!({ "name": "news", "urls": add["urls"] })).await;
    served.post("/v1/jobs/news/retry", Value::Null).await.refused(409);
    let job = served.post("/v1/jobs/news/cancel", Value::Null).await.ok();
    assert_eq!(
        (&job["state"], &job["skipped"], &job["waiting"]),
        (&json!("cancelled"), &json!(2), &json!(0))
    );
    assert_eq!(
        (&job["message"], &job["ended_at"]),
        (&json!("cancelled by hand"), &json!("2026-11-16T10:00:00Z"))
    );
    let shown = served.get("/v1/jobs/news").await.ok();
    assert_eq!(shown["troubles"].as_array().unwrap().len(), 2, "{shown}");
    served.post("/v1/jobs/news/cancel", Value::Null).await.refused(409);
    let problem =
        served.post("/v1/jobs/news/tasks", json!({ "urls": ["https://a.example/3"] })).await.refused(409);
    assert!(problem["detail"].as_str().unwrap().contains("cancelled"), "{problem}");
    let job = served.post("/v1/jobs/news/retry", Value::Null).await.ok();
    assert_eq!(
        (&job["state"], &job["waiting"], &job["message"]),
        (&json!("stopped"), &json!(2), &Value::Null)
    );
    assert_eq!(served.metric("comity_jobs{state=\"running\"}").await, 0.0);
    assert_eq!(served.metric("comity_jobs{state=\"stopped\"}").await, 1.0, "nobody works on it");
}

#[tokio::test]
async fn jobs_come_a_page_at_a_time() {
    let served = serve(COLLECTOR).await;
    for name in ["one", "two", "three"] {
        served.post("/v1/jobs", json!({ "name": name })).await;
    }
    let names = |page: &Value| -> Vec<String> {
        let jobs = page["jobs"].as_array().unwrap().iter();
        jobs.map(|job| job["job"].as_str().unwrap().to_owned()).collect()
    };
    let first = served.get("/v1/jobs?limit=2").await.ok();
    assert_eq!(
        (names(&first), &first["more"], &first["next"]),
        (vec!["three".to_owned(), "two".to_owned()], &json!(true), &json!("two"))
    );
    let last = served.get("/v1/jobs?limit=2&after=two").await.ok();
    assert_eq!(
        (names(&last), &last["more"], &last["next"]),
        (vec!["one".to_owned()], &json!(false), &Value::Null)
    );
    served.get("/v1/jobs?after=none").await.refused(404);
}

/// B49
#[tokio::test]
async fn a_job_that_is_done_is_reopened_by_more_urls() {
    let (_folder, store, served) = on_disk().await;
    served.post("/v1/jobs", json!({ "name": "news" })).await;
    let job = store.find_job("news".to_owned()).await.unwrap().unwrap();
    store.step_job(job.id, JobStep::Finish, None, NOW).await.unwrap();
    assert_eq!(served.get("/v1/jobs/news").await.ok()["state"], "done");
    let add = json!({ "urls": ["https://a.example/1"] });
    assert_eq!(served.post("/v1/jobs/news/tasks", add).await.ok()["new"], 1);
    let job = served.get("/v1/jobs/news").await.ok();
    assert_eq!(
        (&job["state"], &job["waiting"], &job["ended_at"]),
        (&json!("stopped"), &json!(1), &Value::Null)
    );
    served.post("/v1/jobs", json!({ "name": "news", "urls": ["https://a.example/2"] })).await.refused(409);
}

/// B49
#[tokio::test]
async fn making_a_job_that_is_done_adds_to_it() {
    let (_folder, store, served) = on_disk().await;
    served.post("/v1/jobs", json!({ "name": "news" })).await;
    let job = store.find_job("news".to_owned()).await.unwrap().unwrap();
    store.step_job(job.id, JobStep::Finish, None, NOW).await.unwrap();
    let again = served.post("/v1/jobs", json!({ "name": "news", "urls": ["https://a.example/1"] })).await;
    assert_eq!(again.status, 200, "it was there, and is reopened");
    assert_eq!((&again.json()["state"], &again.json()["waiting"]), (&json!("stopped"), &json!(1)));
}

#[tokio::test]
async fn there_must_be_such_a_job() {
    let served = serve(COLLECTOR).await;
    served.get("/v1/jobs/none").await.refused(404);
    served.post("/v1/jobs/none/tasks", json!({ "urls": ["https://a.example/"] })).await.refused(404);
    for step in ["cancel", "retry"] {
        served.post(&format!("/v1/jobs/none/{step}"), Value::Null).await.refused(404);
    }
}

#[tokio::test]
async fn what_is_no_job_is_refused() {
    let served = serve(COLLECTOR).await;
    let long = "n".repeat(201);
    for name in ["", ".hidden", "a b", "a/b", "-x", "é", long.as_str()] {
        let problem = served.post("/v1/jobs", json!({ "name": name })).await.refused(422);
        assert_eq!(problem["field"], "name", "{name}");
    }
    for url in ["", "a.example", "ftp://a.example/", "http://", "javascript:alert(1)"] {
        let urls = json!(["https://a.example/", url]);
        let problem = served.post("/v1/jobs", json!({ "name": "news", "urls": urls })).await.refused(422);
        assert_eq!(problem["field"], "urls[1]", "{url}");
    }
    let many: Vec<String> = (0..10_001).map(|nth| format!("https://a.example/{nth}")).collect();
    assert_eq!(
        served.post("/v1/jobs", json!({ "name": "news", "urls": many })).await.refused(422)["field"],
        "urls"
    );
    served.get("/v1/jobs/news").await.refused(404);
    served.post("/v1/jobs", json!({ "name": "news" })).await;
    served.post("/v1/jobs/news/tasks", json!({ "urls": [] })).await.refused(422);
}

/// A service whose store another process has open, too.
async fn on_disk() -> (tempfile::TempDir, Arc<dyn Store>, Served) {
    let folder = tempfile::tempdir().unwrap();
    let served = serve(&(store_in(folder.path()) + COLLECTOR)).await;
    let store =
        comity::store::open(&format!("sqlite:{}", folder.path().join("comity.db").display())).unwrap();
    (folder, store, served)
}

const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);
