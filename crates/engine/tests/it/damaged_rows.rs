//! A store with one damaged row, in every column of text or bytes of every table: everything else continues.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use comity::archive::Archive;
use comity::client::{self, known_robots};
use comity::clock::Clock;
use comity::config::Config;
use comity::event::Events;
use comity::gate::{CloseMode, Gate};
use comity::jobs::{Parts, Pool, Rows, StopReason, Until};
use comity::pipeline::{Cadences, Pipeline, RunOptions, Scraping, SourceOutcome};
use comity::retention::{self, More, Sweep};
use comity::store::Store;
use comity::store::items::{ItemQuery, ItemState};
use comity_core::cadence::RunWindow;
use comity_core::time::Span;
use rusqlite::Connection;
use serde_json::Value;
use tokio::task::JoinSet;
use url::Url;

use crate::jobs::{Worker, fill};
use crate::station::{Silent, Station, quick, rss};
use crate::support::{Asked, Reply, Site, config, reply, soon};

/// B82
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_damaged_row_leaves_everything_else_alone() {
    let folder = tempfile::tempdir().unwrap();
    let site = Arc::new(Site::start(answer).await);
    let base = folder.path().join("base.db");
    populate(&base, &site).await;
    let mut inflicted = 0;
    let mut running = JoinSet::new();
    let mut failures = Vec::new();
    for (nth, damage) in damages(&base).into_iter().enumerate() {
        if running.len() >= AT_ONCE {
            failures.extend(running.join_next().await.and_then(Result::unwrap));
        }
        let file = folder.path().join(format!("{nth}.db"));
        if !damage.inflict(&base, &file) {
            continue;
        }
        inflicted += 1;
        let site = site.clone();
        running.spawn(async move {
            let continued = tokio::time::timeout(PATIENCE, everything_else(&file, &site)).await;
            let failure = continued.unwrap_or_else(|_| Err("it does not end".to_owned())).err();
            failure.map(|failure| format!("{damage:?}: {failure}"))
        });
    }
    failures.extend(running.join_all().await.into_iter().flatten());
    assert!(inflicted > 150, "{inflicted}");
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

/// A new item when the feed is requested again.
fn answer(asked: &Asked) -> Reply {
    match asked.path.as_str() {
        "/robots.txt" => reply(200).body("User-agent: *\nDisallow: /private\n"),
        "/feed" => {
            let links: Vec<String> = (0..=asked.before.min(1)).map(|nth| format!("/item{nth}")).collect();
            reply(200).body(rss("", &links.iter().map(String::as_str).collect::<Vec<_>>()))
        }
        _ => reply(200).header("etag", "\"one\"").body("a page"),
    }
}

fn obeying() -> String {
    quick("[scrape]\nmin_interval = 0\n").replace("\"ignore\"", "\"obey\"").replace("10ms", "1ms")
}

/// The host whose rows are damaged, and the one that must not suffer.
const HOSTS: [(&str, u8); 2] = [("bad", 1), ("good", 2)];

/// A store with a job, a source and items of each host, some of it finished. Rows of the bad host come first.
async fn populate(base: &Path, site: &Site) {
    let path = &base.with_extension("origin");
    let store = open(path).unwrap();
    let worker = Worker::with(&obeying(), store.clone(), Clock::new()).await;
    for (job, host) in HOSTS {
        let pool = worker.pool_of(job, Archive::Nothing).await;
        fill(&pool, &[site.url_on(host, "/1"), site.url_on(host, "/private/2")]).await;
        soon("the job", pool.run()).await.unwrap();
        fill(&pool, &[site.url_on(host, "/3"), site.url_on(host, "/4")]).await;
    }
    worker.gate.close(CloseMode::Stop).await.unwrap();
    let station = Station::with(&obeying(), store.clone(), Clock::new()).await;
    // One after the other, because sources of two hosts are fetched at the same time.
    for (_, host) in HOSTS {
        let sources = Some(vec![station.follow(&site.url_on(host, "/feed")).await]);
        let options = RunOptions { scraping: Scraping::On, sources, ..station.run_options() };
        station.run_as(&options).await;
    }
    assert_eq!(station.scrape().await, StopReason::Idle);
    station.close().await;
    let sql = Connection::open(path).unwrap();
    // A copy that nobody has open.
    sql.execute("VACUUM INTO ?1", [base.to_str().unwrap()]).unwrap();
    let sql = Connection::open(base).unwrap();
    // These rows refer to nothing.
    sql.pragma_update(None, "foreign_keys", false).unwrap();
    for (table, columns) in tables(&sql) {
        let empty = format!("SELECT count(*) = 0 FROM {table}");
        if sql.query_row(&empty, [], |row| row.get(0)).unwrap() {
            // Rows that only exist while something runs.
            let value = |(_, kind): &(String, String)| match kind.as_str() {
                "TEXT" => "'x'",
                "BLOB" => "x'00ff'",
                _ => "1000000",
            };
            let values: Vec<&str> = columns.iter().map(value).collect();
            let insert = format!("INSERT INTO {table} VALUES ({})", values.join(", "));
            sql.execute(&insert, []).unwrap_or_else(|error| panic!("{insert}: {error}"));
        }
    }
    sql.pragma_update(None, "wal_checkpoint", "TRUNCATE").unwrap();
}

/// The tables, and the names and types of their columns.
fn tables(sql: &Connection) -> Vec<(String, Vec<(String, String)>)> {
    let list =
        "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name";
    let mut select = sql.prepare(list).unwrap();
    let names: Vec<String> = select.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
    let columns = |name: &String| {
        let mut select = sql.prepare("SELECT name, type FROM pragma_table_info(?1) ORDER BY cid").unwrap();
        let columns = select.query_map([name], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
        columns.map(Result::unwrap).collect()
    };
    names.iter().map(|name| (name.clone(), columns(name))).collect()
}

/// Bytes in place of one value.
#[derive(Debug)]
struct Damage {
    table: String,
    column: String,
    value: String,
}

/// Every column of text or bytes, with text that isn't UTF-8, text that means nothing, and random bytes.
fn damages(base: &Path) -> Vec<Damage> {
    let mut random = fastrand::Rng::with_seed(82);
    let mut damages = Vec::new();
    for (table, columns) in tables(&Connection::open(base).unwrap()) {
        for (column, kind) in columns {
            let mut bytes =
                |length| (0..length).map(|_| format!("{:02x}", random.u8(..))).collect::<String>();
            let values = match kind.as_str() {
                "TEXT" => vec![
                    format!("CAST(x'ff{}' AS TEXT)", bytes(20)),
                    "'{\"\u{202e}\u{1}'".to_owned(),
                    "''".to_owned(),
                ],
                "BLOB" => vec![format!("x'{}'", bytes(20)), format!("x'{}'", bytes(200)), "x''".to_owned()],
                _ => continue,
            };
            let damage = |value| Damage { table: table.clone(), column: column.clone(), value };
            damages.extend(values.into_iter().map(damage));
        }
    }
    damages
}

impl Damage {
    /// Copies the store to `file` with the damage in the first row of the table, the one of the bad host. False if SQLite
    /// doesn't allow it.
    fn inflict(&self, base: &Path, file: &Path) -> bool {
        std::fs::copy(base, file).unwrap();
        let Self { table, column, value } = self;
        let sql = Connection::open(file).unwrap();
        sql.pragma_update(None, "foreign_keys", false).unwrap();
        // As if the bytes had changed on the disk: no trigger sees it.
        let mut select = sql.prepare("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'").unwrap();
        let triggers = select.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
        let triggers: Vec<(String, String)> = triggers.map(Result::unwrap).collect();
        drop(select);
        triggers.iter().for_each(|(name, _)| sql.execute_batch(&format!("DROP TRIGGER {name}")).unwrap());
        let first = "SELECT name FROM pragma_table_info(?1) WHERE pk = 1";
        let key = sql.query_row(first, [table], |row| row.get(0)).unwrap_or_else(|_| "rowid".to_owned());
        let update =
            format!("UPDATE {table} SET {column} = {value} WHERE {key} = (SELECT min({key}) FROM {table})");
        let changed = sql.execute(&update, []);
        triggers.iter().for_each(|(_, create)| sql.execute_batch(create).unwrap());
        changed.is_ok_and(|rows| rows == 1)
    }
}

fn open(path: &Path) -> Result<Arc<dyn Store>, String> {
    comity::store::open(&format!("sqlite:{}", path.display())).map_err(said)
}

fn said(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Does everything that commands do with a store, and checks that what belongs to the good host succeeds.
async fn everything_else(path: &Path, site: &Site) -> Result<(), String> {
    let (store, config) = (open(path)?, config(&obeying()));
    let rules = config.rules().clone();
    let clock = Clock::of(&*store).await.map_err(said)?;
    let gate = Gate::with_store(rules.clone(), clock, Events::new(), store.clone(), "a test");
    let gate = gate.await.map_err(said)?;

    fetch(&config, &gate, &store, "good").await?;
    let good = store.find_job("good".to_owned()).await.map_err(said)?.ok_or("the good job is gone")?;
    if (good.counts.done, good.counts.skipped, good.counts.failed) != (3, 1, 0) {
        return Err(format!("the good job: {:?}", good.counts));
    }
    // Its own row may be the damaged one. Whatever is in the others, it ends.
    if let Ok(Some(_)) = store.find_job("bad".to_owned()).await {
        fetch(&config, &gate, &store, "bad").await?;
    }

    run(&config, &gate, &store, site).await?;

    let now = gate.clock().now();
    let jobs = store.list_jobs().await.map_err(said)?;
    if !jobs.iter().any(|job| job.name == "good") {
        return Err("the good job is not listed".to_owned());
    }
    let domains = store.list_domains(String::new(), String::new(), 100).await.map_err(said)?;
    if !domains.iter().any(|row| row.domain == site.domain(2).as_str()) {
        return Err("the good site is not listed".to_owned());
    }
    store.live_processes().await.map_err(said)?;
    store.backlog(good.id, 10, 10).await.map_err(said)?;
    let page = Url::parse(&site.url_on(2, "/private/2")).unwrap();
    if known_robots(&*store, &config, &page, now).await.map_err(said)?.is_none_or(|known| known.allowed) {
        return Err("the good robots.txt is unknown".to_owned());
    }
    gate.close(CloseMode::Stop).await.map_err(said)?;
    let (keep, later) = (Some(Span::from_secs(1)), now + Span::from_hours(72));
    retention::count(&*store, &rules, keep, later).await.map_err(said)?;
    let mut sweep = Sweep::default();
    while sweep.step(&*store, &rules, keep, later).await.map_err(said)?.1 == More::Yes {}
    Ok(())
}

/// Works on a job until it ends.
async fn fetch(config: &Config, gate: &Gate, store: &Arc<dyn Store>, job: &str) -> Result<(), String> {
    let (job, _) = store.open_job(job.to_owned(), Value::Null, gate.clock().now()).await.map_err(said)?;
    let name = job.name.clone();
    let pool = Pool::new(Parts {
        gate: gate.clone(),
        store: store.clone(),
        transport: client::transport(config).map_err(said)?,
        archive: Archive::Nothing,
        config: config.clone(),
        job,
        until: Until::DONE,
        rows: Rows::default(),
    });
    match tokio::time::timeout(PATIENCE / 3, pool.run()).await {
        Ok(ended) => ended.map(|_| ()).map_err(|error| format!("job {name}: {error}")),
        Err(_) => Err(format!("job {name} does not end")),
    }
}

/// Fetches all sources and scrapes what is new.
async fn run(config: &Config, gate: &Gate, store: &Arc<dyn Store>, site: &Site) -> Result<(), String> {
    let transport = client::transport(config).map_err(said)?;
    let (config, gate) = (config.clone(), gate.clone());
    let clock = gate.clock().clone();
    let pipeline =
        Pipeline::new(config, gate, store.clone(), transport, Archive::Nothing).await.map_err(said)?;
    let window = RunWindow::ending(clock.now(), clock.now()).map_err(said)?;
    let (cadences, scraping) = (Cadences::Ignored, Scraping::On);
    let options = RunOptions { window, sources: None, cadences, scraping };
    let report = pipeline.run(&options, &Silent).await.map_err(said)?;
    let scraping = tokio::time::timeout(PATIENCE / 3, pipeline.pool().run()).await;
    scraping.map_err(|_| "scraping does not end".to_owned())?.map_err(said)?;
    let url = site.url_on(2, "/feed");
    let source = store.list_sources().await.map_err(said)?.into_iter().find(|source| source.url == url);
    let source = source.ok_or("the good source is not listed")?.id;
    let outcome = report.sources.iter().find(|found| found.source == source).map(|found| &found.outcome);
    if !matches!(outcome, Some(SourceOutcome::Fetched { .. })) {
        return Err(format!("the good source: {outcome:?}"));
    }
    let query = ItemQuery { source: Some(source), state: None, limit: 100, ..ItemQuery::default() };
    let items = store.list_items(query).await.map_err(said)?;
    if items.is_empty() || items.iter().any(|item| item.state != ItemState::Done) {
        let states: Vec<_> = items.iter().map(|item| item.state.as_str()).collect();
        return Err(format!("the good items: {states:?}"));
    }
    Ok(())
}

/// How many stores are checked at the same time.
const AT_ONCE: usize = 6;
/// Generous: it usually takes a fraction of a second.
const PATIENCE: Duration = Duration::from_secs(360);
