//! `comity sources add`: detects what kind of source a URL is, and adds it.

use std::sync::Arc;
use std::time::Duration;

use comity::client::{self, Client, FetchRequest, Page};
use comity::clock::Clock;
use comity::config::Config;
use comity::connectors::{self, discover};
use comity::core::cadence::Cadence;
use comity::core::interval::SourceInterval;
use comity::core::time::Span;
use comity::gate::CloseMode;
use comity::pipeline::{is_generic, name_of};
use comity::redact::{self, without_user};
use comity::store::Store;
use comity::store::sources::{Kind, NewSource, Source};
use comity::store::tasks::Lead;
use serde_json::{Map, json};
use url::Url;

use super::exchange::HTML_URL;
use super::{known, parse, remark, view};
use crate::args::{Global, SourcesAdd};
use crate::{exit, output, setup};

pub(super) async fn run(global: &Global, config: &Config, add: &SourcesAdd) -> anyhow::Result<u8> {
    let parsed = ParsedArgs::read(add).map_err(exit::usage)?;
    let store = setup::open_store(config)?;
    if let Some(source) = known(&store.list_sources().await?, parsed.url.as_str()) {
        return already_added(global, config, source, add, &parsed);
    }
    let detected = match add.kind {
        Some(kind) => Detected::given(kind, parsed.url.clone()),
        None => detect(config, store.clone(), &parsed.url).await?,
    };
    let mut own = Map::new();
    own.extend(parsed.cadence.map(|cadence| ("cadence".to_owned(), cadence.to_json())));
    // The page that links to the feed is the feed's home page.
    let page = (detected.url != parsed.url && detected.kind == Kind::Feed)
        .then(|| without_user(parsed.url.as_str()));
    own.extend(page.map(|page| (HTML_URL.to_owned(), page.into())));
    let new = NewSource {
        name: parsed.name.clone().or(detected.title).unwrap_or_else(|| name_of(&detected.url)),
        kind: detected.kind,
        url: detected.url.to_string(),
        lead: detected.lead,
        enabled: true,
        scraping: true,
        auto_scrape: !add.no_scrape,
        interval: parsed.interval.unwrap_or_default(),
        config: own,
    };
    // The page may link to a feed that was added before, and perhaps has moved since.
    if let Some(source) = known(&store.list_sources().await?, &new.url) {
        return already_added(global, config, source, add, &parsed);
    }
    let now = Clock::of(&*store).await?.now();
    let (source, added) = store.add_source(new, now).await?;
    if !added {
        return already_added(global, config, &source, add, &parsed);
    }
    if global.json {
        let others: Vec<String> = detected.others.iter().map(|url| without_user(url.as_str())).collect();
        let source = view::object(&source, config.scrape.min_interval, now);
        output::object(
            &json!({ "added": true, "source": source, "remark": detected.remark, "others": others }),
        );
        return Ok(exit::DONE);
    }
    let when = match view::every(&source).as_str() {
        "always" => "due in every run".to_owned(),
        every => format!("every {every}"),
    };
    let (id, name, kind, url) = (source.id, &source.name, source.kind, without_user(&source.url));
    output::line(&format!("Added source {id}: {name} ({kind}, {url}), {when}"));
    if let Some(text) = detected.remark {
        output::line(&text);
    }
    for other in &detected.others {
        output::line(&format!("The page also links to {}", without_user(other.as_str())));
    }
    remark(global, "Fetch what is due with: comity run");
    Ok(exit::DONE)
}

/// The parsed arguments.
struct ParsedArgs {
    url: Url,
    name: Option<String>,
    cadence: Option<Cadence>,
    interval: Option<SourceInterval>,
}

impl ParsedArgs {
    fn read(add: &SourcesAdd) -> Result<Self, String> {
        let cadence = add.cadence.as_deref().map(|text| parse::cadence("--cadence", text));
        let interval = add.min_interval.as_deref().map(|text| parse::interval("--min-interval", text));
        Ok(Self {
            url: parse::url("URL", &add.url)?,
            name: add.name.as_deref().map(|text| parse::name("--name", text)).transpose()?,
            cadence: cadence.transpose()?,
            interval: interval.transpose()?,
        })
    }
}

/// What was detected at a URL.
struct Detected {
    kind: Kind,
    url: Url,
    lead: Lead,
    title: Option<String>,
    /// A remark for the user.
    remark: Option<String>,
    /// Other feeds that the page links to.
    others: Vec<Url>,
}

impl Detected {
    /// The kind that the user gave, without fetching anything.
    fn given(kind: Kind, url: Url) -> Self {
        Self { kind, url, lead: Lead::Listed, title: None, remark: None, others: Vec::new() }
    }
}

/// Fetches a URL once, politely, and detects what it is.
async fn detect(config: &Config, store: Arc<dyn Store>, url: &Url) -> anyhow::Result<Detected> {
    // The user is waiting: report failures at once, including those of robots.txt.
    let mut config = config.clone();
    config.job.max_retries = 0;
    let transport = client::transport(&config)?;
    transport.check(url).map_err(client::SetupError::from)?;
    let gate = setup::gate(&config, store.clone(), "sources add").await?;
    let client = Client::with_transport(&config, gate.clone(), transport, Some(store));
    let request = FetchRequest {
        body_max: Some(BODY_MAX),
        patience: PATIENCE,
        ..FetchRequest::new(url.clone(), Lead::Listed)
    };
    let answered = tokio::time::timeout(TIME_MAX, client.fetch(&request)).await;
    gate.close(CloseMode::HandOver).await?;
    let hint = "nothing was added; to add it without fetching it, use --kind feed, page, sitemap or urls";
    match answered {
        Ok(Ok(page)) if (200..300).contains(&page.status) => classify(url, &page).ok_or_else(|| {
            let what = "the response isn't a feed, page, sitemap or list of URLs";
            anyhow::anyhow!("{}: {what}\n{hint}", redact::url(url))
        }),
        Ok(Ok(page)) => anyhow::bail!("{}: answered {}\n{hint}", redact::url(&page.url), page.status),
        Ok(Err(client::ClientError::Gate(error))) => Err(error.into()),
        Ok(Err(error)) => anyhow::bail!("{error}\n{hint}"),
        Err(_) => {
            let limit = Span::from(TIME_MAX).prose();
            anyhow::bail!(
                "{}: no response within {limit}, including the wait for the site\n{hint}",
                redact::url(url)
            )
        }
    }
}

/// Detects what a response is. Wherever redirects led, the source keeps the URL that was given.
fn classify(given: &Url, page: &Page) -> Option<Detected> {
    let content_type = page.headers.get("content-type").and_then(|value| value.to_str().ok());
    let kind = connectors::sniff(&page.body, content_type)?;
    let read = connectors::read(kind, &page.body, content_type, &page.url);
    let (title, problem) = match read {
        Ok(harvest) => (harvest.title, None),
        Err(error) => (None, Some(format!("Warning: it can't be read at the moment: {error}"))),
    };
    let as_given = Detected { title: title.clone(), remark: problem, ..Detected::given(kind, given.clone()) };
    if kind != Kind::Page {
        return Some(as_given);
    }
    let mut feeds = discover::feeds(&page.body, content_type, &page.url).into_iter();
    let Some(feed) = feeds.next() else {
        let remark = Some("The page links to no feed, so the page itself is followed".to_owned());
        return Some(Detected { remark, ..as_given });
    };
    Some(Detected {
        kind: Kind::Feed,
        lead: discover::lead(given, &feed.url),
        title: feed.title.filter(|title| !is_generic(title)).or(title),
        remark: Some(format!("Found the feed via {}", redact::url(given))),
        others: feeds.map(|feed| feed.url).collect(),
        url: feed.url,
    })
}

/// The source exists: prints it, and how to make the changes that other flags asked for.
fn already_added(
    global: &Global,
    config: &Config,
    source: &Source,
    add: &SourcesAdd,
    parsed: &ParsedArgs,
) -> anyhow::Result<u8> {
    if global.json {
        let source = view::object(source, config.scrape.min_interval, Clock::new().now());
        output::object(&json!({ "added": false, "source": source }));
    } else {
        let (id, name, url) = (source.id, &source.name, without_user(&source.url));
        output::line(&format!("Source {id} already exists: {name} ({}, {url})", source.kind));
    }
    let mut flags = String::new();
    if let Some(name) = parsed.name.as_ref().filter(|name| **name != source.name) {
        flags += &format!(" --name {name:?}");
    }
    if let Some(kind) = add.kind.filter(|kind| *kind != source.kind) {
        flags += &format!(" --kind {kind}");
    }
    if parsed.cadence.is_some() && Ok(parsed.cadence) != comity::pipeline::cadence(source) {
        flags += &format!(" --cadence {}", add.cadence.as_deref().unwrap_or_default());
    }
    if parsed.interval.is_some_and(|interval| interval != source.interval) {
        flags += &format!(" --min-interval {}", add.min_interval.as_deref().unwrap_or_default());
    }
    if add.no_scrape && source.scraping && source.auto_scrape {
        flags += " --auto-scrape off";
    }
    if !flags.is_empty() {
        remark(
            global,
            &format!("Nothing was changed; to change it: comity sources set {}{flags}", source.id),
        );
    }
    Ok(exit::DONE)
}

/// How much of a response is read, in bytes.
const BODY_MAX: u64 = 16 << 20;
/// How long to wait for a site that is on hold.
const PATIENCE: Span = Span::from_secs(30);
/// How long to wait for the site and its response in total.
const TIME_MAX: Duration = Duration::from_secs(120);
