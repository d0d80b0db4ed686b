//! Reads URL lists of any length into a job, line by line and in batches. What is a table instead is in `table`.

mod table;

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use comity_core::domain::Domain;
use comity_core::rule::RuleTable;
use comity_core::task::JobId;
use comity_store::jobs::FillStep;
use comity_store::tasks::{Enqueued, NewTask};
use comity_store::{Store, StoreError};
use tokio::sync::mpsc;
use url::Url;

use super::Pool;
use super::meant::meant_url;
use super::sitemaps::{OnProblem, Walk};
use crate::gate::Gate;
use crate::redact;

/// Adds URLs to a job.
pub(super) struct Fill {
    gate: Gate,
    store: Arc<dyn Store>,
    job: JobId,
}

/// Where the URLs of a job come from; read in this order.
pub struct UrlLists {
    /// Lists with one URL per line.
    pub lists: Vec<Box<dyn Read + Send>>,
    /// Decides what to do about a line that isn't a URL.
    pub on_bad: OnBadLine,
    /// Sitemaps, or the roots of sites whose robots.txt lists sitemaps.
    pub sitemaps: Vec<Url>,
    /// Called for sitemaps that can't be read.
    pub on_problem: OnProblem,
}

/// The result of reading URL lists.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filled {
    /// URLs added.
    pub new: u64,
    /// URLs that the job already had.
    pub known: u64,
    /// URLs refused because the job has ended.
    pub refused: u64,
    /// Lines that aren't URLs.
    pub bad: u64,
    /// Sitemaps that could not be read.
    pub bad_sitemaps: u64,
    /// Why the first of them could not be read.
    pub sitemap_error: Option<String>,
    /// Whether the sitemaps have to be read again: one of them may be readable later, or none could be read.
    pub sitemaps_unread: bool,
    /// Whether one of them may be readable later.
    pub sitemaps_may_come: bool,
    /// Whether reading stopped early.
    pub stopped: bool,
    /// Why the list could not be read to its end.
    pub error: Option<String>,
}

/// A line that isn't a URL.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: \"{}\" {why}", redact::escaped(text))]
pub struct BadLine {
    /// The line number, starting at 1.
    pub line: u64,
    /// The line, shortened and without secrets; of control characters, only white space is left.
    pub text: String,
    /// What is wrong with it, such as `is not an http or https URL with a host`.
    pub why: String,
}

/// Decides what to do about a line that isn't a URL.
pub type OnBadLine = Box<dyn FnMut(&BadLine) -> Flow + Send>;

/// Whether to continue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// Continue with the next one.
    Continue,
    /// Stop here.
    Stop,
}

impl Pool {
    /// Reads `lines` into the job. Its URLs are fetched while the rest is still being read. Skips blank lines and lines
    /// that start with `#`. Dropping the future stops reading; what was read by then stays in the job.
    pub async fn fill(&self, lines: Box<dyn Read + Send>, on_bad: OnBadLine) -> Result<Filled, StoreError> {
        let lists =
            UrlLists { lists: vec![lines], on_bad, sitemaps: Vec::new(), on_problem: Box::new(|_| {}) };
        self.fill_from(lists).await
    }

    /// Reads several lists into the job.
    pub async fn fill_from(&self, lists: UrlLists) -> Result<Filled, StoreError> {
        self.set_filling(true);
        let (pool, reading) = (self.clone(), Reading(self));
        // In a task of its own, so that the store always learns that the reading ended. If the caller stops waiting,
        // `filling` becomes false and the task stops after the next batch.
        let read = self.0.runtime.spawn(async move { pool.read(lists).await });
        let filled = read.await.unwrap_or(Err(StoreError::Closed));
        if let Err(error) = &filled {
            self.0.gate.fail(error.clone());
        }
        drop(reading);
        filled
    }

    async fn read(&self, lists: UrlLists) -> Result<Filled, StoreError> {
        let UrlLists { lists, on_bad, sitemaps, on_problem } = lists;
        let inner = &self.0;
        let holder = inner.gate.holder().ok_or(StoreError::Closed)?;
        inner.store.note_fill(inner.job.id, holder, FillStep::Started, inner.now()).await?;
        inner.store.set_message(inner.job.id, None).await?;
        let fill = Fill { gate: inner.gate.clone(), store: inner.store.clone(), job: inner.job.id };
        let mut filled = fill.read(lists, on_bad, || self.added()).await?;
        if !sitemaps.is_empty() && !filled.stopped && filled.refused == 0 {
            let walked = Walk::new(inner, &fill, on_problem).run(sitemaps, || self.added()).await?;
            filled.add(walked);
        }
        let filling = if filled.is_whole() { FillStep::Finished } else { FillStep::Interrupted };
        inner.store.note_fill(inner.job.id, holder, filling, inner.now()).await?;
        if filled.sitemaps_unread {
            // The job stays open until somebody does something about it.
            inner.store.set_message(inner.job.id, filled.sitemap_error.clone()).await?;
        }
        Ok(filled)
    }

    /// Called after each batch. Returns whether to continue reading.
    fn added(&self) -> Flow {
        self.poke();
        match self.0.filling.load(Ordering::Relaxed) {
            true => Flow::Continue,
            false => Flow::Stop,
        }
    }
}

/// Marks the pool as being filled for as long as it exists.
struct Reading<'a>(&'a Pool);

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.0.set_filling(false);
    }
}

impl Filled {
    /// Whether everything was read to its end.
    fn is_whole(&self) -> bool {
        self.error.is_none() && !self.stopped && !self.sitemaps_unread && self.refused == 0
    }

    fn add(&mut self, other: Self) {
        self.new += other.new;
        self.known += other.known;
        self.refused += other.refused;
        self.bad += other.bad;
        self.bad_sitemaps += other.bad_sitemaps;
        self.sitemap_error = self.sitemap_error.take().or(other.sitemap_error);
        self.sitemaps_unread |= other.sitemaps_unread;
        self.sitemaps_may_come |= other.sitemaps_may_come;
        self.stopped |= other.stopped;
        self.error = self.error.take().or(other.error);
    }
}

impl Fill {
    pub(super) async fn enqueue(&self, tasks: Vec<NewTask>) -> Result<Enqueued, StoreError> {
        self.store.enqueue(self.job, tasks, self.gate.clock().now()).await
    }

    async fn read(
        &self,
        lists: Vec<Box<dyn Read + Send>>,
        on_bad: OnBadLine,
        added: impl Fn() -> Flow,
    ) -> Result<Filled, StoreError> {
        let (sender, mut receiver) = mpsc::channel(2);
        let rules = self.gate.rules().clone();
        let reader = tokio::task::spawn_blocking(move || {
            let domain_of = |url: &Url| Domain::of(url).map(|host| rules.domain(&host));
            read_lists(lists, on_bad, domain_of, &sender)
        });
        let mut filled = Filled::default();
        while let Some(batch) = receiver.recv().await {
            let enqueued = self.enqueue(batch).await?;
            filled.new += enqueued.new;
            filled.known += enqueued.known;
            filled.refused += enqueued.refused;
            let flow = added();
            if enqueued.refused > 0 {
                break;
            }
            if flow == Flow::Stop {
                filled.stopped = true;
                break;
            }
        }
        drop(receiver);
        let read = reader.await.unwrap_or_else(|_| Filled {
            error: Some("the reader thread panicked".to_owned()),
            ..Filled::default()
        });
        let stopped = filled.stopped || read.stopped;
        Ok(Filled { bad: read.bad, stopped, error: read.error, ..filled })
    }
}

/// Reads lists until their end, until asked to stop, or until an error.
fn read_lists(
    lists: Vec<Box<dyn Read + Send>>,
    mut on_bad: OnBadLine,
    domain_of: impl Fn(&Url) -> Option<Domain>,
    sender: &mpsc::Sender<Vec<NewTask>>,
) -> Filled {
    let mut filled = Filled::default();
    for list in lists {
        let read = read_lines(list, &mut on_bad, &domain_of, sender);
        filled.add(read);
        if filled.stopped || filled.error.is_some() || sender.is_closed() {
            break;
        }
    }
    filled
}

fn read_lines(
    list: Box<dyn Read + Send>,
    on_bad: &mut OnBadLine,
    domain_of: impl Fn(&Url) -> Option<Domain>,
    sender: &mpsc::Sender<Vec<NewTask>>,
) -> Filled {
    let mut lines = Lines::new(list);
    let (mut batch, mut line) = (Vec::new(), Vec::new());
    let mut filled = Filled::default();
    loop {
        // Send what was read so far before blocking for more input.
        if (batch.len() >= BATCH || lines.is_drained()) && !batch.is_empty() {
            let full = std::mem::take(&mut batch);
            if sender.blocking_send(full).is_err() {
                return filled;
            }
        }
        line.clear();
        match lines.next(&mut line) {
            Ok(false) => break,
            Ok(true) => {}
            Err(cause) => {
                filled.error = Some(cause.to_string());
                break;
            }
        }
        match lines.entry(&line, &domain_of) {
            None => {}
            Some(Ok(task)) => batch.push(task),
            Some(Err(bad)) => {
                filled.bad += 1;
                if on_bad(&bad) == Flow::Stop {
                    filled.stopped = true;
                    break;
                }
            }
        }
    }
    if !batch.is_empty() {
        let _ = sender.blocking_send(batch);
    }
    filled
}

/// What a list contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ListCheck {
    /// URLs.
    pub urls: u64,
    /// Lines that aren't URLs.
    pub bad: u64,
}

/// Reads a list without adding it to a job. Calls `on_entry` for each URL, with `None`, and for each line that isn't one,
/// until the end of the list or until it is told to stop.
pub fn check_list(
    lines: impl Read,
    mut on_entry: impl FnMut(Option<&BadLine>) -> Flow,
) -> io::Result<ListCheck> {
    let (mut lines, mut line) = (Lines::new(lines), Vec::new());
    let mut found = ListCheck::default();
    while lines.next(&mut line)? {
        let flow = match lines.entry(&line, Domain::of) {
            None => Flow::Continue,
            Some(Ok(_)) => {
                found.urls += 1;
                on_entry(None)
            }
            Some(Err(bad)) => {
                found.bad += 1;
                on_entry(Some(&bad))
            }
        };
        if flow == Flow::Stop {
            break;
        }
        line.clear();
    }
    Ok(found)
}

/// The lines of a list; knows when reading more would block.
struct Lines<R> {
    source: R,
    buffer: Vec<u8>,
    from: usize,
    to: usize,
    /// The number of lines read.
    number: u64,
    /// The separator of its columns, if the list is a table.
    separator: Option<char>,
}

impl<R: Read> Lines<R> {
    fn new(source: R) -> Self {
        Self { source, buffer: vec![0; READ], from: 0, to: 0, number: 0, separator: None }
    }

    fn is_drained(&self) -> bool {
        self.from == self.to
    }

    /// Reads until there is a line, and examines everything that was read by then.
    fn examine(&mut self) -> io::Result<()> {
        while self.to < self.buffer.len() {
            let count = self.source.read(&mut self.buffer[self.to..])?;
            let read = &self.buffer[self.to..self.to + count];
            let is_enough = count == 0 || memchr::memchr(b'\n', read).is_some();
            self.to += count;
            if is_enough {
                break;
            }
        }
        self.separator = table::separator(&self.buffer[..self.to]);
        Ok(())
    }

    /// Reads one line; keeps only the beginning of lines that are longer than any URL. False at the end.
    fn next(&mut self, line: &mut Vec<u8>) -> io::Result<bool> {
        if self.number == 0 {
            self.examine()?;
        }
        self.number += 1;
        let mut read = false;
        loop {
            if self.is_drained() {
                (self.from, self.to) = (0, self.source.read(&mut self.buffer)?);
                if self.to == 0 {
                    return Ok(read);
                }
            }
            let rest = &self.buffer[self.from..self.to];
            let (used, ended) = match memchr::memchr(b'\n', rest) {
                Some(at) => (at + 1, true),
                None => (rest.len(), false),
            };
            let room = URL_MAX.saturating_sub(line.len());
            line.extend_from_slice(&rest[..used.min(room)]);
            self.from += used;
            read = true;
            if ended {
                return Ok(true);
            }
        }
    }

    /// What the line that was just read contains: a URL, something else, or nothing.
    fn entry(
        &self,
        line: &[u8],
        domain_of: impl Fn(&Url) -> Option<Domain>,
    ) -> Option<Result<NewTask, BadLine>> {
        let text = String::from_utf8_lossy(line);
        let text = table::entry(&text)?;
        let task = match (std::str::from_utf8(line), self.separator) {
            (Err(_), _) => Err("is not valid UTF-8".to_owned()),
            (_, Some(separator)) if table::is_row(text, separator) => Err(table::why_not(separator)),
            _ if has_more_than_a_url(text) => Err(MORE_THAN_A_URL.to_owned()),
            _ => parse(text, domain_of),
        };
        Some(task.map_err(|why| BadLine { line: self.number, text: redact::words(text), why }))
    }
}

/// Whether a complete URL is followed by white space and more, as in a table. Parsing would make it a part of the URL.
fn has_more_than_a_url(text: &str) -> bool {
    let first = text.split_once(char::is_whitespace).and_then(|(first, _)| Url::parse(first).ok());
    first.is_some_and(|first| Domain::of(&first).is_some())
}

/// The task for a URL from an operator's list; `None` if it isn't a valid URL.
pub fn read_url(text: &str, rules: &RuleTable) -> Option<NewTask> {
    parse(text, |url| Domain::of(url).map(|host| rules.domain(&host))).ok()
}

/// The task for a URL, or what is wrong with it.
fn parse(text: &str, domain_of: impl Fn(&Url) -> Option<Domain>) -> Result<NewTask, String> {
    if text.len() >= URL_MAX {
        return Err(format!("is too long for a URL; the maximum is {} bytes", URL_MAX - 1));
    }
    // Parsing drops these, so that a table of URLs and titles would become other URLs.
    if text.contains(['\t', '\r', '\n']) {
        return Err("contains a tab or a line break; expected one URL per line and nothing else".to_owned());
    }
    let no_url = || {
        let meant = || meant_url(text).map(|url| format!("; did you mean {url} ?"));
        let column = table::column_of_urls(text).map(|column| format!(" ({column})"));
        format!("is not an http or https URL with a host{}", column.or_else(meant).unwrap_or_default())
    };
    let mut url = Url::parse(text).map_err(|error| match error {
        url::ParseError::RelativeUrlWithoutBase => no_url(),
        error => format!("is not a valid URL: {error}"),
    })?;
    url.set_fragment(None);
    let domain = domain_of(&url).ok_or_else(no_url)?;
    Ok(NewTask::listed(url.into(), domain))
}

const MORE_THAN_A_URL: &str = "has text after the URL; expected one URL per line (a space in a URL is %20; to take the URLs out of a table: \
     cut -f1, or cut -d, -f1 for CSV)";
/// The maximum number of tasks added to the store at once.
const BATCH: usize = 20_000;
/// How many bytes of a list are read at once.
const READ: usize = 1 << 20;
/// URLs must be shorter than this, in bytes.
pub const URL_MAX: usize = 64 << 10;
