//! What happened lately on the domains held here, for people: the latest attempts of each domain, and what is to be reported to
//! the store. No decision depends on it.
//!
//! A recorded outcome costs one lookup and a few additions. Memory is bounded whatever happens: of very many domains, the latest
//! attempts of some are forgotten, and then parts of their history are missing. What is written when is up to `upkeep`.

use std::collections::{BTreeSet, VecDeque};

use comity_core::outcome::{Answer, Outcome};
use comity_core::pace::{Freshness, Recorded};
use comity_core::paces::DomainId;
use comity_core::time::{Span, Timestamp};
use comity_store::activity::{INTERVAL, LastAnswer, Sample};

use crate::FastMap;

/// A recent attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecentAttempt {
    /// When it started, as far as known.
    pub at: Timestamp,
    /// How long it took until its outcome was recorded.
    pub took: Span,
    /// Its outcome.
    pub outcome: Outcome,
    /// The status of the response, if there was one and it is known.
    pub status: Option<u16>,
    /// For how long it had waited in line: since it was ready, or since the attempt before it had started. Whoever records
    /// outcomes without asking does not wait.
    pub waited: Span,
    /// The minimum time between request starts when it started.
    pub delay: Span,
}

/// What is known about an attempt besides its answer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sent {
    pub(super) id: DomainId,
    pub(super) started_at: Timestamp,
    /// Since when it could have been sent, as far as it was concerned.
    pub(super) ready_at: Timestamp,
    pub(super) spacing: Span,
}

/// What happened lately on the domains held here.
#[derive(Debug, Default)]
pub(super) struct Activities {
    of: FastMap<DomainId, Activity>,
    /// The domains with something to report, by when they are to be reported.
    due: BTreeSet<(Timestamp, DomainId)>,
    /// The domains whose attempts are kept, for longest first.
    kept: VecDeque<DomainId>,
}

#[derive(Debug)]
struct Activity {
    /// The latest attempts. From [`ATTEMPTS_MAX`] on, a ring that begins at `oldest`.
    attempts: Vec<RecentAttempt>,
    oldest: usize,
    last: Option<LastAnswer>,
    /// What happened since the last report, by interval.
    samples: Vec<Sample>,
    /// The end of the last hold, or long ago.
    held_until: Timestamp,
    reported_at: Option<Timestamp>,
    due_at: Option<Timestamp>,
    /// Whether it had an attempt since it was last considered for being forgotten.
    is_recent: bool,
}

/// What is to be reported about a domain, apart from its pace.
#[derive(Debug, Default)]
pub(super) struct ToReport {
    pub(super) last: Option<LastAnswer>,
    pub(super) samples: Vec<Sample>,
}

impl Activities {
    /// Notes the outcome of an attempt.
    pub(super) fn note(
        &mut self,
        sent: &Sent,
        answer: &Answer,
        recorded: &Recorded,
        learned: Span,
        now: Timestamp,
    ) {
        if recorded.freshness == Freshness::Repeated || !self.has_room(sent.id) {
            return;
        }
        let activity = self.of.entry(sent.id).or_default();
        let before = activity.latest().map_or(Timestamp::MIN, |latest| latest.at);
        let is_first = activity.attempts.is_empty();
        activity.keep(RecentAttempt {
            at: sent.started_at,
            took: now.since(sent.started_at),
            outcome: answer.outcome,
            status: answer.status,
            waited: sent.started_at.since(sent.ready_at.max(before)),
            delay: sent.spacing,
        });
        activity.last = Some(LastAnswer { at: now, outcome: answer.outcome, status: answer.status });
        let hold = recorded.held_until.filter(|until| *until > activity.held_until);
        let held = hold.map_or(Span::ZERO, |until| until.since(now.max(activity.held_until)));
        activity.held_until = hold.unwrap_or(activity.held_until);
        let sample = activity.sample_at(now);
        sample.requests += 1;
        sample.rate_limited += u64::from(answer.outcome == Outcome::RateLimited);
        sample.failed += u64::from(answer.outcome.is_penalty() && answer.outcome != Outcome::RateLimited);
        sample.held += held;
        sample.learned = learned;
        // People look for sites that refuse: these are reported soon.
        let is_urgent = hold.is_some() || recorded.delay.is_some();
        if is_urgent || activity.due_at.is_none() {
            self.mark_due(sent.id, is_urgent, now);
        }
        if is_first {
            self.kept.push_back(sent.id);
            self.forget_some();
        }
    }

    /// Notes that the state of a domain was changed in another way, for example by an operator.
    pub(super) fn touch(&mut self, id: DomainId, now: Timestamp) {
        if self.has_room(id) {
            self.of.entry(id).or_default();
            self.mark_due(id, true, now);
        }
    }

    /// The latest attempts of a domain, oldest first.
    pub(super) fn recent(&self, id: DomainId) -> Vec<RecentAttempt> {
        self.of.get(&id).map(|activity| activity.in_order().collect()).unwrap_or_default()
    }

    /// What happened on a domain that was not reported yet.
    pub(super) fn unreported(&self, id: DomainId) -> (Option<LastAnswer>, &[Sample]) {
        self.of.get(&id).map_or((None, &[]), |activity| (activity.last, &activity.samples))
    }

    /// The domains to report by `now`, at most `limit` of them. They count as reported then.
    pub(super) fn take_due(&mut self, now: Timestamp, limit: usize) -> Vec<(DomainId, ToReport)> {
        let mut taken = Vec::new();
        while taken.len() < limit
            && let Some((_, id)) = self.due.first().copied().filter(|(at, _)| *at <= now)
        {
            self.due.pop_first();
            let Some(activity) = self.of.get_mut(&id) else { continue };
            (activity.due_at, activity.reported_at) = (None, Some(now));
            taken
                .push((id, ToReport { last: activity.last, samples: std::mem::take(&mut activity.samples) }));
            if activity.attempts.is_empty() {
                self.of.remove(&id);
            }
        }
        taken
    }

    /// Forgets a domain that is no longer held here; returns what was to be reported.
    pub(super) fn remove(&mut self, id: DomainId) -> Option<ToReport> {
        let activity = self.of.remove(&id)?;
        let due_at = activity.due_at?;
        self.due.remove(&(due_at, id));
        Some(ToReport { last: activity.last, samples: activity.samples })
    }

    /// Whether a domain is known, or there is room for one more.
    fn has_room(&self, id: DomainId) -> bool {
        self.of.len() < DOMAINS_MAX || self.of.contains_key(&id)
    }

    fn mark_due(&mut self, id: DomainId, is_urgent: bool, now: Timestamp) {
        let Some(activity) = self.of.get_mut(&id) else { return };
        let due_at = match activity.reported_at {
            Some(reported_at) if !is_urgent => reported_at + REPORT_EVERY,
            _ => now,
        };
        if let Some(known) = activity.due_at {
            if known <= due_at {
                return;
            }
            self.due.remove(&(known, id));
        }
        activity.due_at = Some(due_at);
        self.due.insert((due_at, id));
    }

    /// Forgets the attempts of a domain that had none for long, if those of too many are kept.
    fn forget_some(&mut self) {
        for _ in 0..TRIES {
            if self.kept.len() <= KEPT_MAX {
                return;
            }
            let Some(id) = self.kept.pop_front() else { return };
            let Some(activity) = self.of.get_mut(&id) else { continue };
            if std::mem::take(&mut activity.is_recent) {
                self.kept.push_back(id);
                continue;
            }
            (activity.attempts, activity.oldest) = (Vec::new(), 0);
            if activity.due_at.is_none() {
                self.of.remove(&id);
            }
        }
    }
}

impl Default for Activity {
    fn default() -> Self {
        Self {
            attempts: Vec::new(),
            oldest: 0,
            last: None,
            samples: Vec::new(),
            held_until: Timestamp::MIN,
            reported_at: None,
            due_at: None,
            is_recent: false,
        }
    }
}

impl Activity {
    fn keep(&mut self, attempt: RecentAttempt) {
        self.is_recent = true;
        if self.attempts.len() < ATTEMPTS_MAX {
            self.attempts.push(attempt);
            return;
        }
        self.attempts[self.oldest] = attempt;
        self.oldest = (self.oldest + 1) % ATTEMPTS_MAX;
    }

    fn in_order(&self) -> impl Iterator<Item = RecentAttempt> {
        let (late, early) = self.attempts.split_at(self.oldest);
        early.iter().chain(late).copied()
    }

    fn latest(&self) -> Option<&RecentAttempt> {
        match self.oldest.checked_sub(1) {
            Some(nth) => self.attempts.get(nth),
            None => self.attempts.last(),
        }
    }

    /// The sample of the interval that `now` is in.
    fn sample_at(&mut self, now: Timestamp) -> &mut Sample {
        let length = INTERVAL.as_micros() as i64;
        let from = Timestamp::from_micros(now.as_micros() - now.as_micros().rem_euclid(length));
        let is_new = self.samples.last().is_none_or(|last| last.from < from);
        if is_new && self.samples.len() < SAMPLES_MAX {
            let sample = Sample {
                from,
                span: INTERVAL,
                requests: 0,
                rate_limited: 0,
                failed: 0,
                held: Span::ZERO,
                learned: Span::ZERO,
            };
            // Mostly, it is reported before the next interval begins.
            self.samples.reserve_exact(1);
            self.samples.push(sample);
        }
        let last = self.samples.len() - 1;
        &mut self.samples[last]
    }
}

/// How many attempts of a domain are kept.
const ATTEMPTS_MAX: usize = 32;
/// Of how many domains attempts are kept: 25 MB of them at most.
const KEPT_MAX: usize = 16_384;
/// How many domains may have something to report. What happens on more is not reported, until some of these were.
const DOMAINS_MAX: usize = 131_072;
/// How many intervals of a domain may be unreported; later ones are added to the last of them.
const SAMPLES_MAX: usize = 12;
/// How often a domain is reported on, unless something happens that people look for.
const REPORT_EVERY: Span = Span::from_mins(1);
/// How many domains are looked at to find one to forget.
const TRIES: usize = 4;

#[cfg(test)]
mod tests {
    use comity_core::domain::Domain;
    use comity_core::headers::PacingHints;
    use comity_core::pace::RetryAfterEffect;
    use comity_core::paces::Paces;

    use super::*;

    fn ids(count: usize) -> Vec<DomainId> {
        let mut paces = Paces::new(0);
        (0..count).map(|nth| paces.enter(&Domain::parse(&format!("host-{nth}.example")).unwrap())).collect()
    }

    fn at(secs: i64) -> Timestamp {
        Timestamp::from_secs(1_000_000 + secs)
    }

    fn recorded(held_until: Option<Timestamp>) -> Recorded {
        Recorded {
            freshness: Freshness::Fresh,
            delay: None,
            held_until,
            server_until: None,
            retry_after: RetryAfterEffect::Absent,
        }
    }

    fn note(activities: &mut Activities, id: DomainId, status: u16, held: Option<i64>, secs: i64) {
        let (ready_at, spacing) = (at(secs - 100), Span::from_secs(2));
        let sent = Sent { id, started_at: at(secs - 1), ready_at, spacing };
        let answer = Answer::of_status(status, PacingHints::default());
        let recorded = recorded(held.map(at));
        activities.note(&sent, &answer, &recorded, Span::from_secs(3), at(secs));
    }

    #[test]
    fn the_latest_attempts_are_kept_in_order() {
        let (mut activities, id) = (Activities::default(), ids(1)[0]);
        for secs in 0..100 {
            note(&mut activities, id, if secs == 99 { 429 } else { 200 }, None, 10 * secs);
        }
        let recent = activities.recent(id);
        assert_eq!(recent.len(), ATTEMPTS_MAX);
        assert!(recent.windows(2).all(|pair| pair[1].at.since(pair[0].at) == Span::from_secs(10)));
        let last = recent.last().unwrap();
        assert_eq!((last.at, last.took, last.status), (at(989), Span::from_secs(1), Some(429)));
        assert_eq!((last.outcome, last.delay), (Outcome::RateLimited, Span::from_secs(2)));
        assert_eq!(last.waited, Span::from_secs(10), "since the attempt before it");
    }

    #[test]
    fn a_domain_is_reported_soon_and_then_once_a_minute_unless_it_closes() {
        let (mut activities, id) = (Activities::default(), ids(1)[0]);
        note(&mut activities, id, 200, None, 0);
        assert_eq!(activities.take_due(at(0), 9).len(), 1);
        note(&mut activities, id, 200, None, 1);
        note(&mut activities, id, 404, None, 2);
        assert!(activities.take_due(at(59), 9).is_empty());
        let report = activities.take_due(at(60), 9).pop().unwrap().1;
        assert_eq!(
            report.samples.iter().map(|sample| (sample.requests, sample.failed)).collect::<Vec<_>>(),
            [(2, 0)]
        );
        assert_eq!(report.last.map(|last| (last.at, last.status)), Some((at(2), Some(404))));
        note(&mut activities, id, 429, Some(90), 61);
        let sample = activities.take_due(at(61), 9).pop().unwrap().1.samples[0];
        assert_eq!(
            (sample.rate_limited, sample.held, sample.learned),
            (1, Span::from_secs(29), Span::from_secs(3))
        );
        // A hold that is extended counts once.
        note(&mut activities, id, 503, Some(100), 62);
        let sample = activities.take_due(at(62), 9).pop().unwrap().1.samples[0];
        assert_eq!((sample.failed, sample.held), (1, Span::from_secs(10)));
        activities.touch(id, at(63));
        assert_eq!(activities.take_due(at(63), 9).len(), 1, "an operator changed it");
    }

    #[test]
    fn what_happens_in_two_intervals_is_reported_apart_and_is_not_lost_with_its_domain() {
        let (mut activities, id) = (Activities::default(), ids(1)[0]);
        let length = INTERVAL.as_micros() as i64 / 1_000_000;
        note(&mut activities, id, 200, None, 0);
        note(&mut activities, id, 200, None, length);
        note(&mut activities, id, 200, None, length);
        let left = activities.remove(id).unwrap();
        assert_eq!(left.samples.iter().map(|sample| sample.requests).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(left.samples[1].from.since(left.samples[0].from), INTERVAL);
        assert!(activities.take_due(at(10_000), 9).is_empty() && activities.remove(id).is_none());
    }

    /// Prints what an attempt costs: `cargo test --release -p comity --lib -- --ignored --nocapture what_noting`.
    #[test]
    #[ignore = "measures"]
    fn what_noting_an_attempt_costs() {
        use comity_store::machine::{Machine, ThisMachine};
        for domains in [1, 1_000, 100_000] {
            let (mut activities, ids) = (Activities::default(), ids(domains));
            let (rounds, answer, recorded) =
                (2_000_000 / domains, Answer::from(Outcome::Success), recorded(None));
            let mut best = u64::MAX;
            for attempt in 0..5 {
                let before = ThisMachine.up();
                for round in 0..rounds {
                    let now = at((attempt * rounds + round) as i64);
                    for id in &ids {
                        let sent =
                            Sent { id: *id, started_at: now, ready_at: now, spacing: Span::from_secs(1) };
                        activities.note(&sent, &answer, &recorded, Span::ZERO, now);
                    }
                    activities.take_due(now, 1_000);
                }
                let nanos = ThisMachine.up().less(before).as_micros() * 1_000;
                best = best.min(nanos / (rounds * domains) as u64);
            }
            eprintln!("{domains} domains: {best} ns per attempt, reports included");
        }
    }

    #[test]
    fn attempts_of_very_many_domains_take_bounded_memory() {
        let (mut activities, ids) = (Activities::default(), ids(2 * KEPT_MAX));
        for id in &ids {
            note(&mut activities, *id, 200, None, 0);
            // The first one stays busy.
            note(&mut activities, ids[0], 200, None, 1);
        }
        let kept = ids.iter().filter(|id| !activities.recent(**id).is_empty()).count();
        assert!((KEPT_MAX - 1..=KEPT_MAX).contains(&kept), "{kept}");
        assert_eq!(activities.recent(ids[0]).len(), ATTEMPTS_MAX);
        assert_eq!(activities.take_due(at(9), usize::MAX).len(), ids.len(), "but all are reported");
        assert!(activities.of.len() <= KEPT_MAX);
    }
}
