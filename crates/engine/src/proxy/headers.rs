//! Which headers pass: hop-by-hop headers and `Alt-Svc` don't, in either direction.

use http::header::{
    ALT_SVC, CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, HOST, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE,
    TRAILER, TRANSFER_ENCODING, UPGRADE, VIA,
};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Version};

/// The headers of a request as they are sent on.
pub(super) fn of_request(
    headers: &HeaderMap,
    version: Version,
    via: &str,
    upgrades: bool,
) -> Vec<(HeaderName, HeaderValue)> {
    let named = named_by_connection(headers);
    let passes = |name: &HeaderName| {
        !is_hop_by_hop(name) && !named.contains(name) && ![HOST, EXPECT, VIA].contains(name)
    };
    let mut all: Vec<_> = headers
        .iter()
        .filter(|(name, _)| passes(name))
        .filter(|(name, _)| version != Version::HTTP_2 || *name != COOKIE)
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    if version == Version::HTTP_2 {
        // HTTP/2 splits cookies into several lines, which HTTP/1.1 doesn't allow.
        let crumbs: Vec<&[u8]> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
        let joined = HeaderValue::from_bytes(&crumbs.join(&b"; "[..]));
        all.extend(joined.ok().filter(|_| !crumbs.is_empty()).map(|value| (COOKIE, value)));
    }
    let hops = headers.get_all(VIA).iter().filter_map(|value| value.to_str().ok()).map(str::to_owned);
    let hops: Vec<String> = hops.chain([format!("1.1 {via}")]).collect();
    all.extend(HeaderValue::try_from(hops.join(", ")).ok().map(|value| (VIA, value)));
    if upgrades {
        all.extend(headers.get(UPGRADE).map(|value| (UPGRADE, value.clone())));
        all.push((CONNECTION, HeaderValue::from_static("Upgrade")));
    }
    all
}

/// The headers of a response as they are passed on.
pub(super) fn of_response(headers: &HeaderMap, status: StatusCode) -> HeaderMap {
    let named = named_by_connection(headers);
    let mut passed = HeaderMap::with_capacity(headers.len() + 2);
    for (name, value) in headers {
        let is_ours = name.as_str().starts_with("comity-");
        if !is_hop_by_hop(name) && !named.contains(name) && *name != ALT_SVC && !is_ours {
            passed.append(name, value.clone());
        }
    }
    if status == StatusCode::SWITCHING_PROTOCOLS {
        passed.remove(CONTENT_LENGTH);
        passed.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.get(UPGRADE).map(|value| passed.insert(UPGRADE, value.clone()));
    }
    passed
}

/// Whether a request has been here before.
pub(super) fn has_passed(headers: &HeaderMap, via: &str) -> bool {
    headers.get_all(VIA).iter().any(|value| value.to_str().is_ok_and(|value| value.contains(via)))
}

/// Whether a request asks to switch to another protocol.
pub(super) fn upgrades(headers: &HeaderMap, version: Version) -> bool {
    version == Version::HTTP_11
        && headers.contains_key(UPGRADE)
        && named_by_connection(headers).contains(&UPGRADE)
}

fn named_by_connection(headers: &HeaderMap) -> Vec<HeaderName> {
    let values = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    let names = values.flat_map(|value| value.split(',')).filter_map(|name| name.trim().parse().ok());
    // Naming these as hop-by-hop would make a request ambiguous.
    names.filter(|name| ![CONTENT_LENGTH, HOST].contains(name)).collect()
}

fn is_hop_by_hop(name: &HeaderName) -> bool {
    [CONNECTION, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE]
        .contains(name)
        || matches!(name.as_str(), "keep-alive" | "proxy-connection" | "http2-settings" | "alt-used")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let line = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        lines.iter().map(line).collect()
    }

    #[test]
    fn hop_by_hop_headers_end_here() {
        let given = headers(&[
            ("connection", "keep-alive, X-Private, content-length"),
            ("x-private", "1"),
            ("keep-alive", "timeout=5"),
            ("proxy-authorization", "Basic secret"),
            ("te", "trailers"),
            ("expect", "100-continue"),
            ("host", "a.example"),
            ("content-length", "3"),
            ("accept", "*/*"),
            ("x-twice", "1"),
            ("x-twice", "2"),
        ]);
        let sent = of_request(&given, Version::HTTP_11, "comity-1", false);
        let sent: Vec<String> =
            sent.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect();
        assert_eq!(
            sent,
            ["content-length: 3", "accept: */*", "x-twice: 1", "x-twice: 2", "via: 1.1 comity-1"]
        );
        let given = headers(&[
            ("alt-svc", "h3=\":443\""),
            ("connection", "close"),
            ("comity-waited", "5"),
            ("etag", "x"),
        ]);
        assert_eq!(of_response(&given, StatusCode::OK), headers(&[("etag", "x")]));
    }

    #[test]
    fn cookies_of_http2_become_one_line() {
        let given = headers(&[("cookie", "a=1"), ("cookie", "b=2")]);
        let sent = of_request(&given, Version::HTTP_2, "comity-1", false);
        assert_eq!(sent[0], (COOKIE, HeaderValue::from_static("a=1; b=2")));
    }

    #[test]
    fn upgrades_need_both_headers() {
        let both = headers(&[("connection", "keep-alive, Upgrade"), ("upgrade", "websocket")]);
        assert!(upgrades(&both, Version::HTTP_11) && !upgrades(&both, Version::HTTP_10));
        assert!(!upgrades(&headers(&[("upgrade", "websocket")]), Version::HTTP_11));
    }
}
