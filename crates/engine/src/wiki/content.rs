//! Revisions as they are kept: text packed, and known by its SHA-1.

use comity_core::time::Timestamp;
use comity_store::wiki::{Content, Hidden, Packing, Revision, Slot};
use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};

use super::answers;

/// A revision of `page` as it is kept; what is wrong with it otherwise.
pub(super) fn revision(page: i64, said: answers::Revision) -> Result<Revision, String> {
    let at = Timestamp::parse(&said.timestamp).unwrap_or_else(|_| {
        tracing::warn!(
            revision = said.revid,
            timestamp = said.timestamp,
            "a revision of an unreadable moment"
        );
        Timestamp::from_micros(0)
    });
    let mut hidden = Hidden {
        text: false,
        user: said.userhidden,
        comment: said.commenthidden,
        suppressed: said.suppressed,
    };
    let mut given = Vec::with_capacity(said.slots.len());
    for (role, slot) in said.slots {
        let slot: answers::Slot = serde_json::from_value(slot)
            .map_err(|error| format!("revision {}, slot {role}: {error}", said.revid))?;
        given.push((role, slot));
    }
    if given.is_empty() {
        given.push((MAIN.to_owned(), answers::Slot { sha1: None, ..said.only }));
    }
    let mut slots = Vec::with_capacity(given.len());
    for (role, slot) in given {
        hidden.text |= slot.texthidden;
        let content = slot.content.as_deref().map(pack);
        if let (Some(content), Some(sha1)) = (&content, &slot.sha1)
            && hex(&content.sha1) != *sha1
        {
            // APIs normalise what they write; the wiki's own sum is kept with the revision.
            tracing::warn!(revision = said.revid, role, "the text differs from its SHA-1");
        }
        let (model, format) = (slot.contentmodel, slot.contentformat);
        let slot =
            Slot { role, model: model.unwrap_or_default(), format: format.unwrap_or_default(), content };
        // The main one first, whatever the order.
        match slot.role == MAIN {
            true => slots.insert(0, slot),
            false => slots.push(slot),
        }
    }
    Ok(Revision {
        id: said.revid,
        page,
        parent: said.parentid,
        at,
        user: said.user,
        user_id: said.userid,
        comment: said.comment,
        sha1: said.sha1,
        size: said.size,
        minor: said.minor,
        hidden,
        tags: said.tags,
        slots,
    })
}

/// Text as it is kept.
pub(super) fn pack(text: &str) -> Content {
    let sha1 = sha1(text.as_bytes());
    let size = text.len() as u64;
    let packed = match text.len() {
        ..SMALL => None,
        _ => zstd::bulk::compress(text.as_bytes(), LEVEL).ok().filter(|packed| packed.len() < text.len()),
    };
    match packed {
        Some(bytes) => Content { sha1, size, packing: Packing::Zstd, bytes },
        None => Content { sha1, size, packing: Packing::Plain, bytes: text.as_bytes().to_vec() },
    }
}

/// The text that was packed; an error when it is damaged.
pub(super) fn unpack(content: &Content) -> Result<String, String> {
    let bytes = match content.packing {
        Packing::Plain => content.bytes.clone(),
        Packing::Zstd => {
            let size = usize::try_from(content.size).map_err(|error| error.to_string())?;
            zstd::bulk::decompress(&content.bytes, size).map_err(|error| error.to_string())?
        }
    };
    if sha1(&bytes) != content.sha1 {
        return Err(format!("content {} is damaged", hex(&content.sha1)));
    }
    String::from_utf8(bytes).map_err(|error| error.to_string())
}

/// What wikis know content by.
pub(super) fn sha1(bytes: &[u8]) -> [u8; 20] {
    let mut sha1 = [0; 20];
    sha1.copy_from_slice(digest(&SHA1_FOR_LEGACY_USE_ONLY, bytes).as_ref());
    sha1
}

/// Bytes in hexadecimal.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(super) const MAIN: &str = "main";
/// What is shorter is not worth packing.
const SMALL: usize = 64;
/// Packs wikitext to a third at hundreds of megabytes a second.
const LEVEL: i32 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_comes_back_as_it_was() {
        for text in ["", "short", "é ✓", &"wikitext ".repeat(10_000)] {
            let packed = pack(text);
            assert_eq!(unpack(&packed).as_deref(), Ok(text));
            assert!(packed.bytes.len() <= text.len());
        }
        assert_eq!(hex(&pack("Hello one").sha1), "5a660a9f9b991ef75625f7588361c22c67594fb6");
        let mut damaged = pack(&"wikitext ".repeat(100));
        damaged.sha1[0] ^= 1;
        assert!(unpack(&damaged).unwrap_err().contains("damaged"));
    }
}
