//! Rate limit headers in the formats that sites use:
//!
//! - `RateLimit` and `RateLimit-Policy` as structured fields: `"default";r=4;t=60`, and `"default";a=4;w=60` with the
//!   names that the drafts are moving to (available quota and effective window, as in `RateLimit-Policy`);
//! - the single header of an earlier draft (`limit=10, remaining=4, reset=60`);
//! - the older `RateLimit-Limit`, `RateLimit-Remaining` and `RateLimit-Reset`;
//! - `X-RateLimit-*` (GitHub, Reddit, Discord with its `-Reset-After`) and `X-Rate-Limit-*` (X).
//!
//! A reset is a number of seconds from now or, above 1e9, a Unix timestamp. Malformed fields are ignored.

use std::num::NonZeroU64;

use super::RateHeaders;
use crate::time::{Span, Timestamp};

/// How many requests remain until the quota resets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    /// Requests remaining until the reset.
    pub remaining: NonZeroU64,
    /// Time from receiving the response to the reset; never zero.
    pub reset: Span,
}

impl Quota {
    /// The spacing that spreads the remaining requests evenly until the reset.
    pub fn spacing(self) -> Span {
        self.reset.split(self.remaining.get())
    }
}

/// Time until the last exhausted quota resets, and the tightest quota with requests remaining; `date` is when the
/// server wrote the headers.
pub(super) fn read(headers: &RateHeaders<'_>, date: Timestamp) -> (Option<Span>, Option<Quota>) {
    let mut stated = structured(headers, date);
    stated.extend(SPELLINGS.iter().filter_map(|spelling| spelled(headers, spelling, date)));
    let exhausted_for = stated.iter().filter(|stated| stated.remaining == 0).map(|stated| stated.reset).max();
    let left = |stated: &StatedQuota| {
        NonZeroU64::new(stated.remaining).map(|remaining| Quota { remaining, reset: stated.reset })
    };
    (exhausted_for, stated.iter().filter_map(left).max_by_key(|quota| (quota.spacing(), quota.reset)))
}

/// A quota as stated in the headers, exhausted or not.
struct StatedQuota {
    remaining: u64,
    reset: Span,
}

/// The header names of one vendor format.
struct Spelling {
    remaining: &'static str,
    /// In order of preference.
    resets: &'static [&'static str],
}

fn spelled(headers: &RateHeaders<'_>, spelling: &Spelling, date: Timestamp) -> Option<StatedQuota> {
    let remaining = whole(headers.first(spelling.remaining)?)?;
    let reset = spelling.resets.iter().find_map(|name| reset(headers.first(name)?, date))?;
    Some(StatedQuota { remaining, reset })
}

/// `RateLimit`, with the window of `RateLimit-Policy` for members without a reset.
fn structured(headers: &RateHeaders<'_>, date: Timestamp) -> Vec<StatedQuota> {
    let Some(value) = headers.joined("ratelimit") else { return Vec::new() };
    let policies = headers.joined("ratelimit-policy").map(|text| members(&text)).unwrap_or_default();
    let window = |name: &str| {
        let same = policies.iter().find(|(policy, _)| policy == name);
        same.and_then(|(_, params)| param(params, "w")?)
    };
    let current = members(&value).into_iter().filter_map(|(name, params)| {
        // A server that sends both spellings means the same number; if they differ, the stricter one applies.
        let left = ["r", "a"].into_iter().filter_map(|key| param(&params, key));
        let remaining = left.collect::<Option<Vec<Span>>>()?.into_iter().min()?.as_micros() / 1_000_000;
        // If there is a `t`, then `w` is the whole window and not the time remaining in it.
        let reset = match param(&params, "t").or_else(|| param(&params, "w")) {
            Some(reset) => from_now(reset?, date)?,
            None => window(&name)?,
        };
        Some(StatedQuota { remaining, reset })
    });
    current.chain(dictionary(&value, date)).filter(|quota| !quota.reset.is_zero()).collect()
}

/// A named quota of a structured field, with its parameters.
type Member = (String, Vec<(String, Option<Span>)>);

/// The members of a structured list that are named, with their parameters as seconds; `None` for anything that isn't a
/// number. Of parameters with the same key, the last one counts.
///
/// By hand: a parser for all of RFC 9651 costs whoever uses only the limiter as many crates as a tenth of the rest. A
/// test compares it with one.
fn members(text: &str) -> Vec<Member> {
    let members = split_unquoted(text, ',').unwrap_or_default().into_iter().filter_map(|member| {
        let mut parts = split_unquoted(member, ';')?.into_iter();
        let name = name(parts.next()?)?;
        Some((name, parts.map(pair).collect()))
    });
    members.collect()
}

/// The value of a parameter.
fn param(params: &[(String, Option<Span>)], key: &str) -> Option<Option<Span>> {
    params.iter().rfind(|(name, _)| name == key).map(|(_, value)| *value)
}

/// Parses `limit=10, remaining=4, reset=60`.
fn dictionary(text: &str, date: Timestamp) -> Option<StatedQuota> {
    let entries: Vec<_> = split_unquoted(text, ',')?.into_iter().map(pair).collect();
    let number = |key: &str| param(&entries, key).flatten();
    let remaining = number("remaining")?.as_micros() / 1_000_000;
    Some(StatedQuota { remaining, reset: from_now(number("reset")?, date)? })
}

/// Splits at a separator that isn't inside a quoted string, and trims the parts. `None` if a string has no end.
fn split_unquoted(text: &str, separator: char) -> Option<Vec<&str>> {
    let (mut quoted, mut escaped) = (false, false);
    let parts = text.split(|char: char| {
        let splits = !quoted && char == separator;
        quoted ^= char == '"' && !escaped;
        escaped = quoted && char == '\\' && !escaped;
        splits
    });
    let parts = parts.map(|part| part.trim_matches([' ', '\t'])).collect();
    (!quoted).then_some(parts)
}

/// The name of a quota: a quoted string or a token.
fn name(text: &str) -> Option<String> {
    if let Some(inner) = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) {
        let mut chars = inner.chars();
        let unescaped = std::iter::from_fn(|| {
            chars.next().map(|char| if char == '\\' { chars.next() } else { Some(char) })
        });
        return unescaped.collect();
    }
    let in_token = |char: char| char.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~:/".contains(char);
    let is_token = text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '*')
        && text.chars().all(in_token);
    is_token.then(|| text.to_owned())
}

/// A key and its value in seconds, if that is a number that isn't negative.
fn pair(text: &str) -> (String, Option<Span>) {
    let (key, value) = text.split_once('=').unwrap_or((text, ""));
    // A parameter of a dictionary's value says nothing here.
    let value = value.split(';').next().unwrap_or_default();
    (key.trim_start().to_owned(), Span::from_decimal_secs(value))
}

/// A number of requests. Reddit writes it with a decimal point; list members after the first are policies.
fn whole(text: &str) -> Option<u64> {
    Span::from_decimal_secs(first_member(text)).map(|span| span.as_micros() / 1_000_000)
}

fn reset(text: &str, date: Timestamp) -> Option<Span> {
    from_now(Span::from_decimal_secs(first_member(text))?, date)
}

/// Time until a reset that is given in seconds from now, as a Unix timestamp, or as one in milliseconds.
fn from_now(value: Span, date: Timestamp) -> Option<Span> {
    let epoch = |micros: u64| Timestamp::from_micros(i64::try_from(micros).unwrap_or(i64::MAX)).since(date);
    let reset = if value > EPOCH_MILLIS_FROM {
        epoch(value.as_micros() / 1_000)
    } else if value > EPOCH_FROM {
        epoch(value.as_micros())
    } else {
        value
    };
    (!reset.is_zero()).then_some(reset)
}

fn first_member(text: &str) -> &str {
    text.split([',', ';']).next().unwrap_or(text).trim()
}

const SPELLINGS: [Spelling; 3] = [
    Spelling { remaining: "ratelimit-remaining", resets: &["ratelimit-reset"] },
    Spelling {
        remaining: "x-ratelimit-remaining",
        resets: &["x-ratelimit-reset-after", "x-ratelimit-reset"],
    },
    Spelling {
        remaining: "x-rate-limit-remaining",
        resets: &["x-rate-limit-reset-after", "x-rate-limit-reset"],
    },
];
/// Above this, a reset is a Unix timestamp: as seconds from now it would be more than thirty years away.
const EPOCH_FROM: Span = Span::from_secs(1_000_000_000);
/// Above this, a Unix timestamp is in milliseconds: as seconds it would be in the year 5138.
const EPOCH_MILLIS_FROM: Span = Span::from_secs(100_000_000_000);

#[cfg(test)]
mod tests {
    use super::super::tests::hints;
    use super::*;

    fn quota(lines: &str) -> Option<(u64, u64)> {
        let exhausted_for = hints(lines).exhausted_for.map(|reset| (0, reset.as_secs_up()));
        exhausted_for
            .or_else(|| hints(lines).quota.map(|quota| (quota.remaining.get(), quota.reset.as_secs_up())))
    }

    /// B27
    #[test]
    fn every_spelling_is_understood() {
        // 2026-11-15 12:00:00 UTC is 1794744000.
        for lines in [
            "RateLimit: \"default\";r=4;t=60",
            "RateLimit: default;r=4;t=60",
            "RateLimit: \"default\";a=4;w=60",
            "RateLimit-Policy: \"burst\";q=100;w=90\nRateLimit: \"burst\";a=4;w=60",
            "RateLimit-Policy: \"burst\";q=100;w=60\nRateLimit: \"burst\";a=4",
            "RateLimit: \"default\";a=4;t=60",
            "RateLimit: \"default\";r=4;w=60",
            "RateLimit: \"default\";r=4;t=60;w=3600",
            "RateLimit: \"default\";r=5;a=4;t=60;w=3600;pk=:cHsdsRa894==:",
            "RateLimit-Policy: \"hour\";q=100;w=60\nRateLimit: \"hour\";r=4",
            "RateLimit: limit=10, remaining=4, reset=60",
            "RateLimit: limit=10, remaining=4, reset=1794744060",
            "RateLimit: \"default\";r=4;t=1794744060",
            "RateLimit-Limit: 10\nRateLimit-Remaining: 4\nRateLimit-Reset: 60",
            "RateLimit-Limit: 10, 10;w=60\nRateLimit-Remaining: 4\nRateLimit-Reset: 60",
            "X-RateLimit-Limit: 5000\nX-RateLimit-Remaining: 4\nX-RateLimit-Reset: 1794744060",
            "x-rate-limit-limit: 15\nx-rate-limit-remaining: 4\nx-rate-limit-reset: 1794744060",
            "x-ratelimit-used: 96\nx-ratelimit-remaining: 4.0\nx-ratelimit-reset: 60",
            "X-RateLimit-Remaining: 4\nX-RateLimit-Reset: 1794744999.5\nX-RateLimit-Reset-After: 60.0",
            "X-RateLimit-Remaining: 4\nX-RateLimit-Reset: 1794744060000",
        ] {
            assert_eq!(quota(lines), Some((4, 60)), "{lines}");
            assert_eq!(hints(lines).quota.unwrap().spacing(), Span::from_secs(15));
        }
    }

    /// What a parser for all of RFC 9651 reads in a list.
    fn members_by_the_rfc(text: &str) -> Option<Vec<Member>> {
        let number = |item: &sfv::BareItem| match item {
            sfv::BareItem::Integer(number) => Span::from_decimal_secs(&number.to_string()),
            sfv::BareItem::Decimal(number) => Span::from_decimal_secs(&number.to_string()),
            _ => None,
        };
        let list = sfv::Parser::new(text).parse::<sfv::List>().ok()?;
        let named = list.into_iter().filter_map(|entry| {
            let sfv::ListEntry::Item(item) = entry else { return None };
            let name = match item.bare_item {
                sfv::BareItem::String(name) => name.as_str().to_owned(),
                sfv::BareItem::Token(name) => name.as_str().to_owned(),
                _ => return None,
            };
            let mut params: Vec<_> =
                item.params.iter().map(|(key, value)| (key.to_string(), number(value))).collect();
            params.sort();
            Some((name, params))
        });
        Some(named.collect())
    }

    proptest::proptest! {
        /// Whatever the RFC allows is read as the RFC says, except for -0.
        #[test]
        fn fields_are_read_as_the_rfc_says(text in r#"((("([ -!#-\[\]-~]|\\[\\"]){0,5}"|[a-z*][a-z0-9:/.]{0,4}|-?[1-9][0-9]{0,3}(\.[0-9]{1,3})?)(; {0,2}[a-z]{1,2}(=("[a-z,;=]{0,4}"|-?[1-9][0-9]{0,5}(\.[0-9]{1,3})?|\?1|[a-z]{1,3}))?){0,3})[ \t]{0,2},[ \t]{0,2}){0,3}[a-z]{1,3};r=[0-9]{1,3}"#) {
            let sorted = |members: Vec<Member>| -> Vec<Member> {
                let unique = |(name, params): Member| {
                    let mut params: Vec<_> = params.iter().map(|(key, _)| (key.clone(), param(&params, key).flatten())).collect();
                    params.sort();
                    params.dedup();
                    (name, params)
                };
                members.into_iter().map(unique).collect()
            };
            if let Some(expected) = members_by_the_rfc(&text) {
                proptest::prop_assert_eq!(sorted(members(&text)), expected);
            }
        }
    }

    #[test]
    fn the_tightest_of_several_quotas_applies() {
        assert_eq!(quota("RateLimit: \"minute\";r=4;t=60, \"day\";r=10;t=86400"), Some((10, 86_400)));
        assert_eq!(
            quota("RateLimit: \"a\";r=0;t=5\nX-RateLimit-Remaining: 1\nX-RateLimit-Reset: 900"),
            Some((0, 5))
        );
        assert_eq!(quota("RateLimit: \"a\";r=0;t=5, \"b\";r=0;t=50"), Some((0, 50)));
        assert_eq!(quota("RateLimit: \"a\";r=0;t=5, \"b\";a=0;w=50"), Some((0, 50)));
        // One is exhausted and another has little left: both apply.
        let both = hints("RateLimit: \"minute\";r=0;t=60, \"day\";r=10;t=86000");
        assert_eq!(both.exhausted_for, Some(Span::from_secs(60)));
        assert_eq!(both.quota.map(Quota::spacing), Some(Span::from_secs(8_600)));
    }

    #[test]
    fn an_epoch_is_relative_to_the_date_header() {
        let lines =
            "Date: Sun, 15 Nov 2026 11:00:00 GMT\nX-RateLimit-Remaining: 0\nX-RateLimit-Reset: 1794740430";
        assert_eq!(quota(lines), Some((0, 30)));
    }

    #[test]
    fn malformed_past_and_incomplete_quotas_are_ignored() {
        for lines in [
            "RateLimit: \"default\";r=4",
            "RateLimit: \"default\";t=4",
            "RateLimit: \"default\";r=-1;t=60",
            "RateLimit: \"default\";r=1;t=0",
            "RateLimit: \"default\";a=1;w=0",
            "RateLimit: \"default\";a=many;w=60",
            "RateLimit: \"default\";r=1;a=-1;t=60",
            "RateLimit: \"default\";w=60",
            "RateLimit-Policy: \"d\";q=1;w=3600\nRateLimit: \"d\";r=0;t=0",
            "RateLimit: ((((",
            "RateLimit: (\"a\" \"b\");r=1;t=1",
            "RateLimit: 5;r=1;t=1",
            "RateLimit: remaining=(1 2), reset=5",
            "X-RateLimit-Remaining: 4",
            "X-RateLimit-Remaining: -1\nX-RateLimit-Reset: 60",
            "X-RateLimit-Remaining: many\nX-RateLimit-Reset: 60",
            "X-RateLimit-Remaining: 4\nX-RateLimit-Reset: 1000000001",
            "X-RateLimit-Remaining: 4\nX-RateLimit-Reset: tomorrow",
        ] {
            assert_eq!(quota(lines), None, "{lines}");
        }
    }
}
