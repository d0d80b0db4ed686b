//! A short language for examples about one domain: a script goes in, a sentence comes out.
//!
//! Steps are separated by `|`. A step may begin with a time in seconds (`2.3` or `2.3s`) or one relative to the step
//! before (`+0.1`); what can happen as early as possible needs none.
//!
//! | step | does | says |
//! |---|---|---|
//! | `ask [intent] [as NAME]` | asks now | `proceed` or `wait 4.4s (backoff)` |
//! | `peek [intent]` | asks without reserving | the same |
//! | `start [xN] [intent] [as NAME]` | asks as early as possible, and waits | the times of the starts |
//! | `429 [retry-after=5] [quota=4/60] [of NAME]` | that answer to NAME, or to the oldest request | |
//! | `timeout`, `disconnect`, `refused` | no answer at all; the last: no connection either | |
//! | `unasked 200` | an answer nobody asked for a permit for | |
//! | `successes N` | N requests, each as early as possible, each answered 200 at once | |
//! | `depart of NAME` | the connection is open: may it be written? | `go` or `wait 1s (min_delay)` |
//! | `lend 60 of NAME`, `release` | the permit is given out with a lease; an operator ends all leases | nothing, or how many |
//! | `charge`, `backoff N` | what the facade's `wait` and `backoff` do | the time it ends |
//! | `learned`, `n`, `streaks`, `hold`, `spacing`, `retries NAME` | | what is known |
//! | `stop`, `kill`, `handover` | a restart after a clean stop, after a kill -9, a new living holder | |
//! | `set 5 [floor 2]`, `pin`, `unpin`, `reset`, `pause [60]`, `resume` | an operator's hand | |
//! | `clock T` | the clock is set | |

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::num::NonZeroU64;

use comity_core::decision::{Decision, Permit, Reason};
use comity_core::domain::{Domain, Pattern};
use comity_core::headers::{Quota, RetryAfter, Told};
use comity_core::intent::Intent;
use comity_core::outcome::{Answer, Breakdown};
use comity_core::pace::{Departure, Kept, Left, Pace, Pinned, Recorded, Terms};
use comity_core::retry::{self, Spent};
use comity_core::rule::{Fields, Profile, Rule, RuleTable};
use comity_core::time::{Span, Timestamp};
use serde_json::Value;

/// One domain under one rule, before anything happened.
#[derive(Debug, Clone)]
pub struct Scenario {
    rule: Rule,
    crawl_delay: Span,
    retries_max: u32,
}

impl Scenario {
    /// The rule that `host` has in a built-in profile, with settings of its own on top.
    ///
    /// # Panics
    /// When profile, host or settings do not exist: a scenario is a test.
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

    /// The host's robots.txt asks for a delay.
    pub fn robots(mut self, delay: &str) -> Self {
        self.crawl_delay = Span::parse(delay).unwrap_or_else(|error| panic!("{error}"));
        self
    }

    /// The rule in force.
    pub fn rule(&self) -> &Rule {
        &self.rule
    }

    /// Plays a script and tells what came of it.
    ///
    /// # Panics
    /// When the script makes no sense.
    pub fn run(&self, script: &str) -> String {
        let mut play = Play {
            scenario: self,
            pace: Pace::default(),
            now: Timestamp::from_secs(0),
            open: Vec::new(),
            retries: BTreeMap::new(),
            kept: Kept::default(),
            said: Vec::new(),
        };
        for step in script.split('|') {
            play.step(step.trim());
        }
        play.said.join(" | ")
    }
}

/// A profile's rule for a host.
pub fn run(profile: &str, host: &str, script: &str) -> String {
    Scenario::of(profile, host, &Value::Null).run(script)
}

struct Play<'a> {
    scenario: &'a Scenario,
    pace: Pace,
    now: Timestamp,
    open: Vec<(String, Permit)>,
    retries: BTreeMap<String, Spent>,
    kept: Kept,
    said: Vec<String>,
}

impl Play<'_> {
    fn terms(&self) -> Terms<'_> {
        Terms { rule: &self.scenario.rule, crawl_delay: self.scenario.crawl_delay }
    }

    fn step(&mut self, step: &str) {
        let mut words: Vec<&str> = step.split_whitespace().collect();
        // A number is a time unless what follows makes it a status.
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
                self.say_decision(decision.reason());
            }
            "peek" => {
                let reason = self.pace.peek(self.terms(), intent_in(&words), self.now);
                self.say_decision(reason.as_ref());
            }
            "start" => {
                for _ in 0..count_in(&words) {
                    let at = self.start(intent_in(&words), name);
                    self.said.push(time(at));
                }
            }
            "successes" => {
                for _ in 0..words[1].parse().unwrap_or_else(|_| panic!("how many? {step}")) {
                    self.start(Intent::Fetch, "(success)");
                    self.answer("(success)", &Answer::of_status(200, Told::default()));
                }
            }
            "depart" => self.depart(name),
            "lend" => self.lend(name, words[1]),
            "release" => self.said.push(format!("released {}", self.pace.release(self.now))),
            "charge" => {
                admit(self.scenario, &mut self.pace, Intent::Fetch, self.now);
                self.said.push(time(self.now));
            }
            "backoff" => self.backoff(words[1]),
            "unasked" => {
                let answer = answer_in(&words[1..]);
                let (scenario, intent) = (self.scenario, intent_in(&words));
                let recorded = self.pace.record_unasked(scenario.terms(), intent, &answer, self.now);
                self.keep(&recorded);
            }
            "clock" => self.now = Timestamp::from_secs(0) + secs(words[1]),
            "stop" | "kill" | "handover" => self.change_hands(words[0]),
            "set" | "pin" | "unpin" | "reset" | "pause" | "resume" => self.steer(&words),
            "learned" | "n" | "streaks" | "hold" | "spacing" | "retries" | "next" => self.look(&words),
            _ => self.answer(name, &answer_in(&words)),
        }
    }

    /// Asks until the answer is proceed, sleeping exactly as long as it says.
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
        let place = self.open.iter().position(|(known, _)| name.is_empty() || known == name);
        let place = place.unwrap_or_else(|| panic!("no request called {name:?} is open"));
        let (name, permit) = self.open.remove(place);
        let recorded = self.pace.record(self.scenario.terms(), &permit, answer, self.now);
        let spent = self.retries.entry(name).or_default();
        *spent = retry::judge(answer.outcome, recorded.standing, *spent, self.scenario.retries_max).spent;
        self.keep(&recorded);
    }

    /// What a store commits when an answer is recorded.
    fn keep(&mut self, recorded: &Recorded) {
        if let Some(until) = recorded.server_until {
            self.kept.server = Some((until, self.now));
        }
        let learned = self.pace.learned();
        (self.kept.delay, self.kept.floor) = (learned.delay(), learned.floor());
        self.kept.floor_at = learned.floor_confirmed_at();
    }

    fn depart(&mut self, name: &str) {
        let (scenario, now) = (self.scenario, self.now);
        let open = self.open.iter_mut().find(|(known, _)| known == name);
        let (_, permit) = open.unwrap_or_else(|| panic!("no request called {name:?} is open"));
        match self.pace.depart(scenario.terms(), permit, now) {
            Departure::Go => self.said.push("go".to_owned()),
            Departure::Wait { reason, .. } => self.say_decision(Some(&reason)),
        }
    }

    /// Gives a permit out, with a lease of so many seconds.
    fn lend(&mut self, name: &str, lease: &str) {
        let open = self.open.iter().find(|(known, _)| known == name);
        let (_, permit) = open.unwrap_or_else(|| panic!("no request called {name:?} is open"));
        self.pace.lend(permit.id(), secs(lease), self.now);
    }

    /// The facade: sleep for the rung, then let the last request be now.
    fn backoff(&mut self, attempt: &str) {
        let attempt = attempt.parse().unwrap_or_else(|_| panic!("which attempt? {attempt}"));
        self.now = self.now + self.scenario.rule.backoff(attempt);
        self.pace.charge_now(self.scenario.terms(), Intent::Fetch, self.now);
        self.said.push(time(self.now));
    }

    fn change_hands(&mut self, how: &str) {
        let (scenario, now) = (self.scenario, self.now);
        let bytes = self.pace.encode();
        let left = match how {
            "handover" => Left::HandedOver(&bytes),
            "stop" => Left::Stopped(&bytes),
            _ => Left::Died { latest: now },
        };
        let inherited = Pace::inherit(scenario.terms(), &self.kept, left, now);
        self.pace = inherited.unwrap_or_else(|error| panic!("{error}"));
    }

    fn steer(&mut self, words: &[&str]) {
        let (scenario, now) = (self.scenario, self.now);
        match words[0] {
            "set" => {
                let floor =
                    words.iter().position(|word| *word == "floor").map(|place| secs(words[place + 1]));
                self.pace.set_learned(scenario.terms(), secs(words[1]), floor.unwrap_or_default(), now);
            }
            "pin" => self.pace.pin(Pinned::Yes),
            "unpin" => self.pace.pin(Pinned::No),
            "reset" => _ = self.pace.reset(now),
            "pause" => self.pace.pause(words.get(1).map(|word| Timestamp::from_secs(0) + secs(word))),
            _ => self.pace.resume(),
        }
    }

    fn look(&mut self, words: &[&str]) {
        let learned = self.pace.learned();
        let said = match words[0] {
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
        self.said.push(said);
    }

    fn say_decision(&mut self, reason: Option<&Reason>) {
        self.said.push(match reason {
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
    Span::from_decimal_secs(number).unwrap_or_else(|| panic!("{word:?} is no time"))
}

fn name_in<'a>(words: &[&'a str]) -> &'a str {
    let marker = words.iter().position(|word| matches!(*word, "as" | "of"));
    marker.and_then(|place| words.get(place + 1)).copied().unwrap_or_default()
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
        let left: u64 = left.parse().unwrap_or_else(|_| panic!("{left:?} is no count"));
        (NonZeroU64::new(left), secs(reset))
    });
    let spent = stated.filter(|(left, _)| left.is_none()).map(|(_, reset)| reset);
    let quota = stated.and_then(|(left, reset)| Some(Quota { remaining: left?, reset }));
    let told = Told { retry_after: retry_after.unwrap_or_default(), spent, quota };
    match words[0] {
        "timeout" => Answer::of_breakdown(Breakdown::TimedOut),
        "disconnect" => Answer::of_breakdown(Breakdown::Disconnected),
        "refused" => Answer::of_breakdown(Breakdown::Unreachable),
        status => {
            let status = status.parse().unwrap_or_else(|_| panic!("{status:?} is no step"));
            Answer::of_status(status, told)
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
