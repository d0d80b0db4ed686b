//! Plays many sites and summarizes the scores.

use std::fmt::Write;

use super::clients::{Client, Comity};
use super::play::play;
use super::score::{Contestant, Score, best_fixed_pace, bracket, score, score_of};
use super::spec::{Family, Hint, SiteSpec};

/// The scores of one rule on many sites.
#[derive(Debug, Clone, Copy)]
pub struct Summary {
    /// Median goodput.
    pub median: f64,
    /// Goodput that nine of ten sites exceed.
    pub tenth: f64,
    /// Median share of requests refused in the second half, and the mean.
    pub refused: (f64, f64),
    /// Median number of refusals in the first ten minutes.
    pub early_refusals: f64,
    /// Median of the longest run of refusals.
    pub longest_run: f64,
    /// Median seconds until 90 % of the best pace.
    pub to_90: f64,
}

impl Summary {
    /// Summarizes scores.
    pub fn of(scores: &[Score]) -> Self {
        let quantile = |share: f64, value: fn(&Score) -> f64| {
            let mut values: Vec<f64> = scores.iter().map(value).collect();
            values.sort_by(f64::total_cmp);
            values[((values.len() - 1) as f64 * share).round() as usize]
        };
        let mean = scores.iter().map(|score| score.refused).sum::<f64>() / scores.len() as f64;
        Self {
            median: quantile(0.5, |score| score.goodput),
            tenth: quantile(0.1, |score| score.goodput),
            refused: (quantile(0.5, |score| score.refused), mean),
            early_refusals: quantile(0.5, |score| score.early_refusals as f64),
            longest_run: quantile(0.5, |score| score.longest_run as f64),
            to_90: quantile(0.5, |score| score.to_90),
        }
    }

    fn row(&self, name: &str) -> String {
        format!(
            "| {name} | {:.1} % | {:.1} % | {:.2} % | {:.2} % | {:.0} | {:.0} | {} |\n",
            self.median * 100.0,
            self.tenth * 100.0,
            self.refused.0 * 100.0,
            self.refused.1 * 100.0,
            self.early_refusals,
            self.longest_run,
            if self.to_90.is_finite() { format!("{:.0} s", self.to_90) } else { "never".to_owned() },
        )
    }
}

const HEAD: &str = "goodput, median | goodput, tenth percentile | refused, median | refused, mean | refusals in \
the first 10 min | longest run of refusals | to 90 % |\n|---|---|---|---|---|---|---|---|\n";

/// The tables for so many random sites, from a seed on.
pub fn report(from: u64, sites: u64) -> String {
    let mut text = String::new();
    for (hint, title) in [
        (Hint::Absent, "without Retry-After"),
        (Hint::Seconds, "with Retry-After in whole seconds"),
        (Hint::TooShort, "with a Retry-After that is too short"),
    ] {
        let specs: Vec<(SiteSpec, u64, f64)> = (from..from + sites)
            .map(|seed| {
                let spec = SiteSpec::random(seed, hint);
                let best = best_fixed_pace(&spec, seed);
                (spec, seed, best)
            })
            .collect();
        _ = write!(text, "{sites} random sites, {title}:\n\n| rule | {HEAD}");
        let contestants = if hint == Hint::Absent { &Contestant::ALL[..] } else { &Contestant::ALL[..2] };
        let mut families = String::new();
        for contestant in contestants {
            let scores: Vec<(Family, Score)> = specs
                .iter()
                .map(|(spec, seed, best)| (spec.family, score(spec, *contestant, *best, *seed)))
                .collect();
            let all: Vec<Score> = scores.iter().map(|(_, score)| *score).collect();
            text.push_str(&Summary::of(&all).row(contestant.as_str()));
            if *contestant == Contestant::Bracket {
                for family in Family::ALL {
                    let of: Vec<Score> = scores
                        .iter()
                        .filter(|(known, _)| *known == family)
                        .map(|(_, score)| *score)
                        .collect();
                    if !of.is_empty() {
                        families.push_str(&Summary::of(&of).row(family.as_str()));
                    }
                }
            }
        }
        _ = write!(text, "\nComity with bracket, by kind of site:\n\n| site | {HEAD}{families}\n");
    }
    text.push_str("A limit that steps from 5 to 1 and back (against the best fixed pace):\n\n");
    for each in [600.0, 1_800.0, 7_200.0] {
        let score = stepping(Contestant::Bracket, each, from);
        let goodput = score.goodput * 100.0;
        let refused = score.refused * 100.0;
        _ = writeln!(text, "- steps of {each} s: goodput {goodput:.1} %, refused {refused:.2} %");
    }
    text.push_str("\nSeveral clients of one quota (token bucket, 6 requests per second):\n\n");
    for clients in [2, 3, 5] {
        let (jain, used, refused) = fairness(clients, from);
        _ = writeln!(
            text,
            "- {clients} clients: Jain fairness {jain:.3}, {:.1} % of the quota used, {:.2} % refused",
            used * 100.0,
            refused * 100.0
        );
    }
    text
}

/// The score on a limit that steps from 5 to 1 and back.
pub fn stepping(contestant: Contestant, each: f64, seed: u64) -> Score {
    let spec = SiteSpec::stepping(each, 10.0);
    score(&spec, contestant, best_fixed_pace(&spec, seed), seed)
}

/// Several clients with bracket learning share a quota: Jain's index of what they get in the second half, how much of the
/// quota is used, and the share of refused requests.
pub fn fairness(clients: usize, seed: u64) -> (f64, f64, f64) {
    let mut spec = SiteSpec::stepping(3_600.0, 20.0);
    spec.steps = vec![(1.2, 7_200.0)];
    spec.duration = 14_400.0;
    let mut all: Vec<Comity> = (0..clients).map(|_| Comity::new(bracket())).collect();
    let mut clients: Vec<&mut dyn Client> = all.iter_mut().map(|client| client as &mut dyn Client).collect();
    let events = play(&spec, &mut clients, seed).events;
    let count = clients.len();
    let mut accepted = vec![0.0; count];
    for event in events.iter().filter(|event| event.accepted && event.at >= spec.duration / 2.0) {
        accepted[event.client] += 1.0;
    }
    let total: f64 = accepted.iter().sum();
    let squares: f64 = accepted.iter().map(|count| count * count).sum();
    let score = score_of(&spec, &events, 6.0 * spec.duration / 2.0);
    (total * total / (count as f64 * squares), score.goodput, score.refused)
}

/// One line per random site: how bracket learning did there.
pub fn sites(from: u64, sites: u64, hint: Hint) -> String {
    let mut text = String::new();
    for seed in from..from + sites {
        let spec = SiteSpec::random(seed, hint);
        let best = best_fixed_pace(&spec, seed);
        let of = score(&spec, Contestant::Bracket, best, seed);
        _ = writeln!(
            text,
            "{seed:>5} {:<22} {:>6.3}/s goodput {:>5.1} %, refused {:>5.2} %, {:>3} in the first 10 min, longest \
             run {:>3}, {} steps, ban {:?}",
            spec.family.as_str(),
            spec.limit,
            of.goodput * 100.0,
            of.refused * 100.0,
            of.early_refusals,
            of.longest_run,
            spec.steps.len(),
            spec.ban,
        );
    }
    text
}

/// What bracket learning did on one random site: one line per change of the pace and per refusal.
pub fn story(seed: u64, hint: Hint) -> String {
    let spec = SiteSpec::random(seed, hint);
    let mut client = Told { comity: Comity::new(bracket()), lines: String::new(), delay: 0.0, sent: 0 };
    _ = writeln!(client.lines, "{spec:?}\nbest fixed pace: {}", best_fixed_pace(&spec, seed));
    let mut clients: [&mut dyn Client; 1] = [&mut client];
    play(&spec, &mut clients, seed);
    client.lines
}

/// Writes down what Comity learns.
struct Told {
    comity: Comity,
    lines: String,
    delay: f64,
    sent: u64,
}

impl Client for Told {
    fn poll(&mut self, now: f64) -> super::Poll {
        let poll = self.comity.poll(now);
        self.sent += u64::from(matches!(poll, super::Poll::Send(_)));
        poll
    }

    fn answered(&mut self, now: f64, token: u64, feedback: super::Feedback) {
        self.comity.answered(now, token, feedback);
        let delay = self.comity.spacing();
        let refused = feedback != super::Feedback::Accepted;
        if refused || delay != self.delay {
            let what = if refused { "refused" } else { "" };
            let of = self.comity.pace().estimate().map(|estimate| {
                format!("{:?}", (estimate.step, estimate.burst, estimate.window, estimate.in_flight))
            });
            _ = writeln!(
                self.lines,
                "{now:>10.2} {:>7} {:>9.3}/s {what:<8} {}",
                self.sent,
                1.0 / delay,
                of.unwrap_or_default()
            );
            self.delay = delay;
        }
    }
}
