//! Copies of a whole store, from SQLite to PostgreSQL and back.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use comity_conformance::follower::{Follower, ended, feed, found, page, unclaimed};
use comity_conformance::process::{Process, at, done, failed, listed, ms, retry, tenure_of, urls_of};
use comity_conformance::{Backend, BoxFuture, Opened, Pause};
use comity_core::cadence::RunWindow;
use comity_core::intent::Intent;
use comity_core::interval::SourceInterval;
use comity_core::outcome::Outcome;
use comity_core::pace::LentPermit;
use comity_core::task::{JobState, JobStep};
use comity_core::time::{Span, Timestamp};
use comity_store::activity::{
    DomainActivity, DomainQuery, DomainReport, INTERVAL, LastAnswer, Sample, Traffic,
};
use comity_store::audit::NewAuditEntry;
use comity_store::copy::{Copied, Progress, copy};
use comity_store::details::{Details, Markup, Passage};
use comity_store::domains::{DomainRow, HolderId, LastHolderBuf, ReleaseMode, Tenure};
use comity_store::hooks::HookTiming;
use comity_store::items::{ItemId, ItemQuery, Order};
use comity_store::jobs::{Removed, RowMark};
use comity_store::machine::Machine;
use comity_store::robots::RobotsRow;
use comity_store::sources::{FetchEnd, FetchResult, NewItem};
use comity_store::tasks::{Attempt, NewTask, RequestParts, Settle, TaskFilter};
use comity_store::wiki::{
    Batch, Compression, Content, Hidden, Revision, Slot, WikiClaim, WikiFile, WikiId, WikiPage,
};
use comity_store::{Store, StoreError};
use rusqlite::Connection;
use rusqlite::types::Value;

use super::server::Server;

/// A store that processes open by its URL.
struct Place(String);

impl Place {
    fn sqlite(folder: &Path, name: &str) -> Self {
        Self(format!("sqlite:{}", folder.join(name).display()))
    }

    async fn postgres() -> Self {
        Self(tokio::task::spawn_blocking(|| Server::shared().fresh_url()).await.unwrap())
    }

    async fn open_store(&self) -> Arc<dyn Store> {
        let url = self.0.clone();
        tokio::task::spawn_blocking(move || comity_store::open(&url)).await.unwrap().unwrap()
    }

    async fn copy_to(&self, to: &Self) -> Result<Copied, StoreError> {
        copy(self.0.clone(), to.0.clone(), Arc::default()).await
    }

    async fn refusal(&self, to: &Self) -> String {
        match self.copy_to(to).await {
            Err(StoreError::Rejected { what, .. }) => what,
            other => panic!("not refused but {other:?}"),
        }
    }

    fn connect(&self) -> Connection {
        Connection::open(self.0.strip_prefix("sqlite:").unwrap()).unwrap()
    }
}

impl Backend for Place {
    fn open_on(&self, _machine: Arc<dyn Machine>) -> BoxFuture<'_, Opened> {
        Box::pin(async { Opened { store: self.open_store().await, pause: Pause::default() } })
    }

    fn kill(&self, process: Process, _now: Timestamp) -> BoxFuture<'_, ()> {
        Box::pin(async { drop(process) })
    }
}

/// Everything that a store shows, in words.
async fn contents(store: &dyn Store) -> Vec<String> {
    let mut seen = Vec::new();
    for job in store.list_jobs().await.unwrap() {
        let tasks = store.page_tasks(job.id, TaskFilter::default(), None, 100).await.unwrap();
        let failed = store.list_tasks(job.id, "failed".to_owned(), 100).await.unwrap();
        let backlog = store.backlog(job.id, 100, 100).await.unwrap();
        let origins = ["https://a.example", "https://nobody.example"].map(str::to_owned).to_vec();
        let origins = store.lists(job.id, origins).await.unwrap();
        let due = store.next_due(job.id).await.unwrap();
        seen.push(format!("{job:?}\n{tasks:#?}\n{failed:#?}\n{backlog:#?}\n{origins:?}\n{due:?}"));
    }
    for row in store.list_domains(String::new(), String::new(), 100).await.unwrap() {
        // Each kind of database counts its epochs in its own way.
        seen.push(format!("{:#?}", DomainRow { epoch: 0, ..row }));
    }
    for source in store.list_sources().await.unwrap() {
        let (fetches, counts) =
            (store.list_fetches(source.id, 9).await.unwrap(), store.count_items(source.id).await.unwrap());
        seen.push(format!("{source:#?}\n{fetches:#?}\n{counts:?}"));
    }
    let all = ItemQuery { order: Order::After(ItemId(0)), limit: 100, ..ItemQuery::default() };
    for item in store.list_items(all).await.unwrap() {
        let scrapes = store.list_scrapes(item.id, 9).await.unwrap();
        let details = store.find_details(vec![item.id]).await.unwrap();
        seen.push(format!("{item:#?}\n{scrapes:#?}\n{details:#?}"));
    }
    let robots = store.robots("https://a.example".to_owned()).await.unwrap();
    let delays = store.long_crawl_delays(Span::from_secs(1)).await.unwrap();
    let (counts, hooks) = (store.counts().await.unwrap(), store.count_hooks().await.unwrap());
    let secret = store.secret("permits".to_owned(), vec![0; 32]).await.unwrap();
    let listed =
        store.page_domains(DomainQuery { limit: 99, ..DomainQuery::default() }).await.unwrap().domains;
    let reported: Vec<_> = listed.iter().map(|one| (&one.row.domain, &one.reported, one.waiting)).collect();
    let traffic = store.traffic(Timestamp::MIN, Span::from_secs(10)).await.unwrap();
    let (audit, wikis) = (store.page_audit(None, 99).await.unwrap(), store.list_wikis().await.unwrap());
    seen.push(format!("{reported:#?} {traffic:#?} {audit:#?} {wikis:#?}"));
    seen.push(format!("{robots:?} {delays:?} {counts:?} {hooks} {secret:?}"));
    if let Some(wiki) = store.find_wiki(API.to_owned()).await.unwrap() {
        seen.push(format!("{wiki:#?} {}", of_wiki(store, wiki.id).await));
    }
    seen
}

async fn of_wiki(store: &dyn Store, wiki: WikiId) -> String {
    let (pages, files) =
        (store.wiki_pages(wiki, 0, 100).await.unwrap(), store.wiki_files(wiki, 0, 100).await.unwrap());
    let history = store.page_history(wiki, 1, 0, u64::MAX).await.unwrap();
    let (tally, lacking) =
        (store.tally_wiki(wiki).await.unwrap(), store.lacking_pages(wiki, 0, 100).await.unwrap());
    format!("{pages:#?}\n{files:#?}\n{history:#?}\n{tally:?}\n{lacking:?}")
}

/// A store with something of everything, which nobody uses any more. All of it happens within a lease, because no heartbeat is sent.
async fn fill(place: &Place) {
    let follower = Follower::start(place, SourceInterval::Default, 3).await;
    follower.scrape(0, at(1)).await;
    assert_eq!(follower.enqueue(&[1], at(2)).await, "enqueued");
    let one = &follower.one;
    follow(one, &follower).await;
    work(one).await;
    archive(&*one.store).await;
    let limits = RobotsRow {
        origin: "https://a.example".to_owned(),
        fetched_at: at(3),
        status: 200,
        body: b"User-agent: *\xff".to_vec(),
        crawl_delay: Span::from_secs(60),
    };
    one.store.keep_robots(limits).await.unwrap();
    one.store.add_counts(vec![("requests".to_owned(), 7)]).await.unwrap();
    one.store.secret("permits".to_owned(), vec![9; 32]).await.unwrap();
    watch(one, follower.tenure).await;
    one.release(follower.tenure, b"a pace", ReleaseMode::Stop, at(8)).await;
    one.store.deregister(one.holder, at(8)).await.unwrap();
}

/// Leaves what people look at: activity, traffic, who changed what, and a source that somebody asked for.
async fn watch(one: &Process, tenure: Tenure) {
    let activity = DomainActivity {
        delay: ms(1_500),
        held_until: Some(at(60)),
        limit: Some("retry_after".to_owned()),
        error_streak: 2,
        last: Some(LastAnswer { at: at(2), outcome: Outcome::RateLimited, status: Some(429) }),
        ..DomainActivity::default()
    };
    let (requests, rate_limited, failed) = (3, 2, 1);
    let (held, learned) = (ms(500), ms(700));
    let sample = Sample { from: at(0), span: INTERVAL, requests, rate_limited, failed, held, learned };
    let report = DomainReport { tenure, activity, samples: vec![sample] };
    let traffic = Traffic { retries: 2, bytes: 9, ..Traffic::default() };
    one.store.report_activity(traffic, vec![report], at(3)).await.unwrap();
    one.store.add_audit(NewAuditEntry { who: "ops".to_owned(), ..change() }, at(3)).await.unwrap();
    let source = one.store.list_sources().await.unwrap()[0].id;
    assert!(one.store.request_fetch(source, at(3)).await.unwrap());
}

fn change() -> NewAuditEntry {
    NewAuditEntry {
        who: String::new(),
        role: "admin".to_owned(),
        action: "pause".to_owned(),
        target: "site a.example".to_owned(),
        impact: "delays 3 waiting tasks".to_owned(),
        result: "done".to_owned(),
    }
}

/// Fetches a source that has details and hooks.
async fn follow(one: &Process, follower: &Follower) {
    let second = one.store.add_source(feed("https://feeds.example/b"), at(3)).await.unwrap().0.id;
    let summary = Some(Passage { text: "1 < 2 \u{1f409}".to_owned(), markup: Markup::Html });
    let details = Details { summary, categories: vec!["ü".to_owned()], ..Details::default() };
    let item = NewItem {
        title: Some("A title".to_owned()),
        published_at: Some(at(-5)),
        details,
        wants_hook: true,
        page_key: Some([3; 16]),
        ..page("https://b.example/1")
    };
    let changes = found(&*one.store, second, vec![item], at(4)).await;
    let end = FetchEnd {
        tenure: unclaimed(second),
        window: RunWindow::ending(at(3), at(3)).unwrap(),
        started_at: at(3),
        ended_at: at(4),
        result: FetchResult::Failed { retry_at: at(90) },
        http_status: Some(503),
        found: 1,
        changes,
        error: Some("status 503".to_owned()),
    };
    assert!(!ended(&*one.store, end).await);
    assert!(one.store.list_sources().await.unwrap().len() > 1 && follower.items.len() == 3);
}

/// Tasks in every state, of a job that runs and of one that ended.
async fn work(one: &Process) {
    let urls: Vec<String> = (0..5).map(|nth| format!("https://w.example/{nth}")).collect();
    let job = one.job_of("running", &urls.iter().map(String::as_str).collect::<Vec<_>>(), at(0)).await;
    let parts = RequestParts {
        method: "POST".to_owned(),
        body: vec![0, 255],
        headers: vec![("accept".to_owned(), "*/*".to_owned())],
    };
    let post = NewTask { sends: Some(Box::new(parts)), ..listed("https://w.example/post") };
    one.store.enqueue(job, vec![post], at(0)).await.unwrap();
    let lane = one.claim_one(job, at(5)).await;
    let tenure = tenure_of(&lane);
    let attempt =
        |secs| Attempt { started_at: at(secs), took: ms(20), outcome: Outcome::Success, status: Some(200) };
    for (task, step) in lane.tasks.iter().zip([done(), failed(), retry(at(40))]) {
        let (task, attempts) = (task.id, vec![attempt(5), attempt(6)]);
        let settle =
            Settle { task, job, tenure, attempts, url_key: None, robots: None, facts: Arc::default(), step };
        one.store.settle(one.holder, [settle].into(), at(6)).await.unwrap();
    }
    let lent = LentPermit { id: 5, intent: Intent::Fetch, granted_at: at(6), until: at(9_999) };
    one.store.lend(one.holder, tenure, lent).await.unwrap();
    one.release(tenure, b"another pace", ReleaseMode::Stop, at(7)).await;
    let ended = one.job_of("ended", &["https://x.example/1", "https://y.example/1"], at(0)).await;
    one.step(ended, JobStep::Cancel, at(7)).await;
    one.sweep(ended, at(7)).await;
}

async fn archive(store: &dyn Store) {
    let claim = store.claim_wiki(API.to_owned(), None, at(1)).await.unwrap();
    let WikiClaim::Ours(_, tenure) = claim else { panic!("{claim:?}") };
    let content =
        Content { sha1: [7; 20], size: 9, compression: Compression::Zstd, bytes: vec![0, 1, 2, 255] };
    let slot = Slot {
        role: "main".to_owned(),
        model: "wikitext".to_owned(),
        format: "text/x-wiki".to_owned(),
        content: Some(content),
    };
    let revision = Revision {
        id: 11,
        page: 1,
        parent: 0,
        at: at(2),
        user: Some("Somebody".to_owned()),
        user_id: 7,
        comment: None,
        sha1: Some("00ff".to_owned()),
        size: 9,
        minor: true,
        hidden: Hidden { comment: true, ..Hidden::default() },
        tags: vec!["mobile edit".to_owned()],
        slots: vec![slot],
    };
    let page = WikiPage {
        id: 1,
        namespace: 0,
        title: "A".to_owned(),
        model: "wikitext".to_owned(),
        redirect: false,
        newest: 11,
        deleted: false,
        whole: true,
    };
    let file = WikiFile {
        title: "File:A.png".to_owned(),
        at: at(3),
        sha1: Some("aa".to_owned()),
        size: 10,
        mime: "image/png".to_owned(),
        url: Some("https://wiki.example/a.png".to_owned()),
        user: None,
        comment: None,
        superseded: false,
    };
    let (pages, revisions, files) =
        (vec![page, WikiPage { id: 2, ..a_page("B") }], vec![revision], vec![file]);
    let batch =
        Batch { pages, revisions, files, progress: serde_json::json!({ "round": 1 }), ..Batch::default() };
    store.keep_wiki(tenure, batch).await.unwrap();
}

fn a_page(title: &str) -> WikiPage {
    let (title, model) = (title.to_owned(), "wikitext".to_owned());
    WikiPage { id: 0, namespace: 0, title, model, redirect: true, newest: 5, deleted: false, whole: false }
}

/// The rows of a table in SQLite.
fn rows(sql: &Connection, table: &str) -> Vec<Vec<Value>> {
    // Epochs belong to processes, and a domain's counts its takes.
    let columns = match table {
        "wikis" => "id, api, site, progress, contents, bytes, packed_bytes, created_us",
        "sources" => {
            "id, name, kind, url, listed_url, lead, enabled, scraping, auto_scrape, min_scrape_interval,
            config_json, cursor_json, added_us, failures, retry_us, error, requested_us"
        }
        _ => "*",
    };
    let mut select = sql.prepare(&format!("SELECT {columns} FROM {table} ORDER BY 1, 2")).unwrap();
    let count = select.column_count();
    let row = |row: &rusqlite::Row<'_>| (0..count).map(|nth| row.get(nth)).collect();
    select.query_map([], row).unwrap().collect::<Result<_, _>>().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_whole_store_is_copied_to_postgresql_and_back() {
    let folder = tempfile::tempdir().unwrap();
    let (from, between) = (Place::sqlite(folder.path(), "from.db"), Place::postgres().await);
    fill(&from).await;
    let copied = from.copy_to(&between).await.unwrap();
    let back = Place::sqlite(folder.path(), "back.db");
    assert_eq!(between.copy_to(&back).await.unwrap().tables, copied.tables);
    let sql = (from.connect(), back.connect());
    for (table, count) in copied.tables {
        let is_always_empty = ["workers", "sharers"].contains(&table);
        assert!(count > 0 || is_always_empty, "{table} was not tested");
        assert_eq!(rows(&sql.0, table), rows(&sql.1, table), "{table}");
    }
    drop(sql);
    let stores = [from.open_store().await, between.open_store().await, back.open_store().await];
    let all = contents(&*stores[0]).await;
    for store in &stores[1..] {
        for (copied, original) in contents(&**store).await.iter().zip(&all) {
            assert_eq!(copied, original, "{}", store.location());
        }
    }
    for place in [&from, &between, &back] {
        let one = Process::start(place, "one", at(100)).await;
        let job = one.store.find_job("running".to_owned()).await.unwrap().unwrap();
        assert_eq!((job.state, job.counts.tasks, job.counts.waiting()), (JobState::Running, 6, 4));
        let lanes = one.claim(job.id, at(100)).await;
        let expected = "w.example/3 w.example/4 w.example/post w.example/2";
        assert_eq!(urls_of(&lanes), expected, "{}", place.0);
        let hooks = one.store.claim_hooks(one.holder, HookTiming::OnceSeen, 9).await.unwrap();
        assert_eq!(hooks.len(), 1);
        let added = one.job_of("added", &["https://new.example/"], at(101)).await;
        assert!(added > job.id);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_dead_process_held_is_due_and_its_domains_are_lost() {
    let folder = tempfile::tempdir().unwrap();
    let (from, between) = (Place::sqlite(folder.path(), "from.db"), Place::postgres().await);
    let one = Process::start(&from, "one", at(0)).await;
    let job = one.job_of("job", &["https://a.example/1", "https://b.example/1"], at(0)).await;
    assert_eq!(one.claim(job, at(1)).await.len(), 2);
    let mark = RowMark { settled_before: at(1), index_bytes: Some(70) };
    one.store.work_on(job, one.holder, mark, at(1)).await.unwrap();
    drop(one);
    from.copy_to(&between).await.unwrap();
    let other = Process::start(&between, "other", at(5)).await;
    let lanes = other.claim(job, at(5)).await;
    assert_eq!(lanes.len(), 2);
    let take = comity_conformance::process::taken(lanes[0].take.clone());
    assert_eq!(take.last_holder, LastHolderBuf::Died { latest: at(5) });
    assert_eq!(other.store.work_on(job, other.holder, mark, at(5)).await.unwrap(), Some(mark));
    // Its heartbeats stop, as if it were killed.
    let back = Place::sqlite(folder.path(), "back.db");
    between.copy_to(&back).await.unwrap();
    let last = Process::start(&back, "last", at(9)).await;
    assert_eq!(last.claim(job, at(9)).await.len(), 2);
    assert_eq!(last.store.work_on(job, last.holder, mark, at(9)).await.unwrap(), Some(mark));
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_are_not_given_out_again_in_a_copy() {
    let folder = tempfile::tempdir().unwrap();
    let (from, between) = (Place::sqlite(folder.path(), "from.db"), Place::postgres().await);
    let one = Process::start(&from, "one", at(0)).await;
    let job = one.job_of("job", &["https://a.example/1"], at(0)).await;
    let task = one.store.page_tasks(job, TaskFilter::default(), None, 9).await.unwrap()[0].id;
    while !matches!(one.store.remove_job(job, 9, at(1)).await.unwrap(), Removed::Gone) {}
    one.store.deregister(one.holder, at(2)).await.unwrap();
    from.copy_to(&between).await.unwrap();
    let back = Place::sqlite(folder.path(), "back.db");
    between.copy_to(&back).await.unwrap();
    for place in [&between, &back] {
        let one = Process::start(place, "one", at(3)).await;
        let again = one.job_of("job", &["https://a.example/1"], at(3)).await;
        let tasks = one.store.page_tasks(again, TaskFilter::default(), None, 9).await.unwrap();
        assert!(again > job && tasks[0].id > task, "{}", place.0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_in_use_is_not_copied() {
    let folder = tempfile::tempdir().unwrap();
    let (sqlite, postgres) = (Place::sqlite(folder.path(), "comity.db"), Place::postgres().await);
    let one = Process::start(&sqlite, "fetch 12", at(0)).await;
    let expected = "in use by fetch 12; stop every process that uses it, then copy it";
    assert_eq!(sqlite.refusal(&postgres).await, expected);
    one.store.deregister(one.holder, at(1)).await.unwrap();
    drop(one);
    let one = Process::start(&postgres, "serve 13", at(0)).await;
    let beat = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        one.beat(at(1)).await.unwrap();
        std::future::pending::<String>().await
    };
    let empty = Place::sqlite(folder.path(), "empty.db");
    let refused = tokio::select! {
        refused = postgres.refusal(&empty) => refused,
        never = beat => never,
    };
    assert_eq!(refused, "in use by serve 13; stop every process that uses it, then copy it");
    assert!(!folder.path().join("empty.db").exists(), "the source is looked at first");
    assert_eq!(
        sqlite.refusal(&postgres).await,
        "in use by serve 13; stop every process that uses it, then copy it"
    );
    assert_ne!(one.holder, HolderId(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_is_copied_into_an_empty_one_only_and_completely_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (Place::sqlite(folder.path(), "from.db"), Place::postgres().await);
    let no_store = from.copy_to(&to).await.unwrap_err();
    assert!(no_store.to_string().contains("there is no store here"), "{no_store}");
    fill(&from).await;
    let stopped = Arc::new(Progress::default());
    stopped.stop();
    let error = copy(from.0.clone(), to.0.clone(), stopped).await.unwrap_err();
    assert!(error.to_string().contains("stopped; nothing was copied"), "{error}");
    let absent = comity_store::open_existing(&to.0, Span::ZERO);
    assert!(absent.unwrap().is_none(), "its tables appear with the last commit");
    // An empty store that exists already is filled too.
    assert_eq!(to.open_store().await.list_jobs().await.unwrap(), []);
    let progress = Arc::new(Progress::default());
    let copied = copy(from.0.clone(), to.0.clone(), progress.clone()).await.unwrap();
    assert_eq!(progress.rows(), (copied.rows(), copied.rows()));
    let refused = from.refusal(&to).await;
    assert!(refused.starts_with("is not empty (table job)"), "{refused}");
    assert!(from.refusal(&from).await.contains("comity backup"));
    let back = Place::sqlite(folder.path(), "back.db");
    let stopped = Arc::new(Progress::default());
    stopped.stop();
    copy(to.0.clone(), back.0.clone(), stopped).await.unwrap_err();
    let names = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(names.filter(|name| name.to_string_lossy().contains("back.db")).count(), 0, "nothing is left");
    to.copy_to(&back).await.unwrap();
    let names = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(
        names.filter(|name| name.to_string_lossy().contains("back.db")).count(),
        1,
        "no log, no lock files"
    );
    let unknown = copy("memory:".to_owned(), to.0.clone(), Arc::default()).await.unwrap_err();
    assert!(unknown.to_string().contains("expected sqlite:PATH or postgres://"), "{unknown}");
}

const API: &str = "https://wiki.example/api.php";
