//! What a wiki says of itself, and of us.

use comity_core::time::Timestamp;
use serde_json::{Value, json};

use super::answers::{Namespace, Site};
use super::api::Api;
use super::error::WikiError;

/// The namespaces that were named, if the wiki has them, or all it calls content.
pub(super) fn chosen(named: &[i64], site: &Site) -> Result<Vec<i64>, WikiError> {
    let there = |number: i64| site.namespaces.values().find(|one| one.id == number && number >= 0);
    if let Some(unknown) = named.iter().find(|number| there(**number).is_none()) {
        let mut has: Vec<&Namespace> = site.namespaces.values().filter(|one| one.id >= 0).collect();
        has.sort_unstable_by_key(|one| one.id);
        let has: Vec<String> = has.into_iter().map(Namespace::to_string).collect();
        return Err(WikiError::Namespace { namespace: *unknown, has: has.join(", ") });
    }
    let mut chosen: Vec<i64> = match named.is_empty() {
        false => named.to_vec(),
        true => site.namespaces.values().filter(|one| one.content && one.id >= 0).map(|one| one.id).collect(),
    };
    chosen.sort_unstable();
    chosen.dedup();
    Ok(chosen)
}

impl std::fmt::Display for Namespace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.name.is_empty() {
            true => write!(f, "{} (main)", self.id),
            false => write!(f, "{} ({})", self.id, self.name),
        }
    }
}

/// A wiki that says what it is, and is not too old to be read.
pub(super) fn must_be_readable(site: &Site, api: &Api) -> Result<(), WikiError> {
    let unexpected = |what: String| Err(WikiError::Unexpected { api: api.address(), what });
    if site.general.is_empty() || site.namespaces.is_empty() {
        return unexpected("it does not say what it is".to_owned());
    }
    let generator = site.general.get("generator").and_then(Value::as_str).unwrap_or_default();
    match version(generator) {
        Some(version) if version < OLDEST => unexpected(format!(
            "it runs {generator}; MediaWiki {}.{} or later can be read",
            OLDEST.0, OLDEST.1
        )),
        _ => Ok(()),
    }
}

/// `MediaWiki 1.39.17` as 1 and 39.
fn version(generator: &str) -> Option<(u32, u32)> {
    let mut numbers = generator.strip_prefix("MediaWiki ")?.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// What is kept of what a wiki says of itself: what a dump begins with, and what it counts.
pub(super) fn kept_site(site: &Site) -> Value {
    json!({
        "general": site.general,
        "namespaces": site.namespaces.values().map(|one| {
            json!({ "id": one.id, "name": one.name, "case": one.more.get("case") })
        }).collect::<Vec<_>>(),
        "statistics": site.statistics,
    })
}

/// How many pages or revisions may be named at once.
pub(super) fn batch_of(site: &Site) -> usize {
    let high = site.userinfo.as_ref().is_some_and(|user| user.rights.iter().any(|right| right == HIGH));
    if high { 500 } else { 50 }
}

/// The oldest change that is listed.
pub(super) fn oldest(site: &Site) -> Option<Timestamp> {
    site.recentchanges.first().and_then(|change| Timestamp::parse(&change.timestamp).ok())
}

/// What a wiki says of itself and of us, and the oldest change it lists, in one request.
pub(super) const SITE: &[(&str, &str)] = &[
    ("meta", "siteinfo|userinfo"),
    ("siprop", "general|namespaces|statistics"),
    ("uiprop", "rights"),
    ("list", "recentchanges"),
    ("rcdir", "newer"),
    ("rclimit", "1"),
    ("rcprop", "timestamp"),
];
const HIGH: &str = "apihighlimits";
/// The oldest that answers as is read here: it has `list=allrevisions`, and `formatversion=2`.
const OLDEST: (u32, u32) = (1, 27);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read() {
        for (generator, expected) in [
            ("MediaWiki 1.39.17", Some((1, 39))),
            ("MediaWiki 1.45.0-wmf.3", Some((1, 45))),
            ("MediaWiki 1.19", Some((1, 19))),
            ("Something 2", None),
        ] {
            assert_eq!(version(generator), expected, "{generator}");
        }
    }
}
