//! Kills a process in the middle of its work, again and again.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use comity_conformance::follower::{Follower, every, feed, keep, unclaimed};
use comity_conformance::process::{Process, at, died_at, done, failed, listed, ms, retry, tenure_of};
use comity_core::cadence::RunWindow;
use comity_core::enqueue::Trigger;
use comity_core::outcome::Outcome;
use comity_core::task::JobId;
use comity_core::time::Timestamp;
use comity_store::domains::{ReleaseMode, Take, Tenure};
use comity_store::items::{ScrapeTerms, StartStep, Started};
use comity_store::sources::{FetchEnd, FetchResult, ItemChanges, NewSource, SourceId};
use comity_store::sqlite::Sqlite;
use comity_store::tasks::{Attempt, Claimed, Settle, Settled, Step};
use rusqlite::Connection;
use serde_json::Map;

use crate::backend::opened;

/// B37, B74, B77: everything that was acknowledged is stored, what is stored is consistent, and the rest can continue.
#[tokio::test]
async fn a_process_killed_at_any_moment_leaves_a_usable_store() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("comity.db");
    drop(Sqlite::open(&path).unwrap());
    for round in 0..ROUNDS {
        let heard = kill(start_child("child", &path, round), Duration::from_millis(fastrand::u64(0..40)));
        let found = check(&path);
        assert!(found.0 >= heard.0 && found.1 >= heard.1, "it reported {heard:?}, but found {found:?}");
        inherit(&path, round).await;
    }
    finish(&path).await;
    let (tasks, settled) = check(&path);
    assert!(tasks > 0);
    assert_eq!(tasks, settled, "nothing is lost");
}

/// The process that gets killed: adds and settles tasks endlessly, and prints after each answer how much is committed.
#[tokio::test]
#[ignore = "started by a_process_killed_at_any_moment_leaves_a_usable_store"]
async fn child() {
    let (Ok(path), Ok(round)) = (std::env::var(PATH), std::env::var(ROUND)) else { return };
    let round: i64 = round.parse().unwrap();
    let now = at(round * 100);
    let one = Process::with(opened(Sqlite::open(path).unwrap()), "child", now).await;
    one.taken(HELD, now).await;
    let job = one.open_job("job").await;
    let counts = one.counts(job).await;
    let (mut tasks, mut settled) = (counts.tasks, counts.tasks - counts.waiting());
    for nth in 0.. {
        let urls =
            (0..30).map(|url| listed(&format!("https://{}.example/{round}/{nth}/{url}", url % DOMAINS)));
        tasks += one.store.enqueue(job, urls.collect(), now).await.unwrap().new;
        tell(tasks, settled);
        settled += work(&one, job, nth).await;
        tell(tasks, settled);
    }
}

/// B51, B54, B60, B74: killed at any moment, a follower leaves items that match their tasks, scrapes that are the
/// interval apart, and the cursors of the last fetch.
#[tokio::test]
async fn a_follower_killed_at_any_moment_leaves_consistent_sources() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("comity.db");
    drop(Sqlite::open(&path).unwrap());
    for round in 0..ROUNDS {
        let after = Duration::from_millis(fastrand::u64(0..40));
        let heard = kill(start_child("following_child", &path, round), after);
        let found = check_sources(&path);
        assert!(found.0 >= heard.0 && found.1 >= heard.1, "it reported {heard:?}, but found {found:?}");
    }
    assert!(check_sources(&path).1 > 0, "something was scraped");
}

/// The process that gets killed: finds items, scrapes them, and prints after each answer how much is committed.
#[tokio::test]
#[ignore = "started by a_follower_killed_at_any_moment_leaves_consistent_sources"]
async fn following_child() {
    let (Ok(path), Ok(round)) = (std::env::var(PATH), std::env::var(ROUND)) else { return };
    let round: i64 = round.parse().unwrap();
    let one = Process::with(opened(Sqlite::open(path).unwrap()), "child", at(round * 100_000)).await;
    let tenure = one.taken("a.example", at(round * 100_000)).await.tenure;
    let new = NewSource { interval: every(5_000), ..feed("https://feeds.example/") };
    let source = one.store.add_source(new, at(0)).await.unwrap().0.id;
    let job = one.store.scrape_job(at(0)).await.unwrap().id;
    let follower = Follower { one, tenure, source, items: Vec::new(), job };
    let store = follower.store();
    let counts = store.count_items(source).await.unwrap();
    let (mut items, mut ended) = (counts.items, counts.done + counts.failed);
    for nth in 0.. {
        let now = at(round * 100_000 + nth * 6);
        let urls: Vec<String> = (0..2).map(|url| format!("https://a.example/{round}/{nth}/{url}")).collect();
        let ids = keep(store, source, &urls).await;
        items += 2;
        tell(items, ended);
        follower.enqueue_with(&ids, Trigger::Automatic, ScrapeTerms::default(), now).await;
        for task in follower.ready(now).await {
            let start = follower.wants(task.id, StartStep::Begin);
            let Started::Begun(log) = follower.try_start(start, now).await else { continue };
            match nth % 4 {
                0 => follower.settle(task.id, retry(now), now).await,
                1 => store.cancel_scrape(log).await.unwrap(),
                _ => {
                    follower.settle(task.id, if nth % 4 == 2 { done() } else { failed() }, now).await;
                    ended += 1;
                }
            }
            tell(items, ended);
        }
        comity_conformance::follower::ended(store, read(source, now)).await;
    }
}

fn read(source: SourceId, now: Timestamp) -> FetchEnd {
    FetchEnd {
        tenure: unclaimed(source),
        window: RunWindow::ending(now, now).unwrap(),
        started_at: now,
        ended_at: now,
        result: FetchResult::Read { whole: true, cursor: Map::new(), moved_to: None },
        http_status: Some(200),
        found: 2,
        changes: ItemChanges { new: 2, known: 0, changed: 0 },
        error: None,
    }
}

/// Checks the consistency of sources with SQL; returns the number of items, and of those that ended.
fn check_sources(path: &Path) -> (u64, u64) {
    let file = Connection::open(path).unwrap();
    let number = |sql: &str| file.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap() as u64;
    for (what, sql) in [
        (
            "an item in flight without a task, or the other way round",
            "SELECT count(*) FROM items LEFT JOIN tasks ON tasks.id = task_id
            WHERE (items.state IN ('waiting', 'running')) <> (tasks.state IS 'waiting')",
        ),
        (
            "a running item without a log row, or the other way round",
            "SELECT count(*) FROM items WHERE (state = 'running') <> EXISTS (
                SELECT 1 FROM scrape_logs WHERE item_id = items.id AND ended_us IS NULL)",
        ),
        (
            "two scrapes too close to each other",
            "SELECT count(*) FROM (SELECT started_us - lag(started_us) OVER (ORDER BY started_us) AS gap
                FROM scrape_logs) WHERE gap < 5000000",
        ),
        (
            "a cursor that differs from the last fetch",
            "SELECT count(*) FROM sources WHERE cursor_json <> coalesce((SELECT cursor_out FROM fetch_runs
                WHERE source_id = sources.id ORDER BY id DESC LIMIT 1), '{}')",
        ),
        (
            "a job with wrong counts",
            "SELECT count(*) FROM jobs WHERE tasks - done - failed - skipped <> (
                SELECT count(*) FROM tasks WHERE state = 'waiting' AND job_id = jobs.id)",
        ),
    ] {
        assert_eq!(number(sql), 0, "{what}");
    }
    let ended = "SELECT count(*) FROM items WHERE state IN ('done', 'failed')";
    (number("SELECT count(*) FROM items"), number(ended))
}

/// Settles half of what can be claimed, in one way or another, and releases the domains.
async fn work(one: &Process, job: JobId, nth: i64) -> u64 {
    let now = at(1_000_000 + nth);
    let mut settles = Vec::new();
    let mut holds = Vec::new();
    for Claimed { take, tasks, .. } in one.claim(job, now).await {
        let Take::Taken(taken) = take else { continue };
        holds.push(taken.tenure);
        for (nth, task) in tasks.iter().take(5).enumerate() {
            let step = [done(), failed(), retry(now), done(), retry(now)][nth].clone();
            let attempts = vec![Attempt {
                started_at: now,
                took: ms(1),
                outcome: Outcome::RateLimited,
                status: Some(429),
            }];
            settles.push(Settle {
                task: task.id,
                job,
                tenure: taken.tenure,
                attempts,
                url_key: None,
                robots: None,
                facts: Default::default(),
                step,
            });
        }
    }
    let ended: Vec<bool> =
        settles.iter().map(|settle| matches!(settle.step, Step::Done { .. } | Step::Failed { .. })).collect();
    let settled = one.store.settle(one.holder, settles.into(), now).await.unwrap();
    assert!(settled.iter().all(|settled| *settled == Settled::Yes));
    release_all(one, holds).await;
    ended.into_iter().filter(|ended| *ended).count() as u64
}

async fn release_all(one: &Process, holds: Vec<Tenure>) {
    for tenure in holds {
        one.release(tenure, b"pace", ReleaseMode::Stop, at(1_000_000)).await;
    }
}

#[expect(clippy::disallowed_methods, reason = "what the parent reads")]
fn tell(tasks: u64, settled: u64) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "committed {tasks} {settled}").unwrap();
    out.flush().unwrap();
}

fn start_child(name: &str, path: &Path, round: i64) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("crash::{name}"), "--ignored", "--nocapture"])
        .env(PATH, path)
        .env(ROUND, round.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Kills the child a while after it started to work; returns what it reported as committed.
fn kill(mut child: Child, after: Duration) -> (u64, u64) {
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut said = String::new();
    while !said.contains("committed") {
        assert!(out.read_line(&mut said).unwrap() > 0, "it ended on its own: {said}");
    }
    std::thread::sleep(after);
    child.kill().unwrap();
    child.wait().unwrap();
    out.read_to_string(&mut said).unwrap();
    // The last line may be cut off.
    let whole = said.rsplit_once('\n').unwrap().0;
    let last = whole.lines().rev().find_map(|line| line.strip_prefix("committed ")).unwrap();
    let (tasks, settled) = last.split_once(' ').unwrap();
    (tasks.parse().unwrap(), settled.parse().unwrap())
}

/// Checks the consistency of the file with SQL; returns the number of tasks, and of those that ended.
fn check(path: &Path) -> (u64, u64) {
    let file = Connection::open(path).unwrap();
    let text = |sql: &str| file.query_row(sql, [], |row| row.get::<_, String>(0)).unwrap();
    assert_eq!(text("PRAGMA integrity_check"), "ok");
    let counted = "SELECT printf('%d %d %d %d', tasks, done, failed, rate_limited) FROM jobs";
    let there = "SELECT printf('%d %d %d %d', count(*), sum(state = 'done'), sum(state = 'failed'),
        (SELECT count(*) FROM attempts)) FROM tasks";
    assert_eq!(text(counted), text(there));
    let stray = "SELECT count(*) || '' FROM tasks WHERE lane_id NOT IN (SELECT id FROM lanes)";
    assert_eq!(text(stray), "0");
    let numbers = "SELECT printf('%d %d', tasks, done + failed) FROM jobs";
    let numbers = text(numbers);
    let (tasks, ended) = numbers.split_once(' ').unwrap();
    (tasks.parse().unwrap(), ended.parse().unwrap())
}

/// Takes every domain as the next process does: none is held any more, and those that were are left by a dead holder.
async fn inherit(path: &Path, round: i64) {
    let now = at(round * 100 + 50);
    let heir = Process::with(opened(Sqlite::open(path).unwrap()), "heir", now).await;
    let mut holds = Vec::new();
    for nth in 0..DOMAINS {
        holds.push(heir.taken(&format!("{nth}.example"), now).await.tenure);
    }
    let held = heir.taken(HELD, now).await;
    assert!(died_at(&held) <= now, "{held:?}");
    holds.push(held.tenure);
    release_all(&heir, holds).await;
    heir.store.deregister(heir.holder, now).await.unwrap();
}

/// Settles everything that is left.
async fn finish(path: &Path) {
    let now = at(2_000_000);
    let one = Process::with(opened(Sqlite::open(path).unwrap()), "finisher", now).await;
    one.beat(now).await.unwrap();
    let job = one.open_job("job").await;
    while one.next_due(job).await.is_some() {
        for lane in one.claim(job, now).await {
            let tenure = tenure_of(&lane);
            for task in lane.tasks {
                assert_eq!(one.settle(job, tenure, task.id, done(), now).await, Settled::Yes);
            }
            release_all(&one, vec![tenure]).await;
        }
    }
}

const ROUNDS: i64 = 10;
const DOMAINS: i64 = 5;
/// The domain that each child holds until it is killed.
const HELD: &str = "held.example";
const PATH: &str = "COMITY_TEST_CHILD_PATH";
const ROUND: &str = "COMITY_TEST_CHILD_ROUND";
