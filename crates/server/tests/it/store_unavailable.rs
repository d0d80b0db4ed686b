//! The store becomes unavailable, and comes back.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::Connection;
use serde_json::json;
use tokio::time::Instant;

use crate::acquire::{acquire, waiting};
use crate::script::{decided, play};
use crate::server::{TestServer, config, eventually, secs, serve, store_in};

const RULES: &str = "[default]\nmin_delay = \"60s\"\nin_flight = \"unlimited\"\nlearning = \"off\"\n";

/// B37, B77: the store's file is moved away, and back.
#[tokio::test]
async fn without_its_store_the_service_grants_nothing_and_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let server = Arc::new(serve(&format!("{}{RULES}", store_in(folder.path()))).await);
    let permit = server.permit("a.example").await;
    play(&server, "said.example", "0s 429 after=600").await;
    let waits = acquire(&server, "a.example");
    waiting(&server, "a.example", 1).await;
    let outage = Outage::begin(folder.path());
    wait_unavailable(&server).await;
    assert_eq!(server.get("/healthz").await.status, 200, "the service is alive");
    for path in ["/v1/check", "/v1/peek", "/v1/acquire"] {
        for domain in ["a.example", "new.example"] {
            let answer = server.post(path, json!({ "domain": domain, })).await;
            answer.problem(503);
            assert!(!answer.header("retry-after").is_empty());
            assert!(!answer.text().contains("comity.db"), "callers needn't know where the store is");
        }
    }
    server.post("/v1/record", json!({ "permit": permit, "status": 200 })).await.problem(503);
    server.get("/v1/domains").await.problem(503);
    assert_eq!(server.metric("comity_store_up").await, 0.0);
    assert!(!waits.is_finished(), "callers in line keep their place");
    outage.end();
    wait_available(&server).await;
    waiting(&server, "a.example", 1).await;
    waits.abort();
    assert_eq!(server.metric("comity_store_up").await, 1.0);
    // Nothing was granted in the meantime, and nothing is granted early: requests that were not reported may just
    // have left.
    let decision = server.check("a.example").await;
    assert_eq!(decision["proceed"], false, "{decision}");
    let response = server.check("said.example").await;
    assert_eq!(response["limit"], "retry_after", "{response}");
    let response =
        server.post("/v1/record", json!({ "permit": permit, "status": 429, "retry_after": 300 })).await.ok();
    assert_ne!(response["standing"], "repeated", "{response}");
    assert_eq!(decided(&server.check("a.example").await), "wait 300000 (retry_after)");
}

/// Another program keeps the database locked for longer than anybody waits.
#[tokio::test]
async fn a_locked_store_counts_as_unavailable() {
    let folder = tempfile::tempdir().unwrap();
    let server = serve(&format!("{}{RULES}", store_in(folder.path()))).await;
    server.permit("a.example").await;
    let locked = Connection::open(folder.path().join("comity.db")).unwrap();
    locked.execute_batch("BEGIN IMMEDIATE").unwrap();
    server.clock_control().advance(secs(3));
    eventually("the service to notice", async || server.get("/readyz").await.status == 503).await;
    // Its lease in the store ends before it gets an answer. Still nothing is granted.
    server.clock_control().advance(secs(9));
    let answer = server.post("/v1/check", json!({ "domain": "a.example" })).await;
    assert!(answer.status == 503 || answer.ok()["proceed"] == false, "{}", answer.text());
    wait_unavailable(&server).await;
    locked.execute_batch("ROLLBACK").unwrap();
    wait_available(&server).await;
    server.clock_control().advance(secs(1));
    let decision = server.check("a.example").await;
    assert!(decision["wait_ms"].as_u64() >= Some(44_000), "no sooner than without the outage: {decision}");
}

/// The store was opened on a thread that answers requests. While another program kept it locked, no request was
/// answered.
#[tokio::test]
async fn the_service_answers_while_it_waits_for_its_store() {
    let folder = tempfile::tempdir().unwrap();
    let server = serve(&format!("{}{RULES}", store_in(folder.path()))).await;
    server.permit("a.example").await;
    let locked = Connection::open(folder.path().join("comity.db")).unwrap();
    locked.execute_batch("BEGIN EXCLUSIVE").unwrap();
    server.clock_control().advance(secs(12));
    wait_unavailable(&server).await;
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(4) {
        let asked = Instant::now();
        assert_eq!(server.get("/healthz").await.status, 200);
        // An attempt to open the store takes ten seconds.
        assert!(asked.elapsed() < Duration::from_secs(9), "{:?}", asked.elapsed());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    locked.execute_batch("ROLLBACK").unwrap();
    wait_available(&server).await;
}

/// The reload returns an error, and the service continues when the store is back.
#[tokio::test]
async fn a_reload_while_the_store_is_locked_fails_harmlessly() {
    let folder = tempfile::tempdir().unwrap();
    let toml = format!("{}{RULES}", store_in(folder.path()));
    let server = serve(&toml).await;
    server.permit("a.example").await;
    let locked = Connection::open(folder.path().join("comity.db")).unwrap();
    locked.execute_batch("BEGIN IMMEDIATE").unwrap();
    server.reload(config(&toml)).await.unwrap_err();
    locked.execute_batch("ROLLBACK").unwrap();
    eventually("the service to continue", async || {
        server.post("/v1/peek", json!({ "domain": "a.example" })).await.status == 200
    })
    .await;
    assert_eq!(server.check("a.example").await["proceed"], false);
}

/// B83: an empty store was created in its place, which knew no deadlines.
#[tokio::test]
async fn a_deleted_store_is_never_recreated() {
    let folder = tempfile::tempdir().unwrap();
    let server = serve(&format!("{}{RULES}", store_in(folder.path()))).await;
    server.permit("a.example").await;
    play(&server, "said.example", "0s 429 after=600").await;
    let copy = folder.path().join("copy.db");
    Connection::open(folder.path().join("comity.db"))
        .unwrap()
        .execute("VACUUM INTO ?1", [copy.to_str().unwrap()])
        .unwrap();
    for name in FILES {
        std::fs::remove_file(folder.path().join(name)).unwrap();
    }
    wait_unavailable(&server).await;
    stays_unavailable(&server).await;
    assert!(!folder.path().join("comity.db").exists(), "the store was recreated");
    // An empty file, or another store, is not accepted either.
    std::fs::write(folder.path().join("comity.db"), "").unwrap();
    stays_unavailable(&server).await;
    std::fs::remove_file(folder.path().join("comity.db")).unwrap();
    assert!(
        comity::store::open(&store_url(folder.path())).is_err(),
        "no other process creates one in the meantime"
    );
    let other = tempfile::tempdir().unwrap();
    drop(comity::store::open(&store_url(other.path())).unwrap());
    std::fs::copy(other.path().join("comity.db"), folder.path().join("comity.db")).unwrap();
    stays_unavailable(&server).await;
    for name in FILES {
        let _ = std::fs::remove_file(folder.path().join(name));
    }
    // A copy counts as the same store, but doesn't know what was sent since it was made.
    std::fs::rename(copy, folder.path().join("comity.db")).unwrap();
    wait_available(&server).await;
    // The holder in the copy might still be alive. That is decided by its lease.
    for _ in 0..8 {
        server.clock_control().advance(secs(2));
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    for domain in ["a.example", "said.example", "new.example"] {
        assert_eq!(server.check(domain).await["proceed"], false, "{domain}");
    }
}

/// Checks that the store stays unavailable, for long enough that the service looks for it more than once.
async fn stays_unavailable(server: &TestServer) {
    tokio::time::sleep(Duration::from_secs(3)).await;
    server.get("/readyz").await.problem(503);
    server.post("/v1/check", json!({ "domain": "said.example" })).await.problem(503);
}

fn store_url(folder: &Path) -> String {
    format!("sqlite:{}", folder.join("comity.db").display())
}

const FILES: [&str; 3] = ["comity.db", "comity.db-wal", "comity.db-shm"];

/// Waits until the service notices that its store is unavailable. Its clock advances a little for that.
async fn wait_unavailable(server: &TestServer) {
    server.clock_control().advance(secs(3));
    eventually("the store to be unavailable", async || {
        let answer = server.post("/v1/peek", json!({ "domain": "a.example" })).await;
        answer.status == 503
    })
    .await;
    server.get("/readyz").await.problem(503);
}

async fn wait_available(server: &TestServer) {
    eventually("the store to be back", async || server.get("/readyz").await.status == 200).await;
}

/// Moves the store's file to another place for a while.
struct Outage<'a>(&'a Path);

impl<'a> Outage<'a> {
    fn begin(folder: &'a Path) -> Self {
        std::fs::rename(folder.join("comity.db"), folder.join("elsewhere")).unwrap();
        std::fs::create_dir(folder.join("comity.db")).unwrap();
        Self(folder)
    }

    fn end(self) {
        std::fs::remove_dir(self.0.join("comity.db")).unwrap();
        std::fs::rename(self.0.join("elsewhere"), self.0.join("comity.db")).unwrap();
    }
}
