//! Settles tasks: whose results are accepted, and how they count in their jobs. Writing them is in `settled_rows`.
//!
//! A result is accepted if its tenure is valid, the task is waiting in the lane of its job on that domain, and it is for the URL
//! that was fetched: after a failover that lost writes, the server gives out the same task ids again. Every holder is lost when
//! the server's history changes, too, and because epochs are random, a tenure from before is valid for nobody.
//!
//! A batch is a fixed number of statements. Most tasks are fetched with their first request: one statement settles all of
//! these, and the others are looked at first. Nothing is sent to other processes.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use comity_core::outcome::Outcome;
use comity_core::task::JobId;
use comity_core::time::Timestamp;

use super::failure::Result;
use super::settled_rows::{Accepted, is_in_row};
use super::tx::{Tx, by_key};
use crate::domains::{HolderId, Tenure};
use crate::tasks::{JOB_ENDED, Settle, Settled, Step};

impl Tx<'_> {
    pub(super) fn settle(
        &mut self,
        holder: HolderId,
        settles: &[Settle],
        now: Timestamp,
    ) -> Result<Vec<Settled>> {
        let mut results = vec![Settled::Fenced; settles.len()];
        let jobs = self.jobs_of(settles)?;
        let lanes = self.lanes_moved_to(settles, &jobs)?;
        let held = self.held_tenures(holder, settles)?;
        let mut tallies: BTreeMap<JobId, Tally> = BTreeMap::new();
        let is_valid = |settle: &Settle| jobs.contains(&settle.job) && held.contains(&settle.tenure);
        let mut left: Vec<usize> = (0..settles.len()).filter(|nth| is_valid(&settles[*nth])).collect();
        // Several results of one task are written one after the other. That is rare.
        while !left.is_empty() {
            let mut seen = HashSet::new();
            let (round, later): (Vec<usize>, Vec<usize>) =
                left.iter().partition(|nth| seen.insert(settles[**nth].task));
            for (nth, before) in self.settle_each(settles, &round, &lanes, now)? {
                results[nth] = Settled::Yes;
                tallies.entry(settles[nth].job).or_default().count(&settles[nth], before);
            }
            left = later;
        }
        self.count(&tallies)?;
        Ok(results)
    }

    /// Locks the jobs of a batch, so that none of them ends meanwhile, and returns those that exist.
    fn jobs_of(&mut self, settles: &[Settle]) -> Result<HashSet<JobId>> {
        let ids: BTreeSet<i64> = settles.iter().map(|settle| settle.job.0 as i64).collect();
        let ids: Vec<i64> = ids.into_iter().collect();
        let rows = self.rows("SELECT id FROM job WHERE id = ANY($1) ORDER BY id FOR KEY SHARE", &[&ids])?;
        Ok(rows.iter().map(|row| JobId(row.get::<_, i64>(0) as u64)).collect())
    }

    /// The lanes of the domains that tasks move to. They are locked before the tenures are checked: somebody who claims one of
    /// them may be waiting for a domain.
    fn lanes_moved_to<'a>(
        &mut self,
        settles: &'a [Settle],
        jobs: &HashSet<JobId>,
    ) -> Result<HashMap<(JobId, &'a str), i64>> {
        let mut targets: BTreeMap<JobId, BTreeSet<&str>> = BTreeMap::new();
        for settle in settles.iter().filter(|settle| jobs.contains(&settle.job)) {
            if let Step::Moved { domain, .. } = &settle.step {
                targets.entry(settle.job).or_default().insert(domain.as_str());
            }
        }
        let mut lanes = HashMap::new();
        for (job, domains) in targets {
            let domains: Vec<&str> = domains.into_iter().collect();
            let ids = self.lane_ids(job.0 as i64, &domains)?;
            lanes.extend(domains.into_iter().map(|domain| (job, domain)).zip(ids));
        }
        if !lanes.is_empty() {
            let ids: Vec<i64> = lanes.values().copied().collect();
            self.lock_lanes(&ids)?;
        }
        Ok(lanes)
    }

    fn held_tenures(&mut self, holder: HolderId, settles: &[Settle]) -> Result<HashSet<Tenure>> {
        let tenures: HashSet<Tenure> = settles.iter().map(|settle| settle.tenure).collect();
        let tenures: Vec<Tenure> = tenures.into_iter().collect();
        let held = self.hold(holder, &tenures)?;
        Ok(std::iter::zip(tenures, held).filter(|(_, held)| *held).map(|(tenure, _)| tenure).collect())
    }

    /// Writes one result of each task. Returns which were accepted, and whether the task had been skipped meanwhile.
    fn settle_each(
        &mut self,
        settles: &[Settle],
        round: &[usize],
        lanes: &HashMap<(JobId, &str), i64>,
        now: Timestamp,
    ) -> Result<Vec<(usize, Before)>> {
        let plain: Vec<&Settle> =
            round.iter().map(|nth| &settles[*nth]).filter(|settle| is_plain(settle)).collect();
        let fetched = self.end_plain(&plain, now)?;
        let mut settled = Vec::with_capacity(round.len());
        let mut others = Vec::new();
        for nth in round {
            match fetched.contains(&(settles[*nth].task.0 as i64)) {
                true => settled.push((*nth, Before::Waiting)),
                false => others.push(*nth),
            }
        }
        if others.is_empty() {
            return Ok(settled);
        }
        let mut accepted = Vec::with_capacity(others.len());
        for (nth, row, before) in self.accept(settles, &others)? {
            settled.push((nth, before));
            accepted.push(row);
        }
        self.write_settled(&accepted, lanes, now)?;
        Ok(settled)
    }

    /// Locks the tasks of results and decides which of these are accepted, and what the tasks were before.
    fn accept<'a>(
        &mut self,
        settles: &'a [Settle],
        nths: &[usize],
    ) -> Result<Vec<(usize, Accepted<'a>, Before)>> {
        let ids: Vec<i64> = nths.iter().map(|nth| settles[*nth].task.0 as i64).collect();
        let sql =
            "SELECT task.id, task.job_id, lane.domain_id, item_id, requests, state, error, url_key
            FROM task JOIN lane ON lane.id = task.lane_id WHERE task.id = ANY($1) ORDER BY task.id FOR UPDATE OF task";
        let rows = by_key(self.rows(sql, &[&ids])?);
        let accept = |nth: &usize| {
            let settle = &settles[*nth];
            let row = rows.get(&(settle.task.0 as i64))?;
            let item: Option<i64> = row.get(3);
            // A task that moved to another domain belongs to another holder.
            let is_its_own = row.get::<_, i64>(1) == settle.job.0 as i64
                && row.get::<_, i64>(2) == settle.tenure.key.0
                && settle.url_key.is_none_or(|key| key == row.get::<_, i64>(7));
            let is_over = matches!(settle.step, Step::Done { .. } | Step::Failed { .. });
            let before = match (row.get(5), row.get(6)) {
                ("waiting", _) => Before::Waiting,
                ("skipped", Some(JOB_ENDED)) if is_over && item.is_none() => Before::Skipped,
                ("done", Some(JOB_ENDED)) if is_over && item.is_none() => Before::Done,
                _ => return None,
            };
            let row = Accepted { settle, item, requests: row.get(4) };
            is_its_own.then_some((*nth, row, before))
        };
        Ok(nths.iter().filter_map(accept).collect())
    }

    fn count(&mut self, tallies: &BTreeMap<JobId, Tally>) -> Result<()> {
        let counted: Vec<(i64, &Tally)> = tallies
            .iter()
            .filter(|(_, tally)| **tally != Tally::default())
            .map(|(job, tally)| (job.0 as i64, tally))
            .collect();
        if counted.is_empty() {
            return Ok(());
        }
        let ids: Vec<i64> = counted.iter().map(|(job, _)| *job).collect();
        let column = |value: fn(&Tally) -> i64| -> Vec<i64> {
            counted.iter().map(|(_, tally)| value(tally)).collect()
        };
        if ids.len() > 1 {
            // In the same order for all, because each holds its locks until its commit.
            let sql = "SELECT 1 FROM job WHERE id = ANY($1) ORDER BY id FOR NO KEY UPDATE";
            self.rows(sql, &[&ids])?;
        }
        let sql = "UPDATE job SET done = job.done + new.done, failed = job.failed + new.failed,
            skipped = job.skipped + new.skipped, rate_limited = job.rate_limited + new.rate_limited,
            retries = job.retries + new.retries
            FROM unnest($1, $2, $3, $4, $5, $6) AS new (id, done, failed, skipped, rate_limited, retries)
            WHERE job.id = new.id";
        let (done, failed, skipped) =
            (column(|tally| tally.done), column(|tally| tally.failed), column(|tally| tally.skipped));
        let (limited, retries) = (column(|tally| tally.rate_limited), column(|tally| tally.retries));
        self.change(sql, &[&ids, &done, &failed, &skipped, &limited, &retries]).map(|_| ())
    }
}

/// What a task was before its result: its job may have ended while it was in flight, and counted it then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Before {
    Waiting,
    Skipped,
    /// A refresh that had not asked for the page yet.
    Done,
}

/// Whether a result is of the most common kind by far: a page that was fetched with one request.
fn is_plain(settle: &Settle) -> bool {
    matches!(settle.step, Step::Done { .. }) && is_in_row(settle)
}

/// What a batch of results adds to the counts of a job.
#[derive(Debug, Default, PartialEq, Eq)]
struct Tally {
    done: i64,
    failed: i64,
    skipped: i64,
    rate_limited: i64,
    retries: i64,
}

impl Tally {
    fn count(&mut self, settle: &Settle, before: Before) {
        match settle.step {
            Step::Done { .. } => self.done += 1,
            Step::Failed { .. } => self.failed += 1,
            Step::Skipped { .. } => self.skipped += 1,
            Step::Retry { .. } => self.retries += 1,
            Step::Moved { .. } => {}
        }
        match before {
            Before::Waiting => {}
            Before::Skipped => self.skipped -= 1,
            Before::Done => self.done -= 1,
        }
        let limited = settle.attempts.iter().filter(|attempt| attempt.outcome == Outcome::RateLimited);
        self.rate_limited += limited.count() as i64;
    }
}
