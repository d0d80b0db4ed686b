//! The site information of a wiki, and what it says about the user.

use comity_core::time::Timestamp;
use serde_json::{Value, json};

use super::api::Api;
use super::error::WikiError;
use super::responses::{Namespace, Site};

/// The requested namespaces, if the wiki has them, or by default all content namespaces.
pub(super) fn select_namespaces(named: &[i64], site: &Site) -> Result<Vec<i64>, WikiError> {
    let find = |number: i64| site.namespaces.values().find(|one| one.id == number && number >= 0);
    if let Some(unknown) = named.iter().find(|number| find(**number).is_none()) {
        let mut has: Vec<&Namespace> = site.namespaces.values().filter(|one| one.id >= 0).collect();
        has.sort_unstable_by_key(|one| one.id);
        let has: Vec<String> = has.into_iter().map(Namespace::to_string).collect();
        return Err(WikiError::Namespace { namespace: *unknown, has: has.join(", ") });
    }
    let mut selected: Vec<i64> = match named.is_empty() {
        false => named.to_vec(),
        true => site.namespaces.values().filter(|one| one.content && one.id >= 0).map(|one| one.id).collect(),
    };
    selected.sort_unstable();
    selected.dedup();
    Ok(selected)
}

impl std::fmt::Display for Namespace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.name.is_empty() {
            true => write!(f, "{} (main)", self.id),
            false => write!(f, "{} ({})", self.id, self.name),
        }
    }
}

/// Checks that the wiki provides site information, and that its version is supported.
pub(super) fn check_supported(site: &Site, api: &Api) -> Result<(), WikiError> {
    let unexpected = |what: String| Err(WikiError::Unexpected { api: api.address(), what });
    if site.general.is_empty() || site.namespaces.is_empty() {
        return unexpected("it provides no site information".to_owned());
    }
    let generator = site.general.get("generator").and_then(Value::as_str).unwrap_or_default();
    match version(generator) {
        Some(version) if version < OLDEST => unexpected(format!(
            "it runs {generator}; MediaWiki {}.{} or later is required",
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

/// The part of the site information that is stored: what the head of a dump needs, and the statistics.
pub(super) fn stored_site(site: &Site) -> Value {
    json!({
        "general": site.general,
        "namespaces": site.namespaces.values().map(|one| {
            json!({ "id": one.id, "name": one.name, "case": one.more.get("case") })
        }).collect::<Vec<_>>(),
        "statistics": site.statistics,
    })
}

/// How many pages or revisions may be requested at once.
pub(super) fn batch_size(site: &Site) -> usize {
    let high = site.userinfo.as_ref().is_some_and(|user| user.rights.iter().any(|right| right == HIGH));
    if high { 500 } else { 50 }
}

/// The oldest change that is still listed.
pub(super) fn oldest_change(site: &Site) -> Option<Timestamp> {
    site.recentchanges.first().and_then(|change| Timestamp::parse(&change.timestamp).ok())
}

/// Requests the site information, the rights of the user, and the oldest change.
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
/// The oldest supported version: it has `list=allrevisions` and `formatversion=2`.
const OLDEST: (u32, u32) = (1, 27);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_parsed() {
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
