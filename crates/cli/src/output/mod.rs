//! The terminal: logs and the live view on stderr, results on stdout. Nobody else writes to either.
//!
//! - here: lines, remarks, errors
//! - `log`: the log
//! - `results`: stdout, and whether everything got there
//! - `screen`: where the live view is drawn
//!
//! Control characters never reach a terminal: what strangers wrote is shown with marks in their place.

mod log;
mod results;
mod screen;

use std::io::{IsTerminal, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};

use comity::shown;
use serde_json::Value;

pub(crate) use log::{log, log_of_service};
use results::show;
use results::stream;
pub(crate) use results::{Results, finish, is_lost};
use screen::Screen;

/// A line of a result.
pub(crate) fn line(text: &str) {
    show(|stdout| writeln!(stdout, "{}", legible(text)));
}

/// A result as text of several lines, as it is.
pub(crate) fn text(text: &str) {
    show(|stdout| write!(stdout, "{text}"));
}

/// A result for a machine: one object on one line.
pub(crate) fn object(value: &Value) {
    show(|stdout| writeln!(stdout, "{}", json(value)));
}

/// One object for a machine, to be written on one line.
pub(crate) fn json(value: &Value) -> String {
    escaped(&value.to_string())
}

/// Results for a machine, an object on each line, however many they are. Whoever reads them may be slow: only a terminal,
/// which is not, is locked meanwhile.
pub(crate) fn json_lines(lines: impl Iterator<Item = String>) {
    let text: String = lines.map(|line| escaped(&line) + "\n").collect();
    stream(&text);
}

/// Rows of a table as CSV. Cells are one line each, and nothing in them is a formula.
pub(crate) fn csv_lines<const N: usize>(rows: impl Iterator<Item = [String; N]>) {
    let text: String = rows.map(|row| row.map(|cell| csv_cell(&cell)).join(",") + "\n").collect();
    stream(&text);
}

fn csv_cell(cell: &str) -> String {
    let cell = legible(cell);
    // A spreadsheet would calculate it, whoever wrote it.
    let cell = if cell.starts_with(['=', '+', '-', '@', '\t']) { format!("'{cell}") } else { cell };
    match cell.contains(['"', ',', '\n', '\r']) {
        true => format!("\"{}\"", cell.replace('"', "\"\"")),
        false => cell,
    }
}

/// A result as XML. Names in it are strangers' words: what a terminal would act on is written by its number.
pub(crate) fn xml(document: &str) {
    let written: String = document
        .chars()
        .map(|c| match is_acted_on(c) && c != '\n' {
            true => format!("&#x{:x};", u32::from(c)),
            false => c.to_string(),
        })
        .collect();
    show(|stdout| write!(stdout, "{written}"));
}

/// What clap has to say: help and versions are results, the rest is an error.
pub(crate) fn parsed(said: &clap::Error) {
    match said.use_stderr() {
        // Nobody may be reading it.
        true => drop(said.print()),
        false => show(|_| said.print()),
    }
}

/// A remark on stderr.
pub(crate) fn remark(text: &str) {
    say(&text.lines().map(|line| legible(line) + "\n").collect::<String>());
}

/// Says that a stop was asked for, and what is finished first.
pub(crate) fn stopping(first: &str) {
    let ellipsis = if is_unicode() || !std::io::stderr().is_terminal() { "…" } else { "..." };
    remark(&format!("Stopping{ellipsis} ({first}; press Ctrl-C again to quit now)"));
}

/// An error, with what led to it.
pub(crate) fn error(error: &anyhow::Error, json: bool, code: u8) {
    end_view();
    let mut causes: Vec<String> = Vec::new();
    for cause in error.chain().map(ToString::to_string) {
        // Messages that carry their cause already are not followed by it again.
        if causes.last().is_none_or(|last| !last.contains(&cause)) {
            causes.push(cause);
        }
    }
    let message = causes.join(": ");
    say(&error_lines(&message));
    if json {
        object(&serde_json::json!({ "error": message, "code": code }));
    }
}

/// A message as the lines that an error is shown as.
fn error_lines(message: &str) -> String {
    let lead = |nth| if nth == 0 { "error: " } else { "       " };
    message.lines().enumerate().map(|(nth, text)| format!("{}{}\n", lead(nth), legible(text))).collect()
}

/// What strangers wrote, without anything a terminal would act on.
pub(crate) fn legible(text: &str) -> String {
    text.chars().map(|c| if is_acted_on(c) { '\u{fffd}' } else { c }).collect()
}

/// JSON that says the same without anything a terminal would act on; JSON itself minds the oldest of them only.
fn escaped(json: &str) -> String {
    let mut escaped = String::with_capacity(json.len());
    for c in json.chars() {
        match is_acted_on(c) {
            true => escaped.push_str(&format!("\\u{:04x}", u32::from(c))),
            false => escaped.push(c),
        }
    }
    escaped
}

/// Whether a terminal acts on it instead of showing it.
fn is_acted_on(c: char) -> bool {
    // Marks that turn the direction of text could make a line say something else.
    c.is_control() && c != '\t' || shown::turns(c)
}

/// The live view, while there is one. Whoever writes to the terminal locks it, so that nothing is torn.
static SCREEN: Mutex<Option<Screen>> = Mutex::new(None);

fn screen() -> MutexGuard<'static, Option<Screen>> {
    SCREEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes whole lines to stderr, above the live view if there is one.
fn say(text: &str) {
    match screen().as_mut() {
        Some(screen) => screen.above(text),
        // Whoever reads may have gone.
        None => drop(std::io::stderr().write_all(text.as_bytes())),
    }
}

/// A live view begins, where there is a terminal for it. It ends with [`end_view`].
pub(crate) fn begin_view() -> bool {
    let opened = Screen::open();
    let there = opened.is_some();
    *screen() = opened;
    there
}

/// Rows and columns of the live view.
pub(crate) fn view_size() -> (usize, usize) {
    screen().as_ref().map_or((24, 80), Screen::size)
}

/// Draws the live view anew.
pub(crate) fn draw_view(lines: Vec<String>) {
    if let Some(screen) = screen().as_mut() {
        screen.draw(lines);
    }
}

/// The live view ends, and leaves nothing behind.
pub(crate) fn end_view() {
    if let Some(mut screen) = screen().take() {
        screen.erase();
    }
}

/// Whether stderr may be coloured: `NO_COLOR` says not to.
pub(crate) fn coloured() -> bool {
    std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Whether the terminal understands more than ASCII, as its locale says.
pub(crate) fn is_unicode() -> bool {
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().filter_map(std::env::var_os);
    let first = locale.into_iter().find(|value| !value.is_empty());
    let named = first.map(|value| value.to_string_lossy().to_ascii_lowercase());
    cfg!(windows) || named.is_some_and(|name| name.contains("utf-8") || name.contains("utf8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ODD: &str = "a\nb\u{1b}[2J\u{9b}31m\u{7f}\u{202e}\u{2066}\u{200f}z";

    #[test]
    fn json_says_the_same_in_characters_that_are_shown() {
        let json = json(&serde_json::json!({ "title": ODD }));
        assert!(!json.contains(is_acted_on), "{json:?}");
        assert_eq!(serde_json::from_str::<Value>(&json).unwrap()["title"], ODD);
    }

    #[test]
    fn cells_of_a_table_are_quoted_and_calculate_nothing() {
        for (cell, expected) in [
            ("plain", "plain"),
            ("a,b", "\"a,b\""),
            ("say \"hi\"", "\"say \"\"hi\"\"\""),
            ("=1+1", "'=1+1"),
            ("a\nb", "a\u{fffd}b"),
        ] {
            assert_eq!(csv_cell(cell), expected);
        }
    }
}
