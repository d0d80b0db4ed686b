//! What failed, one line per URL: what `--quiet` prints at the end, so that a mail from cron says what to look at.

use std::sync::{Mutex, PoisonError};

use comity::event::{Event, Listener, TaskEvent};
use comity::shown::without_user;
use comity::store::Store;
use comity::store::jobs::Job;

use crate::output;

/// Prints what failed of a job.
pub(crate) async fn of_job(store: &dyn Store, job: &Job) -> anyhow::Result<()> {
    if job.counts.failed == 0 {
        return Ok(());
    }
    let tasks = store.list_tasks(job.id, "failed".to_owned(), SHOWN as u32).await?;
    let line = |url: &str, error: Option<&str>| line(&without_user(url), error.unwrap_or("no reason kept"));
    let lines = tasks.iter().map(|task| line(&task.url, task.error.as_deref())).collect();
    print(lines, job.counts.failed, &job.name);
    Ok(())
}

/// Remembers what fails while a process works.
#[derive(Default)]
pub(crate) struct Failures(Mutex<(Vec<String>, u64)>);

impl Failures {
    /// Prints what failed since this listens.
    pub(crate) fn print(&self, job: &str) {
        let (lines, count) = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        print(lines, count, job);
    }
}

impl Listener for Failures {
    fn hear(&self, event: &Event<'_>) {
        if let Event::Task { url, step: TaskEvent::Failed { error } } = event {
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
    lines.iter().for_each(|line| output::remark(line));
    if more > 0 {
        output::remark(&format!("and {more} more; comity jobs show {job} --failed"));
    }
}

/// Failures that are listed one by one.
const SHOWN: usize = 20;
