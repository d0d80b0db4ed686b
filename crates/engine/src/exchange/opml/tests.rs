//! OPML as found in practice: with folders, unescaped ampersands, truncated, and invalid.

use comity_store::sources::Kind;

use super::*;

fn outline(text: &str) -> String {
    let mut collector = RowCollector::default();
    if let Err(error) = read(text, &mut collector) {
        return error.to_string();
    }
    let read = collector.finish();
    let entries = read.entries.iter().map(|entry| {
        let name = entry.name.as_deref().unwrap_or("-");
        let folder: String = entry.folder.iter().map(|name| format!("{name}/")).collect();
        let page = entry.html_url.as_deref().map(|page| format!(" of {page}")).unwrap_or_default();
        format!("{} {} {folder}{name} {}{page}", entry.line, entry.url, entry.kind.map_or("-", Kind::as_str))
    });
    entries.chain(read.problems.iter().map(ToString::to_string)).collect::<Vec<_>>().join(" | ")
}

fn body(outlines: &str) -> String {
    format!("<opml version='2.0'><body>\n{outlines}</body></opml>")
}

#[test]
fn outlines_in_folders_are_parsed() {
    let text = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>
<!-- made by hand --><opml version=\"1.1\"><head><title>a & b</title></head><body>
<outline text=\"News &amp; more\"><outline title='A' text='a' type='rss' xmlUrl='http://a.example/?x=1&amp;y=2'
  htmlUrl='http://a.example/'/>
  <outline text=\"&#x41;&quot;\" type=\"atom\" XMLURL=\" http://b.example/ \"></outline>
  <outline text='folder'><outline text='http://c.example/' xmlurl='http://c.example/'/></outline></outline>
<outline text='no feed' xmlUrl='' type='rss'/><outline text='link' type='link' url='http://d.example/'/>
<outline text='D' type='link' url='http://d.example/' comityKind='page'/>
</body></opml>\n";
    assert_eq!(
        outline(text),
        "3 http://a.example/?x=1&y=2 News & more/A feed of http://a.example/ | 5 http://b.example/ News & more/A\" feed \
         | 6 http://c.example/ News & more/folder/- feed | 8 http://d.example/ D page"
    );
    assert_eq!(outline("<opml/>"), "");
}

#[test]
fn folders_may_be_a_million_deep() {
    let deep = "<outline text='x'>".repeat(1_000_000);
    let end = "</outline>".repeat(1_000_000);
    let text = body(&format!("{deep}<outline xmlUrl='http://a.example/'/>{end}"));
    let folder = "x/".repeat(FOLDERS_MAX);
    assert_eq!(
        outline(&text),
        format!(
            "2 http://a.example/ {folder}- feed | line 2: folders nested more than 16 deep are merged into the one around them"
        )
    );
}

#[test]
fn folders_are_the_outlines_around_a_source() {
    for (outlines, expected) in [
        ("<outline text='A'><outline title='B'>FEED</outline></outline>", "2 http://f.example/ A/B/- feed"),
        ("<outline text='A'></outline>FEED", "2 http://f.example/ - feed"),
        ("<outline text='A'/>FEED", "2 http://f.example/ - feed"),
        ("<outline text=' '><outline text='B'>FEED</outline></outline>", "2 http://f.example/ B/- feed"),
        ("</outline></outline><outline text='A'>FEED</outline>", "2 http://f.example/ A/- feed"),
        (
            "<outline text='A'><outline xmlUrl='http://e.example/' text='E'>FEED</outline>FEED</outline>",
            "2 http://e.example/ A/E feed | 2 http://f.example/ A/- feed",
        ),
        ("<outline text='A'><b/></b></outline>FEED", "2 http://f.example/ - feed"),
    ] {
        let text = outlines.replace("FEED", "<outline xmlUrl='http://f.example/'/>");
        assert_eq!(outline(&body(&text)), expected, "{outlines}");
    }
}

/// B75
#[test]
fn the_password_is_removed_from_the_url_of_a_page() {
    for (page, expected) in [
        ("https://u:p@a.example/x?y#z", Some("https://a.example/x?y")),
        ("javascript:x", None),
        ("a.example", None),
        ("", None),
    ] {
        let mut collector = RowCollector::default();
        read(&body(&format!("<outline xmlUrl='http://a.example/' htmlUrl='{page}'/>")), &mut collector)
            .unwrap();
        assert_eq!(collector.finish().entries[0].html_url.as_deref(), expected, "{page}");
    }
}

#[test]
fn unescaped_ampersands_are_read_as_plain_text() {
    let text = body(
        "<outline text='Q&A; &amp; &nbsp;' xmlUrl='http://a.example/?x=1&y=2&lt=3&amp;z'/>\n\n<outline text='R&D' xmlUrl='http://b.example/'/>",
    );
    assert_eq!(
        outline(&text),
        "2 http://a.example/?x=1&y=2&lt=3&z Q&A; & &nbsp; feed | 4 http://b.example/ R&D feed | line 2: an \
         unescaped & or an unknown entity was read as plain text; also on 1 more line"
    );
}

#[test]
fn an_entity_bomb_is_not_expanded() {
    let text = format!(
        "<!DOCTYPE opml [<!ENTITY a \"ha\"><!ENTITY b \"&a;&a;\">]>{}",
        body("<outline text='&b;&b;' xmlUrl='http://a.example/'/>")
    );
    assert!(outline(&text).starts_with("2 http://a.example/ &b;&b; feed | line 2: "), "{}", outline(&text));
}

#[test]
fn an_error_costs_only_the_outline_it_is_in() {
    const INCH: &str = "<outline text=\"5\" disk\" xmlUrl=\"http://a.example/\"/>";
    const GOOD: &str = "<outline xmlUrl='http://b.example/'/>";
    for (outlines, expected) in [
        (
            format!("{INCH}\n{GOOD}"),
            "3 http://b.example/ - feed | line 2: unclosed tag, comment or quotation mark",
        ),
        (
            format!("{INCH}\n{INCH}\n{GOOD}"),
            "4 http://b.example/ - feed | line 2: unbalanced quotation marks in this tag \
             | line 3: unclosed tag, comment or quotation mark",
        ),
        (
            format!("<outline text='x' xmlUrl=http://a.example/ />\n{GOOD}"),
            "3 http://b.example/ - feed | line 2: invalid attribute in this outline",
        ),
        (format!("</b></outline>\n<outline text='<3'>{GOOD}"), "3 http://b.example/ <3/- feed"),
        (
            format!("<!-- \n{GOOD}"),
            "3 http://b.example/ - feed | line 2: unclosed tag, comment or quotation mark",
        ),
        (
            format!("<outline xmlUrl='feed:x'/>{GOOD}"),
            "2 http://b.example/ - feed | line 2: \"feed:x\" is not an http or https URL with a host",
        ),
    ] {
        assert_eq!(outline(&body(&outlines)), expected, "{outlines}");
    }
    let cut = body(&format!("{GOOD}\n<outline xmlUrl='http://c.exa"));
    assert_eq!(
        outline(&cut[..cut.len() - "</body></opml>".len()]),
        "2 http://b.example/ - feed | line 3: unclosed tag, comment or quotation mark \
         | line 3: no </opml> at the end: part of the list may be missing"
    );
}

#[test]
fn other_documents_are_an_error() {
    for (text, found) in [("<rss version='2.0'><channel/></rss>", "<rss>"), ("http://a/", "no XML element")] {
        let expected = "expected <opml>; a feed or page is not a list, add its URL instead";
        assert_eq!(outline(text), format!("the list starts with {found}: {expected}"));
    }
}
