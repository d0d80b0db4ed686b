//! `--format warc`: the content of the files, read with `warcio` and a CDX indexer.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::path::PathBuf;

use serde_json::Value;

use crate::archive::{Archive, Record};
use crate::comity::{Done, World};
use crate::follow;
use crate::site::{Answer, Site};
use crate::wire::{Reply, Wire, chunked, page};

/// Fetches these URLs into the archive `pages`.
fn fetch(world: &World, urls: &[String], more: &[&str]) -> Done {
    world.write("list", &urls.join("\n"));
    let args = [&args("one", "ignore")[..], more].concat();
    world.run(&args)
}

/// Fetches these URLs and obeys the site's robots.txt.
fn fetch_politely(world: &World, urls: &[String]) -> Done {
    world.write("list", &urls.join("\n"));
    world.run(&args("one", "obey"))
}

/// Arguments to fetch `list` into the archive `pages`.
fn args<'a>(job: &'a str, robots: &'a str) -> Vec<&'a str> {
    let mut args =
        vec!["--json", "fetch", "--input", "list", "--format", "warc", "--out", "pages", "--delay", "0s"];
    args.extend(["--job", job, "--robots", robots]);
    args
}

fn archive(world: &World) -> Archive {
    Archive::at(world.path("pages"))
}

/// The decompressed content of all files.
fn unpacked(archive: &Archive) -> Vec<u8> {
    let mut octets = Vec::new();
    for file in archive.files() {
        let file = std::fs::File::open(file).unwrap();
        flate2::read::MultiGzDecoder::new(file).read_to_end(&mut octets).unwrap();
    }
    octets
}

fn contains(octets: &[u8], text: &str) -> bool {
    octets.windows(text.len()).any(|window| window == text.as_bytes())
}

fn gzipped(plain: impl AsRef<[u8]>) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(plain.as_ref()).unwrap();
    encoder.finish().unwrap()
}

fn latin1(octets: &[u8]) -> String {
    octets.iter().map(|octet| *octet as char).collect()
}

/// The response for each path, byte by byte.
fn answer(path: &str) -> Vec<u8> {
    let body = format!("<p>{path}</p>").repeat(20);
    match path {
        "/chunked" => chunked("X-Odd-CASE:   kept \r\n", body, 33),
        "/gzip" => page("200 Fine", "content-type: text/html\r\nContent-Encoding: gzip\r\n", gzipped(&body)),
        "/gzip-chunked" => chunked("Content-Encoding: gzip\r\n", gzipped(&body), 7),
        "/gzip-twice" => page("200 OK", "Content-Encoding: gzip, gzip\r\n", gzipped(gzipped(&body))),
        "/empty" => page("200 OK", "", ""),
        "/no-content" => b"HTTP/1.1 204 No Content\r\nX-A: b\r\n\r\n".to_vec(),
        "/moved" => page("301 Moved", "Location: /there\r\n", "it is there"),
        "/missing" => page("404 Not Found", "Content-Type: text/html\r\n", "it is not there"),
        "/bare" => format!("HTTP/1.1 200 OK\nContent-Length: {}\n\n{body}", body.len()).into_bytes(),
        "/latin" => page("200 OK", "X-Name: caf\u{e9}\r\n", [0, 255, 13, 10, 128]),
        "/robots.txt" => {
            page("200 OK", "Content-Type: text/plain\r\n", "User-agent: *\nDisallow: /private\n")
        }
        _ => page("200 OK", "Content-Type: text/html\r\n", body),
    }
}

/// Header lines in their order and case, chunks, encodings, and all kinds of responses, as they were on the wire.
#[test]
fn responses_are_archived_as_they_were_on_the_wire() {
    let wire = Wire::start(|path, _| match path {
        "/early" => {
            let early = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n";
            Reply::Send([early, &answer(path)[..]].concat())
        }
        "/until-close" => Reply::Close(b"HTTP/1.1 200 OK\r\n\r\nuntil the end".to_vec()),
        // Data after the end of a response is not part of it.
        "/surplus" => Reply::Close([&answer(path)[..], b"HTTP/1.1 200 OK\r\n\r\nmore"].concat()),
        path => Reply::Send(answer(path)),
    });
    let world = World::new();
    let urls: Vec<String> = PATHS.iter().map(|path| wire.url(path)).collect();
    let done = fetch_politely(&world, &urls).expect(1).json();
    assert_eq!((done["fetched"].as_u64(), done["failed"].as_u64()), (Some(13), Some(1)), "{done}");
    assert_eq!(done["skipped"], 1, "{done}");
    let archive = archive(&world);
    archive.assert_closed();
    let records = archive.records();
    for path in PATHS.iter().chain(&["/robots.txt", "/there"]).filter(|path| **path != "/private/x") {
        let of = |kind: &str| -> Vec<&Record> {
            records.iter().filter(|record| record.kind == kind && record.url == wire.url(path)).collect()
        };
        let ([response], [request]) = (&of("response")[..], &of("request")[..]) else { panic!("{path}") };
        let sent = match *path {
            "/until-close" => b"HTTP/1.1 200 OK\r\n\r\nuntil the end".to_vec(),
            path => answer(path),
        };
        assert_eq!(response.block, latin1(&sent), "{path}");
        assert_eq!(vec![request.block.clone()], wire.asked(path), "{path}");
        assert_pair(request, response);
    }
    assert_eq!(records.iter().filter(|record| record.url.contains("/private")).count(), 0);
    for path in ["/chunked", "/gzip", "/gzip-chunked"] {
        assert_eq!(archive.one("response", path).content, format!("<p>{path}</p>").repeat(20));
    }
    assert_index_agrees(&archive, &records);
    assert_info(&records);
}

const PATHS: [&str; 15] = [
    "/plain?a=b&c=%20d",
    "/chunked",
    "/gzip",
    "/gzip-chunked",
    "/gzip-twice",
    "/empty",
    "/no-content",
    "/moved",
    "/missing",
    "/bare",
    "/latin",
    "/early",
    "/until-close",
    "/surplus",
    "/private/x",
];

/// Asserts that the WARC fields of a request and its response match.
fn assert_pair(request: &Record, response: &Record) {
    assert_eq!(request.header("WARC-Concurrent-To"), response.header("WARC-Record-ID"));
    assert_eq!(response.header("WARC-Concurrent-To"), request.header("WARC-Record-ID"));
    assert_eq!(request.header("WARC-Date"), response.header("WARC-Date"));
    assert_eq!(request.header("Content-Type"), "application/http;msgtype=request");
    assert_eq!(response.header("Content-Type"), "application/http;msgtype=response");
    for record in [request, response] {
        assert_eq!(record.header("WARC-IP-Address"), "127.0.0.1");
        assert!(record.header("WARC-Block-Digest").starts_with("sha1:"), "{record:?}");
        assert_eq!(record.header("WARC-Truncated"), "");
    }
    assert!(response.header("WARC-Payload-Digest").starts_with("sha1:"), "{response:?}");
}

/// Asserts that the CDX has one line per response, and agrees with the records.
fn assert_index_agrees(archive: &Archive, records: &[Record]) {
    let lines = archive.index();
    let answers: Vec<&Record> =
        records.iter().filter(|record| matches!(record.kind.as_str(), "response" | "revisit")).collect();
    assert_eq!(lines.len(), answers.len());
    for (line, answer) in lines.iter().zip(answers) {
        assert_eq!(line["url"], answer.url.as_str());
        assert_eq!(line["status"], answer.status.as_str(), "{line}");
        assert_eq!(line["digest"], answer.header("WARC-Payload-Digest"), "{line}");
        assert_eq!(line["filename"], answer.file.as_str());
    }
}

/// Asserts that each file starts with a warcinfo record.
fn assert_info(records: &[Record]) {
    let mut files = BTreeSet::new();
    for record in records {
        if files.insert(&record.file) {
            assert_eq!((record.kind.as_str(), record.header("WARC-Filename")), ("warcinfo", &*record.file));
            for line in ["software: Comity/", "format: WARC File Format 1.1\r\n", "isPartOf: one\r\n"] {
                assert!(record.block.contains(line), "{}", record.block);
            }
            assert!(record.block.contains("http-header-user-agent: Comity/"), "{}", record.block);
        } else {
            assert_ne!(record.kind, "warcinfo");
        }
    }
}

/// A body that was archived before becomes a revisit record, also if its chunks differ.
#[test]
fn identical_bodies_are_revisits() {
    let wire = Wire::start(|path, _| {
        let body = "the same for everybody ".repeat(50);
        Reply::Send(match path {
            "/chunks1" => chunked("X-Which: 1\r\n", body, 100),
            "/chunks2" => chunked("X-Which: 2\r\n", body, 77),
            "/empty1" | "/empty2" => page("200 OK", "", ""),
            _ => page("200 OK", &format!("X-Which: {path}\r\n"), body),
        })
    });
    let world = World::new();
    let paths = ["/page1", "/page2", "/page3", "/chunks1", "/chunks2", "/empty1", "/empty2"];
    fetch(&world, &paths.map(|path| wire.url(path)), &[]).expect(0);
    let archive = archive(&world);
    archive.assert_closed();
    for (original, again) in [("/page1", "/page2"), ("/page1", "/page3"), ("/chunks1", "/chunks2")] {
        let (original, revisit) = (archive.one("response", original), archive.one("revisit", again));
        assert_eq!(revisit.header("WARC-Refers-To"), original.header("WARC-Record-ID"));
        assert_eq!(revisit.header("WARC-Refers-To-Target-URI"), original.url);
        assert_eq!(revisit.header("WARC-Refers-To-Date"), original.header("WARC-Date"));
        assert_eq!(revisit.header("WARC-Payload-Digest"), original.header("WARC-Payload-Digest"));
        assert_eq!(
            revisit.header("WARC-Profile"),
            "http://netpreserve.org/warc/1.1/revisit/identical-payload-digest"
        );
        // The record has its own head, and is marked as truncated.
        assert_eq!(revisit.header("WARC-Truncated"), "length");
        assert!(
            revisit.block.contains("X-Which: ") && revisit.block.ends_with("\r\n\r\n"),
            "{}",
            revisit.block
        );
        assert!(!revisit.block.contains("everybody"));
        assert_eq!(archive.of("request", again).len(), 1);
    }
    assert_eq!(archive.of("revisit", "/empty2").len(), 0, "a revisit record for an empty body saves nothing");
    assert_index_agrees(&archive, &archive.records());
}

/// Bodies that an earlier process of the job archived become revisit records too, once its files were read.
#[test]
fn a_resumed_job_finds_identical_bodies() {
    let wire = Wire::start(|_, _| Reply::Send(page("200 OK", "", "the same for everybody ".repeat(50))));
    let world = World::new();
    let mut urls = vec![wire.url("/0")];
    fetch(&world, &urls, &["--concurrency", "1"]).expect(0);
    // The files are read in the background, so at least one of many pages finds the earlier body.
    urls.extend((1..100).map(|nth| wire.url(&format!("/{nth}"))));
    world.write("list", &urls.join("\n"));
    world.run(&["fetch", "--job", "one", "--input", "list", "--delay", "10ms"]).expect(0);
    let archive = archive(&world);
    archive.assert_closed();
    let first = archive.one("response", "/0");
    let last = archive.one("revisit", "/99");
    let original = last.header("WARC-Refers-To");
    let known = archive.records().into_iter().find(|record| record.header("WARC-Record-ID") == original);
    assert_eq!(known.unwrap().content, first.content);
    assert!(archive.of("response", "").len() < 20, "{}", archive.of("response", "").len());
}

/// B41: 429s are archived like any other response.
#[test]
fn rate_limited_responses_and_retries_are_archived() {
    let wire = Wire::start(|_, before| {
        Reply::Send(match before {
            0 => page("429 Too Many Requests", "Retry-After: 1\r\n", "slow down, please"),
            1 => page("503 Service Unavailable", "Retry-After: 1\r\n", "x".repeat(100_000)),
            _ => page("200 OK", "", "at last"),
        })
    });
    let world = World::new();
    fetch(&world, &[wire.url("/page")], &[]).expect(0);
    let archive = archive(&world);
    archive.assert_closed();
    let answers = archive.of("response", "/page");
    let statuses: Vec<&str> = answers.iter().map(|answer| answer.status.as_str()).collect();
    assert_eq!(statuses, ["429", "503", "200"]);
    assert_eq!(answers[0].content, "slow down, please");
    assert_eq!(answers[1].content_len, 100_000);
    let dates: BTreeSet<&str> = answers.iter().map(|answer| answer.header("WARC-Date")).collect();
    assert_eq!(dates.len(), 3);
}

/// An incomplete record is marked as truncated; a broken connection leaves no record.
#[test]
fn truncated_responses_are_marked() {
    let wire = Wire::start(|path, before| match path {
        "/large" => Reply::Send(page("200 OK", "", "x".repeat(200_000))),
        "/large-chunked" => Reply::Send(chunked("", "x".repeat(200_000), 1_000)),
        "/large-error" => Reply::Send(page("404 Not Found", "", "x".repeat(200_000))),
        "/bomb" => {
            let bomb = gzipped("x".repeat(200_000));
            Reply::Send(page("200 OK", "Content-Encoding: gzip\r\n", bomb))
        }
        "/slow" => Reply::Stall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nso far".to_vec()),
        "/reset" if before == 0 => {
            Reply::Reset(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf of it".to_vec())
        }
        "/cut-chunks" if before == 0 => {
            Reply::Close(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab".to_vec())
        }
        "/no-gzip" => Reply::Send(page("200 OK", "Content-Encoding: gzip\r\n", "no gzip at all")),
        path => Reply::Send(answer(path)),
    });
    let world = World::new();
    world.write(
        "comity.toml",
        "[http]\nbody_max = \"64KiB\"\ntotal_timeout = \"5s\"\n[default]\nbackoff = \"none\"\n",
    );
    let paths = [
        "/large",
        "/large-chunked",
        "/large-error",
        "/bomb",
        "/slow",
        "/reset",
        "/cut-chunks",
        "/no-gzip",
        "/plain",
    ];
    fetch(&world, &paths.map(|path| wire.url(path)), &["--max-retries", "1"]).expect(1);
    let archive = archive(&world);
    archive.assert_closed();
    for path in ["/large", "/large-chunked", "/large-error"] {
        let record = archive.one("response", path);
        assert_eq!(record.header("WARC-Truncated"), "length", "{path}");
        assert!(
            record.block.len() < 200_000 && record.block.starts_with("HTTP/1.1 "),
            "{}",
            record.block.len()
        );
    }
    // Only the decoded body was too large; the record is complete.
    let bomb = archive.one("response", "/bomb");
    assert_eq!((bomb.header("WARC-Truncated"), bomb.content_len), ("", 200_000));
    for slow in archive.of("response", "/slow") {
        assert_eq!((slow.header("WARC-Truncated"), slow.content.as_str()), ("time", "so far"));
    }
    assert_eq!(archive.of("response", "/slow").len(), 2);
    for path in ["/reset", "/cut-chunks"] {
        assert_eq!(wire.asked(path).len(), 2);
        assert_eq!(archive.one("response", path).content, format!("<p>{path}</p>").repeat(20));
    }
    for broken in archive.of("response", "/no-gzip") {
        assert!(broken.block.ends_with("\r\n\r\nno gzip at all"), "{}", broken.block);
    }
}

/// A body isn't kept in memory until its length and digests are known.
#[test]
fn a_long_body_needs_little_memory() {
    let wire = Wire::start(|path, _| match path {
        "/long" => {
            Reply::Long(format!("HTTP/1.1 200 OK\r\nContent-Length: {LONG}\r\n\r\n").into_bytes(), LONG)
        }
        path => Reply::Send(answer(path)),
    });
    let world = World::new();
    world.write("comity.toml", "[http]\nbody_max = \"1GiB\"\n");
    world.write("list", &["/long", "/plain"].map(|path| wire.url(path)).join("\n"));
    let mut running = world.start(&args("one", "ignore"));
    let most_kb = running.peak_kb();
    running.wait().expect(0);
    assert!((1..100 * 1_024).contains(&most_kb), "{most_kb} kB");
    let archive = archive(&world);
    archive.assert_closed();
    assert_eq!(archive.one("response", "/long").content_len, LONG);
    assert_eq!(archive.of("response", "/plain").len(), 1);
}

const LONG: u64 = 256 << 20;

/// Files are rotated; each is complete and none too large.
#[test]
fn files_are_rotated() {
    let wire = Wire::start(|path, _| {
        let mut random = fastrand::Rng::with_seed(path.len() as u64 + path.as_bytes()[path.len() - 1] as u64);
        let mut body = path.as_bytes().to_vec();
        body.extend(std::iter::repeat_with(|| random.u8(..)).take(10_000));
        Reply::Send(page("200 OK", "", body))
    });
    let world = World::new();
    world.write("comity.toml", "[warc]\nfile_max = \"64KiB\"\n");
    let urls: Vec<String> = (0..40).map(|nth| wire.url(&format!("/{nth}"))).collect();
    fetch(&world, &urls, &[]).expect(0);
    let archive = archive(&world);
    archive.assert_closed();
    let files = archive.files();
    assert!((7..=10).contains(&files.len()), "{files:?}");
    for file in &files {
        assert!(std::fs::metadata(file).unwrap().len() <= 64 << 10, "{}", file.display());
    }
    let records = archive.records();
    assert_info(&records);
    let urls: BTreeSet<String> = urls.into_iter().collect();
    let kept: BTreeSet<String> =
        records.iter().filter(|record| record.kind == "response").map(|record| record.url.clone()).collect();
    assert_eq!(kept, urls);

    world.write("comity.toml", "[warc]\nfile_max = \"1KiB\"\n");
    let wrong = world.run(&["config", "check"]).expect(2);
    wrong.says("warc.file_max = \"1KiB\": expected");
}

/// B75: neither our credentials nor the cookies that a server sets are archived.
#[test]
fn no_credentials_are_archived() {
    let wire = Wire::start(|path, _| {
        Reply::Send(match path {
            "/moved" => page(
                "302 Found",
                "Set-Cookie: id=topsecret\r\nLocation: http://guest:topsecret@elsewhere.invalid/\r\n",
                "",
            ),
            "/robots.txt" => page("404 No", "Set-Cookie: id=topsecret\r\n", ""),
            _ => page(
                "200 OK",
                "SET-COOKIE: id=topsecret; Path=/\r\nX-Api-Key: topsecret\r\nLink: <http://u:topsecret@x.invalid/>\r\nX-Kept: yes\r\n",
                "a page",
            ),
        })
    });
    let world = World::new();
    let urls = ["/page?user=me#here", "/moved"]
        .map(|path| format!("http://operator:pass%2Fw0rd@{}{path}", wire.authority()));
    fetch_politely(&world, &urls).expect(1);
    let asked = wire.asked("/page?user=me").remove(0);
    assert!(asked.to_ascii_lowercase().contains("\r\nauthorization: basic b3blcmf0b3i6"), "{asked}");
    let archive = archive(&world);
    archive.assert_closed();
    let page = archive.one("response", "/page?user=me");
    assert_eq!(page.url, wire.url("/page?user=me"));
    assert!(page.block.contains("\r\nX-Kept: yes\r\n"), "{}", page.block);
    assert!(archive.one("response", "/moved").block.contains("\r\nLocation: http://elsewhere.invalid/\r\n"));
    let octets = unpacked(&archive);
    assert!(contains(&octets, "X-Kept") && octets.len() > 2_000);
    for secret in ["topsecret", "w0rd", "pass%2F", "operator", "b3BlcmF0b3I6", "uthorization", "ookie"] {
        assert!(!contains(&octets, secret), "{secret}");
    }
}

/// Whatever the names of the job and the hosts, nothing is written outside of the folder.
#[test]
fn names_do_not_lead_outside_of_the_folder() {
    let wire = Wire::start(|path, _| Reply::Send(page("200 OK", "", path)));
    for (job, stem) in [
        ("../../evil/x", "_.._evil_x"),
        (".hidden", "hidden"),
        ("caf\u{e9} \u{202e}", "caf___"),
        ("con", "_con"),
        ("...", "comity"),
    ] {
        let world = World::new();
        fetch(&world, &[wire.url("/")], &[]).expect(0);
        // Older versions allowed such names.
        world.sql().execute("UPDATE jobs SET name = ?1", [job]).unwrap();
        world.write("list", &wire.url("/..%2f..%2fetc/passwd?../../x\n"));
        world.run(&args(job, "ignore")).expect(0);
        let archive = archive(&world);
        archive.assert_closed();
        let named = |file: &PathBuf| file.file_name().unwrap().to_str().unwrap().to_owned();
        let mut names: Vec<String> = archive.files().iter().map(named).collect();
        names.retain(|name| !name.starts_with("one-"));
        let [name] = &names[..] else { panic!("{:?}", archive.files()) };
        let numbers = name.strip_prefix(stem).unwrap_or_else(|| panic!("{name}")).strip_suffix(".warc.gz");
        let digits: Vec<usize> = numbers.unwrap().split('-').skip(1).map(str::len).collect();
        assert_eq!(digits, [14, 5], "{name}");
    }
}

/// The job remembers its format, and a folder that is not writable is reported at once.
#[test]
fn the_format_is_an_option_of_the_job() {
    let wire = Wire::start(|path, _| Reply::Send(answer(path)));
    let world = World::new();
    fetch(&world, &[wire.url("/one")], &[]).expect(0);
    world.write("list", &[wire.url("/one"), wire.url("/two")].join("\n"));
    world.run(&["fetch", "--job", "one", "--input", "list"]).expect(0);
    let archive = archive(&world);
    archive.assert_closed();
    assert_eq!(archive.files().len(), 2);
    assert_eq!((archive.of("response", "/one").len(), archive.of("response", "/two").len()), (1, 1));
    assert!(!world.path("pages/index.jsonl").exists());
    let shown = world.run(&["--json", "jobs", "show", "one"]).expect(0).json();
    assert_eq!(shown["options"]["format"], "warc", "{shown}");

    world.write("file", "in the way");
    let refused = world.run(&["fetch", &wire.url("/"), "--format", "warc", "--out", "file/x"]).expect(2);
    refused.says("--out = ");
}

/// Scraped items can go to WARC files too.
#[test]
fn scraped_items_can_be_archived() {
    let site = Site::start(|asked| match asked.path {
        "/feed" => {
            let feed = follow::numbered("item", 3);
            Answer { status: 200, body: feed, ..Answer::default() }.header("X-Feed", "yes")
        }
        path => Answer::page(path),
    });
    let world = follow::world(&[]);
    follow::add(&world, &format!("{}/feed", site.url()), &[]);
    let ran: Value = follow::run(&world, &["--format", "warc", "--out", "pages"], 0);
    assert_eq!(ran["tasks"]["fetched"], 3, "{ran}");
    let archive = archive(&world);
    archive.assert_closed();
    for nth in 0..3 {
        let path = format!("/item{nth}");
        assert_eq!(archive.one("response", &path).content, format!("page {path}\n"));
    }
    assert!(archive.files()[0].to_str().unwrap().contains("/scrape-"));
    world.run(&["items", "show", "1", "--text"]).expect(1).says("no file of its own");
}
