//! The rows of what was settled: into the index of the archive, and to whoever wants them besides.
//!
//! A row is written when its task is settled for good, after the commit. So that a kill in between loses none, the store
//! knows who works on a job and up to when its rows are written; whoever works on the job next, or beside it, writes those
//! that may be missing. A row may therefore come twice: the last one counts. Tasks that are skipped together, with the end
//! of their job or with a domain that was given up, have their rows when the work ends.

use std::sync::Arc;

use comity_core::time::{Span, Timestamp};
use comity_store::StoreError;
use comity_store::domains::HolderId;
use comity_store::tasks::{GAVE_UP, JOB_ENDED, Step, TaskView, Which};
use http::HeaderMap;
use serde_json::{Map, Value};

use super::settler::One;
use super::{Ended, Go, Inner, unwritable};
use crate::lock;
use crate::results::{Row, shown_headers};

/// Takes rows as they come.
pub trait RowSink: Send + Sync {
    /// Takes some rows, and may take its time; whether more are wanted. If not, the work is stopped.
    fn take(&self, rows: &[Row]) -> Go;
}

/// Who wants rows, and what should be in them.
#[derive(Clone, Default)]
pub struct Rows {
    /// Who takes them, besides the index of an archive that has one.
    pub sink: Option<Arc<dyn RowSink>>,
    /// What they have besides what they always have.
    pub extras: Extras,
}

/// What rows have besides what they always have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Extras {
    /// Nothing.
    #[default]
    None,
    /// The headers of the last answer.
    Headers,
}

/// Which rows are still to be written.
#[derive(Debug, Default)]
pub(super) struct Telling {
    /// When those were settled that are not written yet.
    since: Option<Timestamp>,
    /// When the store was last told that we work on the job, and as whom.
    registered: Option<(Timestamp, HolderId)>,
}

impl Rows {
    /// The headers of an answer as they are kept for its row, if they are.
    pub(super) fn headers(&self, headers: &HeaderMap) -> Option<Map<String, Value>> {
        (self.extras == Extras::Headers).then(|| shown_headers(headers))
    }
}

impl Inner {
    /// Whether anybody wants rows.
    pub(super) fn wants_rows(&self) -> bool {
        self.archive.has_index() || self.rows.sink.is_some()
    }

    /// The moment at which tasks are settled now; their rows are missing from then on.
    pub(super) fn begin_telling(&self) -> Timestamp {
        let mut telling = lock(&self.telling);
        let now = self.now();
        telling.since.get_or_insert(now);
        now
    }

    /// Writes the rows of what was settled last; then none is missing.
    pub(super) async fn tell(self: &Arc<Self>, rows: Vec<Row>) -> Result<(), StoreError> {
        self.write(rows).await?;
        lock(&self.telling).since = None;
        Ok(())
    }

    async fn write(self: &Arc<Self>, rows: Vec<Row>) -> Result<(), StoreError> {
        if rows.is_empty() {
            return Ok(());
        }
        self.archive.note(&rows).map_err(unwritable)?;
        let Some(sink) = self.rows.sink.clone() else { return Ok(()) };
        // Whoever reads them may be slow; others do not wait for that.
        let taken = tokio::task::spawn_blocking(move || sink.take(&rows)).await;
        if taken.unwrap_or(Go::Stop) == Go::Stop {
            self.over.send_replace(true);
        }
        Ok(())
    }

    /// Tells the store now and then that we work on the job, and writes the rows of others who died.
    pub(super) async fn register(self: &Arc<Self>) -> Result<(), StoreError> {
        let Some(holder) = self.gate.holder() else { return Ok(()) };
        let (now, told_at) = {
            let telling = lock(&self.telling);
            let now = self.now();
            match telling.registered {
                Some((at, as_whom)) if as_whom == holder && now.since(at) < REGISTERED => return Ok(()),
                _ => (now, telling.since.unwrap_or(now)),
            }
        };
        let missing = self.store.work_on(self.job.id, holder, told_at, now).await?;
        if let Some(since) = missing.filter(|_| self.wants_rows()) {
            self.tell_settled(Which { state: None, settled_since: Some(since) }, |_| true).await?;
        }
        lock(&self.telling).registered = Some((now, holder));
        Ok(())
    }

    /// The work ended: what the end of the job means for its tasks is done, and rows are written of what was skipped
    /// together.
    pub(super) async fn last_rows(
        self: &Arc<Self>,
        ended: &Ended,
        began: Timestamp,
    ) -> Result<(), StoreError> {
        if let Ended::Job(_) = ended {
            while self.store.sweep(self.job.id, SWEEP, self.now()).await? {}
        }
        if lock(&self.telling).since.is_some() {
            // Rows could not be written: they are left to whoever is next.
            return Ok(());
        }
        if self.wants_rows() {
            let job = self.store.find_job(self.job.name.clone()).await?;
            if job.is_some_and(|job| job.counts.skipped > 0) {
                let which = Which { state: Some("skipped".to_owned()), settled_since: Some(began) };
                self.tell_settled(which, is_skipped_in_bulk).await?;
            }
        }
        self.leave().await
    }

    /// We do not work on the job any more.
    pub(super) async fn leave(&self) -> Result<(), StoreError> {
        let registered = lock(&self.telling).registered.take();
        match registered {
            Some((_, holder)) => self.store.leave_job(self.job.id, holder).await,
            None => Ok(()),
        }
    }

    /// Writes the rows of tasks as the store has them, a page at a time.
    async fn tell_settled(
        self: &Arc<Self>,
        which: Which,
        wanted: impl Fn(&TaskView) -> bool,
    ) -> Result<(), StoreError> {
        let mut after = None;
        loop {
            let page = self.store.page_tasks(self.job.id, which.clone(), after, PAGE).await?;
            let Some(last) = page.last() else { return Ok(()) };
            after = Some(last.id);
            self.write(page.iter().filter(|task| wanted(task)).map(Row::of).collect()).await?;
        }
    }
}

/// The row of a task that is settled for good; nothing if it goes on.
pub(super) fn row_of(one: &One, now: Timestamp) -> Option<Row> {
    let settle = &one.settle;
    let (state, status, error, bytes, content_type) = match &settle.step {
        Step::Done { status, bytes, content_type, .. } => {
            ("done", Some(*status), None, Some(*bytes), content_type.clone())
        }
        Step::Failed { error, status } => ("failed", *status, Some(error.clone()), None, None),
        Step::Skipped { reason } => ("skipped", None, Some(reason.clone()), None, None),
        Step::Retry { .. } | Step::Moved { .. } => return None,
    };
    let last = settle.attempts.last().or(one.row.last.as_ref());
    let mut row = Row::of(&TaskView {
        id: one.row.id,
        url: one.row.url.clone(),
        state: state.to_owned(),
        status,
        error,
        settled_at: Some(now),
        attempts: one.row.attempts + settle.attempts.len() as u32,
        started_at: last.map(|attempt| attempt.started_at),
        took: last.map(|attempt| attempt.took),
        outcome: last.map(|attempt| attempt.outcome),
        bytes,
        content_type,
        facts: settle.facts.clone(),
    });
    row.headers = one.headers.clone();
    Some(row)
}

/// Whether a task was skipped with others, by the store.
fn is_skipped_in_bulk(task: &TaskView) -> bool {
    task.error.as_deref().is_some_and(|error| error == JOB_ENDED || error.starts_with(GAVE_UP))
}

/// The store is told this often that we work on the job.
const REGISTERED: Span = Span::from_secs(2);
/// Rows that are read at once.
const PAGE: u32 = 1_000;
/// Tasks that are brought in line with their job at once.
const SWEEP: u32 = 10_000;
