//! How long the rest takes, for domains of all kinds.

use super::*;
use comity::core::outcome::Answer;
use comity::core::outcome::Outcome;

fn at(secs: i64) -> Timestamp {
    Timestamp::from_secs(secs)
}

fn domain(name: &str) -> Domain {
    Domain::parse(name).unwrap()
}

fn one(name: &str, waiting: u64, due_at: Option<Timestamp>) -> Backlog {
    Backlog { domain: domain(name), waiting, due_at }
}

/// A gate whose clock stands still, and what it lets be forecast.
fn gate(config: &Config) -> (Gate, Forecast, comity::clock::Hands) {
    let (clock, hands) = Clock::manual(at(1_000));
    let gate = Gate::new(config.rules().clone(), clock, comity::event::Events::new());
    let forecast = Forecast::new(&gate, Limits::of(config));
    (gate, forecast, hands)
}

fn left(gate: &Gate, forecast: &Forecast, backlog: &[Backlog]) -> Option<Left> {
    let waiting = backlog.iter().map(|one| one.waiting).sum();
    forecast.left(gate, &Counted { backlog, limit: 1_000, is_all: true, waiting }, None)
}

#[tokio::test]
async fn a_domain_that_nobody_asked_yet_takes_as_long_as_its_rule_says() {
    let (gate, forecast, _) = gate(&Config::default());
    let about = |secs| Some(Left::About(Span::from_secs(secs)));
    assert_eq!(left(&gate, &forecast, &[one("a.example", 31, None)]), about(30));
    assert_eq!(left(&gate, &forecast, &[]), None);
    // Tasks that may not go before then, such as those of a site that refused its robots.txt.
    let later = [one("a.example", 31, None), one("b.example", 1, Some(at(1_300)))];
    assert_eq!(left(&gate, &forecast, &later), about(300));
}

#[tokio::test]
async fn a_closed_site_takes_until_it_opens_and_its_pages_after_that() {
    let (gate, forecast, _) = gate(&Config::default());
    let host = domain("a.example");
    let permit = gate.acquire(&host, Intent::Fetch).await.unwrap();
    let told = comity::core::headers::Told::read([("retry-after", b"100".as_slice())].into_iter(), at(1_000));
    permit.record(&Answer::of_status(429, told));
    let expected = Left::About(Span::from_secs(100 + gate.look(&host).unwrap().spacing.as_secs_up() * 4));
    assert_eq!(left(&gate, &forecast, &[one("a.example", 5, None)]), Some(expected));
}

#[tokio::test]
async fn a_site_that_does_not_answer_takes_at_most_what_its_attempts_may_take() {
    let mut config = Config::default();
    config.robots = RobotsPolicy::Ignore;
    let (gate, forecast, hands) = gate(&config);
    let backlog = [one("a.example", 1, None)];
    let permit = gate.acquire(&domain("a.example"), Intent::Fetch).await.unwrap();
    assert!(matches!(left(&gate, &forecast, &backlog), Some(Left::About(_))), "it may answer at once");
    hands.advance(Span::from_secs(10));
    // Four attempts of 30 s, of which 10 s are over, and 5, 10 and 20 s between them.
    assert_eq!(left(&gate, &forecast, &backlog), Some(Left::AtMost(Span::from_secs(4 * 30 - 10 + 35))));
    hands.advance(Span::from_secs(20));
    permit.record(&Answer::from(Outcome::Timeout));
    hands.advance(Span::from_secs(5));
    assert_eq!(left(&gate, &forecast, &backlog), Some(Left::AtMost(Span::from_secs(3 * 30 + 10 + 20))));
}

/// Nothing but its robots.txt is asked for: if that never comes, its pages fail with it, however many there are.
#[tokio::test]
async fn pages_of_a_site_without_robots_txt_cost_no_time_of_their_own() {
    let (gate, forecast, hands) = gate(&Config::default());
    let backlog = [one("a.example", 900, None)];
    let _permit = gate.acquire(&domain("a.example"), Intent::Fetch).await.unwrap();
    hands.advance(Span::from_secs(10));
    assert_eq!(left(&gate, &forecast, &backlog), Some(Left::AtMost(Span::from_secs(4 * 30 - 10 + 35))));
}

#[test]
fn what_nobody_knows_is_not_called_short() {
    let (short, long) = (Left::About(Span::from_secs(1)), Left::AtMost(Span::from_secs(100)));
    assert_eq!(short.or_longer(long), Left::AtMost(Span::from_secs(100)));
    assert_eq!(Left::Unknown.or_longer(short), Left::Unknown);
}

#[test]
fn a_rate_is_that_of_the_last_while() {
    let mut rate = Rate::default();
    assert_eq!(rate.at(at(0), 100), None);
    assert_eq!(rate.at(at(2), 120), Some(10.0));
    for secs in 3..60 {
        rate.at(at(secs), 120);
    }
    assert_eq!(rate.at(at(60), 120), Some(0.0));
}

#[test]
fn what_was_not_counted_belongs_to_those_who_have_most() {
    let backlog = [one("a.example", 1_000, None), one("b.example", 7, None), one("c.example", 1_000, None)];
    let counted = Counted { backlog: &backlog, limit: 1_000, is_all: true, waiting: 12_007 };
    let told: Vec<u64> = counted.domains().map(|(_, waiting)| waiting).collect();
    assert_eq!(told, [6_000, 7, 6_000]);
    let counted = Counted { is_all: false, ..counted };
    assert_eq!(counted.domains().map(|(_, waiting)| waiting).sum::<u64>(), 2_007);
}
