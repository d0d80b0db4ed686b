//! Maps the tags of RSS and Atom to the fields that are read. Attributes are handled in `feed_xml`.

use super::xml::{Space, Tag};

/// The meaning of a tag, whatever its name in a dialect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Field {
    ChannelTitle,
    Ttl,
    Period,
    Frequency,
    SkipHours,
    SkipDays,
    Guid {
        is_link: bool,
    },
    Link,
    Title,
    /// The title in another vocabulary, for entries without a title of their own.
    OtherTitle,
    Published,
    Updated,
    Summary,
    Content,
    /// A person, with or without nested tags.
    Author,
    Creator,
    Category,
    /// The caption of an image or video, used if there is no summary.
    Caption,
}

/// The field of a tag directly inside a channel, if it is read.
pub(super) fn channel_field(tag: &Tag<'_>) -> Option<Field> {
    match (tag.space, tag.name()) {
        (Space::Core | Space::DublinCore, "title") => Some(Field::ChannelTitle),
        (Space::Core, "ttl") => Some(Field::Ttl),
        (Space::Core, "author") => Some(Field::Author),
        (Space::Core, "skipHours") => Some(Field::SkipHours),
        (Space::Core, "skipDays") => Some(Field::SkipDays),
        (Space::Syndication, "updatePeriod") => Some(Field::Period),
        (Space::Syndication, "updateFrequency") => Some(Field::Frequency),
        _ => None,
    }
}

/// The field of a tag directly inside an entry, if it is read.
pub(super) fn entry_field(tag: &Tag<'_>) -> Option<Field> {
    match (tag.space, tag.name()) {
        (Space::Core, "guid") => {
            let is_link =
                tag.attribute("isPermaLink").is_none_or(|text| !text.trim().eq_ignore_ascii_case("false"));
            Some(Field::Guid { is_link })
        }
        (Space::Core, "id") => Some(Field::Guid { is_link: false }),
        (Space::Core, "link") => Some(Field::Link),
        (Space::Core, "title") => Some(Field::Title),
        (Space::DublinCore, "title") => Some(Field::OtherTitle),
        (Space::Core, "pubDate" | "published" | "issued" | "created") => Some(Field::Published),
        (Space::DublinCore, "date" | "issued" | "created") => Some(Field::Published),
        (Space::Core, "updated" | "modified") | (Space::DublinCore, "modified") => Some(Field::Updated),
        (Space::Core, "description" | "summary") | (Space::DublinCore, "description") => Some(Field::Summary),
        (Space::Core, "content") | (Space::Content, "encoded") => Some(Field::Content),
        (Space::Core, "author") => Some(Field::Author),
        (Space::DublinCore, "creator") | (Space::Podcast, "author") => Some(Field::Creator),
        (Space::Core, "category") | (Space::DublinCore, "subject") => Some(Field::Category),
        (Space::Media, "description") => Some(Field::Caption),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connectors::xml::{Part, Xml};

    fn field(tag: &str, of: fn(&Tag<'_>) -> Option<Field>) -> Option<Field> {
        let text = format!("<item>{tag}");
        let mut xml = Xml::new(&text);
        match (xml.next(), xml.next()) {
            (Ok(Part::Open(_)), Ok(Part::Open(tag))) => of(&tag),
            _ => None,
        }
    }

    #[test]
    fn tags_of_all_dialects_are_mapped() {
        for (tag, expected) in [
            ("<guid>", Some(Field::Guid { is_link: true })),
            ("<guid isPermaLink=' FALSE '>", Some(Field::Guid { is_link: false })),
            ("<id>", Some(Field::Guid { is_link: false })),
            ("<pubDate>", Some(Field::Published)),
            ("<dc:date>", Some(Field::Published)),
            ("<issued>", Some(Field::Published)),
            ("<modified>", Some(Field::Updated)),
            ("<content:encoded>", Some(Field::Content)),
            ("<media:title>", None),
            ("<itunes:summary>", None),
            ("<dc:title>", Some(Field::OtherTitle)),
            ("<author>", Some(Field::Author)),
            ("<dc:creator>", Some(Field::Creator)),
            ("<media:description>", Some(Field::Caption)),
        ] {
            assert_eq!(field(tag, entry_field), expected, "{tag}");
        }
        assert_eq!(field("<sy:updatePeriod>", channel_field), Some(Field::Period));
        assert_eq!(field("<updatePeriod>", channel_field), None);
    }
}
