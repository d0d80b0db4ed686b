//! `comity demo`: starts a playground and a dashboard, fetches from the playground with a job and a run, and prints what the
//! sites counted, including requests that came too early. Needs no network and leaves nothing behind.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use comity::clock::Clock;
use comity::config::Overrides;
use comity::core::interval::SourceInterval;
use comity::core::time::Span;
use comity::store::sources::{Kind, NewSource};
use comity::store::tasks::Lead;
use comity::store::{self, Store};
use comity_server::{Insecure, Running, Service};
use serde_json::{Map, Value, json};

use super::{fetch, playground};
use crate::args::{Demo, Exec, Fetch, Format, Global, Run, ScrapeOptions};
use crate::playground::{Playground, Tally};
use crate::signals::Signals;
use crate::{exit, output, setup};

pub(crate) async fn run(global: &Global, demo: &Demo) -> anyhow::Result<u8> {
    // Listen for signals before the folder exists, so that only a kill can leave it behind.
    let mut signals = Signals::new()?;
    let folder = new_folder()?;
    if !demo.keep {
        exit::remove_on_exit(&folder);
    }
    let result = play(global, demo, &folder, &mut signals).await;
    match (demo.keep, &result) {
        (false, _) => exit::remove_temp_folder(),
        (true, Ok(_)) if !global.json => {
            let kept = folder.display();
            print(&format!("\nSaved in {kept}. Look around:"));
            print(&format!("  comity --store sqlite:{kept}/demo.db domains list"));
            print(&format!("  comity --store sqlite:{kept}/demo.db jobs show demo"));
            print(&format!("  ls {kept}/pages"));
        }
        (true, _) => output::remark(&format!("Saved in {}", folder.display())),
    }
    result
}

/// Creates a unique temporary folder.
fn new_folder() -> anyhow::Result<PathBuf> {
    let (here, stamp) = (std::env::temp_dir(), Clock::new().now().as_micros());
    let folder = here.join(format!("comity-demo-{}-{stamp}", std::process::id()));
    std::fs::create_dir(&folder)
        .map_err(|error| exit::usage(format!("TMPDIR: {}: {error}", folder.display())))?;
    Ok(folder)
}

async fn play(global: &Global, demo: &Demo, folder: &Path, signals: &mut Signals) -> anyhow::Result<u8> {
    let playground = Playground::start(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
    let config = folder.join("comity.toml");
    std::fs::write(&config, rules(&playground))?;
    let store_url = format!("sqlite:{}", folder.join("demo.db").display());
    let inner = Global {
        config: Some(config),
        store: Some(store_url),
        profile: None,
        log_level: global.log_level.clone().or_else(|| (global.verbose == 0).then(|| "error".to_owned())),
        ..global.clone()
    };
    let dashboard = dashboard(&inner).await?;
    let address = format!("http://{}/", dashboard.address());
    if global.json || global.quiet {
        output::remark(&format!("Dashboard: {address}"));
    } else {
        print(&format!("Dashboard: {address}\n"));
        introduce(&playground);
    }
    let played = fetch_and_follow(global, &inner, &playground, folder, signals).await;
    if demo.stay && matches!(played, Ok(code) if code != exit::INTERRUPTED) {
        output::remark(&format!("The dashboard stays up at {address}; press Ctrl-C to stop"));
        signals.next().await;
    }
    dashboard.stop().await?;
    played
}

/// Serves the dashboard on a free port of this machine.
async fn dashboard(inner: &Global) -> anyhow::Result<Running> {
    let given = Overrides { listen: Some("127.0.0.1:0".to_owned()), ..Overrides::default() };
    let config = setup::config(inner, given)?;
    let running = Service::start(config, Insecure::Refused).await?;
    setup::listen(running.listener());
    Ok(running)
}

/// Fetches from the playground with a job and a run, and prints what the sites counted.
async fn fetch_and_follow(
    global: &Global,
    inner: &Global,
    playground: &Playground,
    folder: &Path,
    signals: &mut Signals,
) -> anyhow::Result<u8> {
    let began = Clock::new();
    let began_at = began.now();
    let store_url = inner.store.clone().unwrap_or_default();
    let mut code = fetch::run(inner, job(playground, folder)).await?;
    if signals.stop_requested().await {
        code = exit::INTERRUPTED;
    }
    if code != exit::INTERRUPTED {
        follow(&*store::open(&store_url)?, playground).await?;
        if !global.quiet && !global.json {
            print("\nNow it follows a feed and scrapes the feed's items.");
        }
        code = super::run::run(inner, ingest(folder)).await?.max(code);
    }
    let learned = learned(&*store::open(&store_url)?).await?;
    let tally = total(playground);
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
            "sites": playground::sites(playground),
            "elapsed_ms": began.now().since(began_at).as_millis_up(),
        }));
    } else {
        print_summary(playground, tally, &learned, began.now().since(began_at));
    }
    Ok(if tally.early > 0 { exit::FAILURES.max(code) } else { code })
}

/// Prints one or more lines.
fn print(text: &str) {
    text.split('\n').for_each(output::line);
}

/// Prints what the sites are like.
fn introduce(playground: &Playground) {
    print("Test sites on loopback, each with its own behavior:\n");
    for site in playground.reports().iter().take(SHOWN) {
        print(&format!("  {:8} {}", site.name, site.about));
    }
    print("\nA job fetches from all of them at once, and from none faster than it allows.\n");
}

/// The configuration of the demo. Only the strict site is fetched faster than once per second, so that it answers 429
/// soon.
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
        max_wait: None,
        strict: false,
        request: Default::default(),
    }
}

/// Adds the playground's feed as a source.
async fn follow(store: &dyn Store, playground: &Playground) -> anyhow::Result<()> {
    let url = format!("{}/feed.xml", playground.url("harbour"));
    let source = NewSource {
        name: "News of the harbour".to_owned(),
        kind: Kind::Feed,
        url,
        lead: Lead::Listed,
        enabled: true,
        scraping: true,
        auto_scrape: true,
        interval: SourceInterval::default(),
        config: Map::new(),
    };
    store.add_source(source, Clock::of(store).await?.now()).await?;
    Ok(())
}

fn ingest(folder: &Path) -> Run {
    let options = ScrapeOptions {
        out: Some(folder.join("items")),
        format: Some(Format::Files),
        concurrency: None,
        delay: None,
    };
    Run {
        window_end: None,
        watch: false,
        source: Vec::new(),
        no_scrape: false,
        force: false,
        options,
        exec: Exec::none(),
    }
}

/// The domains with a learned delay.
async fn learned(store: &dyn Store) -> anyhow::Result<Vec<(String, Span)>> {
    let domains = store.list_domains(String::new(), String::new(), 100).await?;
    let learned = domains.into_iter().filter(|row| !row.kept.delay.is_zero());
    Ok(learned.map(|row| (row.domain, row.kept.delay)).collect())
}

fn total(playground: &Playground) -> Tally {
    playground.reports().iter().fold(Tally::default(), |sum, site| Tally {
        requests: sum.requests + site.tally.requests,
        pages: sum.pages + site.tally.pages,
        refused: sum.refused + site.tally.refused,
        early: sum.early + site.tally.early,
    })
}

fn print_summary(playground: &Playground, tally: Tally, learned: &[(String, Span)], elapsed: Span) {
    print("\nWhat the sites counted:\n");
    playground::print_counts(&playground.reports());
    print(&format!(
        "\n{} pages, {} requests answered with 429 or 503, {} requests too early, in {}.",
        tally.pages,
        tally.refused,
        tally.early,
        elapsed.prose()
    ));
    for (domain, delay) in learned {
        print(&format!("Learned from its 429s: {domain} needs {} between requests.", delay.prose()));
    }
    print("\nTry it on your own URLs: comity fetch --input urls.txt --out pages");
}

/// How many pages of each site the job fetches, chosen so that all sites take about as long.
const PAGES: [(&str, u32); 7] = [
    ("strict", 60),
    ("hidden", 12),
    ("slow", 14),
    ("flaky", 14),
    ("robots", 10),
    ("garden", 25),
    ("library", 20),
];
/// The number of sites that are introduced.
const SHOWN: usize = 6;
