//! Converts revisions to their stored form: text is compressed and identified by its SHA-1.

use comity_core::time::Timestamp;
use comity_store::wiki::{Compression, Content, Hidden, Revision, Slot};
use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};

use super::responses;

/// Converts a revision of `page`; the error says what is wrong with it.
pub(super) fn revision(page: i64, source: responses::Revision) -> Result<Revision, String> {
    let at = Timestamp::parse(&source.timestamp).unwrap_or_else(|_| {
        tracing::warn!(
            revision = source.revid,
            timestamp = source.timestamp,
            "a revision has an invalid timestamp"
        );
        Timestamp::from_micros(0)
    });
    let mut hidden = Hidden {
        text: false,
        user: source.userhidden,
        comment: source.commenthidden,
        suppressed: source.suppressed,
    };
    let mut received = Vec::with_capacity(source.slots.len());
    for (role, slot) in source.slots {
        let slot: responses::Slot = serde_json::from_value(slot)
            .map_err(|error| format!("revision {}, slot {role}: {error}", source.revid))?;
        received.push((role, slot));
    }
    if received.is_empty() {
        received.push((MAIN.to_owned(), responses::Slot { sha1: None, ..source.only }));
    }
    let mut slots = Vec::with_capacity(received.len());
    for (role, slot) in received {
        hidden.text |= slot.texthidden;
        let content = slot.content.as_deref().map(compress);
        if let (Some(content), Some(sha1)) = (&content, &slot.sha1)
            && hex(&content.sha1) != *sha1
        {
            // APIs normalize text; the SHA-1 of the wiki is stored with the revision.
            tracing::warn!(revision = source.revid, role, "the text of a revision does not match its SHA-1");
        }
        let (model, format) = (slot.contentmodel, slot.contentformat);
        let slot =
            Slot { role, model: model.unwrap_or_default(), format: format.unwrap_or_default(), content };
        // The main slot comes first.
        match slot.role == MAIN {
            true => slots.insert(0, slot),
            false => slots.push(slot),
        }
    }
    Ok(Revision {
        id: source.revid,
        page,
        parent: source.parentid,
        at,
        user: source.user,
        user_id: source.userid,
        comment: source.comment,
        sha1: source.sha1,
        size: source.size,
        minor: source.minor,
        hidden,
        tags: source.tags,
        slots,
    })
}

/// Compresses text to its stored form.
pub(super) fn compress(text: &str) -> Content {
    let sha1 = sha1(text.as_bytes());
    let size = text.len() as u64;
    let compressed = match text.len() {
        ..SMALL => None,
        _ => zstd::bulk::compress(text.as_bytes(), LEVEL).ok().filter(|bytes| bytes.len() < text.len()),
    };
    match compressed {
        Some(bytes) => Content { sha1, size, compression: Compression::Zstd, bytes },
        None => Content { sha1, size, compression: Compression::Plain, bytes: text.as_bytes().to_vec() },
    }
}

/// Decompresses text; an error if it is damaged.
pub(super) fn decompress(content: &Content) -> Result<String, String> {
    let bytes = match content.compression {
        Compression::Plain => content.bytes.clone(),
        Compression::Zstd => {
            let size = usize::try_from(content.size).map_err(|error| error.to_string())?;
            zstd::bulk::decompress(&content.bytes, size).map_err(|error| error.to_string())?
        }
    };
    if sha1(&bytes) != content.sha1 {
        return Err(format!("content {} is damaged", hex(&content.sha1)));
    }
    String::from_utf8(bytes).map_err(|error| error.to_string())
}

/// The SHA-1, by which wikis identify content.
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
/// Shorter text is not worth compressing.
const SMALL: usize = 64;
/// Compresses wikitext to a third at hundreds of megabytes per second.
const LEVEL: i32 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compressed_text_is_restored() {
        for text in ["", "short", "é ✓", &"wikitext ".repeat(10_000)] {
            let compressed = compress(text);
            assert_eq!(decompress(&compressed).as_deref(), Ok(text));
            assert!(compressed.bytes.len() <= text.len());
        }
        assert_eq!(hex(&compress("Hello one").sha1), "5a660a9f9b991ef75625f7588361c22c67594fb6");
        let mut damaged = compress(&"wikitext ".repeat(100));
        damaged.sha1[0] ^= 1;
        assert!(decompress(&damaged).unwrap_err().contains("damaged"));
    }
}
