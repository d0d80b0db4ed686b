//! The gateway: `http://127.0.0.1:7879/https://example.org/page` fetches that page, without a CA and without any setting
//! of the client.
//!
//! Web pages in somebody's browser must not be able to use it: the Host header must name this machine, nothing may come
//! from another site, no cookies are passed either way, and pages are displayed in a sandbox.

use std::net::IpAddr;

use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_ORIGIN, AUTHORIZATION, CONTENT_SECURITY_POLICY,
    CONTENT_SECURITY_POLICY_REPORT_ONLY, COOKIE, HOST, LOCATION, ORIGIN, REFERER, SET_COOKIE,
    STRICT_TRANSPORT_SECURITY, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode};
use url::Url;

use super::answer::Refused;
use super::service::bad_request;

/// The URL that a request asks for.
pub(super) fn url<B>(request: &Request<B>) -> Result<Url, Refused> {
    check(request.headers())?;
    let text = request.uri().path_and_query().map(|path| path.as_str()).unwrap_or_default();
    let url =
        text.strip_prefix('/').filter(|text| text.starts_with("http://") || text.starts_with("https://"));
    let Some(url) = url else {
        let detail = "this is a proxy: set it as the proxy of a program, or add a URL to its address, such as \
                      http://127.0.0.1:7879/https://example.org/";
        return Err(Refused::new(StatusCode::NOT_FOUND, "not-found", detail));
    };
    if ![Method::GET, Method::HEAD].contains(request.method()) {
        let detail = "the gateway answers GET and HEAD only";
        return Err(Refused::new(StatusCode::METHOD_NOT_ALLOWED, "method", detail));
    }
    let mut url = Url::parse(url).map_err(|_| bad_request("expected an http or https URL with a host"))?;
    let _ = (url.set_username(""), url.set_password(None));
    Ok(url)
}

/// Refuses requests that a web page may have caused.
fn check(headers: &HeaderMap) -> Result<(), Refused> {
    let foreign = |detail| Err(Refused::new(StatusCode::FORBIDDEN, "foreign", detail));
    let mut hosts = headers.get_all(HOST).iter();
    let host = match (hosts.next(), hosts.next()) {
        (Some(host), None) => host.to_str().unwrap_or_default(),
        _ => "",
    };
    if !is_this_machine(host) {
        return foreign("the Host header does not name this machine");
    }
    let mut sites = headers.get_all(SEC_FETCH_SITE).iter();
    if headers.contains_key(ORIGIN) || sites.any(|site| site.as_bytes() != b"none") {
        return foreign("requests from web pages are refused");
    }
    Ok(())
}

fn is_this_machine(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let address = name.trim_matches(['[', ']']).parse::<IpAddr>();
    name.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

/// Removes what a browser adds on its own.
pub(super) fn strip(headers: &mut Vec<(HeaderName, HeaderValue)>) {
    headers.retain(|(name, _)| {
        ![COOKIE, AUTHORIZATION, ORIGIN, REFERER].contains(name) && !name.as_str().starts_with("sec-fetch-")
    });
}

/// Changes the response's headers, so that the page can do nothing to others on this address.
pub(super) fn adapt(headers: &mut HeaderMap, url: &Url) {
    for name in [
        SET_COOKIE,
        STRICT_TRANSPORT_SECURITY,
        ACCESS_CONTROL_ALLOW_ORIGIN,
        ACCESS_CONTROL_ALLOW_CREDENTIALS,
        CONTENT_SECURITY_POLICY_REPORT_ONLY,
        HeaderName::from_static("set-cookie2"),
        HeaderName::from_static("clear-site-data"),
        HeaderName::from_static("service-worker-allowed"),
        HeaderName::from_static("refresh"),
    ] {
        headers.remove(name);
    }
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert("cross-origin-resource-policy", HeaderValue::from_static("same-origin"));
    headers.insert("referrer-policy", HeaderValue::from_static("no-referrer"));
    let target = headers.get(LOCATION).and_then(|to| url.join(to.to_str().ok()?).ok());
    if let Some(value) = target.and_then(|to| HeaderValue::try_from(format!("/{to}")).ok()) {
        headers.insert(LOCATION, value);
    }
}

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(path: &str, lines: &[(&str, &str)]) -> Result<String, StatusCode> {
        let mut request = Request::builder().uri(path);
        for (name, value) in lines {
            request = request.header(*name, *value);
        }
        url(&request.body(()).unwrap()).map(String::from).map_err(|refused| refused.status)
    }

    #[test]
    fn only_programs_on_this_machine_can_use_the_gateway() {
        let page = "/https://example.org/page?q=/x";
        let ours = ("host", "127.0.0.1:7879");
        assert_eq!(asked(page, &[ours]).unwrap(), "https://example.org/page?q=/x");
        assert_eq!(asked(page, &[("host", "localhost")]).unwrap(), "https://example.org/page?q=/x");
        assert_eq!(
            asked(page, &[("host", "[::1]:7879"), ("sec-fetch-site", "none")]).unwrap(),
            "https://example.org/page?q=/x"
        );
        assert_eq!(asked("/https://me:pass@a.example/", &[ours]).unwrap(), "https://a.example/");
        for lines in [
            &[("host", "evil.example:7879")][..],
            &[],
            &[ours, ours],
            &[ours, ("sec-fetch-site", "cross-site")],
            &[ours, ("sec-fetch-site", "same-origin")],
            &[ours, ("origin", "null")],
        ] {
            assert_eq!(asked(page, lines), Err(StatusCode::FORBIDDEN), "{lines:?}");
        }
        assert_eq!(asked("/favicon.ico", &[ours]), Err(StatusCode::NOT_FOUND));
        assert_eq!(asked("/file:///etc/passwd", &[ours]), Err(StatusCode::NOT_FOUND));
    }

    #[test]
    fn pages_get_no_cookies_and_are_displayed_in_a_sandbox() {
        let mut headers = HeaderMap::new();
        headers.insert(SET_COOKIE, HeaderValue::from_static("a=1"));
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
        headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static("default-src *"));
        headers.insert(LOCATION, HeaderValue::from_static("/next"));
        adapt(&mut headers, &Url::parse("https://a.example/page").unwrap());
        assert_eq!(headers[CONTENT_SECURITY_POLICY], "sandbox");
        assert_eq!(headers[LOCATION], "/https://a.example/next");
        assert!(!headers.contains_key(SET_COOKIE) && !headers.contains_key(ACCESS_CONTROL_ALLOW_ORIGIN));
    }
}
