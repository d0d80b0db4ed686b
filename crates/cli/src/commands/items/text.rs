//! The readable text of an item: that of its page, or else of what its feed gave.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use comity::connectors::{self, text};
use comity::store::details::{Details, Markup};
use comity::store::items::Item;
use comity::store::sources::Kind;
use url::Url;

use crate::output;

/// The text of an item for an export: that of the page, if it was scraped and its file can be read, or else that of what
/// the feed gave. The second says why a page that was scraped could not be read.
pub(super) fn best(item: &Item, details: &Details) -> (Option<String>, Option<anyhow::Error>) {
    let page = item.file.as_deref().map(|file| {
        let body = read(Path::new(file)).map_err(|error| error.context(file.to_owned()))?;
        of_page(item, file, &body).map(|(_, text)| text)
    });
    let (page, problem) = match page {
        Some(Ok(text)) => (Some(text), None),
        Some(Err(error)) => (None, Some(error)),
        None => (None, None),
    };
    let given = || {
        let passage = details.content.as_ref().or(details.summary.as_ref())?;
        Some(match passage.markup {
            Markup::Html => text::plain(&passage.text),
            Markup::Text => passage.text.clone(),
        })
    };
    (page.or_else(given).filter(|text| !text.is_empty()), problem)
}

pub(super) fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    let mut body = Vec::new();
    let file = File::open(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => anyhow::anyhow!("the file is gone"),
        _ => error.into(),
    })?;
    file.take(BODY_MAX).read_to_end(&mut body)?;
    Ok(body)
}

/// The title and main text of a page, or a text as it stands.
pub(super) fn of_page(item: &Item, file: &str, body: &[u8]) -> anyhow::Result<(Option<String>, String)> {
    let url = Url::parse(&item.url)?;
    let content_type = item.content_type.as_deref();
    let main = || text::main_text(body, content_type, &url).map(|main| (Some(main.title), main.text));
    if connectors::sniff(body, None) == Some(Kind::Page) {
        let none = || anyhow::anyhow!("item {}: {file} has no main text that could be found", item.id);
        return main().ok_or_else(none);
    }
    let is_text = |kind: &str| ["text/", "json", "xml", "javascript"].iter().any(|part| kind.contains(part));
    if let Some(kind) = content_type.filter(|kind| !is_text(kind)) {
        anyhow::bail!("item {}: {file} is {kind}, which is shown by another program", item.id);
    }
    let text = String::from_utf8_lossy(&body[..body.len().min(TEXT_MAX)]);
    let odd = text.chars().filter(|c| matches!(c, '\u{fffd}' | '\0')).count();
    // A text in another encoding has some of them, a picture or an archive has many.
    if odd * 10 > text.chars().count() {
        anyhow::bail!("item {}: {file} is neither HTML nor text", item.id);
    }
    let named = Path::new(file).extension().is_some_and(|end| HTML.iter().any(|html| end == *html));
    if let Some(main) = named.then(main).flatten() {
        return Ok(main);
    }
    if body.len() > TEXT_MAX {
        output::remark(&format!("{file} is longer: only its first {TEXT_MAX} bytes are shown"));
    }
    Ok((None, text.into_owned()))
}

const HTML: [&str; 3] = ["html", "htm", "xhtml"];
/// As much of a page as is looked at.
const BODY_MAX: u64 = 64 << 20;
/// As much of a plain text as is shown.
const TEXT_MAX: usize = 1_000_000;
