//! What `--quiet` prints at the end: one line per failed URL, so that a mail from cron says what went wrong.

use std::sync::{Mutex, PoisonError};

use comity::core::time::Timestamp;
use comity::event::{Event, Listener, TaskEvent};
use comity::redact::{shell_word, without_user};
use comity::store::Store;
use comity::store::jobs::Job;

use crate::output;

/// Prints the failed URLs of a job, of which there are `count`: all of them, or those that failed `since` then.
pub(crate) async fn of_job(
    store: &dyn Store,
    job: &Job,
    count: u64,
    since: Option<Timestamp>,
) -> anyhow::Result<()> {
    if count == 0 {
        return Ok(());
    }
    let mut tasks = store.list_tasks(job.id, "failed".to_owned(), SHOWN as u32).await?;
    tasks.retain(|task| task.settled_at >= since);
    let line = |url: &str, error: Option<&str>| line(&without_user(url), error.unwrap_or("unknown error"));
    let lines = tasks.iter().map(|task| line(&task.url, task.error.as_deref())).collect();
    print(lines, count, &job.name);
    Ok(())
}

/// Collects failures while a process works.
#[derive(Default)]
pub(crate) struct Failures(Mutex<(Vec<String>, u64)>);

impl Failures {
    /// Prints what has failed so far.
    pub(crate) fn print(&self, job: &str) {
        let (lines, count) = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        print(lines, count, job);
    }
}

impl Listener for Failures {
    fn on_event(&self, event: &Event<'_>) {
        if let Event::Task { url, step: TaskEvent::Failed { error }, .. } = event {
            let (lines, count) = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
            *count += 1;
            if lines.len() < SHOWN {
                lines.push(line(url, error));
            }
        }
    }
}

fn line(url: &str, error: &str) -> String {
    format!("failed: {url}: {error}")
}

fn print(mut lines: Vec<String>, count: u64, job: &str) {
    lines.truncate(SHOWN);
    let more = count.saturating_sub(lines.len() as u64);
    lines.iter().for_each(|line| output::failure(line));
    if more > 0 {
        let job = shell_word(job);
        output::failure(&format!("and {more} more; list them with: comity jobs show {job} --failed"));
    }
}

/// Maximum number of failures to list.
const SHOWN: usize = 20;
