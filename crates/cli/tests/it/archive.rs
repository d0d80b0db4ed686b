//! Reads WARC files with other tools: `warcio` and `cdxj-indexer` from PyPI, which `./test` installs.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// The archive in a folder, without files that are still being written.
pub(crate) struct Archive {
    folder: PathBuf,
}

/// A record as warcio reads it.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) kind: String,
    pub(crate) url: String,
    headers: Value,
    /// The HTTP status of the response.
    pub(crate) status: String,
    /// The block, one character per byte; empty if it is long.
    pub(crate) block: String,
    /// The decoded payload, one character per byte.
    pub(crate) content: String,
    pub(crate) content_len: u64,
    pub(crate) file: String,
}

impl Archive {
    pub(crate) fn at(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// The finished files, sorted.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        self.ending(".warc.gz")
    }

    /// The files that are being written, or were left by a process that was killed.
    pub(crate) fn open(&self) -> Vec<PathBuf> {
        self.ending(".warc.gz.open")
    }

    /// Asserts that the folder contains only known names, no open files, and only complete and correct records.
    #[track_caller]
    pub(crate) fn assert_closed(&self) {
        let all: Vec<_> =
            std::fs::read_dir(&self.folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(all.len(), self.files().len(), "{all:?}");
        self.check();
    }

    /// Asserts that every finished file is complete, and every digest in it correct.
    #[track_caller]
    pub(crate) fn check(&self) {
        let files = self.files();
        if files.is_empty() {
            return;
        }
        let checked = run(Command::new(tool("warcio")).arg("check").args(&files));
        assert_eq!((checked.0.as_str(), checked.1.as_str()), ("", ""), "warcio check");
    }

    /// The lines of a CDX index.
    #[track_caller]
    pub(crate) fn index(&self) -> Vec<Value> {
        let (lines, said) = run(Command::new(tool("cdxj-indexer")).args(self.files()));
        assert_eq!(said, "", "cdxj-indexer");
        let json = |line: &str| serde_json::from_str(&line[line.find('{').unwrap()..]).unwrap();
        lines.lines().map(json).collect()
    }

    #[track_caller]
    pub(crate) fn records(&self) -> Vec<Record> {
        let (lines, said) = run(Command::new(tool("python")).args(["-c", READER]).args(self.files()));
        assert_eq!(said, "", "warcio");
        lines.lines().map(|line| Record::new(&serde_json::from_str(line).unwrap())).collect()
    }

    /// The records of a type for a path.
    #[track_caller]
    pub(crate) fn of(&self, kind: &str, path: &str) -> Vec<Record> {
        let records = self.records().into_iter();
        records.filter(|record| record.kind == kind && record.url.ends_with(path)).collect()
    }

    /// The only record of a type for a path.
    #[track_caller]
    pub(crate) fn one(&self, kind: &str, path: &str) -> Record {
        let mut found = self.of(kind, path);
        assert_eq!(found.len(), 1, "{kind} {path}: {found:#?}");
        found.remove(0)
    }

    fn ending(&self, ending: &str) -> Vec<PathBuf> {
        let Ok(entries) = std::fs::read_dir(&self.folder) else { return Vec::new() };
        let paths = entries.map(|entry| entry.unwrap().path());
        let mut paths: Vec<_> = paths.filter(|path| path.to_str().unwrap().ends_with(ending)).collect();
        paths.sort();
        paths
    }
}

impl Record {
    fn new(read: &Value) -> Self {
        let text = |name: &str| read[name].as_str().unwrap_or_default().to_owned();
        Self {
            kind: text("kind"),
            url: text("url"),
            headers: read["headers"].clone(),
            status: text("status"),
            block: text("block"),
            content: text("content"),
            content_len: read["content_len"].as_u64().unwrap(),
            file: text("file"),
        }
    }

    /// A field of the WARC header; empty if it is missing.
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers[name].as_str().unwrap_or_default()
    }
}

/// A program that `./test` installs.
pub(crate) fn tool(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let path = root.join("target/python/bin").join(name);
    assert!(path.exists(), "{}: ./test tests installs it", path.display());
    path
}

#[track_caller]
fn run(command: &mut Command) -> (String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let (stdout, stderr) = (text(stdout), text(stderr));
    assert!(status.success(), "{command:?}: {status}\n{stdout}\n{stderr}");
    (stdout, stderr)
}

/// Prints every record as a line of JSON. The file is read twice: for the blocks, and for the decoded content.
const READER: &str = r#"
import io, json, os, sys
from warcio.archiveiterator import ArchiveIterator
from warcio.recordloader import ArcWarcRecordLoader
def text(octets):
    return octets.decode('latin-1') if len(octets) < 1000000 else ''
for path in sys.argv[1:]:
    with open(path, 'rb') as raw, open(path, 'rb') as parsed:
        for one, two in zip(ArchiveIterator(raw, no_record_parse=True), ArchiveIterator(parsed)):
            block, content = one.raw_stream.read(), two.content_stream().read()
            assert len(block) == int(one.rec_headers.get_header('Content-Length')), one.rec_headers
            print(json.dumps({
                'kind': one.rec_type,
                'url': one.rec_headers.get_header('WARC-Target-URI') or '',
                'headers': dict(one.rec_headers.headers),
                'status': two.http_headers.get_statuscode() if two.http_headers else '',
                'block': text(block),
                'content': text(content),
                'content_len': len(content),
                'file': os.path.basename(path),
            }))
"#;
