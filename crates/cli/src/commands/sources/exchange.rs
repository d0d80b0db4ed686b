//! `comity sources import` and `comity sources export`.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use comity::archive::AtomicFile;
use comity::clock::Clock;
use comity::config::Config;
use comity::core::cadence::Cadence;
use comity::core::interval::SourceInterval;
use comity::exchange::{self, BYTES_MAX, ExportedSource, Format, ListedSource, Problem, Switches};
use comity::pipeline::name_of;
use comity::redact::without_user;
use comity::store::Store;
use comity::store::sources::{Kind, NewSource, Source};
use serde_json::{Map, Value, json};
use url::Url;

use super::{parse, remark, view};
use crate::args::{Global, ListFormat, SourcesImport};
use crate::{exit, output, setup};

pub(super) async fn import(global: &Global, config: &Config, import: &SourcesImport) -> anyhow::Result<u8> {
    let cadence = import.cadence.as_deref().map(|text| parse::cadence("--cadence", text));
    let cadence = cadence.transpose().map_err(exit::usage)?;
    let place = import.file.display();
    let unreadable = |error: &dyn std::fmt::Display| exit::usage(format!("{place}: {error}"));
    let bytes = read(&import.file).map_err(|error| unreadable(&error))?;
    let form = import.format.map(|format| match format {
        ListFormat::Opml => Format::Opml,
        ListFormat::Csv => Format::Csv,
        ListFormat::List => Format::List,
    });
    let list = exchange::read(&bytes, form).map_err(|error| unreadable(&error))?;
    let store = setup::open_store(config)?;
    let mut problems = list.problems;
    let mut tally = Tally { repeated: list.repeated, ..Tally::default() };
    let mut known: HashSet<String> = HashSet::new();
    for source in store.list_sources().await? {
        known.extend([source.url, source.listed_url]);
    }
    let clock = Clock::of(&*store).await?;
    for entry in &list.entries {
        let new = match source_of(entry, import.kind, cadence) {
            Ok(new) => new,
            Err(what) => {
                problems.push(Problem { line: entry.line, what });
                continue;
            }
        };
        let kind = new.kind;
        if known.contains(&new.url) {
            tally.already += 1;
        } else if import.dry_run {
            tally.add(kind);
            tally.print_planned(global, &new);
        } else {
            match store.add_source(new, clock.now()).await? {
                (_, true) => tally.add(kind),
                (_, false) => tally.already += 1,
            }
        }
    }
    problems.sort_by_key(|problem| problem.line);
    print_problems(&problems);
    if tally.added + tally.already == 0 {
        let what = if problems.is_empty() { "no sources found" } else { "no valid sources found" };
        return Err(unreadable(&what));
    }
    tally.finish(global, import.dry_run, &problems);
    Ok(if problems.is_empty() { exit::DONE } else { exit::FAILURES })
}

/// The bytes of a file or of stdin, up to one more than a list may have.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let input: Box<dyn Read> =
        if path.as_os_str() == "-" { Box::new(io::stdin()) } else { Box::new(File::open(path)?) };
    let mut bytes = Vec::new();
    input.take(BYTES_MAX as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The source that an entry describes, or what is wrong with it.
fn source_of(
    entry: &ListedSource,
    kind: Option<Kind>,
    cadence: Option<Cadence>,
) -> Result<NewSource, String> {
    let own = entry.cadence.as_deref().map(|text| parse::cadence("cadence", text)).transpose()?;
    let interval = entry.min_interval.as_deref().map(|text| parse::interval("min_interval", text));
    let mut config = Map::new();
    let settings = [
        (CADENCE, own.or(cadence).map(Cadence::to_json)),
        (
            FOLDER,
            (!entry.folder.is_empty())
                .then(|| json!(entry.folder.iter().map(|name| &**name).collect::<Vec<_>>())),
        ),
        (HTML_URL, entry.html_url.clone().map(Value::from)),
    ];
    config.extend(settings.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))));
    let name = entry.name.clone().or_else(|| Url::parse(&entry.url).ok().map(|url| name_of(&url)));
    Ok(NewSource {
        name: name.unwrap_or_default(),
        kind: entry.kind.or(kind).unwrap_or(Kind::Feed),
        url: entry.url.clone(),
        lead: entry.lead,
        enabled: entry.switches.enabled,
        scraping: entry.switches.scraping,
        auto_scrape: entry.switches.auto_scrape,
        interval: interval.transpose()?.unwrap_or_default(),
        config,
    })
}

fn print_problems(problems: &[Problem]) {
    for problem in problems.iter().take(PROBLEMS_SHOWN) {
        output::warning(&problem.to_string());
    }
    if problems.len() > PROBLEMS_SHOWN {
        output::warning(&format!("and {} more problems", problems.len() - PROBLEMS_SHOWN));
    }
}

/// The result of an import.
#[derive(Default)]
struct Tally {
    added: u64,
    /// How many of them are of each kind.
    kinds: BTreeMap<&'static str, u64>,
    already: u64,
    repeated: u64,
}

impl Tally {
    fn add(&mut self, kind: Kind) {
        self.added += 1;
        *self.kinds.entry(plural(kind)).or_default() += 1;
    }

    /// ` as feeds`, or ` (feeds: 2, pages: 1)` if there are several kinds.
    fn as_kinds(&self) -> String {
        let kinds: Vec<String> = self.kinds.iter().map(|(kind, count)| format!("{kind}: {count}")).collect();
        match (kinds.as_slice(), self.kinds.keys().next()) {
            ([_], Some(kind)) => format!(" as {kind}"),
            ([], _) => String::new(),
            (kinds, _) => format!(" ({})", kinds.join(", ")),
        }
    }

    fn print_planned(&self, global: &Global, new: &NewSource) {
        if !global.json {
            output::line(&format!("Would add {} ({}, {})", new.name, new.kind, without_user(&new.url)));
        }
    }

    fn finish(&self, global: &Global, dry_run: bool, problems: &[Problem]) {
        let Self { added, already, repeated, .. } = self;
        if global.json {
            let problems: Vec<Value> = problems
                .iter()
                .map(|problem| json!({ "line": problem.line, "what": problem.what }))
                .collect();
            output::object(&json!({
                "added": added,
                "already": already,
                "repeated": repeated,
                "problems": problems,
                "dry_run": dry_run,
            }));
            return;
        }
        let verb = if dry_run { "would be added" } else { "added" };
        let mut parts = vec![format!("{added} {verb}{}", self.as_kinds())];
        let problems = problems.len() as u64;
        let what = if problems == 1 { "problem" } else { "problems" };
        let also = [(*already, "already added"), (*repeated, "listed twice"), (problems, what)];
        parts.extend(
            also.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")),
        );
        output::line(&parts.join(", "));
        if dry_run {
            output::line("Dry run: nothing was changed");
        }
    }
}

fn plural(kind: Kind) -> &'static str {
    match kind {
        Kind::Feed => "feeds",
        Kind::Page => "pages",
        Kind::Sitemap => "sitemaps",
        Kind::Urls => "URL lists",
    }
}

pub(super) async fn export(global: &Global, store: &dyn Store, out: Option<&Path>) -> anyhow::Result<u8> {
    if global.json && out.is_none() {
        return Err(exit::usage("--json requires --out FILE here, because OPML goes to stdout without it"));
    }
    let sources = store.list_sources().await?;
    let mut stripped = 0_u64;
    let listed: Vec<ExportedSource> = sources
        .iter()
        .map(|source| {
            let url = without_user(&source.url);
            stripped += u64::from(url != source.url);
            ExportedSource { url, ..listed(source) }
        })
        .collect();
    let mut text = Vec::new();
    exchange::write_opml(&listed, "Comity sources", &mut text)?;
    match out {
        None => output::xml(&String::from_utf8_lossy(&text)),
        Some(path) => {
            let wrong = |error| exit::usage(format!("--out = {path:?}: {error}"));
            let file = AtomicFile::create(path).map_err(wrong)?;
            fill(file, &text).with_context(|| format!("--out = {path:?}"))?;
        }
    }
    if stripped > 0 {
        let what = if stripped == 1 { "1 URL" } else { &format!("{stripped} URLs") };
        output::warning(&format!("Left out the user and password of {what}; set them again after an import"));
    }
    match out {
        Some(path) if global.json => {
            output::object(&json!({ "exported": listed.len(), "file": path.display().to_string() }));
        }
        Some(path) => remark(global, &format!("Wrote {} sources to {}", listed.len(), path.display())),
        None => {}
    }
    Ok(exit::DONE)
}

/// A source as an entry of a list, with everything that an import reads back.
fn listed(source: &Source) -> ExportedSource {
    let config: Map<String, Value> = serde_json::from_str(&source.config_json).unwrap_or_default();
    let folder = config.get(FOLDER).and_then(Value::as_array).into_iter().flatten();
    // An invalid cadence is reported when the source is fetched; the export can do without it.
    let cadence = Cadence::of_config(&config).ok().flatten();
    ExportedSource {
        url: source.url.clone(),
        name: Some(source.name.clone()),
        kind: Some(source.kind),
        lead: source.lead,
        html_url: config.get(HTML_URL).and_then(Value::as_str).map(without_user),
        folder: folder.filter_map(Value::as_str).map(Arc::from).collect(),
        cadence: cadence.map(|cadence| view::exact(cadence.every())),
        min_interval: match source.interval {
            SourceInterval::Default => None,
            SourceInterval::Off => Some("0".to_owned()),
            SourceInterval::Every(span) => Some(span.as_secs_f64().to_string()),
        },
        switches: Switches {
            enabled: source.enabled,
            scraping: source.scraping,
            auto_scrape: source.auto_scrape,
        },
    }
}

/// Writes a file atomically: all of it or none.
fn fill(mut file: AtomicFile, bytes: &[u8]) -> io::Result<()> {
    file.write_all(bytes)?;
    file.finish_synced()
}

/// The key of the cadence in a source's configuration.
const CADENCE: &str = "cadence";
/// The key of the OPML folders in a source's configuration.
const FOLDER: &str = "folder";
/// The key of a feed's home page in its source's configuration.
pub(super) const HTML_URL: &str = "html_url";
/// Maximum number of problems to print.
const PROBLEMS_SHOWN: usize = 20;
