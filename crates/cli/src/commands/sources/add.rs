//! `comity sources add`: what a URL is, and following it.

use std::sync::Arc;
use std::time::Duration;

use comity::client::{self, Ask, Client, Page};
use comity::clock::Clock;
use comity::config::Config;
use comity::connectors::{self, discover};
use comity::core::cadence::Cadence;
use comity::core::interval::SourceInterval;
use comity::core::time::Span;
use comity::gate::HandsOff;
use comity::shown::{self, without_user};
use comity::store::Store;
use comity::store::sources::{Kind, NewSource, Source};
use comity::store::tasks::Lead;
use serde_json::{Map, json};
use url::Url;

use super::exchange::HTML_URL;
use super::{known, remark, typed, view};
use crate::args::{Global, SourcesAdd};
use crate::{exit, output, setup};

pub(super) async fn run(global: &Global, config: &Config, add: &SourcesAdd) -> anyhow::Result<u8> {
    let wish = Wish::read(add).map_err(exit::usage)?;
    let store = setup::open_store(config)?;
    if let Some(source) = known(&store.list_sources().await?, wish.url.as_str()) {
        return already(global, config, source, add, &wish);
    }
    let seen = match add.kind {
        Some(kind) => Seen::unasked(kind, wish.url.clone()),
        None => look(config, store.clone(), &wish.url).await?,
    };
    let mut own = Map::new();
    own.extend(wish.cadence.map(|cadence| ("cadence".to_owned(), cadence.to_json())));
    // The page that named the feed is the one it belongs to.
    let page = (seen.url != wish.url && seen.kind == Kind::Feed).then(|| without_user(wish.url.as_str()));
    own.extend(page.map(|page| (HTML_URL.to_owned(), page.into())));
    let new = NewSource {
        name: wish.name.clone().or(seen.title).unwrap_or_else(|| typed::name_of(&seen.url)),
        kind: seen.kind,
        url: seen.url.to_string(),
        lead: seen.lead,
        scraping: !add.no_scrape,
        interval: wish.interval.unwrap_or_default(),
        config: own,
    };
    // A page that is added again names a feed that may be there, perhaps moved since.
    if let Some(source) = known(&store.list_sources().await?, &new.url) {
        return already(global, config, source, add, &wish);
    }
    let now = Clock::of(&*store).await?.now();
    let (source, added) = store.add_source(new, now).await?;
    if !added {
        return already(global, config, &source, add, &wish);
    }
    if global.json {
        let others: Vec<String> = seen.others.iter().map(|url| without_user(url.as_str())).collect();
        let source = view::object(&source, config.scrape.min_interval, now);
        output::object(&json!({ "added": true, "source": source, "remark": seen.remark, "others": others }));
        return Ok(exit::DONE);
    }
    let when = match view::every(&source).as_str() {
        "always" => "due in every run".to_owned(),
        every => format!("every {every}"),
    };
    let (id, name, kind, url) = (source.id, &source.name, source.kind, without_user(&source.url));
    output::line(&format!("added source {id}: {name} ({kind}, {url}), {when}"));
    if let Some(text) = seen.remark {
        output::line(&text);
    }
    for other in &seen.others {
        output::line(&format!("it also names {}", without_user(other.as_str())));
    }
    remark(global, "comity run fetches what is due");
    Ok(exit::DONE)
}

/// What was typed.
struct Wish {
    url: Url,
    name: Option<String>,
    cadence: Option<Cadence>,
    interval: Option<SourceInterval>,
}

impl Wish {
    fn read(add: &SourcesAdd) -> Result<Self, String> {
        let cadence = add.cadence.as_deref().map(|text| typed::cadence("--cadence", text));
        let interval = add.min_interval.as_deref().map(|text| typed::interval("--min-interval", text));
        Ok(Self {
            url: typed::url("URL", &add.url)?,
            name: add.name.as_deref().map(|text| typed::name("--name", text)).transpose()?,
            cadence: cadence.transpose()?,
            interval: interval.transpose()?,
        })
    }
}

/// What a look at a URL came to.
struct Seen {
    kind: Kind,
    url: Url,
    lead: Lead,
    title: Option<String>,
    /// What there is to say about it.
    remark: Option<String>,
    /// Feeds that the page names besides.
    others: Vec<Url>,
}

impl Seen {
    fn unasked(kind: Kind, url: Url) -> Self {
        Self { kind, url, lead: Lead::Listed, title: None, remark: None, others: Vec::new() }
    }
}

/// Asks a URL once, politely, and sees what it is.
async fn look(config: &Config, store: Arc<dyn Store>, url: &Url) -> anyhow::Result<Seen> {
    // Somebody waits for the answer: what fails, robots.txt included, is told at once.
    let mut config = config.clone();
    config.job.max_retries = 0;
    let transport = client::transport(&config)?;
    let gate = setup::gate(&config, store.clone(), "sources add").await?;
    let client = Client::over(&config, gate.clone(), transport, Some(store));
    let ask = Ask { body_max: Some(BODY_MAX), patience: PATIENCE, ..Ask::new(url.clone(), Lead::Listed) };
    let answered = tokio::time::timeout(TIME_MAX, client.ask(&ask)).await;
    gate.close(HandsOff::Pass).await?;
    let hint = "nothing was added; with --kind feed, page, sitemap or urls it is added without being asked";
    match answered {
        Ok(Ok(page)) if (200..300).contains(&page.status) => see(url, &page).ok_or_else(|| {
            let what = "what it answered is no feed, page, sitemap or list of URLs";
            anyhow::anyhow!("{}: {what}\n{hint}", shown::url(url))
        }),
        Ok(Ok(page)) => anyhow::bail!("{}: answered {}\n{hint}", shown::url(&page.url), page.status),
        Ok(Err(client::ClientError::Gate(error))) => Err(error.into()),
        Ok(Err(error)) => anyhow::bail!("{error}\n{hint}"),
        Err(_) => {
            let secs = TIME_MAX.as_secs();
            anyhow::bail!("{}: not its turn, or no answer, within {secs} s\n{hint}", shown::url(url))
        }
    }
}

/// What an answer is. Wherever redirects led, the URL that was typed stays.
fn see(typed: &Url, page: &Page) -> Option<Seen> {
    let content_type = page.headers.get("content-type").and_then(|value| value.to_str().ok());
    let kind = connectors::sniff(&page.body, content_type)?;
    let read = connectors::read(kind, &page.body, content_type, &page.url);
    let (title, problem) = match read {
        Ok(harvest) => (harvest.title, None),
        Err(error) => (None, Some(format!("as it is now it cannot be read: {error}"))),
    };
    let as_typed = Seen { title: title.clone(), remark: problem, ..Seen::unasked(kind, typed.clone()) };
    if kind != Kind::Page {
        return Some(as_typed);
    }
    let mut feeds = discover::feeds(&page.body, content_type, &page.url).into_iter();
    let Some(feed) = feeds.next() else {
        let remark = Some("it names no feed: the page itself is followed".to_owned());
        return Some(Seen { remark, ..as_typed });
    };
    Some(Seen {
        kind: Kind::Feed,
        lead: discover::lead(typed, &feed.url),
        title: feed.title.filter(|title| !is_generic(title)).or(title),
        remark: Some(format!("it is the feed that {} names", shown::url(typed))),
        others: feeds.map(|feed| feed.url).collect(),
        url: feed.url,
    })
}

/// Whether a title says what any feed is, and nothing of this one.
fn is_generic(title: &str) -> bool {
    let is_generic = |word: &str| {
        ["rss", "atom", "json", "xml", "feed", "rdf"].iter().any(|generic| word.eq_ignore_ascii_case(generic))
            || word.chars().all(|c| !c.is_alphabetic())
    };
    title.split_whitespace().all(is_generic)
}

/// It is there: nothing changes, whatever else was typed.
fn already(
    global: &Global,
    config: &Config,
    source: &Source,
    add: &SourcesAdd,
    wish: &Wish,
) -> anyhow::Result<u8> {
    if global.json {
        let source = view::object(source, config.scrape.min_interval, Clock::new().now());
        output::object(&json!({ "added": false, "source": source }));
    } else {
        let (id, name, url) = (source.id, &source.name, without_user(&source.url));
        output::line(&format!("source {id} is there already: {name} ({}, {url})", source.kind));
    }
    let mut flags = String::new();
    if let Some(name) = wish.name.as_ref().filter(|name| **name != source.name) {
        flags += &format!(" --name {name:?}");
    }
    if let Some(kind) = add.kind.filter(|kind| *kind != source.kind) {
        flags += &format!(" --kind {kind}");
    }
    if wish.cadence.is_some() && Ok(wish.cadence) != comity::pipeline::cadence(source) {
        flags += &format!(" --cadence {}", add.cadence.as_deref().unwrap_or_default());
    }
    if wish.interval.is_some_and(|interval| interval != source.interval) {
        flags += &format!(" --min-interval {}", add.min_interval.as_deref().unwrap_or_default());
    }
    if add.no_scrape && source.scraping {
        flags += " --scrape off";
    }
    if !flags.is_empty() {
        remark(global, &format!("nothing was changed; comity sources set {}{flags} does", source.id));
    }
    Ok(exit::DONE)
}

/// As much of an answer as is looked at.
const BODY_MAX: u64 = 16 << 20;
/// A site that is held back for longer is not waited for,
const PATIENCE: Span = Span::from_secs(30);
/// and neither is one whose turn, or whose answer, takes longer in all.
const TIME_MAX: Duration = Duration::from_secs(120);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn titles_that_say_nothing_are_not_names() {
        for title in ["RSS", "RSS 2.0", "Atom Feed", "feed", "JSON feed", ""] {
            assert!(is_generic(title), "{title}");
        }
        for title in ["RSS of the harbour", "Example", "日本"] {
            assert!(!is_generic(title), "{title}");
        }
    }
}
