//! Finds the domains that matter most to observers, without looking at a million of them with every heartbeat.
//!
//! A few domains are all looked at. Of many, a survey looks at those that it found last time, at those that wait longest,
//! and at the next part of the table; so a domain that matters is found soon, and stays in view for as long as it does.

use comity_core::dispatch::Dispatch;
use comity_core::paces::DomainId;

use super::state::Waiter;

/// Where a survey is.
#[derive(Debug, Default)]
pub(super) struct Survey {
    /// Where the next part of the table begins.
    from: usize,
    /// What was found last time.
    found: Vec<DomainId>,
}

impl Survey {
    /// The domains to look at now.
    pub(super) fn next(&mut self, dispatch: &Dispatch<Waiter>) -> Vec<DomainId> {
        let paces = dispatch.paces();
        if paces.len() <= ALL_MAX {
            return paces.iter().map(|(id, ..)| id).collect();
        }
        let (part, from) = paces.part(self.from, PART);
        self.from = from;
        let mut ids: Vec<DomainId> =
            self.found.iter().copied().filter(|id| paces.pace(*id).is_some()).collect();
        ids.extend(dispatch.longest_waits().take(LONGEST).chain(part));
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// Keeps what was found in view.
    pub(super) fn keep(&mut self, found: impl Iterator<Item = DomainId>) {
        self.found.clear();
        self.found.extend(found);
    }
}

/// Up to this many domains are all looked at.
pub(super) const ALL_MAX: usize = 4_096;
/// How much of a larger table is looked at each time.
const PART: usize = 4_096;
/// How many of the longest waits are looked at each time.
const LONGEST: usize = 256;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use comity_core::domain::Domain;
    use comity_core::headers::PacingHints;
    use comity_core::intent::Intent;
    use comity_core::outcome::Answer;
    use comity_core::rule::RuleTable;
    use comity_core::time::Span;

    use super::*;
    use crate::clock::Clock;
    use crate::event::Events;
    use crate::gate::Gate;

    /// Of many domains, one that is closed for long is shown soon, whether somebody waits for it or not, and stays so.
    #[tokio::test]
    async fn a_slow_domain_is_found_among_many() {
        let gate = Gate::new(Arc::new(RuleTable::default()), Clock::new(), Events::new());
        let named = |nth: usize| Domain::parse(&format!("host-{nth}.example")).unwrap();
        for nth in 0..3 * ALL_MAX {
            drop(gate.check(&named(nth), Intent::Fetch).await.unwrap());
        }
        let slow = Domain::parse("slow.example").unwrap();
        let refused = Answer::of_status(429, PacingHints::retry_after(Span::from_secs(600)));
        gate.acquire(&slow, Intent::Fetch).await.unwrap().record(&refused);
        let is_shown = || gate.overview(3).slowest.first().is_some_and(|first| first.domain == slow);
        assert!((0..4).any(|_| is_shown()), "within one round over the table");
        assert!((0..8).all(|_| is_shown()), "from then on always");

        let waiting = tokio::spawn({
            let gate = gate.clone();
            async move { gate.acquire(&slow, Intent::Fetch).await.map(drop) }
        });
        while gate.status(1).in_line == 0 {
            tokio::task::yield_now().await;
        }
        let status = gate.status(1);
        assert_eq!(status.held_back.first().map(|held| held.domain.as_str()), Some("slow.example"));
        assert_eq!((status.in_line, status.in_flight, status.domains), (1, 0, 3 * ALL_MAX + 1));
        waiting.abort();
    }
}
