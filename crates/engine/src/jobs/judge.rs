//! Judges the result of a task's request: done, retried, failed, or redirected.

use comity_core::domain::Domain;
use comity_core::outcome::{Outcome, Reach, TransportFailure};
use comity_core::pace::Freshness;
use comity_core::retry::{self, RetriesUsed, Verdict};
use comity_core::task::{JobStep, TaskStep};
use comity_core::time::Timestamp;
use comity_store::tasks::{Attempt, PageFacts, PreviousPage, RedirectBody, Step, TaskRow};
use http::header::{ETAG, IF_MODIFIED_SINCE, IF_NONE_MATCH, LAST_MODIFIED};
use http::{HeaderName, HeaderValue};

use super::active_task::ActiveTask;
use super::archive_error;
use super::page::OpenPage;
use super::settler::UnsettledGuard;
use crate::archive::{self, ArchiveError, StoredPage};
use crate::attempt::{
    AttemptResult, Head, NOT_RESENT, Received, Redirect, body_after_redirect, may_resend, next_hop,
    provenance,
};
use crate::gate::Permit;
use crate::transport::TransportError;

impl ActiveTask {
    /// Handles the result of an attempt, which has already been recorded.
    pub(super) fn judge(
        mut self: Box<Self>,
        permit: Permit,
        guard: UnsettledGuard,
        ended: AttemptResult<ArchiveError>,
        page: Option<OpenPage>,
    ) {
        let AttemptResult { received, status, answered_at, outcome, freshness, archived } = ended;
        (self.facts.fetched_at, self.headers) = (answered_at, None);
        if let Err(error) = archived {
            return self.archive_failed(error, guard);
        }
        match received {
            Received::SinkFailed(error) => {
                self.note_reach(Reach::Reached);
                self.note(&permit, outcome, status);
                self.answered_at = answered_at;
                self.archive_failed(error, guard);
            }
            Received::Failed(cause) if cause.is_final() => {
                self.note_reach(Reach::Reached);
                // The response was larger than we accept, so a retry doesn't help; the site itself is fine.
                self.note(&permit, outcome, status);
                self.answered_at = answered_at;
                self.settle(Step::Failed { error: cause.to_string(), status: None }, Some(guard));
            }
            Received::Failed(cause) => {
                self.note(&permit, outcome, status);
                if !self.may_resend(outcome, Some(&cause)) {
                    let error = format!("{cause}; {NOT_RESENT}");
                    return self.settle(Step::Failed { error, status: None }, Some(guard));
                }
                let (spent, retries_max) = self.retries_used();
                let verdict = match cause {
                    // The request was recalled before its timeout, which is not the site's fault.
                    TransportError::GivenUp => retry::judge_forgivable(spent, retries_max),
                    _ if cause.failure() == TransportFailure::Unreachable => {
                        retry::judge_unreachable(self.note_reach(Reach::Unreachable), spent, retries_max)
                    }
                    _ => {
                        self.note_reach(Reach::Reached);
                        retry::judge(outcome, freshness, spent, retries_max)
                    }
                };
                self.judged(&permit, guard, verdict, None, cause.to_string());
            }
            Received::Response(head) => {
                self.note_reach(Reach::Reached);
                self.note(&permit, outcome, status);
                self.answered_at = answered_at;
                self.headers = self.pool.rows.headers(&head.headers);
                self.answered(&permit, guard, &head, outcome, freshness, page);
            }
        }
    }

    fn answered(
        self: Box<Self>,
        permit: &Permit,
        guard: UnsettledGuard,
        head: &Head,
        outcome: Outcome,
        freshness: Freshness,
        page: Option<OpenPage>,
    ) {
        let status = head.status;
        if (200..300).contains(&status) {
            let kept = page.map_or_else(|| Ok(StoredPage::default()), OpenPage::finish);
            return match kept {
                Ok(kept) => self.done(guard, head, kept),
                Err(error) => self.archive_failed(error, guard),
            };
        }
        match next_hop(&self.url, status, &head.headers) {
            Some(next) => self.follow(next, status, guard),
            None if status == 304 && !self.conditions().is_empty() => self.unchanged(guard, head),
            None if outcome == Outcome::Success => {
                let error = match status {
                    304 => "status 304 (not modified), although the request was unconditional".to_owned(),
                    301 | 302 | 303 | 307 | 308 => {
                        format!("status {status} (redirect) without a Location header")
                    }
                    _ => format!("status {status}"),
                };
                self.settle(Step::Failed { error, status: Some(status) }, Some(guard));
            }
            None => {
                let error = format!("status {status}");
                if !self.may_resend(outcome, None) {
                    return self.settle(Step::Failed { error, status: Some(status) }, Some(guard));
                }
                let (spent, retries_max) = self.retries_used();
                let verdict = retry::judge(outcome, freshness, spent, retries_max);
                self.judged(permit, guard, verdict, Some(status), error);
            }
        }
    }

    /// Whether its request may be sent again.
    fn may_resend(&self, outcome: Outcome, cause: Option<&TransportError>) -> bool {
        self.request.as_ref().is_none_or(|request| may_resend(&request.method, outcome, cause))
    }

    /// The page can't be saved, so it fails; if none can, settles nothing and ends the work.
    fn archive_failed(self: Box<Self>, error: ArchiveError, guard: UnsettledGuard) {
        match error.reach {
            archive::Reach::Page => {
                let error = format!("could not save the page: {error}");
                self.settle(Step::Failed { error, status: None }, Some(guard));
            }
            archive::Reach::Archive => {
                self.pool.gate.fail(archive_error(error));
                self.release();
            }
        }
    }

    fn done(mut self: Box<Self>, guard: UnsettledGuard, head: &Head, kept: StoredPage) {
        let file = kept.file.as_ref().map(|file| file.to_string_lossy().into_owned());
        let StoredPage { bytes, sha256, name, content_type, .. } = kept;
        (self.facts.sha256, self.facts.file) = (sha256, name);
        // A page that was not saved can't be requested conditionally later.
        if sha256.is_some() {
            (self.facts.etag, self.facts.last_modified) = (octets(head, &ETAG), octets(head, &LAST_MODIFIED));
        }
        self.settle(Step::Done { status: head.status, bytes, file, content_type }, Some(guard));
    }

    /// Settles a page that hasn't changed since it was last fetched, with what was saved then.
    fn unchanged(mut self: Box<Self>, guard: UnsettledGuard, head: &Head) {
        let Some(before) = self.row.previous.take() else {
            return self.done(guard, head, StoredPage::default());
        };
        let PreviousPage { bytes, content_type, facts } = *before;
        let facts = PageFacts { fetched_at: self.facts.fetched_at, ..(*facts).clone() };
        self.facts = PageFacts {
            etag: octets(head, &ETAG).or(facts.etag),
            last_modified: octets(head, &LAST_MODIFIED).or(facts.last_modified),
            ..facts
        };
        self.settle(Step::Done { status: head.status, bytes, file: None, content_type }, Some(guard));
    }

    /// The headers that make a request for a previously fetched page conditional. They are used only for the same URL,
    /// and only while the saved page still exists.
    fn conditions(&self) -> Vec<(HeaderName, HeaderValue)> {
        let Some(before) = &self.row.previous else { return Vec::new() };
        if self.request.as_ref().is_some_and(|request| !request.is_plain()) {
            return Vec::new();
        }
        let facts = &before.facts;
        let validated_url = facts.final_url.as_deref().unwrap_or(self.listed().as_str());
        if validated_url != self.url.as_str() || !self.pool.archive.still_has(facts.file.as_deref()) {
            return Vec::new();
        }
        [(IF_NONE_MATCH, &facts.etag), (IF_MODIFIED_SINCE, &facts.last_modified)]
            .into_iter()
            .filter_map(|(name, octets)| Some((name, HeaderValue::from_bytes(octets.as_ref()?).ok()?)))
            .collect()
    }

    /// The task's own request headers.
    pub(super) fn headers_to_send(&self) -> Vec<(HeaderName, HeaderValue)> {
        let mut headers = self.conditions();
        headers.extend(self.request.iter().flat_map(|request| request.headers.iter().cloned()));
        headers
    }

    /// How many retries the task has used, and how many it may use.
    fn retries_used(&self) -> (RetriesUsed, u32) {
        let TaskRow { retries, forgiven, .. } = self.row;
        (RetriesUsed { retries, forgiven }, self.pool.settings.max_retries)
    }

    /// Retries the task or fails it, according to the verdict.
    fn judged(
        self: Box<Self>,
        permit: &Permit,
        guard: UnsettledGuard,
        verdict: Verdict,
        status: Option<u16>,
        error: String,
    ) {
        let step = match verdict.step {
            TaskStep::Retry => {
                let ready_at = self.pool.gate.next_at(permit);
                let RetriesUsed { retries, forgiven } = verdict.used;
                Step::Retry { ready_at, retries, forgiven, error }
            }
            _ if verdict.used.attempts() > 1 => {
                let attempts = verdict.used.attempts();
                Step::Failed { error: format!("{error} after {attempts} attempts"), status }
            }
            _ => Step::Failed { error, status },
        };
        self.settle(step, Some(guard));
    }

    /// Follows a redirect.
    fn follow(mut self: Box<Self>, next: Redirect, status: u16, guard: UnsettledGuard) {
        let failed = |error: String| Step::Failed { error, status: None };
        let next = match next {
            Redirect::Invalid => return self.settle(failed(BAD_REDIRECT.to_owned()), Some(guard)),
            Redirect::To(_) if self.hops >= self.pool.redirects_max => {
                let error = format!("more than {} redirects", self.pool.redirects_max);
                return self.settle(failed(error), Some(guard));
            }
            Redirect::To(next) if next == self.url => {
                return self.settle(failed("redirected to itself".to_owned()), Some(guard));
            }
            Redirect::To(next) => next,
        };
        let Some(host) = Domain::of(&next) else {
            return self.settle(failed(BAD_REDIRECT.to_owned()), Some(guard));
        };
        self.provenance = provenance(self.listed(), self.row.lead, &next, self.origin_listed);
        if let Some(request) = &self.request {
            match body_after_redirect(&request.method, status, self.provenance) {
                Some(RedirectBody::Kept) => {}
                None if request.is_plain() => {
                    (self.request, self.redirect_body) = (None, RedirectBody::Dropped)
                }
                Some(RedirectBody::Dropped) => {
                    (self.request, self.redirect_body) = (None, RedirectBody::Dropped)
                }
                None => {
                    let error =
                        "redirected to another host, which does not receive the request body".to_owned();
                    return self.settle(failed(error), Some(guard));
                }
            }
        }
        self.host = host;
        let before = std::mem::replace(&mut self.url, next);
        self.listed.get_or_insert(before);
        self.hops += 1;
        let domain = self.pool.gate.rules().domain(&self.host);
        if domain == self.domain && !self.pool.is_stopping() {
            // Continue in the same line.
            drop(guard);
            return self.check_robots();
        }
        let (at_url, hops) = (Some(self.url.to_string()), self.hops);
        let step = Step::Moved { domain, at_url, hops, body: self.redirect_body };
        self.settle(step, Some(guard));
    }

    /// Notes whether the host could be reached. Returns how many times in a row it could not.
    fn note_reach(&self, contact: Reach) -> u32 {
        let mut guards = self.pool.guards();
        match contact {
            Reach::Reached => {
                guards.unreached.remove(&self.lane);
                0
            }
            Reach::Unreachable => guards.unreached.entry(self.lane).or_default().attempted(contact),
        }
    }

    /// Notes an attempt for the store, and for the guard that cancels a job that is rate limited even at the slowest
    /// pace.
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

/// The raw bytes of a header; the first one if there are several.
fn octets(head: &Head, name: &HeaderName) -> Option<Vec<u8>> {
    head.headers
        .get(name)
        .map(|value| value.as_bytes().to_vec())
        .filter(|octets| octets.len() <= VALIDATOR_MAX)
}

/// Longer validators (ETag, Last-Modified) are not saved.
const VALIDATOR_MAX: usize = 1_024;
const BAD_REDIRECT: &str = "redirected to something that isn't a valid http or https URL";
