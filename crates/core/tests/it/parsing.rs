//! Parsers with random input: millions of inputs, no panic, and no wait beyond the maximum.

use comity_core::domain::{Domain, Pattern};
use comity_core::headers::{PacingHints, RetryAfter};
use comity_core::intent::Intent;
use comity_core::outcome::Answer;
use comity_core::pace::{Pace, Terms};
use comity_core::rule::{Fields, Rule};
use comity_core::time::{Span, Timestamp};
use comity_core::{cadence, interval};
use fastrand::Rng;
use serde_json::Value;
use url::{Host, Url};

const NAMES: [&str; 12] = [
    "Retry-After",
    "Date",
    "RateLimit",
    "RateLimit-Policy",
    "RateLimit-Limit",
    "RateLimit-Remaining",
    "RateLimit-Reset",
    "X-RateLimit-Remaining",
    "X-RateLimit-Reset",
    "X-RateLimit-Reset-After",
    "x-rate-limit-remaining",
    "x-rate-limit-reset",
];

/// Fragments that parsers care about, so that random text gets past their first checks.
const PIECES: [&str; 30] = [
    "0",
    "1",
    "9",
    "60",
    "4",
    "1794744060",
    "1e9",
    "-",
    "+",
    ".",
    ",",
    ";",
    "=",
    "\"",
    "r",
    "t",
    "q",
    "w",
    " ",
    "default",
    "remaining",
    "reset",
    "limit",
    "Sun, 15 Nov 2026 12:00:30 GMT",
    "99999999999999999999",
    "(",
    ")",
    "inf",
    "\u{0}",
    "\u{fffd}",
];

fn text(rng: &mut Rng) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..rng.usize(..8) {
        match rng.u8(..6) {
            0 => bytes.push(rng.u8(..)),
            _ => bytes.extend(PIECES[rng.usize(..PIECES.len())].bytes()),
        }
    }
    bytes
}

/// B21, B27: whatever a server sends, a domain waits no longer than the rule allows
#[test]
fn no_header_panics_or_waits_beyond_the_maximum() {
    let max = Span::from_hours(1);
    let fields = Fields { retry_after_max: Some(max), ..Fields::default() };
    let rule = Rule::new(&fields).unwrap();
    let terms: Terms<'_> = (&rule).into();
    let mut rng = Rng::with_seed(21);
    let now = Timestamp::parse("2026-11-15T12:00:00Z").unwrap();
    let mut meaningful = 0;
    for round in 0..1_000_000 {
        let headers: Vec<(&str, Vec<u8>)> =
            (0..rng.usize(1..4)).map(|_| (NAMES[rng.usize(..NAMES.len())], text(&mut rng))).collect();
        let hints = PacingHints::read(headers.iter().map(|(name, value)| (*name, value.as_slice())), now);
        if hints == PacingHints::default() {
            continue;
        }
        meaningful += 1;
        let mut pace = Pace::default();
        pace.record_unasked(terms, Intent::Fetch, &Answer::of_status(429, hints), now);
        let wait = pace.retry_at(terms, Intent::Fetch, now).since(now);
        assert!(wait <= max, "round {round}: {headers:?} waits {wait}");
        assert!(wait >= Span::from_secs(1), "round {round}: {headers:?} waits {wait}");
    }
    assert!(meaningful > 100_000, "only {meaningful} inputs gave hints");
}

/// B20, B21: a usable Retry-After is never zero
#[test]
fn retry_after_survives_a_million_inputs() {
    let mut rng = Rng::with_seed(20);
    let date = Timestamp::parse("2026-11-15T12:00:00Z").unwrap();
    for _ in 0..1_000_000 {
        let bytes = text(&mut rng);
        if let RetryAfter::After(span) = RetryAfter::parse(&String::from_utf8_lossy(&bytes), date) {
            assert!(!span.is_zero() && span <= Span::MAX);
        }
    }
}

/// Fragments of host names that parsers disagree about.
const HOSTS: [&str; 54] = [
    "a",
    "b",
    "www",
    "www.",
    "WWW.",
    "example.org",
    "localhost",
    "group",
    "xn--mnchen-3ya",
    "xn--",
    "xn--a",
    "xn--zca",
    "münchen",
    "ß",
    "。",
    "．",
    "%2e",
    "%41",
    "*",
    "*.",
    "_dmarc",
    "-",
    ".",
    "..",
    "0",
    "09",
    "0x7f",
    "1.2.3.4",
    "127.1",
    "[::1]",
    "[::ffff:1.2.3.4]",
    ":0",
    ":80",
    ":443",
    ":8080",
    ":",
    "א",
    "\u{200d}",
    "\u{ad}",
    "~",
    "[fe80::1%25eth0]",
    "[fe80::1%eth0]",
    "[::127.0.0.1]",
    "0177.1",
    "%",
    "%2f",
    "%E3%80%82",
    "%77ww.",
    "@",
    "user:p%40ss@",
    "\\",
    "\t",
    "０",
    "a-label-of-forty-characters-012345678901.",
];

/// B82, B15: every accepted host parses back to the same domain, and different hosts have different domains
#[test]
fn every_accepted_host_parses_back_to_the_same_domain() {
    let mut rng = Rng::with_seed(82);
    let (mut accepted, mut refused) = (0, 0);
    let base = Url::parse("https://example.org/a/b").unwrap();
    for _ in 0..500_000 {
        // Sometimes so long that it exceeds the limit of a name.
        let fragments = if rng.u8(..20) == 0 { 1..40 } else { 1..6 };
        let host: String = (0..rng.usize(fragments)).map(|_| HOSTS[rng.usize(..HOSTS.len())]).collect();
        let parsed = match rng.u8(..3) {
            0 => Url::parse(&format!("http://{host}/page")),
            1 => Url::parse(&format!("https://{host}/page")),
            // As in a redirect.
            _ => base.join(&format!("//{host}/page")),
        };
        let Ok(url) = parsed else { continue };
        let Some(domain) = Domain::of(&url) else {
            refused += 1;
            continue;
        };
        accepted += 1;
        // Both are stored as text.
        assert_eq!(Domain::of_url(url.as_str()).as_ref(), Ok(&domain), "{host:?}");
        assert!(domain.host().len() <= 254, "{host:?}");
        assert_eq!(Domain::read_back(domain.as_str()).as_ref(), Ok(&domain), "{host:?}");
        // An independent implementation: one trailing dot and every `www.` are removed, and nothing else.
        let name = match url.host().unwrap() {
            Host::Domain(name) => name.to_owned(),
            Host::Ipv4(address) => address.to_string(),
            // An IPv4-mapped address is the IPv4 address.
            Host::Ipv6(address) => match address.to_ipv4_mapped() {
                Some(address) => address.to_string(),
                None => format!("[{address}]"),
            },
        };
        let mut plain = name.strip_suffix('.').unwrap_or(&name);
        while let Some(rest) = plain.strip_prefix("www.").filter(|rest| !rest.is_empty()) {
            plain = rest;
        }
        assert_eq!((domain.host(), domain.port()), (plain, url.port()), "{host:?}");
        let other = if url.port() == Some(80) { "https" } else { "http" };
        assert_eq!(Domain::of_url(&format!("{other}://{domain}/")), Ok(domain), "{host:?}");
    }
    assert!(accepted > 50_000 && refused > 5_000, "{accepted} accepted, {refused} refused");
}

/// B82
#[test]
fn hosts_that_would_not_parse_back_are_refused() {
    for host in [
        "a..b",
        ".a",
        ".",
        "..",
        "*",
        "a*b",
        "*.example.org",
        "www..a",
        "foo.09..",
        "victim..",
        "a:0",
        "[::1]:0",
    ] {
        let url = format!("http://{host}/");
        assert!(Domain::of_url(&url).is_err(), "{url}");
        assert!(Domain::parse(host).is_err(), "{host}");
    }
    for text in ["victim.", "WWW.example.org", "www.example.org", "a..b", "", "münchen.example"] {
        assert!(Domain::read_back(text).is_err(), "{text:?} isn't canonical");
    }
}

#[test]
fn no_text_panics_any_parser() {
    let mut rng = Rng::with_seed(71);
    for _ in 0..200_000 {
        let bytes: Vec<u8> = match rng.bool() {
            true => text(&mut rng),
            false => (0..rng.usize(..24)).map(|_| rng.u8(..)).collect(),
        };
        let text = String::from_utf8_lossy(&bytes);
        if let Ok(domain) = Domain::parse(&text) {
            assert_eq!(Domain::parse(domain.as_str()), Ok(domain), "{text:?}");
        }
        if let Ok(pattern) = Pattern::parse(&text) {
            assert_eq!(Pattern::parse(&pattern.to_string()), Ok(pattern), "{text:?}");
        }
        _ = Domain::of_url(&text);
        if let Ok(domain) = Domain::of_url(&format!("http://{text}")) {
            assert_eq!(Domain::read_back(domain.as_str()), Ok(domain), "{text:?}");
        }
        _ = Domain::group(&text);
        _ = Span::parse(&text).map(|span| assert_eq!(Span::parse(&span.to_string()), Ok(span)));
        _ = Span::from_decimal_secs(&text);
        _ = Timestamp::parse(&text);
        _ = interval::SourceInterval::parse(&text);
        _ = interval::parse_global(&text);
        _ = text.parse::<Intent>();
        _ = Pace::decode(&bytes);
    }
}

/// Any JSON is either accepted or refused without a panic, and what is accepted gives a rule or problems
#[test]
fn no_json_panics_the_rules() {
    let mut rng = Rng::with_seed(72);
    let mut rules = 0;
    for _ in 0..100_000 {
        let mut table = serde_json::Map::new();
        for _ in 0..rng.usize(1..5) {
            let key = comity_core::rule::KEYS[rng.usize(..comity_core::rule::KEYS.len())];
            table.insert(key.to_owned(), json(&mut rng, 2));
        }
        if let Ok(fields) = Fields::read(&table) {
            rules += usize::from(Rule::new(&fields).is_ok());
        }
        _ = cadence::Cadence::of_config(&table);
        let config = serde_json::Map::from_iter([("cadence".to_owned(), json(&mut rng, 2))]);
        _ = cadence::Cadence::of_config(&config);
        let cursor = serde_json::Map::from_iter([("last_fetch_at".to_owned(), json(&mut rng, 1))]);
        _ = cadence::last_fetch_at(&cursor);
    }
    assert!(rules > 1_000, "only {rules} inputs gave a rule");
}

fn json(rng: &mut Rng, depth: u8) -> Value {
    let words = ["5s", "none", "linear", "off", "exponential", "0.1", "learned", "250ms", "-1s", "group", ""];
    let keys = ["base", "step", "search", "min_delay", "burst", "mode", "every_minutes", "probe_after"];
    match rng.u8(..if depth == 0 { 6 } else { 8 }) {
        0 => Value::Null,
        1 => Value::Bool(rng.bool()),
        2 => Value::from(rng.i64(-3..100)),
        3 => Value::from(rng.f64() * 10_f64.powi(rng.i32(-12..30))),
        4 | 5 => Value::from(words[rng.usize(..words.len())]),
        6 => Value::Array(vec![json(rng, depth - 1)]),
        _ => {
            let entry = |rng: &mut Rng| (keys[rng.usize(..keys.len())].to_owned(), json(rng, depth - 1));
            Value::Object((0..rng.usize(..3)).map(|_| entry(rng)).collect())
        }
    }
}
