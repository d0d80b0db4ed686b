//! The URLs of a run: where they come from, and what is checked before anything is sent.
//!
//! A file is checked before the job is created: it must contain a URL, and with `--strict` no invalid line. A stream such
//! as stdin can't be read twice; for a new job, it is read ahead up to its first URL.

use std::fs::File;
use std::io::{self, Cursor, Read, Seek};
use std::path::Path;

use comity::core::domain::Domain;
use comity::jobs::{BadLine, Flow, ListCheck, OnBadLine, check_list, decoded};
use comity::redact;
use comity::store::jobs::Job;
use serde_json::Value;
use url::Url;

use crate::args::Fetch;
use crate::{exit, output};

/// Where the job's URLs come from.
pub(super) struct Input {
    pub(super) lists: Vec<Lines>,
    pub(super) sitemaps: Vec<Url>,
}

type Lines = Box<dyn Read + Send>;

/// The file or stream that `--input` names, if any.
pub(super) enum Listed {
    Nothing,
    /// A file that was checked.
    File(Lines),
    Stream(Lines),
}

/// How much of a list is read to check it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Extent {
    FirstUrl,
    /// Up to the first URL or invalid line.
    FirstEntry,
    All,
}

/// What was found in a list.
struct Found {
    counts: ListCheck,
    /// The first invalid lines.
    bad: Vec<BadLine>,
}

impl Listed {
    /// Opens what `--input` names, and checks it if it is a file.
    pub(super) async fn open(fetch: &Fetch) -> anyhow::Result<Self> {
        let Some(path) = &fetch.input else { return Ok(Self::Nothing) };
        if path.as_os_str() == "-" {
            return Ok(Self::Stream(decoded(Box::new(io::stdin()))));
        }
        let name = name(path);
        let wrong = |why: &dyn std::fmt::Display| exit::usage(format!("{name}: {why}"));
        if path.is_dir() {
            return Err(wrong(&"expected a file with one URL per line, not a folder"));
        }
        let mut file = File::open(path).map_err(|error| wrong(&error))?;
        if !file.metadata().is_ok_and(|file| file.is_file()) {
            return Ok(Self::Stream(decoded(Box::new(file))));
        }
        let extent = if fetch.strict { Extent::All } else { Extent::FirstUrl };
        let checking = tokio::task::spawn_blocking(move || {
            let found = check(decoded(Box::new(file.try_clone()?)), extent)?;
            file.rewind().map(|()| (found, decoded(Box::new(file))))
        });
        let (found, list) = checking.await?.map_err(|error| wrong(&error))?;
        found.refuse(fetch, &name)?;
        Ok(Self::File(list))
    }

    /// What the run reads: the URLs from the command line, then the list, then the sitemaps.
    pub(super) async fn with_rest(self, fetch: &Fetch, known: Option<&Job>) -> anyhow::Result<Input> {
        let sitemaps = sitemaps(fetch, known)?;
        let list: Option<Lines> = match (self, &fetch.input) {
            (Self::File(list), _) => Some(list),
            // There is something else to do while the stream is read.
            (Self::Stream(stream), _) if known.is_some() || has_more(fetch) => Some(stream),
            (Self::Stream(stream), Some(path)) => Some(read_ahead(fetch, &name(path), stream).await?),
            _ => None,
        };
        let urls = (!fetch.urls.is_empty()).then(|| Cursor::new(fetch.urls.join("\n") + "\n"));
        let urls = urls.map(|urls| Box::new(urls) as Lines);
        Ok(Input { lists: urls.into_iter().chain(list).collect(), sitemaps })
    }
}

impl Found {
    /// Refuses a list that has no URL, or with `--strict` an invalid line.
    fn refuse(&self, fetch: &Fetch, name: &str) -> anyhow::Result<()> {
        let ListCheck { urls, bad } = self.counts;
        let lines = if bad == 1 { "invalid line" } else { "invalid lines" };
        let why = match (urls, bad) {
            (_, 1..) if fetch.strict => format!("{bad} {lines}, so nothing was fetched (--strict)"),
            (1.., _) => return Ok(()),
            (0, _) if has_more(fetch) => {
                if bad == 0 {
                    output::warning(&format!("{name} has no URLs"));
                }
                return Ok(());
            }
            (0, 0) => "there are no URLs in it; expected one URL per line".to_owned(),
            (0, _) => format!("there are no URLs in it, only {bad} {lines}; expected one URL per line"),
        };
        let mut print = printer();
        self.bad.iter().for_each(&mut print);
        if bad > self.bad.len() as u64 {
            output::warning(MORE);
        }
        Err(exit::usage(format!("{name}: {why}")))
    }
}

/// Whether there are URLs besides those of `--input`.
fn has_more(fetch: &Fetch) -> bool {
    !fetch.urls.is_empty() || !fetch.sitemap.is_empty()
}

/// The name of a list in messages.
pub(super) fn name(path: &Path) -> String {
    match path.as_os_str() == "-" {
        true => "standard input".to_owned(),
        false => format!("--input {}", path.display()),
    }
}

/// Reads a stream up to its first URL, so that no job is created for a stream without one. Returns the whole stream.
async fn read_ahead(fetch: &Fetch, name: &str, stream: Lines) -> anyhow::Result<Lines> {
    let extent = if fetch.strict { Extent::FirstEntry } else { Extent::FirstUrl };
    let reading = tokio::task::spawn_blocking(move || {
        let mut copying = Copying { stream, read: Vec::new() };
        check(&mut copying, extent).map(|found| (found, copying))
    });
    let (found, copying) = reading.await?.map_err(|error| exit::usage(format!("{name}: {error}")))?;
    found.refuse(fetch, name)?;
    Ok(Box::new(Cursor::new(copying.read).chain(copying.stream)))
}

/// Keeps what was read from a stream.
struct Copying {
    stream: Lines,
    read: Vec<u8>,
}

impl Read for Copying {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.read.len() > AHEAD_MAX {
            return Err(io::Error::other(format!("there is no URL in its first {} MiB", AHEAD_MAX >> 20)));
        }
        let count = self.stream.read(buffer)?;
        self.read.extend_from_slice(&buffer[..count]);
        Ok(count)
    }
}

fn check(lines: impl Read, extent: Extent) -> io::Result<Found> {
    let mut bad = Vec::new();
    let counts = check_list(lines, |entry| {
        bad.extend(entry.filter(|_| bad.len() < BAD_SHOWN).cloned());
        match (entry, extent) {
            (_, Extent::All) | (Some(_), Extent::FirstUrl) => Flow::Continue,
            (_, Extent::FirstEntry) | (None, Extent::FirstUrl) => Flow::Stop,
        }
    })?;
    Ok(Found { counts, bad })
}

/// Reports invalid lines while a list is read. With `--strict`, the first one ends the reading.
pub(super) fn on_bad(fetch: &Fetch) -> OnBadLine {
    let (strict, mut print) = (fetch.strict, printer());
    Box::new(move |bad| {
        print(bad);
        if strict { Flow::Stop } else { Flow::Continue }
    })
}

/// Prints invalid lines, up to a limit.
fn printer() -> impl FnMut(&BadLine) {
    let mut count = 0;
    move |bad: &BadLine| {
        count += 1;
        if count <= BAD_SHOWN {
            output::warning(&bad.to_string());
        } else if count == BAD_SHOWN + 1 {
            output::warning(MORE);
        }
    }
}

/// The sitemaps from the command line, or those of a job that did not finish reading them.
fn sitemaps(fetch: &Fetch, known: Option<&Job>) -> anyhow::Result<Vec<Url>> {
    let saved = known.filter(|job| job.unread && fetch.sitemap.is_empty());
    let saved = saved.and_then(|job| job.options["sitemaps"].as_array()).into_iter().flatten();
    let saved = saved.filter_map(Value::as_str).map(str::to_owned);
    let wrong = |text: &str| {
        exit::usage(format!(
            "--sitemap = {:?}: expected an http or https URL with a host",
            redact::text(text)
        ))
    };
    fetch
        .sitemap
        .iter()
        .cloned()
        .chain(saved)
        .map(|text| match Url::parse(&text) {
            Ok(url) if Domain::of(&url).is_some() => Ok(url),
            _ => Err(wrong(&text)),
        })
        .collect()
}

/// How much of a stream is kept in memory while its first URL is looked for.
const AHEAD_MAX: usize = 16 << 20;
/// Maximum number of invalid lines to print.
const BAD_SHOWN: usize = 20;
const MORE: &str = "More lines are invalid; from here on they are only counted";
