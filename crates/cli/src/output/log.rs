//! The log on stderr: its level and format.
//!
//! Next to a live view, only warnings are logged, in local time. Everywhere else (cron, systemd, pipes, a service)
//! everything from `info` on is logged, with UTC times to the microsecond, as log processors expect. In the JSON
//! format, everything on stderr is a line of the log: remarks, progress and errors too.

use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use comity::clock::Clock;
use comity::config::{LogFormat, LogLevel, LogSettings};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use super::{escaped, is_control, use_color, write_stderr};
use crate::args::Global;

/// How people follow a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Display {
    /// By a live view or its result, which the log should not disturb.
    View,
    /// By its log.
    Log,
}

/// Sets up the log of a command that shows progress or ends soon.
pub(crate) fn log(settings: &LogSettings, global: &Global) {
    begin(settings, global, Display::View);
}

/// Sets up the log of a command that runs until it is stopped, and that people follow by its log.
pub(crate) fn log_of_service(settings: &LogSettings, global: &Global) {
    begin(settings, global, Display::Log);
}

/// Whether stderr is JSON lines.
static JSON: AtomicBool = AtomicBool::new(false);

/// Makes everything on stderr a JSON line from here on.
pub(crate) fn set_json() {
    JSON.store(true, Ordering::Relaxed);
}

/// Whether everything on stderr is a JSON line.
pub(crate) fn is_json() -> bool {
    JSON.load(Ordering::Relaxed)
}

/// A message as a line of the JSON log, whatever the log level: it would be printed without a log, too.
pub(super) fn json_line(level: &str, message: &str) -> String {
    let (now, message) = (Clock::new().now(), serde_json::Value::from(message));
    escaped(&format!(r#"{{"timestamp":"{now}","level":"{level}","message":{message}}}"#)) + "\n"
}

fn begin(settings: &LogSettings, global: &Global, display: Display) {
    if settings.format == LogFormat::Json {
        set_json();
    }
    let is_terminal = std::io::stderr().is_terminal();
    let level = match level(settings, global, display, is_terminal) {
        LogLevel::Error => tracing::Level::ERROR,
        LogLevel::Warn => tracing::Level::WARN,
        LogLevel::Info => tracing::Level::INFO,
        LogLevel::Debug => tracing::Level::DEBUG,
        LogLevel::Trace => tracing::Level::TRACE,
    };
    let writer = match settings.format {
        LogFormat::Json => Stderr::Json,
        LogFormat::Text if use_color() => Stderr::Colored,
        LogFormat::Text if is_terminal => Stderr::Terminal,
        LogFormat::Text => Stderr::Plain,
    };
    let builder = tracing_subscriber::fmt().with_max_level(level).with_writer(writer).with_target(false);
    // Libraries log at most warnings: below that they log every HTTP/2 frame, and a site may send millions.
    let ours = Targets::new().with_target("comity", level).with_default(level.min(tracing::Level::WARN));
    // A second call in one process keeps the first setup.
    let _ = match settings.format {
        LogFormat::Json => builder.json().flatten_event(true).finish().with(ours).try_init(),
        LogFormat::Text if is_terminal => {
            builder.with_ansi(use_color()).with_timer(LocalTime).finish().with(ours).try_init()
        }
        LogFormat::Text => builder.with_ansi(false).finish().with(ours).try_init(),
    };
}

/// The log level: from `--log-level`, else `--quiet` or `-v`, else the configuration, else a default for the display.
fn level(settings: &LogSettings, global: &Global, display: Display, is_terminal: bool) -> LogLevel {
    let default = match (display, settings.format) {
        (Display::View, LogFormat::Text) if is_terminal => LogLevel::Warn,
        _ => LogLevel::Info,
    };
    let configured = settings.level.unwrap_or(default);
    match (&global.log_level, global.verbose) {
        // The flag is already part of the configuration, where it overrides everything else.
        (Some(_), _) => configured,
        _ if global.quiet => LogLevel::Error,
        (None, 0) => configured,
        (None, 1) => configured.max(LogLevel::Info),
        (None, 2) => configured.max(LogLevel::Debug),
        (None, _) => LogLevel::Trace,
    }
}

/// The local time of day.
struct LocalTime;

impl FormatTime for LocalTime {
    fn format_time(&self, writer: &mut Writer<'_>) -> std::fmt::Result {
        let now = jiff::Timestamp::from_microsecond(Clock::new().now().as_micros()).unwrap_or_default();
        write!(writer, "{}", time_of_day(now, now))
    }
}

/// A time in local time, with its date only if that differs from the date of `now`.
fn time_of_day(at: jiff::Timestamp, now: jiff::Timestamp) -> String {
    let zone = jiff::tz::TimeZone::system();
    let (at, now) = (at.to_zoned(zone.clone()).datetime(), now.to_zoned(zone).datetime());
    let time = at.time();
    let time = format!("{:02}:{:02}:{:02}", time.hour(), time.minute(), time.second());
    if at.date() == now.date() { time } else { format!("{}T{time}", at.date()) }
}

/// Converts UTC times that are values of fields (`until=2026-…Z`) to local time.
fn localized(line: &str, now: jiff::Timestamp) -> String {
    let mut local = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(at) = rest.find('=') {
        let (before, after) = rest.split_at(at + 1);
        local.push_str(before);
        // A color may end between the equals sign and the value.
        let plain = after.strip_prefix("\u{1b}[0m").unwrap_or(after);
        let value = &plain[..plain.find(char::is_whitespace).unwrap_or(plain.len())];
        local.push_str(&after[..after.len() - plain.len()]);
        rest = plain;
        if value.ends_with('Z')
            && let Ok(time) = value.parse::<jiff::Timestamp>()
        {
            local.push_str(&time_of_day(time, now));
            rest = &plain[value.len()..];
        }
    }
    local + rest
}

/// Writes the log, one line at a time, above the live view and without control characters.
#[derive(Debug, Clone, Copy)]
enum Stderr {
    Json,
    Plain,
    /// A terminal without colors.
    Terminal,
    /// A terminal with colors: their escape sequences are kept. The log escapes those in values.
    Colored,
}

impl MakeWriter<'_> for Stderr {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        *self
    }
}

impl Stderr {
    /// A line of the log, made safe for a terminal. Line breaks in values can't make it look like two lines.
    fn sanitized(self, line: &str) -> String {
        let line = line.strip_suffix('\n').unwrap_or(line);
        let keeps = |c| matches!(self, Self::Colored) && c == '\u{1b}';
        let mut safe = match self {
            Self::Json => escaped(line),
            _ => line.chars().map(|c| if is_control(c) && !keeps(c) { '\u{fffd}' } else { c }).collect(),
        };
        if matches!(self, Self::Terminal | Self::Colored) {
            let now = jiff::Timestamp::from_microsecond(Clock::new().now().as_micros());
            safe = localized(&safe, now.unwrap_or_default());
        }
        safe.push('\n');
        safe
    }
}

impl Write for Stderr {
    fn write(&mut self, buffer: &[u8]) -> std::io::Result<usize> {
        // Each call is one whole line.
        write_stderr(&self.sanitized(&String::from_utf8_lossy(buffer)));
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

    fn chosen(args: &str, file: Option<LogLevel>, format: LogFormat, is_terminal: bool) -> LogLevel {
        let words = args.split_whitespace();
        let global = Args::try_parse_from(std::iter::once("comity").chain(words)).unwrap().global;
        let given = match global.log_level.as_deref() {
            Some("error") => Some(LogLevel::Error),
            Some("debug") => Some(LogLevel::Debug),
            _ => file,
        };
        level(&LogSettings { level: given, format }, &global, Display::View, is_terminal)
    }

    /// B71, B72
    #[test]
    fn flags_override_the_configured_level_which_overrides_the_default() {
        let (text, json) = (LogFormat::Text, LogFormat::Json);
        for (args, file, format, is_terminal, expected) in [
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
            let level = chosen(args, file, format, is_terminal);
            assert_eq!(level, expected, "{args}, {file:?}, {format:?}, a terminal: {is_terminal}");
        }
        assert!(
            Args::try_parse_from(["comity", "-v", "--quiet", "top"]).is_err(),
            "they contradict each other"
        );
    }

    /// B72: people follow a service by its log, on a terminal too.
    #[test]
    fn a_service_logs_at_info_on_a_terminal_too() {
        let global = Args::try_parse_from(["comity", "serve"]).unwrap().global;
        let settings = LogSettings::default();
        assert_eq!(level(&settings, &global, Display::Log, true), LogLevel::Info);
    }

    #[test]
    fn times_in_a_line_are_local_and_without_microseconds() {
        let now: jiff::Timestamp = "2026-11-18T12:00:00Z".parse().unwrap();
        let line = "WARN backing off domain=a.example until=2026-11-18T12:00:05.123456Z again";
        let local = time_of_day("2026-11-18T12:00:05Z".parse().unwrap(), now);
        assert_eq!(localized(line, now), format!("WARN backing off domain=a.example until={local} again"));
        let colored = "until\u{1b}[0m\u{1b}[2m=\u{1b}[0m2026-11-18T12:00:05.123456Z";
        assert_eq!(localized(colored, now), format!("until\u{1b}[0m\u{1b}[2m=\u{1b}[0m{local}"));
        for kept in ["url=\"http://a/?t=2026-11-18T12:00:05Z\" x", "a=b=c= =", "=", "", "x=Z"] {
            assert_eq!(localized(kept, now), kept);
        }
    }

    const ODD: &str = "a\nb\u{1b}[2J\u{9b}31m\u{7f}\u{202e}\u{2066}\u{200f}z";

    #[test]
    fn the_log_contains_no_control_characters_except_its_own_colors() {
        let writers = [Stderr::Json, Stderr::Plain, Stderr::Terminal, Stderr::Colored];
        for (writer, kept) in writers.into_iter().zip(["", "", "", "\u{1b}"]) {
            let line = writer.sanitized(&format!("{ODD}\n"));
            assert!(
                line.strip_suffix('\n')
                    .is_some_and(|line| !line.contains(|c| is_control(c) && !kept.contains(c)))
            );
        }
    }
}
