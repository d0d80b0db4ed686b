//! Compressed and sealed inputs. Random bytes would hardly get in, so the targets compress and seal them first.

use std::io::Write;

use comity::archive::read_warc;
use comity_server::PermitSigner;
use flate2::Compression;
use flate2::write::GzEncoder;

/// A WARC file is valid up to some point, and whatever follows does not change that.
pub fn warc(data: &[u8]) {
    let raw = read_warc(data);
    assert!(raw.bytes <= data.len() as u64 && raw.originals <= raw.records);
    let whole = usize::try_from(raw.bytes).unwrap_or(usize::MAX);
    assert_eq!(read_warc(&data[..whole]), raw, "without the incomplete part");
    // Records with any content, each in its own gzip member, are all complete.
    let records: Vec<Vec<u8>> = data.split(|octet| *octet == 0).map(compressed).collect();
    let file = records.concat();
    let read = read_warc(&file);
    assert_eq!((read.records, read.bytes), (records.len() as u64, file.len() as u64));
    // Without its last byte, the last one is not.
    let cut = read_warc(&file[..file.len() - 1]);
    assert_eq!(cut.records, read.records - 1);
    assert_eq!(cut.bytes + records.last().map_or(0, Vec::len) as u64, read.bytes);
}

fn compressed(record: &[u8]) -> Vec<u8> {
    let mut compressed = GzEncoder::new(Vec::new(), Compression::fast());
    compressed.write_all(record).and_then(|()| compressed.finish()).expect("memory can be written to")
}

/// No text is a permit unless it was sealed, and a permit that was read is written as one that reads the same.
pub fn permits(data: &[u8]) {
    let (signer, other) = (PermitSigner::of_secret(b"secret"), PermitSigner::of_secret(b"other"));
    let text = String::from_utf8_lossy(data);
    assert_eq!(signer.verify(&text), None, "made up");
    let sealed = signer.sealed(data);
    assert_eq!(other.verify(&sealed), None, "of another store");
    let Some(permit) = signer.verify(&sealed) else { return };
    let written = signer.sign(&permit);
    assert_eq!(signer.verify(&written).as_ref(), Some(&permit));
    // With one letter added, removed or changed, it is not a permit.
    let at = data.len() % (written.len() - 3) + 3;
    let other = if written.as_bytes()[at] == b'A' { "B" } else { "A" };
    for changed in [
        [&written[..at], other, &written[at + 1..]].concat(),
        [&written[..at], &written[at + 1..]].concat(),
        [&written[..], "A"].concat(),
    ] {
        assert_eq!(signer.verify(&changed), None, "{changed}");
    }
}
