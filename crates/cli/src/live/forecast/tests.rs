//! The estimated time left, for domains of all kinds.

use super::*;
use comity::client;
use comity::config::Sources;
use comity::core::outcome::Answer;
use comity::core::outcome::Outcome;
use comity::request::{JobRequest, RequestFlags};

fn at(secs: i64) -> Timestamp {
    Timestamp::from_secs(secs)
}

fn domain(name: &str) -> Domain {
    Domain::parse(name).unwrap()
}

fn one(name: &str, waiting: u64, due_at: Option<Timestamp>) -> Backlog {
    Backlog { domain: domain(name), waiting, due_at }
}

/// A gate with a manual clock, and a forecast for it.
fn gate(config: &Config) -> (Gate, Forecast, comity::clock::ClockControl) {
    gate_of_job(config, &JobRequest::default())
}

fn gate_of_job(config: &Config, job: &JobRequest) -> (Gate, Forecast, comity::clock::ClockControl) {
    let (clock, hands) = Clock::manual(at(1_000));
    let gate = Gate::new(config.rules().clone(), clock, comity::event::Events::new());
    let forecast = Forecast::new(&gate, Limits::of(config, &client::transport_for(config, job).unwrap()));
    (gate, forecast, hands)
}

fn left(gate: &Gate, forecast: &Forecast, backlog: &[Backlog]) -> Option<TimeLeft> {
    let waiting = backlog.iter().map(|one| one.waiting).sum();
    forecast.time_left(gate, &BacklogCounts { backlog, limit: 1_000, is_all: true, waiting }, None)
}

#[tokio::test]
async fn a_new_domain_takes_as_long_as_its_rule_says() {
    let (gate, forecast, _) = gate(&Config::default());
    let about = |secs| Some(TimeLeft::About(Span::from_secs(secs)));
    assert_eq!(left(&gate, &forecast, &[one("a.example", 31, None)]), about(30));
    assert_eq!(left(&gate, &forecast, &[]), None);
    // Tasks that are not due before then, such as those of a site whose robots.txt could not be fetched.
    let later = [one("a.example", 31, None), one("b.example", 1, Some(at(1_300)))];
    assert_eq!(left(&gate, &forecast, &later), about(300));
}

#[tokio::test]
async fn a_site_on_hold_takes_the_hold_plus_its_pages() {
    let (gate, forecast, _) = gate(&Config::default());
    let host = domain("a.example");
    let permit = gate.acquire(&host, Intent::Fetch).await.unwrap();
    let hints =
        comity::core::headers::PacingHints::read([("retry-after", b"100".as_slice())].into_iter(), at(1_000));
    permit.record(&Answer::of_status(429, hints));
    let expected =
        TimeLeft::About(Span::from_secs(100 + gate.domain_status(&host).unwrap().spacing.as_secs_up() * 4));
    assert_eq!(left(&gate, &forecast, &[one("a.example", 5, None)]), Some(expected));
}

#[tokio::test]
async fn an_unresponsive_site_takes_at_most_as_long_as_its_attempts() {
    let mut config = Config::default();
    config.robots = RobotsPolicy::Ignore;
    let (gate, forecast, hands) = gate(&config);
    let backlog = [one("a.example", 1, None)];
    let permit = gate.acquire(&domain("a.example"), Intent::Fetch).await.unwrap();
    assert!(matches!(left(&gate, &forecast, &backlog), Some(TimeLeft::About(_))), "it may respond at once");
    hands.advance(Span::from_secs(10));
    // Four attempts of 30 s, of which 10 s are over, and 5, 10 and 20 s between them.
    assert_eq!(left(&gate, &forecast, &backlog), Some(TimeLeft::AtMost(Span::from_secs(4 * 30 - 10 + 35))));
    hands.advance(Span::from_secs(20));
    permit.record(&Answer::from(Outcome::Timeout));
    // It backs off for 5 s first; the attempts that are left come after that.
    assert_eq!(
        left(&gate, &forecast, &backlog),
        Some(TimeLeft::AtMost(Span::from_secs(5 + 3 * 30 + 10 + 20)))
    );
    hands.advance(Span::from_secs(5));
    assert_eq!(left(&gate, &forecast, &backlog), Some(TimeLeft::AtMost(Span::from_secs(3 * 30 + 10 + 20))));
}

/// It used to be an hour for twenty pages, as if none of them would ever be answered.
#[tokio::test]
async fn the_pages_after_one_that_hangs_are_expected_to_be_answered() {
    let mut config = Config::default();
    config.robots = RobotsPolicy::Ignore;
    let (gate, forecast, hands) = gate(&config);
    let _permit = gate.acquire(&domain("a.example"), Intent::Fetch).await.unwrap();
    hands.advance(Span::from_secs(10));
    let expected = TimeLeft::About(Span::from_secs(4 * 30 - 10 + 35 + 19));
    assert_eq!(left(&gate, &forecast, &[one("a.example", 20, None)]), Some(expected));
}

/// B80: a permit that was never recorded is waited for until its lease ends, and says nothing about the site.
#[tokio::test]
async fn a_lent_permit_delays_by_its_lease_alone() {
    let (gate, forecast, hands) = gate(&Config::default());
    let permit = gate.acquire(&domain("a.example"), Intent::Fetch).await.unwrap();
    permit.lend(Span::from_secs(60));
    hands.advance(Span::from_secs(10));
    let expected = TimeLeft::About(Span::from_secs(50 + 2));
    assert_eq!(left(&gate, &forecast, &[one("a.example", 3, None)]), Some(expected));
}

#[tokio::test]
async fn a_site_paused_until_resumed_has_no_time_left() {
    let (gate, forecast, _) = gate(&Config::default());
    let host = domain("a.example");
    gate.acquire(&host, Intent::Fetch).await.unwrap().record(&Answer::from(Outcome::Success));
    gate.with_pace(&host, |pace, _, _| pace.pause(None)).await.unwrap();
    assert_eq!(left(&gate, &forecast, &[one("a.example", 3, None)]), Some(TimeLeft::Unknown));
}

/// Its backoff is far longer than its spacing, and than what its first answers took.
#[tokio::test]
async fn each_page_of_a_site_that_only_fails_costs_another_backoff() {
    let mut config = Config::default();
    config.robots = RobotsPolicy::Ignore;
    let (gate, forecast, hands) = gate(&config);
    let (host, backlog) = (domain("a.example"), [one("a.example", 5, None)]);
    for nth in 1..=3 {
        hands.advance(Span::from_secs(60));
        let permit = gate.acquire(&host, Intent::Fetch).await.unwrap();
        permit.record(&Answer::from(Outcome::ServerError));
        let is_long = left(&gate, &forecast, &backlog)
            .is_some_and(|left| matches!(left, TimeLeft::About(left) if left > Span::from_secs(60)));
        assert_eq!(is_long, nth == 3, "{nth}");
    }
    // The backoff of now, and four more.
    let expected = TimeLeft::About(Span::from_secs(20 + 40 + 3 * 60));
    assert_eq!(left(&gate, &forecast, &backlog), Some(expected));
    let last = [one("a.example", 1, None)];
    assert_eq!(left(&gate, &forecast, &last), Some(TimeLeft::About(Span::from_secs(20))));
    hands.advance(Span::from_secs(60));
    gate.acquire(&host, Intent::Fetch).await.unwrap().record(&Answer::from(Outcome::Success));
    assert_eq!(left(&gate, &forecast, &backlog), Some(TimeLeft::About(Span::from_secs(5))));
}

#[tokio::test]
async fn the_timeout_in_force_for_a_site_decides_how_long_it_takes() {
    let file = "robots = \"ignore\"\n[domains.\"a.example\".request]\nfirst_byte_timeout = \"15s\"\n\
                [domains.\"b.example\".request]\ntotal_timeout = \"12s\"\n";
    let config = Config::load(Sources { file: Some(("test.toml", file)), ..Sources::default() }).unwrap();
    let flags = RequestFlags { timeout: Some("90s".to_owned()), ..Default::default() };
    let job = JobRequest::new(&flags, &serde_json::Value::Null).unwrap();
    let plain = JobRequest::default();
    for (job, name, timeout) in
        [(&plain, "a.example", 15), (&plain, "b.example", 12), (&job, "a.example", 90)]
    {
        let (gate, forecast, hands) = gate_of_job(&config, job);
        let _permit = gate.acquire(&domain(name), Intent::Fetch).await.unwrap();
        hands.advance(Span::from_secs(5));
        let expected = TimeLeft::AtMost(Span::from_secs(4 * timeout - 5 + 35));
        assert_eq!(left(&gate, &forecast, &[one(name, 1, None)]), Some(expected), "{name}");
    }
}

/// Only robots.txt is fetched: if that never arrives, all pages fail with it, however many there are.
#[tokio::test]
async fn pages_add_no_time_while_robots_txt_is_unknown() {
    let (gate, forecast, hands) = gate(&Config::default());
    let backlog = [one("a.example", 900, None)];
    let _permit = gate.acquire(&domain("a.example"), Intent::Fetch).await.unwrap();
    hands.advance(Span::from_secs(10));
    assert_eq!(left(&gate, &forecast, &backlog), Some(TimeLeft::AtMost(Span::from_secs(4 * 30 - 10 + 35))));
}

#[test]
fn unknown_counts_as_longest() {
    let (short, long) = (TimeLeft::About(Span::from_secs(1)), TimeLeft::AtMost(Span::from_secs(100)));
    assert_eq!(short.or_longer(long), TimeLeft::AtMost(Span::from_secs(100)));
    assert_eq!(TimeLeft::Unknown.or_longer(short), TimeLeft::Unknown);
    assert_eq!(TimeLeft::About(Span::from_secs(200)).or_longer(long), TimeLeft::About(Span::from_secs(200)));
}

#[test]
fn the_rate_covers_the_last_seconds() {
    let mut rate = Rate::default();
    assert_eq!(rate.at(at(0), 100), None);
    assert_eq!(rate.at(at(2), 120), Some(10.0));
    for secs in 3..60 {
        rate.at(at(secs), 120);
    }
    assert_eq!(rate.at(at(60), 120), Some(0.0));
}

#[test]
fn uncounted_tasks_are_spread_over_the_largest_domains() {
    let backlog = [one("a.example", 1_000, None), one("b.example", 7, None), one("c.example", 1_000, None)];
    let counted = BacklogCounts { backlog: &backlog, limit: 1_000, is_all: true, waiting: 12_007 };
    let waiting: Vec<u64> = counted.domains().map(|(_, waiting)| waiting).collect();
    assert_eq!(waiting, [6_000, 7, 6_000]);
    let counted = BacklogCounts { is_all: false, ..counted };
    assert_eq!(counted.domains().map(|(_, waiting)| waiting).sum::<u64>(), 2_007);
}

#[test]
fn a_single_large_domain_has_all_tasks_that_were_not_counted() {
    let known = |backlog: &[Backlog], is_all| {
        let counted = BacklogCounts { backlog, limit: 1_000, is_all, waiting: 50_007 };
        counted.known().iter().map(|one| one.waiting).collect::<Vec<u64>>()
    };
    let one_large = [one("a.example", 1_000, None), one("b.example", 7, None)];
    assert_eq!(known(&one_large, true), [50_000, 7]);
    assert_eq!(known(&one_large, false), [1_000, 7], "there are more domains");
    let two_large = [one("a.example", 1_000, None), one("b.example", 1_000, None)];
    assert_eq!(known(&two_large, true), [1_000, 1_000]);
}
