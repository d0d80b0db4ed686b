//! The terminal: logs and progress on stderr, results on stdout. Nobody else writes to either.
//!
//! Control characters never reach a terminal: what strangers wrote is shown with marks in their place.

use std::io::{IsTerminal, Write};
use std::sync::{Mutex, OnceLock, PoisonError};

use comity::config::{LogFormat, LogLevel, LogSettings};
use comity::core::time::Span;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Value, json};
use tracing_subscriber::fmt::MakeWriter;

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

/// A result for a machine: one object on one line.
pub(crate) fn object(value: &Value) {
    let mut stdout = std::io::stdout().lock();
    let _ = writeln!(stdout, "{value}");
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
    // Marks that turn the direction of text could make a line say something else.
    let turns = |c| matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    text.chars().map(|c| if c.is_control() && c != '\t' || turns(c) { '\u{fffd}' } else { c }).collect()
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
    let builder = tracing_subscriber::fmt().with_max_level(level).with_writer(Stderr).with_target(false);
    // A second set-up in one process keeps the first.
    let _ = match settings.format {
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
        LogFormat::Text => {
            let colour = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
            builder.with_ansi(colour).try_init()
        }
    };
}

/// Writes the log so that it does not tear the progress, and passes on nothing that a terminal would act on.
#[derive(Debug, Clone, Copy)]
struct Stderr;

impl MakeWriter<'_> for Stderr {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        Self
    }
}

impl Write for Stderr {
    fn write(&mut self, buffer: &[u8]) -> std::io::Result<usize> {
        suspended(|| std::io::stderr().write_all(buffer))?;
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
