//! Finds jobs and counts them; groups failed and skipped tasks by what they have in common, without reading all of them.

use std::collections::HashMap;

use comity_core::task::{JobId, JobState};
use rusqlite::{OptionalExtension, params};

use super::holders::Liveness;
use super::job_retry::{kinds, stored_form};
use super::jobs::{JOBS, job_of};
use super::results::{VIEW, view_of};
use super::writer::Tx;
use crate::jobs::{
    Counted, FailureGroup, FailureReason, GROUP_COUNTED_MAX, GROUPS_MAX, Job, JobQuery, JobTally,
    RetryFilter, SKIPPED_READ_MAX,
};
use crate::tasks::TaskView;

impl Tx<'_> {
    pub(super) fn search_jobs(&self, liveness: &Liveness, query: &JobQuery) -> rusqlite::Result<Vec<Job>> {
        let JobQuery { like, state, older_than, limit } = query;
        // Whether somebody works on a job that is not over is only known when it was read.
        let stored = state.as_deref().map(|word| if word == "stopped" { "running" } else { word });
        let named = if like.is_empty() { "?2 = ''" } else { "instr(name, ?2)" };
        let in_state = match state.as_deref() {
            None => "?3 IS NULL",
            // Nobody works on the others.
            Some("running") => {
                "state = ?3 AND id IN (SELECT job_id FROM workers UNION SELECT job_id FROM fillers)"
            }
            Some(_) => "state = ?3",
        };
        let sql = format!("{JOBS} WHERE id < ?1 AND {named} AND {in_state} ORDER BY id DESC LIMIT ?4");
        let (limit, mut before, mut found) =
            (*limit as usize, older_than.map_or(i64::MAX, |job| job.0 as i64), Vec::new());
        loop {
            let part = limit.max(1) as i64;
            let jobs = self.readable("jobs", &sql, params![before, like, stored, part], job_of)?;
            let is_last = (jobs.len() as i64) < part;
            before = jobs.last().map_or(0, |job| job.id.0 as i64);
            for job in jobs {
                let job = self.with_activity(liveness, job)?;
                if state.as_deref().is_none_or(|state| job.state_word() == state) {
                    found.push(job);
                }
            }
            if is_last || found.len() >= limit {
                found.truncate(limit);
                return Ok(found);
            }
        }
    }

    pub(super) fn tally_jobs(&self, liveness: &Liveness) -> rusqlite::Result<JobTally> {
        let mut statement = self.sql.prepare_cached("SELECT state, count(*) FROM jobs GROUP BY state")?;
        let counts: HashMap<String, i64> = statement
            .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
            .collect::<rusqlite::Result<_>>()?;
        let count = |state: JobState| counts.get(state.as_str()).map_or(0, |count| (*count).max(0) as u64);
        let sql = "SELECT id FROM jobs WHERE state = 'running'
            AND id IN (SELECT job_id FROM workers UNION SELECT job_id FROM fillers)";
        let mut statement = self.sql.prepare_cached(sql)?;
        let busy: Vec<i64> = statement.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
        let mut running = 0;
        for job in busy {
            running += u64::from(self.activity(liveness, JobId(job as u64))?.0);
        }
        Ok(JobTally {
            running,
            stopped: count(JobState::Running).saturating_sub(running),
            done: count(JobState::Done),
            failed: count(JobState::Failed),
            cancelled: count(JobState::Cancelled),
        })
    }

    pub(super) fn failure_groups(&self, job: JobId, samples: u32) -> rusqlite::Result<Vec<FailureGroup>> {
        let mut groups = self.failed_groups(job, samples)?;
        groups.extend(self.skipped_groups(job, samples)?);
        groups.sort_by_key(|group| std::cmp::Reverse(group.count.number));
        Ok(groups)
    }

    /// Jumps from one reason to the next in the index, however many tasks there are.
    fn failed_groups(&self, job: JobId, samples: u32) -> rusqlite::Result<Vec<FailureGroup>> {
        let (id, mut groups, mut last) = (job.0 as i64, Vec::new(), None::<String>);
        let next = format!(
            "SELECT {REASON} FROM tasks WHERE job_id = ?1 AND state = 'failed' AND {REASON} > ?2
            ORDER BY {REASON} LIMIT 1"
        );
        let first = format!(
            "SELECT {REASON} FROM tasks WHERE job_id = ?1 AND state = 'failed' AND ?2 IS NULL ORDER BY {REASON} LIMIT 1"
        );
        while groups.len() < GROUPS_MAX {
            let sql = if last.is_some() { &next } else { &first };
            let found =
                self.sql.prepare_cached(sql)?.query_row(params![id, last], |row| row.get(0)).optional()?;
            let Some(reason): Option<String> = found else { break };
            let sql = format!(
                "SELECT {VIEW} FROM tasks WHERE job_id = ?1 AND state = 'failed' AND {REASON} = ?2
                ORDER BY settled_us DESC LIMIT ?3"
            );
            groups.push(FailureGroup {
                reason: FailureReason::of_failed(&reason),
                count: self.count_failed(id, &reason, GROUP_COUNTED_MAX)?,
                samples: self.readable("tasks", &sql, params![id, reason, samples], view_of)?,
            });
            last = Some(reason);
        }
        Ok(groups)
    }

    fn count_failed(&self, job: i64, reason: &str, most: u32) -> rusqlite::Result<Counted> {
        let sql = format!(
            "SELECT count(*) FROM (SELECT 1 FROM tasks WHERE job_id = ?1 AND state = 'failed' AND {REASON} = ?2 LIMIT ?3)"
        );
        let row = params![job, reason, i64::from(most) + 1];
        let count: i64 = self.sql.prepare_cached(&sql)?.query_row(row, |row| row.get(0))?;
        Ok(Counted::up_to(count.max(0) as u64, most))
    }

    /// Reads the tasks that were skipped last. Mostly, there is one reason for all of them.
    fn skipped_groups(&self, job: JobId, samples: u32) -> rusqlite::Result<Vec<FailureGroup>> {
        let sql = "SELECT id, error FROM tasks WHERE job_id = ?1 AND state = 'skipped' AND state IN ('failed', 'skipped')
            ORDER BY settled_us DESC LIMIT ?2";
        let most = i64::from(SKIPPED_READ_MAX);
        let read = |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, Option<String>>(1)?));
        let tasks = self.readable("tasks", sql, params![job.0 as i64, most], read)?;
        let or_more = tasks.len() as i64 == most;
        let mut by_reason: Vec<(FailureReason, Vec<i64>, u64)> = Vec::new();
        for (task, error) in tasks {
            let reason = FailureReason::of_skipped(error.as_deref());
            let nth = by_reason.iter().position(|(known, ..)| *known == reason).unwrap_or_else(|| {
                by_reason.push((reason, Vec::new(), 0));
                by_reason.len() - 1
            });
            let (_, shown, count) = &mut by_reason[nth];
            *count += 1;
            if shown.len() < samples as usize {
                shown.push(task);
            }
        }
        let of = |(reason, shown, number): (FailureReason, Vec<i64>, u64)| {
            Ok(FailureGroup { reason, count: Counted { number, or_more }, samples: self.views_of(&shown)? })
        };
        by_reason.into_iter().map(of).collect()
    }

    fn views_of(&self, tasks: &[i64]) -> rusqlite::Result<Vec<TaskView>> {
        let sql = format!("SELECT {VIEW} FROM tasks WHERE id = ?1");
        let mut views = Vec::new();
        for task in tasks {
            views.extend(self.readable("tasks", &sql, [task], view_of)?);
        }
        Ok(views)
    }

    pub(super) fn count_retry(
        &self,
        job: JobId,
        filter: &RetryFilter,
        most: u32,
    ) -> rusqlite::Result<Counted> {
        let id = job.0 as i64;
        if let (Some(status), None) = (filter.only_status(), &filter.matching) {
            return self.count_failed(id, &status.to_string(), most);
        }
        let wanted: Vec<String> = filter.failures.iter().map(stored_form).collect();
        let wanted: Vec<&str> = wanted.iter().map(String::as_str).collect();
        let matching = filter.matching.as_deref();
        let mut counted = Counted::default();
        for (state, only, like) in kinds(&wanted, matching) {
            // What may be read is limited, whatever is found in it.
            let sql = format!(
                "SELECT count(*), coalesce(sum(found), 0) FROM (SELECT coalesce(error, '') GLOB ?3 AND url GLOB ?4 AND {like}
                AS found FROM tasks WHERE job_id = ?1 AND state = ?2 AND state IN ('failed', 'skipped') LIMIT ?5)"
            );
            if like == "0" {
                continue;
            }
            let most = i64::from(most) + 1;
            let row = params![id, state, only, matching.unwrap_or("*"), most];
            let (read, found): (i64, i64) =
                self.sql.prepare_cached(&sql)?.query_row(row, |row| Ok((row.get(0)?, row.get(1)?)))?;
            counted.number += found.max(0) as u64;
            counted.or_more |= read == most;
        }
        Ok(Counted { number: counted.number.min(u64::from(most)), ..counted })
    }
}

/// What failed tasks have in common: the status of the last response, or else the outcome of the last attempt. The index of
/// failed tasks is sorted by exactly this.
const REASON: &str = "coalesce(CAST(status AS TEXT), last_outcome, '')";
