//! Normalizes URLs so that the same page is recognized again, and derives item identities from them.
//!
//! Only parts that never select a different page are removed. The order of query parameters is kept, because it may
//! matter to a site.

use comity_core::domain::Domain;
use url::Url;
use xxhash_rust::xxh3::xxh3_64;

/// `url` without fragment, user name, password and tracking parameters.
pub fn normalized(url: &Url) -> String {
    let mut url = url.clone();
    url.set_fragment(None);
    // This only fails for URLs that can't have a user name.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    if let Some(query) = url.query() {
        let kept: Vec<&str> = query.split('&').filter(|pair| !is_tracking(pair)).collect();
        let kept = kept.join("&");
        url.set_query(Some(kept.as_str()).filter(|query| !query.is_empty()));
    }
    url.into()
}

/// A key for a page, whichever source it was found via: a digest of its normalized URL, user name and password. It is
/// cryptographic, so that nobody can construct another URL with the same key.
pub fn page_key(url: &Url) -> [u8; 16] {
    let mut digest = ring::digest::Context::new(&ring::digest::SHA256);
    for part in [url.username(), url.password().unwrap_or_default(), &normalized(url)] {
        digest.update(&(part.len() as u64).to_le_bytes());
        digest.update(part.as_bytes());
    }
    let mut key = [0; 16];
    key.iter_mut().zip(digest.finish().as_ref()).for_each(|(to, from)| *to = *from);
    key
}

/// `guid:` and the publisher's own identifier for the item.
pub(super) fn by_guid(guid: &str) -> String {
    limited(format!("guid:{guid}"))
}

/// `link:` and the normalized link.
pub(super) fn by_link(url: &Url) -> String {
    limited(format!("link:{}", normalized(url)))
}

/// Parses a URL that can be fetched: http or https, with a valid host, and not absurdly long.
pub(super) fn fetchable(text: &str, base: Option<&Url>) -> Option<Url> {
    let text = text.trim();
    if text.is_empty() || text.len() > URL_MAX {
        return None;
    }
    let url = Url::options().base_url(base).parse(text).ok()?;
    (Domain::of(&url).is_some() && url.as_str().len() <= URL_MAX * 3).then_some(url)
}

/// Shortens a long identity to its start, which is readable, and a hash of all of it, which keeps it unique.
fn limited(identity: String) -> String {
    if identity.len() <= IDENTITY_MAX {
        return identity;
    }
    let hash = format!("…{:016x}", xxh3_64(identity.as_bytes()));
    let end = identity.floor_char_boundary(IDENTITY_MAX - hash.len());
    format!("{}{hash}", identity.get(..end).unwrap_or_default())
}

fn is_tracking(pair: &str) -> bool {
    let name = pair.split('=').next().unwrap_or_default();
    let utm = name.get(..4).is_some_and(|start| start.eq_ignore_ascii_case("utm_"));
    utm || name.eq_ignore_ascii_case("fbclid") || name.eq_ignore_ascii_case("gclid")
}

const IDENTITY_MAX: usize = 500;
/// Longer links are mistakes or malicious, and resolving many of them would take too long.
const URL_MAX: usize = 8 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fragments_credentials_and_tracking_parameters_are_dropped() {
        for (url, expected) in [
            ("https://a.example/x?b=2&a=1#top", "https://a.example/x?b=2&a=1"),
            ("https://u:p@a.example:443/", "https://a.example/"),
            ("http://a.example:8080", "http://a.example:8080/"),
            ("https://a.example/?utm_source=x&UTM_medium=y&id=1&fbclid=2&gclid=3", "https://a.example/?id=1"),
            ("https://a.example/?utm_source=x", "https://a.example/"),
            ("https://a.example/?utmost=1&gclidx=2&a", "https://a.example/?utmost=1&gclidx=2&a"),
            ("https://a.example/?é=ü", "https://a.example/?%C3%A9=%C3%BC"),
        ] {
            assert_eq!(normalized(&Url::parse(url).unwrap()), expected);
        }
        assert_eq!(normalized(&Url::parse("mailto:a@b.example").unwrap()), "mailto:a@b.example");
    }

    #[test]
    fn long_identities_are_shortened_and_stay_unique() {
        let long = |end: &str| by_guid(&format!("{}{end}", "é".repeat(400)));
        assert!(long("a").len() <= IDENTITY_MAX);
        assert_ne!(long("a"), long("b"));
        assert_eq!(long("a"), long("a"));
        assert_eq!(by_guid(&"x".repeat(495)).len(), 500);
        assert!(by_guid(&"x".repeat(496)).contains('…'));
    }

    #[test]
    fn only_http_and_https_urls_can_be_fetched() {
        let base = Url::parse("https://a.example/dir/feed.xml").unwrap();
        let resolved = |text: &str| fetchable(text, Some(&base)).map(String::from);
        assert_eq!(resolved(" b?c ").as_deref(), Some("https://a.example/dir/b?c"));
        assert_eq!(resolved("//b.example/x").as_deref(), Some("https://b.example/x"));
        for text in
            ["", " ", "javascript:alert(1)", "mailto:a@b.example", "urn:uuid:1", "http://", "file:///etc"]
        {
            assert_eq!(resolved(text), None, "{text}");
        }
        assert_eq!(resolved(&format!("/{}", "x".repeat(URL_MAX))), None);
        assert_eq!(fetchable("b", None), None);
    }
}
