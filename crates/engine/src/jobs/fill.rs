//! Reading a list of URLs into a job, however long it is: a line at a time, a batch to the store at a time.

use std::io::BufRead;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use comity_core::domain::Domain;
use comity_core::task::JobId;
use comity_store::tasks::{Lead, NewTask};
use comity_store::{Store, StoreError};
use tokio::sync::mpsc;
use url::Url;

use super::Pool;
use crate::event::shown_text;
use crate::gate::Gate;

/// Adds URLs to a job.
struct Fill {
    gate: Gate,
    store: Arc<dyn Store>,
    job: JobId,
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
    /// `#` are passed over.
    pub async fn fill(&self, lines: Box<dyn BufRead + Send>, on_bad: OnBad) -> Result<Filled, StoreError> {
        self.set_filling(true);
        let inner = &self.0;
        if let Some(holder) = inner.gate.holder() {
            inner.store.filling(inner.job.id, Some(holder)).await?;
        }
        let fill = Fill { gate: inner.gate.clone(), store: inner.store.clone(), job: inner.job.id };
        let filled = fill.read(lines, on_bad, |added| {
            inner.added.fetch_add(added, Ordering::Relaxed);
            self.poke();
        });
        let filled = filled.await;
        inner.store.filling(inner.job.id, None).await?;
        self.set_filling(false);
        filled
    }
}

impl Fill {
    async fn read(
        &self,
        lines: Box<dyn BufRead + Send>,
        on_bad: OnBad,
        mut added: impl FnMut(u64),
    ) -> Result<Filled, StoreError> {
        let (sender, mut receiver) = mpsc::channel(2);
        let rules = self.gate.rules().clone();
        let reader = tokio::task::spawn_blocking(move || {
            let domain_of = |url: &Url| Domain::of(url).map(|host| rules.domain(&host));
            read_lines(lines, on_bad, domain_of, &sender)
        });
        let mut filled = Filled::default();
        while let Some(batch) = receiver.recv().await {
            let enqueued = self.store.enqueue(self.job, batch, self.gate.clock().now()).await?;
            filled.new += enqueued.new;
            filled.known += enqueued.known;
            filled.refused += enqueued.refused;
            added(enqueued.new);
            if enqueued.refused > 0 {
                break;
            }
        }
        drop(receiver);
        let (bad, error) = reader.await.unwrap_or((0, Some("the reader ended by itself".to_owned())));
        Ok(Filled { bad, error, ..filled })
    }
}

/// Reads lines until the end, a stop, or an error; how many were bad, and the error.
fn read_lines(
    mut lines: Box<dyn BufRead + Send>,
    mut on_bad: OnBad,
    domain_of: impl Fn(&Url) -> Option<Domain>,
    sender: &mpsc::Sender<Vec<NewTask>>,
) -> (u64, Option<String>) {
    let mut batch = Vec::new();
    let (mut line, mut number, mut bad, mut size) = (Vec::new(), 0, 0, FIRST_BATCH);
    let mut error = None;
    loop {
        line.clear();
        match read_line(&mut lines, &mut line) {
            Ok(0) => break,
            Ok(_) => number += 1,
            Err(cause) => {
                error = Some(cause.to_string());
                break;
            }
        }
        let text = String::from_utf8_lossy(&line);
        let text = text.trim().trim_start_matches('\u{feff}');
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        match parse(text, &domain_of) {
            Some(task) => batch.push(task),
            None => {
                bad += 1;
                if on_bad(&BadLine { line: number, text: shown_text(text) }) == Go::Stop {
                    break;
                }
            }
        }
        if batch.len() >= size {
            if sender.blocking_send(std::mem::take(&mut batch)).is_err() {
                return (bad, error);
            }
            // The first ones go to work soon, the rest in pieces that suit the store.
            size = BATCH;
        }
    }
    if !batch.is_empty() {
        let _ = sender.blocking_send(batch);
    }
    (bad, error)
}

/// Reads one line, of which only the beginning is kept when it is longer than any URL.
fn read_line(lines: &mut Box<dyn BufRead + Send>, line: &mut Vec<u8>) -> std::io::Result<usize> {
    let mut read = 0;
    loop {
        let buffer = lines.fill_buf()?;
        if buffer.is_empty() {
            return Ok(read);
        }
        let (used, ended) = match memchr::memchr(b'\n', buffer) {
            Some(at) => (at + 1, true),
            None => (buffer.len(), false),
        };
        let room = LINE_MAX.saturating_sub(line.len());
        line.extend_from_slice(&buffer[..used.min(room)]);
        lines.consume(used);
        read += used;
        if ended {
            return Ok(read);
        }
    }
}

fn parse(text: &str, domain_of: impl Fn(&Url) -> Option<Domain>) -> Option<NewTask> {
    let mut url = Url::parse(text).ok().filter(|_| text.len() < LINE_MAX)?;
    url.set_fragment(None);
    let domain = domain_of(&url)?;
    Some(NewTask { url: url.into(), domain, lead: Lead::Listed })
}

/// The first tasks are enqueued soon, so that work begins.
const FIRST_BATCH: usize = 1_000;
/// Then so many at a time.
const BATCH: usize = 20_000;
/// Longer lines are no URLs.
const LINE_MAX: usize = 64 << 10;
