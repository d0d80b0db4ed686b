//! robots.txt: the first line of the input is the path to check, and the rest is the file.

use comity::robots::{BODY_MAX, CRAWL_DELAY_MAX, Robots};

/// Neither changes to the file that do not affect its meaning nor the spelling of the path change the answer.
pub fn robots(data: &[u8]) {
    let (path, body) = match data.iter().position(|octet| *octet == b'\n') {
        Some(end) => (&data[..end], &data[end + 1..]),
        None => (data, &data[..0]),
    };
    let path = format!("/{}", String::from_utf8_lossy(path));
    let file = Robots::parse(body, "comity");
    assert!(file.allows("/robots.txt"));
    assert!(file.crawl_delay().is_none_or(|delay| delay <= CRAWL_DELAY_MAX));
    let allowed = file.allows(&path);
    assert_eq!(file.allows(&rewritten(&path)), allowed, "percent-encoding");
    if body.len() * 20 > BODY_MAX || body.starts_with(b"\xef\xbb\xbf") {
        return;
    }
    // Neither unknown lines nor other line endings split a group.
    let noisy = body.split(|octet| *octet == b'\n').collect::<Vec<_>>().join(&b"\nNoindex: /\r\nzz\n"[..]);
    assert_eq!(Robots::parse(&noisy, "comity"), file, "unknown lines");
    let ended = body.split(|octet| *octet == b'\n').collect::<Vec<_>>().join(&b"\r"[..]);
    assert_eq!(Robots::parse(&ended, "comity"), file, "line ends");
    // Groups for other user agents do not concern us, before or after ours.
    let others =
        [b"User-agent: zz\nDisallow: /\n", body, b"\nDisallow:\nUser-agent: zz\nDisallow: /"].concat();
    assert_eq!(Robots::parse(&others, "comity"), file, "other groups");
    // If everything is disallowed, only robots.txt itself is allowed, and that is always allowed.
    assert!(allowed || !Robots::disallow_all().allows(&path));
}

/// The same path with every letter and digit percent-encoded, and hex digits in the other case.
fn rewritten(path: &str) -> String {
    let mut text = String::new();
    let mut rest = path;
    while let Some(first) = rest.chars().next() {
        let digits = rest.get(1..3).filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
        let taken = match (first, digits) {
            ('%', Some(digits)) => {
                text.push('%');
                text.push_str(&digits.to_ascii_lowercase());
                3
            }
            // What follows a lone percent sign must not become its digits.
            ('%', None) => return format!("{text}{rest}"),
            _ if first.is_ascii_alphanumeric() => {
                text.push_str(&format!("%{:02X}", u32::from(first)));
                1
            }
            _ => {
                text.push(first);
                first.len_utf8()
            }
        };
        rest = &rest[taken..];
    }
    text
}
