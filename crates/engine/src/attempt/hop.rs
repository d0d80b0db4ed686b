//! Where an answer leads, and who leads there.

use comity_core::domain::Domain;
use comity_store::tasks::Lead;
use http::HeaderMap;
use http::header::LOCATION;
use url::Url;

/// Where an answer leads.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// There.
    To(Url),
    /// Where nobody may follow.
    Astray,
}

/// Where an answer leads, if it is a redirect.
pub(crate) fn next_hop(url: &Url, status: u16, headers: &HeaderMap) -> Option<Next> {
    if !matches!(status, 301 | 302 | 303 | 307 | 308) {
        return None;
    }
    let location = headers.get(LOCATION)?;
    let joined = std::str::from_utf8(location.as_bytes()).ok().and_then(|text| url.join(text.trim()).ok());
    Some(match joined {
        Some(mut next) if Domain::of(&next).is_some() => {
            next.set_fragment(None);
            Next::To(next)
        }
        _ => Next::Astray,
    })
}

/// Who leads to `next`: the operator, if it is the very host that was listed (B76).
pub(crate) fn lead(listed: &Url, first: Lead, next: &Url) -> Lead {
    let place = |url: &Url| (url.host_str().map(str::to_owned), url.port_or_known_default());
    let host = |url: &Url| url.host_str().map(str::to_owned);
    // From http to https of the same host is the same place; another port of it is not.
    let same = place(listed) == place(next)
        || host(listed) == host(next) && listed.port().is_none() && next.port().is_none();
    if first == Lead::Listed && same { Lead::Listed } else { Lead::Remote }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap()
    }

    /// B76
    #[test]
    fn only_the_listed_host_itself_stays_listed() {
        let listed = url("http://example.org/a");
        for (next, expected) in [
            ("http://example.org/b", Lead::Listed),
            ("https://example.org/", Lead::Listed),
            ("http://example.org:8080/", Lead::Remote),
            ("http://www.example.org/", Lead::Remote),
            ("http://127.0.0.1/", Lead::Remote),
        ] {
            assert_eq!(lead(&listed, Lead::Listed, &url(next)), expected, "{next}");
            assert_eq!(lead(&listed, Lead::Remote, &url(next)), Lead::Remote, "{next}");
        }
        assert_eq!(
            lead(&url("http://127.0.0.1:80/"), Lead::Listed, &url("http://127.0.0.1:8080/")),
            Lead::Remote
        );
    }

    #[test]
    fn redirects_lead_to_http_and_https_only() {
        let hop = |status, location: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(LOCATION, location.parse().unwrap());
            next_hop(&url("http://example.org/a/b"), status, &headers)
        };
        assert_eq!(hop(302, "../c#x"), Some(Next::To(url("http://example.org/c"))));
        assert_eq!(hop(301, "//other.example/"), Some(Next::To(url("http://other.example/"))));
        assert_eq!(hop(308, "file:///etc/passwd"), Some(Next::Astray));
        assert_eq!(hop(307, "http://"), Some(Next::Astray));
        assert_eq!(hop(302, "http://victim../"), Some(Next::Astray), "a name that cannot be read back (B82)");
        assert_eq!(hop(302, "http://victim:0/"), Some(Next::Astray));
        assert_eq!((hop(200, "/c"), hop(304, "/c")), (None, None));
        assert_eq!(next_hop(&url("http://example.org/"), 302, &HeaderMap::new()), None);
    }
}
