//! All output: results on stdout; remarks, logs and the live view on stderr. No other module writes to either.
//!
//! - here: lines, remarks, errors
//! - `log`: the log
//! - `results`: stdout, with checks that writes succeed
//! - `screen`: draws the live view
//!
//! Control characters in text from sites and files never reach a terminal: they are replaced.

mod log;
mod results;
mod screen;

use std::io::{IsTerminal, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};

use comity::config::{ConfigError, ConfigProblem};
use comity::redact;
use serde_json::Value;

pub(crate) use log::{is_json as is_json_log, log, log_of_service, set_json as set_json_log};
use results::show;
use results::stream;
pub(crate) use results::{Results, begin_rows, finish, is_piping_rows, is_stdout_broken, is_stdout_closed};
use screen::Screen;

/// Prints a line of a result.
pub(crate) fn line(text: &str) {
    show(|stdout| writeln!(stdout, "{}", sanitized(text)));
}

/// Prints a result of several lines, unchanged.
pub(crate) fn text(text: &str) {
    show(|stdout| write!(stdout, "{text}"));
}

/// Prints a JSON object on one line.
pub(crate) fn object(value: &Value) {
    show(|stdout| writeln!(stdout, "{}", json(value)));
}

/// A JSON object as one line of text.
pub(crate) fn json(value: &Value) -> String {
    escaped(&value.to_string())
}

/// Prints any number of JSON objects, one per line. The reader may be slow, so stdout is locked only if it is a
/// terminal.
pub(crate) fn json_lines(lines: impl Iterator<Item = String>) {
    let text: String = lines.map(|line| escaped(&line) + "\n").collect();
    stream(&text);
}

/// Prints rows as CSV. Each cell is one line, and none is a formula.
pub(crate) fn csv_lines<const N: usize>(rows: impl Iterator<Item = [String; N]>) {
    let text: String = rows.map(|row| row.map(|cell| csv_cell(&cell)).join(",") + "\n").collect();
    stream(&text);
}

fn csv_cell(cell: &str) -> String {
    let cell = sanitized(cell);
    // A spreadsheet would run it as a formula.
    let cell = if cell.starts_with(['=', '+', '-', '@', '\t']) { format!("'{cell}") } else { cell };
    match cell.contains(['"', ',', '\n', '\r']) {
        true => format!("\"{}\"", cell.replace('"', "\"\"")),
        false => cell,
    }
}

/// Prints a result as XML. Names in it are untrusted, so control characters are written as character references.
pub(crate) fn xml(document: &str) {
    let written: String = document
        .chars()
        .map(|c| match is_control(c) && c != '\n' {
            true => format!("&#x{:x};", u32::from(c)),
            false => c.to_string(),
        })
        .collect();
    show(|stdout| write!(stdout, "{written}"));
}

/// Prints a message of clap: help and version are results, the rest are errors.
pub(crate) fn clap_message(message: &clap::Error) {
    match message.use_stderr() {
        true if log::is_json() => write_stderr(&log::json_line("ERROR", message.to_string().trim_end())),
        // Ignored if nobody reads stderr.
        true => drop(message.print()),
        false => show(|_| message.print()),
    }
}

/// Prints a remark on stderr: progress, a hint, a good end. With `--log-format json` it is a line of the log.
pub(crate) fn remark(text: &str) {
    write_remark("INFO", text);
}

/// Prints on stderr that something is missing, was skipped or is left. The same as a remark, but for whoever filters a
/// JSON log by level.
pub(crate) fn warning(text: &str) {
    write_remark("WARN", text);
}

/// Prints on stderr that something failed. The same as a remark, but for whoever filters a JSON log by level.
pub(crate) fn failure(text: &str) {
    write_remark("ERROR", text);
}

fn write_remark(level: &str, text: &str) {
    match log::is_json() {
        true => write_stderr(&log::json_line(level, text)),
        false => write_stderr(&text.lines().map(|line| sanitized(line) + "\n").collect::<String>()),
    }
}

/// Prints that the command is stopping, and what it still waits for.
pub(crate) fn stopping(pending: &str) {
    let ellipsis = if is_unicode() || !std::io::stderr().is_terminal() { "…" } else { "..." };
    remark(&format!("Stopping{ellipsis} ({pending}; press Ctrl-C again to quit now)"));
}

/// Prints an error with its causes.
pub(crate) fn error(error: &anyhow::Error, json: bool, code: u8) {
    end_view();
    let mut causes: Vec<String> = Vec::new();
    for cause in error.chain().map(ToString::to_string) {
        // Don't repeat a cause that the message already contains.
        if causes.last().is_none_or(|last| !repeats(last, &cause)) {
            causes.push(cause);
        }
    }
    let message = causes.join(": ");
    write_stderr(&error_lines(&message));
    if json {
        let mut parsed = serde_json::json!({ "error": message, "code": code });
        if let Some(error) = error.chain().find_map(|cause| cause.downcast_ref::<ConfigError>()) {
            parsed["problems"] = error.problems().iter().map(problem).collect();
        }
        object(&parsed);
    }
}

/// Whether a message already says what its cause says, perhaps in lower case and without the number of the error.
fn repeats(message: &str, cause: &str) -> bool {
    let plain = cause.split(" (os error ").next().unwrap_or(cause).to_lowercase();
    message.contains(cause) || message.to_lowercase().contains(&plain)
}

/// A problem of the configuration as JSON.
fn problem(problem: &ConfigProblem) -> Value {
    let ConfigProblem { origin, line, key, message } = problem;
    serde_json::json!({ "origin": origin, "line": line, "key": key, "message": message })
}

/// Prints an error that the rest of the output follows.
pub(crate) fn error_message(message: &str) {
    write_stderr(&error_lines(message));
}

/// An error message as lines, the first one with the prefix "error: "; with `--log-format json`, as a line of the log.
fn error_lines(message: &str) -> String {
    if log::is_json() {
        return log::json_line("ERROR", message);
    }
    let prefix = |nth| if nth == 0 { "error: " } else { "       " };
    message.lines().enumerate().map(|(nth, text)| format!("{}{}\n", prefix(nth), sanitized(text))).collect()
}

/// Replaces control characters in untrusted text.
pub(crate) fn sanitized(text: &str) -> String {
    text.chars().map(|c| if is_control(c) { '\u{fffd}' } else { c }).collect()
}

/// Escapes control characters in JSON without changing its meaning. JSON requires this only for the ASCII ones.
fn escaped(json: &str) -> String {
    let mut escaped = String::with_capacity(json.len());
    for c in json.chars() {
        match is_control(c) {
            true => escaped.push_str(&format!("\\u{:04x}", u32::from(c))),
            false => escaped.push(c),
        }
    }
    escaped
}

/// Whether a terminal interprets this character instead of showing it.
fn is_control(c: char) -> bool {
    // Bidirectional marks could reorder a line so that it reads differently.
    c.is_control() && c != '\t' || redact::is_bidi_mark(c)
}

/// The live view, while there is one. Everything that writes to the terminal locks it, so that output is never mixed
/// up.
static SCREEN: Mutex<Option<Screen>> = Mutex::new(None);

fn screen() -> MutexGuard<'static, Option<Screen>> {
    SCREEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes whole lines to stderr, above the live view if there is one.
fn write_stderr(text: &str) {
    match screen().as_mut() {
        Some(screen) => screen.above(text),
        // Ignored if nobody reads stderr.
        None => drop(std::io::stderr().write_all(text.as_bytes())),
    }
}

/// Starts a live view if there is a terminal for it, and returns whether it did. It ends with [`end_view`].
pub(crate) fn begin_view() -> bool {
    let opened = Screen::open();
    let is_open = opened.is_some();
    *screen() = opened;
    is_open
}

/// Rows and columns of the live view.
pub(crate) fn view_size() -> (usize, usize) {
    screen().as_ref().map_or((24, 80), Screen::size)
}

/// Redraws the live view.
pub(crate) fn draw_view(lines: Vec<String>) {
    if let Some(screen) = screen().as_mut() {
        screen.draw(lines);
    }
}

/// Ends the live view and erases it.
pub(crate) fn end_view() {
    if let Some(mut screen) = screen().take() {
        screen.erase();
    }
}

/// Whether to use color on stderr: it is a terminal that has colors, and `NO_COLOR` is not set.
pub(crate) fn use_color() -> bool {
    let is_wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    std::io::stderr().is_terminal() && !is_dumb() && is_wanted
}

/// Whether the terminal, if there is one, understands nothing but plain lines.
pub(crate) fn is_dumb() -> bool {
    std::env::var_os("TERM").is_none_or(|name| name.is_empty() || name == "dumb")
}

/// Whether the locale says that the terminal supports UTF-8.
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
    fn control_characters_are_escaped_in_json() {
        let json = json(&serde_json::json!({ "title": ODD }));
        assert!(!json.contains(is_control), "{json:?}");
        assert_eq!(serde_json::from_str::<Value>(&json).unwrap()["title"], ODD);
    }

    #[test]
    fn a_cause_that_the_message_names_is_not_repeated() {
        let cause = "Connection refused (os error 111)";
        assert!(repeats("connection refused by 127.0.0.9:8801", cause));
        assert!(repeats("a: Connection refused (os error 111)", cause));
        assert!(!repeats("could not connect to 127.0.0.9:8801", cause));
    }

    #[test]
    fn csv_cells_are_quoted_and_never_formulas() {
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
