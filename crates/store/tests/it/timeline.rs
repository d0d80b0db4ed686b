//! All processes on a store share one time, whatever their wall clocks do before they start (B7).

use std::path::PathBuf;
use std::sync::Arc;

use comity_conformance::machine::TestMachine;
use comity_conformance::process::{Process, at, retry, tenure_of};
use comity_core::headers::{PacingHints, RetryAfter};
use comity_core::intent::Intent;
use comity_core::outcome::Answer;
use comity_core::pace::{LastHolder, Pace, Terms};
use comity_core::rule::Rule;
use comity_core::task::JobId;
use comity_core::time::{Span, Timestamp};
use comity_store::domains::{LastHolderBuf, ReleaseMode, Released, Saved, Steering, Taken};
use comity_store::machine::Machine;
use comity_store::sqlite::Sqlite;
use comity_store::time::TimeStore;
use rusqlite::Connection;
use tempfile::TempDir;

use crate::backend::opened;

/// A machine, and a store on it.
struct TestHost {
    folder: TempDir,
    machine: TestMachine,
}

impl TestHost {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), machine: TestMachine::default() }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("comity.db")
    }

    fn sql(&self) -> Connection {
        Connection::open(self.path()).unwrap()
    }

    fn open(&self) -> Sqlite {
        Sqlite::open(self.path()).unwrap().on(Arc::new(self.machine.clone()))
    }

    /// Starts a process; returns the time it uses.
    async fn start(&self, name: &str) -> (Process, Timestamp) {
        let store = self.open();
        let now = store.time().await.unwrap().now;
        let one = Process::with(opened(store), name, now).await;
        let time = one.store.join_time(one.holder).await.unwrap();
        assert_eq!(time.up, self.machine.up());
        (one, time.now)
    }
}

/// B7: a suspend, a clock step or a late NTP sync between their starts used to give each process its own time.
#[tokio::test]
async fn a_new_process_adopts_the_time_of_the_running_ones() {
    for (slept, step) in [(8 * 3_600, 0), (1, 60), (1, -60), (5, 3_600), (5, -3_600), (5, -1_700_000_000)] {
        let host = TestHost::new();
        let (one, began) = host.start("one").await;
        assert_eq!(began, at(0));
        host.machine.pass(secs(slept));
        host.machine.step(step);
        let (two, now) = host.start("two").await;
        assert_eq!(now, at(slept as i64), "slept {slept} s, set by {step} s");
        assert_eq!(one.store.time().await.unwrap(), two.store.time().await.unwrap());
        assert_eq!(host.open().time().await.unwrap().now, now, "readers see it too");
    }
}

/// B7, B37: a clock step between runs, in either direction, loses no deadline and makes nobody wait longer.
#[tokio::test]
async fn a_clock_step_between_runs_moves_everything_along() {
    for mode in [ReleaseMode::HandOver, ReleaseMode::Stop] {
        for step in [60, -60, 3_600, -3_600, 40_000_000, -40_000_000] {
            let host = TestHost::new();
            let (one, now) = host.start("one").await;
            let left = Scene::play(&one, now).await;
            release_pace(&one, &left.taken, &left.pace, mode, now).await;
            one.store.deregister(one.holder, now).await.unwrap();
            drop(one);
            let scraped =
                "INSERT INTO scrape_logs (source_id, item_id, task_id, started_us) VALUES (1, 1, 1, ?1)";
            host.sql().execute(scraped, [now.as_micros()]).unwrap();
            let followed = "INSERT INTO sources (name, kind, url, listed_url, lead, scraping, config_json, cursor_json, added_us)
                VALUES ('news', 'feed', 'u', 'u', 'listed', 1, '{}', json_object('not_before', ?1, 'etag', 'x'), 0)";
            host.sql().execute(followed, [(now + secs(15)).to_string()]).unwrap();
            host.machine.pass(secs(5));
            host.machine.step(step);

            let (two, now) = host.start("two").await;
            assert_eq!(now, host.machine.wall(), "nobody else is running: the wall clock is right");
            let taken = two.taken("a.example", now).await;
            let (until, _) = taken.kept.server.unwrap();
            assert_eq!(until, now + secs(10), "set by {step} s");
            assert_eq!(wait(&taken, now), secs(10), "set by {step} s");
            left.check(&two, now).await;
            let last = "SELECT max(started_us) FROM scrape_logs";
            let last: i64 = host.sql().query_row(last, [], |row| row.get(0)).unwrap();
            assert_eq!(Timestamp::from_micros(last), now - secs(5), "intervals count from the same moment");
            let not_before = "SELECT cursor_json ->> '$.not_before' FROM sources";
            let not_before: String = host.sql().query_row(not_before, [], |row| row.get(0)).unwrap();
            assert_eq!(
                not_before,
                (now + secs(10)).to_string(),
                "and so do waits that caching headers asked for"
            );
        }
    }
}

/// B7, B37, B77: the same after a kill -9, and the last time the dead process may have sent moves along.
#[tokio::test]
async fn a_clock_step_after_a_kill_moves_everything_along() {
    for step in [3_600, -3_600] {
        let host = TestHost::new();
        let (one, now) = host.start("one").await;
        let left = Scene::play(&one, now).await;
        let kept = left.pace.saved_limits();
        one.save(Saved { tenure: left.taken.tenure, kept, steering: Steering::default() }).await;
        drop(one);
        host.machine.pass(secs(5));
        host.machine.step(step);
        let (two, now) = host.start("two").await;
        let taken = two.taken("a.example", now).await;
        assert_eq!(taken.last_holder, LastHolderBuf::Died { latest: now }, "its lease has not ended");
        assert_eq!(wait(&taken, now), secs(10), "set by {step} s");
        left.check(&two, now).await;
    }
}

/// B7: after a boot the wall clock may be behind, but no wait is longer than it was set for. If it is ahead, the
/// difference is how long the machine was off.
#[tokio::test]
async fn after_a_boot_no_wait_is_longer_than_it_was_set_for() {
    for (step, expected) in [(-7_200, 15), (5, 10), (3_600, 0)] {
        let host = TestHost::new();
        let (one, now) = host.start("one").await;
        let left = Scene::play(&one, now).await;
        release_pace(&one, &left.taken, &left.pace, ReleaseMode::HandOver, now).await;
        one.store.deregister(one.holder, now).await.unwrap();
        drop(one);
        host.machine.reboot();
        host.machine.step(step);
        let (two, now) = host.start("two").await;
        assert_eq!(now, host.machine.wall());
        let taken = two.taken("a.example", now).await;
        assert_eq!(wait(&taken, now), secs(expected), "set by {step} s");
    }
}

/// B7: `faketime -f -1h comity check` wrote a deadline in its own time, and the next request was early.
#[tokio::test]
async fn a_deadline_that_is_read_and_written_again_does_not_move() {
    for step in [-3_600, 3_600] {
        let host = TestHost::new();
        let (one, now) = host.start("one").await;
        let left = Scene::play(&one, now).await;
        release_pace(&one, &left.taken, &left.pace, ReleaseMode::HandOver, now).await;
        host.machine.step(step);
        let (visitor, now) = host.start("check").await;
        let taken = visitor.taken("a.example", now).await;
        let pace = inherited(&taken, now);
        release_pace(&visitor, &taken, &pace, ReleaseMode::HandOver, now).await;
        visitor.store.deregister(visitor.holder, now).await.unwrap();
        host.machine.step(-step);
        assert_eq!(one.row("a.example").await.kept.server.unwrap().0, at(15));
    }
}

/// B7: a store of a version that used the wall clock, written while that was an hour ahead.
#[tokio::test]
async fn a_store_of_an_older_version_that_was_ahead_causes_no_extra_wait() {
    let host = TestHost::new();
    let (one, now) = host.start("one").await;
    let left = Scene::play(&one, now).await;
    release_pace(&one, &left.taken, &left.pace, ReleaseMode::Stop, now).await;
    one.store.deregister(one.holder, now).await.unwrap();
    drop(one);
    host.sql().execute_batch(OLDER).unwrap();
    host.machine.pass(secs(5));
    host.machine.step(-3_600);
    let (two, now) = host.start("two").await;
    assert_eq!(now, host.machine.wall());
    let taken = two.taken("a.example", now).await;
    assert_eq!(wait(&taken, now), secs(15), "as it was set");
}

/// A domain that its server closed for 15 s, and other things that wait.
struct Scene {
    taken: Taken,
    pace: Pace,
    job: JobId,
}

impl Scene {
    async fn play(one: &Process, now: Timestamp) -> Self {
        let job = one.job_of("news", &["https://b.example/1", "https://c.example/1"], now).await;
        let lanes = one.claim(job, now).await;
        let later = lanes.iter().find(|lane| lane.domain.as_str() == "b.example").unwrap();
        one.settle(job, tenure_of(later), later.tasks[0].id, retry(now + secs(15)), now).await;
        let parked = lanes.iter().map(|lane| (lane.lane, now)).collect();
        one.store.park(one.holder, parked).await.unwrap();
        for lane in &lanes {
            one.release(tenure_of(lane), &Pace::default().encode(), ReleaseMode::Stop, now).await;
        }
        let taken = one.taken("a.example", now).await;
        let (rule, mut pace) = (Rule::default(), Pace::default());
        let permit = *pace.admit(Terms::from(&rule), Intent::Fetch, now).permit().unwrap();
        let hints = PacingHints { retry_after: RetryAfter::After(secs(15)), ..PacingHints::default() };
        let answer = Answer::of_status(429, hints);
        pace.record(Terms::from(&rule), &permit, &answer, now);
        Self { taken, pace, job }
    }

    /// What was ready still is, and the retry is ready in ten seconds.
    async fn check(&self, two: &Process, now: Timestamp) {
        let lanes = two.claim(self.job, now).await;
        let ready = |lane: &comity_store::tasks::Claimed| lane.tasks.iter().any(|task| task.ready_at <= now);
        let names: Vec<&str> =
            lanes.iter().filter(|lane| ready(lane)).map(|lane| lane.domain.as_str()).collect();
        assert_eq!(names, ["c.example"]);
        let retried = now + secs(10);
        let due = two.next_due(self.job).await;
        let tasks = lanes.iter().flat_map(|lane| &lane.tasks).map(|task| task.ready_at);
        assert_eq!(due.into_iter().chain(tasks).max(), Some(retried));
    }
}

async fn release_pace(one: &Process, taken: &Taken, pace: &Pace, mode: ReleaseMode, now: Timestamp) {
    let saved = Saved { tenure: taken.tenure, kept: pace.saved_limits(), steering: Steering::default() };
    let released = Released { saved, pace: pace.encode(), mode };
    one.store.release(one.holder, vec![released], now).await.unwrap();
}

fn inherited(taken: &Taken, now: Timestamp) -> Pace {
    let left = match &taken.last_holder {
        LastHolderBuf::None => LastHolder::None,
        LastHolderBuf::HandedOver(pace) => LastHolder::HandedOver(pace),
        LastHolderBuf::Stopped(pace) => LastHolder::Stopped(pace),
        LastHolderBuf::Died { latest } => LastHolder::Died { latest: *latest },
    };
    Pace::inherit(Terms::from(&Rule::default()), &taken.kept, left, now).unwrap()
}

/// How long the next holder of the domain waits.
fn wait(taken: &Taken, now: Timestamp) -> Span {
    inherited(taken, now).wait(Terms::from(&Rule::default()), Intent::Fetch, now)
}

fn secs(secs: u64) -> Span {
    Span::from_secs(secs)
}

/// Removes what later versions added.
const OLDER: &str = "DROP INDEX tasks_failed; DROP INDEX jobs_state; DROP TRIGGER activity_follows_domains;
    DROP TABLE activity; DROP TABLE history; DROP TABLE traffic; DROP TABLE audit;
    ALTER TABLE sources DROP COLUMN requested_us;
    DROP VIEW attempts; ALTER TABLE logged_attempts RENAME TO attempts;
    DROP TABLE timeline; DROP TABLE looks; DROP TABLE permits;
    ALTER TABLE holders DROP COLUMN sights; ALTER TABLE sources DROP COLUMN epoch; ALTER TABLE wikis DROP COLUMN epoch;
    ALTER TABLE identity DROP COLUMN commits; ALTER TABLE identity DROP COLUMN stamp;
    ALTER TABLE tasks DROP COLUMN forgiven; ALTER TABLE tasks DROP COLUMN requests; ALTER TABLE tasks DROP COLUMN last_us;
    ALTER TABLE tasks DROP COLUMN last_took_us; ALTER TABLE tasks DROP COLUMN last_outcome;
    ALTER TABLE tasks DROP COLUMN fetched_us; ALTER TABLE tasks DROP COLUMN final_url;
    ALTER TABLE tasks DROP COLUMN content_type; ALTER TABLE tasks DROP COLUMN sha256; ALTER TABLE tasks DROP COLUMN file;
    ALTER TABLE tasks DROP COLUMN etag; ALTER TABLE tasks DROP COLUMN last_modified; ALTER TABLE jobs DROP COLUMN revival;
    ALTER TABLE identity DROP COLUMN removed_job; DROP TABLE workers;
    ALTER TABLE identity DROP COLUMN used_task; ALTER TABLE identity DROP COLUMN used_lane;
    ALTER TABLE identity DROP COLUMN used_domain;
    DROP TRIGGER hooks_follow_items; DROP TABLE hooks; DROP TRIGGER details_follow_items; DROP TABLE item_details;
    DROP TRIGGER sharers_follow_items; DROP TRIGGER sharers_follow_tasks; DROP TRIGGER items_follow_tasks; DROP TABLE sharers;
    DROP INDEX items_page; ALTER TABLE items DROP COLUMN page_key; ALTER TABLE items DROP COLUMN scraped_as;
    CREATE TRIGGER items_follow_tasks AFTER UPDATE OF state ON tasks BEGIN SELECT 1; END;
    DROP INDEX items_source; ALTER TABLE jobs DROP COLUMN pruned_us;
    DROP TRIGGER origins_follow_jobs; DROP TABLE origins;
    ALTER TABLE tasks DROP COLUMN method; ALTER TABLE tasks DROP COLUMN body; ALTER TABLE tasks DROP COLUMN headers;
    ALTER TABLE tasks DROP COLUMN bodiless; ALTER TABLE tasks DROP COLUMN changed;
    DROP INDEX robots_delay; ALTER TABLE robots DROP COLUMN crawl_delay_us; PRAGMA user_version = 6;";
