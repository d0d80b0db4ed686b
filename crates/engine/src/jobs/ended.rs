//! What became of a request of a task: done, tried again, given up, or followed to where it leads.

use comity_core::domain::Domain;
use comity_core::outcome::Outcome;
use comity_core::pace::Standing;
use comity_core::retry::{self, Spent, Verdict};
use comity_core::task::{JobStep, TaskStep};
use comity_core::time::Timestamp;
use comity_store::tasks::{Attempt, Step, TaskRow};

use super::errand::Trip;
use super::page::Begun;
use super::settler::Tenant;
use super::unwritable;
use crate::archive::{ArchiveError, Kept};
use crate::attempt::{Came, Ended, Head, Next, next_hop, redirected_lead};
use crate::gate::Permit;
use crate::transport::TransportError;

impl Trip {
    /// Its attempt ended, and is recorded.
    pub(super) fn ended(
        mut self: Box<Self>,
        permit: Permit,
        tenant: Tenant,
        ended: Ended<ArchiveError>,
        page: Option<Begun>,
    ) {
        let Ended { came, answered_at, outcome, standing, kept } = ended;
        if let Err(error) = kept {
            return self.unkept(error);
        }
        match came {
            Came::Refused(error) => self.unkept(error),
            Came::Broken(cause) if cause.is_final() => {
                // It answered more than we want: it is fine, and trying again is not.
                self.note(&permit, outcome, None);
                self.answered_at = answered_at;
                self.settle(Step::Failed { error: cause.to_string(), status: None }, Some(tenant));
            }
            Came::Broken(cause) => {
                self.note(&permit, outcome, None);
                let (spent, retries_max) = self.spent();
                let verdict = match cause {
                    // It did not get its full time, which is not the site's doing.
                    TransportError::GivenUp => retry::judge_forgivable(spent, retries_max),
                    _ => retry::judge(outcome, standing, spent, retries_max),
                };
                self.judged(&permit, tenant, verdict, None, cause.to_string());
            }
            Came::Answer(head) => {
                self.note(&permit, outcome, Some(head.status));
                self.answered_at = answered_at;
                self.answered(&permit, tenant, &head, outcome, standing, page);
            }
        }
    }

    fn answered(
        self: Box<Self>,
        permit: &Permit,
        tenant: Tenant,
        head: &Head,
        outcome: Outcome,
        standing: Standing,
        page: Option<Begun>,
    ) {
        let status = head.status;
        if (200..300).contains(&status) {
            let kept = page.map_or_else(|| Ok(Kept::default()), Begun::finish);
            return match kept {
                Ok(kept) => self.done(tenant, status, kept),
                Err(error) => self.unkept(error),
            };
        }
        match next_hop(&self.url, status, &head.headers) {
            Some(next) => self.follow(next, tenant),
            None if outcome == Outcome::Success => self.done(tenant, status, Kept::default()),
            None => {
                let error = format!("status {status}");
                let (spent, retries_max) = self.spent();
                let verdict = retry::judge(outcome, standing, spent, retries_max);
                self.judged(permit, tenant, verdict, Some(status), error);
            }
        }
    }

    /// Where pages are kept nothing can be written: nothing is settled, and the work ends.
    fn unkept(self: Box<Self>, error: ArchiveError) {
        self.pool.gate.fail(unwritable(error));
        self.put_down();
    }

    fn done(self: Box<Self>, tenant: Tenant, status: u16, kept: Kept) {
        let file = kept.file.as_ref().map(|file| file.to_string_lossy().into_owned());
        let Kept { bytes, content_type, .. } = kept;
        self.settle(Step::Done { status, bytes, file, content_type }, Some(tenant));
    }

    /// What the task has spent on failures, and how many retries it may spend.
    fn spent(&self) -> (Spent, u32) {
        let TaskRow { retries, forgiven, .. } = self.row;
        (Spent { retries, forgiven }, self.pool.settings.max_retries)
    }

    /// Tried again, or given up.
    fn judged(
        self: Box<Self>,
        permit: &Permit,
        tenant: Tenant,
        verdict: Verdict,
        status: Option<u16>,
        error: String,
    ) {
        let step = match verdict.step {
            TaskStep::Retry => {
                let ready_at = self.pool.gate.next_at(permit);
                let Spent { retries, forgiven } = verdict.spent;
                Step::Retry { ready_at, retries, forgiven, error }
            }
            _ if verdict.spent.attempts() > 1 => {
                let attempts = verdict.spent.attempts();
                Step::Failed { error: format!("{error} after {attempts} attempts"), status }
            }
            _ => Step::Failed { error, status },
        };
        self.settle(step, Some(tenant));
    }

    /// Goes where a redirect leads.
    fn follow(mut self: Box<Self>, next: Next, tenant: Tenant) {
        let failed = |error: String| Step::Failed { error, status: None };
        let next = match next {
            Next::Astray => return self.settle(failed(ASTRAY.to_owned()), Some(tenant)),
            Next::To(_) if self.hops >= self.pool.redirects_max => {
                let error = format!("more than {} redirects", self.pool.redirects_max);
                return self.settle(failed(error), Some(tenant));
            }
            Next::To(next) if next == self.url => {
                return self.settle(failed("redirected to itself".to_owned()), Some(tenant));
            }
            Next::To(next) => next,
        };
        let Some(host) = Domain::of(&next) else {
            return self.settle(failed(ASTRAY.to_owned()), Some(tenant));
        };
        self.lead = redirected_lead(&self.listed, self.row.lead, &next);
        self.host = host;
        self.url = next;
        self.hops += 1;
        let domain = self.pool.gate.rules().domain(&self.host);
        if domain == self.domain && !self.pool.is_over() {
            // The same line, from the place it had.
            drop(tenant);
            return self.set_out();
        }
        let step = Step::Moved { domain, at_url: Some(self.url.to_string()), hops: self.hops };
        self.settle(step, Some(tenant));
    }

    /// Notes an attempt, for the store and for the guard that ends a job which is refused at the slowest pace.
    fn note(&mut self, permit: &Permit, outcome: Outcome, status: Option<u16>) {
        let started_at: Timestamp = permit.started_at();
        let took = self.pool.now().since(started_at);
        self.attempts.push(Attempt { started_at, took, outcome, status });
        let mut guards = self.pool.guards();
        if let Some(message) = guards.limits.attempted(outcome, permit.spacing()) {
            guards.tripped.get_or_insert((JobStep::Cancel, message));
            self.pool.poke.notify_one();
        }
    }
}

const ASTRAY: &str = "redirected to something that isn't a valid http or https URL";
