//! What frequent work costs the database: heartbeats leave indexes alone, and results are saved without a notification.

use std::time::Duration;

use comity_conformance::Process;
use comity_conformance::process::{at, done, tenure_of};

use super::schema;
use super::server::Server;

/// A value from the tables of a store.
fn value(url: &str, sql: &str) -> String {
    let name = url.split_once("schema=").unwrap().1.split('&').next().unwrap();
    Server::shared().run_sql(&sql.replace("{schema}", name)).trim().to_owned()
}

/// Otherwise each heartbeat would add to an index, and the table would grow.
#[tokio::test]
async fn heartbeats_change_no_index() {
    let schema = schema().await;
    let one = Process::start(&schema, "one", at(0)).await;
    for secs in 0..200 {
        one.beat(at(secs)).await.unwrap();
    }
    // Servers report what they counted about once a second.
    let sql = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables
        WHERE schemaname = '{schema}' AND relname = 'holder'";
    for _ in 0..600 {
        one.beat(at(200)).await.unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
        let counted = value(&schema.url, sql);
        let (all, hot) = counted.split_once('|').unwrap();
        let (all, hot): (u64, u64) = (all.parse().unwrap(), hot.parse().unwrap());
        if all >= 200 {
            assert!(hot * 10 >= all * 9, "{hot} of {all} updates are HOT");
            return;
        }
    }
    panic!("nothing was counted");
}

/// All commits with a notification wait for one lock.
#[tokio::test]
async fn results_are_saved_without_a_notification() {
    let schema = schema().await;
    let one = Process::start(&schema, "one", at(0)).await;
    let job = one.job_of("job", &["https://a.example/1", "https://a.example/2"], at(0)).await;
    let lane = one.claim_one(job, at(0)).await;
    let news = || value(&schema.url, "SELECT n FROM {schema}.news");
    let before = news();
    for task in &lane.tasks {
        one.settle(job, tenure_of(&lane), task.id, done(), at(1)).await;
    }
    assert_eq!(news(), before);
    // Others learn at once that a site is wanted.
    let other = Process::start(&schema, "other", at(0)).await;
    other.take("a.example", at(1)).await;
    assert_ne!(news(), before);
}

/// The tables that change most are vacuumed after a fixed number of changes.
#[tokio::test]
async fn hot_tables_have_room_and_are_vacuumed_often() {
    let schema = schema().await;
    let _one = Process::start(&schema, "one", at(0)).await;
    let sql = "SELECT string_agg(relname::text, ' ' ORDER BY relname) FROM pg_class
        WHERE relnamespace = '{schema}'::regnamespace AND relkind = 'r'
            AND array_to_string(reloptions, ' ') LIKE '%fillfactor%autovacuum%'";
    assert_eq!(
        value(&schema.url, sql),
        "domain domain_activity domain_history holder job lane news stamp task"
    );
    // Who holds what survives a crash.
    let sql = "SELECT count(*) FROM pg_class WHERE relnamespace = '{schema}'::regnamespace AND relpersistence <> 'p'";
    assert_eq!(value(&schema.url, sql), "0");
}
