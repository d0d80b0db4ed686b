//! Collects the details of a feed entry besides its link, title and date: texts, authors, categories and enclosures.
//! There are limits on everything, and what was truncated is recorded.
//!
//! Where these are in a feed is known to `feed_xml` and `feed_json`.

use comity_store::details::{Details, Enclosure, Markup, Passage};
use url::Url;

use crate::redact;

/// Builds the details of an entry.
#[derive(Default)]
pub(super) struct DetailsBuilder {
    details: Details,
    authors: Vec<String>,
}

impl DetailsBuilder {
    /// Adds an author; `text` may be anything.
    pub(super) fn author(&mut self, text: &str) {
        if let Some(name) = redact::line(text) {
            add(&mut self.authors, name, AUTHORS_MAX, "author", &mut self.details.truncated);
        }
    }

    /// Whether there is an author.
    pub(super) fn has_author(&self) -> bool {
        !self.authors.is_empty()
    }

    /// Adds a category.
    pub(super) fn category(&mut self, text: &str) {
        if let Some(name) = redact::line(text) {
            let Details { categories, truncated, .. } = &mut self.details;
            add(categories, name, CATEGORIES_MAX, "categories", truncated);
        }
    }

    /// Adds an enclosed file.
    pub(super) fn enclosure(&mut self, url: &Url, media_type: Option<&str>, length: Option<u64>) {
        let media_type = media_type.and_then(redact::line);
        let file = Enclosure { url: url.to_string(), media_type, length };
        let Details { enclosures, truncated, .. } = &mut self.details;
        if enclosures.iter().any(|known| known.url == file.url) {
            return;
        }
        match enclosures.len() < ENCLOSURES_MAX {
            true => enclosures.push(file),
            false => mark_truncated("enclosures", truncated),
        }
    }

    /// The details, completed by their texts.
    pub(super) fn build(mut self, summary: (&str, Markup), content: (&str, Markup)) -> Details {
        self.details.summary = self.passage("summary", summary, SUMMARY_MAX);
        self.details.content = self.passage("content", content, CONTENT_MAX);
        self.details.author = (!self.authors.is_empty()).then(|| self.authors.join(", "));
        self.details
    }

    fn passage(&mut self, name: &str, (text, markup): (&str, Markup), most: usize) -> Option<Passage> {
        let text = text.trim();
        if text.len() > most {
            mark_truncated(name, &mut self.details.truncated);
        }
        let text = text.get(..text.floor_char_boundary(most)).unwrap_or_default();
        // Text doesn't need control characters, and they can cause trouble in a database or a terminal.
        let kept: String =
            text.chars().filter(|c| !c.is_control() || matches!(c, '\n' | '\r' | '\t')).collect();
        (!kept.is_empty()).then_some(Passage { text: kept, markup })
    }
}

/// Adds a name, unless it is there already or there is no room.
fn add(names: &mut Vec<String>, name: String, most: usize, what: &str, truncated: &mut Vec<String>) {
    if names.contains(&name) {
        return;
    }
    match names.len() < most {
        true => names.push(name),
        false => mark_truncated(what, truncated),
    }
}

fn mark_truncated(what: &str, truncated: &mut Vec<String>) {
    if !truncated.iter().any(|known| known == what) {
        truncated.push(what.to_owned());
    }
}

/// The maximum length of a content, in bytes.
pub const CONTENT_MAX: usize = 1 << 20;
/// The maximum length of a summary, in bytes.
pub const SUMMARY_MAX: usize = 64 << 10;
const AUTHORS_MAX: usize = 20;
const CATEGORIES_MAX: usize = 50;
const ENCLOSURES_MAX: usize = 50;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connectors::feed::test_support::{parsed, rss};

    /// The details of the first item, in short.
    fn details(text: &str) -> String {
        let details = parsed(text).items.remove(0).details;
        let passage = |passage: Option<Passage>| {
            passage.map_or("-".to_owned(), |Passage { text, markup }| format!("{}:{text}", markup.as_str()))
        };
        let files = details.enclosures.into_iter().map(|file| {
            let length = file.length.map_or("-".to_owned(), |length| length.to_string());
            format!("{} {} {length}", file.url, file.media_type.unwrap_or("-".to_owned()))
        });
        let mut parts = vec![
            details.author.unwrap_or("-".to_owned()),
            details.categories.join("+"),
            passage(details.summary),
            passage(details.content),
        ];
        parts.extend(files);
        parts.extend(details.truncated.into_iter().map(|what| format!("cut {what}")));
        parts.join(" | ")
    }

    #[test]
    fn rss_has_texts_authors_categories_and_enclosures() {
        for (item, expected) in [
            (
                "<author>jo@a.example (Jo)</author><dc:creator>Jo Doe</dc:creator><category>a</category>\
                 <category domain='x'> b\n</category><dc:subject>c</dc:subject><category>a</category>\
                 <description>&lt;p&gt;Short</description><content:encoded><![CDATA[<p>Long</p>]]></content:encoded>\
                 <enclosure url='/x.mp3' type='audio/mpeg' length='123'/>\
                 <media:content url='https://b.example/y.jpg' type='image/jpeg' fileSize='9'/>\
                 <media:group><media:content url='/z.mp4'/><media:content url='/x.mp3'/></media:group>",
                "Jo Doe | a+b+c | html:<p>Short | html:<p>Long</p> | https://a.example/x.mp3 audio/mpeg 123 | \
                 https://b.example/y.jpg image/jpeg 9 | https://a.example/z.mp4 - -",
            ),
            ("<author>jo@a.example (Jo)</author>", "jo@a.example (Jo) |  | - | -"),
            ("<itunes:author>Pod</itunes:author>", "Pod |  | - | -"),
            (
                "<media:group><media:description>Told &amp; shown</media:description></media:group>",
                "- |  | text:Told & shown | -",
            ),
            ("<enclosure url='javascript:x'/><enclosure/><media:content/>", "- |  | - | -"),
            ("<description>One <b>bold</b> word</description>", "- |  | html:One <b>bold</b> word | -"),
            ("<enclosure url='/x' length='-1'/>", "- |  | - | - | https://a.example/x - -"),
            ("<description>a\u{7}b</description>", "- |  | html:ab | -"),
        ] {
            assert_eq!(details(&rss(&format!("<item><link>/1</link>{item}</item>"))), expected, "{item}");
        }
    }

    #[test]
    fn rss_1_0_has_the_same_details() {
        let text = "<rdf:RDF xmlns:rdf='http://www.w3.org/1999/02/22-rdf-syntax-ns#' xmlns='http://purl.org/rss/1.0/' \
            xmlns:dc='http://purl.org/dc/elements/1.1/' xmlns:c='http://purl.org/rss/1.0/modules/content/'>\
            <channel><title>T</title></channel><item><link>https://a.example/1</link><dc:creator>A</dc:creator>\
            <dc:creator>B</dc:creator><dc:subject>s</dc:subject><description>d</description>\
            <c:encoded>e</c:encoded></item></rdf:RDF>";
        assert_eq!(details(text), "A, B | s | html:d | html:e");
    }

    #[test]
    fn atom_texts_have_a_type() {
        let feed = |entry: &str| {
            format!(
                "<feed xmlns='http://www.w3.org/2005/Atom'><author><name>Feed</name></author>\
                 <entry><link href='/1'/>{entry}</entry></feed>"
            )
        };
        for (entry, expected) in [
            (
                "<author><email>a@b</email><name> A </name><uri>u</uri></author><author><name>B</name></author>\
                 <category term='t' label='Label'/><category term='u'/><category/><summary>1 &lt; 2</summary>\
                 <content type='html'>&lt;p&gt;x</content>\
                 <link rel='enclosure' href='a.ogg' type='audio/ogg' length='5'/>",
                "A, B | Label+u | text:1 < 2 | html:<p>x | https://a.example/dir/a.ogg audio/ogg 5",
            ),
            (
                "<content type='xhtml'><div xmlns='http://www.w3.org/1999/xhtml'>1 &lt; 2<br/><b id='&quot;x'>&amp;</b></div></content>",
                "Feed |  | - | html:<div xmlns='http://www.w3.org/1999/xhtml'>1 &lt; 2<br><b id='&quot;x'>&amp;</b></div>",
            ),
            (
                "<content type='xhtml'><h:div xmlns:h='http://www.w3.org/1999/xhtml'><h:p>x</h:p></h:div></content>",
                "Feed |  | - | html:<div xmlns:h='http://www.w3.org/1999/xhtml'><p>x</p></div>",
            ),
            ("<content type='image/png'>iVBOR</content>", "Feed |  | - | -"),
            ("<content type='text/html' mode='escaped'>&lt;i&gt;</content>", "Feed |  | - | html:<i>"),
            ("<content src='/x.html' type='text/html'/>", "Feed |  | - | -"),
        ] {
            assert_eq!(details(&feed(entry)), expected, "{entry}");
        }
    }

    #[test]
    fn json_feed_has_the_same_details_under_other_names() {
        let feed = |item: &str| {
            format!(
                "{{\"version\":\"https://jsonfeed.org/version/1.1\",\"authors\":[{{\"name\":\"Feed\"}}],\
                 \"items\":[{{\"url\":\"/1\",{item}}}]}}"
            )
        };
        for (item, expected) in [
            (
                r#""authors":[{"name":"A"},{"url":"x"},7],"author":{"name":"Old"},"tags":["t",7,"u"],"summary":"s",
                "content_html":"<p>","content_text":"c","attachments":[{"url":"/x.mp3","mime_type":"audio/mpeg",
                "size_in_bytes":4},{"url":7},{"url":"ftp://x"}]"#,
                "A | t+u | text:s | html:<p> | https://a.example/x.mp3 audio/mpeg 4",
            ),
            (r#""author":{"name":"Old"},"content_text":"c <d""#, "Old |  | - | text:c <d"),
            (r#""content_text":"a\u0000b""#, "Feed |  | - | text:ab"),
        ] {
            assert_eq!(details(&feed(item)), expected, "{item}");
        }
    }

    #[test]
    fn what_exceeds_a_limit_is_truncated_and_recorded() {
        let many = |tag: &str| (0..60).map(|n| tag.replace('#', &n.to_string())).collect::<String>();
        let item = format!(
            "<item><link>/1</link>{}{}{}<description>{}</description><content:encoded>{}</content:encoded></item>",
            many("<dc:creator>a#</dc:creator>"),
            many("<category>c#</category>"),
            many("<enclosure url='/e#'/>"),
            "é".repeat(SUMMARY_MAX),
            "x".repeat(CONTENT_MAX + 1),
        );
        let details = parsed(&rss(&item)).items.remove(0).details;
        assert_eq!(details.truncated, ["author", "categories", "enclosures", "summary", "content"]);
        assert_eq!((details.categories.len(), details.enclosures.len()), (CATEGORIES_MAX, ENCLOSURES_MAX));
        assert_eq!(details.author.unwrap().split(", ").count(), AUTHORS_MAX);
        assert_eq!(details.summary.unwrap().text.len(), SUMMARY_MAX);
        assert_eq!(details.content.unwrap().text.len(), CONTENT_MAX);
        let fits =
            format!("<item><link>/1</link><description>{}</description></item>", "x".repeat(SUMMARY_MAX));
        assert!(parsed(&rss(&fits)).items[0].details.truncated.is_empty());
    }
}
