//! What a server says about waiting, read from the headers of one answer.
//!
//! Headers come in as pairs of name and raw value, so that any HTTP library can hand them over. What follows
//! from them (clamps, holds, spacing) is decided in [`crate::pace`]; a value that makes no sense is kept as
//! such, because a log line must say so (B21).

mod rate_limit;
mod retry_after;

pub use rate_limit::Quota;
pub use retry_after::RetryAfter;

use crate::time::{Span, Timestamp};

/// What one answer's headers ask of us.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Told {
    /// `Retry-After`, in the form it had.
    pub retry_after: RetryAfter,
    /// A quota is used up; the longest time until one that is comes back, never zero.
    pub spent: Option<Span>,
    /// The tightest quota that has something left.
    pub quota: Option<Quota>,
}

impl Told {
    /// Reads the headers of an answer received at `now`. Names may be in any case.
    ///
    /// Dates are measured against the answer's own `Date`, because the server's clock need not be ours.
    pub fn read<'a>(headers: impl Iterator<Item = (&'a str, &'a [u8])>, now: Timestamp) -> Self {
        let mut relevant: Vec<(String, &str)> = Vec::new();
        for (name, value) in headers {
            let name = name.to_ascii_lowercase();
            let first = matches!(name.as_str(), "date" | "retry-after");
            if !is_relevant(&name) || (relevant.len() >= HEADERS_MAX && (!first || seen_of(&relevant, &name)))
            {
                continue;
            }
            match std::str::from_utf8(value) {
                Ok(value) if value.len() <= VALUE_MAX => relevant.push((name, value.trim())),
                // What is immense or no text is no value, but a Retry-After it is: a log line must say so.
                _ => relevant.push((name, "(unreadable)")),
            }
        }
        if relevant.is_empty() {
            return Self::default();
        }
        let said = Said { headers: &relevant };
        let date = said.first("date").and_then(parse_date).unwrap_or(now);
        let (spent, quota) = rate_limit::read(&said, date);
        Self { retry_after: retry_after::read(said.all("retry-after"), date), spent, quota }
    }

    /// What is left of it so long after it was said: deadlines stay where they are, and none is said anew.
    pub fn aged(self, by: Span) -> Self {
        // Nothing at all would be no deadline.
        let left = |span: Span| span.less(by).max(Span::from_micros(1));
        let retry_after = match self.retry_after {
            RetryAfter::After(asked) => RetryAfter::After(left(asked)),
            other => other,
        };
        Self { retry_after, spent: self.spent.map(left), quota: None }
    }

    /// Whether the server said when to come back.
    pub fn names_a_time(&self) -> bool {
        matches!(self.retry_after, RetryAfter::After(_)) || self.spent.is_some()
    }

    /// Whether the answer said nothing about waiting.
    #[inline]
    pub fn is_silent(&self) -> bool {
        matches!(self, Self { retry_after: RetryAfter::Absent, spent: None, quota: None })
    }

    /// Only a `Retry-After` of plain seconds.
    pub fn retry_after(span: Span) -> Self {
        Self { retry_after: RetryAfter::After(span), ..Self::default() }
    }
}

/// The few headers of an answer that speak of waiting, names in lower case.
struct Said<'a> {
    headers: &'a [(String, &'a str)],
}

impl<'a> Said<'a> {
    fn all(&self, name: &str) -> impl Iterator<Item = &'a str> {
        self.headers.iter().filter(move |(known, _)| known == name).map(|(_, value)| *value)
    }

    fn first(&self, name: &str) -> Option<&'a str> {
        self.all(name).next()
    }

    /// All values of a list header, joined as RFC 9110 joins them.
    fn joined(&self, name: &str) -> Option<String> {
        let values: Vec<&str> = self.all(name).collect();
        (!values.is_empty()).then(|| values.join(", "))
    }
}

fn seen_of(headers: &[(String, &str)], name: &str) -> bool {
    headers.iter().any(|(known, _)| known == name)
}

fn is_relevant(name: &str) -> bool {
    name == "date" || name == "retry-after" || name.starts_with("ratelimit") || name.starts_with("x-rate")
}

/// Reads an HTTP-date in any of the three forms of RFC 9110.
fn parse_date(text: &str) -> Option<Timestamp> {
    httpdate::parse_http_date(text).ok().map(Timestamp::from)
}

/// Longer values and more headers than these are noise or an attack.
const VALUE_MAX: usize = 4_096;
const HEADERS_MAX: usize = 64;

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Reads `name: value` lines at 2026-11-15 12:00:00 UTC.
    pub(crate) fn told(lines: &str) -> Told {
        let pairs = lines.lines().filter_map(|line| line.split_once(": "));
        let pairs = pairs.map(|(name, value)| (name, value.as_bytes()));
        Told::read(pairs, Timestamp::parse("2026-11-15T12:00:00Z").unwrap())
    }

    #[test]
    fn answers_without_a_word_about_waiting_ask_nothing() {
        assert_eq!(told("Content-Type: text/html\nServer: nginx"), Told::default());
        assert_eq!(told(""), Told::default());
    }

    #[test]
    fn binary_and_immense_values_are_not_read() {
        let headers = [("retry-after", &b"\xff\xfe"[..]), ("RateLimit", &b"\x80"[..])];
        let told = Told::read(headers.into_iter(), Timestamp::from_secs(0));
        assert_eq!(told, Told { retry_after: RetryAfter::Unusable, ..Told::default() });
        let many = "X-RateLimit-Foo: 1\n".repeat(100);
        assert_eq!(self::told(&format!("{many}Retry-After: 5")), Told::retry_after(Span::from_secs(5)));
        let long = "9".repeat(VALUE_MAX + 1);
        assert_eq!(self::told(&format!("Retry-After: {long}")).retry_after, RetryAfter::Unusable);
        assert_eq!(self::told(&format!("X-RateLimit-Reset: {long}\nX-RateLimit-Remaining: 0")).quota, None);
    }
}
