//! Tasks and their lanes: the part of the `Store` trait, the ids of lanes, when they are due, and giving them back.
//!
//! Adding tasks is in `enqueueing`, claiming lanes and reading their tasks in `claiming`, results in `settling` and `results`.
//!
//! Locks are taken in this order, so that callers wait for each other but never in a circle: the holder's own row, jobs,
//! lanes by id, domains, tasks by id, and last of all the counts of jobs.

use std::collections::HashMap;
use std::sync::Arc;

use comity_core::domain::Domain;
use comity_core::task::{JobId, TaskId};
use comity_core::time::Timestamp;

use super::failure::{Failure, Result};
use super::param::text;
use super::tx::Tx;
use super::{Postgres, at, us};
use crate::Reply;
use crate::domains::HolderId;
use crate::tasks::{
    Claim, Claimed, Enqueued, LaneId, NewTask, Refill, RemainingWork, Settle, Settled, TaskFilter, TaskRow,
    TaskStore, TaskView,
};

impl TaskStore for Postgres {
    fn enqueue(&self, job: JobId, tasks: Vec<NewTask>, now: Timestamp) -> Reply<'_, Enqueued> {
        self.write(move |tx| tx.enqueue(job, &tasks, now))
    }

    fn claim(&self, holder: HolderId, claim: Claim, now: Timestamp) -> Reply<'_, Vec<Claimed>> {
        self.write(move |tx| tx.claim(holder, claim, now))
    }

    fn refill(&self, refills: Vec<Refill>) -> Reply<'_, Vec<(LaneId, Vec<TaskRow>)>> {
        self.write(move |tx| {
            let tasks = tx.read_lanes(&refills)?;
            Ok(refills.iter().map(|refill| refill.lane).zip(tasks).collect())
        })
    }

    fn settle(&self, holder: HolderId, settles: Arc<[Settle]>, now: Timestamp) -> Reply<'_, Vec<Settled>> {
        self.write(move |tx| tx.settle(holder, &settles, now))
    }

    fn park(&self, holder: HolderId, lanes: Vec<(LaneId, Timestamp)>) -> Reply<'_, ()> {
        self.write(move |tx| tx.park(holder, &lanes))
    }

    fn give_up(&self, holder: HolderId, lane: LaneId, reason: String) -> Reply<'_, RemainingWork> {
        self.write(move |tx| tx.give_up(holder, lane, &reason))
    }

    fn set_aside_stranded(&self, job: JobId, now: Timestamp) -> Reply<'_, u64> {
        self.write(move |tx| tx.set_aside_stranded(job, now))
    }

    fn next_due(&self, job: JobId) -> Reply<'_, Option<Timestamp>> {
        self.write(move |tx| tx.next_due(job))
    }

    fn retry_now(&self, domain: Domain, now: Timestamp) -> Reply<'_, u64> {
        self.write(move |tx| tx.retry_now(&domain, now))
    }

    fn lists(&self, job: JobId, origins: Vec<String>) -> Reply<'_, Vec<bool>> {
        self.read(move |tx| tx.lists(job, &origins))
    }

    fn list_tasks(&self, job: JobId, state: String, limit: u32) -> Reply<'_, Vec<TaskView>> {
        self.read(move |tx| tx.views(job, &state, limit))
    }

    fn page_tasks(
        &self,
        job: JobId,
        which: TaskFilter,
        after: Option<TaskId>,
        limit: u32,
    ) -> Reply<'_, Vec<TaskView>> {
        self.read(move |tx| tx.page(job, &which, after, limit))
    }
}

impl Tx<'_> {
    /// The lanes of a job on these domains, in the same order. Lanes and domains that are missing are created. The caller has
    /// locked the job's row, so that nobody deletes its lanes meanwhile.
    pub(super) fn lane_ids(&mut self, job: i64, domains: &[&str]) -> Result<Vec<i64>> {
        let mut names: Vec<&str> = domains.to_vec();
        names.sort_unstable();
        names.dedup();
        let sql = "SELECT domain.domain, lane.id FROM domain JOIN lane ON lane.domain_id = domain.id
            WHERE domain.domain = ANY($2) AND lane.job_id = $1";
        let known = self.rows(sql, &[&job, &names])?;
        let known: HashMap<&str, i64> = known.iter().map(|row| (row.get(0), row.get(1))).collect();
        let missing: Vec<&str> = names.iter().copied().filter(|name| !known.contains_key(name)).collect();
        let mut lanes = HashMap::with_capacity(names.len());
        for name in &names {
            if let Some(lane) = known.get(name) {
                lanes.insert(*name, *lane);
            }
        }
        if !missing.is_empty() {
            let ids = self.domain_ids(&missing)?;
            let made = self.make_lanes(job, &ids)?;
            lanes.extend(std::iter::zip(missing, made));
        }
        let no_lane = || Failure::Rejected("a site was deleted while it was used".to_owned());
        domains.iter().map(|name| lanes.get(name).copied().ok_or_else(no_lane)).collect()
    }

    /// The lanes of a job on domains that had none a moment ago.
    fn make_lanes(&mut self, job: i64, domains: &[i64]) -> Result<Vec<i64>> {
        // Always in the same order, because whoever creates the same ones waits for this transaction.
        let sql = "INSERT INTO lane (job_id, domain_id) SELECT $1, id FROM unnest($2) AS id ORDER BY id
            ON CONFLICT (job_id, domain_id) DO NOTHING RETURNING domain_id, id";
        let made = self.change_rows(sql, &[&job, &domains])?;
        let mut lanes: HashMap<i64, i64> = made.iter().map(|row| (row.get(0), row.get(1))).collect();
        if lanes.len() < domains.len() {
            // Another transaction has created them meanwhile.
            let sql = "SELECT domain_id, id FROM lane WHERE job_id = $1 AND domain_id = ANY($2)";
            let theirs = self.rows(sql, &[&job, &domains])?;
            lanes.extend(theirs.iter().map(|row| (row.get::<_, i64>(0), row.get::<_, i64>(1))));
        }
        let no_lane = || Failure::Rejected("a lane was deleted while it was used".to_owned());
        domains.iter().map(|domain| lanes.get(domain).copied().ok_or_else(no_lane)).collect()
    }

    /// Makes sure that lanes are looked at by `due_at`, when one of their tasks is ready. Until the end of the transaction, nobody
    /// else decides when they are due: whoever parks or claims one of them waits, and then sees these tasks.
    pub(super) fn make_due(&mut self, lanes: &[i64], due_at: Timestamp) -> Result<()> {
        if lanes.is_empty() {
            return Ok(());
        }
        self.lock_lanes(lanes)?;
        self.set_due(lanes, due_at)
    }

    /// Does what [`Self::make_due`] does with lanes that this transaction has locked.
    pub(super) fn set_due(&mut self, lanes: &[i64], due_at: Timestamp) -> Result<()> {
        let sql = "UPDATE lane SET due_us = $2 WHERE id = ANY($1) AND (due_us IS NULL OR due_us > $2)";
        self.change(sql, &[&lanes, &us(due_at)]).map(|_| ())
    }

    /// Locks lanes, in the order of their ids.
    pub(super) fn lock_lanes(&mut self, lanes: &[i64]) -> Result<()> {
        let sql = "SELECT count(*) FROM (SELECT 1 FROM lane WHERE id = ANY($1) ORDER BY id FOR NO KEY UPDATE) AS locked";
        self.rows(sql, &[&lanes]).map(|_| ())
    }

    pub(super) fn park(&mut self, holder: HolderId, lanes: &[(LaneId, Timestamp)]) -> Result<()> {
        let ids: Vec<i64> = lanes.iter().map(|(lane, _)| lane.0).collect();
        let due: Vec<i64> = lanes.iter().map(|(_, due_at)| us(*due_at)).collect();
        // The next statement sees the tasks of whoever held one of these locks.
        self.lock_lanes(&ids)?;
        // Without a waiting task, a lane is not due at all.
        let sql =
            "UPDATE lane SET holder = NULL, due_us = (SELECT greatest(ready_us, parked.due_us) FROM task
                WHERE lane_id = lane.id AND state = 'waiting' ORDER BY ready_us, task.id LIMIT 1)
            FROM (SELECT *, $3 AS holder FROM unnest($1, $2) AS given (id, due_us) OFFSET 0) AS parked
            WHERE lane.id = parked.id AND lane.holder IS NOT DISTINCT FROM parked.holder";
        if self.change(sql, &[&ids, &due, &holder.0])? > 0 {
            self.tell();
        }
        Ok(())
    }

    /// Records that a job gives up on a lane.
    pub(super) fn give_up(&mut self, holder: HolderId, lane: LaneId, reason: &str) -> Result<RemainingWork> {
        let sql = "SELECT job_id FROM lane WHERE id = $1 AND holder = $2";
        // Otherwise another process serves the lane now and decides about it.
        let Some(row) = self.row(sql, &[&lane.0, &holder.0])? else { return Ok(RemainingWork::Tasks) };
        let job: i64 = row.get(0);
        // Of two that give up the last two domains at once, the second one sees that nothing is left.
        self.lock("give up", job)?;
        let sql = "UPDATE lane SET given_up = $3 WHERE id = $1 AND holder = $2";
        if self.change(sql, &[&lane.0, &holder.0, &text(reason)])? == 0 {
            return Ok(RemainingWork::Tasks);
        }
        // Lanes that are served, and lanes that will be; the others are empty.
        let waiting = "EXISTS (SELECT 1 FROM task WHERE lane_id = lane.id AND state = 'waiting')";
        let sql = format!(
            "SELECT EXISTS (SELECT 1 FROM lane WHERE job_id = $1 AND (holder IS NOT NULL OR due_us IS NOT NULL)
                AND given_up IS NULL AND {waiting}),
            EXISTS (SELECT 1 FROM filler JOIN holder ON holder.id = filler.holder
                WHERE job_id = $1 AND holder.died_us IS NULL)"
        );
        let left = self.one(&sql, &[&job])?;
        Ok(match (left.get(0), left.get(1)) {
            (true, _) => RemainingWork::Tasks,
            (false, true) => RemainingWork::List,
            (false, false) => RemainingWork::Nothing,
        })
    }

    pub(super) fn next_due(&mut self, job: JobId) -> Result<Option<Timestamp>> {
        let sql = "SELECT due_us FROM lane WHERE job_id = $1 AND holder IS NULL AND due_us IS NOT NULL
            ORDER BY due_us LIMIT 1";
        Ok(self.row(sql, &[&(job.0 as i64)])?.map(|row| at(row.get(0))))
    }

    /// Makes tasks of a domain ready that wait for a later retry.
    pub(super) fn retry_now(&mut self, domain: &Domain, now: Timestamp) -> Result<u64> {
        let sql = "SELECT lane.id FROM lane WHERE domain_id = (SELECT id FROM domain WHERE domain = $1)
            ORDER BY lane.id FOR NO KEY UPDATE";
        let lanes: Vec<i64> = self.rows(sql, &[&domain.as_str()])?.iter().map(|row| row.get(0)).collect();
        if lanes.is_empty() {
            return Ok(0);
        }
        let sql = "UPDATE task SET ready_us = $2 WHERE state = 'waiting' AND id IN (
            SELECT id FROM task WHERE lane_id = ANY($1) AND state = 'waiting' AND ready_us > $2
                AND (retries > 0 OR forgiven > 0) ORDER BY id FOR NO KEY UPDATE)";
        let ready = self.change(sql, &[&lanes, &us(now)])?;
        let sql = "UPDATE lane SET due_us = $2 WHERE id = ANY($1) AND holder IS NULL AND due_us > $2";
        if ready + self.change(sql, &[&lanes, &us(now)])? > 0 {
            self.tell();
        }
        Ok(ready)
    }
}
