//! What became of a request of a task: done, tried again, given up, or followed to where it leads.

use comity_core::domain::Domain;
use comity_core::outcome::{Breakdown, Contact, Outcome};
use comity_core::pace::Standing;
use comity_core::retry::{self, Spent, Verdict};
use comity_core::task::{JobStep, TaskStep};
use comity_core::time::Timestamp;
use comity_store::tasks::{Attempt, Before, Onward, PageFacts, Step, TaskRow};
use http::header::{ETAG, IF_MODIFIED_SINCE, IF_NONE_MATCH, LAST_MODIFIED};
use http::{HeaderName, HeaderValue};

use super::errand::Trip;
use super::page::Begun;
use super::settler::Tenant;
use super::unwritable;
use crate::archive::{ArchiveError, Kept};
use crate::attempt::{Came, Ended, Head, NOT_REPEATED, Next, footing, may_repeat, next_hop, onward};
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
        (self.facts.fetched_at, self.headers) = (answered_at, None);
        if let Err(error) = kept {
            return self.unkept(error);
        }
        match came {
            Came::Refused(error) => self.unkept(error),
            Came::Broken(cause) if cause.is_final() => {
                self.reached(Contact::Made);
                // It answered more than we want: it is fine, and trying again is not.
                self.note(&permit, outcome, None);
                self.answered_at = answered_at;
                self.settle(Step::Failed { error: cause.to_string(), status: None }, Some(tenant));
            }
            Came::Broken(cause) => {
                self.note(&permit, outcome, None);
                if !self.may_repeat(outcome, Some(&cause)) {
                    let error = format!("{cause}; it {NOT_REPEATED}");
                    return self.settle(Step::Failed { error, status: None }, Some(tenant));
                }
                let (spent, retries_max) = self.spent();
                let verdict = match cause {
                    // It did not get its full time, which is not the site's doing.
                    TransportError::GivenUp => retry::judge_forgivable(spent, retries_max),
                    _ if cause.breakdown() == Breakdown::Unreachable => {
                        retry::judge_unreachable(self.reached(Contact::Refused), spent, retries_max)
                    }
                    _ => {
                        self.reached(Contact::Made);
                        retry::judge(outcome, standing, spent, retries_max)
                    }
                };
                self.judged(&permit, tenant, verdict, None, cause.to_string());
            }
            Came::Answer(head) => {
                self.reached(Contact::Made);
                self.note(&permit, outcome, Some(head.status));
                self.answered_at = answered_at;
                self.headers = self.pool.rows.headers(&head.headers);
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
                Ok(kept) => self.done(tenant, head, kept),
                Err(error) => self.unkept(error),
            };
        }
        match next_hop(&self.url, status, &head.headers) {
            Some(next) => self.follow(next, status, tenant),
            None if status == 304 && !self.conditions().is_empty() => self.unchanged(tenant, head),
            None if outcome == Outcome::Success => self.done(tenant, head, Kept::default()),
            None => {
                let error = format!("status {status}");
                if !self.may_repeat(outcome, None) {
                    return self.settle(Step::Failed { error, status: Some(status) }, Some(tenant));
                }
                let (spent, retries_max) = self.spent();
                let verdict = retry::judge(outcome, standing, spent, retries_max);
                self.judged(permit, tenant, verdict, Some(status), error);
            }
        }
    }

    /// Whether what it sends may be sent once more.
    fn may_repeat(&self, outcome: Outcome, cause: Option<&TransportError>) -> bool {
        self.sends.as_ref().is_none_or(|sends| may_repeat(&sends.method, outcome, cause))
    }

    /// Where pages are kept nothing can be written: nothing is settled, and the work ends.
    fn unkept(self: Box<Self>, error: ArchiveError) {
        self.pool.gate.fail(unwritable(error));
        self.put_down();
    }

    fn done(mut self: Box<Self>, tenant: Tenant, head: &Head, kept: Kept) {
        let file = kept.file.as_ref().map(|file| file.to_string_lossy().into_owned());
        let Kept { bytes, sha256, name, content_type, .. } = kept;
        (self.facts.sha256, self.facts.file) = (sha256, name);
        // Of a page that nothing was kept of nothing can be said to be as before.
        if sha256.is_some() {
            (self.facts.etag, self.facts.last_modified) = (octets(head, &ETAG), octets(head, &LAST_MODIFIED));
        }
        self.settle(Step::Done { status: head.status, bytes, file, content_type }, Some(tenant));
    }

    /// Nothing changed since it was fetched before: what was kept then is what it is.
    fn unchanged(mut self: Box<Self>, tenant: Tenant, head: &Head) {
        let Some(before) = self.row.before.take() else { return self.done(tenant, head, Kept::default()) };
        let Before { bytes, content_type, facts } = *before;
        let facts = PageFacts { fetched_at: self.facts.fetched_at, ..(*facts).clone() };
        self.facts = PageFacts {
            etag: octets(head, &ETAG).or(facts.etag),
            last_modified: octets(head, &LAST_MODIFIED).or(facts.last_modified),
            ..facts
        };
        self.settle(Step::Done { status: head.status, bytes, file: None, content_type }, Some(tenant));
    }

    /// What makes a request for a page that was fetched before conditional. Only its own address is asked so, and only
    /// while the page is still where it was kept.
    fn conditions(&self) -> Vec<(HeaderName, HeaderValue)> {
        let Some(before) = &self.row.before else { return Vec::new() };
        if self.sends.as_ref().is_some_and(|sends| !sends.is_plain()) {
            return Vec::new();
        }
        let facts = &before.facts;
        let told_by = facts.final_url.as_deref().unwrap_or(self.listed.as_str());
        if told_by != self.url.as_str() || !self.pool.archive.still_has(facts.file.as_deref()) {
            return Vec::new();
        }
        [(IF_NONE_MATCH, &facts.etag), (IF_MODIFIED_SINCE, &facts.last_modified)]
            .into_iter()
            .filter_map(|(name, octets)| Some((name, HeaderValue::from_bytes(octets.as_ref()?).ok()?)))
            .collect()
    }

    /// The headers of its own that a request carries.
    pub(super) fn headers_to_send(&self) -> Vec<(HeaderName, HeaderValue)> {
        let mut headers = self.conditions();
        headers.extend(self.sends.iter().flat_map(|sends| sends.headers.iter().cloned()));
        headers
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
    fn follow(mut self: Box<Self>, next: Next, status: u16, tenant: Tenant) {
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
        self.on = footing(&self.listed, self.row.lead, &next, self.lists);
        if let Some(sends) = &self.sends {
            match onward(&sends.method, status, self.on) {
                Some(Onward::Kept) => {}
                None if sends.is_plain() => (self.sends, self.onward) = (None, Onward::Dropped),
                Some(Onward::Dropped) => (self.sends, self.onward) = (None, Onward::Dropped),
                None => {
                    let error = "redirected to another host, where its body is not sent".to_owned();
                    return self.settle(failed(error), Some(tenant));
                }
            }
        }
        self.host = host;
        self.url = next;
        self.hops += 1;
        let domain = self.pool.gate.rules().domain(&self.host);
        if domain == self.domain && !self.pool.is_over() {
            // The same line, from the place it had.
            drop(tenant);
            return self.set_out();
        }
        let (at_url, hops) = (Some(self.url.to_string()), self.hops);
        let step = Step::Moved { domain, at_url, hops, sends: self.onward };
        self.settle(step, Some(tenant));
    }

    /// Counts whether the host was there; how often in a row it was not.
    fn reached(&self, contact: Contact) -> u32 {
        let mut guards = self.pool.guards();
        match contact {
            Contact::Made => {
                guards.unreached.remove(&self.lane);
                0
            }
            Contact::Refused => guards.unreached.entry(self.lane).or_default().attempted(contact),
        }
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

/// A header as it came; of several, the first.
fn octets(head: &Head, name: &HeaderName) -> Option<Vec<u8>> {
    head.headers
        .get(name)
        .map(|value| value.as_bytes().to_vec())
        .filter(|octets| octets.len() <= VALIDATOR_MAX)
}

/// A longer ETag is not kept.
const VALIDATOR_MAX: usize = 1_024;
const ASTRAY: &str = "redirected to something that isn't a valid http or https URL";
