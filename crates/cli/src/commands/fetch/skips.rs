//! Why URLs of a job were skipped: a job that only skipped URLs is done, and would otherwise leave its reader puzzled.

use std::collections::BTreeMap;

use comity::redact::shell_word;
use comity::store::Store;
use comity::store::jobs::Job;

use crate::live::thousands;

/// The reasons why URLs were skipped, each with their number, the most frequent first.
pub(super) struct Skips(Vec<(u64, String)>);

/// The reasons in a job; `None` if they are no longer known.
pub(super) async fn of_job(store: &dyn Store, job: &Job) -> anyhow::Result<Option<Skips>> {
    let tasks = store.list_tasks(job.id, "skipped".to_owned(), READ).await?;
    let is_all = tasks.len() < READ as usize;
    let mut reasons: BTreeMap<String, u64> = BTreeMap::new();
    for why in tasks.into_iter().filter_map(|task| task.error) {
        *reasons.entry(why).or_default() += 1;
    }
    let mut reasons: Vec<(u64, String)> = reasons.into_iter().map(|(why, count)| (count, why)).collect();
    // With one reason so far, it is most likely that of the rest.
    if let ([(count, _)], false) = (reasons.as_mut_slice(), is_all) {
        *count = job.counts.skipped;
    }
    reasons.sort_by_key(|(count, _)| std::cmp::Reverse(*count));
    reasons.truncate(SHOWN);
    Ok((!reasons.is_empty()).then_some(Skips(reasons)))
}

impl Skips {
    /// ` (2 forbidden by robots.txt; see comity jobs show news)`
    pub(super) fn in_brackets(&self, job: &str) -> String {
        let reasons: Vec<String> =
            self.0.iter().map(|(count, why)| format!("{} {why}", thousands(*count))).collect();
        format!(" ({}; see comity jobs show {})", reasons.join(", "), shell_word(job))
    }
}

/// How many skipped URLs are read.
const READ: u32 = 1_000;
/// Maximum number of reasons to print.
const SHOWN: usize = 3;
