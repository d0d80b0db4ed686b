//! `comity demo`: a playground, a job and an ingest run that fetch from it, and the sites' own count of who came too
//! early. Needs no network and leaves nothing behind.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use comity::clock::Clock;
use comity::core::interval::SourceInterval;
use comity::core::time::Span;
use comity::store::sources::{Kind, NewSource};
use comity::store::tasks::Lead;
use comity::store::{self, Store};
use serde_json::{Map, Value, json};

use super::{fetch, playground};
use crate::args::{Demo, Exec, Fetch, Format, Global, Keep, Run};
use crate::playground::{Playground, Tally};
use crate::signals::Signals;
use crate::{exit, output};

pub(crate) async fn run(global: &Global, demo: &Demo) -> anyhow::Result<u8> {
    // Listened for before there is a folder: nothing but a kill may leave it behind.
    let mut signals = Signals::new()?;
    let folder = new_folder()?;
    if !demo.keep {
        exit::clears(&folder);
    }
    let result = play(global, &folder, &mut signals).await;
    match (demo.keep, &result) {
        (false, _) => exit::clear(),
        (true, Ok(_)) if !global.json => {
            let place = folder.display();
            say(&format!("\nEverything is in {place}. Look around:"));
            say(&format!("  comity --store sqlite:{place}/demo.db domains list"));
            say(&format!("  comity --store sqlite:{place}/demo.db jobs show demo"));
            say(&format!("  ls {place}/pages"));
        }
        (true, _) => output::remark(&format!("everything is in {}", folder.display())),
    }
    result
}

/// A folder that nobody else has.
fn new_folder() -> anyhow::Result<PathBuf> {
    let (here, stamp) = (std::env::temp_dir(), Clock::new().now().as_micros());
    let folder = here.join(format!("comity-demo-{}-{stamp}", std::process::id()));
    std::fs::create_dir(&folder)
        .map_err(|error| exit::usage(format!("TMPDIR: {}: {error}", folder.display())))?;
    Ok(folder)
}

async fn play(global: &Global, folder: &Path, signals: &mut Signals) -> anyhow::Result<u8> {
    let began = Clock::new();
    let began_at = began.now();
    let playground = Playground::start(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
    let config = folder.join("comity.toml");
    std::fs::write(&config, rules(&playground))?;
    let place = format!("sqlite:{}", folder.join("demo.db").display());
    let inner = Global {
        config: Some(config),
        store: Some(place.clone()),
        profile: None,
        log_level: global.log_level.clone().or_else(|| (global.verbose == 0).then(|| "error".to_owned())),
        ..global.clone()
    };
    if !global.quiet && !global.json {
        introduce(&playground);
    }
    let mut code = fetch::run(&inner, job(&playground, folder)).await?;
    if signals.is_stop_asked().await {
        code = exit::INTERRUPTED;
    }
    if code != exit::INTERRUPTED {
        follow(&*store::open(&place)?, &playground).await?;
        if !global.quiet && !global.json {
            say("\nNow a feed is followed, and what it leads to is scraped.");
        }
        code = super::run::run(&inner, ingest(folder)).await?.max(code);
    }
    let learned = learned(&*store::open(&place)?).await?;
    let tally = total(&playground);
    if global.json {
        let learned: Vec<Value> = learned
            .iter()
            .map(|(domain, delay)| json!({ "domain": domain, "delay_seconds": delay.as_secs_f64() }))
            .collect();
        output::object(&json!({
            "pages": tally.pages,
            "refused": tally.refused,
            "early": tally.early,
            "learned": learned,
            "sites": playground::sites(&playground),
            "elapsed_ms": began.now().since(began_at).as_millis_up(),
        }));
    } else {
        summarise(&playground, tally, &learned, began.now().since(began_at));
    }
    Ok(if tally.early > 0 { exit::FAILURES.max(code) } else { code })
}

/// A few lines.
fn say(text: &str) {
    text.split('\n').for_each(output::line);
}

/// What the sites are, for a stranger.
fn introduce(playground: &Playground) {
    say("Sites on loopback, each with manners of its own:\n");
    for site in playground.counted().iter().take(SHOWN) {
        say(&format!("  {:8} {}", site.name, site.about));
    }
    say("\nA job fetches from all of them at once, none of them faster than it allows.\n");
}

/// The rules of the demo: only the strict site is asked faster than one request a second, to be told 429 soon.
fn rules(playground: &Playground) -> String {
    let strict = playground.url("strict");
    let host = strict.trim_start_matches("http://");
    format!(
        "# The rules of comity demo. Everything else is the profile standard.\n\
         [domains.\"{host}\"]\nmin_delay = \"200ms\"\nlearning = \"off\"\n\n[http]\ncontact = \"demo@example.org\"\n"
    )
}

fn job(playground: &Playground, folder: &Path) -> Fetch {
    let pages = |(name, count): (&str, u32)| {
        let base = playground.url(name);
        (1..=count).map(move |page| format!("{base}/page/{page}")).collect::<Vec<_>>()
    };
    let mut urls: Vec<String> = PAGES.into_iter().flat_map(pages).collect();
    urls.push(format!("{}/private/1", playground.url("robots")));
    Fetch {
        sitemap: Vec::new(),
        refresh: false,
        jsonl: false,
        with_headers: false,
        urls,
        input: None,
        job: Some("demo".to_owned()),
        out: Some(folder.join("pages")),
        format: Some(Format::Files),
        concurrency: None,
        delay: None,
        learning: None,
        robots: None,
        max_retries: None,
        strict: false,
        request: Default::default(),
    }
}

/// Follows the feed of the playground.
async fn follow(store: &dyn Store, playground: &Playground) -> anyhow::Result<()> {
    let url = format!("{}/feed.xml", playground.url("harbour"));
    let source = NewSource {
        name: "News of the harbour".to_owned(),
        kind: Kind::Feed,
        url,
        lead: Lead::Listed,
        scraping: true,
        interval: SourceInterval::default(),
        config: Map::new(),
    };
    store.add_source(source, Clock::of(store).await?.now()).await?;
    Ok(())
}

fn ingest(folder: &Path) -> Run {
    let keep =
        Keep { out: Some(folder.join("items")), format: Some(Format::Files), concurrency: None, delay: None };
    Run {
        window_end: None,
        watch: false,
        source: Vec::new(),
        no_scrape: false,
        force: false,
        keep,
        exec: Exec::none(),
    }
}

/// What was learnt of which domain.
async fn learned(store: &dyn Store) -> anyhow::Result<Vec<(String, Span)>> {
    let domains = store.list_domains(String::new(), String::new(), 100).await?;
    let learned = domains.into_iter().filter(|row| !row.kept.delay.is_zero());
    Ok(learned.map(|row| (row.domain, row.kept.delay)).collect())
}

fn total(playground: &Playground) -> Tally {
    playground.counted().iter().fold(Tally::default(), |sum, site| Tally {
        requests: sum.requests + site.tally.requests,
        pages: sum.pages + site.tally.pages,
        refused: sum.refused + site.tally.refused,
        early: sum.early + site.tally.early,
    })
}

fn summarise(playground: &Playground, tally: Tally, learned: &[(String, Span)], elapsed: Span) {
    say("\nWhat the sites counted:\n");
    playground::tell(&playground.counted());
    say(&format!(
        "\n{} pages, {} refusals, {} requests early, in {}.",
        tally.pages,
        tally.refused,
        tally.early,
        elapsed.about()
    ));
    for (domain, delay) in learned {
        say(&format!("Learnt: {domain} wants {delay} between requests; nobody said so."));
    }
    say("\nOn your own URLs: comity fetch --input urls.txt --out pages");
}

/// How many pages of which site the job fetches: all of them take about as long.
const PAGES: [(&str, u32); 7] = [
    ("strict", 60),
    ("hidden", 12),
    ("slow", 14),
    ("flaky", 14),
    ("robots", 10),
    ("garden", 25),
    ("library", 20),
];
/// Sites that are introduced.
const SHOWN: usize = 6;
