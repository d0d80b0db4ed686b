//! The terminal: logs and progress on stderr, results on stdout. Nobody else writes to either.
//!
//! Control characters never reach a terminal: what strangers wrote is shown with marks in their place.

use std::io::{IsTerminal, Write};
use std::sync::{Mutex, OnceLock, PoisonError};

use comity::config::{LogFormat, LogLevel, LogSettings};
use comity::core::time::Span;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Value, json};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::args::Global;

/// A line of a result.
pub(crate) fn line(text: &str) {
    let mut stdout = std::io::stdout().lock();
    // Whoever reads may have gone, and then nobody is interested any more.
    let _ = writeln!(stdout, "{}", legible(text));
}

/// A result as text of several lines, as it is.
pub(crate) fn text(text: &str) {
    let mut stdout = std::io::stdout().lock();
    let _ = write!(stdout, "{text}");
}

/// A result as XML. Names in it are strangers' words: what a terminal would act on is written by its number.
pub(crate) fn xml(document: &str) {
    let mut stdout = std::io::stdout().lock();
    let written: String = document
        .chars()
        .map(|c| match is_acted_on(c) && c != '\n' {
            true => format!("&#x{:x};", u32::from(c)),
            false => c.to_string(),
        })
        .collect();
    let _ = write!(stdout, "{written}");
}

/// A result for a machine: one object on one line.
pub(crate) fn object(value: &Value) {
    let mut stdout = std::io::stdout().lock();
    let _ = writeln!(stdout, "{}", escaped(&value.to_string()));
}

/// A remark on stderr, which does not tear the progress.
pub(crate) fn remark(text: &str) {
    suspended(|| text.lines().for_each(|line| eprintln!("{}", legible(line))));
}

/// An error, with what led to it.
pub(crate) fn error(error: &anyhow::Error, json: bool, code: u8) {
    finish_progress();
    let mut causes: Vec<String> = Vec::new();
    for cause in error.chain().map(ToString::to_string) {
        // Messages that carry their cause already are not followed by it again.
        if causes.last().is_none_or(|last| !last.contains(&cause)) {
            causes.push(cause);
        }
    }
    let message = causes.join(": ");
    for (nth, text) in message.lines().enumerate() {
        eprintln!("{}{}", if nth == 0 { "error: " } else { "       " }, legible(text));
    }
    if json {
        object(&json!({ "error": message, "code": code }));
    }
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
    let turns =
        matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() && c != '\t' || turns
}

/// Sets up the log.
pub(crate) fn log(settings: &LogSettings, global: &Global) {
    let level = match settings.level {
        _ if global.quiet => tracing::Level::ERROR,
        LogLevel::Error => tracing::Level::ERROR,
        LogLevel::Warn => tracing::Level::WARN,
        LogLevel::Info => tracing::Level::INFO,
        LogLevel::Debug => tracing::Level::DEBUG,
        LogLevel::Trace => tracing::Level::TRACE,
    };
    let colour = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let writer = match settings.format {
        LogFormat::Json => Stderr::Json,
        LogFormat::Text if colour => Stderr::Coloured,
        LogFormat::Text => Stderr::Plain,
    };
    let builder = tracing_subscriber::fmt().with_max_level(level).with_writer(writer).with_target(false);
    // What libraries tell is for those who mend them: a line for each frame of HTTP/2, which a site may send by millions.
    let ours = Targets::new().with_target("comity", level).with_default(level.min(tracing::Level::WARN));
    // A second set-up in one process keeps the first.
    let _ = match settings.format {
        LogFormat::Json => builder.json().flatten_event(true).finish().with(ours).try_init(),
        LogFormat::Text => builder.with_ansi(colour).finish().with(ours).try_init(),
    };
}

/// Writes the log so that it does not tear the progress, and passes on nothing that a terminal would act on.
#[derive(Debug, Clone, Copy)]
enum Stderr {
    Json,
    Plain,
    /// The escapes of colours are the log's own: those of values it writes out.
    Coloured,
}

impl MakeWriter<'_> for Stderr {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        *self
    }
}

impl Stderr {
    /// A line of the log, fit for a terminal. What it tells of cannot make it look like two.
    fn fit(self, line: &str) -> String {
        let line = line.strip_suffix('\n').unwrap_or(line);
        let keeps = |c| matches!(self, Self::Coloured) && c == '\u{1b}';
        let mut fit = match self {
            Self::Json => escaped(line),
            _ => line.chars().map(|c| if is_acted_on(c) && !keeps(c) { '\u{fffd}' } else { c }).collect(),
        };
        fit.push('\n');
        fit
    }
}

impl Write for Stderr {
    fn write(&mut self, buffer: &[u8]) -> std::io::Result<usize> {
        // The log writes line by line.
        let line = self.fit(&String::from_utf8_lossy(buffer));
        suspended(|| std::io::stderr().write_all(line.as_bytes()))?;
        Ok(buffer.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        std::io::stderr().flush()
    }
}

static BAR: OnceLock<Mutex<Option<ProgressBar>>> = OnceLock::new();

fn bar() -> std::sync::MutexGuard<'static, Option<ProgressBar>> {
    BAR.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

fn suspended<T>(write: impl FnOnce() -> T) -> T {
    let bar = bar();
    match bar.as_ref() {
        Some(bar) => bar.suspend(write),
        None => write(),
    }
}

fn finish_progress() {
    if let Some(bar) = bar().take() {
        bar.finish_and_clear();
    }
}

/// How far a long piece of work is: a bar on a terminal, a line now and then elsewhere.
#[derive(Debug)]
pub(crate) struct Progress {
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Bar(ProgressBar),
    Lines { last: Option<Span> },
    Quiet,
}

impl Progress {
    pub(crate) fn start(global: &Global) -> Self {
        if global.quiet {
            return Self { kind: Kind::Quiet };
        }
        if !std::io::stderr().is_terminal() {
            return Self { kind: Kind::Lines { last: None } };
        }
        let style = ProgressStyle::with_template("{bar:12} {pos}/{len} {wide_msg}");
        let style = style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> ");
        let made =
            ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr_with_hz(8)).with_style(style);
        *bar() = Some(made.clone());
        Self { kind: Kind::Bar(made) }
    }

    /// Tells how far it is.
    pub(crate) fn show(&mut self, settled: u64, tasks: u64, elapsed: Span, message: impl FnOnce() -> String) {
        match &mut self.kind {
            Kind::Quiet => {}
            Kind::Bar(bar) => {
                bar.set_length(tasks);
                bar.set_position(settled);
                bar.set_message(legible(&message()));
            }
            Kind::Lines { last } => {
                if tasks > 0 && last.is_none_or(|last| elapsed.less(last) >= LINES_EVERY) {
                    *last = Some(elapsed);
                    eprintln!("{settled}/{tasks} {}", legible(&message()));
                }
            }
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        finish_progress();
    }
}

/// Without a terminal, progress is told this often.
const LINES_EVERY: Span = Span::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    const ODD: &str = "a\nb\u{1b}[2J\u{9b}31m\u{7f}\u{202e}\u{2066}\u{200f}z";

    #[test]
    fn json_says_the_same_in_characters_that_are_shown() {
        let json = escaped(&json!({ "title": ODD }).to_string());
        assert!(!json.contains(is_acted_on), "{json:?}");
        assert_eq!(serde_json::from_str::<Value>(&json).unwrap()["title"], ODD);
    }

    #[test]
    fn the_log_passes_on_nothing_that_a_terminal_acts_on_but_its_own_colours() {
        for (writer, kept) in [(Stderr::Json, ""), (Stderr::Plain, ""), (Stderr::Coloured, "\u{1b}")] {
            let line = writer.fit(&format!("{ODD}\n"));
            assert!(
                line.strip_suffix('\n')
                    .is_some_and(|line| !line.contains(|c| is_acted_on(c) && !kept.contains(c)))
            );
        }
    }
}
