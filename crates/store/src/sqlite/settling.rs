//! Settles tasks: writes their results, and counts them in their jobs.

use std::collections::{BTreeMap, HashMap};

use comity_core::outcome::Outcome;
use comity_core::task::JobId;
use comity_core::time::Timestamp;
use rusqlite::{CachedStatement, OptionalExtension, params};

use super::results::Ended;
use super::tasks::micros;
use super::us;
use super::writer::Tx;
use crate::domains::{HolderId, Tenure};
use crate::tasks::{Attempt, JOB_ENDED, PageFacts, RedirectBody, Settle, Settled, Step};

impl Tx<'_> {
    pub(super) fn settle(
        &mut self,
        holder: HolderId,
        settles: &[Settle],
        now: Timestamp,
    ) -> rusqlite::Result<Vec<Settled>> {
        let lives = self.is_holder(holder)?;
        let mut lanes: HashMap<(JobId, Tenure), Option<i64>> = HashMap::new();
        let mut tallies: BTreeMap<JobId, Tally> = BTreeMap::new();
        let mut results = Vec::with_capacity(settles.len());
        let mut end_fetched = self.sql.prepare_cached(END_FETCHED)?;
        for settle in settles {
            let lane = match lanes.get(&(settle.job, settle.tenure)) {
                Some(lane) => *lane,
                None => {
                    let lane = if lives { self.held_lane(holder, settle.job, settle.tenure)? } else { None };
                    *lanes.entry((settle.job, settle.tenure)).or_insert(lane)
                }
            };
            let Some(lane) = lane else {
                results.push(Settled::Fenced);
                continue;
            };
            let tally = tallies.entry(settle.job).or_default();
            let is_plain = is_in_row(settle) && end_plain(&mut end_fetched, lane, settle, now)?;
            if is_plain {
                tally.count(settle);
            }
            let taken = is_plain || self.settle_one(lane, settle, tally, now)?;
            results.push(if taken { Settled::Yes } else { Settled::Fenced });
        }
        for (job, tally) in tallies {
            let sql = "UPDATE jobs SET done = done + ?2, failed = failed + ?3, skipped = skipped + ?4,
                rate_limited = rate_limited + ?5, retries = retries + ?6 WHERE id = ?1";
            let Tally { done, failed, skipped, rate_limited, retries } = tally;
            self.sql.prepare_cached(sql)?.execute([
                job.0 as i64,
                done,
                failed,
                skipped,
                rate_limited,
                retries,
            ])?;
        }
        Ok(results)
    }

    /// The lane of a job on a domain, if this holder holds the domain.
    fn held_lane(&self, holder: HolderId, job: JobId, tenure: Tenure) -> rusqlite::Result<Option<i64>> {
        let sql = "SELECT lanes.id FROM domains JOIN lanes ON domain_id = domains.id AND job_id = ?4
            WHERE domains.id = ?1 AND domains.holder = ?2 AND epoch = ?3";
        let held = [tenure.key.0, holder.0, tenure.epoch, job.0 as i64];
        self.sql.prepare_cached(sql)?.query_row(held, |row| row.get(0)).optional()
    }

    /// Writes the result of one task; false if it is no longer waiting, nor ended with its job while it was in flight.
    fn settle_one(
        &mut self,
        lane: i64,
        settle: &Settle,
        tally: &mut Tally,
        now: Timestamp,
    ) -> rusqlite::Result<bool> {
        let id = settle.task.0 as i64;
        // A task that moved to another domain belongs to another holder.
        let sql = "SELECT item_id, requests, state = 'skipped', state = 'done' FROM tasks
            WHERE id = ?1 AND job_id = ?2 AND lane_id = ?3 AND (state = 'waiting'
                OR state IN ('skipped', 'done') AND error = ?4 AND item_id IS NULL)";
        let mut statement = self.sql.prepare_cached(sql)?;
        let row = params![id, settle.job.0 as i64, lane, JOB_ENDED];
        let row = statement.query_row(row, |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)));
        let row: Option<(Option<i64>, i64, bool, bool)> = row.optional()?;
        let Some((item, requests, was_skipped, was_done)) = row else { return Ok(false) };
        drop(statement);
        if (was_skipped || was_done) && !matches!(settle.step, Step::Done { .. } | Step::Failed { .. }) {
            return Ok(false);
        }
        let last = settle.attempts.last();
        let (started, took, outcome) = (
            last.map(|attempt| us(attempt.started_at)),
            last.map(|attempt| micros(attempt.took)),
            last.map(|attempt| attempt.outcome.as_str()),
        );
        let (attempts, last_status) = (settle.attempts.len() as i64, last.and_then(|attempt| attempt.status));
        let changed = match &settle.step {
            Step::Done { status, bytes, content_type, .. } => {
                self.end_done(settle, *status, *bytes, content_type.as_deref(), now)?
            }
            Step::Failed { error, status } => {
                self.end_otherwise(settle, Ended { state: "failed", status: *status, error }, now)?
            }
            Step::Skipped { reason } => {
                self.end_otherwise(settle, Ended { state: "skipped", status: None, error: reason }, now)?
            }
            Step::Retry { ready_at, retries, forgiven, error } => {
                let sql = "UPDATE tasks SET ready_us = ?2, retries = ?3, forgiven = ?4, error = ?5,
                    requests = requests + ?6, last_us = coalesce(?7, last_us), last_took_us = coalesce(?8, last_took_us),
                    last_outcome = coalesce(?9, last_outcome), status = coalesce(?10, status) WHERE id = ?1 AND state = 'waiting'";
                let row = params![
                    id,
                    us(*ready_at),
                    retries,
                    forgiven,
                    error,
                    attempts,
                    started,
                    took,
                    outcome,
                    last_status
                ];
                self.sql.prepare_cached(sql)?.execute(row)?
            }
            Step::Moved { domain, at_url, hops, body } => {
                let lane = self.lane_id(settle.job.0 as i64, domain.as_str())?;
                let sql = "UPDATE tasks SET home_lane_id = coalesce(home_lane_id, lane_id), lane_id = ?2,
                    at_url = coalesce(?3, at_url), hops = ?4, ready_us = ?5, requests = requests + ?6,
                    last_us = coalesce(?7, last_us), last_took_us = coalesce(?8, last_took_us),
                    last_outcome = coalesce(?9, last_outcome), bodiless = bodiless OR ?10, status = coalesce(?11, status)
                    WHERE id = ?1 AND state = 'waiting'";
                let bodiless = *body == RedirectBody::Dropped;
                let row = params![
                    id,
                    lane,
                    at_url,
                    hops,
                    us(now),
                    attempts,
                    started,
                    took,
                    outcome,
                    bodiless,
                    last_status
                ];
                let changed = self.sql.prepare_cached(sql)?.execute(row)?;
                self.make_due(lane, now)?;
                changed
            }
        };
        if changed == 0 {
            return Ok(false);
        }
        tally.count(settle);
        tally.skipped -= i64::from(was_skipped);
        tally.done -= i64::from(was_done);
        if let Some(item) = item {
            self.settle_item(item, settle, now)?;
        }
        if requests > 0 || !is_in_row(settle) {
            settle.attempts.iter().try_for_each(|attempt| self.log_attempt(id, attempt))?;
        }
        Ok(true)
    }

    fn log_attempt(&self, task: i64, attempt: &Attempt) -> rusqlite::Result<()> {
        let Attempt { started_at, took, outcome, status } = attempt;
        let sql = "INSERT OR REPLACE INTO logged_attempts (task_id, started_us, took_us, outcome, status)
            VALUES (?1, ?2, ?3, ?4, ?5)";
        let took = micros(*took);
        let mut statement = self.sql.prepare_cached(sql)?;
        statement.execute(params![task, us(*started_at), took, outcome.as_str(), status]).map(|_| ())
    }
}

/// Ends a task in one statement, if it is the most common one by far: a waiting task without an item that was fetched with
/// its first request. False if it is another one, and then nothing was written.
fn end_plain(
    end_fetched: &mut CachedStatement<'_>,
    lane: i64,
    settle: &Settle,
    now: Timestamp,
) -> rusqlite::Result<bool> {
    let (Step::Done { status, bytes, content_type, .. }, [attempt]) = (&settle.step, &settle.attempts[..])
    else {
        return Ok(false);
    };
    let PageFacts { final_url, fetched_at, sha256, file, etag, last_modified } = &*settle.facts;
    let changed = end_fetched.execute(params![
        settle.task.0 as i64,
        status,
        *bytes as i64,
        us(now),
        us(attempt.started_at),
        micros(attempt.took),
        attempt.outcome.as_str(),
        fetched_at.map(us),
        final_url,
        content_type,
        sha256,
        file,
        etag,
        last_modified,
        lane,
        settle.job.0 as i64,
    ])?;
    Ok(changed > 0)
}

/// Whether the row of a settled task says everything about its attempt: there was only one, and the task ended with it.
fn is_in_row(settle: &Settle) -> bool {
    let status = match &settle.step {
        Step::Done { status, .. } => Some(*status),
        Step::Failed { status, .. } => *status,
        Step::Skipped { .. } | Step::Retry { .. } | Step::Moved { .. } => return false,
    };
    matches!(settle.attempts.as_slice(), [attempt] if attempt.status == status)
}

/// What a batch of results adds to the counts of a job.
#[derive(Debug, Default)]
struct Tally {
    done: i64,
    failed: i64,
    skipped: i64,
    rate_limited: i64,
    retries: i64,
}

impl Tally {
    fn count(&mut self, settle: &Settle) {
        match settle.step {
            Step::Done { .. } => self.done += 1,
            Step::Failed { .. } => self.failed += 1,
            Step::Skipped { .. } => self.skipped += 1,
            Step::Retry { .. } => self.retries += 1,
            Step::Moved { .. } => {}
        }
        let limited = settle.attempts.iter().filter(|attempt| attempt.outcome == Outcome::RateLimited);
        self.rate_limited += limited.count() as i64;
    }
}

/// Does what [`Tx::settle_one`] does with a task that is done, for the tasks of [`end_plain`].
///
/// `OR FAIL` makes no difference to the result, because any error rolls back more than this statement. But without it,
/// SQLite would keep copies of the pages that are changed, to be able to roll back the statement alone.
const END_FETCHED: &str = "UPDATE OR FAIL tasks SET state = 'done', status = ?2, bytes = ?3, error = NULL,
    settled_us = ?4, requests = 1, last_us = ?5, last_took_us = ?6, last_outcome = ?7, fetched_us = ?8,
    final_url = ?9, content_type = ?10, changed = NOT (?2 = 304 OR sha256 IS NOT NULL AND sha256 IS ?11),
    sha256 = ?11, file = ?12, etag = ?13, last_modified = ?14
    WHERE id = ?1 AND state = 'waiting' AND lane_id = ?15 AND job_id = ?16 AND item_id IS NULL AND requests = 0";
