//! robots.txt: the path up to the first line end is asked for, the rest is the file.

use comity::robots::{BODY_MAX, Robots};

/// What may stand in a file without changing its meaning changes no answer, and neither does the way a path is written.
pub fn robots(data: &[u8]) {
    let (path, body) = match data.iter().position(|octet| *octet == b'\n') {
        Some(end) => (&data[..end], &data[end + 1..]),
        None => (data, &data[..0]),
    };
    let path = format!("/{}", String::from_utf8_lossy(path));
    let file = Robots::parse(body, "comity");
    assert!(file.allows("/robots.txt"));
    assert!(file.crawl_delay().is_none_or(|delay| delay.as_secs_up() <= 86_400));
    let allowed = file.allows(&path);
    assert_eq!(file.allows(&rewritten(&path)), allowed, "percent-encoding");
    if body.len() * 20 > BODY_MAX || body.starts_with(b"\xef\xbb\xbf") {
        return;
    }
    // Lines that nobody knows do not split a group, nor do line ends of another kind.
    let noisy = body.split(|octet| *octet == b'\n').collect::<Vec<_>>().join(&b"\nNoindex: /\r\nzz\n"[..]);
    assert_eq!(Robots::parse(&noisy, "comity"), file, "unknown lines");
    let ended = body.split(|octet| *octet == b'\n').collect::<Vec<_>>().join(&b"\r"[..]);
    assert_eq!(Robots::parse(&ended, "comity"), file, "line ends");
    // What is said to others does not concern us, before and after.
    let others =
        [b"User-agent: zz\nDisallow: /\n", body, b"\nDisallow:\nUser-agent: zz\nDisallow: /"].concat();
    assert_eq!(Robots::parse(&others, "comity"), file, "other groups");
    // What is allowed where everything is forbidden is the file itself, and that is allowed everywhere.
    assert!(allowed || !Robots::disallow_all().allows(&path));
}

/// The same path with every letter and digit percent-encoded, and encoded octets in the other case.
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
