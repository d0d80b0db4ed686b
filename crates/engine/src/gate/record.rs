//! What came of requests: answers recorded without the [`Permit`](super::Permit) in hand, and permits given back.

use std::sync::{Arc, MutexGuard};

use comity_core::domain::Domain;
use comity_core::intent::Intent;
use comity_core::outcome::Answer;
use comity_core::pace::{Pace, Passed, Recorded, Terms};
use comity_core::time::Timestamp;

use super::state::{Keep, State};
use super::{Gate, GateError, Inner};
use crate::event::{Event, Streaks};

impl Gate {
    /// Records an answer that nobody has a permit for: it settles the oldest open one of that intent, and if
    /// there is none it counts as a request that left now (B25).
    pub async fn record_unasked(
        &self,
        host: &Domain,
        intent: Intent,
        answer: &Answer,
    ) -> Result<Recorded, GateError> {
        self.record_with(host, answer, |pace, terms, now| pace.record_unasked(terms, intent, answer, now))
            .await
    }

    /// Records the answer to the request of a permit that was left open and passed on by its number.
    pub async fn record_passed(
        &self,
        host: &Domain,
        passed: Passed,
        answer: &Answer,
    ) -> Result<Recorded, GateError> {
        self.record_with(host, answer, |pace, terms, now| pace.record_passed(terms, passed, answer, now))
            .await
    }

    async fn record_with(
        &self,
        host: &Domain,
        answer: &Answer,
        record: impl Fn(&mut Pace, Terms<'_>, Timestamp) -> Recorded + Sync,
    ) -> Result<Recorded, GateError> {
        let (rule, domain) = self.rule_and_domain(host);
        loop {
            let (recorded, life) = {
                let state = self.lock_held(&domain, host).await?;
                let life = state.life;
                let terms = Terms { rule, crawl_delay: state.crawl_delay(host) };
                (self.record_in(state, &domain, terms, answer, &record)?, life)
            };
            self.forget_settled(&domain).await?;
            // Whoever is told that a server's word was heard can rely on it, whatever happens to us (B37).
            if recorded.server_until.is_none() {
                return Ok(recorded);
            }
            match self.until_saved(&domain, life).await {
                // What we knew went with the domain: whoever has it now hears of it.
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
        let streaks = Streaks::of(pace);
        self.0.learnt(state, domain, answer, &recorded, streaks);
        Ok(recorded)
    }

    /// The request of a permit that was passed on does not leave after all; whoever waits for the wire may go.
    /// False when it was recorded or expired before.
    pub async fn give_back(&self, host: &Domain, passed: Passed) -> Result<bool, GateError> {
        let domain = self.0.rules.domain(host);
        let given_back = {
            let mut state = self.lock_held(&domain, host).await?;
            let now = self.now();
            let pace = state.dispatch.pace_mut(&domain, now).ok_or(GateError::Closed)?;
            let given_back = pace.abandon_passed(passed, now);
            self.pump(state);
            given_back
        };
        self.forget_settled(&domain).await?;
        if given_back {
            self.0.events.tell(&Event::Abandoned { domain: &domain });
        }
        Ok(given_back)
    }
}

impl Inner {
    /// An answer was recorded: what is to be kept of it is saved, whoever may go now goes, and it is told.
    pub(super) fn learnt(
        self: &Arc<Self>,
        state: MutexGuard<'_, State>,
        domain: &Domain,
        answer: &Answer,
        recorded: &Recorded,
        streaks: Streaks,
    ) {
        let keep = match (recorded.server_until, recorded.delay) {
            (Some(_), _) => Keep::Now,
            (None, Some(_)) => Keep::Soon,
            (None, None) => Keep::Nothing,
        };
        self.go_on(state, domain, keep);
        self.events.tell(&Event::Recorded { domain, answer, recorded, streaks });
    }
}
