//! The sitemaps listed in a robots.txt. They apply to every crawler, regardless of the group they are in.

use super::BODY_MAX;

/// The URLs in the `Sitemap` lines of a robots.txt, in order and without duplicates; at most 200.
pub fn sitemaps(body: &[u8]) -> Vec<String> {
    let body = &body[..body.len().min(BODY_MAX)];
    let mut found: Vec<String> = Vec::new();
    for line in body.split(|byte| matches!(byte, b'\n' | b'\r')) {
        let Ok(line) = std::str::from_utf8(line) else { continue };
        let Some((key, value)) = line.trim_start_matches('\u{feff}').split_once(':') else { continue };
        // A `#` starts a comment, unless it is part of the URL.
        let value = value.split(" #").next().unwrap_or_default().trim();
        let is_one = key.trim().eq_ignore_ascii_case("sitemap") && !value.is_empty();
        if is_one && found.len() < SITEMAPS_MAX && !found.iter().any(|known| known == value) {
            found.push(value.to_owned());
        }
    }
    found
}

const SITEMAPS_MAX: usize = 200;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sitemap_lines_are_found_anywhere_in_the_file() {
        let body = b"\xef\xbb\xbfSitemap: https://a.example/1.xml\r\nUser-agent: *\nDisallow: /\n sitemap :https://a.example/2.xml # two\n\
            SITEMAP: https://a.example/1.xml\nSitemap:\nSitemaps: https://a.example/3.xml\n\xff: x";
        assert_eq!(sitemaps(body), ["https://a.example/1.xml", "https://a.example/2.xml"]);
        assert_eq!(sitemaps(&b"Sitemap: /a\n".repeat(100_000)), ["/a"]);
    }
}
