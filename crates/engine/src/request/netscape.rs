//! The cookie file format of browsers and curl: one cookie per line, in seven tab-separated columns.

use super::cookie::Cookie;

/// Parses a file. The error has the line number, but never the content.
pub(super) fn read(text: &str) -> Result<Vec<Cookie>, String> {
    let mut cookies = Vec::new();
    for (nth, line) in text.trim_start_matches('\u{feff}').lines().enumerate() {
        let (http_only, rest) = match line.strip_prefix("#HttpOnly_") {
            Some(rest) => (true, rest),
            None => (false, line),
        };
        if rest.trim().is_empty() || !http_only && rest.starts_with('#') {
            continue;
        }
        let cookie = cookie(rest, http_only);
        cookies.push(cookie.ok_or_else(|| {
            format!("line {}: expected seven tab-separated columns, as written by browsers and curl", nth + 1)
        })?);
    }
    Ok(cookies)
}

fn cookie(line: &str, http_only: bool) -> Option<Cookie> {
    let mut columns = line.trim_end_matches('\r').split('\t');
    let (domain, subdomains) = (columns.next()?, flag(columns.next()?)?);
    let (path, secure) = (columns.next()?, flag(columns.next()?)?);
    let expires: f64 = columns.next()?.trim().parse().ok()?;
    let (name, value) = (columns.next()?, columns.next().unwrap_or_default());
    let bad = |text: &str| text.bytes().any(|byte| byte.is_ascii_control() || byte == b';');
    if name.is_empty() || bad(name) || bad(value) || columns.next().is_some() {
        return None;
    }
    let host = domain.strip_prefix('.').unwrap_or(domain).to_ascii_lowercase();
    Some(Cookie {
        name: name.to_owned(),
        value: value.to_owned(),
        host_only: !subdomains && !domain.starts_with('.'),
        domain: host,
        path: if path.starts_with('/') { path.to_owned() } else { "/".to_owned() },
        secure,
        http_only,
        // Browsers write fractions, and 0 for session cookies.
        expires: (expires > 0.0).then_some(expires as i64),
    })
}

fn flag(text: &str) -> Option<bool> {
    match text.trim().to_ascii_uppercase().as_str() {
        "TRUE" => Some(true),
        "FALSE" => Some(false),
        _ => None,
    }
}

/// Writes a file.
pub(super) fn write<'a>(cookies: impl Iterator<Item = &'a Cookie>) -> String {
    let mut text = HEAD.to_owned();
    for cookie in cookies {
        let word = |flag: bool| if flag { "TRUE" } else { "FALSE" };
        let Cookie { name, value, domain, path, .. } = cookie;
        let http_only = if cookie.http_only { "#HttpOnly_" } else { "" };
        let dot = if cookie.host_only { "" } else { "." };
        let (subdomains, secure) = (word(!cookie.host_only), word(cookie.secure));
        let expires = cookie.expires.unwrap_or(0);
        text += &format!(
            "{http_only}{dot}{domain}\t{subdomains}\t{path}\t{secure}\t{expires}\t{name}\t{value}\n"
        );
    }
    text
}

const HEAD: &str = "# Netscape HTTP Cookie File\n# Written by comity; contains secrets.\n\n";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_written_file_is_read_back() {
        let text = "# Netscape HTTP Cookie File\r\n\r\n.example.org\tTRUE\t/\tTRUE\t1900000000.5\tid\ta=b\r\n\
            #HttpOnly_example.org\tFALSE\t/x\tFALSE\t0\tsession\t\n";
        let cookies = read(text).unwrap();
        assert_eq!((cookies[0].value.as_str(), cookies[0].expires), ("a=b", Some(1_900_000_000)));
        assert!(!cookies[0].host_only && cookies[0].secure && !cookies[0].http_only);
        assert!(cookies[1].host_only && cookies[1].http_only && cookies[1].expires.is_none());
        assert_eq!(read(&write(cookies.iter())).unwrap(), cookies);
    }

    /// B75
    #[test]
    fn an_invalid_line_is_reported_by_number_only() {
        let error = read("# x\nsecret stuff\n").unwrap_err();
        assert!(
            error.starts_with("line 2: expected seven tab-separated columns") && !error.contains("secret"),
            "{error}"
        );
        for wrong in
            ["a\tTRUE\t/\tTRUE\tsoon\tn\tv", "a\tTRUE\t/\tTRUE\t0\tn\tv\tx", "a\tTRUE\t/\tTRUE\t0\t\tv"]
        {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
