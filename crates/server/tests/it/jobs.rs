//! Jobs, kept by the service and worked on by others.

use serde_json::{Value, json};

use crate::served::{COLLECTOR, serve};

#[tokio::test]
async fn a_job_is_made_and_shown() {
    let served = serve(COLLECTOR).await;
    assert_eq!(served.get("/v1/jobs").await.ok(), json!({ "jobs": [] }));
    let urls = json!(["https://a.example/1", "https://b.example/2", "https://a.example/1"]);
    let made = served.post("/v1/jobs", json!({ "name": "news", "urls": urls })).await;
    assert_eq!((made.status, made.header("location")), (201, "/v1/jobs/news"));
    let job = made.json();
    assert_eq!(
        (&job["job"], &job["state"], &job["tasks"], &job["waiting"]),
        (&json!("news"), &json!("running"), &json!(2), &json!(2))
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
        (&json!("running"), &json!(2), &Value::Null)
    );
    assert_eq!(served.metric("comity_jobs{state=\"running\"}").await, 1.0);
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
