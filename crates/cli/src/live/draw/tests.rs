//! The live view on terminals of all kinds.

use super::*;

const WIDE: Canvas = Canvas { columns: 100, rows: 24, colored: false, unicode: true };

fn status() -> Status {
    let held = |domain: &str, origin: &str, why: &str, until_ms: Option<i64>, waiting| HeldBack {
        domain: domain.to_owned(),
        origin: origin.to_owned(),
        why: why.to_owned(),
        until_us: until_ms.map(|ms| ms * 1_000),
        in_line: 2,
        backlog: waiting,
    };
    Status {
        work: Some(Work {
            name: "news".to_owned(),
            unit: "pages".to_owned(),
            done: 1_250,
            all: Some(5_000),
            failed: 0,
            skipped: 12,
            rate_limited: 9,
            retries: 1,
            rate: Some(12.34),
            left_ms: Some(379_500),
            left_is_most: false,
            note: String::new(),
        }),
        domains: 40,
        in_flight: 4,
        in_line: 80,
        held_back: vec![
            held("strict.example", "server", "the server asked to wait", Some(98_400), Some(1_841)),
            held("hidden.example", "learned", "learned delay 1.5s", Some(840), Some(12)),
            held("slow.example", "rule", "1 request in flight", None, None),
        ],
        more: 3,
        ..Status::default()
    }
}

fn drawn(canvas: Canvas) -> String {
    draw(&status(), Timestamp::from_micros(0), canvas).join("\n")
}

#[test]
fn a_wide_terminal_shows_everything() {
    assert_eq!(
        drawn(WIDE),
        "\
news  ━━━━━━━╸──────────────────────  1,250 of 5,000 pages  12.3/s  about 6m 20s left
  12 skipped · 9 rate limited (429) · 1 retry · 4 in flight
  strict.example    the server asked to wait   1m 39s  1,841 waiting
  hidden.example    learned delay 1.5s           0.9s  12 waiting
  slow.example      1 request in flight                2 waiting
  … 3 more sites"
    );
}

#[test]
fn without_utf_8_everything_is_ascii() {
    let canvas = Canvas { unicode: false, ..WIDE };
    let drawn = drawn(canvas);
    assert!(drawn.is_ascii(), "{drawn}");
    assert!(drawn.starts_with("news  [=======>                    ]  1,250 of 5,000 pages"), "{drawn}");
    let work = Work { name: "новости".to_owned(), ..Work::default() };
    let named = draw(&Status { work: Some(work), ..Status::default() }, Timestamp::from_micros(0), canvas);
    assert!(named[0].starts_with("???????"), "{named:?}");
}

#[test]
fn no_line_exceeds_the_width_of_the_terminal() {
    for columns in 1..140 {
        for rows in 1..20 {
            for unicode in [true, false] {
                let canvas = Canvas { columns, rows, colored: true, unicode };
                let lines = draw(&status(), Timestamp::from_micros(0), canvas);
                for line in &lines {
                    let width = measure_text_width(line);
                    assert!(width < columns.max(2), "{width} of {columns}: {line:?}");
                }
            }
        }
    }
    let canvas = Canvas { columns: 30, ..WIDE };
    assert_eq!(
        drawn(canvas),
        "\
1,250 of 5,000
  12 skipped · 9 rate limite…
  strict.example     1m 39s
  hidden.example       0.9s
  slow.example
  … 3 more sites"
    );
}

#[test]
fn colors_are_used_only_on_terminals_that_support_them() {
    assert!(!drawn(WIDE).contains('\x1b'));
    let colored = drawn(Canvas { colored: true, ..WIDE });
    assert!(colored.contains("\x1b[33mthe server asked to wait"), "{colored}");
    assert_eq!(console::strip_ansi_codes(&colored), drawn(WIDE));
}

#[test]
fn control_characters_in_names_do_not_reach_the_terminal() {
    let mut status = status();
    status.held_back[0].domain = "evil\x1b[2J.example".to_owned();
    if let Some(work) = &mut status.work {
        work.name = "a\x1b]0;title\x07b".to_owned();
        work.note = "c\rd".to_owned();
    }
    let drawn = draw(&status, Timestamp::from_micros(0), WIDE).join("\n");
    assert!(!drawn.contains(['\x1b', '\x07', '\r']), "{drawn:?}");
    assert!(!line(&status, Timestamp::from_micros(0)).contains(['\x1b', '\x07', '\r']));
}

#[test]
fn without_a_terminal_the_status_is_one_line() {
    assert_eq!(
        line(&status(), Timestamp::from_micros(0)),
        "1250/5000 pages, 12.3/s, about 6m 20s left, 12 skipped, 9 rate limited (429), 1 retry; \
         strict.example: the server asked to wait, 1m 39s left (1841 waiting)"
    );
}

#[test]
fn numbers_and_countdowns_are_easy_to_read() {
    assert_eq!([0, 999, 1_000, 1_234_567].map(thousands), ["0", "999", "1,000", "1,234,567"]);
    let countdowns = [0, 40, 100, 9_900, 9_901, 42_000, 100_000].map(|ms| countdown(Span::from_millis(ms)));
    assert_eq!(countdowns, ["0.0s", "0.1s", "0.1s", "9.9s", "10s", "42s", "1m 40s"]);
    let times =
        [59, 60, 171, 3_599, 3_600, 7_199, 172_799, 172_800].map(|secs| duration(Span::from_secs(secs)));
    assert_eq!(times, ["59s", "1m", "2m 51s", "59m 59s", "1h", "2h", "48h", "2d"]);
}

/// It used to be "about 60s left".
#[test]
fn a_site_paused_until_resumed_is_shown_with_the_way_out() {
    let mut status = status();
    let held = &mut status.held_back[0];
    (held.origin, held.why, held.until_us) =
        ("operator".to_owned(), "paused by an operator".to_owned(), None);
    let way_out =
        "strict.example: paused until resumed: comity domains set strict.example --resume (1841 waiting)";
    assert!(line(&status, Timestamp::from_micros(0)).ends_with(way_out));
    assert!(
        draw(&status, Timestamp::from_micros(0), WIDE)[2]
            .contains("paused until resumed: comity domains set")
    );
}

#[test]
fn counts_of_waiting_tasks_are_true() {
    let mut status = status();
    let waiting = |status: &Status| line(status, Timestamp::from_micros(0));
    let set = |status: &mut Status, backlog, left| {
        status.held_back[0].backlog = Some(backlog);
        status.work = Some(Work { done: 100, all: Some(100 + left as u64), ..Work::default() });
    };
    for (backlog, left, expected) in [
        // Counted up to 1,000, so there may be more.
        (1_000, 50_000, "(1000+ waiting)"),
        (1_000, 1_000, "(1000+ waiting)"),
        (49_999, 50_000, "(49999 waiting)"),
        (999, 50_000, "(999 waiting)"),
        // Counted before the last pages were fetched.
        (11, 9, "(9 waiting)"),
        (1_000, 998, "(998 waiting)"),
    ] {
        set(&mut status, backlog, left);
        assert!(waiting(&status).contains(expected), "{expected}: {}", waiting(&status));
    }
}
