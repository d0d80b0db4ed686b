//! Where an answer leads, and who leads there.

use comity_core::domain::Domain;
use comity_store::tasks::{Lead, Onward, origin_of};
use http::header::LOCATION;
use http::{HeaderMap, Method};
use url::Url;

use crate::request::Trust;

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

/// Whether the operator listed, in the same job, the origin that a redirect leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Lists {
    /// That very origin.
    pub(crate) exactly: bool,
    /// The same host by the other of http and https.
    pub(crate) by_other_scheme: bool,
}

/// Who leads to an address, and how far it is trusted with credentials.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Footing {
    pub(crate) lead: Lead,
    pub(crate) trust: Trust,
}

/// The origins that [`Lists`] speaks of.
pub(crate) fn origins(next: &Url) -> Vec<String> {
    let exactly = origin_of(next.as_str()).into_owned();
    let other = match (next.port(), exactly.strip_prefix("http://"), exactly.strip_prefix("https://")) {
        (None, Some(host), _) => Some(format!("https://{host}")),
        (None, None, Some(host)) => Some(format!("http://{host}")),
        _ => None,
    };
    std::iter::once(exactly).chain(other).collect()
}

/// On which footing `next` is asked for, after redirects that began at `listed` (B76, B86).
pub(crate) fn footing(listed: &Url, first: Lead, next: &Url, lists: Lists) -> Footing {
    let same = lead(listed, first, next) == Lead::Listed;
    if first == Lead::Remote {
        return Footing { lead: Lead::Remote, trust: Trust::Led };
    }
    let is_listed = same || lists.exactly || lists.by_other_scheme;
    let to_https = next.scheme() == "https";
    let down = listed.scheme() == "https" && !to_https;
    let covered = same || lists.exactly || lists.by_other_scheme && to_https;
    Footing {
        lead: if is_listed { Lead::Listed } else { Lead::Remote },
        trust: if covered && !down { Trust::Listed } else { Trust::Led },
    }
}

/// What becomes of a method and a body after a redirect; `None` when they would have to be sent to somebody they were not
/// meant for.
pub(crate) fn onward(method: &Method, status: u16, footing: Footing) -> Option<Onward> {
    let reads = *method == Method::GET || *method == Method::HEAD;
    let to_get = match status {
        303 => !reads,
        301 | 302 => *method == Method::POST,
        _ => false,
    };
    match footing.trust {
        _ if to_get => Some(Onward::Dropped),
        Trust::Listed => Some(Onward::Kept),
        _ => None,
    }
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

    /// B76, B86
    #[test]
    fn only_listed_origins_get_what_was_given_for_the_job() {
        let no = Lists::default();
        let exactly = Lists { exactly: true, ..no };
        let other = Lists { by_other_scheme: true, ..no };
        let on = |from: &str, to: &str, lists| {
            let Footing { lead, trust } = footing(&url(from), Lead::Listed, &url(to), lists);
            (lead, trust)
        };
        let (http, https) = ("http://a.example/", "https://a.example/");
        assert_eq!(on(https, "https://a.example/b", no), (Lead::Listed, Trust::Listed));
        assert_eq!(on(http, https, no), (Lead::Listed, Trust::Listed));
        assert_eq!(on(https, http, no), (Lead::Listed, Trust::Led), "never down to http");
        assert_eq!(on(https, http, exactly), (Lead::Listed, Trust::Led));
        assert_eq!(on(https, "https://www.a.example/", no), (Lead::Remote, Trust::Led));
        assert_eq!(on(https, "https://a.example:8443/", no), (Lead::Remote, Trust::Led));
        assert_eq!(on(https, "https://b.example/", exactly), (Lead::Listed, Trust::Listed));
        assert_eq!(on(http, "https://b.example/", other), (Lead::Listed, Trust::Listed));
        assert_eq!(on(http, "http://b.example/", other), (Lead::Listed, Trust::Led));
        let remote = footing(&url(https), Lead::Remote, &url(https), exactly);
        assert_eq!(remote, Footing { lead: Lead::Remote, trust: Trust::Led });
        assert_eq!(origins(&url("http://me@b.example/x")), ["http://b.example", "https://b.example"]);
        assert_eq!(origins(&url("https://b.example:1/x")), ["https://b.example:1"]);
    }

    #[test]
    fn what_was_posted_goes_on_as_in_browsers_but_to_nobody_else() {
        let on = |trust| Footing { lead: Lead::Listed, trust };
        let (listed, led) = (on(Trust::Listed), on(Trust::Led));
        for status in [301, 302, 303] {
            assert_eq!(onward(&Method::POST, status, led), Some(Onward::Dropped), "{status}");
        }
        for status in [307, 308] {
            assert_eq!(onward(&Method::POST, status, listed), Some(Onward::Kept), "{status}");
            assert_eq!(onward(&Method::POST, status, led), None, "{status}");
        }
        assert_eq!(onward(&Method::PUT, 302, listed), Some(Onward::Kept));
        assert_eq!(onward(&Method::PUT, 303, led), Some(Onward::Dropped));
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
