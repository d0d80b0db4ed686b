//! What items keep from their feed, and how they are exported.

use serde_json::{Value, json};

use crate::comity::World;
use crate::follow::{add, rfc3339, run, world};
use crate::log::now_us;
use crate::site::{Answer, Site};

const FEED: &str = "<rss version='2.0'><channel><title>T</title>\
    <item><guid>0</guid><title>=1+1, \"quoted\"</title><link>/a0</link><dc:creator>Jo Doe</dc:creator><category>a,b</category>\
    <category>c</category><description>Short</description><content:encoded><![CDATA[<p>Long &amp; wide</p><p>\u{1f409}</p>]]>\
    </content:encoded><enclosure url='http://u:secret@x.example/x.mp3' type='audio/mpeg' length='12'/></item>\
    <item><guid>1</guid><title>One</title><link>/a1</link></item></channel></rss>";

const PAGE: &str = "<html><title>A</title><body><article><p>The page, which is long enough to be what a reader came for, \
    has several sentences. This is the second of them, and it is not short either.</p></article></body></html>";

/// A feed with two items, one of which has a page.
fn site() -> Site {
    Site::start(|asked| {
        let body = |body: &str, kind: &str| {
            let answer = Answer { status: 200, body: body.to_owned(), ..Answer::default() };
            answer.header("Content-Type", kind)
        };
        match asked.path {
            "/feed" => body(FEED, "application/rss+xml"),
            "/a0" => body(PAGE, "text/html"),
            _ => Answer::status(404),
        }
    })
}

fn exported(world: &World, args: &[&str]) -> Vec<Value> {
    let done = world.run(&[&["items", "export"], args].concat()).expect(0);
    done.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn an_export_has_the_feeds_details_and_the_result_of_the_scrape() {
    let (world, site) = (world(&[]), site());
    let id = add(&world, &(site.url() + "/feed"), &[]);
    let before = rfc3339(now_us() - 1_000_000);
    run(&world, &[], 1);
    let rows = exported(&world, &[]);
    let first = &rows[0];
    assert_eq!(first["url"], site.url() + "/a0");
    assert_eq!(
        (&first["source"], &first["state"], &first["status"]),
        (&json!(id), &json!("done"), &json!(200))
    );
    assert_eq!((&first["author"], &first["categories"]), (&json!("Jo Doe"), &json!(["a,b", "c"])));
    assert_eq!((&first["summary"], &first["content_markup"]), (&json!("Short"), &json!("html")));
    assert_eq!(first["content"], "<p>Long &amp; wide</p><p>\u{1f409}</p>");
    let file = json!({ "url": "http://x.example/x.mp3", "type": "audio/mpeg", "length": 12 });
    assert_eq!(first["enclosures"], json!([file]), "without the password");
    assert!(std::path::Path::new(first["file"].as_str().unwrap()).exists());
    assert_eq!((&rows[1]["state"], rows[1]["error"].is_string()), (&json!("failed"), true));
    assert!(rows.iter().all(|row| row.get("text").is_none()));

    // By source, time and state.
    assert_eq!(
        exported(&world, &["--source", &id.to_string(), "--since", &before, "--state", "done"]).len(),
        1
    );
    assert_eq!(exported(&world, &["--since", "1h"]).len(), 2);
    assert_eq!(exported(&world, &["--since", "2100-01-01"]).len(), 0);
    world.run(&["items", "export", "--since", "soon"]).expect(2).says("--since = \"soon\": expected a time");
    world.run(&["items", "export", "--source", "9"]).expect(2);

    let shown = world.run(&["items", "show", &first["id"].to_string()]).expect(0);
    for part in [
        "author         Jo Doe",
        "a,b, c",
        "http://x.example/x.mp3, audio/mpeg, 12 bytes",
        "Long & wide \u{1f409} (html",
    ] {
        shown.shows(part);
    }
    let whole = world.run(&["--json", "items", "show", &first["id"].to_string()]).expect(0).json();
    assert_eq!(whole["content"], first["content"]);
}

/// Items can be in several folders, and an export is read from anywhere: only an absolute path is enough to find a page.
#[test]
fn the_file_of_an_item_is_an_absolute_path() {
    let (world, site) = (world(&[]), site());
    add(&world, &(site.url() + "/feed"), &[]);
    run(&world, &["--no-scrape"], 0);
    world.run(&["scrape", "1", "--out", "first"]).expect(0);
    let file = |row: &Value| std::path::PathBuf::from(row["file"].as_str().unwrap());
    let first = file(&exported(&world, &[])[0]);
    assert!(first.is_absolute() && first.starts_with(world.path("first")), "{}", first.display());
    world.run(&["scrape", "1", "--out", "second"]).expect(0);
    let second = file(&exported(&world, &[])[0]);
    assert!(second.starts_with(world.path("second")), "{}", second.display());
    assert_eq!(std::fs::read_to_string(&second).unwrap(), PAGE);
    // In the index of a folder, paths are relative to that folder.
    for (folder, file) in [("first", first), ("second", second)] {
        let index = world.index(folder);
        assert_eq!(world.path(folder).join(index[0]["file"].as_str().unwrap()), file);
    }
}

/// The scraped page comes first, then the feed's text.
#[test]
fn the_text_of_an_export_is_from_the_page_or_the_feed() {
    let (world, site) = (world(&[]), site());
    add(&world, &(site.url() + "/feed"), &[]);
    run(&world, &["--no-scrape"], 0);
    let rows = exported(&world, &["--text"]);
    assert_eq!((&rows[0]["text"], &rows[1]["text"]), (&json!("Long & wide\n\n\u{1f409}"), &Value::Null));
    run(&world, &[], 1);
    let rows = exported(&world, &["--text"]);
    assert!(rows[0]["text"].as_str().unwrap().starts_with("The page, which"), "{}", rows[0]);
    std::fs::remove_file(rows[0]["file"].as_str().unwrap()).unwrap();
    let done = world.run(&["items", "export", "--text"]).expect(0);
    done.says("1 scraped page");
    assert!(done.stdout.contains("Long & wide"), "the feed's text is still there");
}

/// RFC 4180: cells contain the values unchanged, whatever a spreadsheet makes of them.
#[test]
fn csv_values_are_unchanged() {
    let (world, site) = (world(&[]), site());
    add(&world, &(site.url() + "/feed"), &[]);
    run(&world, &["--no-scrape"], 0);
    let table = world.run(&["items", "export", "--format", "csv"]).expect(0).stdout;
    assert!(
        table.starts_with("id,source,url,title,published_at,seen_at,state,status,file,content_type,bytes,"),
        "{table}"
    );
    assert!(table.contains(",\"=1+1, \"\"quoted\"\"\","), "{table}");
    let mut reader = csv::Reader::from_reader(table.as_bytes());
    let head = reader.headers().unwrap().clone();
    let rows: Vec<csv::StringRecord> = reader.records().map(Result::unwrap).collect();
    let cell =
        |row: usize, key: &str| rows[row].get(head.iter().position(|name| name == key).unwrap()).unwrap();
    assert_eq!((cell(0, "categories"), cell(1, "author")), ("[\"a,b\",\"c\"]", ""));
    assert_eq!((rows.len(), table.matches("\r\n").count()), (2, 3));
    let args = ["items", "export", "--since", "1h", "--format", "csv", "--text"];
    let table = world.run(&args).expect(0).stdout;
    let mut reader = csv::Reader::from_reader(table.as_bytes());
    let last = reader.headers().unwrap().len() - 1;
    assert_eq!(&reader.headers().unwrap()[last], "text");
    let texts: Vec<String> = reader.records().map(|row| row.unwrap()[last].to_owned()).collect();
    assert_eq!(texts, ["Long & wide\n\n\u{1f409}", ""]);
}

/// Memory doesn't grow with the number of items.
#[test]
fn a_large_export_uses_little_memory() {
    let world = world(&[]);
    world.run(&["record", "a.example", "success"]).expect(0);
    let sql = world.sql();
    sql.execute_batch(
        "INSERT INTO sources (name, kind, url, listed_url, lead, added_us) VALUES ('s', 'feed', 'u', 'u', 'listed', 0);
        WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 300)
        INSERT INTO items (id, source_id, identity, url, lead, content_hash, seen_us)
            SELECT i, 1, i, 'http://a.example/' || i, 'remote', 0, 0 FROM n;
        INSERT INTO item_details SELECT id, 0, NULL, 0, hex(zeroblob(500000)), 0, NULL, '[]', '[]', '[]' FROM items;",
    )
    .unwrap();
    drop(sql);
    let mut running = world.start(&["items", "export"]);
    let peak = running.peak_kb();
    let done = running.wait().expect(0);
    assert_eq!(done.stdout.lines().count(), 300);
    assert!(peak < 150_000, "{peak} kB for 300 MB of rows");
}
