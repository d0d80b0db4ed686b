//! Redirects: how far their targets are trusted, and which parts of the request may be sent along. Where they lead is
//! read in [`crate::redirect`].

use comity_core::task::JobId;
use comity_store::Store;
use comity_store::tasks::{Lead, RedirectBody, origin_of};
use http::Method;
use url::Url;

use crate::request::Trust;

/// Where `next` comes from: the operator, if it is exactly the listed host, and otherwise a remote response.
pub(crate) fn redirected_lead(listed: &Url, first: Lead, next: &Url) -> Lead {
    let place = |url: &Url| (url.host_str().map(str::to_owned), url.port_or_known_default());
    let host = |url: &Url| url.host_str().map(str::to_owned);
    // http and https on the same host count as the same place; another port doesn't.
    let same = place(listed) == place(next)
        || host(listed) == host(next) && listed.port().is_none() && next.port().is_none();
    if first == Lead::Listed && same { Lead::Listed } else { Lead::Remote }
}

/// Whether the operator listed the origin of a redirect target in the same job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct OriginListed {
    /// Exactly this origin.
    pub(crate) exact: bool,
    /// The same host with the other scheme (http or https).
    pub(crate) other_scheme: bool,
}

/// Where a URL comes from, and which credentials it may therefore receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Provenance {
    pub(crate) lead: Lead,
    pub(crate) trust: Trust,
}

/// The origins to look up for [`OriginListed`].
fn origins_to_check(next: &Url) -> Vec<String> {
    let exact = origin_of(next.as_str()).into_owned();
    let other = match (next.port(), exact.strip_prefix("http://"), exact.strip_prefix("https://")) {
        (None, Some(host), _) => Some(format!("https://{host}")),
        (None, None, Some(host)) => Some(format!("http://{host}")),
        _ => None,
    };
    std::iter::once(exact).chain(other).collect()
}

/// Whether the operator listed the origin of `url` in this job. If the store can't answer, it counts as not listed.
pub(crate) async fn origin_listed(store: &dyn Store, job: JobId, url: &Url) -> OriginListed {
    let found = store.lists(job, origins_to_check(url)).await.unwrap_or_default();
    let nth = |nth: usize| found.get(nth).copied().unwrap_or(false);
    OriginListed { exact: nth(0), other_scheme: nth(1) }
}

/// The provenance of `next`, reached by redirects that started at `listed`.
pub(crate) fn provenance(listed: &Url, first: Lead, next: &Url, lists: OriginListed) -> Provenance {
    let same = redirected_lead(listed, first, next) == Lead::Listed;
    if first == Lead::Remote {
        return Provenance { lead: Lead::Remote, trust: Trust::Remote };
    }
    let is_listed = same || lists.exact || lists.other_scheme;
    let to_https = next.scheme() == "https";
    let down = listed.scheme() == "https" && !to_https;
    let covered = same || lists.exact || lists.other_scheme && to_https;
    Provenance {
        lead: if is_listed { Lead::Listed } else { Lead::Remote },
        trust: if covered && !down { Trust::Listed } else { Trust::Remote },
    }
}

/// What happens to a request's method and body after a redirect. `None` if they would have to be sent to a target that
/// must not receive them.
pub(crate) fn body_after_redirect(
    method: &Method,
    status: u16,
    provenance: Provenance,
) -> Option<RedirectBody> {
    let reads = *method == Method::GET || *method == Method::HEAD;
    let to_get = match status {
        303 => !reads,
        301 | 302 => *method == Method::POST,
        _ => false,
    };
    match provenance.trust {
        _ if to_get => Some(RedirectBody::Dropped),
        Trust::Listed => Some(RedirectBody::Kept),
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
            assert_eq!(redirected_lead(&listed, Lead::Listed, &url(next)), expected, "{next}");
            assert_eq!(redirected_lead(&listed, Lead::Remote, &url(next)), Lead::Remote, "{next}");
        }
        assert_eq!(
            redirected_lead(&url("http://127.0.0.1:80/"), Lead::Listed, &url("http://127.0.0.1:8080/")),
            Lead::Remote
        );
    }

    /// B76, B86
    #[test]
    fn only_listed_origins_receive_the_credentials_of_a_job() {
        let no = OriginListed::default();
        let exact = OriginListed { exact: true, ..no };
        let other = OriginListed { other_scheme: true, ..no };
        let on = |from: &str, to: &str, lists| {
            let Provenance { lead, trust } = provenance(&url(from), Lead::Listed, &url(to), lists);
            (lead, trust)
        };
        let (http, https) = ("http://a.example/", "https://a.example/");
        assert_eq!(on(https, "https://a.example/b", no), (Lead::Listed, Trust::Listed));
        assert_eq!(on(http, https, no), (Lead::Listed, Trust::Listed));
        assert_eq!(on(https, http, no), (Lead::Listed, Trust::Remote), "never down to http");
        assert_eq!(on(https, http, exact), (Lead::Listed, Trust::Remote));
        assert_eq!(on(https, "https://www.a.example/", no), (Lead::Remote, Trust::Remote));
        assert_eq!(on(https, "https://a.example:8443/", no), (Lead::Remote, Trust::Remote));
        assert_eq!(on(https, "https://b.example/", exact), (Lead::Listed, Trust::Listed));
        assert_eq!(on(http, "https://b.example/", other), (Lead::Listed, Trust::Listed));
        assert_eq!(on(http, "http://b.example/", other), (Lead::Listed, Trust::Remote));
        let remote = provenance(&url(https), Lead::Remote, &url(https), exact);
        assert_eq!(remote, Provenance { lead: Lead::Remote, trust: Trust::Remote });
        assert_eq!(
            origins_to_check(&url("http://me@b.example/x")),
            ["http://b.example", "https://b.example"]
        );
        assert_eq!(origins_to_check(&url("https://b.example:1/x")), ["https://b.example:1"]);
    }

    #[test]
    fn a_post_is_redirected_as_in_browsers_but_never_to_another_host() {
        let on = |trust| Provenance { lead: Lead::Listed, trust };
        let (listed, led) = (on(Trust::Listed), on(Trust::Remote));
        for status in [301, 302, 303] {
            assert_eq!(
                body_after_redirect(&Method::POST, status, led),
                Some(RedirectBody::Dropped),
                "{status}"
            );
        }
        for status in [307, 308] {
            assert_eq!(
                body_after_redirect(&Method::POST, status, listed),
                Some(RedirectBody::Kept),
                "{status}"
            );
            assert_eq!(body_after_redirect(&Method::POST, status, led), None, "{status}");
        }
        assert_eq!(body_after_redirect(&Method::PUT, 302, listed), Some(RedirectBody::Kept));
        assert_eq!(body_after_redirect(&Method::PUT, 303, led), Some(RedirectBody::Dropped));
    }
}
