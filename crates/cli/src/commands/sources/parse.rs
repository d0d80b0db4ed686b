//! Parses arguments about sources. Errors name the argument, its value, and what is expected.

use comity::core::cadence::Cadence;
use comity::core::interval::SourceInterval;
use comity::core::time::Span;
use comity::jobs::meant_url;
use comity::redact;
use url::Url;

use crate::args::Switch;

/// A URL to fetch, in the form it is stored in.
pub(super) fn url(key: &str, text: &str) -> Result<Url, String> {
    // Text that doesn't parse may still contain a password.
    comity::exchange::parse_url(text.trim()).ok_or_else(|| {
        let meant = meant_url(text.trim()).map(|url| format!("; did you mean {url} ?")).unwrap_or_default();
        format!(
            "{key} = {:?}: expected an http or https URL with a host, such as https://example.org/feed{meant}",
            redact::text(text)
        )
    })
}

/// How often to fetch a source: a duration with a unit, like all others.
pub(super) fn cadence(key: &str, text: &str) -> Result<Cadence, String> {
    let every = Span::parse(text).ok().map(|every| every.as_secs_f64() / 60.0);
    let number = text.trim();
    every.and_then(|minutes| Cadence::every_minutes(minutes).ok()).ok_or_else(|| {
        let unit = match number.parse::<u32>() {
            Ok(1..) => format!(" ({number} has no unit: {number}m are minutes, {number}h are hours)"),
            _ => String::new(),
        };
        format!("{key} = {text:?}: expected a duration above zero such as 8h, 90m or 2d{unit}")
    })
}

/// The minimum time between two scrapes.
pub(super) fn interval(key: &str, text: &str) -> Result<SourceInterval, String> {
    SourceInterval::parse(text)
        .map_err(|error| format!("{key} = {text:?}: expected {}, 0 for none, or default", error.expected))
}

/// A name, on one line.
pub(super) fn name(key: &str, text: &str) -> Result<String, String> {
    let name = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if name.is_empty() { Err(format!("{key} = {text:?}: expected a name")) } else { Ok(name) }
}

pub(super) fn is_on(switch: Switch) -> bool {
    switch == Switch::On
}

#[cfg(test)]
mod tests {
    use super::*;

    /// B62
    #[test]
    fn a_cadence_is_a_duration_with_a_unit_and_anything_else_an_error() {
        for (text, minutes) in [("8h", 480.0), ("90m", 90.0), ("2d", 2_880.0), ("1h 30m", 90.0), ("30s", 0.5)]
        {
            let every = cadence("--cadence", text).unwrap().every();
            assert_eq!(every.as_secs_f64() / 60.0, minutes, "{text}");
        }
        for text in ["0", "0h", "-5", "-8h", "NaN", "inf", "1e300", "soon", "", " ", "8 parsecs", "8", "0.5"]
        {
            let error = cadence("--cadence", text).unwrap_err();
            let expected =
                format!("--cadence = {text:?}: expected a duration above zero such as 8h, 90m or 2d");
            assert!(error.starts_with(&expected), "{error}");
        }
        let error = cadence("--cadence", "8").unwrap_err();
        assert!(error.ends_with(" (8 has no unit: 8m are minutes, 8h are hours)"), "{error}");
    }

    #[test]
    fn a_name_is_on_one_line() {
        assert_eq!(super::name("--name", " A\n B ").unwrap(), "A B");
        assert!(super::name("--name", " ").is_err());
    }
}
