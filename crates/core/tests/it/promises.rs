//! Property tests: what a pace promises for random rules and random sequences of events.

use comity_core::decision::{Decision, Limit, Permit};
use comity_core::headers::{PacingHints, Quota, RetryAfter};
use comity_core::intent::Intent;
use comity_core::learn::Learning;
use comity_core::outcome::{Answer, Outcome};
use comity_core::pace::{Departure, LEASE, Pace, Pinned, Terms};
use comity_core::rule::{Backoff, Burst, Fields, IntentFields, LearnFields, LearningName, Rule, WaitOn429};
use comity_core::time::{Span, Timestamp};
use proptest::prelude::*;
use std::num::NonZeroU64;

/// Something that happens to a pace.
#[derive(Debug, Clone)]
enum Event {
    /// Time passes, in microseconds.
    Later(u64),
    /// The clock is set, by this many microseconds.
    Step(i64),
    Ask(Intent),
    Depart(usize),
    Answer(usize, Answer),
    Unasked(Intent, Answer),
    Rule(usize),
    Lost,
    Restarted,
    Pin(bool),
    Set(u64, u64),
    Reset,
}

fn spans(secs: u64) -> impl Strategy<Value = Span> {
    prop_oneof![
        Just(Span::ZERO),
        (1..secs * 1_000_000).prop_map(Span::from_micros),
        (1..=secs).prop_map(Span::from_secs)
    ]
}

fn above_zero(secs: u64) -> impl Strategy<Value = Span> {
    (1..=secs * 1_000).prop_map(Span::from_millis)
}

prop_compose! {
    fn rules()(
        min_delay in spans(5),
        rate in prop_oneof![Just(None), (0.05..50.0).prop_map(Some)],
        burst in prop_oneof![Just(None), (1..6_u32).prop_map(Some)],
        burst_window in above_zero(60),
        backoff in prop_oneof![Just(Backoff::None), Just(Backoff::Linear), Just(Backoff::Exponential)],
        wait in prop_oneof![
            spans(60).prop_map(WaitOn429::Fixed), Just(WaitOn429::Backoff), Just(WaitOn429::Learned)
        ],
        retry_after_max in above_zero(3_600),
        in_flight in prop_oneof![Just(None), (1..4_u32).prop_map(Some)],
        learning in prop_oneof![Just(LearningName::Off), Just(LearningName::Linear), Just(LearningName::Bracket)],
        (base, step, ceiling, probe_after) in (spans(3), above_zero(5), above_zero(60), 1..5_u32),
        (search_delay, search_burst) in (spans(20), prop_oneof![Just(None), (1..3_u32).prop_map(Some)]),
    ) -> Rule {
        let search = IntentFields { min_delay: Some(search_delay), burst: Some(search_burst) };
        let fields = Fields {
            min_delay: Some(min_delay),
            requests_per_second: Some(rate),
            burst: Some(burst),
            burst_window: Some(burst_window),
            backoff: Some(backoff),
            wait_on_429: Some(wait),
            retry_after_max: Some(retry_after_max),
            in_flight: Some(in_flight),
            learning: Some(learning),
            learn: LearnFields {
                base: Some(base), step: Some(step), ceiling: Some(ceiling), probe_after: Some(probe_after),
                max_age: Some(Span::from_hours(1)),
            },
            intents: [IntentFields::default(), search, IntentFields::default()],
            ..Fields::default()
        };
        Rule::new(&fields).unwrap()
    }
}

fn intents() -> impl Strategy<Value = Intent> {
    prop_oneof![4 => Just(Intent::Fetch), 1 => Just(Intent::Search)]
}

fn answers() -> impl Strategy<Value = Answer> {
    let outcome = prop_oneof![
        3 => Just(Outcome::Success),
        3 => Just(Outcome::RateLimited),
        2 => proptest::sample::select(Outcome::ALL.to_vec()),
    ];
    let retry_after = prop_oneof![
        5 => Just(RetryAfter::Absent),
        1 => Just(RetryAfter::Unusable),
        1 => above_zero(600).prop_map(RetryAfter::After),
        1 => Just(RetryAfter::After(Span::MAX)),
    ];
    let quota = prop_oneof![
        5 => Just(None),
        1 => (0..5_u64, above_zero(120)).prop_map(Some),
    ];
    (outcome, retry_after, quota).prop_map(|(outcome, retry_after, quota)| {
        let exhausted_for = quota.filter(|(left, _)| *left == 0).map(|(_, reset)| reset);
        let left = |(left, reset)| Some(Quota { remaining: NonZeroU64::new(left)?, reset });
        Answer {
            hints: PacingHints { retry_after, exhausted_for, quota: quota.and_then(left) },
            ..outcome.into()
        }
    })
}

/// Events with a clock that only runs forward and a rule that doesn't change.
fn steady() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (0..8_000_000_u64).prop_map(Event::Later),
        1 => (0..700_000_000_u64).prop_map(Event::Later),
        6 => intents().prop_map(Event::Ask),
        1 => any::<usize>().prop_map(Event::Depart),
        5 => (any::<usize>(), answers()).prop_map(|(nth, answer)| Event::Answer(nth, answer)),
    ]
}

fn anything() -> impl Strategy<Value = Event> {
    prop_oneof![
        12 => steady(),
        1 => (-100_000_000..100_000_000_i64).prop_map(Event::Step),
        1 => (intents(), answers()).prop_map(|(intent, answer)| Event::Unasked(intent, answer)),
        1 => any::<usize>().prop_map(Event::Rule),
        1 => Just(Event::Lost),
        1 => Just(Event::Restarted),
        1 => any::<bool>().prop_map(Event::Pin),
        1 => (0..90_000_000_u64, 0..9_000_000_u64).prop_map(|(delay, floor)| Event::Set(delay, floor)),
        1 => Just(Event::Reset),
    ]
}

/// A pace and its circumstances.
struct Story<'a> {
    pace: Pace,
    rules: &'a [Rule],
    rule: usize,
    crawl_delay: Span,
    now: Timestamp,
    open: Vec<Permit>,
}

/// A slot that was granted.
struct Slot {
    at: Timestamp,
    intent: Intent,
    rule: usize,
}

impl<'a> Story<'a> {
    fn new(rules: &'a [Rule], crawl_delay: Span) -> Self {
        let now = Timestamp::from_secs(1_000_000);
        Self { pace: Pace::default(), rules, rule: 0, crawl_delay, now, open: Vec::new() }
    }

    fn terms(&self) -> Terms<'a> {
        Terms { rule: &self.rules[self.rule], crawl_delay: self.crawl_delay }
    }

    /// Applies an event; returns the slot if one was granted.
    fn apply(&mut self, event: &Event) -> Option<Slot> {
        let (terms, now) = (self.terms(), self.now);
        match event {
            Event::Later(micros) => self.now = now + Span::from_micros(*micros),
            Event::Step(micros) => self.now = Timestamp::from_micros(now.as_micros() + micros),
            Event::Ask(intent) => {
                if let Decision::Proceed(permit) = self.pace.admit(terms, *intent, now) {
                    // A held permit would count until it is recorded; a lent one has a known end.
                    self.pace.lend(permit.id(), LEASE, now);
                    self.open.push(permit);
                    return Some(Slot { at: now, intent: *intent, rule: self.rule });
                }
            }
            Event::Depart(nth) if !self.open.is_empty() => {
                let nth = nth % self.open.len();
                match self.pace.depart(terms, &mut self.open[nth], now) {
                    Departure::Wait { until, .. } => assert!(until > now),
                    // A permit that was settled before is in flight again.
                    Departure::Go => _ = self.pace.lend(self.open[nth].id(), LEASE, now),
                }
            }
            Event::Answer(nth, answer) if !self.open.is_empty() => {
                let permit = self.open.remove(nth % self.open.len());
                self.pace.record(terms, &permit, answer, now);
                let before = self.pace.clone();
                self.pace.record(terms, &permit, answer, now);
                assert_eq!(self.pace, before, "recording twice is harmless");
            }
            Event::Unasked(intent, answer) => _ = self.pace.record_unasked(terms, *intent, answer, now),
            Event::Rule(nth) => self.rule = nth % self.rules.len(),
            Event::Lost => self.pace.lost(now),
            Event::Restarted => self.pace.restarted(),
            Event::Pin(true) => self.pace.pin(Pinned::Yes),
            Event::Pin(false) => self.pace.pin(Pinned::No),
            Event::Set(delay, floor) => {
                let [delay, floor] = [*delay, *floor].map(Span::from_micros);
                self.pace.set_learned(terms, delay, floor, now);
            }
            Event::Reset => _ = self.pace.reset(now),
            Event::Depart(_) | Event::Answer(..) => {}
        }
        None
    }

    /// The longest time that these rules may delay a lone caller.
    fn longest(&self) -> Span {
        let of = |rule: &Rule| {
            let learned = match rule.learning() {
                Learning::Off => Span::ZERO,
                Learning::Linear(linear) => linear.ceiling.max(linear.base),
                Learning::Bracket(bracket) => bracket.ceiling.max(bracket.start),
            };
            let windows = [rule.burst(), rule.intent(Intent::Search).burst];
            let windows = windows.into_iter().flatten().map(|burst: Burst| burst.window).max();
            [
                rule.min_delay(),
                rule.rate_delay(),
                rule.intent(Intent::Search).min_delay,
                learned,
                windows.unwrap_or_default(),
                rule.ladder().wait(u32::MAX).unwrap_or_default(),
                rule.retry_after_max(),
                // A 429 without backoff, a fixed wait, or a permit that is never recorded.
                Span::from_secs(600),
            ]
            .into_iter()
            .max()
        };
        self.rules.iter().filter_map(of).max().unwrap_or_default().max(self.crawl_delay)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..ProptestConfig::default() })]

    /// B2, B6: asking at `until` proceeds, asking one microsecond earlier doesn't
    #[test]
    fn until_is_exact(
        rules in proptest::collection::vec(rules(), 2),
        events in proptest::collection::vec(anything(), 1..60),
        crawl_delay in prop_oneof![3 => Just(Span::ZERO), 1 => spans(20)],
    ) {
        let mut story = Story::new(&rules, crawl_delay);
        for event in &events {
            story.apply(event);
            for intent in [Intent::Fetch, Intent::Search] {
                let terms = story.terms();
                let peeked = story.pace.peek(terms, intent, story.now);
                let mut asked = story.pace.clone();
                let Decision::Wait { until, reason } = asked.admit(terms, intent, story.now) else {
                    prop_assert_eq!(peeked, None, "peek and admit disagree");
                    continue;
                };
                prop_assert_eq!(peeked, Some(reason), "peek and admit disagree");
                prop_assert!(until > story.now);
                let early = until - Span::from_micros(1);
                prop_assert!(!asked.clone().admit(terms, intent, early).proceeds(), "early: {reason:?}");
                prop_assert!(asked.clone().admit(terms, intent, until).proceeds(), "on time: {reason:?}");
                let explained = story.pace.explain(terms, intent, story.now);
                prop_assert_eq!(explained.first().map(|first| first.until), Some(until));
                let next_at = story.pace.retry_at(terms, intent, story.now);
                let on_wire = matches!(reason.limit, Limit::Lease { .. });
                prop_assert!(next_at < until || (!on_wire && next_at == until), "next at {next_at}");
            }
        }
    }

    /// B3, B4, B7: no two slots are closer than the delay, as measured by `now`, whatever happens; a clock that jumps
    /// ahead grants at most one extra slot
    #[test]
    fn slots_are_spaced(
        rules in proptest::collection::vec(rules(), 2),
        events in proptest::collection::vec(anything(), 1..200),
    ) {
        let mut story = Story::new(&rules, Span::ZERO);
        // Time since the last slot, as measured by a clock that never steps back.
        let mut elapsed = Span::MAX;
        let mut jumped = false;
        for event in &events {
            match event {
                Event::Later(micros) => elapsed += Span::from_micros(*micros),
                Event::Step(micros) if *micros > 0 => {
                    elapsed += Span::from_micros(*micros as u64);
                    jumped = true;
                }
                _ => {}
            }
            if let Some(slot) = story.apply(event) {
                let rule = &rules[slot.rule];
                let least = rule.min_delay().max(rule.rate_delay());
                prop_assert!(elapsed >= least, "{elapsed} after the last, {least} is the least, jumped {jumped}");
                elapsed = Span::ZERO;
                jumped = false;
            }
        }
    }

    /// B17: no window has more starts than the burst allows
    #[test]
    fn bursts_are_limited(
        rule in rules(),
        events in proptest::collection::vec(steady(), 1..200),
    ) {
        let rules = [rule];
        let mut story = Story::new(&rules, Span::ZERO);
        let mut slots: Vec<Slot> = Vec::new();
        for event in &events {
            slots.extend(story.apply(event));
        }
        let check = |starts: Vec<Timestamp>, burst: Option<Burst>| {
            let Some(Burst { count, window }) = burst else { return true };
            let count = count as usize;
            starts.iter().zip(starts.iter().skip(count)).all(|(first, last)| last.since(*first) >= window)
        };
        prop_assert!(check(slots.iter().map(|slot| slot.at).collect(), rules[0].burst()));
        let searches = slots.iter().filter(|slot| slot.intent == Intent::Search).map(|slot| slot.at).collect();
        prop_assert!(check(searches, rules[0].intent(Intent::Search).burst));
    }

    /// B7, B21: no wait exceeds what the rules allow
    #[test]
    fn no_wait_exceeds_the_rules(
        rules in proptest::collection::vec(rules(), 2),
        events in proptest::collection::vec(anything(), 1..80),
    ) {
        // An operator may set any delay up to the ceiling of the current rule, so only one rule is used here.
        let mut story = Story::new(&rules[..1], Span::ZERO);
        let longest = story.longest();
        for event in &events {
            if matches!(event, Event::Set(..) | Event::Pin(_)) && matches!(rules[0].learning(), Learning::Off) {
                continue;
            }
            story.apply(event);
            let wait = story.pace.retry_at(story.terms(), Intent::Search, story.now).since(story.now);
            prop_assert!(wait <= longest, "{wait}, where {longest} is the longest");
        }
    }

    /// B29: the learned delay stays within base and ceiling
    #[test]
    fn the_learned_delay_stays_in_range(
        rule in rules(),
        crawl_delay in prop_oneof![Just(Span::ZERO), spans(90)],
        events in proptest::collection::vec(anything(), 1..120),
    ) {
        let rules = [rule];
        let mut story = Story::new(&rules, crawl_delay);
        for event in &events {
            story.apply(event);
            if let Learning::Linear(linear) = rules[0].learning() {
                let base = story.terms().learn_base();
                let delay = story.pace.learned().delay();
                let within = (base..=linear.ceiling.max(base)).contains(&delay);
                prop_assert!(delay.is_zero() || within, "{delay} is not within {base} and {}", linear.ceiling);
            }
        }
    }

    /// Decoding an encoded pace gives the same pace
    #[test]
    fn encoding_round_trips(
        rules in proptest::collection::vec(rules(), 2),
        events in proptest::collection::vec(anything(), 0..60),
    ) {
        let mut story = Story::new(&rules, Span::ZERO);
        for event in &events {
            story.apply(event);
        }
        prop_assert_eq!(Pace::decode(&story.pace.encode()), Ok(story.pace));
    }

    /// An idle pace can be forgotten, because a fresh one makes the same decisions
    #[test]
    fn an_idle_pace_decides_like_a_fresh_one(
        rule in rules(),
        events in proptest::collection::vec(steady(), 1..40),
        more in proptest::collection::vec(steady(), 1..40),
    ) {
        let rules = [rule];
        let mut story = Story::new(&rules, Span::ZERO);
        for event in &events {
            story.apply(event);
        }
        if story.pace.is_idle(story.terms(), story.now) {
            story.open.clear();
            let mut fresh = Story { pace: Pace::default(), now: story.now, ..Story::new(&rules, Span::ZERO) };
            for event in &more {
                let [old, new] = [&mut story, &mut fresh].map(|story| story.apply(event).is_some());
                prop_assert_eq!(old, new);
            }
        }
    }
}
