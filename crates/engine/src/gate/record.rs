//! Records outcomes of requests without a [`Permit`](super::Permit) object, and returns such permits.

use std::sync::{Arc, MutexGuard};

use comity_core::domain::Domain;
use comity_core::intent::Intent;
use comity_core::outcome::Answer;
use comity_core::pace::{Pace, PermitRef, Recorded, Terms};
use comity_core::time::Timestamp;

use super::activity::Sent;
use super::state::{SaveWhen, State};
use super::{Gate, GateError, Inner};
use crate::event::{Event, Streaks};

impl Gate {
    /// Records an outcome without a permit. It settles the oldest open permit of that intent; if there is none, it
    /// counts as a request that started now.
    pub async fn record_unasked(
        &self,
        host: &Domain,
        intent: Intent,
        answer: &Answer,
    ) -> Result<Recorded, GateError> {
        self.record_with(host, answer, |pace, terms, now| pace.record_unasked(terms, intent, answer, now))
            .await
    }

    /// Records the outcome for a permit that was lent, identified by its number.
    pub async fn record_passed(
        &self,
        host: &Domain,
        passed: PermitRef,
        answer: &Answer,
    ) -> Result<Recorded, GateError> {
        self.record_with(host, answer, |pace, terms, now| pace.record_lent(terms, passed, answer, now)).await
    }

    async fn record_with(
        &self,
        host: &Domain,
        answer: &Answer,
        record: impl Fn(&mut Pace, Terms<'_>, Timestamp) -> Recorded + Sync,
    ) -> Result<Recorded, GateError> {
        let (rule, domain) = self.rule_and_domain(host);
        loop {
            let (recorded, generation) = {
                let state = self.lock_held(&domain, host).await?;
                let generation = state.generation;
                let terms = Terms { rule, crawl_delay: state.crawl_delay(host) };
                (self.record_in(state, &domain, terms, answer, &record)?, generation)
            };
            self.forget_settled(&domain).await?;
            // A recorded deadline is only confirmed once it is saved, so that it survives a crash.
            if recorded.server_until.is_none() {
                return Ok(recorded);
            }
            match self.until_saved(&domain, generation).await {
                // The domain was lost before that, so record with whoever holds it now.
                Err(GateError::Lost) => {}
                saved => return saved.map(|()| recorded),
            }
        }
    }

    fn record_in(
        &self,
        mut state: MutexGuard<'_, State>,
        domain: &Domain,
        terms: Terms<'_>,
        answer: &Answer,
        record: impl FnOnce(&mut Pace, Terms<'_>, Timestamp) -> Recorded,
    ) -> Result<Recorded, GateError> {
        let now = self.now();
        let pace = state.dispatch.pace_mut(domain, now).ok_or(GateError::Closed)?;
        let recorded = record(pace, terms, now);
        let (streaks, learned) = (Streaks::of(pace), pace.learned().delay());
        let (started_at, spacing) = (pace.last_start().unwrap_or(now).min(now), pace.spacing(terms));
        if let Some(id) = state.dispatch.paces().find(domain) {
            let sent = Sent { id, started_at, ready_at: started_at, spacing };
            state.activities.note(&sent, answer, &recorded, learned, now);
        }
        self.0.after_record(state, domain, None, answer, &recorded, streaks);
        Ok(recorded)
    }

    /// Returns a lent permit whose request was not sent, so that the next request may leave. False if it was already
    /// recorded or has expired.
    pub async fn give_back(&self, host: &Domain, passed: PermitRef) -> Result<bool, GateError> {
        let domain = self.0.rules.domain(host);
        let given_back = {
            let mut state = self.lock_held(&domain, host).await?;
            let now = self.now();
            let pace = state.dispatch.pace_mut(&domain, now).ok_or(GateError::Closed)?;
            let given_back = pace.abandon_lent(passed, now);
            self.pump(state);
            given_back
        };
        self.forget_settled(&domain).await?;
        if given_back {
            self.0.events.emit(&Event::Abandoned { domain: &domain });
        }
        Ok(given_back)
    }
}

impl Inner {
    /// Follows up on a recorded outcome: schedules saving, grants what may leave now, and emits the event.
    pub(super) fn after_record(
        self: &Arc<Self>,
        state: MutexGuard<'_, State>,
        domain: &Domain,
        url: Option<&str>,
        answer: &Answer,
        recorded: &Recorded,
        streaks: Streaks,
    ) {
        let save = match (recorded.server_until, recorded.delay) {
            (Some(_), _) => SaveWhen::Now,
            (None, Some(_)) => SaveWhen::Soon,
            (None, None) => SaveWhen::Never,
        };
        self.apply_change(state, domain, save);
        self.events.emit(&Event::Recorded { domain, url, answer, recorded, streaks });
    }
}
