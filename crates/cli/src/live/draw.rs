//! Turns a status into lines for the terminal: pure functions, for any width, with or without color and Unicode.

use std::borrow::Cow;

use comity::core::time::{Span, Timestamp};
use comity::redact::shell_word;
use comity::status::{HeldBack, Status, Work};
use console::{Alignment, measure_text_width, pad_str, truncate_str};

use super::job::TASKS;
use crate::output::sanitized;

/// The size and abilities of the terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Canvas {
    pub(crate) columns: usize,
    pub(crate) rows: usize,
    pub(crate) colored: bool,
    pub(crate) unicode: bool,
}

/// The progress of a process, and the domains that hold it back.
pub(crate) fn draw(status: &Status, now: Timestamp, canvas: Canvas) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(work) = &status.work {
        lines.push(canvas.head(work));
        lines.push(canvas.counts(work, status));
    }
    let room = canvas.rows.saturating_sub(lines.len() + 2).clamp(1, HELD_BACK_MAX);
    let shown = &status.held_back[..status.held_back.len().min(room)];
    let widths = canvas.widths(shown);
    let remaining = remaining(status);
    lines.extend(shown.iter().map(|held| canvas.held_back(held, remaining, now, widths)));
    let more = status.more + status.held_back.len() - shown.len();
    if more > 0 {
        let sites = if more == 1 { "site" } else { "sites" };
        let more = format!("  {} {} more {sites}", canvas.ellipsis(), thousands(more as u64));
        lines.push(canvas.paint(DIM, &canvas.fit(&more)));
    }
    lines
}

/// A status on one line, for output that is not a terminal.
pub(crate) fn line(status: &Status, now: Timestamp) -> String {
    let work = status.work.clone().unwrap_or_default();
    let mut parts = vec![match work.all {
        Some(all) => format!("{}/{all} {}", work.done, work.unit),
        None => format!("{} {}", work.done, work.unit),
    }];
    parts.extend(rate(&work));
    parts.extend(left(&work));
    parts.extend(tally(&work));
    if !work.note.is_empty() {
        parts.push(work.note.clone());
    }
    let mut line = parts.join(", ");
    if let Some(held) = status.held_back.first() {
        let wait = held.until().map(|until| format!(", {} left", countdown(until.since(now))));
        let (waiting, more) = waiting(held, remaining(status));
        let wait = wait.unwrap_or_default();
        line += &format!("; {}: {}{wait} ({waiting}{more} waiting)", held.domain, why(held));
    }
    sanitized(&line)
}

/// A title line, in bold and shortened to fit.
pub(crate) fn title(text: &str, canvas: Canvas) -> String {
    canvas.paint(BOLD, &canvas.fit(&canvas.sanitized(text)))
}

/// A plain line, shortened to fit.
pub(crate) fn plain(text: &str, canvas: Canvas) -> String {
    canvas.fit(&canvas.sanitized(text))
}

/// The column widths of the lines about domains.
#[derive(Debug, Clone, Copy)]
struct Widths {
    domain: usize,
    why: usize,
    /// Whether there is room for the number of waiting tasks.
    waiting: bool,
}

impl Canvas {
    /// The first line: a progress bar, counts, rate and time left, as far as there is room.
    fn head(self, work: &Work) -> String {
        let name = self.sanitized(&work.name);
        let done = match work.all {
            Some(all) => format!("{} of {}", thousands(work.done), thousands(all)),
            None => thousands(work.done),
        };
        let counted = format!("{done} {}", self.sanitized(&work.unit));
        let (rate, left) = (rate(work), left(work));
        let join = |parts: &[Option<&str>]| parts.iter().flatten().copied().collect::<Vec<_>>().join("  ");
        let (rate, left) = (rate.as_deref(), left.as_deref());
        let details = join(&[Some(&counted), rate, left]);
        let bar = self.room().saturating_sub(measure_text_width(&name) + measure_text_width(&details) + 4);
        if bar >= BAR_MIN
            && let Some(all) = work.all
        {
            let (name, bar) = (self.paint(BOLD, &name), self.bar(work.done, all, bar.min(BAR_MAX)));
            return format!("{name}  {bar}  {details}");
        }
        let shorter = [
            join(&[Some(&name), Some(&counted), rate, left]),
            join(&[Some(&name), Some(&done), rate, left]),
            join(&[Some(&name), Some(&done), left]),
            join(&[Some(&done), left]),
            done.clone(),
        ];
        let fits = |line: &&String| measure_text_width(line) <= self.room();
        shorter.iter().find(fits).cloned().unwrap_or_else(|| self.fit(&done))
    }

    fn counts(self, work: &Work, status: &Status) -> String {
        let mut parts = tally(work);
        if status.in_flight > 0 {
            parts.push(format!("{} in flight", status.in_flight));
        }
        if !work.note.is_empty() {
            parts.push(self.sanitized(&work.note));
        }
        if parts.is_empty() {
            parts.push("no failures so far".to_owned());
        }
        let text = self.fit(&format!("  {}", parts.join(if self.unicode { " · " } else { ", " })));
        if work.failed > 0 { self.paint(RED, &text) } else { self.paint(DIM, &text) }
    }

    fn widths(self, shown: &[HeldBack]) -> Widths {
        let widest = |text: fn(&HeldBack) -> Cow<'_, str>| {
            shown.iter().map(|held| measure_text_width(&self.sanitized(&text(held)))).max().unwrap_or(0)
        };
        let (domain, why) = (widest(|held| Cow::Borrowed(&held.domain)), widest(why));
        // Two columns of indent, two between the cells, the countdown, and the number of waiting tasks.
        let waiting = self.room() >= 2 + domain.min(DOMAIN_MIN) + 2 + WHY_MIN + 2 + LEFT + 2 + WAITING;
        let rest = self.room().saturating_sub(2 + 2 + 2 + LEFT + if waiting { 2 + WAITING } else { 0 });
        let domain = domain.min(rest.saturating_sub(WHY_MIN.min(why))).max(DOMAIN_MIN.min(rest));
        Widths { domain, why: why.min(rest.saturating_sub(domain)), waiting }
    }

    fn held_back(self, held: &HeldBack, remaining: u64, now: Timestamp, widths: Widths) -> String {
        let cell = |text: &str, width, side| {
            let text = self.sanitized(text);
            pad_str(&truncate_str(&text, width, self.ellipsis()), width, side, None).into_owned()
        };
        let domain = cell(&held.domain, widths.domain, Alignment::Left);
        let why = cell(&why(held), widths.why, Alignment::Left);
        let left = held.until().map_or_else(String::new, |until| countdown(until.since(now)));
        let left = cell(&left, LEFT, Alignment::Right);
        let (waiting, more) = waiting(held, remaining);
        let waiting = match widths.waiting {
            true => format!("  {}{more} waiting", thousands(waiting)),
            false => String::new(),
        };
        let color = match held.origin.as_str() {
            "server" => YELLOW,
            "operator" => MAGENTA,
            "learned" => CYAN,
            "robots" => BLUE,
            _ => PLAIN,
        };
        let why = if widths.why < WHY_LEAST { String::new() } else { self.paint(color, &why) + "  " };
        let line = format!("  {domain}  {why}{left}{}", self.paint(DIM, &waiting));
        self.fit(line.trim_end())
    }

    fn bar(self, done: u64, all: u64, width: usize) -> String {
        let share = if all == 0 { 0.0 } else { (done as f64 / all as f64).clamp(0.0, 1.0) };
        if !self.unicode {
            let full = (share * (width - 2) as f64) as usize;
            let head = if full < width - 2 { ">" } else { "" };
            return format!("[{:<1$}]", "=".repeat(full) + head, width - 2);
        }
        let halves = (share * (width * 2) as f64) as usize;
        let (full, half) = (halves / 2, halves % 2);
        let filled = "━".repeat(full) + if half == 1 { "╸" } else { "" };
        self.paint(GREEN, &filled) + &self.paint(DIM, &"─".repeat(width - full - half))
    }

    fn paint(self, color: &str, text: &str) -> String {
        if self.colored && !color.is_empty() && !text.is_empty() {
            format!("\x1b[{color}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }

    /// The usable columns. The last one stays empty, because some terminals start a new line after it.
    fn room(self) -> usize {
        self.columns.saturating_sub(1)
    }

    fn fit(self, text: &str) -> String {
        let ellipsis = if self.room() > 3 { self.ellipsis() } else { "" };
        truncate_str(text, self.room(), ellipsis).into_owned()
    }

    fn ellipsis(self) -> &'static str {
        if self.unicode { "…" } else { "..." }
    }

    fn sanitized(self, text: &str) -> String {
        let text = sanitized(text);
        if self.unicode { text } else { text.chars().map(|c| if c.is_ascii() { c } else { '?' }).collect() }
    }
}

/// How much work is left; more than that can't be waiting.
fn remaining(status: &Status) -> u64 {
    let work = status.work.as_ref();
    work.and_then(|work| Some(work.all?.saturating_sub(work.done))).unwrap_or(u64::MAX)
}

/// How many tasks wait for a domain, and "+" if there may be more: they are counted only up to a limit.
fn waiting(held: &HeldBack, remaining: u64) -> (u64, &'static str) {
    // They were counted a moment ago, and some may be done since.
    let count = held.backlog.unwrap_or(held.in_line as u64).min(remaining);
    let limit = u64::from(TASKS);
    (count, if held.backlog == Some(limit) && count == limit { "+" } else { "" })
}

fn rate(work: &Work) -> Option<String> {
    work.rate.map(|rate| if rate >= 100.0 { format!("{rate:.0}/s") } else { format!("{rate:.1}/s") })
}

fn left(work: &Work) -> Option<String> {
    let left = work.left_ms.filter(|_| work.all.is_none_or(|all| work.done < all))?;
    // An estimate is not worth showing in milliseconds.
    let left = duration(Span::from_secs(left.div_ceil(1_000).max(1)));
    Some(if work.left_is_most { format!("up to {left} left") } else { format!("about {left} left") })
}

fn tally(work: &Work) -> Vec<String> {
    let counts = [
        (work.failed, "failed", "failed"),
        (work.skipped, "skipped", "skipped"),
        (work.rate_limited, "rate limited (429)", "rate limited (429)"),
        (work.retries, "retry", "retries"),
    ];
    let some = counts.into_iter().filter(|(count, ..)| *count > 0);
    some.map(|(count, one, many)| format!("{} {}", thousands(count), if count == 1 { one } else { many }))
        .collect()
}

/// The time left of a wait, with tenths of a second for the last ten seconds.
fn countdown(left: Span) -> String {
    let millis = left.as_millis_up();
    match millis {
        0..=9_900 => format!("{}.{}s", millis.div_ceil(100) / 10, millis.div_ceil(100) % 10),
        _ => duration(Span::from_millis(millis)),
    }
}

/// A time in one or two units, rounded up to the smaller one: `42s`, `3m 20s`, `1h 5m`, `2d 3h`.
pub(crate) fn duration(span: Span) -> String {
    let secs = span.as_secs_up();
    let (large, small) = match secs {
        0..60 => return format!("{secs}s"),
        60..3_600 => ((60, "m"), (1, "s")),
        3_600..172_800 => ((3_600, "h"), (60, "m")),
        _ => ((86_400, "d"), (3_600, "h")),
    };
    let smalls = secs.div_ceil(small.0);
    let (count, rest) = (smalls / (large.0 / small.0), smalls % (large.0 / small.0));
    let rest = if rest == 0 { String::new() } else { format!(" {rest}{}", small.1) };
    format!("{count}{}{rest}", large.1)
}

/// What holds a site back. If only an operator can end it, also how.
fn why(held: &HeldBack) -> Cow<'_, str> {
    match held.origin == "operator" && held.until_us.is_none() {
        true => {
            format!("paused until resumed: comity domains set {} --resume", shell_word(&held.domain)).into()
        }
        false => held.why.as_str().into(),
    }
}

/// A number with thousands separators: 1,234,567.
pub(crate) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (nth, digit) in digits.chars().enumerate() {
        if nth > 0 && (digits.len() - nth).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

const BOLD: &str = "1";
const DIM: &str = "2";
const RED: &str = "31";
const GREEN: &str = "32";
const YELLOW: &str = "33";
const BLUE: &str = "34";
const MAGENTA: &str = "35";
const CYAN: &str = "36";
const PLAIN: &str = "";

/// The shortest progress bar worth drawing, in columns.
const BAR_MIN: usize = 8;
/// The longest progress bar, in columns.
const BAR_MAX: usize = 30;
/// Maximum number of domains to show.
const HELD_BACK_MAX: usize = 8;
/// The minimum width of a domain.
const DOMAIN_MIN: usize = 16;
/// The minimum width of a reason in the layout.
const WHY_MIN: usize = 14;
/// A reason with fewer columns than this is left out.
const WHY_LEAST: usize = 4;
/// The width of the countdown.
const LEFT: usize = 7;
/// The width of the number of waiting tasks.
const WAITING: usize = 14;

#[cfg(test)]
mod tests;
