//! The readable text of an item: from its page, or else from its feed.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use comity::connectors::{self, text};
use comity::store::details::{Details, Markup};
use comity::store::items::Item;
use comity::store::sources::Kind;
use url::Url;

use crate::output;

/// The text of an item for an export: from its page if that was scraped and can be read, or else from the feed. The
/// second value says why a scraped page could not be read.
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

/// The title and main text of an HTML page, or plain text as it is.
pub(super) fn of_page(item: &Item, file: &str, body: &[u8]) -> anyhow::Result<(Option<String>, String)> {
    let url = Url::parse(&item.url)?;
    let content_type = item.content_type.as_deref();
    let main = || text::main_text(body, content_type, &url).map(|main| (Some(main.title), main.text));
    if connectors::sniff(body, None) == Some(Kind::Page) {
        let none = || anyhow::anyhow!("item {}: no main text found in {file}", item.id);
        return main().ok_or_else(none);
    }
    let is_text = |kind: &str| ["text/", "json", "xml", "javascript"].iter().any(|part| kind.contains(part));
    if let Some(kind) = content_type.filter(|kind| !is_text(kind)) {
        anyhow::bail!("item {}: {file} is {kind}, not text", item.id);
    }
    let text = String::from_utf8_lossy(&body[..body.len().min(TEXT_MAX)]);
    let odd = text.chars().filter(|c| matches!(c, '\u{fffd}' | '\0')).count();
    // Text in another encoding contains some of these, an image or an archive many.
    if odd * 10 > text.chars().count() {
        anyhow::bail!("item {}: {file} is neither HTML nor text", item.id);
    }
    let named = Path::new(file).extension().is_some_and(|end| HTML.iter().any(|html| end == *html));
    if let Some(main) = named.then(main).flatten() {
        return Ok(main);
    }
    if body.len() > TEXT_MAX {
        output::remark(&format!("Showing only the first {TEXT_MAX} bytes of {file}"));
    }
    Ok((None, text.into_owned()))
}

const HTML: [&str; 3] = ["html", "htm", "xhtml"];
/// How much of a page is read, in bytes.
const BODY_MAX: u64 = 64 << 20;
/// How much of a plain text is shown, in bytes.
const TEXT_MAX: usize = 1_000_000;
