//! Writes the results of tasks, one statement for all that end in the same way. Which results are accepted is decided in
//! `settling`.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};

use comity_core::task::JobId;
use comity_core::time::Timestamp;

use super::failure::Result;
use super::param::{opt_text, text};
use super::tx::Tx;
use super::{micros, us};
use crate::tasks::{Attempt, RedirectBody, Settle, Step};

/// A result that is written, and what its task's row says so far.
#[derive(Debug, Clone, Copy)]
pub(super) struct Accepted<'a> {
    pub(super) settle: &'a Settle,
    pub(super) item: Option<i64>,
    /// Requests that were counted before.
    pub(super) requests: i64,
}

impl Tx<'_> {
    /// Ends those tasks that have no item and were fetched with their first request; returns their ids. The others are left as
    /// they are.
    pub(super) fn end_plain(&mut self, settles: &[&Settle], now: Timestamp) -> Result<HashSet<i64>> {
        if settles.is_empty() {
            return Ok(HashSet::new());
        }
        // In the order of their ids, in which everybody locks tasks.
        let mut settles = settles.to_vec();
        settles.sort_unstable_by_key(|settle| settle.task);
        let jobs: Vec<i64> = settles.iter().map(|settle| settle.job.0 as i64).collect();
        let keys: Vec<Option<i64>> = settles.iter().map(|settle| settle.url_key).collect();
        let domains: Vec<i64> = settles.iter().map(|settle| settle.tenure.key.0).collect();
        let (pages, facts, last) = (Pages::of(&settles), Facts::of(&settles), Last::of(&settles));
        // What the rows must be like is compared after each was found by its id. Otherwise, statistics from before the job was
        // filled make the planner look for waiting tasks first.
        let sql = "WITH new AS MATERIALIZED (
                SELECT given.*, lane.id AS lane_id, 'waiting' AS state, 0 AS requests, NULL::bigint AS item_id
                FROM unnest($2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)
                    AS given (id, url_key, job_id, domain_id, status, bytes, content_type, last_us, took_us, outcome,
                        fetched_us, final_url, sha256, file, etag, last_modified)
                CROSS JOIN LATERAL (SELECT id FROM lane
                    WHERE lane.job_id = given.job_id AND lane.domain_id = given.domain_id LIMIT 1) AS lane
            )
            UPDATE task SET state = 'done', status = new.status, bytes = new.bytes, error = NULL,
            settled_us = $1, requests = 1, last_us = new.last_us, last_took_us = new.took_us,
            last_outcome = new.outcome, fetched_us = new.fetched_us, final_url = new.final_url,
            content_type = new.content_type,
            changed = NOT (new.status = 304 OR task.sha256 IS NOT NULL AND task.sha256 IS NOT DISTINCT FROM new.sha256),
            sha256 = new.sha256, file = new.file, etag = new.etag, last_modified = new.last_modified
            FROM new WHERE task.id = new.id AND task.lane_id = new.lane_id AND task.state = new.state
                AND task.url_key = coalesce(new.url_key, task.url_key)
                AND task.requests = new.requests AND task.item_id IS NOT DISTINCT FROM new.item_id
            RETURNING task.id";
        let Pages { ids, status, bytes, content_type } = &pages;
        let Last { started, took, outcome, .. } = &last;
        let Facts { fetched, final_url, sha256, file, etag, last_modified } = &facts;
        let rows = self.change_rows(
            sql,
            &[
                &us(now),
                ids,
                &keys,
                &jobs,
                &domains,
                status,
                bytes,
                content_type,
                started,
                took,
                outcome,
                fetched,
                final_url,
                sha256,
                file,
                etag,
                last_modified,
            ],
        )?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    /// Writes results whose tasks are locked. `lanes` are the lanes that tasks move to, and are locked too.
    pub(super) fn write_settled(
        &mut self,
        accepted: &[Accepted<'_>],
        lanes: &HashMap<(JobId, &str), i64>,
        now: Timestamp,
    ) -> Result<()> {
        let those = |which: fn(&Step) -> bool| -> Vec<&Settle> {
            accepted.iter().map(|row| row.settle).filter(|settle| which(&settle.step)).collect()
        };
        self.end_done(&those(|step| matches!(step, Step::Done { .. })), now)?;
        self.end_otherwise(&those(|step| matches!(step, Step::Failed { .. } | Step::Skipped { .. })), now)?;
        self.retry(&those(|step| matches!(step, Step::Retry { .. })))?;
        self.move_tasks(&those(|step| matches!(step, Step::Moved { .. })), lanes, now)?;
        self.settle_items_of(accepted, now)?;
        self.log_attempts(accepted)
    }

    fn end_done(&mut self, settles: &[&Settle], now: Timestamp) -> Result<()> {
        if settles.is_empty() {
            return Ok(());
        }
        let (pages, facts, last) = (Pages::of(settles), Facts::of(settles), Last::of(settles));
        let sql = "UPDATE task SET state = 'done', status = new.status, bytes = new.bytes, error = NULL,
            settled_us = $1, requests = requests + new.count, last_us = coalesce(new.last_us, task.last_us),
            last_took_us = coalesce(new.took_us, last_took_us), last_outcome = coalesce(new.outcome, last_outcome),
            fetched_us = new.fetched_us, final_url = new.final_url, content_type = new.content_type,
            changed = NOT (new.status = 304 OR task.sha256 IS NOT NULL AND task.sha256 IS NOT DISTINCT FROM new.sha256),
            sha256 = new.sha256, file = new.file, etag = new.etag, last_modified = new.last_modified
            FROM unnest($2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)
                AS new (id, status, bytes, content_type, count, last_us, took_us, outcome,
                    fetched_us, final_url, sha256, file, etag, last_modified)
            WHERE task.id = new.id";
        let Pages { ids, status, bytes, content_type } = &pages;
        let Last { count, started, took, outcome, .. } = &last;
        let Facts { fetched, final_url, sha256, file, etag, last_modified } = &facts;
        self.change(
            sql,
            &[
                &us(now),
                ids,
                status,
                bytes,
                content_type,
                count,
                started,
                took,
                outcome,
                fetched,
                final_url,
                sha256,
                file,
                etag,
                last_modified,
            ],
        )
        .map(|_| ())
    }

    /// Ends tasks that failed or were skipped. What is stored of an earlier fetch stays.
    fn end_otherwise(&mut self, settles: &[&Settle], now: Timestamp) -> Result<()> {
        if settles.is_empty() {
            return Ok(());
        }
        let mut states = Vec::with_capacity(settles.len());
        let mut status: Vec<Option<i64>> = Vec::with_capacity(settles.len());
        let mut errors = Vec::with_capacity(settles.len());
        for settle in settles {
            let (state, found, error) = match &settle.step {
                Step::Failed { error, status } => ("failed", status.map(i64::from), error.as_str()),
                Step::Skipped { reason } => ("skipped", None, reason.as_str()),
                Step::Done { .. } | Step::Retry { .. } | Step::Moved { .. } => continue,
            };
            states.push(state);
            status.push(found);
            errors.push(text(error));
        }
        let facts = Facts::of(settles);
        let Last { count, started, took, outcome, .. } = Last::of_any(settles);
        // A redirect counts as a success, but one that led nowhere has only been answered.
        let sql =
            "UPDATE task SET state = new.state, status = new.status, error = new.error, settled_us = $1,
            requests = requests + new.count, last_us = coalesce(new.last_us, task.last_us),
            last_took_us = coalesce(new.took_us, last_took_us),
            last_outcome = replace(coalesce(new.outcome, last_outcome), 'success', 'answered'),
            fetched_us = new.fetched_us, final_url = new.final_url
            FROM unnest($2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
                AS new (id, state, status, error, count, last_us, took_us, outcome, fetched_us, final_url)
            WHERE task.id = new.id";
        let (ids, Facts { fetched, final_url, .. }) = (ids_of(settles), &facts);
        self.change(
            sql,
            &[
                &us(now),
                &ids,
                &states,
                &status,
                &errors,
                &count,
                &started,
                &took,
                &outcome,
                fetched,
                final_url,
            ],
        )
        .map(|_| ())
    }

    fn retry(&mut self, settles: &[&Settle]) -> Result<()> {
        if settles.is_empty() {
            return Ok(());
        }
        let (mut ready, mut used, mut forgave, mut errors) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for settle in settles {
            if let Step::Retry { ready_at, retries, forgiven, error } = &settle.step {
                ready.push(us(*ready_at));
                used.push(i64::from(*retries));
                forgave.push(i64::from(*forgiven));
                errors.push(text(error));
            }
        }
        let Last { count, started, took, outcome, status } = Last::of(settles);
        let sql = "UPDATE task SET ready_us = new.ready_us, retries = new.retries, forgiven = new.forgiven,
            error = new.error, requests = requests + new.count, last_us = coalesce(new.last_us, task.last_us),
            last_took_us = coalesce(new.took_us, last_took_us), last_outcome = coalesce(new.outcome, last_outcome),
            status = coalesce(new.status, task.status)
            FROM unnest($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
                AS new (id, ready_us, retries, forgiven, error, count, last_us, took_us, outcome, status)
            WHERE task.id = new.id";
        let ids = ids_of(settles);
        self.change(
            sql,
            &[&ids, &ready, &used, &forgave, &errors, &count, &started, &took, &outcome, &status],
        )
        .map(|_| ())
    }

    fn move_tasks(
        &mut self,
        settles: &[&Settle],
        lanes: &HashMap<(JobId, &str), i64>,
        now: Timestamp,
    ) -> Result<()> {
        let (mut settled, mut to) = (Vec::new(), Vec::new());
        let (mut urls, mut hopped, mut bodiless) = (Vec::new(), Vec::new(), Vec::new());
        for settle in settles {
            if let Step::Moved { domain, at_url, hops, body } = &settle.step
                && let Some(lane) = lanes.get(&(settle.job, domain.as_str()))
            {
                settled.push(*settle);
                to.push(*lane);
                urls.push(opt_text(at_url.as_deref()));
                hopped.push(i64::from(*hops));
                bodiless.push(*body == RedirectBody::Dropped);
            }
        }
        if settled.is_empty() {
            return Ok(());
        }
        let Last { count, started, took, outcome, status } = Last::of(&settled);
        let sql = "UPDATE task SET home_lane_id = coalesce(home_lane_id, task.lane_id), lane_id = new.lane_id,
            at_url = coalesce(new.at_url, task.at_url), hops = new.hops, ready_us = $1,
            requests = requests + new.count, last_us = coalesce(new.last_us, task.last_us),
            last_took_us = coalesce(new.took_us, last_took_us), last_outcome = coalesce(new.outcome, last_outcome),
            bodiless = task.bodiless OR new.bodiless, status = coalesce(new.status, task.status)
            FROM unnest($2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
                AS new (id, lane_id, at_url, hops, bodiless, count, last_us, took_us, outcome, status)
            WHERE task.id = new.id";
        let ids = ids_of(&settled);
        self.change(
            sql,
            &[&us(now), &ids, &to, &urls, &hopped, &bodiless, &count, &started, &took, &outcome, &status],
        )?;
        self.set_due(&to, now)
    }

    /// Applies results to the items that were scraped.
    fn settle_items_of(&mut self, accepted: &[Accepted<'_>], now: Timestamp) -> Result<()> {
        let of_items = accepted.iter().filter_map(|row| Some((row.item?, row.settle)));
        self.settle_items(&of_items.collect::<Vec<_>>(), now)
    }

    /// Logs attempts beyond those that are in the rows of their tasks.
    fn log_attempts(&mut self, accepted: &[Accepted<'_>]) -> Result<()> {
        // Of two that began at the same time, the later one stays.
        let mut logged: BTreeMap<(i64, i64), &Attempt> = BTreeMap::new();
        for Accepted { settle, requests, .. } in accepted {
            if *requests > 0 || !is_in_row(settle) {
                let task = settle.task.0 as i64;
                logged
                    .extend(settle.attempts.iter().map(|attempt| ((task, us(attempt.started_at)), attempt)));
            }
        }
        if logged.is_empty() {
            return Ok(());
        }
        let (tasks, started): (Vec<i64>, Vec<i64>) = logged.keys().copied().unzip();
        let took: Vec<i64> = logged.values().map(|attempt| micros(attempt.took)).collect();
        let outcome: Vec<&str> = logged.values().map(|attempt| attempt.outcome.as_str()).collect();
        let status: Vec<Option<i64>> = logged.values().map(|attempt| attempt.status.map(i64::from)).collect();
        let sql = "INSERT INTO logged_attempt (task_id, started_us, took_us, outcome, status)
            SELECT * FROM unnest($1, $2, $3, $4, $5) ON CONFLICT (task_id, started_us) DO UPDATE
            SET took_us = excluded.took_us, outcome = excluded.outcome, status = excluded.status";
        self.change(sql, &[&tasks, &started, &took, &outcome, &status]).map(|_| ())
    }
}

/// Whether the row of a settled task says everything about its attempt: there was only one, and the task ended with it.
pub(super) fn is_in_row(settle: &Settle) -> bool {
    let status = match &settle.step {
        Step::Done { status, .. } => Some(*status),
        Step::Failed { status, .. } => *status,
        Step::Skipped { .. } | Step::Retry { .. } | Step::Moved { .. } => return false,
    };
    matches!(settle.attempts.as_slice(), [attempt] if attempt.status == status)
}

fn ids_of(settles: &[&Settle]) -> Vec<i64> {
    settles.iter().map(|settle| settle.task.0 as i64).collect()
}

/// The columns of pages that were fetched.
#[derive(Default)]
struct Pages<'a> {
    ids: Vec<i64>,
    status: Vec<i64>,
    bytes: Vec<i64>,
    content_type: Vec<Option<Cow<'a, str>>>,
}

impl<'a> Pages<'a> {
    fn of(settles: &[&'a Settle]) -> Self {
        let mut pages = Self::default();
        for settle in settles {
            if let Step::Done { status, bytes, content_type, .. } = &settle.step {
                pages.ids.push(settle.task.0 as i64);
                pages.status.push(i64::from(*status));
                pages.bytes.push(*bytes as i64);
                pages.content_type.push(opt_text(content_type.as_deref()));
            }
        }
        pages
    }
}

/// The columns of what is known about last responses.
struct Facts<'a> {
    fetched: Vec<Option<i64>>,
    final_url: Vec<Option<Cow<'a, str>>>,
    sha256: Vec<Option<&'a [u8]>>,
    file: Vec<Option<Cow<'a, str>>>,
    etag: Vec<Option<&'a [u8]>>,
    last_modified: Vec<Option<&'a [u8]>>,
}

impl<'a> Facts<'a> {
    fn of(settles: &[&'a Settle]) -> Self {
        let facts = || settles.iter().map(|settle| &*settle.facts);
        Self {
            fetched: facts().map(|facts| facts.fetched_at.map(us)).collect(),
            final_url: facts().map(|facts| opt_text(facts.final_url.as_deref())).collect(),
            sha256: facts().map(|facts| facts.sha256.as_ref().map(|hash| &hash[..])).collect(),
            file: facts().map(|facts| opt_text(facts.file.as_deref())).collect(),
            etag: facts().map(|facts| facts.etag.as_deref()).collect(),
            last_modified: facts().map(|facts| facts.last_modified.as_deref()).collect(),
        }
    }
}

/// The columns of how many attempts there were, and of the last one.
struct Last {
    count: Vec<i64>,
    started: Vec<Option<i64>>,
    took: Vec<Option<i64>>,
    outcome: Vec<Option<&'static str>>,
    status: Vec<Option<i64>>,
}

impl Last {
    fn of(settles: &[&Settle]) -> Self {
        Self::from(settles, |settle| (settle.attempts.len() as i64, settle.attempts.last()))
    }

    /// Like [`Self::of`]; for a robots.txt that could not be fetched, the requests for that file count too.
    fn of_any(settles: &[&Settle]) -> Self {
        Self::from(settles, |settle| {
            let (count, last) = (settle.attempts.len() as i64, settle.attempts.last());
            let robots = settle.robots.as_ref();
            let sent = robots.map_or(0, |robots| i64::from(robots.count));
            (count + sent, last.or(robots.map(|robots| &robots.last)))
        })
    }

    fn from(settles: &[&Settle], attempts: fn(&Settle) -> (i64, Option<&Attempt>)) -> Self {
        let (count, last): (Vec<i64>, Vec<Option<&Attempt>>) =
            settles.iter().map(|settle| attempts(settle)).unzip();
        let last = || last.iter().copied();
        Self {
            started: last().map(|last| last.map(|attempt| us(attempt.started_at))).collect(),
            took: last().map(|last| last.map(|attempt| micros(attempt.took))).collect(),
            outcome: last().map(|last| last.map(|attempt| attempt.outcome.as_str())).collect(),
            status: last().map(|last| last.and_then(|attempt| attempt.status.map(i64::from))).collect(),
            count,
        }
    }
}
