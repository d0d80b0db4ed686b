//! Parses arguments about sources. Errors name the argument, its value, and what is expected.

use comity::core::cadence::Cadence;
use comity::core::interval::SourceInterval;
use comity::core::time::Span;
use comity::redact;
use url::Url;

use crate::args::Switch;

/// A URL to fetch, in the form it is stored in.
pub(super) fn url(key: &str, text: &str) -> Result<Url, String> {
    // Text that doesn't parse may still contain a password.
    comity::exchange::parse_url(text.trim()).ok_or_else(|| {
        format!(
            "{key} = {:?}: expected an http or https URL with a host, such as https://example.org/feed",
            redact::text(text)
        )
    })
}

/// How often to fetch a source: a duration with a unit, or minutes.
pub(super) fn cadence(key: &str, text: &str) -> Result<Cadence, String> {
    let minutes = match text.trim().parse::<f64>() {
        Ok(minutes) => Some(minutes),
        Err(_) => Span::parse(text).ok().map(|every| every.as_secs_f64() / 60.0),
    };
    minutes.and_then(|minutes| Cadence::every_minutes(minutes).ok()).ok_or_else(|| {
        format!("{key} = {text:?}: expected a time above zero such as 8h, 90m or 480 (minutes)")
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

/// A name for a source without one: its host and path.
pub(super) fn name_of(url: &Url) -> String {
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    format!("{}{port}{}", url.host_str().unwrap_or_default(), url.path().trim_end_matches('/'))
}

pub(super) fn is_on(switch: Switch) -> bool {
    switch == Switch::On
}

#[cfg(test)]
mod tests {
    use super::*;

    /// B62
    #[test]
    fn a_cadence_is_a_duration_or_minutes_and_anything_else_an_error() {
        for (text, minutes) in [("8h", 480.0), ("90m", 90.0), ("480", 480.0), ("1h 30m", 90.0), ("0.5", 0.5)]
        {
            let every = cadence("--cadence", text).unwrap().every();
            assert_eq!(every.as_secs_f64() / 60.0, minutes, "{text}");
        }
        for text in ["0", "0h", "-5", "-8h", "NaN", "inf", "1e300", "soon", "", " ", "8 parsecs"] {
            let error = cadence("--cadence", text).unwrap_err();
            assert!(
                error.starts_with(&format!("--cadence = {text:?}: expected a time above zero")),
                "{error}"
            );
        }
    }

    #[test]
    fn a_source_without_a_name_is_named_after_its_url() {
        for (url, name) in [
            ("https://u:p@example.org/", "example.org"),
            ("https://example.org:8080/a/b.xml?key=1#x", "example.org:8080/a/b.xml"),
        ] {
            assert_eq!(name_of(&Url::parse(url).unwrap()), name);
        }
        assert_eq!(super::name("--name", " A\n B ").unwrap(), "A B");
        assert!(super::name("--name", " ").is_err());
    }
}
