//! Claims lanes and reads their tasks, all lanes of a call together.
//!
//! Whether a domain is taken with a claim is decided in `domains`; giving lanes back is in `tasks`.

use std::collections::BTreeMap;

use comity_core::domain::Domain;
use comity_core::time::{Span, Timestamp};

use super::failure::Result;
use super::param::text;
use super::results::{TASK, task_of};
use super::tx::Tx;
use super::us;
use crate::domains::{HolderId, Take};
use crate::tasks::{Claim, Claimed, LaneId, Refill, TaskRow};

impl Tx<'_> {
    pub(super) fn claim(&mut self, holder: HolderId, claim: Claim, now: Timestamp) -> Result<Vec<Claimed>> {
        if !self.is_holder(holder)? {
            return Ok(Vec::new());
        }
        let job = claim.job.0 as i64;
        let Due { lanes, to_end } = self.due_lanes(job, claim.lanes, now)?;
        let mut written = Lanes::default();
        // The lanes are locked, so their tasks are read after whatever made them due was committed.
        let read: Vec<Refill> = lanes
            .iter()
            .map(|lane| Refill { lane: LaneId(lane.id), after: None, limit: claim.tasks })
            .collect();
        let mut to_take = Vec::new();
        for (lane, tasks) in std::iter::zip(lanes, self.read_lanes(&read)?) {
            match tasks.first().map(|first| first.ready_at) {
                None => written.set(lane.id, None, None),
                Some(ready_at) if ready_at > now => written.set(lane.id, None, Some(ready_at)),
                Some(_) => to_take.push((lane, tasks)),
            }
        }
        let ids: Vec<i64> = to_take.iter().map(|(lane, _)| lane.domain_id).collect();
        let takes = if ids.is_empty() { Vec::new() } else { self.take_domains(holder, &ids, now)? };
        let mut claimed = Vec::with_capacity(ids.len());
        for ((lane, tasks), take) in std::iter::zip(to_take, takes) {
            if let Take::Held { .. } = take {
                // The holder makes the lane due when it releases the domain; this is for a holder that does not.
                written.set(lane.id, None, Some(now + PARKED));
                continue;
            }
            written.set(lane.id, Some(holder), None);
            let Lane { id, domain, .. } = lane;
            claimed.push(Claimed { lane: LaneId(id), job: claim.job, domain, take, tasks });
        }
        self.write_lanes(&written)?;
        self.end_lanes(job, &to_end, now)?;
        Ok(claimed)
    }

    /// Locks lanes that are due and that nobody else is looking at.
    fn due_lanes(&mut self, job: i64, limit: u32, now: Timestamp) -> Result<Due> {
        let sql = "WITH due AS MATERIALIZED (
                SELECT id, domain_id, due_us, given_up FROM lane
                WHERE job_id = $1 AND holder IS NULL AND due_us <= $2 ORDER BY due_us LIMIT $3
                FOR NO KEY UPDATE SKIP LOCKED
            )
            SELECT due.id, domain_id, given_up, domain FROM due LEFT JOIN domain ON domain.id = domain_id
            ORDER BY due_us, due.id";
        let mut due = Due::default();
        for row in self.rows(sql, &[&job, &us(now), &i64::from(limit)])? {
            let (id, domain_id): (i64, i64) = (row.get(0), row.get(1));
            let (given_up, name): (Option<String>, Option<&str>) = (row.get(2), row.get(3));
            match (Domain::read_back(name.unwrap_or_default()), given_up) {
                (Err(why), _) => {
                    tracing::warn!(lane = id, domain = name, %why, "skipped a lane whose site cannot be read");
                    let error = format!("its site cannot be read from the store: {why}");
                    due.to_end.push((id, "failed", error));
                }
                (Ok(_), Some(reason)) => due.to_end.push((id, "skipped", reason)),
                (Ok(domain), None) => due.lanes.push(Lane { id, domain_id, domain }),
            }
        }
        Ok(due)
    }

    /// Ends a batch of the tasks waiting in lanes, each with a state and an error. Lanes with more of them stay due.
    fn end_lanes(&mut self, job: i64, lanes: &[(i64, &'static str, String)], now: Timestamp) -> Result<()> {
        if lanes.is_empty() {
            return Ok(());
        }
        // Somebody who has locked the job may be waiting for one of these lanes. They stay due, and are ended with the next claim.
        let sql = "SELECT 1 FROM job WHERE id = $1 FOR NO KEY UPDATE SKIP LOCKED";
        if !self.exists(sql, &[&job])? {
            return Ok(());
        }
        let ids: Vec<i64> = lanes.iter().map(|(lane, ..)| *lane).collect();
        let states: Vec<&str> = lanes.iter().map(|(_, state, _)| *state).collect();
        let errors: Vec<_> = lanes.iter().map(|(.., error)| text(error)).collect();
        let sql = "WITH ending AS MATERIALIZED (
                SELECT waiting.id, 'waiting' AS was, lane.state, lane.error
                FROM unnest($1, $2, $3) AS lane (id, state, error)
                CROSS JOIN LATERAL (SELECT id FROM task WHERE lane_id = lane.id AND state = 'waiting' LIMIT $5) AS waiting
                LIMIT $5
            ), ended AS (
                UPDATE task SET state = ending.state, error = ending.error, settled_us = $4
                FROM ending WHERE task.id = ending.id AND task.state = ending.was RETURNING task.state
            ) SELECT count(*) FILTER (WHERE state = 'failed'), count(*) FILTER (WHERE state = 'skipped') FROM ended";
        let ended = self.change_rows(sql, &[&ids, &states, &errors, &us(now), &PART])?;
        let count = |nth| ended.first().map_or(0, |row| row.get::<_, i64>(nth));
        let sql = "UPDATE lane SET due_us = NULL WHERE id = ANY($1)
            AND NOT EXISTS (SELECT 1 FROM task WHERE lane_id = lane.id AND state = 'waiting')";
        self.change(sql, &[&ids])?;
        let sql = "UPDATE job SET failed = failed + $2, skipped = skipped + $3 WHERE id = $1";
        self.change(sql, &[&job, &count(0), &count(1)]).map(|_| ())
    }

    fn write_lanes(&mut self, written: &Lanes) -> Result<()> {
        let Lanes { ids, holders, due } = written;
        if ids.is_empty() {
            return Ok(());
        }
        let sql = "UPDATE lane SET holder = new.holder, due_us = new.due_us
            FROM unnest($1, $2, $3) AS new (id, holder, due_us) WHERE lane.id = new.id";
        self.change(sql, &[ids, holders, due]).map(|_| ())
    }

    /// Reads tasks of lanes, for each of them in its own list. Tasks that cannot be read fail.
    pub(super) fn read_lanes(&mut self, refills: &[Refill]) -> Result<Vec<Vec<TaskRow>>> {
        if refills.is_empty() {
            return Ok(Vec::new());
        }
        let lanes: Vec<i64> = refills.iter().map(|refill| refill.lane.0).collect();
        // The planner has to know how few are wanted: otherwise it might sort all tasks of a crowded lane.
        let limit = refills.iter().map(|refill| i64::from(refill.limit)).max().unwrap_or_default();
        let after = |refill: &Refill| {
            refill.after.map_or((i64::MIN, 0), |after| (us(after.ready_at), after.task.0 as i64))
        };
        let (ready, ids): (Vec<i64>, Vec<i64>) = refills.iter().map(after).unzip();
        let sql = format!(
            "SELECT nth, {TASK} FROM unnest($1, $2, $3) WITH ORDINALITY AS lane (id, ready_us, task_id, nth)
            CROSS JOIN LATERAL (SELECT * FROM task WHERE lane_id = lane.id AND state = 'waiting'
                AND (task.ready_us, task.id) > (lane.ready_us, lane.task_id)
                ORDER BY task.ready_us, task.id LIMIT $4) AS task
            ORDER BY nth, task.ready_us, task.id"
        );
        loop {
            let mut tasks: Vec<Vec<TaskRow>> = vec![Vec::new(); refills.len()];
            let mut unreadable = BTreeMap::new();
            for row in self.rows(&sql, &[&lanes, &ready, &ids, &limit])? {
                let nth = row.get::<_, i64>(0) as usize - 1;
                match (task_of(&row, 1), tasks.get_mut(nth)) {
                    (Ok(task), Some(tasks)) => tasks.push(task),
                    (Err(why), _) => drop(unreadable.insert(row.get::<_, i64>(1), why)),
                    (Ok(_), None) => {}
                }
            }
            if unreadable.is_empty() {
                for (tasks, refill) in std::iter::zip(&mut tasks, refills) {
                    tasks.truncate(refill.limit as usize);
                }
                return Ok(tasks);
            }
            self.fail_unreadable(&unreadable)?;
        }
    }

    /// Lets tasks fail that are waiting and cannot be read, so that the ones after them are.
    fn fail_unreadable(&mut self, unreadable: &BTreeMap<i64, String>) -> Result<()> {
        let (ids, why): (Vec<i64>, Vec<&String>) = unreadable.iter().map(|(id, why)| (*id, why)).unzip();
        for (id, why) in std::iter::zip(&ids, &why) {
            tracing::warn!(
                table = "task",
                key = id,
                why,
                "skipped a row of the store that could not be read"
            );
        }
        let errors: Vec<_> =
            why.iter().map(|why| format!("its row in the store cannot be read: {why}")).collect();
        let errors: Vec<_> = errors.iter().map(|error| text(error)).collect();
        let sql = "WITH failed AS (
                UPDATE task SET state = 'failed', error = bad.error FROM unnest($1, $2) AS bad (id, error)
                WHERE task.id = bad.id AND state = 'waiting' RETURNING job_id
            ) UPDATE job SET failed = failed + n FROM (SELECT job_id, count(*) AS n FROM failed GROUP BY job_id) AS counted
            WHERE job.id = counted.job_id";
        self.change(sql, &[&ids, &errors]).map(|_| ())
    }
}

/// Lanes that are due.
#[derive(Default)]
struct Due {
    lanes: Vec<Lane>,
    /// Those whose tasks end without being worked on, in which state and why.
    to_end: Vec<(i64, &'static str, String)>,
}

struct Lane {
    id: i64,
    domain_id: i64,
    domain: Domain,
}

/// What is written to lanes: who serves them, and when they are due.
#[derive(Default)]
struct Lanes {
    ids: Vec<i64>,
    holders: Vec<Option<i64>>,
    due: Vec<Option<i64>>,
}

impl Lanes {
    fn set(&mut self, lane: i64, holder: Option<HolderId>, due_at: Option<Timestamp>) {
        self.ids.push(lane);
        self.holders.push(holder.map(|holder| holder.0));
        self.due.push(due_at.map(us));
    }
}

/// The maximum number of tasks of lanes that are ended in one transaction.
const PART: i64 = 10_000;
/// How soon a lane is looked at again whose domain another process holds.
const PARKED: Span = Span::from_secs(1);
