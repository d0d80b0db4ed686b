//! The live view on terminals of all kinds.

use super::*;

const WIDE: Canvas = Canvas { columns: 100, rows: 24, coloured: false, unicode: true };

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
            refused: 9,
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
            held("slow.example", "rule", "a request is on the wire", None, None),
        ],
        more: 3,
    }
}

fn drawn(canvas: Canvas) -> String {
    draw(&status(), Timestamp::from_micros(0), canvas).join("\n")
}

#[test]
fn a_wide_terminal_shows_all_of_it() {
    assert_eq!(
        drawn(WIDE),
        "\
news  ━━━━━━━╸──────────────────────  1,250 of 5,000 pages  12.3/s  about 6m 20s left
  12 skipped · 9 rate limited · 1 retry · 4 in flight
  strict.example    the server asked to wait      99s  1,841 wait
  hidden.example    learned delay 1.5s           0.9s  12 wait
  slow.example      a request is on the wire           2 wait
  … 3 more domains"
    );
}

#[test]
fn without_utf_8_all_of_it_is_ascii() {
    let canvas = Canvas { unicode: false, ..WIDE };
    let drawn = drawn(canvas);
    assert!(drawn.is_ascii(), "{drawn}");
    assert!(drawn.starts_with("news  [=======>                    ]  1,250 of 5,000 pages"), "{drawn}");
    let work = Work { name: "новости".to_owned(), ..Work::default() };
    let named = draw(&Status { work: Some(work), ..Status::default() }, Timestamp::from_micros(0), canvas);
    assert!(named[0].starts_with("???????"), "{named:?}");
}

#[test]
fn every_width_and_height_is_kept_to() {
    for columns in 1..140 {
        for rows in 1..20 {
            for unicode in [true, false] {
                let canvas = Canvas { columns, rows, coloured: true, unicode };
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
  strict.example        99s
  hidden.example       0.9s
  slow.example
  … 3 more domains"
    );
}

#[test]
fn colours_are_for_terminals_that_want_them() {
    assert!(!drawn(WIDE).contains('\x1b'));
    let coloured = drawn(Canvas { coloured: true, ..WIDE });
    assert!(coloured.contains("\x1b[33mthe server asked to wait"), "{coloured}");
    assert_eq!(console::strip_ansi_codes(&coloured), drawn(WIDE));
}

#[test]
fn what_strangers_wrote_does_not_reach_the_terminal() {
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
fn elsewhere_it_is_a_line() {
    assert_eq!(
        line(&status(), Timestamp::from_micros(0)),
        "1250/5000 pages, 12.3/s, about 6m 20s left, 12 skipped, 9 rate limited, 1 retry; \
         strict.example: the server asked to wait, 98.4s left (1841 wait)"
    );
}

#[test]
fn numbers_and_waits_as_people_read_them() {
    assert_eq!([0, 999, 1_000, 1_234_567].map(thousands), ["0", "999", "1,000", "1,234,567"]);
    let told = [0, 40, 100, 9_900, 9_901, 42_000, 100_000].map(|ms| countdown(Span::from_millis(ms)));
    assert_eq!(told, ["0.0s", "0.1s", "0.1s", "9.9s", "10s", "42s", "100s"]);
}
