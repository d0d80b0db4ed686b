//! Writes an archive as a MediaWiki dump (export schema 0.11), which `importDump.php` can read. It is written page by
//! page as it is read from the store, so memory use does not depend on the size of the wiki.

use std::io::{self, Write};
use std::net::IpAddr;
use std::path::Path;

use comity_store::wiki::{Revision, Slot, Wiki, WikiPage};
use comity_store::{Store, StoreError};
use serde_json::Value;

use super::content::{MAIN, decompress, hex};

/// Why a dump could not be written.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The output can't be written.
    #[error(transparent)]
    Write(#[from] io::Error),
    /// Nothing is archived yet.
    #[error("{0}: nothing is archived yet; run comity wiki archive first")]
    Empty(String),
    /// A stored revision is damaged.
    #[error("revision {revision}: {what}")]
    Damaged {
        /// The id of the revision.
        revision: i64,
        /// What is wrong.
        what: String,
    },
}

/// How a dump is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DumpCompression {
    /// Uncompressed.
    Plain,
    /// With gzip.
    Gzip,
    /// With Zstandard.
    Zstd,
}

/// A writer that compresses if requested.
pub enum Compressor<W: Write> {
    /// Uncompressed.
    Plain(W),
    /// With gzip.
    Gzip(Box<flate2::write::GzEncoder<W>>),
    /// With Zstandard.
    Zstd(Box<zstd::Encoder<'static, W>>),
}

impl DumpCompression {
    /// The compression for the extension of a file name.
    pub fn of(path: &Path) -> Self {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("gz") => Self::Gzip,
            Some("zst") => Self::Zstd,
            _ => Self::Plain,
        }
    }

    /// Compresses what is written to `out`.
    pub fn writer<W: Write>(self, out: W) -> io::Result<Compressor<W>> {
        Ok(match self {
            Self::Plain => Compressor::Plain(out),
            Self::Gzip => Compressor::Gzip(Box::new(flate2::write::GzEncoder::new(out, Default::default()))),
            Self::Zstd => Compressor::Zstd(Box::new(zstd::Encoder::new(out, 0)?)),
        })
    }
}

impl<W: Write> Compressor<W> {
    /// Writes the remaining bytes.
    pub fn finish(self) -> io::Result<()> {
        match self {
            Self::Plain(mut out) => out.flush(),
            Self::Gzip(encoder) => encoder.finish()?.flush(),
            Self::Zstd(encoder) => encoder.finish()?.flush(),
        }
    }
}

impl<W: Write> Write for Compressor<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(out) => out.write(bytes),
            Self::Gzip(encoder) => encoder.write(bytes),
            Self::Zstd(encoder) => encoder.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(out) => out.flush(),
            Self::Gzip(encoder) => encoder.flush(),
            Self::Zstd(encoder) => encoder.flush(),
        }
    }
}

/// How much was written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Exported {
    /// The number of pages.
    pub pages: u64,
    /// The number of their revisions.
    pub revisions: u64,
}

/// Writes the existing pages of a wiki with all their revisions, oldest first.
pub async fn export(
    store: &dyn Store,
    wiki: &Wiki,
    out: &mut (impl Write + Send),
    mut on_progress: impl FnMut(Exported) + Send,
) -> Result<Exported, ExportError> {
    if wiki.site.is_null() {
        return Err(ExportError::Empty(wiki.api.clone()));
    }
    let mut exported = Exported::default();
    out.write_all(head(&wiki.site).as_bytes())?;
    let mut after = i64::MIN;
    loop {
        let pages = store.wiki_pages(wiki.id, after, PAGES).await?;
        let Some(last) = pages.last() else { break };
        after = last.id;
        for page in pages.iter().filter(|page| !page.deleted) {
            exported.revisions += write_page(store, wiki, page, out).await?;
            exported.pages += 1;
            on_progress(exported);
        }
    }
    out.write_all(b"</mediawiki>\n")?;
    Ok(exported)
}

async fn write_page(
    store: &dyn Store,
    wiki: &Wiki,
    page: &WikiPage,
    out: &mut (impl Write + Send),
) -> Result<u64, ExportError> {
    let mut text = format!(
        "  <page>\n    <title>{}</title>\n    <ns>{}</ns>\n    <id>{}</id>\n",
        escaped(&page.title),
        page.namespace,
        page.id
    );
    let (mut revisions, mut after) = (0, i64::MIN);
    loop {
        let history = store.page_history(wiki.id, page.id, after, AT_ONCE).await?;
        let Some(last) = history.last() else { break };
        after = last.id;
        for revision in &history {
            write_revision(revision, &mut text)
                .map_err(|what| ExportError::Damaged { revision: revision.id, what })?;
            out.write_all(text.as_bytes())?;
            text.clear();
            revisions += 1;
        }
    }
    text.push_str("  </page>\n");
    out.write_all(text.as_bytes())?;
    Ok(revisions)
}

fn write_revision(revision: &Revision, text: &mut String) -> Result<(), String> {
    text.push_str(&format!("    <revision>\n      <id>{}</id>\n", revision.id));
    if revision.parent != 0 {
        text.push_str(&format!("      <parentid>{}</parentid>\n", revision.parent));
    }
    text.push_str(&format!("      <timestamp>{}</timestamp>\n", revision.at));
    let hidden = revision.hidden;
    match (&revision.user, hidden.user) {
        (Some(user), false) => text.push_str(&contributor(user, revision.user_id)),
        _ => text.push_str("      <contributor deleted=\"deleted\" />\n"),
    }
    if revision.minor {
        text.push_str("      <minor />\n");
    }
    match (&revision.comment, hidden.comment) {
        (_, true) => text.push_str("      <comment deleted=\"deleted\" />\n"),
        (Some(comment), false) if !comment.is_empty() => {
            text.push_str(&format!("      <comment>{}</comment>\n", escaped(comment)));
        }
        _ => {}
    }
    let main = revision.slots.iter().find(|slot| slot.role == MAIN);
    match main {
        Some(slot) => write_slot(revision, slot, "      ", text)?,
        None => text.push_str(&format!(
            "      <origin>{}</origin>\n      <model>wikitext</model>\n      <format>text/x-wiki</format>\n      \
             <text bytes=\"{}\" deleted=\"deleted\" />\n",
            revision.id, revision.size
        )),
    }
    for slot in revision.slots.iter().filter(|slot| slot.role != MAIN) {
        text.push_str(&format!("      <content>\n        <role>{}</role>\n", escaped(&slot.role)));
        write_slot(revision, slot, "        ", text)?;
        text.push_str("      </content>\n");
    }
    match &revision.sha1 {
        Some(sha1) if !hidden.text && !sha1.is_empty() => {
            text.push_str(&format!("      <sha1>{}</sha1>\n", base36(sha1)));
        }
        _ => text.push_str("      <sha1 />\n"),
    }
    text.push_str("    </revision>\n");
    Ok(())
}

fn write_slot(revision: &Revision, slot: &Slot, indent: &str, text: &mut String) -> Result<(), String> {
    let model = if slot.model.is_empty() { "wikitext" } else { &slot.model };
    let format = if slot.format.is_empty() { "text/x-wiki" } else { &slot.format };
    text.push_str(&format!(
        "{indent}<origin>{}</origin>\n{indent}<model>{}</model>\n{indent}<format>{}</format>\n",
        revision.id,
        escaped(model),
        escaped(format)
    ));
    match slot.content.as_ref().filter(|_| !revision.hidden.text) {
        Some(content) => {
            let plain = decompress(content)?;
            let sha1 = base36(&hex(&content.sha1));
            text.push_str(&format!(
                "{indent}<text bytes=\"{}\" sha1=\"{sha1}\" xml:space=\"preserve\"",
                plain.len()
            ));
            match plain.is_empty() {
                true => text.push_str(" />\n"),
                false => {
                    text.push('>');
                    text.push_str(&escaped(&plain));
                    text.push_str("</text>\n");
                }
            }
        }
        None => text.push_str(&format!(
            "{indent}<text bytes=\"{}\" deleted=\"deleted\" xml:space=\"preserve\" />\n",
            revision.size
        )),
    }
    Ok(())
}

fn contributor(user: &str, id: i64) -> String {
    let who = match id == 0 && user.parse::<IpAddr>().is_ok() {
        true => format!("        <ip>{}</ip>\n", escaped(user)),
        false => format!("        <username>{}</username>\n        <id>{id}</id>\n", escaped(user)),
    };
    format!("      <contributor>\n{who}      </contributor>\n")
}

/// The head of a dump.
fn head(site: &Value) -> String {
    let general = |name: &str| escaped(site["general"][name].as_str().unwrap_or_default());
    let mut namespaces: Vec<&Value> = site["namespaces"].as_array().into_iter().flatten().collect();
    namespaces.sort_by_key(|one| one["id"].as_i64());
    let namespaces: String = namespaces.iter().map(|one| namespace(one)).collect();
    format!(
        "<mediawiki xmlns=\"{SCHEMA}\" xmlns:xsi=\"http://www.w3.org/2001/XMLSchema-instance\" \
         xsi:schemaLocation=\"{SCHEMA} http://www.mediawiki.org/xml/export-0.11.xsd\" version=\"0.11\" \
         xml:lang=\"{}\">\n  <siteinfo>\n    <sitename>{}</sitename>\n    <dbname>{}</dbname>\n    <base>{}</base>\n    \
         <generator>{}</generator>\n    <case>{}</case>\n    <namespaces>\n{namespaces}    </namespaces>\n  \
         </siteinfo>\n",
        general("lang"),
        general("sitename"),
        general("wikiid"),
        general("base"),
        general("generator"),
        general("case"),
    )
}

fn namespace(one: &Value) -> String {
    let (id, case) = (one["id"].as_i64().unwrap_or(0), one["case"].as_str().unwrap_or("first-letter"));
    match one["name"].as_str().unwrap_or_default() {
        "" => format!("      <namespace key=\"{id}\" case=\"{}\" />\n", escaped(case)),
        name => {
            format!(
                "      <namespace key=\"{id}\" case=\"{}\">{}</namespace>\n",
                escaped(case),
                escaped(name)
            )
        }
    }
}

/// Escapes text for XML; characters that are not allowed in XML are replaced.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len() + text.len() / 16);
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            // Otherwise XML parsers convert it to a line feed.
            '\r' => escaped.push_str("&#13;"),
            '\n' | '\t' => escaped.push(c),
            c if c.is_control() && (c as u32) < 0x20 || matches!(c, '\u{fffe}' | '\u{ffff}') => {
                escaped.push('\u{fffd}');
            }
            c => escaped.push(c),
        }
    }
    escaped
}

/// A SHA-1 in MediaWiki's format: 31 digits in base 36.
fn base36(hex: &str) -> String {
    let mut digits: Vec<u8> = vec![0; 31];
    for nibble in hex.chars().filter_map(|c| c.to_digit(16)) {
        let mut carry = nibble;
        for digit in digits.iter_mut().rev() {
            let value = u32::from(*digit) * 16 + carry;
            *digit = (value % 36) as u8;
            carry = value / 36;
        }
    }
    digits.iter().filter_map(|digit| char::from_digit(u32::from(*digit), 36)).collect()
}

const SCHEMA: &str = "http://www.mediawiki.org/xml/export-0.11/";
/// How many pages are read at once.
const PAGES: u32 = 500;
/// How many compressed bytes of history are read at once.
const AT_ONCE: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sha1_is_written_in_the_format_of_mediawiki() {
        assert_eq!(base36("5a660a9f9b991ef75625f7588361c22c67594fb6"), "ak57214hltr5jubz8gg61m7ok8373cm");
        assert_eq!(base36("0"), "0".repeat(31));
    }

    #[test]
    fn text_is_escaped() {
        assert_eq!(escaped("a<b>&\"c\"\u{1}\n\r"), "a&lt;b&gt;&amp;&quot;c&quot;\u{fffd}\n&#13;");
    }
}
