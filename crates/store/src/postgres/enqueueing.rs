//! Adds tasks to jobs, each once, and reopens jobs that were done.
//!
//! What makes two tasks the same one is in `request_parts`; tasks of items are made in `scrapes`.

use std::borrow::Cow;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

use comity_core::task::JobId;
use comity_core::time::Timestamp;

use super::failure::Result;
use super::param::{Param, text};
use super::request_parts::{is_same, key_of};
use super::tx::Tx;
use super::us;
use crate::tasks::{Enqueued, Lead, NewTask, RequestParts, origin_of};

impl Tx<'_> {
    pub(super) fn enqueue(&mut self, job: JobId, tasks: &[NewTask], now: Timestamp) -> Result<Enqueued> {
        let id = job.0 as i64;
        let mut enqueued = Enqueued::default();
        if tasks.is_empty() {
            return Ok(enqueued);
        }
        // Two callers that add the same URLs in a different order would wait for each other in a circle.
        self.lock("enqueue", id)?;
        let sql = "SELECT pruned_us IS NOT NULL FROM job WHERE id = $1 AND state IN ('running', 'done') FOR KEY SHARE";
        let Some(row) = self.row(sql, &[&id])? else {
            enqueued.refused = tasks.len() as u64;
            return Ok(enqueued);
        };
        let was_pruned: bool = row.get(0);
        let mut got_tasks = Vec::new();
        for part in tasks.chunks(PART) {
            let domains: Vec<&str> = part.iter().map(|task| task.domain.as_str()).collect();
            let lanes = self.lane_ids(id, &domains)?;
            let listed = part.iter().filter(|task| task.lead == Lead::Listed);
            self.list_origins(id, listed.map(|task| origin_of(&task.url)).collect())?;
            for (lane, new) in self.add_tasks(job, part, &lanes, now)? {
                got_tasks.push(lane);
                enqueued.new += new;
            }
        }
        enqueued.known = tasks.len() as u64 - enqueued.new;
        got_tasks.sort_unstable();
        got_tasks.dedup();
        self.make_due(&got_tasks, now)?;
        if enqueued.new > 0 {
            if was_pruned {
                self.forget_pruned(id, enqueued.new)?;
            }
            // A new task reopens a job that is done.
            let sql = "UPDATE job SET tasks = tasks + $2, state = 'running', ended_us = NULL, message = NULL WHERE id = $1";
            self.change(sql, &[&id, &(enqueued.new as i64)])?;
            self.tell();
        }
        Ok(enqueued)
    }

    /// Adds those tasks that the job doesn't have yet, in the given order. Returns how many were added to which lane.
    fn add_tasks(
        &mut self,
        job: JobId,
        tasks: &[NewTask],
        lanes: &[i64],
        now: Timestamp,
    ) -> Result<Vec<(i64, u64)>> {
        let mut by_key = HashMap::with_capacity(tasks.len());
        let to_add = std::iter::zip(tasks, lanes).filter_map(|(task, lane)| {
            let key = free_key(&mut by_key, key_of(job, task), task)?;
            Some(Row { key, lane: *lane, task })
        });
        let mut to_add: Vec<Row<'_>> = to_add.collect();
        let mut added = Vec::new();
        while !to_add.is_empty() {
            let other_tasks = self.insert_tasks(job, &to_add, now, &mut added)?;
            // If different tasks have the same key, the later one gets the next free key.
            let again = other_tasks.into_iter().filter_map(|nth| {
                let Row { key, lane, task } = *to_add.get(nth)?;
                Some(Row { key: free_key(&mut by_key, key.wrapping_add(1), task)?, lane, task })
            });
            to_add = again.collect();
        }
        Ok(added)
    }

    /// Inserts rows whose keys are free. Returns the indexes of those whose key belongs to another task.
    fn insert_tasks(
        &mut self,
        job: JobId,
        rows: &[Row<'_>],
        now: Timestamp,
        added: &mut Vec<(i64, u64)>,
    ) -> Result<Vec<usize>> {
        let lanes: Vec<i64> = rows.iter().map(|row| row.lane).collect();
        let keys: Vec<i64> = rows.iter().map(|row| row.key).collect();
        let urls: Vec<Cow<'_, str>> = rows.iter().map(|row| text(&row.task.url)).collect();
        let leads: Vec<&str> = rows.iter().map(|row| row.task.lead.as_str()).collect();
        let sends: Vec<_> = rows.iter().map(|row| row.task.sends.as_deref()).collect();
        let methods: Vec<_> = sends.iter().map(|sends| sends.map(|sends| text(&sends.method))).collect();
        let bodies: Vec<_> = sends.iter().map(|sends| sends.map(|sends| &sends.body[..])).collect();
        let headers = |sends: &RequestParts| serde_json::json!(sends.headers).to_string();
        let headers: Vec<_> = sends.iter().map(|sends| sends.map(headers)).collect();
        // The job's tasks are looked up once; whoever else adds some waits for the lock, and any other task has a key that is
        // its own.
        let sql = "WITH given AS MATERIALIZED (
                SELECT new.*, known.is_other FROM unnest($3, $4, $5, $6, $7, $8, $9) WITH ORDINALITY
                    AS new (lane_id, url_key, url, lead, method, body, headers, nth)
                LEFT JOIN LATERAL (SELECT task.url <> new.url
                        OR coalesce(task.method, 'GET') <> coalesce(new.method, 'GET')
                        OR coalesce(task.body, '') <> coalesce(new.body, '') AS is_other
                    FROM task WHERE task.job_id = $1 AND task.url_key = new.url_key LIMIT 1) AS known ON true
            ), added AS (
                INSERT INTO task (job_id, lane_id, url, url_key, lead, ready_us, method, body, headers)
                SELECT $1, lane_id, url, url_key, lead, $2, method, body, headers FROM given
                WHERE is_other IS NULL ORDER BY nth ON CONFLICT (job_id, url_key) DO NOTHING RETURNING lane_id
            )
            SELECT lane_id, count(*), NULL FROM added GROUP BY lane_id
            UNION ALL SELECT NULL, NULL, nth FROM given WHERE is_other";
        let params: [&dyn Param; 9] =
            [&(job.0 as i64), &us(now), &lanes, &keys, &urls, &leads, &methods, &bodies, &headers];
        let mut other_tasks = Vec::new();
        for row in self.change_rows(sql, &params)? {
            match row.get::<_, Option<i64>>(0) {
                Some(lane) => added.push((lane, row.get::<_, i64>(1) as u64)),
                None => other_tasks.push((row.get::<_, i64>(2) - 1) as usize),
            }
        }
        Ok(other_tasks)
    }

    /// Drops deleted tasks from the counts of a job that gets new ones: a URL that is added again must not count twice.
    /// `new` tasks were inserted and are not counted yet.
    fn forget_pruned(&mut self, job: i64, new: u64) -> Result<()> {
        let sql = "UPDATE job SET pruned_us = NULL, tasks = left_over.tasks - $2, done = left_over.done,
            failed = left_over.failed, skipped = left_over.skipped,
            rate_limited = CASE WHEN left_over.tasks > $2 THEN rate_limited ELSE 0 END,
            retries = CASE WHEN left_over.tasks > $2 THEN retries ELSE 0 END
            FROM (SELECT count(*) AS tasks, count(*) FILTER (WHERE state = 'done') AS done,
                count(*) FILTER (WHERE state = 'failed') AS failed,
                count(*) FILTER (WHERE state = 'skipped') AS skipped FROM task WHERE job_id = $1) AS left_over
            WHERE id = $1";
        self.change(sql, &[&job, &(new as i64)]).map(|_| ())
    }
}

/// A task to insert.
struct Row<'a> {
    key: i64,
    lane: i64,
    task: &'a NewTask,
}

/// The first key from `key` on that no different task of the same call has; `None` if this call has the task already.
fn free_key<'a>(by_key: &mut HashMap<i64, &'a NewTask>, mut key: i64, task: &'a NewTask) -> Option<i64> {
    loop {
        match by_key.entry(key) {
            Entry::Vacant(entry) => {
                entry.insert(task);
                return Some(key);
            }
            Entry::Occupied(other) if is_same(other.get(), task) => return None,
            Entry::Occupied(_) => key = key.wrapping_add(1),
        }
    }
}

/// The maximum number of tasks that are added by one statement.
const PART: usize = 20_000;
