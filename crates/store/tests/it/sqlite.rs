//! What only the SQLite store promises: which files it accepts, what it reports about others, and what people find in
//! the database.

use std::sync::mpsc::channel;
use std::time::Duration;

use comity_conformance::follower::{ended, feed, keep, scrape_request, unclaimed};
use comity_conformance::process::{at, done, ms, nothing_learned, taken, tenure_of};
use comity_core::cadence::RunWindow;
use comity_core::enqueue::{Enqueued, Refusal, Trigger};
use comity_core::outcome::Outcome;
use comity_core::pace::SavedLimits;
use comity_core::time::Timestamp;
use comity_store::StoreError;
use comity_store::activity::{DomainQuery, DomainSort};
use comity_store::domains::{DomainStore, LastHolderBuf, Saved, Take};
use comity_store::items::{ItemQuery, ItemState, ScrapeTerms, Start, StartStep, Started};
use comity_store::jobs::FailureReason;
use comity_store::sources::{FetchEnd, FetchResult};
use comity_store::sqlite::Sqlite;
use comity_store::tasks::{Attempt, Lead, Settle};

use crate::file::TestFile;

#[test]
fn a_database_of_a_newer_version_is_refused() {
    let file = TestFile::new();
    drop(file.open());
    file.query("PRAGMA user_version = 999");
    let error = Sqlite::open(&file.path).unwrap_err();
    assert!(matches!(error, StoreError::Newer { found: 999, .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.starts_with(&file.path.display().to_string()), "{text}");
    assert!(text.contains("newer version of Comity (schema 999") && text.contains("--store"), "{text}");
}

#[test]
fn a_file_that_is_not_a_database_is_left_alone() {
    let file = TestFile::new();
    std::fs::write(&file.path, "a shopping list, longer than any header\n".repeat(100)).unwrap();
    assert_eq!(file.refusal(), "is not a database; use another --store");
}

#[test]
fn a_database_of_another_program_is_left_alone() {
    // Other programs use version numbers for their tables too.
    for version in [0, 1, -1] {
        let file = TestFile::new();
        file.query(&format!("CREATE TABLE recipes (name TEXT); PRAGMA user_version = {version}"));
        let before = std::fs::read(&file.path).unwrap();
        assert_eq!(
            file.refusal(),
            "is a database of another program; use another --store",
            "version {version}"
        );
        assert!(std::fs::read(&file.path).unwrap() == before, "version {version}: the file was changed");
    }
}

#[test]
fn an_empty_file_becomes_a_database() {
    let file = TestFile::new();
    std::fs::write(&file.path, "").unwrap();
    drop(file.open());
    assert_eq!(file.query_one("PRAGMA journal_mode"), "wal");
}

#[test]
fn a_path_that_does_not_exist_is_reported() {
    let file = TestFile::new();
    std::fs::write(&file.path, "a file, not a folder").unwrap();
    let folder = file.path.parent().unwrap();
    let missing = folder.join("missing");
    for (path, expected) in [
        (missing.join("x.db"), format!("the folder {} does not exist; create it first", missing.display())),
        (file.path.join("x.db"), format!("{} is not a folder", file.path.display())),
        (
            "/proc/x.db".into(),
            "it can't be created in the folder /proc; check the folder's permissions".to_owned(),
        ),
        (folder.into(), "it is a folder; name a file in it".to_owned()),
    ] {
        let error = Sqlite::open(&path).unwrap_err().to_string();
        assert_eq!(error, format!("{}: could not be opened: {expected}", path.display()));
    }
}

/// Root is not bound by permissions.
#[cfg(unix)]
#[tokio::test]
async fn a_file_that_is_not_writable_is_reported() {
    use std::os::unix::fs::PermissionsExt;
    let file = TestFile::new();
    drop(file.open());
    std::fs::set_permissions(&file.path, PermissionsExt::from_mode(0o444)).unwrap();
    let is_bound = std::fs::File::options().append(true).open(&file.path).is_err();
    let registered = match Sqlite::open(&file.path) {
        Ok(store) => store.register("one".to_owned(), at(0)).await.map(drop),
        Err(error) => Err(error),
    };
    assert_eq!(registered.is_err(), is_bound, "{registered:?}");
    if let Err(error) = registered {
        assert!(error.to_string().contains("check the permissions"), "{error}");
    }
}

#[test]
fn only_known_kinds_of_store_are_opened() {
    for url in
        ["", "sqlite:", "comity.db", "memory:x", "mysql://host/db", "postgres://user:secret@host:port/db"]
    {
        let error = comity_store::open(url).map(|_| ()).unwrap_err();
        assert!(matches!(error, StoreError::Unsupported { .. }), "{url}: {error:?}");
        assert!(!error.to_string().contains("secret"), "B75: {error}");
    }
    assert_eq!(comity_store::open("memory:").unwrap().location(), "memory");
}

#[test]
fn many_can_create_one_database_at_once() {
    let file = TestFile::new();
    let opened: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| Sqlite::open(&file.path).map(drop))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(opened.iter().all(Result::is_ok), "{opened:?}");
}

#[tokio::test]
async fn a_lock_of_another_program_is_reported_and_does_no_harm() {
    let file = TestFile::new();
    let one = file.process("one").await;
    let other = file.lock();
    let error = one.store.register("late".to_owned(), at(1)).await.unwrap_err();
    assert!(matches!(&error, StoreError::Unavailable { what, .. } if what.contains("locked")), "{error}");
    drop(other);
    one.beat(at(2)).await.unwrap();
    assert_eq!(file.query_one("SELECT count(*) FROM holders"), "1", "failed writes leave nothing behind");
}

/// A copy made by `VACUUM INTO` has no log, so opening it changes its journal mode.
#[test]
fn a_locked_copy_is_reported_as_locked() {
    let file = TestFile::new();
    drop(file.open());
    file.query("PRAGMA journal_mode = DELETE");
    let lock = file.lock();
    let (sender, receiver) = channel();
    let path = file.path.clone();
    std::thread::spawn(move || sender.send(Sqlite::open(path).map(drop)));
    let opened = receiver.recv_timeout(Duration::from_secs(120)).expect("it is reported after about 10 s");
    let error = opened.unwrap_err().to_string();
    assert!(error.contains("locked"), "{error}");
    drop(lock);
}

#[tokio::test]
async fn a_heartbeat_notices_that_the_file_was_deleted_or_replaced() {
    let file = TestFile::new();
    let one = file.process("one").await;
    one.beat(at(1)).await.unwrap();
    one.store.set_patience(ms(300));
    let gone = |error: StoreError, what| assert!(error.to_string().contains(what), "{error}");
    std::fs::rename(&file.path, file.path.with_extension("old")).unwrap();
    gone(one.beat(at(2)).await.unwrap_err(), "was deleted, moved or replaced");
    std::fs::write(&file.path, "").unwrap();
    gone(one.beat(at(3)).await.unwrap_err(), "was replaced, but");
}

/// B9: one database with two paths is still one database.
#[cfg(unix)]
#[tokio::test]
async fn a_process_using_another_path_finds_the_same_holders() {
    let file = TestFile::new();
    let one = file.process("one").await;
    one.taken("a.example", at(0)).await;
    let link = tempfile::tempdir().unwrap().path().with_extension("link");
    std::os::unix::fs::symlink(file.path.parent().unwrap(), &link).unwrap();
    let by_folder = TestFile::at(link.join("comity.db"));
    let by_file = TestFile::at(file.path.with_file_name("link.db"));
    std::os::unix::fs::symlink(&file.path, &by_file.path).unwrap();
    for other in [by_folder, by_file] {
        let take = other.process("other").await.take("a.example", at(1)).await;
        assert_eq!(take, Take::Held { by: "one".to_owned() }, "{}", other.path.display());
    }
    std::fs::remove_file(link).unwrap();
}

/// B35: people and scripts read these tables and columns.
#[tokio::test]
async fn tables_and_columns_that_people_rely_on_exist() {
    let file = TestFile::new();
    let one = file.process("one").await;
    let job = one.job_of("news", &["https://a.example/1", "https://a.example/2"], at(0)).await;
    let lane = one.claim_one(job, at(0)).await;
    let tenure = tenure_of(&lane);
    let kept = SavedLimits {
        delay: ms(1_500),
        floor: ms(250),
        server: Some((at(60), at(1))),
        ..SavedLimits::default()
    };
    one.save(Saved { kept, ..nothing_learned(tenure) }).await;
    let attempt = |secs, outcome, status| Attempt { started_at: at(secs), took: ms(20), outcome, status };
    let attempts = vec![attempt(1, Outcome::RateLimited, Some(429)), attempt(2, Outcome::Success, Some(200))];
    let settle = Settle {
        task: lane.tasks[0].id,
        job,
        tenure,
        attempts,
        url_key: None,
        robots: None,
        facts: Default::default(),
        step: done(),
    };
    one.store.settle(one.holder, [settle].into(), at(3)).await.unwrap();

    for (sql, expected) in [
        (
            "SELECT printf('%s %s %s %s %s %s', domain, adaptive_delay_seconds, adaptive_delay_floor_seconds,
                server_until_us, name, epoch) FROM domains JOIN holders ON holders.id = holder",
            "a.example 1.5 0.25 1800000060000000 one 1",
        ),
        (
            "SELECT printf('%s %s %s %s %s %s', name, state, tasks, done, rate_limited, created_us) FROM jobs",
            "news running 2 1 1 1800000000000000",
        ),
        ("SELECT count(*) FROM lanes WHERE job_id = 1", "1"),
        (
            "SELECT group_concat(printf('%s %s', url, state), ', ' ORDER BY id) FROM tasks",
            "https://a.example/1 done, https://a.example/2 waiting",
        ),
        (
            "SELECT group_concat(printf('%s %s %s %s', started_us, took_us, outcome, attempts.status), ', ')
                FROM attempts JOIN tasks ON tasks.id = task_id",
            "1800000001000000 20000 rate_limited 429, 1800000002000000 20000 success 200",
        ),
    ] {
        assert_eq!(file.query_one(sql), expected, "{sql}");
    }
}

/// A database from before sources were supported is migrated, with everything in it.
#[tokio::test]
async fn a_database_of_version_1_loses_nothing() {
    let file = TestFile::new();
    file.query(include_str!("version_1.sql"));
    file.query(
        "INSERT INTO holders VALUES (7, 'dead', 0, 0, NULL);
        INSERT INTO domains (id, domain, adaptive_delay_seconds, left_as) VALUES (1, 'a.example', 1.5, 'new');
        INSERT INTO jobs (id, name, state, options, created_us, tasks, done) VALUES (3, 'news', 'running', 'null', 5, 3, 1);
        INSERT INTO lanes VALUES (1, 3, 1, 0, NULL);
        INSERT INTO tasks (id, job_id, lane_id, url, url_key, lead, state, ready_us, retries) VALUES
            (1, 3, 1, 'https://a.example/1', 1, 'listed', 'done', 0, 0),
            (2, 3, 1, 'https://a.example/2', 2, 'listed', 'waiting', 0, 2),
            (3, 3, 1, 'https://a.example/3', 3, 'remote', 'waiting', 1, 0);
        INSERT INTO attempts VALUES (1, 1, 2, 'success', 200);
        INSERT INTO robots VALUES ('https://a.example', 1, 200, x'00');",
    );
    let one = file.process("one").await;
    assert!(file.query_one("PRAGMA user_version").parse::<u32>().unwrap() >= 9);
    let job = one.store.find_job("news".to_owned()).await.unwrap().unwrap();
    assert_eq!((job.counts.tasks, job.counts.done, job.counts.waiting()), (3, 1, 2));
    let origins = ["https://a.example", "http://a.example"].map(str::to_owned).to_vec();
    assert_eq!(one.store.lists(job.id, origins).await.unwrap(), [true, false], "listed origins are known");
    let lane = one.claim_one(job.id, at(0)).await;
    let tasks: Vec<_> =
        lane.tasks.iter().map(|task| (task.url.as_str(), task.lead, task.retries, task.scrapes)).collect();
    let expected =
        [("https://a.example/2", Lead::Listed, 2, None), ("https://a.example/3", Lead::Remote, 0, None)];
    assert_eq!(tasks, expected);
    assert_eq!(one.row("a.example").await.kept.delay, ms(1_500));
    one.settle(job.id, tenure_of(&lane), lane.tasks[0].id, done(), at(1)).await;
    assert_eq!(one.counts(job.id).await.done, 2);
    assert_eq!(file.query_one("SELECT count(*) FROM attempts"), "1");
    assert_eq!(file.query_one("SELECT count(*) FROM robots"), "1");

    let (source, _) = one.store.add_source(feed("https://feeds.example/"), at(0)).await.unwrap();
    let items = keep(&*one.store, source.id, &["https://b.example/1".to_owned()]).await;
    let scrapes = one.store.scrape_job(at(0)).await.unwrap().id;
    let (requests, terms) = (vec![scrape_request(items[0], "b.example")], ScrapeTerms::default());
    one.store.enqueue_items(scrapes, requests, Trigger::Manual, terms, at(0)).await.unwrap();
    assert_eq!(one.claim_one(scrapes, at(0)).await.tasks[0].scrapes, Some((items[0], source.id)));
    drop(one);
    drop(file.open());
    assert_eq!(
        file.query_one("SELECT count(*) FROM items"),
        "1",
        "it is up to date: nothing is migrated twice"
    );
}

/// A store of an earlier release resumes: its job, its source and what it learned are there.
#[tokio::test]
async fn a_database_of_version_5_resumes() {
    let file = TestFile::new();
    file.query(include_str!("version_5.sql"));
    let now = Timestamp::parse("2026-11-17T20:30:00Z").unwrap();
    let one = file.process("one").await;
    assert!(file.query_one("PRAGMA user_version").parse::<u32>().unwrap() >= 9);
    assert_eq!(file.query_one("SELECT length(id) FROM identity"), "16");
    let job = one.store.find_job("news".to_owned()).await.unwrap().unwrap();
    assert_eq!((job.counts.tasks, job.counts.done, job.counts.waiting()), (4, 1, 3));
    let lane = one.claim_one(job.id, now).await;
    let paths: Vec<_> = lane.tasks.iter().map(|task| task.url.rsplit('/').next().unwrap()).collect();
    assert_eq!(paths, ["p2.html", "missing", "p3.html"]);
    let taken = taken(lane.take.clone());
    assert!(matches!(taken.last_holder, LastHolderBuf::Stopped(_)), "{taken:?}");
    one.settle(job.id, tenure_of(&lane), lane.tasks[0].id, done(), now).await;
    assert_eq!(one.counts(job.id).await.done, 2);
    let pinned = one.row("reuters.com").await;
    assert_eq!((pinned.kept.delay, pinned.steering.pinned), (ms(3_000), true));
    let sources = one.store.list_sources().await.unwrap();
    assert_eq!((sources.len(), sources[0].name.as_str()), (1, "Feed"));
    let items = ItemQuery { limit: 9, ..ItemQuery::default() };
    assert_eq!(one.store.list_items(items).await.unwrap().len(), 2);
}

/// A store of a later release resumes too, with deadlines that servers stated and lent permits.
#[tokio::test]
async fn a_database_of_version_9_resumes() {
    let file = TestFile::new();
    file.query(include_str!("version_9.sql"));
    let now = Timestamp::parse("2026-11-18T03:36:40Z").unwrap();
    let one = file.process("one").await;
    assert_eq!(
        file.query_one("SELECT hex(id) FROM identity"),
        "B38E091E0B3B99A9BB5C73E13EB8F891",
        "unchanged"
    );
    let job = one.store.find_job("news".to_owned()).await.unwrap().unwrap();
    assert_eq!((job.counts.tasks, job.counts.done, job.counts.waiting()), (4, 1, 3));
    let lane = one.claim_one(job.id, now).await;
    let paths: Vec<_> = lane.tasks.iter().map(|task| task.url.rsplit('/').next().unwrap()).collect();
    assert_eq!(paths, ["p2.html", "missing", "p3.html"]);
    one.settle(job.id, tenure_of(&lane), lane.tasks[0].id, done(), now).await;
    assert_eq!(one.counts(job.id).await.done, 2);
    assert!(one.row("reuters.com").await.steering.pinned);
    let said = one.taken("said.example", now).await;
    let (until, _) = said.kept.server.unwrap();
    assert_eq!(until.since(now).as_secs_up(), 3_590, "an hour from when it was stated");
    let lent = one.taken("lent.example", now).await;
    assert!(matches!(lent.last_holder, LastHolderBuf::HandedOver(_)), "{lent:?}");
    let sources = one.store.list_sources().await.unwrap();
    assert_eq!((sources.len(), sources[0].name.as_str()), (1, "Feed"));
    let items = ItemQuery { limit: 9, ..ItemQuery::default() };
    assert_eq!(one.store.list_items(items).await.unwrap().len(), 2);
}

/// A store of the release before histories: failures are grouped, and lists are sorted by what was learned.
#[tokio::test]
async fn a_database_of_version_20_is_listed_and_grouped() {
    let file = TestFile::new();
    file.query(include_str!("version_20.sql"));
    let one = file.process("one").await;
    let job = one.store.find_job("news".to_owned()).await.unwrap().unwrap();
    let groups = one.store.failure_groups(job.id, 1).await.unwrap();
    let groups: Vec<_> = groups.iter().map(|group| (group.reason.clone(), group.count.number)).collect();
    let expected =
        [(500, 2), (404, 1), (429, 1)].map(|(status, count)| (FailureReason::Status(status), count));
    assert_eq!(groups, expected);
    let query = DomainQuery { sort: DomainSort::Learned, limit: 9, ..DomainQuery::default() };
    let page = one.store.page_domains(query).await.unwrap();
    let listed: Vec<_> = page.domains.iter().map(|listed| listed.row.domain.as_str()).collect();
    assert_eq!(listed, ["127.0.0.1:18778"]);
    assert_eq!(file.query_one("SELECT learned_ms FROM activity"), "2000");
    let source = one.store.list_sources().await.unwrap().remove(0);
    assert_eq!(source.requested_at, None);
    assert!(one.store.request_fetch(source.id, source.added_at).await.unwrap());
}

/// A store of the release before attempts moved into the rows of their tasks: every attempt is still shown, once.
#[tokio::test]
async fn a_database_of_version_15_resumes() {
    let file = TestFile::new();
    file.query(include_str!("version_15.sql"));
    let now = Timestamp::parse("2026-11-18T14:16:30Z").unwrap();
    let one = file.process("one").await;
    assert_eq!(
        file.query_one("SELECT hex(id) FROM identity"),
        "530A1663AE4EC2FDD743AC40569EFB80",
        "unchanged"
    );
    let attempts = "SELECT group_concat(printf('%s %s', url, attempts.status), ', ' ORDER BY task_id)
        FROM attempts JOIN tasks ON tasks.id = task_id";
    let (a, p1) = ("http://127.0.0.1:18777/a.html 200", "http://127.0.0.1:18777/p1.html 200");
    assert_eq!(file.query_one(attempts), format!("{a}, {p1}"));
    let job = one.store.find_job("news".to_owned()).await.unwrap().unwrap();
    assert_eq!((job.counts.tasks, job.counts.done, job.counts.waiting()), (4, 1, 3));
    let lane = one.claim_one(job.id, now).await;
    let paths: Vec<_> = lane.tasks.iter().map(|task| task.url.rsplit('/').next().unwrap()).collect();
    assert_eq!(paths, ["p2.html", "missing", "p3.html"]);
    one.settle(job.id, tenure_of(&lane), lane.tasks[0].id, done(), now).await;
    assert_eq!(one.counts(job.id).await.done, 2);
    assert!(one.row("reuters.com").await.steering.pinned);
    assert!(
        one.taken("said.example", now).await.kept.server.unwrap().0 > now,
        "its deadline is still in force"
    );
    let lent = one.taken("lent.example", now).await;
    // It was restored into another file, so its last holder may have sent until now; its lent permit is known.
    assert!(matches!(lent.last_holder, LastHolderBuf::Died { .. }) && lent.lent.len() == 1, "{lent:?}");
    assert_eq!(one.store.list_sources().await.unwrap().len(), 1);
    let items = ItemQuery { limit: 9, ..ItemQuery::default() };
    assert_eq!(one.store.list_items(items).await.unwrap().len(), 2);
}

/// B58: a removed source leaves only waiting tasks behind, and no attempts.
#[tokio::test]
async fn attempts_are_removed_with_their_source() {
    let file = TestFile::new();
    let one = file.process("one").await;
    let job = one.store.scrape_job(at(0)).await.unwrap().id;
    let mut sources = Vec::new();
    for name in ["removed", "kept"] {
        let (source, _) =
            one.store.add_source(feed(&format!("https://{name}.example/")), at(0)).await.unwrap();
        sources.push(source.id);
        let urls = [1, 2].map(|nth| format!("https://a.example/{name}/{nth}"));
        let items = keep(&*one.store, source.id, &urls).await;
        let requests = items.iter().map(|item| scrape_request(*item, "a.example")).collect();
        one.store.enqueue_items(job, requests, Trigger::Manual, ScrapeTerms::default(), at(0)).await.unwrap();
    }
    let lane = one.claim_one(job, at(0)).await;
    for task in [&lane.tasks[0], &lane.tasks[2]] {
        let attempt =
            Attempt { started_at: at(1), took: ms(20), outcome: Outcome::Success, status: Some(200) };
        let settle = Settle {
            task: task.id,
            job,
            tenure: tenure_of(&lane),
            attempts: vec![attempt],
            url_key: None,
            robots: None,
            facts: Default::default(),
            step: done(),
        };
        one.store.settle(one.holder, [settle].into(), at(2)).await.unwrap();
    }
    assert_eq!(file.query_one("SELECT count(*) FROM attempts"), "2");
    assert!(one.store.remove_source(sources[0]).await.unwrap());
    let left = "SELECT group_concat(url || ' ' || state, ', ' ORDER BY id) FROM tasks";
    assert_eq!(
        file.query_one(left).replace("https://a.example/", ""),
        "removed/2 waiting, kept/1 done, kept/2 waiting"
    );
    let of = "SELECT group_concat(url) FROM attempts JOIN tasks ON tasks.id = task_id";
    assert_eq!(file.query_one(of), "https://a.example/kept/1");
    assert_eq!(file.query_one("SELECT count(*) FROM attempts"), "1");
}

/// A new database has the same tables as one that was migrated.
#[test]
fn a_migrated_database_has_the_same_tables_as_a_new_one() {
    let (old, new) = (TestFile::new(), TestFile::new());
    old.query(include_str!("version_1.sql"));
    let tables = "SELECT group_concat(sql, ';' ORDER BY name) FROM sqlite_schema";
    for file in [&old, &new] {
        drop(file.open());
    }
    assert_eq!(old.query_one(tables), new.query_one(tables));
}

/// B60: a cursor written by hand stays as it is until there is something to write.
#[tokio::test]
async fn a_cursor_written_by_hand_is_left_byte_for_byte() {
    let file = TestFile::new();
    let one = file.process("one").await;
    let source = one.store.add_source(feed("https://feeds.example/"), at(0)).await.unwrap().0.id;
    for text in ["{ \"b\": 1,\t\"a\" : 2.50,\n\"a\": 3 }", "not even JSON", ""] {
        file.query(&format!("UPDATE sources SET cursor_json = '{text}'"));
        for result in
            [FetchResult::Failed { retry_at: at(9) }, FetchResult::Held { until: at(9) }, FetchResult::Gone]
        {
            let end = FetchEnd {
                tenure: unclaimed(source),
                window: RunWindow::ending(at(1), at(1)).unwrap(),
                started_at: at(1),
                ended_at: at(1),
                result,
                http_status: None,
                found: 0,
                changes: Default::default(),
                error: None,
            };
            ended(&*one.store, end).await;
            assert_eq!(file.query_one("SELECT cursor_json FROM sources"), text);
        }
    }
}

/// B56, B58: no method leaves an item without its source, but people with a shell do.
#[tokio::test]
async fn an_item_without_its_source_is_refused_and_a_no_op() {
    let file = TestFile::new();
    let one = file.process("one").await;
    let source = one.store.add_source(feed("https://feeds.example/"), at(0)).await.unwrap().0.id;
    let items = keep(&*one.store, source, &["https://a.example/1".to_owned()]).await;
    let job = one.store.scrape_job(at(0)).await.unwrap().id;
    let enqueue = async || {
        let (requests, terms) = (vec![scrape_request(items[0], "a.example")], ScrapeTerms::default());
        one.store.enqueue_items(job, requests, Trigger::Manual, terms, at(0)).await.unwrap()
    };
    assert_eq!(enqueue().await, [Enqueued::Enqueued]);
    let lane = one.claim_one(job, at(0)).await;
    file.query("DELETE FROM sources");
    let (task, tenure) = (lane.tasks[0].id, tenure_of(&lane));
    let start = Start { task, tenure, interval: None, patience: ms(0), step: StartStep::Begin };
    let started = one.store.start_scrape(one.holder, start, at(1)).await.unwrap();
    assert_eq!(started, Started::Gone("the source is gone"));
    let item = one.store.find_item(items[0]).await.unwrap().unwrap();
    assert_eq!(item.state, ItemState::None);
    assert_eq!(enqueue().await, [Enqueued::Refused(Refusal::MissingSource)]);
}
