//! Finds jobs and counts them; groups failed and skipped tasks by what they have in common, without reading all of them.

use std::collections::HashMap;

use comity_core::task::{JobId, JobState};

use super::failure::Result;
use super::job_retry::{selected, stored_form};
use super::jobs::{JOBS, id_of, job_of};
use super::param::{opt_text, text};
use super::results::{VIEW, view_of};
use super::tx::{Tx, by_key};
use crate::jobs::{
    Counted, FailureGroup, FailureReason, GROUP_COUNTED_MAX, GROUPS_MAX, Job, JobQuery, JobTally,
    RetryFilter, SKIPPED_READ_MAX,
};
use crate::tasks::TaskView;

impl Tx<'_> {
    pub(super) fn search_jobs(&mut self, query: &JobQuery) -> Result<Vec<Job>> {
        let JobQuery { like, state, older_than, limit } = query;
        // Whether somebody works on a job that is not over is only known when it was read.
        let stored = state.as_deref().map(|word| if word == "stopped" { "running" } else { word });
        let in_state = match state.as_deref() {
            // Nobody works on the others.
            Some("running") => {
                "state = $3 AND id IN (SELECT job_id FROM worker UNION SELECT job_id FROM filler)"
            }
            _ => "($3::text IS NULL OR state = $3)",
        };
        let sql = format!(
            "{JOBS} WHERE id < $1 AND ($2 = '' OR position($2 IN name) > 0) AND {in_state} ORDER BY id DESC LIMIT $4"
        );
        let (limit, mut before, mut found) =
            (*limit as usize, older_than.map_or(i64::MAX, id_of), Vec::new());
        loop {
            let part = limit.max(1) as i64;
            let rows = self.rows(&sql, &[&before, &text(like), &opt_text(stored), &part])?;
            let is_last = (rows.len() as i64) < part;
            let jobs = self.with_activity(rows.iter().map(job_of).collect())?;
            before = jobs.last().map_or(0, |job| id_of(job.id));
            found.extend(
                jobs.into_iter().filter(|job| state.as_deref().is_none_or(|state| job.state_word() == state)),
            );
            if is_last || found.len() >= limit {
                found.truncate(limit);
                return Ok(found);
            }
        }
    }

    pub(super) fn tally_jobs(&mut self) -> Result<JobTally> {
        let rows = self.rows("SELECT state, count(*) FROM job GROUP BY state", &[])?;
        let counts: HashMap<String, i64> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
        let count = |state: JobState| counts.get(state.as_str()).map_or(0, |count| (*count).max(0) as u64);
        let sql = format!(
            "{JOBS} WHERE state = 'running' AND id IN (SELECT job_id FROM worker UNION SELECT job_id FROM filler)"
        );
        let busy: Vec<Job> = self.rows(&sql, &[])?.iter().map(job_of).collect();
        let running = self.with_activity(busy)?.iter().filter(|job| job.worked_on).count() as u64;
        Ok(JobTally {
            running,
            stopped: count(JobState::Running).saturating_sub(running),
            done: count(JobState::Done),
            failed: count(JobState::Failed),
            cancelled: count(JobState::Cancelled),
        })
    }

    pub(super) fn failure_groups(&mut self, job: JobId, samples: u32) -> Result<Vec<FailureGroup>> {
        let mut groups = self.failed_groups(id_of(job), samples)?;
        groups.extend(self.skipped_groups(id_of(job), samples)?);
        groups.sort_by_key(|group| std::cmp::Reverse(group.count.number));
        Ok(groups)
    }

    /// Jumps from one reason to the next in the index, however many tasks there are.
    fn failed_groups(&mut self, job: i64, samples: u32) -> Result<Vec<FailureGroup>> {
        let first = "SELECT reason_of(status, last_outcome) FROM task WHERE job_id = $1 AND state = 'failed'";
        let sql = format!(
            "WITH RECURSIVE reasons AS (
                (SELECT reason FROM ({first} ORDER BY 1 LIMIT 1) AS first (reason))
                UNION ALL
                SELECT ({first} AND reason_of(status, last_outcome) > reasons.reason ORDER BY 1 LIMIT 1) FROM reasons
                WHERE reasons.reason IS NOT NULL)
            SELECT reason, (SELECT count(*) FROM (SELECT 1 FROM task WHERE job_id = $1 AND state = 'failed'
                AND reason_of(status, last_outcome) = reason LIMIT $2) AS counted)
            FROM reasons WHERE reason IS NOT NULL LIMIT $3"
        );
        let most = i64::from(GROUP_COUNTED_MAX) + 1;
        let rows = self.rows(&sql, &[&job, &most, &(GROUPS_MAX as i64)])?;
        let sql = format!(
            "SELECT {VIEW} FROM task WHERE job_id = $1 AND state = 'failed' AND reason_of(status, last_outcome) = $2
            ORDER BY settled_us DESC LIMIT $3"
        );
        let mut groups = Vec::new();
        for row in rows {
            let reason: String = row.get(0);
            let count = Counted::up_to(row.get::<_, i64>(1).max(0) as u64, GROUP_COUNTED_MAX);
            let samples = self.rows(&sql, &[&job, &reason, &i64::from(samples)])?;
            let samples = samples.iter().map(view_of).collect();
            groups.push(FailureGroup { reason: FailureReason::of_failed(&reason), count, samples });
        }
        Ok(groups)
    }

    /// Reads the tasks that were skipped last. Mostly, there is one reason for all of them.
    fn skipped_groups(&mut self, job: i64, samples: u32) -> Result<Vec<FailureGroup>> {
        let sql = "SELECT id, error FROM task WHERE job_id = $1 AND state = 'skipped' AND state IN ('failed', 'skipped')
            ORDER BY settled_us DESC LIMIT $2";
        let rows = self.rows(sql, &[&job, &i64::from(SKIPPED_READ_MAX)])?;
        let or_more = rows.len() == SKIPPED_READ_MAX as usize;
        let mut by_reason: Vec<(FailureReason, Vec<i64>, u64)> = Vec::new();
        for row in &rows {
            let reason = FailureReason::of_skipped(row.get(1));
            let nth = by_reason.iter().position(|(known, ..)| *known == reason).unwrap_or_else(|| {
                by_reason.push((reason, Vec::new(), 0));
                by_reason.len() - 1
            });
            let (_, shown, count) = &mut by_reason[nth];
            *count += 1;
            if shown.len() < samples as usize {
                shown.push(row.get(0));
            }
        }
        let all: Vec<i64> = by_reason.iter().flat_map(|(_, shown, _)| shown.iter().copied()).collect();
        let views = by_key(self.rows(&format!("SELECT {VIEW} FROM task WHERE id = ANY($1)"), &[&all])?);
        let view = |task: &i64| -> Option<TaskView> { views.get(task).map(view_of) };
        let groups = by_reason.into_iter().map(|(reason, shown, number)| FailureGroup {
            reason,
            count: Counted { number, or_more },
            samples: shown.iter().filter_map(view).collect(),
        });
        Ok(groups.collect())
    }

    pub(super) fn count_retry(&mut self, job: JobId, filter: &RetryFilter, most: u32) -> Result<Counted> {
        let limit = i64::from(most) + 1;
        if let (Some(status), None) = (filter.only_status(), &filter.matching) {
            let sql = "SELECT count(*) FROM (SELECT 1 FROM task WHERE job_id = $1 AND state = 'failed'
                AND reason_of(status, last_outcome) = $2 LIMIT $3) AS counted";
            let row = self.one(sql, &[&id_of(job), &status.to_string(), &limit])?;
            return Ok(Counted::up_to(row.get::<_, i64>(0).max(0) as u64, most));
        }
        let wanted: Vec<String> = filter.failures.iter().map(stored_form).collect();
        let wanted: Vec<&str> = wanted.iter().map(String::as_str).collect();
        let Some(selected) = selected(&wanted, filter.matching.as_deref()) else {
            return Ok(Counted::default());
        };
        // What may be read is limited, whatever is found in it.
        let sql = format!(
            "SELECT count(*), count(*) FILTER (WHERE found) FROM (SELECT coalesce({}, false) AS found FROM task
                WHERE job_id = $1 AND state IN ('failed', 'skipped') LIMIT $3) AS read",
            selected.condition("$2")
        );
        let row = self.one(&sql, &[&id_of(job), &selected.url, &limit])?;
        let (read, found): (i64, i64) = (row.get(0), row.get(1));
        Ok(Counted { number: (found.max(0) as u64).min(u64::from(most)), or_more: read == limit })
    }
}
