//! Reads a WARC file record by record, to find out how much of it is complete and which payloads it contains.

use std::io::{self, BufRead, BufReader, Read};

use flate2::bufread::GzDecoder;

use super::digest::Digest;
use super::exchange::Payload;
use super::head::{self, Framing};
use super::known_payloads::Original;
use super::record::Id;

/// The complete records at the start of a file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct CompletePart {
    pub(super) records: u64,
    pub(super) bytes: u64,
}

/// Reads records until the end or the first incomplete one. Calls `on_payload` for each payload that revisits can refer
/// to.
pub(super) fn read(file: impl Read, mut on_payload: impl FnMut(Payload, Original)) -> CompletePart {
    let mut counted = Counted { inner: BufReader::with_capacity(64 << 10, file), count: 0 };
    let mut complete = CompletePart::default();
    let mut start = Vec::new();
    while counted.fill_buf().is_ok_and(|buffer| !buffer.is_empty()) {
        start.clear();
        let mut member = GzDecoder::new(&mut counted);
        let read = (&mut member).take(START_MAX).read_to_end(&mut start);
        if read.and_then(|_| io::copy(&mut member, &mut io::sink())).is_err() {
            break;
        }
        complete = CompletePart { records: complete.records + 1, bytes: counted.count };
        if let Some((payload, original)) = original(&start) {
            on_payload(payload, original);
        }
    }
    complete
}

/// The content of a file in memory.
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WarcRead {
    /// The number of complete records.
    pub records: u64,
    /// Their size.
    pub bytes: u64,
    /// How many of them revisits can refer to.
    pub originals: u64,
}

/// Reads a file in memory.
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub fn read_warc(file: &[u8]) -> WarcRead {
    let mut originals = 0;
    let CompletePart { records, bytes } = read(file, |_, _| originals += 1);
    WarcRead { records, bytes, originals }
}

/// The payload of a record that starts like this, if revisits can refer to it.
fn original(start: &[u8]) -> Option<(Payload, Original)> {
    let end = head::end(start, 0)?;
    let header = std::str::from_utf8(&start[..end]).ok()?;
    let field = |name: &str| {
        header.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": ")).map(str::trim_end)
    };
    if field("WARC-Type") != Some("response") || field("WARC-Truncated").is_some() {
        return None;
    }
    let digest = Digest::parse(field("WARC-Payload-Digest")?)?;
    let response = &start[end..];
    let response = &response[..head::end(response, 0)?];
    // The digest of a chunked response includes its framing; the digest of its payload would have to be calculated.
    if head::framing(response) == Framing::Chunked || digest == Digest::of(b"") {
        return None;
    }
    let original = Original {
        id: Id::parse(field("WARC-Record-ID")?)?,
        url: field("WARC-Target-URI")?.into(),
        date: field("WARC-Date")?.into(),
        digest,
    };
    Some((Payload { digest, is_chunked: false }, original))
}

/// A reader that counts the bytes read from it.
struct Counted<R> {
    inner: R,
    count: u64,
}

impl<R: BufRead> Read for Counted<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(into)?;
        self.count += read as u64;
        Ok(read)
    }
}

impl<R: BufRead> BufRead for Counted<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.inner.fill_buf()
    }

    fn consume(&mut self, amount: usize) {
        self.count += amount as u64;
        self.inner.consume(amount);
    }
}

/// How much of a record is read: its header and the response head.
const START_MAX: u64 = 32 << 10;

#[cfg(test)]
mod tests {
    use comity_core::time::Timestamp;

    use super::super::record::Header;
    use super::*;

    fn record(body: &str) -> Vec<u8> {
        let mut header = Header::new("response", Id::random().unwrap(), Timestamp::from_secs(0));
        header.add("WARC-Target-URI", "http://a.example/");
        header.add("WARC-Payload-Digest", Digest::of(body.as_bytes()));
        let block = format!("HTTP/1.1 200 OK\r\n\r\n{body}");
        let mut packed = Vec::new();
        header.pack(block.len() as u64, &mut block.as_bytes(), &mut packed).unwrap();
        packed
    }

    /// Wherever a file is truncated, the complete records before that are found.
    #[test]
    fn a_truncated_file_is_complete_up_to_its_last_complete_record() {
        let records = [record("one"), record(&"two".repeat(1_000)), record("three")];
        let file = records.concat();
        let ends = [0, records[0].len(), records[0].len() + records[1].len(), file.len()];
        for cut in 0..=file.len() {
            let mut found = 0;
            let complete = read(&file[..cut], |_, _| found += 1);
            let count = ends.iter().filter(|end| **end <= cut).count() - 1;
            let expected = CompletePart { records: count as u64, bytes: ends[count] as u64 };
            assert_eq!(complete, expected, "cut at {cut}");
            assert_eq!(found, count);
        }
        let complete = read(&[&file[..], &[0; 100]].concat()[..], |_, _| {});
        assert_eq!(complete.bytes, file.len() as u64, "zeros at the end, as after a power failure");
        let mut corrupted = file.clone();
        corrupted[ends[1] + 40] ^= 1;
        assert_eq!(read(&corrupted[..], |_, _| {}).records, 1);
    }

    #[test]
    fn payloads_are_found() {
        let mut found = Vec::new();
        read(&[record("one"), record("")].concat()[..], |payload, original| found.push((payload, original)));
        let [(payload, original)] = &found[..] else { panic!("{found:?}") };
        assert_eq!(payload.digest, Digest::of(b"one"));
        assert_eq!((&*original.url, &*original.date), ("http://a.example/", "1970-01-01T00:00:00Z"));
    }
}
