//! Reading a list of URLs into a job, however long it is: a line at a time, a batch to the store at a time.

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use comity_core::domain::Domain;
use comity_core::rule::RuleTable;
use comity_core::task::JobId;
use comity_store::jobs::Filling;
use comity_store::tasks::{Enqueued, NewTask};
use comity_store::{Store, StoreError};
use tokio::sync::mpsc;
use url::Url;

use super::Pool;
use super::sitemaps::{OnProblem, Walk};
use crate::gate::Gate;
use crate::shown;

/// Adds URLs to a job.
pub(super) struct Fill {
    gate: Gate,
    store: Arc<dyn Store>,
    job: JobId,
}

/// Where the URLs of a job come from, in this order.
pub struct Lists {
    /// Lines with one URL each.
    pub lines: Option<Box<dyn Read + Send>>,
    /// What to do about lines that are no URL.
    pub on_bad: OnBad,
    /// Sitemaps, or the roots of sites whose robots.txt names them.
    pub sitemaps: Vec<Url>,
    /// Who hears of sitemaps that cannot be read.
    pub on_problem: OnProblem,
}

/// What was read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filled {
    /// URLs added.
    pub new: u64,
    /// URLs that the job had already.
    pub known: u64,
    /// URLs that the job refused because it ended.
    pub refused: u64,
    /// Lines that are no URL.
    pub bad: u64,
    /// Sitemaps that cannot be read, now or later.
    pub bad_sitemaps: u64,
    /// A line that is no URL ended the reading.
    pub stopped: bool,
    /// The list could not be read to its end.
    pub error: Option<String>,
}

/// A line that is no URL.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {text:?} is not an http or https URL with a host")]
pub struct BadLine {
    /// Its number, counted from 1.
    pub line: u64,
    /// What it says, cut short and without anything a terminal would act on.
    pub text: String,
}

/// What to do about lines that are no URL.
pub type OnBad = Box<dyn FnMut(&BadLine) -> Go + Send>;

/// Whether to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Go {
    /// With the next line.
    On,
    /// No further.
    Stop,
}

impl Pool {
    /// Reads `lines` into the job; work on what was read begins at once. Blank lines and those that begin with
    /// `#` are skipped. Whoever drops this ends the reading: what was read by then stays in the job.
    pub async fn fill(&self, lines: Box<dyn Read + Send>, on_bad: OnBad) -> Result<Filled, StoreError> {
        let lists = Lists { lines: Some(lines), on_bad, sitemaps: Vec::new(), on_problem: Box::new(|_| {}) };
        self.fill_from(lists).await
    }

    /// The same, from several places.
    pub async fn fill_from(&self, lists: Lists) -> Result<Filled, StoreError> {
        self.set_filling(true);
        let (pool, reading) = (self.clone(), Reading(self));
        // In a task of its own, so that the store hears in any case that nobody reads any more. When nobody waits for it,
        // the pool is not filled any more, and it stops at the next part.
        let read = self.0.runtime.spawn(async move { pool.read(lists).await });
        let filled = read.await.unwrap_or(Err(StoreError::Closed));
        if let Err(error) = &filled {
            self.0.gate.fail(error.clone());
        }
        drop(reading);
        filled
    }

    async fn read(&self, lists: Lists) -> Result<Filled, StoreError> {
        let Lists { lines, on_bad, sitemaps, on_problem } = lists;
        let inner = &self.0;
        let holder = inner.gate.holder().ok_or(StoreError::Closed)?;
        inner.store.filling(inner.job.id, holder, Filling::Begun, inner.now()).await?;
        let fill = Fill { gate: inner.gate.clone(), store: inner.store.clone(), job: inner.job.id };
        let mut filled = match lines {
            Some(lines) => fill.read(lines, on_bad, || self.added()).await?,
            None => Filled::default(),
        };
        if !sitemaps.is_empty() && !filled.stopped && filled.refused == 0 {
            let walked = Walk::new(inner, &fill, on_problem).run(sitemaps, || self.added()).await?;
            filled.add(walked);
        }
        let whole = filled.error.is_none() && !filled.stopped && filled.refused == 0;
        let filling = if whole { Filling::Ended } else { Filling::Broken };
        inner.store.filling(inner.job.id, holder, filling, inner.now()).await?;
        Ok(filled)
    }

    /// A part of a list was added. Whether to read on.
    fn added(&self) -> Go {
        self.poke();
        match self.0.filling.load(Ordering::Relaxed) {
            true => Go::On,
            false => Go::Stop,
        }
    }
}

/// Says that somebody waits for a list to be read.
struct Reading<'a>(&'a Pool);

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.0.set_filling(false);
    }
}

impl Filled {
    fn add(&mut self, other: Self) {
        self.new += other.new;
        self.known += other.known;
        self.refused += other.refused;
        self.bad += other.bad;
        self.bad_sitemaps += other.bad_sitemaps;
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
        lines: Box<dyn Read + Send>,
        on_bad: OnBad,
        added: impl Fn() -> Go,
    ) -> Result<Filled, StoreError> {
        let (sender, mut receiver) = mpsc::channel(2);
        let rules = self.gate.rules().clone();
        let reader = tokio::task::spawn_blocking(move || {
            let domain_of = |url: &Url| Domain::of(url).map(|host| rules.domain(&host));
            read_lines(lines, on_bad, domain_of, &sender)
        });
        let mut filled = Filled::default();
        while let Some(batch) = receiver.recv().await {
            let enqueued = self.enqueue(batch).await?;
            filled.new += enqueued.new;
            filled.known += enqueued.known;
            filled.refused += enqueued.refused;
            let go = added();
            if enqueued.refused > 0 {
                break;
            }
            if go == Go::Stop {
                filled.stopped = true;
                break;
            }
        }
        drop(receiver);
        let read = reader.await.unwrap_or_else(|_| Filled {
            error: Some("the reader ended by itself".to_owned()),
            ..Filled::default()
        });
        let stopped = filled.stopped || read.stopped;
        Ok(Filled { bad: read.bad, stopped, error: read.error, ..filled })
    }
}

/// Reads lines until the end, a stop, or an error.
fn read_lines(
    lines: Box<dyn Read + Send>,
    mut on_bad: OnBad,
    domain_of: impl Fn(&Url) -> Option<Domain>,
    sender: &mpsc::Sender<Vec<NewTask>>,
) -> Filled {
    let mut lines = Lines { source: lines, buffer: vec![0; READ], from: 0, to: 0 };
    let (mut batch, mut line, mut number) = (Vec::new(), Vec::new(), 0);
    let mut filled = Filled::default();
    loop {
        // What was read goes to work before the next part of the list is waited for.
        if (batch.len() >= BATCH || lines.is_drained()) && !batch.is_empty() {
            let full = std::mem::take(&mut batch);
            if sender.blocking_send(full).is_err() {
                return filled;
            }
        }
        line.clear();
        match lines.next(&mut line) {
            Ok(false) => break,
            Ok(true) => number += 1,
            Err(cause) => {
                filled.error = Some(cause.to_string());
                break;
            }
        }
        let text = String::from_utf8_lossy(&line);
        let text = text.trim().trim_start_matches('\u{feff}');
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        // A URL is ASCII once it is written properly: what is not even text is none.
        let task = if std::str::from_utf8(&line).is_ok() { parse(text, &domain_of) } else { None };
        match task {
            Some(task) => batch.push(task),
            None => {
                filled.bad += 1;
                if on_bad(&BadLine { line: number, text: shown::text(text) }) == Go::Stop {
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

/// The lines of a list. It knows when reading on would mean to wait.
struct Lines {
    source: Box<dyn Read + Send>,
    buffer: Vec<u8>,
    from: usize,
    to: usize,
}

impl Lines {
    fn is_drained(&self) -> bool {
        self.from == self.to
    }

    /// Reads one line, of which only the beginning is kept when it is longer than any URL; false at the end.
    fn next(&mut self, line: &mut Vec<u8>) -> std::io::Result<bool> {
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
}

/// The task that a URL of an operator's list is; `None` when it is none.
pub fn read_url(text: &str, rules: &RuleTable) -> Option<NewTask> {
    parse(text, |url| Domain::of(url).map(|host| rules.domain(&host)))
}

fn parse(text: &str, domain_of: impl Fn(&Url) -> Option<Domain>) -> Option<NewTask> {
    let mut url = Url::parse(text).ok().filter(|_| text.len() < URL_MAX)?;
    url.set_fragment(None);
    let domain = domain_of(&url)?;
    Some(NewTask::listed(url.into(), domain))
}

/// Tasks that go to the store at once, at most.
const BATCH: usize = 20_000;
/// Bytes of a list that are read at once.
const READ: usize = 1 << 20;
/// A URL is shorter than this, in bytes.
pub const URL_MAX: usize = 64 << 10;
