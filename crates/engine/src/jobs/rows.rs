//! Writes the rows of settled tasks to the index of the archive and to other receivers.
//!
//! A row is written after its task's final result is committed. So that a kill in between loses none, the store knows
//! who works on a job, up to when its rows have been written, and how long the index was then. Whoever works on the job
//! next, or at the same time, reads that part of the index and adds the rows that are missing. Another receiver gets all
//! rows that may be missing, because nobody knows what it has received. The same happens if a receiver went away or could
//! not take a row. Tasks that are skipped in bulk, when their job
//! ends or a domain is given up, get their rows when the work ends.
//!
//! So a result has one row in the index. It may have two only if several processes work on the job: while one of them
//! writes the rows of another that died, and when all of them end together.

use std::sync::Arc;

use comity_core::time::{Span, Timestamp};
use comity_store::StoreError;
use comity_store::domains::HolderId;
use comity_store::jobs::RowMark;
use comity_store::tasks::{GAVE_UP, JOB_ENDED, PageFacts, Settle, Step, TaskFilter, TaskView};
use http::HeaderMap;
use serde_json::{Map, Value};

use super::settler::{TaskInHand, is_changed};
use super::{Flow, Inner, StopReason, archive_error};
use crate::archive::WrittenRows;
use crate::lock;
use crate::results::{Row, shown_headers};

/// Receives rows.
pub trait RowSink: Send + Sync {
    /// Takes some rows; may block. Returns whether more are wanted; if not, the work is stopped, and these rows count as
    /// not received.
    fn take(&self, rows: &[Row]) -> Flow;
}

/// Who receives rows, and what they contain.
#[derive(Clone, Default)]
pub struct Rows {
    /// The receiver, besides the archive's index, if it has one.
    pub sink: Option<Arc<dyn RowSink>>,
    /// Optional columns.
    pub extras: Extras,
}

/// Optional columns of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Extras {
    /// None.
    #[default]
    None,
    /// The headers of the last response.
    Headers,
}

/// Which rows have not been written yet.
#[derive(Debug, Default)]
pub(super) struct PendingRows {
    /// Up to where rows were written when the first task without one was settled.
    since: Option<RowMark>,
    /// Whether the receiver did not take all rows.
    is_receiver_gone: bool,
    /// When this process was last registered as working on the job, and as which holder.
    registered: Option<(Timestamp, HolderId)>,
}

impl Rows {
    /// The response headers to include in a row, if any.
    pub(super) fn headers(&self, headers: &HeaderMap) -> Option<Map<String, Value>> {
        (self.extras == Extras::Headers).then(|| shown_headers(headers))
    }
}

impl Inner {
    /// Whether anybody wants rows.
    pub(super) fn wants_rows(&self) -> bool {
        self.archive.has_index() || self.rows.sink.is_some()
    }

    /// The time to settle tasks with. From then on their rows count as missing.
    pub(super) fn note_pending(&self) -> Timestamp {
        let mut pending_rows = lock(&self.pending_rows);
        let now = self.now();
        pending_rows.since.get_or_insert_with(|| self.mark(now));
        now
    }

    /// The mark of now, if all rows are written.
    fn mark(&self, now: Timestamp) -> RowMark {
        RowMark { settled_before: now, index_bytes: self.archive.index_bytes() }
    }

    /// Writes the rows of the tasks that were just settled. Afterwards none are missing, unless the receiver is gone.
    pub(super) async fn write_settled(self: &Arc<Self>, rows: Vec<Row>) -> Result<(), StoreError> {
        let flow = self.write(rows, &WrittenRows::default()).await?;
        let mut pending_rows = lock(&self.pending_rows);
        pending_rows.is_receiver_gone |= flow == Flow::Stop;
        if !pending_rows.is_receiver_gone {
            pending_rows.since = None;
        }
        Ok(())
    }

    /// Writes rows: those that aren't `written` to the index, and all of them to the receiver. Returns whether it took
    /// them.
    async fn write(self: &Arc<Self>, rows: Vec<Row>, written: &WrittenRows) -> Result<Flow, StoreError> {
        if rows.is_empty() {
            return Ok(Flow::Continue);
        }
        let added = match written.is_empty() {
            true => self.archive.add_rows(&rows),
            false => {
                let missing = rows.iter().filter(|row| !written.has(row)).cloned();
                self.archive.add_rows(&missing.collect::<Vec<_>>())
            }
        };
        added.map_err(archive_error)?;
        let Some(sink) = self.rows.sink.clone() else { return Ok(Flow::Continue) };
        // The receiver may be slow; nobody else waits for it.
        let taken = tokio::task::spawn_blocking(move || sink.take(&rows)).await;
        let flow = taken.unwrap_or(Flow::Stop);
        if flow == Flow::Stop {
            self.stopping.send_replace(true);
        }
        Ok(flow)
    }

    /// Registers this process now and then as working on the job, and writes the missing rows of processes that died.
    pub(super) async fn register(self: &Arc<Self>) -> Result<(), StoreError> {
        let Some(holder) = self.gate.holder() else { return Ok(()) };
        let (now, written) = {
            let pending_rows = lock(&self.pending_rows);
            let now = self.now();
            match pending_rows.registered {
                Some((at, as_whom)) if as_whom == holder && now.since(at) < REGISTERED => return Ok(()),
                _ => (now, pending_rows.since.unwrap_or_else(|| self.mark(now))),
            }
        };
        let missing = self.store.work_on(self.job.id, holder, written, now).await?;
        if let Some(mark) = missing.filter(|_| self.wants_rows()) {
            let archive = self.archive.clone();
            // It may be a long index.
            let reading = tokio::task::spawn_blocking(move || archive.rows_since(mark.index_bytes));
            let written = reading.await.map_err(|_| StoreError::Closed)?.map_err(archive_error)?;
            let which = TaskFilter { state: None, settled_since: Some(mark.settled_before) };
            if self.write_rows_of(which, |_| true, &written).await? == Flow::Stop {
                let mut pending_rows = lock(&self.pending_rows);
                (pending_rows.since, pending_rows.is_receiver_gone) = (Some(mark), true);
            }
        }
        lock(&self.pending_rows).registered = Some((now, holder));
        Ok(())
    }

    /// Called when the work has ended: skips the remaining tasks if the job ended, and writes the rows of tasks that
    /// were skipped in bulk.
    pub(super) async fn last_rows(
        self: &Arc<Self>,
        ended: &StopReason,
        began: Timestamp,
    ) -> Result<(), StoreError> {
        if let StopReason::Job(_) = ended {
            while self.store.sweep(self.job.id, SWEEP, self.now()).await? {}
        }
        // If rows could not be written, they are left to whoever works on the job next.
        let is_behind = lock(&self.pending_rows).since.is_some();
        if self.wants_rows() && !is_behind {
            let job = self.store.find_job(self.job.name.clone()).await?;
            if job.is_some_and(|job| job.counts.skipped > 0) {
                let which = TaskFilter { state: Some("skipped".to_owned()), settled_since: Some(began) };
                let flow = self.write_rows_of(which, is_skipped_in_bulk, &WrittenRows::default()).await?;
                if flow == Flow::Stop {
                    return self.leave_rows_to_next(began).await;
                }
            }
        }
        self.leave().await
    }

    /// Records that rows since `began` may be missing, for whoever works on the job next.
    async fn leave_rows_to_next(&self, began: Timestamp) -> Result<(), StoreError> {
        let Some((now, holder)) = lock(&self.pending_rows).registered else { return Ok(()) };
        let mark = RowMark { settled_before: began, index_bytes: None };
        self.store.work_on(self.job.id, holder, mark, now).await.map(drop)
    }

    /// Unregisters this process from the job, unless rows are missing that the next one has to write.
    pub(super) async fn leave(&self) -> Result<(), StoreError> {
        let registered = {
            let mut pending_rows = lock(&self.pending_rows);
            if pending_rows.since.is_some() {
                return Ok(());
            }
            pending_rows.registered.take()
        };
        match registered {
            Some((_, holder)) => self.store.leave_job(self.job.id, holder).await,
            None => Ok(()),
        }
    }

    /// Writes the rows of tasks from the store, page by page. Returns whether the receiver took them.
    async fn write_rows_of(
        self: &Arc<Self>,
        which: TaskFilter,
        wanted: impl Fn(&TaskView) -> bool,
        written: &WrittenRows,
    ) -> Result<Flow, StoreError> {
        let (mut after, mut flow) = (None, Flow::Continue);
        loop {
            let page = self.store.page_tasks(self.job.id, which.clone(), after, PAGE).await?;
            let Some(last) = page.last() else { return Ok(flow) };
            after = Some(last.id);
            let rows = page.iter().filter(|task| wanted(task)).map(Row::of).collect();
            if self.write(rows, written).await? == Flow::Stop {
                flow = Flow::Stop;
            }
        }
    }
}

/// The row of a task with a final result; `None` if the task continues.
pub(super) fn row_of(settle: &Settle, task: &TaskInHand, now: Timestamp) -> Option<Row> {
    let mut changed = None;
    let mut facts = settle.facts.clone();
    let previous = task.row.previous.as_deref();
    let (mut bytes, mut content_type) =
        (previous.map(|page| page.bytes), previous.and_then(|page| page.content_type.clone()));
    let (state, status, error) = match &settle.step {
        Step::Done { status, bytes: now, content_type: kind, .. } => {
            changed = Some(is_changed(*status, settle, &task.row));
            (bytes, content_type) = (Some(*now), kind.clone());
            ("done", Some(*status), None)
        }
        Step::Failed { error, status } => ("failed", *status, Some(error.clone())),
        Step::Skipped { reason } => ("skipped", None, Some(reason.clone())),
        Step::Retry { .. } | Step::Moved { .. } => return None,
    };
    if let Some(page) = previous.filter(|_| changed.is_none()) {
        // The page as fetched before is still there.
        let (final_url, fetched_at) = (facts.final_url.clone(), facts.fetched_at);
        facts = Arc::new(PageFacts { final_url, fetched_at, ..(*page.facts).clone() });
    }
    let robots = settle.robots.as_ref();
    let last = settle.attempts.last().or(robots.map(|robots| &robots.last)).or(task.row.last.as_ref());
    let attempts = task.row.attempts + settle.attempts.len() as u32;
    let mut row = Row::of(&TaskView {
        id: task.row.id,
        url: task.row.url.clone(),
        state: state.to_owned(),
        status,
        error,
        settled_at: Some(now),
        attempts: attempts + robots.map_or(0, |robots| robots.count),
        started_at: last.map(|attempt| attempt.started_at),
        took: last.map(|attempt| attempt.took),
        outcome: last.map(|attempt| attempt.outcome),
        bytes,
        content_type,
        changed,
        facts,
    });
    row.headers = task.headers.clone();
    Some(row)
}

/// Whether the store skipped the task together with others.
fn is_skipped_in_bulk(task: &TaskView) -> bool {
    task.error.as_deref().is_some_and(|error| error == JOB_ENDED || error.starts_with(GAVE_UP))
}

/// How often this process registers as working on the job.
const REGISTERED: Span = Span::from_secs(2);
/// How many rows are read at once.
const PAGE: u32 = 1_000;
/// How many tasks of an ended job are skipped at once.
const SWEEP: u32 = 10_000;
