//! The sitemaps that a robots.txt names. They are for everybody, whatever group they stand in.

use super::BODY_MAX;

/// The addresses in the `Sitemap` lines of a robots.txt, each once, in their order; at most 200.
pub fn sitemaps(body: &[u8]) -> Vec<String> {
    let body = &body[..body.len().min(BODY_MAX)];
    let mut found: Vec<String> = Vec::new();
    for line in body.split(|byte| matches!(byte, b'\n' | b'\r')) {
        let Ok(line) = std::str::from_utf8(line) else { continue };
        let Some((key, value)) = line.trim_start_matches('\u{feff}').split_once(':') else { continue };
        // Everything behind a number sign is a remark, unless it is a part of the address.
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
    fn sitemap_lines_are_found_wherever_they_stand() {
        let body = b"\xef\xbb\xbfSitemap: https://a.example/1.xml\r\nUser-agent: *\nDisallow: /\n sitemap :https://a.example/2.xml # two\n\
            SITEMAP: https://a.example/1.xml\nSitemap:\nSitemaps: https://a.example/3.xml\n\xff: x";
        assert_eq!(sitemaps(body), ["https://a.example/1.xml", "https://a.example/2.xml"]);
        assert_eq!(sitemaps(&b"Sitemap: /a\n".repeat(100_000)), ["/a"]);
    }
}
