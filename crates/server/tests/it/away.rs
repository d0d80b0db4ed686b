//! The store goes away and comes back.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::Connection;
use serde_json::json;
use tokio::time::Instant;

use crate::acquire::{acquire, waiting};
use crate::script::{decided, play};
use crate::served::{Served, config, eventually, secs, serve, store_in};

const RULES: &str = "[default]\nmin_delay = \"60s\"\nin_flight = \"unlimited\"\nlearning = \"off\"\n";

/// B37, B77: a file that is moved away, and back.
#[tokio::test]
async fn without_its_store_it_lets_nobody_go_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let served = Arc::new(serve(&format!("{}{RULES}", store_in(folder.path()))).await);
    let permit = served.permit("a.example").await;
    play(&served, "said.example", "0s 429 after=600").await;
    let waits = acquire(&served, "a.example");
    waiting(&served, "a.example", 1).await;
    let away = Away::begin(folder.path());
    gone(&served).await;
    assert_eq!(served.get("/healthz").await.status, 200, "it lives");
    for path in ["/v1/check", "/v1/peek", "/v1/acquire"] {
        for domain in ["a.example", "new.example"] {
            let answer = served.post(path, json!({ "domain": domain, })).await;
            answer.refused(503);
            assert!(!answer.header("retry-after").is_empty());
            assert!(!answer.text().contains("comity.db"), "where the store is, is nobody's business");
        }
    }
    served.post("/v1/record", json!({ "permit": permit, "status": 200 })).await.refused(503);
    served.get("/v1/domains").await.refused(503);
    assert_eq!(served.metric("comity_store_up").await, 0.0);
    assert!(!waits.is_finished(), "whoever waits in line keeps its place");
    away.end();
    back(&served).await;
    waiting(&served, "a.example", 1).await;
    waits.abort();
    assert_eq!(served.metric("comity_store_up").await, 1.0);
    // Nobody was let go meanwhile, and nobody goes early: whatever was not heard of may just have happened.
    let decision = served.check("a.example").await;
    assert_eq!(decision["proceed"], false, "{decision}");
    let told = served.check("said.example").await;
    assert_eq!(told["limit"], "retry_after", "{told}");
    let told =
        served.post("/v1/record", json!({ "permit": permit, "status": 429, "retry_after": 300 })).await.ok();
    assert_ne!(told["standing"], "repeated", "{told}");
    assert_eq!(decided(&served.check("a.example").await), "wait 300000 (retry_after)");
}

/// Somebody holds the database for longer than anybody waits.
#[tokio::test]
async fn a_store_that_is_locked_is_away() {
    let folder = tempfile::tempdir().unwrap();
    let served = serve(&format!("{}{RULES}", store_in(folder.path()))).await;
    served.permit("a.example").await;
    let locked = Connection::open(folder.path().join("comity.db")).unwrap();
    locked.execute_batch("BEGIN IMMEDIATE").unwrap();
    served.hands().advance(secs(3));
    eventually("trouble", async || served.get("/readyz").await.status == 503).await;
    // Its time in the store is over before it hears of anything: nobody goes all the same.
    served.hands().advance(secs(9));
    let answer = served.post("/v1/check", json!({ "domain": "a.example" })).await;
    assert!(answer.status == 503 || answer.ok()["proceed"] == false, "{}", answer.text());
    gone(&served).await;
    locked.execute_batch("ROLLBACK").unwrap();
    back(&served).await;
    served.hands().advance(secs(1));
    let decision = served.check("a.example").await;
    assert!(decision["wait_ms"].as_u64() >= Some(44_000), "no sooner than without all this: {decision}");
}

/// The store was opened on a thread that answers: while another program kept it locked, nobody was answered for as long
/// as that was waited for.
#[tokio::test]
async fn while_it_looks_for_its_store_it_answers() {
    let folder = tempfile::tempdir().unwrap();
    let served = serve(&format!("{}{RULES}", store_in(folder.path()))).await;
    served.permit("a.example").await;
    let locked = Connection::open(folder.path().join("comity.db")).unwrap();
    locked.execute_batch("BEGIN EXCLUSIVE").unwrap();
    served.hands().advance(secs(12));
    gone(&served).await;
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(4) {
        let asked = Instant::now();
        assert_eq!(served.get("/healthz").await.status, 200);
        // An attempt to open it takes ten.
        assert!(asked.elapsed() < Duration::from_secs(9), "{:?}", asked.elapsed());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    locked.execute_batch("ROLLBACK").unwrap();
    back(&served).await;
}

/// A configuration that is read again while the store does not work is no end of the service.
#[tokio::test]
async fn a_reload_while_the_store_is_locked_is_got_over() {
    let folder = tempfile::tempdir().unwrap();
    let toml = format!("{}{RULES}", store_in(folder.path()));
    let served = serve(&toml).await;
    served.permit("a.example").await;
    let locked = Connection::open(folder.path().join("comity.db")).unwrap();
    locked.execute_batch("BEGIN IMMEDIATE").unwrap();
    served.reload(config(&toml)).await.unwrap_err();
    locked.execute_batch("ROLLBACK").unwrap();
    eventually("it goes on", async || {
        served.post("/v1/peek", json!({ "domain": "a.example" })).await.status == 200
    })
    .await;
    assert_eq!(served.check("a.example").await["proceed"], false);
}

/// B83: an empty store was made in its place, which knew of no deadline.
#[tokio::test]
async fn a_deleted_store_is_never_recreated() {
    let folder = tempfile::tempdir().unwrap();
    let served = serve(&format!("{}{RULES}", store_in(folder.path()))).await;
    served.permit("a.example").await;
    play(&served, "said.example", "0s 429 after=600").await;
    let copy = folder.path().join("copy.db");
    Connection::open(folder.path().join("comity.db"))
        .unwrap()
        .execute("VACUUM INTO ?1", [copy.to_str().unwrap()])
        .unwrap();
    for name in FILES {
        std::fs::remove_file(folder.path().join(name)).unwrap();
    }
    gone(&served).await;
    stays_away(&served).await;
    assert!(!folder.path().join("comity.db").exists(), "it was made anew");
    // An empty file, and another store, are no better.
    std::fs::write(folder.path().join("comity.db"), "").unwrap();
    stays_away(&served).await;
    std::fs::remove_file(folder.path().join("comity.db")).unwrap();
    assert!(comity::store::open(&store_url(folder.path())).is_err(), "nobody makes another one meanwhile");
    let other = tempfile::tempdir().unwrap();
    drop(comity::store::open(&store_url(other.path())).unwrap());
    std::fs::copy(other.path().join("comity.db"), folder.path().join("comity.db")).unwrap();
    stays_away(&served).await;
    for name in FILES {
        let _ = std::fs::remove_file(folder.path().join(name));
    }
    // A copy is the same store; what was sent since it was made is not in it.
    std::fs::rename(copy, folder.path().join("comity.db")).unwrap();
    back(&served).await;
    // Whoever is in the copy may still live: that is found out by its lease.
    for _ in 0..8 {
        served.hands().advance(secs(2));
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    for domain in ["a.example", "said.example", "new.example"] {
        assert_eq!(served.check(domain).await["proceed"], false, "{domain}");
    }
}

/// Gives it the time to look for its store more than once.
async fn stays_away(served: &Served) {
    tokio::time::sleep(Duration::from_secs(3)).await;
    served.get("/readyz").await.refused(503);
    served.post("/v1/check", json!({ "domain": "said.example" })).await.refused(503);
}

fn store_url(folder: &Path) -> String {
    format!("sqlite:{}", folder.join("comity.db").display())
}

const FILES: [&str; 3] = ["comity.db", "comity.db-wal", "comity.db-shm"];

/// Waits until the service knows that its store is gone. Its clock goes on meanwhile.
async fn gone(served: &Served) {
    served.hands().advance(secs(3));
    eventually("the store is gone", async || {
        let answer = served.post("/v1/peek", json!({ "domain": "a.example" })).await;
        answer.status == 503
    })
    .await;
    served.get("/readyz").await.refused(503);
}

async fn back(served: &Served) {
    eventually("the store is back", async || served.get("/readyz").await.status == 200).await;
}

/// A store whose file lies elsewhere for a while.
struct Away<'a>(&'a Path);

impl<'a> Away<'a> {
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
