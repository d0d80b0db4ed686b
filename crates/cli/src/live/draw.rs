//! What a live view says, as lines: pure, for any width, with and without colours and more than ASCII.

use comity::core::time::{Span, Timestamp};
use comity::status::{HeldBack, Status, Work};
use console::{Alignment, measure_text_width, pad_str, truncate_str};

use crate::output::legible;

/// What there is to draw on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Canvas {
    pub(crate) columns: usize,
    pub(crate) rows: usize,
    pub(crate) coloured: bool,
    pub(crate) unicode: bool,
}

/// A process at work: how far it is, and what holds it back.
pub(crate) fn draw(status: &Status, now: Timestamp, canvas: Canvas) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(work) = &status.work {
        lines.push(canvas.head(work));
        lines.push(canvas.counts(work, status));
    }
    let room = canvas.rows.saturating_sub(lines.len() + 2).clamp(1, HELD_BACK_MAX);
    let shown = &status.held_back[..status.held_back.len().min(room)];
    let widths = canvas.widths(shown);
    lines.extend(shown.iter().map(|held| canvas.held_back(held, now, widths)));
    let more = status.more + status.held_back.len() - shown.len();
    if more > 0 {
        let domains = if more == 1 { "domain" } else { "domains" };
        let more = format!("  {} {} more {domains}", canvas.ellipsis(), thousands(more as u64));
        lines.push(canvas.paint(DIM, &canvas.fit(&more)));
    }
    lines
}

/// The same on one line, for a log.
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
        let wait = held.until().map(|until| format!(", {} left", until.since(now).about()));
        let waiting = held.backlog.unwrap_or(held.in_line as u64);
        line += &format!("; {}: {}{} ({waiting} wait)", held.domain, held.why, wait.unwrap_or_default());
    }
    legible(&line)
}

/// A title over what a process is at.
pub(crate) fn title(text: &str, canvas: Canvas) -> String {
    canvas.paint(BOLD, &canvas.fit(&canvas.legible(text)))
}

/// A line as it is, as far as there is room.
pub(crate) fn plain(text: &str, canvas: Canvas) -> String {
    canvas.fit(&canvas.legible(text))
}

/// Columns of the lines about domains.
#[derive(Debug, Clone, Copy)]
struct Widths {
    domain: usize,
    why: usize,
    /// Whether how many wait has a place.
    waiting: bool,
}

impl Canvas {
    /// How far it is, with as much of a bar and of words as there is room for.
    fn head(self, work: &Work) -> String {
        let name = self.legible(&work.name);
        let done = match work.all {
            Some(all) => format!("{} of {}", thousands(work.done), thousands(all)),
            None => thousands(work.done),
        };
        let counted = format!("{done} {}", self.legible(&work.unit));
        let (rate, left) = (rate(work), left(work));
        let join = |parts: &[Option<&str>]| parts.iter().flatten().copied().collect::<Vec<_>>().join("  ");
        let (rate, left) = (rate.as_deref(), left.as_deref());
        let said = join(&[Some(&counted), rate, left]);
        let bar = self.room().saturating_sub(measure_text_width(&name) + measure_text_width(&said) + 4);
        if bar >= BAR_MIN
            && let Some(all) = work.all
        {
            let (name, bar) = (self.paint(BOLD, &name), self.bar(work.done, all, bar.min(BAR_MAX)));
            return format!("{name}  {bar}  {said}");
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
            parts.push(self.legible(&work.note));
        }
        if parts.is_empty() {
            parts.push("no failures so far".to_owned());
        }
        let text = self.fit(&format!("  {}", parts.join(if self.unicode { " · " } else { ", " })));
        if work.failed > 0 { self.paint(RED, &text) } else { self.paint(DIM, &text) }
    }

    fn widths(self, shown: &[HeldBack]) -> Widths {
        let widest = |text: fn(&HeldBack) -> &str| {
            shown.iter().map(|held| measure_text_width(&self.legible(text(held)))).max().unwrap_or(0)
        };
        let (domain, why) = (widest(|held| &held.domain), widest(|held| &held.why));
        // Two before, two between, the time, and how many wait.
        let waiting = self.room() >= 2 + domain.min(DOMAIN_MIN) + 2 + WHY_MIN + 2 + LEFT + 2 + WAITING;
        let rest = self.room().saturating_sub(2 + 2 + 2 + LEFT + if waiting { 2 + WAITING } else { 0 });
        let domain = domain.min(rest.saturating_sub(WHY_MIN.min(why))).max(DOMAIN_MIN.min(rest));
        Widths { domain, why: why.min(rest.saturating_sub(domain)), waiting }
    }

    fn held_back(self, held: &HeldBack, now: Timestamp, widths: Widths) -> String {
        let cell = |text: &str, width, side| {
            let text = self.legible(text);
            pad_str(&truncate_str(&text, width, self.ellipsis()), width, side, None).into_owned()
        };
        let domain = cell(&held.domain, widths.domain, Alignment::Left);
        let why = cell(&held.why, widths.why, Alignment::Left);
        let left = held.until().map_or_else(String::new, |until| countdown(until.since(now)));
        let left = cell(&left, LEFT, Alignment::Right);
        let waiting = held.backlog.unwrap_or(held.in_line as u64);
        let waiting = if widths.waiting { format!("  {} wait", thousands(waiting)) } else { String::new() };
        let colour = match held.origin.as_str() {
            "server" => YELLOW,
            "operator" => MAGENTA,
            "learned" => CYAN,
            "robots" => BLUE,
            _ => PLAIN,
        };
        let why = if widths.why < WHY_LEAST { String::new() } else { self.paint(colour, &why) + "  " };
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

    fn paint(self, colour: &str, text: &str) -> String {
        if self.coloured && !colour.is_empty() && !text.is_empty() {
            format!("\x1b[{colour}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }

    /// Nothing is ever written into the last column: some terminals would begin a new line.
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

    fn legible(self, text: &str) -> String {
        let text = legible(text);
        if self.unicode { text } else { text.chars().map(|c| if c.is_ascii() { c } else { '?' }).collect() }
    }
}

fn rate(work: &Work) -> Option<String> {
    work.rate.map(|rate| if rate >= 100.0 { format!("{rate:.0}/s") } else { format!("{rate:.1}/s") })
}

fn left(work: &Work) -> Option<String> {
    let left = work.left_ms.filter(|_| work.all.is_none_or(|all| work.done < all))?;
    // Nobody knows it to the millisecond.
    let left = Span::from_secs(left.div_ceil(1_000).max(1)).about();
    Some(if work.left_is_most { format!("up to {left} left") } else { format!("about {left} left") })
}

fn tally(work: &Work) -> Vec<String> {
    let counts = [
        (work.failed, "failed", "failed"),
        (work.skipped, "skipped", "skipped"),
        (work.refused, "rate limited", "rate limited"),
        (work.retries, "retry", "retries"),
    ];
    let some = counts.into_iter().filter(|(count, ..)| *count > 0);
    some.map(|(count, one, many)| format!("{} {}", thousands(count), if count == 1 { one } else { many }))
        .collect()
}

/// What is left of a wait: tenths at the end of it, which people watch.
fn countdown(left: Span) -> String {
    let millis = left.as_millis_up();
    match millis {
        0..=9_900 => format!("{}.{}s", millis.div_ceil(100) / 10, millis.div_ceil(100) % 10),
        9_901..=99_999 => format!("{}s", millis.div_ceil(1_000)),
        _ => Span::from_secs(millis.div_ceil(1_000)).about().to_string(),
    }
}

/// A number as people read it: 1,234,567.
fn thousands(number: u64) -> String {
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

/// A bar shorter than this says nothing,
const BAR_MIN: usize = 8;
/// and a longer one no more.
const BAR_MAX: usize = 30;
/// Domains that are shown one by one.
const HELD_BACK_MAX: usize = 8;
/// What the columns of a line about a domain need at least.
const DOMAIN_MIN: usize = 16;
const WHY_MIN: usize = 14;
/// Fewer columns than this are no reason.
const WHY_LEAST: usize = 4;
const LEFT: usize = 7;
const WAITING: usize = 11;

#[cfg(test)]
mod tests;
