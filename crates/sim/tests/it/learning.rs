//! How well bracket learning finds hidden limits, on a few of the sites that `comity-sim learning` plays.

use comity_core::decision::Decision;
use comity_core::headers::PacingHints;
use comity_core::intent::Intent;
use comity_core::outcome::{Answer, Outcome};
use comity_core::pace::{Pace, Terms};
use comity_core::rule::{Fields, LearningName, Rule, WaitOn429};
use comity_core::time::{Span, Timestamp};
use comity_sim::learning::{
    Comity, Contestant, Family, Hint, Score, SiteSpec, Summary, best_fixed_pace, fairness, play, score,
    stepping,
};

fn scores(contestant: Contestant, seeds: impl Iterator<Item = u64>) -> Vec<Score> {
    seeds
        .map(|seed| (SiteSpec::random(seed, Hint::Absent), seed))
        // These sites take long to play.
        .filter(|(spec, _)| spec.family != Family::DayNight)
        .map(|(spec, seed)| score(&spec, contestant, best_fixed_pace(&spec, seed), seed))
        .collect()
}

#[test]
fn bracket_learning_runs_just_below_hidden_limits_with_few_refusals() {
    let of = Summary::of(&scores(Contestant::Bracket, 50_000..50_048));
    assert!(of.median >= 0.97, "{of:?}");
    assert!(of.refused.0 <= 0.003, "{of:?}");
    assert!(of.early_refusals <= 12.0, "{of:?}");
}

#[test]
fn bracket_learning_finds_more_of_a_limit_than_linear_learning() {
    let of = |contestant| Summary::of(&scores(contestant, 60_000..60_024)).median;
    assert!(of(Contestant::Bracket) > of(Contestant::Linear) + 0.1);
}

#[test]
fn a_limit_that_steps_down_and_up_again_is_followed() {
    let of = stepping(Contestant::Bracket, 1_800.0, 11);
    assert!(of.goodput >= 0.92, "{of:?}");
}

#[test]
fn clients_that_share_a_quota_get_similar_parts_of_it() {
    for clients in [2, 3, 5] {
        let (jain, used, _) = fairness(clients, 3);
        assert!(jain >= 0.9, "{clients} clients: Jain {jain}");
        assert!(used >= 0.8, "{clients} clients use {used} of the quota");
    }
}

fn bracket(min_delay: Span) -> Rule {
    let fields = Fields {
        min_delay: Some(min_delay),
        in_flight: Some(None),
        learning: Some(LearningName::Bracket),
        wait_on_429: Some(WaitOn429::Learned),
        ..Fields::default()
    };
    Rule::new(&fields).unwrap()
}

/// B4: whatever is learned, the rule's minimum delay comes first
#[test]
fn bracket_learning_is_never_faster_than_the_minimum_delay() {
    for seed in 0..6 {
        let mut spec = SiteSpec::random(seed, Hint::Absent);
        spec.duration = 1_200.0;
        let mut client = Comity::new(bracket(Span::from_millis(700)));
        let events = play(&spec, &mut [&mut client], seed).events;
        assert!(events.len() > 10);
        assert!(events.windows(2).all(|pair| pair[1].at - pair[0].at >= 0.7 - 1e-5), "{spec:?}");
    }
}

/// B20, B22: a deadline that the server stated is kept in full, also by a learner that would ask earlier
#[test]
fn bracket_learning_waits_as_long_as_the_server_asked() {
    let (rule, mut pace) = (bracket(Span::ZERO), Pace::default());
    let start = Timestamp::from_secs(1_000);
    let Decision::Proceed(permit) = pace.admit(Terms::from(&rule), Intent::Fetch, start) else {
        panic!("the first request may leave");
    };
    let hints = PacingHints::retry_after(Span::from_secs(90));
    let answer = Answer { hints, ..Outcome::RateLimited.into() };
    pace.record(Terms::from(&rule), &permit, &answer, start);
    let Decision::Wait { until, .. } = pace.admit(Terms::from(&rule), Intent::Fetch, start) else {
        panic!("the server asked to wait");
    };
    assert_eq!(until, start + Span::from_secs(90));
}

/// B2: what was learned is explained with its numbers
#[test]
fn explain_shows_what_was_learned_from_how_many_refusals() {
    let spec = SiteSpec::stepping(3_600.0, 20.0);
    let spec = SiteSpec { duration: 1_200.0, ..spec };
    let rule = bracket(Span::ZERO);
    let mut client = Comity::new(rule.clone());
    play(&spec, &mut [&mut client], 5);
    let now = client.pace().last_start().unwrap();
    let reasons = client.pace().explain(Terms::from(&rule), Intent::Fetch, now);
    let texts: Vec<String> = reasons.iter().map(ToString::to_string).collect();
    let learned = texts.iter().find(|text| text.contains("learned delay")).unwrap();
    assert!(learned.contains(" requests/s from ") && learned.contains(" refusals, "), "{learned}");
}

/// The same seed gives the same requests
#[test]
fn simulated_sites_are_deterministic() {
    let spec = SiteSpec { duration: 900.0, ..SiteSpec::random(7, Hint::Seconds) };
    let events = || {
        let mut client = Contestant::Bracket.client(7);
        play(&spec, &mut [client.as_mut()], 7).events
    };
    assert_eq!(events(), events());
}
