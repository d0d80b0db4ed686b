//! Tests for all formats, and for reading back what was written.

use proptest::prelude::*;

use super::collector::cleaned;
use super::*;

fn urls(read: &SourceList) -> Vec<&str> {
    read.entries.iter().map(|entry| entry.url.as_str()).collect()
}

#[test]
fn every_format_is_detected_by_content() {
    for list in [
        "\u{feff}<opml><outline xmlUrl='http://a.example/'/><outline xmlUrl='http://b.example/'/></opml>",
        "\u{feff}Name,Url\nA,http://a.example/\nB,http://b.example/",
        "\u{feff}http://a.example/,A\nhttp://b.example/,B",
        "\u{feff}http://a.example/\nhttp://b.example/\n",
    ] {
        let read = read(list.as_bytes(), None).unwrap();
        assert_eq!(urls(&read), ["http://a.example/", "http://b.example/"], "{list}");
        assert_eq!(read.problems, []);
    }
    assert_eq!(read(b"", None), Ok(SourceList::default()));
}

#[test]
fn the_first_of_several_rows_with_the_same_url_wins() {
    let read =
        read(b"url,name\nhttp://a.example,A\nhttp://A.example/#x,B\nhttp://b.example/,C", None).unwrap();
    assert_eq!(urls(&read), ["http://a.example/", "http://b.example/"]);
    assert_eq!((read.entries[0].name.as_deref(), read.repeated), (Some("A"), 1));
}

#[test]
fn other_encodings_are_read_and_invalid_bytes_are_reported() {
    let latin = b"<?xml version='1.0' encoding='ISO-8859-1'?><opml><outline text='Caf\xe9' xmlUrl='http://a.example/'/></opml>";
    assert_eq!(read(latin, None).unwrap().entries[0].name.as_deref(), Some("Café"));
    let broken = read(b"http://a.example/\xe9\nhttp://b.example/", None).unwrap();
    assert_eq!(urls(&broken), ["http://b.example/"]);
    let problems: Vec<_> = broken.problems.iter().map(ToString::to_string).collect();
    assert_eq!(problems[0], "line 1: invalid UTF-8 bytes were replaced; save the file as UTF-8");
    assert_eq!(problems[1], "line 1: \"http://a.example/\u{fffd}\" is not an http or https URL with a host");
}

#[test]
fn the_size_of_a_list_is_limited() {
    let row = |n: u32| format!("https://site{n}.example/feed?n={n},Site {n}\n");
    let long: String = (0..100_000).map(row).collect();
    assert_eq!(read(long.as_bytes(), None).unwrap().entries.len(), 100_000);
    let error = read(&vec![b'\n'; BYTES_MAX + 1], None).unwrap_err().to_string();
    assert_eq!(
        error,
        "the list has 67108865 bytes, but at most 67108864 are allowed; split it into several files"
    );
    assert_eq!(read(&vec![b'\n'; BYTES_MAX], None), Ok(SourceList::default()));
}

const FORMATS: [Option<Format>; 4] = [None, Some(Format::Opml), Some(Format::Csv), Some(Format::List)];

proptest! {
    #[test]
    fn no_input_causes_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        for format in FORMATS {
            let _ = read(&bytes, format);
        }
    }

    /// Fragments of lists in any order get further into the parsers than random bytes.
    #[test]
    fn no_combination_of_fragments_causes_a_panic_or_leaks_a_secret(
        pieces in prop::collection::vec(prop::sample::select(PIECES.to_vec()), 0..40),
        mark in prop::sample::select(vec!["", "\u{feff}", "<?xml encoding='utf-16'?>", "<opml>"]),
    ) {
        let text = format!("{mark}{}", pieces.concat());
        for format in FORMATS {
            if let Ok(read) = read(text.as_bytes(), format) {
                let lines = text.split(['\n', '\r']).count() as u64;
                prop_assert!(read.entries.iter().all(|entry| (1..=lines).contains(&entry.line)));
                prop_assert!(read.problems.iter().all(|problem| !problem.what.contains("secret")), "{:?}", read);
            }
        }
    }

    #[test]
    fn a_written_list_is_read_back(
        sources in prop::collection::vec(
            (
                "[a-z]{1,9}",
                "[ -~é]{0,9}",
                prop::option::of("\\PC{0,9}|[\\x00-\\x7f]{0,9}|.{0,9}"),
                0_usize..5,
                prop::collection::vec("[ab]|.{0,3}", 0..4),
                prop::option::of("[1-9]{1,3}[smh]"),
            ),
            0..9,
        ),
        title in ".{0,9}",
    ) {
        type Fields = (String, String, Option<String>, usize, Vec<String>, Option<String>);
        let exported = |(host, path, name, kind, folder, cadence): Fields| {
            let url = url::Url::parse(&format!("https://{host}.example/{}", path.replace(['#', '\\'], ""))).ok()?;
            let lead = if path.len() > 4 { Lead::Remote } else { Lead::Listed };
            let kind = Kind::ALL.get(kind).copied();
            let html_url = cadence.is_some().then(|| format!("https://{host}.example/"));
            let min_interval = cadence.as_ref().map(|_| "2.5".to_owned());
            let folder = folder.iter().map(|name| Arc::from(name.as_str())).collect();
            let switches = Switches { enabled: path.len() % 2 == 0, scraping: path.len() % 3 > 0, auto_scrape: path.len() % 5 > 1 };
            Some(ExportedSource { url: url.into(), name, kind, lead, html_url, folder, cadence, min_interval, switches })
        };
        let mut sources: Vec<ExportedSource> = sources.into_iter().filter_map(exported).collect();
        sources.sort_by(|a, b| a.url.cmp(&b.url));
        sources.dedup_by(|a, b| a.url == b.url);
        let mut out = Vec::new();
        write_opml(&sources, &title, &mut out)?;
        let mut read = read(&out, None)?;
        prop_assert_eq!(&read.problems, &[]);
        // The sources of a folder are grouped together.
        read.entries.sort_by(|a, b| a.url.cmp(&b.url));
        prop_assert_eq!(read.entries.len(), sources.len());
        for (entry, source) in read.entries.iter().zip(&sources) {
            prop_assert_eq!(&entry.url, &source.url);
            prop_assert_eq!(&entry.name, &source.name.as_deref().and_then(cleaned));
            prop_assert_eq!(entry.kind, Some(source.kind.unwrap_or(Kind::Feed)));
            prop_assert_eq!(entry.lead, source.lead);
            prop_assert_eq!(&entry.html_url, &source.html_url);
            prop_assert_eq!(&entry.cadence, &source.cadence);
            prop_assert_eq!(&entry.min_interval, &source.min_interval);
            prop_assert_eq!(entry.switches, source.switches);
            let folder: Vec<Arc<str>> = source.folder.iter().filter_map(|name| cleaned(name)).map(Arc::from).collect();
            prop_assert_eq!(&entry.folder, &folder);
        }
    }
}

const PIECES: [&str; 34] = [
    "<opml>",
    "</opml>",
    "<outline",
    "<outline ",
    "</outline>",
    "/>",
    ">",
    "<",
    " xmlUrl=",
    " XMLURL='",
    " text=\"",
    " comityKind='page'",
    "\"",
    "'",
    "&",
    "&amp;",
    "&#",
    "&#0;",
    ";",
    "<!--",
    "-->",
    "<![CDATA[",
    "<!DOCTYPE [",
    "\n",
    "\r",
    ",",
    "url,name\n",
    "http://a.example/",
    "htp://secret:secret@b.example/?secret",
    "é",
    "#",
    "\t",
    "\u{fffd}",
    " ",
];

/// The XML reader skips a byte order mark without counting it, so a position was in the middle of a character.
#[test]
fn a_second_byte_order_mark_moves_no_position() {
    let text = "\u{feff}\u{feff}<opml><body>\u{e9}\u{e9}\u{e9}<outline";
    let found = read(text.as_bytes(), Some(Format::Opml)).unwrap();
    assert!(found.entries.is_empty());
    assert!(!found.problems.is_empty());
}
