//! Where a redirect leads. Whether it may be followed, and what is sent along, is decided by those who follow it.

use comity_core::domain::Domain;
use http::HeaderMap;
use http::header::LOCATION;
use url::Url;

/// Where a redirect leads.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Redirect {
    /// To this URL.
    To(Url),
    /// To something that isn't a valid http or https URL.
    Invalid,
}

/// Where a response redirects to, if it is a redirect.
pub(crate) fn next_hop(url: &Url, status: u16, headers: &HeaderMap) -> Option<Redirect> {
    if !matches!(status, 301 | 302 | 303 | 307 | 308) {
        return None;
    }
    let location = headers.get(LOCATION)?;
    let joined = std::str::from_utf8(location.as_bytes()).ok().and_then(|text| url.join(text.trim()).ok());
    Some(match joined {
        Some(mut next) if Domain::of(&next).is_some() => {
            next.set_fragment(None);
            Redirect::To(next)
        }
        _ => Redirect::Invalid,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap()
    }

    #[test]
    fn only_redirects_to_http_and_https_are_valid() {
        let hop = |status, location: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(LOCATION, location.parse().unwrap());
            next_hop(&url("http://example.org/a/b"), status, &headers)
        };
        assert_eq!(hop(302, "../c#x"), Some(Redirect::To(url("http://example.org/c"))));
        assert_eq!(hop(301, "//other.example/"), Some(Redirect::To(url("http://other.example/"))));
        assert_eq!(hop(308, "file:///etc/passwd"), Some(Redirect::Invalid));
        assert_eq!(hop(307, "http://"), Some(Redirect::Invalid));
        assert_eq!(
            hop(302, "http://victim../"),
            Some(Redirect::Invalid),
            "a name that cannot be read back (B82)"
        );
        assert_eq!(hop(302, "http://victim:0/"), Some(Redirect::Invalid));
        assert_eq!((hop(200, "/c"), hop(304, "/c")), (None, None));
        assert_eq!(next_hop(&url("http://example.org/"), 302, &HeaderMap::new()), None);
    }
}
