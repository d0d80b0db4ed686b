//! The relative file name of a fetched body: `HOST/STEM-HASH.EXT`, such as `example.org/page-0123456789abcdef.html`.
//!
//! URLs come from strangers, so names consist only of characters known to be harmless and can't escape from their
//! folder on any system. Nor do they collide with the names that Comity itself uses there ([`is_taken`]). Nothing here
//! touches the disk. A name can't be converted back to its URL, which has to be stored separately.

use url::{Position, Url};
use xxhash_rust::xxh3::xxh3_64;

use super::atomic_file::is_temporary;
use super::warc::is_warc_file;

/// The index of a folder of pages.
pub(super) const INDEX: &str = "index.jsonl";

/// The name for a body fetched from `url` with this `content_type`: two components separated by `/`.
///
/// The same URL and type always get the same name. The hash covers the URL without user, password and fragment, and
/// distinguishes URLs with similar names: different queries, different case on a case-insensitive disk, truncated
/// names. It is not cryptographic, but a site that makes two of its URLs collide only harms its own folder.
pub(super) fn file_name(url: &Url, content_type: Option<&str>) -> String {
    // Leave out user and password, because a short password could be guessed from the hash.
    let mut bare = url.clone();
    let _ = (bare.set_username(""), bare.set_password(None));
    let hash = xxh3_64(bare[..Position::AfterQuery].as_bytes());
    let segment = url.path().rsplit('/').find(|segment| !segment.is_empty()).unwrap_or_default();
    let (stem, own) = split_extension(segment);
    let extension = content_type.and_then(extension_of).map(str::to_owned).or(own);
    let extension = extension.as_deref().unwrap_or("bin");
    let stem = match safe(stem, STEM_MAX) {
        empty if empty.is_empty() => "index".to_owned(),
        stem => stem,
    };
    let mut file = no_device(format!("{stem}-{hash:016x}.{extension}"));
    if is_temporary(&file) {
        // The file would be deleted like one that a killed process left behind.
        file.push_str(".bin");
    }
    format!("{}/{file}", host(url))
}

/// The host, and the port if it isn't the default of the scheme: `example.org`, `127.0.0.1_8080`, `__1_8080`.
fn host(url: &Url) -> String {
    let name = url.host_str().unwrap_or_default().trim_matches(['[', ']']).to_ascii_lowercase();
    let port = url.port().map(|port| format!("_{port}")).unwrap_or_default();
    // Leave one byte for `no_device`.
    let name = safe(&name, HOST_MAX - port.len() - 1);
    let folder = no_device(format!("{}{port}", if name.is_empty() { "_" } else { &name }));
    // At the end, because some of these names have only their ending in common.
    if is_taken(&folder) { format!("{folder}_") } else { folder }
}

/// Whether Comity itself uses this name in a folder that contains pages, or may use it if that is the folder it was
/// started in: a host may have any name, and a folder in place of such a file would stop every job.
fn is_taken(name: &str) -> bool {
    // On some disks, upper and lower case are the same.
    let name = name.to_ascii_lowercase();
    name == INDEX || OF_THE_WORKING_FOLDER.contains(&&*name) || is_warc_file(&name) || is_temporary(&name)
}

/// At most `len_max` bytes of `text` with only letters, digits, `.`, `_` and `-`, and no dot or dash at either end.
pub(super) fn safe(text: &str, len_max: usize) -> String {
    let harmless = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '.' | '-') { c } else { '_' };
    let text: String = text.trim_start_matches(['.', '-']).chars().take(len_max).map(harmless).collect();
    text.trim_end_matches(['.', '-']).to_owned()
}

/// Avoids device names: Windows takes `aux`, and `aux` followed by a dot and anything else, for a device. The hash
/// makes `aux` harmless as a stem, but not the `aux.tar` of `aux.tar.gz`.
pub(super) fn no_device(name: String) -> String {
    let first = name.split('.').next().unwrap_or_default().to_ascii_lowercase();
    let device = match first.as_bytes() {
        b"con" | b"prn" | b"aux" | b"nul" => true,
        [b'c', b'o', b'm', digit] | [b'l', b'p', b't', digit] => digit.is_ascii_digit(),
        _ => false,
    };
    if device { format!("_{name}") } else { name }
}

/// Splits a path segment into its stem and its lowercase extension, if that is short and harmless.
fn split_extension(segment: &str) -> (&str, Option<String>) {
    match segment.rsplit_once('.') {
        Some((stem, extension))
            if !stem.is_empty()
                && (1..=EXTENSION_MAX).contains(&extension.len())
                && extension.bytes().all(|byte| byte.is_ascii_alphanumeric()) =>
        {
            (stem, Some(extension.to_ascii_lowercase()))
        }
        _ => (segment, None),
    }
}

/// The extension for a `Content-Type`, if it is a known one.
fn extension_of(content_type: &str) -> Option<&'static str> {
    let essence = content_type.split(';').next().unwrap_or_default().trim();
    let known = EXTENSIONS.iter().find(|(name, _)| essence.eq_ignore_ascii_case(name));
    // `application/rss+xml` is also XML (RFC 6839).
    let suffix = || match essence.rsplit_once('+')?.1 {
        suffix if suffix.eq_ignore_ascii_case("json") => Some("json"),
        suffix if suffix.eq_ignore_ascii_case("xml") => Some("xml"),
        suffix if suffix.eq_ignore_ascii_case("zip") => Some("zip"),
        _ => None,
    };
    known.map(|(_, extension)| *extension).or_else(suffix)
}

/// The configuration and the store, unless they are elsewhere.
const OF_THE_WORKING_FOLDER: [&str; 6] =
    ["comity.toml", "comity.db", "comity.db-wal", "comity.db-shm", "comity.db-journal", "comity.db-holders"];
const HOST_MAX: usize = 100;
const STEM_MAX: usize = 80;
const EXTENSION_MAX: usize = 8;
/// `application/octet-stream` is missing on purpose: the extension in the URL is more specific.
const EXTENSIONS: [(&str, &str); 34] = [
    ("text/html", "html"),
    ("application/xhtml+xml", "html"),
    ("text/plain", "txt"),
    ("text/css", "css"),
    ("text/csv", "csv"),
    ("text/markdown", "md"),
    ("text/calendar", "ics"),
    ("text/xml", "xml"),
    ("application/xml", "xml"),
    ("application/json", "json"),
    ("application/x-ndjson", "ndjson"),
    ("text/javascript", "js"),
    ("application/javascript", "js"),
    ("application/wasm", "wasm"),
    ("application/pdf", "pdf"),
    ("application/epub+zip", "epub"),
    ("application/warc", "warc"),
    ("application/zip", "zip"),
    ("application/gzip", "gz"),
    ("application/x-gzip", "gz"),
    ("application/x-tar", "tar"),
    ("application/zstd", "zst"),
    ("image/png", "png"),
    ("image/jpeg", "jpg"),
    ("image/gif", "gif"),
    ("image/webp", "webp"),
    ("image/avif", "avif"),
    ("image/svg+xml", "svg"),
    ("image/x-icon", "ico"),
    ("audio/mpeg", "mp3"),
    ("video/mp4", "mp4"),
    ("video/webm", "webm"),
    ("font/woff", "woff"),
    ("font/woff2", "woff2"),
];

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The name with its hash written as `#`, and the hash.
    fn name(url: &str, content_type: &str) -> (String, String) {
        let url = Url::parse(url).unwrap();
        let name = file_name(&url, Some(content_type).filter(|text| !text.is_empty()));
        let (start, end) = name.rsplit_once('-').unwrap();
        let (hash, extension) = end.split_at(16);
        assert!(hash.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')), "{name}");
        (format!("{start}-#{extension}"), hash.to_owned())
    }

    #[test]
    fn a_name_shows_the_host_the_path_and_the_type() {
        for (url, content_type, expected) in [
            ("https://Example.org/a/page.php?x=1#y", "text/html; charset=utf-8", "example.org/page-#.html"),
            ("https://example.org", "TEXT/HTML", "example.org/index-#.html"),
            ("https://example.org/a/b/", "application/json", "example.org/b-#.json"),
            ("http://127.0.0.1:8080/a.tar.GZ", "", "127.0.0.1_8080/a.tar-#.gz"),
            ("http://[::1]:8080/feed", "application/rss+xml", "__1_8080/feed-#.xml"),
            ("http://[2001:db8::1]/f", "application/ld+JSON;x", "2001_db8__1/f-#.json"),
            ("http://a.b/logo.svg", "image/svg+xml", "a.b/logo-#.svg"),
            ("http://a.b/x.exe", "application/octet-stream", "a.b/x-#.exe"),
            ("http://a.b/x.longextension", "", "a.b/x.longextension-#.bin"),
            ("http://a.b/x.a%2Fb", "nonsense", "a.b/x.a_2Fb-#.bin"),
            ("http://a.b/.htaccess", "", "a.b/htaccess-#.bin"),
            ("http://a.b/-.-", "", "a.b/index-#.bin"),
            ("http://a.b/caf%C3%A9 x", "", "a.b/caf_C3_A9_20x-#.bin"),
            ("http://a.b/..%5c..%5cetc", "", "a.b/_5c.._5cetc-#.bin"),
            ("data:text/plain,../../x", "", "_/x-#.bin"),
            ("file:///etc/passwd", "", "_/passwd-#.bin"),
        ] {
            assert_eq!(name(url, content_type).0, expected, "{url}");
        }
    }

    #[test]
    fn windows_device_names_and_dots_are_avoided() {
        for (url, expected) in [
            ("http://con/nul", "_con/nul-#.bin"),
            ("http://aux.example.org/COM1.tar.gz", "_aux.example.org/_COM1.tar-#.gz"),
            ("http://lpt9/aux.", "_lpt9/aux-#.bin"),
            ("http://console.org/com10.x.y", "console.org/com10.x-#.y"),
            ("http://../..", "_/index-#.bin"),
            ("http://.../a", "_/a-#.bin"),
            ("http://.a./a", "a/a-#.bin"),
            ("x://%2e%2E/a", "_2e_2e/a-#.bin"),
        ] {
            assert_eq!(name(url, "").0, expected, "{url}");
        }
    }

    #[test]
    fn the_hash_covers_the_url_without_its_fragment() {
        let hash = |url: &str| name(url, "").1;
        assert_eq!(hash("http://a.b/c#d"), hash("http://a.b/c"));
        assert_ne!(hash("http://a.b/c?d"), hash("http://a.b/c"));
        assert_ne!(hash("http://a.b/c"), hash("http://a.b/C"));
        assert_ne!(hash("http://a.b/c"), hash("https://a.b/c"));
        // Bodies are looked up by name, so the hash must never change.
        assert_eq!(hash("https://example.org/"), "8e2c3c2914c7cb49");
    }

    /// B82. A host called `index.jsonl` got a folder in place of the index, and the job could never be resumed.
    #[test]
    fn names_that_comity_uses_are_avoided_and_all_others_stay() {
        for (url, expected) in [
            ("http://index.jsonl/ok", "index.jsonl_/ok-#.bin"),
            ("http://INDEX.jsonl./ok", "index.jsonl_/ok-#.bin"),
            ("http://-index.jsonl/ok", "index.jsonl_/ok-#.bin"),
            ("http://index.jsonl:8080/ok", "index.jsonl_8080/ok-#.bin"),
            ("http://www.index.jsonl/ok", "www.index.jsonl/ok-#.bin"),
            ("http://news-20261119050000-00000.warc.gz/a", "news-20261119050000-00000.warc.gz_/a-#.bin"),
            ("http://a.warc.gz.open/a", "a.warc.gz.open_/a-#.bin"),
            ("http://index.jsonl.12-7.part/a", "index.jsonl.12-7.part_/a-#.bin"),
            ("http://comity.db/a", "comity.db_/a-#.bin"),
            ("http://comity.db-wal/a", "comity.db-wal_/a-#.bin"),
            ("http://comity.toml/a", "comity.toml_/a-#.bin"),
            ("http://comity.dbase.org/a", "comity.dbase.org/a-#.bin"),
            ("http://a.b/index.jsonl", "a.b/index-#.jsonl"),
            ("http://a.b/x.part", "a.b/x-#.part"),
        ] {
            assert_eq!(name(url, "").0, expected, "{url}");
        }
    }

    /// A page with such a name was deleted like a temporary file that a killed process left behind.
    #[test]
    fn a_page_is_never_taken_for_a_temporary_file() {
        // One URL in 1,844 has a hash without letters.
        let urls = (0..100_000).map(|nth| format!("http://a.b/{nth}/x.2147483647.part"));
        let names: Vec<_> = urls.map(|url| file_name(&Url::parse(&url).unwrap(), None)).collect();
        assert!(names.iter().all(|name| !is_temporary(name.strip_prefix("a.b/").unwrap())));
        assert!(names.iter().any(|name| name.ends_with(".part.bin")));
    }

    fn check(url: &Url, content_type: Option<&str>) {
        let name = file_name(url, content_type);
        assert_eq!(name, file_name(url, content_type));
        let components: Vec<_> = name.split('/').collect();
        assert_eq!(components.len(), 2, "{name}");
        for component in components {
            assert!((1..=200).contains(&component.len()), "{name}");
            assert!(!component.starts_with(['.', '-']) && !component.ends_with('.'), "{name}");
            let harmless = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
            assert!(component.bytes().all(harmless), "{name}");
            // Whatever the case, as on some disks.
            assert!(!is_taken(component) && !is_taken(&component.to_uppercase()), "{name}");
            assert!(!is_temporary(component), "{name}");
        }
    }

    /// A host like those that Comity could mistake for its own files.
    const TAKEN_HOST: &str = "[-.]{0,2}(?i:index\\.jsonl|comity\\.(db|toml)|comity\\.db-(wal|shm|journal|holders)|[a-z.]{0,3}\\.warc\\.gz(\\.open)?|[a-z.]{0,3}\\.[0-9]{1,3}-[0-9]\\.part)[.]{0,2}(:[0-9]{2,4})?";

    fn host_strategy() -> impl Strategy<Value = String> {
        prop_oneof!["[ab_.-]{1,4}", "[a-c]{1,2}:[0-9]{2}", TAKEN_HOST]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(5_000))]

        #[test]
        fn no_name_escapes_from_its_folder(
            scheme in "http|https|ftp|file|data|x",
            host in prop_oneof!["(\\PC|[a-z0-9.:%@\\[\\]-]){0,130}", TAKEN_HOST],
            path in prop_oneof!["(\\PC|[./\\\\%:-]){0,130}", TAKEN_HOST],
            content_type in "\\PC{0,20}|[a-z]{4}/[a-z+]{0,9};.*",
        ) {
            for text in [format!("{scheme}://{host}/{path}"), format!("{scheme}://a.b/{path}"), format!("{scheme}:{path}")] {
                if let Ok(url) = Url::parse(&text) {
                    check(&url, Some(&content_type));
                    check(&url, None);
                }
            }
        }

        /// B82. Whatever a stranger supplies: no two URLs have one file, and none is, or is below, a file of ours.
        #[test]
        fn different_urls_get_different_names(
            hosts in [host_strategy(), host_strategy()],
            paths in ["[a-zA-Z./%_-]{0,20}", "[a-zA-Z./%_-]{0,20}"],
            schemes in ["https?", "https?"],
        ) {
            let url = |nth: usize| Url::parse(&format!("{}://{}/{}", schemes[nth], hosts[nth], paths[nth]));
            if let (Ok(one), Ok(other)) = (url(0), url(1)) {
                check(&one, None);
                // Also on a disk that doesn't distinguish upper and lower case.
                let names = [&one, &other].map(|url| file_name(url, None).to_lowercase());
                prop_assert_eq!(names[0] == names[1], one == other, "{} {}", one, other);
            }
        }

        #[test]
        fn different_queries_get_different_names(path in "[a-z./]{0,100}", one in "[a-z=&]{0,9}", other in "[a-z=&]{0,9}") {
            let name = |query: &str| file_name(&Url::parse(&format!("http://a.b/{path}?{query}")).unwrap(), None);
            prop_assert_eq!(name(&one) == name(&other), one == other);
        }
    }
}
