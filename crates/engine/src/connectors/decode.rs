//! Turns the bytes of a response into text: decompresses gzip and decodes the character set.
//!
//! The character set is the first known of these: a byte order mark, the `charset` of the content type, the
//! declaration in the document, UTF-8. Bytes that are invalid in it become U+FFFD; decoding never fails.

use std::borrow::Cow;
use std::io::Read;

use encoding_rs::{Encoding, UTF_8, UTF_16BE, UTF_16LE};
use flate2::read::MultiGzDecoder;

use super::Unreadable;

/// The bytes of `body`, decompressed if they are gzip, such as those of a `sitemap.xml.gz`.
pub(super) fn decompressed<'a>(body: &'a [u8], expected: &'static str) -> Result<Cow<'a, [u8]>, Unreadable> {
    if !is_gzip(body) {
        return Ok(Cow::Borrowed(body));
    }
    let mut bytes = Vec::new();
    match MultiGzDecoder::new(body).take(BYTES_MAX + 1).read_to_end(&mut bytes) {
        Ok(_) if bytes.len() as u64 > BYTES_MAX => {
            Err(Unreadable::TooLarge { expected, bytes_max: BYTES_MAX })
        }
        Ok(_) => Ok(Cow::Owned(bytes)),
        Err(error) => {
            let at = bytes.len() as u64;
            Err(Unreadable::Broken { expected, format: "gzip", at, why: error.to_string() })
        }
    }
}

/// The start of `body`, decompressed if it is gzip, to find out what it is.
pub(super) fn start(body: &[u8]) -> Cow<'_, [u8]> {
    if !is_gzip(body) {
        return Cow::Borrowed(body.get(..START).unwrap_or(body));
    }
    let mut bytes = Vec::new();
    // What was decompressed before an error is still useful.
    let _ = MultiGzDecoder::new(body).take(START as u64).read_to_end(&mut bytes);
    Cow::Owned(bytes)
}

/// The text of XML, JSON or plain lines.
pub(super) fn xml<'a>(body: &'a [u8], content_type: Option<&str>) -> Cow<'a, str> {
    decoded(body, content_type, |head| label_after(head, "encoding"))
}

/// The text of HTML.
pub(super) fn html<'a>(body: &'a [u8], content_type: Option<&str>) -> Cow<'a, str> {
    decoded(body, content_type, |head| label_after(head, "charset"))
}

fn decoded<'a>(
    body: &'a [u8],
    content_type: Option<&str>,
    declared: impl Fn(&str) -> Option<&str>,
) -> Cow<'a, str> {
    if let Some((encoding, mark_len)) = Encoding::for_bom(body) {
        let body = body.get(mark_len..).unwrap_or_default();
        return encoding.decode_without_bom_handling(body).0;
    }
    let head: String = body.iter().take(HEAD).map(|byte| char::from(*byte).to_ascii_lowercase()).collect();
    let content_type = content_type.unwrap_or_default().to_ascii_lowercase();
    let encoding = [label_after(&content_type, "charset"), declared(&head)]
        .into_iter()
        .flatten()
        .filter_map(|label| Encoding::for_label_no_replacement(label.as_bytes()))
        .find(|encoding| !is_16_bit(encoding) || head.contains('\0'));
    let encoding = encoding.or(unmarked_16_bit(body)).unwrap_or(UTF_8);
    encoding.decode_without_bom_handling(body).0
}

/// The label in `key=label`, `key="label"` or `key = 'label'`.
fn label_after<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.match_indices(key).find_map(|(at, _)| {
        let rest = text.get(at + key.len()..)?.trim_start().strip_prefix('=')?;
        let rest = rest.trim_start().trim_start_matches(['"', '\'']);
        let end = |letter: char| !(letter.is_ascii_alphanumeric() || "-_:.+".contains(letter));
        rest.get(..rest.find(end).unwrap_or(rest.len())).filter(|label| !label.is_empty())
    })
}

/// Whether this is UTF-16. A document that declares it in text readable as 8 bits is mistaken.
fn is_16_bit(encoding: &'static Encoding) -> bool {
    encoding == UTF_16LE || encoding == UTF_16BE
}

/// UTF-16 without a byte order mark, detected by the first tag or brace as the XML standard suggests.
fn unmarked_16_bit(body: &[u8]) -> Option<&'static Encoding> {
    match body {
        [b'<' | b'{', 0, ..] => Some(UTF_16LE),
        [0, b'<' | b'{', ..] => Some(UTF_16BE),
        _ => None,
    }
}

fn is_gzip(body: &[u8]) -> bool {
    body.starts_with(&[0x1f, 0x8b])
}

/// The maximum size after decompression, which is the limit of the sitemap protocol.
const BYTES_MAX: u64 = 50 * 1024 * 1024;
/// A declaration of the character set must be within this many bytes.
const HEAD: usize = 1024;
/// How many bytes are enough to recognize the kind of a document.
const START: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    #[test]
    fn the_bom_overrides_the_header_and_the_header_overrides_the_declaration() {
        for (body, content_type, text) in [
            (&b"\xef\xbb\xbf\xc3\xa9"[..], Some("text/xml; charset=iso-8859-1"), "é"),
            (b"\xff\xfe\xe9\x00", Some("text/xml; charset=utf-8"), "é"),
            (b"\xfe\xff\x00\xe9", None, "é"),
            (b"\xe9", Some("text/xml; charset=ISO-8859-1"), "é"),
            (b"\x80", Some("text/xml; Charset = \"windows-1252\"; x=y"), "€"),
            (b"\xc3\xa9", Some("text/xml; charset=nonsense"), "é"),
            (b"\xc3\xa9", None, "é"),
            (b"\xe9", None, "\u{fffd}"),
        ] {
            assert_eq!(xml(body, content_type), text, "{body:?}");
        }
        let declared = b"<?xml version='1.0' encoding='Shift_JIS'?>\x93\xfa";
        assert!(xml(declared, None).ends_with("日"));
        assert!(xml(declared, Some("text/xml; charset=windows-1252")).ends_with("“ú"));
        assert!(html(b"<meta charset=windows-1252>\x80", None).ends_with("€"));
        let http_equiv = b"<meta http-equiv=content-type content='text/html; charset=koi8-r'>\xc1";
        assert!(html(http_equiv, None).ends_with("а"));
    }

    #[test]
    fn utf16_without_bom_is_detected_and_a_wrong_declaration_ignored() {
        let wide: Vec<u8> = "<a>é</a>".encode_utf16().flat_map(u16::to_le_bytes).collect();
        assert_eq!(xml(&wide, None), "<a>é</a>");
        let wide: Vec<u8> = "<a>é</a>".encode_utf16().flat_map(u16::to_be_bytes).collect();
        assert_eq!(xml(&wide, None), "<a>é</a>");
        assert_eq!(xml("<?xml encoding='utf-16'?>é".as_bytes(), None), "<?xml encoding='utf-16'?>é");
    }

    #[test]
    fn gzip_is_decompressed_up_to_a_limit() {
        let packed = |bytes: &[u8]| {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(bytes).unwrap();
            encoder.finish().unwrap()
        };
        assert_eq!(&*decompressed(&packed(b"hello"), "a feed").unwrap(), b"hello");
        let bomb = packed(&vec![b' '; BYTES_MAX as usize + 1]);
        let error = decompressed(&bomb, "a sitemap").unwrap_err();
        assert_eq!(error, Unreadable::TooLarge { expected: "a sitemap", bytes_max: BYTES_MAX });
        let error = decompressed(b"\x1f\x8bnonsense", "a feed").unwrap_err().to_string();
        assert!(error.starts_with("not a feed: gzip error at byte 0: "), "{error}");
        assert_eq!(start(&bomb).len(), START);
    }
}
