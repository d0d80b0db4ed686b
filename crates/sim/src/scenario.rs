//! A small language for examples with one domain: a script in, a line of results out.
//!
//! Steps are separated by `|`. A step may begin with a time in seconds (`2.3` or `2.3s`), or with a time relative to
//! the previous step (`+0.1`). Steps that happen as early as possible need no time.
//!
//! | step | does | prints |
//! |---|---|---|
//! | `ask [intent] [as NAME]` | asks for a permit now | `proceed` or `wait 4.4s (backoff)` |
//! | `peek [intent]` | asks without reserving | the same |
//! | `start [xN] [intent] [as NAME]` | starts a request as early as possible | the times of the starts |
//! | `429 [retry-after=5] [quota=4/60] [of NAME]` | this response to NAME, or to the oldest request | |
//! | `timeout`, `disconnect`, `refused` | no response; for the last one, no connection either | |
//! | `unasked 200` | a response to a request that was sent without a permit | |
//! | `successes N` | N requests, each as early as possible, each answered 200 immediately | |
//! | `depart of NAME` | the connection is open: may the request be written? | `go` or `wait 1s (min_delay)` |
//! | `lend 60 of NAME`, `release` | lends the permit; an operator ends all leases | nothing, or how many |
//! | `charge`, `backoff N` | the limiter's `wait` and `backoff` | the time at which they end |
//! | `learned`, `n`, `streaks`, `hold`, `spacing`, `retries NAME`, `next` | | the current state |
//! | `stop`, `kill`, `handover` | a new holder after a clean stop, after kill -9, from a running process | |
//! | `set 5 [floor 2]`, `pin`, `unpin`, `reset`, `pause [60]`, `resume` | operator commands | |
//! | `clock T` | the clock is set | |

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::num::NonZeroU64;

use comity_core::decision::{Decision, Permit, Reason};
use comity_core::domain::{Domain, Pattern};
use comity_core::headers::{PacingHints, Quota, RetryAfter};
use comity_core::intent::Intent;
use comity_core::outcome::{Answer, TransportFailure};
use comity_core::pace::{Departure, LastHolder, Pace, Pinned, Recorded, SavedLimits, Terms};
use comity_core::retry::{self, RetriesUsed};
use comity_core::rule::{Fields, Profile, Rule, RuleTable};
use comity_core::time::{Span, Timestamp};
use serde_json::Value;

/// One domain with one rule.
#[derive(Debug, Clone)]
pub struct Scenario {
    rule: Rule,
    crawl_delay: Span,
    retries_max: u32,
}

impl Scenario {
    /// A scenario with the rule that `host` has in a built-in profile, overridden by `settings`.
    ///
    /// # Panics
    /// If profile, host or settings are invalid: a scenario is a test.
    pub fn of(profile: &str, host: &str, settings: &Value) -> Self {
        let profile = Profile::named(profile).unwrap_or_else(|error| panic!("{error}"));
        let host = Domain::parse(host).unwrap_or_else(|error| panic!("{error}"));
        let empty = serde_json::Map::new();
        let fields =
            Fields::read(settings.as_object().unwrap_or(&empty)).unwrap_or_else(|error| panic!("{error}"));
        let pattern = Pattern::parse(host.as_str()).unwrap_or_else(|error| panic!("{error}"));
        let table = RuleTable::new(&profile, &Fields::default(), &[(pattern, fields)], None);
        let rule = table.unwrap_or_else(|error| panic!("{error}")).rule(&host).as_ref().clone();
        Self { rule, crawl_delay: Span::ZERO, retries_max: retry::RETRIES_MAX }
    }

    /// Sets the crawl-delay of the host's robots.txt.
    pub fn robots(mut self, delay: &str) -> Self {
        self.crawl_delay = Span::parse(delay).unwrap_or_else(|error| panic!("{error}"));
        self
    }

    /// The rule of the scenario.
    pub fn rule(&self) -> &Rule {
        &self.rule
    }

    /// Plays a script and returns what it prints.
    ///
    /// # Panics
    /// If the script is invalid.
    pub fn run(&self, script: &str) -> String {
        let mut play = Play {
            scenario: self,
            pace: Pace::default(),
            now: Timestamp::from_secs(0),
            open: Vec::new(),
            retries: BTreeMap::new(),
            saved: SavedLimits::default(),
            output: Vec::new(),
        };
        for step in script.split('|') {
            play.step(step.trim());
        }
        play.output.join(" | ")
    }
}

/// Plays a script with a profile's rule for a host.
pub fn run(profile: &str, host: &str, script: &str) -> String {
    Scenario::of(profile, host, &Value::Null).run(script)
}

struct Play<'a> {
    scenario: &'a Scenario,
    pace: Pace,
    now: Timestamp,
    open: Vec<(String, Permit)>,
    retries: BTreeMap<String, RetriesUsed>,
    saved: SavedLimits,
    output: Vec<String>,
}

impl Play<'_> {
    fn terms(&self) -> Terms<'_> {
        Terms { rule: &self.scenario.rule, crawl_delay: self.scenario.crawl_delay }
    }

    fn step(&mut self, step: &str) {
        let mut words: Vec<&str> = step.split_whitespace().collect();
        // A number is a time, unless the next word makes it a status.
        let status = |word: &str| word == "of" || word.contains('=');
        let timed =
            words.first().copied().filter(|word| is_time(word) && words.get(1).is_some_and(|w| !status(w)));
        if let Some(word) = timed {
            words.remove(0);
            self.now = match word.strip_prefix('+') {
                Some(word) => self.now + secs(word),
                None => Timestamp::from_secs(0) + secs(word),
            };
        }
        let name = name_in(&words);
        match words[0] {
            "ask" => {
                let intent = intent_in(&words);
                let decision = admit(self.scenario, &mut self.pace, intent, self.now);
                self.note(name, &decision);
                self.print_decision(decision.reason());
            }
            "peek" => {
                let reason = self.pace.peek(self.terms(), intent_in(&words), self.now);
                self.print_decision(reason.as_ref());
            }
            "start" => {
                for _ in 0..count_in(&words) {
                    let at = self.start(intent_in(&words), name);
                    self.output.push(time(at));
                }
            }
            "successes" => {
                for _ in
                    0..words[1].parse().unwrap_or_else(|_| panic!("{step:?}: expected a number of successes"))
                {
                    self.start(Intent::Fetch, "(success)");
                    self.answer("(success)", &Answer::of_status(200, PacingHints::default()));
                }
            }
            "depart" => self.depart(name),
            "lend" => self.lend(name, words[1]),
            "release" => self.output.push(format!("released {}", self.pace.release(self.now))),
            "charge" => {
                admit(self.scenario, &mut self.pace, Intent::Fetch, self.now);
                self.output.push(time(self.now));
            }
            "backoff" => self.backoff(words[1]),
            "unasked" => {
                let answer = answer_in(&words[1..]);
                let (scenario, intent) = (self.scenario, intent_in(&words));
                let recorded = self.pace.record_unasked(scenario.terms(), intent, &answer, self.now);
                self.keep(&recorded);
            }
            "clock" => self.now = Timestamp::from_secs(0) + secs(words[1]),
            "stop" | "kill" | "handover" => self.change_holder(words[0]),
            "set" | "pin" | "unpin" | "reset" | "pause" | "resume" => self.operate(&words),
            "learned" | "n" | "streaks" | "hold" | "spacing" | "retries" | "next" => self.inspect(&words),
            _ => self.answer(name, &answer_in(&words)),
        }
    }

    /// Asks until the decision is to proceed, waiting exactly as long as each decision says.
    fn start(&mut self, intent: Intent, name: &str) -> Timestamp {
        loop {
            let decision = admit(self.scenario, &mut self.pace, intent, self.now);
            self.note(name, &decision);
            match decision {
                Decision::Proceed(_) => return self.now,
                Decision::Wait { until, .. } => self.now = until,
                Decision::Refuse(reason) => panic!("refused: {reason}"),
            }
        }
    }

    fn note(&mut self, name: &str, decision: &Decision) {
        if let Decision::Proceed(permit) = decision {
            self.open.push((name.to_owned(), *permit));
        }
    }

    fn answer(&mut self, name: &str, answer: &Answer) {
        let index = self.open.iter().position(|(known, _)| name.is_empty() || known == name);
        let index = index.unwrap_or_else(|| panic!("no request called {name:?} is open"));
        let (name, permit) = self.open.remove(index);
        let recorded = self.pace.record(self.scenario.terms(), &permit, answer, self.now);
        let used = self.retries.entry(name).or_default();
        *used = retry::judge(answer.outcome, recorded.freshness, *used, self.scenario.retries_max).used;
        self.keep(&recorded);
    }

    /// Saves what a store saves when a response is recorded.
    fn keep(&mut self, recorded: &Recorded) {
        if let Some(until) = recorded.server_until {
            self.saved.server = Some((until, self.now));
        }
        let learned = self.pace.learned();
        (self.saved.delay, self.saved.floor) = (learned.delay(), learned.floor());
        self.saved.floor_at = learned.floor_confirmed_at();
    }

    fn depart(&mut self, name: &str) {
        let (scenario, now) = (self.scenario, self.now);
        let open = self.open.iter_mut().find(|(known, _)| known == name);
        let (_, permit) = open.unwrap_or_else(|| panic!("no request called {name:?} is open"));
        match self.pace.depart(scenario.terms(), permit, now) {
            Departure::Go => self.output.push("go".to_owned()),
            Departure::Wait { reason, .. } => self.print_decision(Some(&reason)),
        }
    }

    /// Lends a permit, with a lease in seconds.
    fn lend(&mut self, name: &str, lease: &str) {
        let open = self.open.iter().find(|(known, _)| known == name);
        let (_, permit) = open.unwrap_or_else(|| panic!("no request called {name:?} is open"));
        self.pace.lend(permit.id(), secs(lease), self.now);
    }

    /// The limiter's `backoff`: waits, then counts as a request.
    fn backoff(&mut self, attempt: &str) {
        let attempt =
            attempt.parse().unwrap_or_else(|_| panic!("{attempt:?}: expected the number of an attempt"));
        self.now = self.now + self.scenario.rule.backoff(attempt);
        self.pace.charge_now(self.scenario.terms(), Intent::Fetch, self.now);
        self.output.push(time(self.now));
    }

    fn change_holder(&mut self, how: &str) {
        let (scenario, now) = (self.scenario, self.now);
        let bytes = self.pace.encode();
        let last_holder = match how {
            "handover" => LastHolder::HandedOver(&bytes),
            "stop" => LastHolder::Stopped(&bytes),
            _ => LastHolder::Died { latest: now },
        };
        let inherited = Pace::inherit(scenario.terms(), &self.saved, last_holder, now);
        self.pace = inherited.unwrap_or_else(|error| panic!("{error}"));
    }

    fn operate(&mut self, words: &[&str]) {
        let (scenario, now) = (self.scenario, self.now);
        match words[0] {
            "set" => {
                let floor =
                    words.iter().position(|word| *word == "floor").map(|index| secs(words[index + 1]));
                self.pace.set_learned(scenario.terms(), secs(words[1]), floor.unwrap_or_default(), now);
            }
            "pin" => self.pace.pin(Pinned::Yes),
            "unpin" => self.pace.pin(Pinned::No),
            "reset" => _ = self.pace.reset(now),
            "pause" => self.pace.pause(words.get(1).map(|word| Timestamp::from_secs(0) + secs(word))),
            _ => self.pace.resume(),
        }
    }

    fn inspect(&mut self, words: &[&str]) {
        let learned = self.pace.learned();
        let output = match words[0] {
            "learned" => format!("learned {} floor {}", plain(learned.delay()), plain(learned.floor())),
            "n" => format!("n {}", self.pace.penalties()),
            "streaks" => format!("streaks {}/{}", learned.success_streak(), learned.error_streak()),
            "spacing" => format!("spacing {}", plain(self.pace.spacing(self.terms()))),
            "retries" => {
                format!("retries {}", self.retries.get(words[1]).copied().unwrap_or_default().retries)
            }
            "next" => format!("next {}", time(self.pace.retry_at(self.terms(), Intent::Fetch, self.now))),
            _ => {
                let reasons = self.pace.explain(self.terms(), Intent::Fetch, self.now);
                let words = ["retry_after", "quota_spent", "backoff", "wait_on_429", "learned_hold"];
                let hold =
                    reasons.iter().filter(|r| words.contains(&r.limit.as_str())).max_by_key(|r| r.until);
                hold.map_or("hold none".to_owned(), |hold| format!("hold {}", time(hold.until)))
            }
        };
        self.output.push(output);
    }

    fn print_decision(&mut self, reason: Option<&Reason>) {
        self.output.push(match reason {
            None => "proceed".to_owned(),
            Some(reason) if reason.until == Timestamp::MAX => format!("refused ({})", reason.limit.as_str()),
            Some(reason) => {
                let wait = reason.until.since(reason.asked_at);
                format!("wait {}s ({})", plain(wait), reason.limit.as_str())
            }
        });
    }
}

impl Scenario {
    fn terms(&self) -> Terms<'_> {
        Terms { rule: &self.rule, crawl_delay: self.crawl_delay }
    }
}

fn admit(scenario: &Scenario, pace: &mut Pace, intent: Intent, now: Timestamp) -> Decision {
    pace.admit(scenario.terms(), intent, now)
}

fn is_time(word: &str) -> bool {
    let number = word.strip_prefix('+').unwrap_or(word);
    let number = number.strip_suffix('s').unwrap_or(number);
    number.starts_with(|c: char| c.is_ascii_digit()) && number.parse::<f64>().is_ok()
}

fn secs(word: &str) -> Span {
    let number = word.strip_suffix('s').unwrap_or(word);
    Span::from_decimal_secs(number).unwrap_or_else(|| panic!("{word:?} isn't a time"))
}

fn name_in<'a>(words: &[&'a str]) -> &'a str {
    let marker = words.iter().position(|word| matches!(*word, "as" | "of"));
    marker.and_then(|index| words.get(index + 1)).copied().unwrap_or_default()
}

fn intent_in(words: &[&str]) -> Intent {
    words.iter().find_map(|word| word.parse().ok()).unwrap_or_default()
}

fn count_in(words: &[&str]) -> usize {
    words.iter().find_map(|word| word.strip_prefix('x')?.parse().ok()).unwrap_or(1)
}

fn answer_in(words: &[&str]) -> Answer {
    let value = |key: &str| words.iter().find_map(|word| word.strip_prefix(key));
    let retry_after = value("retry-after=").map(|text| RetryAfter::parse(text, Timestamp::from_secs(0)));
    let stated = value("quota=").and_then(|text| text.split_once('/')).map(|(left, reset)| {
        let left: u64 = left.parse().unwrap_or_else(|_| panic!("{left:?} isn't a number of requests"));
        (NonZeroU64::new(left), secs(reset))
    });
    let exhausted_for = stated.filter(|(left, _)| left.is_none()).map(|(_, reset)| reset);
    let quota = stated.and_then(|(left, reset)| Some(Quota { remaining: left?, reset }));
    let hints = PacingHints { retry_after: retry_after.unwrap_or_default(), exhausted_for, quota };
    match words[0] {
        "timeout" => Answer::of_failure(TransportFailure::TimedOut),
        "disconnect" => Answer::of_failure(TransportFailure::Disconnected),
        "refused" => Answer::of_failure(TransportFailure::Unreachable),
        status => {
            let status = status.parse().unwrap_or_else(|_| panic!("{status:?} isn't a step"));
            Answer::of_status(status, hints)
        }
    }
}

/// Seconds since the scenario began.
fn time(at: Timestamp) -> String {
    plain(at.since(Timestamp::from_secs(0)))
}

/// Decimal seconds without trailing zeros.
fn plain(span: Span) -> String {
    let mut text = String::new();
    _ = write!(text, "{}", span.as_micros() as f64 / 1e6);
    text
}
