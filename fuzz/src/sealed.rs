//! What is packed or sealed, so that bytes alone would hardly get in: the targets pack and seal them first.

use std::io::Write;

use comity::archive::read_warc;
use comity_server::Mint;
use flate2::Compression;
use flate2::write::GzEncoder;

/// A WARC file is whole up to some place, and whatever follows does not change that.
pub fn warc(data: &[u8]) {
    let raw = read_warc(data);
    assert!(raw.bytes <= data.len() as u64 && raw.originals <= raw.records);
    let whole = usize::try_from(raw.bytes).unwrap_or(usize::MAX);
    assert_eq!(read_warc(&data[..whole]), raw, "without what is not whole");
    // Records of any content, each a member of its own, are all whole.
    let records: Vec<Vec<u8>> = data.split(|octet| *octet == 0).map(packed).collect();
    let file = records.concat();
    let read = read_warc(&file);
    assert_eq!((read.records, read.bytes), (records.len() as u64, file.len() as u64));
    // Without its last byte the last of them is not.
    let cut = read_warc(&file[..file.len() - 1]);
    assert_eq!(cut.records, read.records - 1);
    assert_eq!(cut.bytes + records.last().map_or(0, Vec::len) as u64, read.bytes);
}

fn packed(record: &[u8]) -> Vec<u8> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(record).and_then(|()| packed.finish()).expect("memory can be written to")
}

/// No text is a permit unless it was sealed, and what a sealed one says is written as something that says the same.
pub fn permits(data: &[u8]) {
    let (mint, other) = (Mint::of_secret(b"secret"), Mint::of_secret(b"other"));
    let text = String::from_utf8_lossy(data);
    assert_eq!(mint.read(&text), None, "made up");
    let sealed = mint.sealed(data);
    assert_eq!(other.read(&sealed), None, "of another store");
    let Some(permit) = mint.read(&sealed) else { return };
    let written = mint.write(&permit);
    assert_eq!(mint.read(&written).as_ref(), Some(&permit));
    // One letter more, fewer or other is none.
    let at = data.len() % (written.len() - 3) + 3;
    let other = if written.as_bytes()[at] == b'A' { "B" } else { "A" };
    for changed in [
        [&written[..at], other, &written[at + 1..]].concat(),
        [&written[..at], &written[at + 1..]].concat(),
        [&written[..], "A"].concat(),
    ] {
        assert_eq!(mint.read(&changed), None, "{changed}");
    }
}
