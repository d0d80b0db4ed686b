//! Lists of sources.

use comity::exchange::{ExportedSource, Format, ListedSource, read, write_opml};

/// Sources read from a list survive being written as OPML and read back. The other formats must not panic.
pub fn opml(data: &[u8]) {
    for form in [Format::Csv, Format::List] {
        let _ = read(data, Some(form));
    }
    let Ok(first) = read(data, Some(Format::Opml)) else { return };
    assert!(first.entries.iter().all(|entry| entry.folder.iter().all(|name| !name.trim().is_empty())));
    let listed: Vec<ExportedSource> = first.entries.iter().map(listed).collect();
    let mut text = Vec::new();
    write_opml(&listed, "T", &mut text).expect("memory can be written to");
    let again = read(&text, None).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(again.problems, [], "{}", String::from_utf8_lossy(&text));
    assert_eq!(again.repeated, 0);
    assert_eq!(sorted(again.entries), sorted(first.entries));
}

fn listed(entry: &ListedSource) -> ExportedSource {
    ExportedSource {
        url: entry.url.clone(),
        name: entry.name.clone(),
        kind: entry.kind,
        lead: entry.lead,
        html_url: entry.html_url.clone(),
        folder: entry.folder.clone(),
        cadence: entry.cadence.clone(),
        min_interval: entry.min_interval.clone(),
        switches: entry.switches,
    }
}

/// Writing groups the sources of a folder, so lines and order differ.
fn sorted(mut entries: Vec<ListedSource>) -> Vec<ListedSource> {
    entries.iter_mut().for_each(|entry| entry.line = 0);
    entries.sort_by(|a, b| a.url.cmp(&b.url));
    entries
}
