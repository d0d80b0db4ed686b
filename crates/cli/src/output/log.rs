//! The log on stderr: which lines are written, and what they look like.
//!
//! Where people watch a live view, only warnings interrupt it, in local time. Everywhere else (cron, systemd, pipes, a
//! service) it is everything from `info` on, with UTC times to the microsecond, as programs that read logs expect.

use std::io::{IsTerminal, Write};

use comity::clock::Clock;
use comity::config::{LogFormat, LogLevel, LogSettings};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use super::{coloured, escaped, is_acted_on, say};
use crate::args::Global;

/// What a command shows beside its log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Beside {
    /// A live view, or a result that is soon there.
    View,
    /// Nothing: the log is how people follow it.
    Nothing,
}

/// Sets up the log of a command that shows progress or ends soon.
pub(crate) fn log(settings: &LogSettings, global: &Global) {
    begin(settings, global, Beside::View);
}

/// Sets up the log of a command that runs until it is stopped, and that people follow by its log.
pub(crate) fn log_of_service(settings: &LogSettings, global: &Global) {
    begin(settings, global, Beside::Nothing);
}

fn begin(settings: &LogSettings, global: &Global, beside: Beside) {
    let is_terminal = std::io::stderr().is_terminal();
    let level = match level(settings, global, beside, is_terminal) {
        LogLevel::Error => tracing::Level::ERROR,
        LogLevel::Warn => tracing::Level::WARN,
        LogLevel::Info => tracing::Level::INFO,
        LogLevel::Debug => tracing::Level::DEBUG,
        LogLevel::Trace => tracing::Level::TRACE,
    };
    let writer = match settings.format {
        LogFormat::Json => Stderr::Json,
        LogFormat::Text if coloured() => Stderr::Coloured,
        LogFormat::Text if is_terminal => Stderr::Terminal,
        LogFormat::Text => Stderr::Plain,
    };
    let builder = tracing_subscriber::fmt().with_max_level(level).with_writer(writer).with_target(false);
    // What libraries log is for those who fix them: a line for each frame of HTTP/2, which a site may send by millions.
    let ours = Targets::new().with_target("comity", level).with_default(level.min(tracing::Level::WARN));
    // A second set-up in one process keeps the first.
    let _ = match settings.format {
        LogFormat::Json => builder.json().flatten_event(true).finish().with(ours).try_init(),
        LogFormat::Text if is_terminal => {
            builder.with_ansi(coloured()).with_timer(LocalTime).finish().with(ours).try_init()
        }
        LogFormat::Text => builder.with_ansi(false).finish().with(ours).try_init(),
    };
}

/// What is worth a line: `--log-level`, then `--quiet` or `-v`, then the configuration, then what fits the place.
fn level(settings: &LogSettings, global: &Global, beside: Beside, is_terminal: bool) -> LogLevel {
    let fitting = match (beside, settings.format) {
        (Beside::View, LogFormat::Text) if is_terminal => LogLevel::Warn,
        _ => LogLevel::Info,
    };
    let configured = settings.level.unwrap_or(fitting);
    match (&global.log_level, global.verbose) {
        // It is part of the configuration already, over everything else there.
        (Some(_), _) => configured,
        _ if global.quiet => LogLevel::Error,
        (None, 0) => configured,
        (None, 1) => configured.max(LogLevel::Info),
        (None, 2) => configured.max(LogLevel::Debug),
        (None, _) => LogLevel::Trace,
    }
}

/// The time of day where the reader is.
struct LocalTime;

impl FormatTime for LocalTime {
    fn format_time(&self, writer: &mut Writer<'_>) -> std::fmt::Result {
        let now = jiff::Timestamp::from_microsecond(Clock::new().now().as_micros()).unwrap_or_default();
        write!(writer, "{}", time_of_day(now, now))
    }
}

/// A moment in local time, with its date only when that is not the date of `now`.
fn time_of_day(at: jiff::Timestamp, now: jiff::Timestamp) -> String {
    let zone = jiff::tz::TimeZone::system();
    let (at, now) = (at.to_zoned(zone.clone()).datetime(), now.to_zoned(zone).datetime());
    let time = at.time();
    let time = format!("{:02}:{:02}:{:02}", time.hour(), time.minute(), time.second());
    if at.date() == now.date() { time } else { format!("{}T{time}", at.date()) }
}

/// Moments that are values of their own (`until=2026-…Z`) as the time where the reader is.
fn localised(line: &str, now: jiff::Timestamp) -> String {
    let mut local = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(at) = rest.find('=') {
        let (before, after) = rest.split_at(at + 1);
        local.push_str(before);
        // A colour may end between the sign and the value.
        let plain = after.strip_prefix("\u{1b}[0m").unwrap_or(after);
        let value = &plain[..plain.find(char::is_whitespace).unwrap_or(plain.len())];
        local.push_str(&after[..after.len() - plain.len()]);
        rest = plain;
        if value.ends_with('Z')
            && let Ok(moment) = value.parse::<jiff::Timestamp>()
        {
            local.push_str(&time_of_day(moment, now));
            rest = &plain[value.len()..];
        }
    }
    local + rest
}

/// Writes the log, a line at a time, above the live view; passes on nothing that a terminal would act on.
#[derive(Debug, Clone, Copy)]
enum Stderr {
    Json,
    Plain,
    /// A terminal without colours.
    Terminal,
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
    /// A line of the log, fit for a terminal. What it is about cannot make it look like two.
    fn fit(self, line: &str) -> String {
        let line = line.strip_suffix('\n').unwrap_or(line);
        let keeps = |c| matches!(self, Self::Coloured) && c == '\u{1b}';
        let mut fit = match self {
            Self::Json => escaped(line),
            _ => line.chars().map(|c| if is_acted_on(c) && !keeps(c) { '\u{fffd}' } else { c }).collect(),
        };
        if matches!(self, Self::Terminal | Self::Coloured) {
            let now = jiff::Timestamp::from_microsecond(Clock::new().now().as_micros());
            fit = localised(&fit, now.unwrap_or_default());
        }
        fit.push('\n');
        fit
    }
}

impl Write for Stderr {
    fn write(&mut self, buffer: &[u8]) -> std::io::Result<usize> {
        // The log writes line by line.
        say(&self.fit(&String::from_utf8_lossy(buffer)));
        Ok(buffer.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        std::io::stderr().flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Args;
    use clap::Parser;

    fn chosen(typed: &str, file: Option<LogLevel>, format: LogFormat, is_terminal: bool) -> LogLevel {
        let words = typed.split_whitespace();
        let global = Args::try_parse_from(std::iter::once("comity").chain(words)).unwrap().global;
        let given = match global.log_level.as_deref() {
            Some("error") => Some(LogLevel::Error),
            Some("debug") => Some(LogLevel::Debug),
            _ => file,
        };
        level(&LogSettings { level: given, format }, &global, Beside::View, is_terminal)
    }

    /// B71, B72
    #[test]
    fn the_level_is_what_was_typed_then_what_is_configured_then_what_fits_the_place() {
        let (text, json) = (LogFormat::Text, LogFormat::Json);
        for (typed, file, format, is_terminal, expected) in [
            ("top", None, text, true, LogLevel::Warn),
            ("top", None, text, false, LogLevel::Info),
            ("top", None, json, true, LogLevel::Info),
            ("top", Some(LogLevel::Debug), text, true, LogLevel::Debug),
            ("top", Some(LogLevel::Error), text, false, LogLevel::Error),
            ("-v top", None, text, true, LogLevel::Info),
            ("-vv top", None, text, true, LogLevel::Debug),
            ("top -vvv", None, text, true, LogLevel::Trace),
            ("-v top", Some(LogLevel::Error), text, true, LogLevel::Info),
            ("-v top", Some(LogLevel::Debug), text, true, LogLevel::Debug),
            ("-v top --log-level error", None, text, true, LogLevel::Error),
            ("--quiet top", Some(LogLevel::Debug), text, false, LogLevel::Error),
            ("--quiet top --log-level debug", None, text, false, LogLevel::Debug),
        ] {
            let level = chosen(typed, file, format, is_terminal);
            assert_eq!(level, expected, "{typed}, {file:?}, {format:?}, a terminal: {is_terminal}");
        }
        assert!(
            Args::try_parse_from(["comity", "-v", "--quiet", "top"]).is_err(),
            "they contradict each other"
        );
    }

    /// B72: a service is followed by its log, on a terminal too.
    #[test]
    fn a_service_logs_its_start_on_a_terminal_too() {
        let global = Args::try_parse_from(["comity", "serve"]).unwrap().global;
        let settings = LogSettings::default();
        assert_eq!(level(&settings, &global, Beside::Nothing, true), LogLevel::Info);
    }

    #[test]
    fn moments_in_a_line_are_local_and_without_microseconds() {
        let now: jiff::Timestamp = "2026-11-18T12:00:00Z".parse().unwrap();
        let line = "WARN backing off domain=a.example until=2026-11-18T12:00:05.123456Z again";
        let local = time_of_day("2026-11-18T12:00:05Z".parse().unwrap(), now);
        assert_eq!(localised(line, now), format!("WARN backing off domain=a.example until={local} again"));
        let coloured = "until\u{1b}[0m\u{1b}[2m=\u{1b}[0m2026-11-18T12:00:05.123456Z";
        assert_eq!(localised(coloured, now), format!("until\u{1b}[0m\u{1b}[2m=\u{1b}[0m{local}"));
        for kept in ["url=\"http://a/?t=2026-11-18T12:00:05Z\" x", "a=b=c= =", "=", "", "x=Z"] {
            assert_eq!(localised(kept, now), kept);
        }
    }

    const ODD: &str = "a\nb\u{1b}[2J\u{9b}31m\u{7f}\u{202e}\u{2066}\u{200f}z";

    #[test]
    fn the_log_passes_on_nothing_that_a_terminal_acts_on_but_its_own_colours() {
        let writers = [Stderr::Json, Stderr::Plain, Stderr::Terminal, Stderr::Coloured];
        for (writer, kept) in writers.into_iter().zip(["", "", "", "\u{1b}"]) {
            let line = writer.fit(&format!("{ODD}\n"));
            assert!(
                line.strip_suffix('\n')
                    .is_some_and(|line| !line.contains(|c| is_acted_on(c) && !kept.contains(c)))
            );
        }
    }
}
