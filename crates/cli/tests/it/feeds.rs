//! Feeds of every format, and responses that are no feeds or are malicious.

use std::collections::BTreeMap;
use std::process::Command;

use serde_json::{Value, json};

use crate::comity::World;
use crate::follow::{FEEDS, add, assert_clean, assert_counts, count, detail, items, micros, rss, run, world};
use crate::log::{assert_spaced, now_us, to_text};
use crate::nginx::Nginx;

/// A document, and the items in it: titles and URLs on its server.
type Dialect = (&'static str, Vec<u8>, &'static [(&'static str, &'static str)]);

/// B66
#[test]
fn every_feed_format_yields_its_items() {
    let (world, nginx) = (world(&[]), Nginx::start(FEEDS));
    let documents: Vec<Dialect> = dialects().into_iter().chain(encodings()).chain(oddities()).collect();
    expect_items(&world, &nginx, &documents);
}

/// A source that nobody named used to keep its URL as its name.
#[test]
fn a_source_is_named_after_its_feed_unless_somebody_named_it() {
    let (world, nginx) = (world(&[]), Nginx::start(FEEDS));
    let feed = |title: &str| rss(&[]).replace("<title>T</title>", &format!("<title>{title}</title>"));
    let page = "<!doctype html><link rel=alternate type=application/rss+xml title=RSS href=/feeds/home.rss>";
    for (path, body) in [
        ("home.html", page.to_owned()),
        ("home.rss", feed("Harbour news")),
        ("named.rss", feed("Another title")),
        ("generic.rss", feed("RSS feed")),
        ("late.rss", "not a feed".to_owned()),
    ] {
        nginx.put(&format!("feeds/{path}"), body.as_bytes());
    }
    let url = |path: &str| format!("{}/feeds/{path}", nginx.url());
    world.run(&["sources", "add", &url("home.html")]).expect(0);
    add(&world, &url("named.rss"), &["--name", "Mine"]);
    add(&world, &url("generic.rss"), &[]);
    add(&world, &url("late.rss"), &[]);
    let names = || -> Vec<String> {
        let listed = world.run(&["--json", "sources", "list"]).expect(0).json();
        let names =
            listed["sources"].as_array().unwrap().iter().map(|source| source["name"].as_str().unwrap());
        names.map(str::to_owned).collect()
    };
    let unnamed = |path: &str| url(path).replace("http://", "");
    assert_eq!(names(), [&unnamed("home.rss"), "Mine", &unnamed("generic.rss"), &unnamed("late.rss")]);
    run(&world, &["--no-scrape"], 1);
    assert_eq!(names(), ["Harbour news", "Mine", &unnamed("generic.rss"), &unnamed("late.rss")]);
    // A later title changes nothing: people know the source by its name.
    nginx.put("feeds/home.rss", feed("Renamed").as_bytes());
    run(&world, &["--no-scrape", "--force"], 0);
    assert_eq!(names()[0], "Harbour news");
}

/// Serves the documents, follows them, and compares the items.
fn expect_items(world: &World, nginx: &Nginx, documents: &[Dialect]) {
    let mut list = String::new();
    for (file, body, _) in documents {
        nginx.put(&format!("feeds/{file}"), body);
        list += &format!("{}/feeds/{file}\n", nginx.url());
    }
    world.write("list", &list);
    world.run(&["sources", "import", "list", "--kind", "feed"]).expect(0);
    let ran = world.run(&["--json", "run", "--no-scrape"]).expect(0);
    assert_clean(&ran);
    assert_eq!(ran.json()["sources"]["fetched"], documents.len());
    let mut found: BTreeMap<i64, Vec<(String, String)>> = BTreeMap::new();
    for item in items(world) {
        let url = item["url"].as_str().unwrap().replace(&nginx.url(), "");
        let title = item["title"].as_str().unwrap_or("-").to_owned();
        found.entry(item["source"].as_i64().unwrap()).or_default().push((title, url));
    }
    for ((file, _, expected), id) in documents.iter().zip(1..) {
        let found: Vec<(&str, &str)> = found
            .get(&id)
            .map_or(Vec::new(), |found| found.iter().map(|(title, url)| (&**title, &**url)).collect());
        assert_eq!(found, *expected, "{file}");
    }
    assert_spaced(&nginx.log(), 20);
}

fn dialects() -> Vec<Dialect> {
    vec![
        (
            "091.rss",
            b"<?xml version='1.0'?>\n<!DOCTYPE rss PUBLIC '-//Netscape Communications//DTD RSS 0.91//EN' \
              'http://my.netscape.com/publish/formats/rss-0.91.dtd'>\n<rss version='0.91'><channel>\
              <title>Harbour</title><link>http://h.example/</link><description>News</description>\
              <language>en</language><image><title>Logo</title><url>/logo.png</url><link>/</link></image>\
              <item><title>Ships</title><link>/ships</link></item>\
              <item><title>Salt</title><link>/salt</link><description>Dear.</description></item>\
              <textinput><title>Search</title><link>/search</link></textinput></channel></rss>"
                .to_vec(),
            &[("Ships", "/ships"), ("Salt", "/salt")],
        ),
        (
            "092.rss",
            b"<rss version='0.92'><channel><title>Harbour</title><cloud domain='h.example' port='80'/>\
              <item><description>No title, <b>only</b> text.</description><link>/one</link>\
              <enclosure url='/one.mp3' length='1' type='audio/mpeg'/><source url='/other.xml'>Other</source></item>\
              <item><title>Two</title><link>/two</link><category>Tide</category></item></channel></rss>"
                .to_vec(),
            &[("-", "/one"), ("Two", "/two")],
        ),
        (
            "20.rss",
            b"<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<rss version=\"2.0\" \
              xmlns:atom=\"http://www.w3.org/2005/Atom\" xmlns:media=\"http://search.yahoo.com/mrss/\" \
              xmlns:content=\"http://purl.org/rss/1.0/modules/content/\"><channel><title>Harbour</title>\
              <atom:link href=\"/feeds/20.rss\" rel=\"self\" type=\"application/rss+xml\"/>\
              <item><media:title>Picture</media:title><title>One</title><link>/one</link>\
              <guid isPermaLink=\"false\">1</guid><pubDate>Mon, 05 Jan 2026 12:00:00 +0100</pubDate>\
              <content:encoded><![CDATA[<p>Text</p>]]></content:encoded></item>\
              <item><title>Two</title><guid>http://127.0.0.1/two</guid></item></channel></rss>"
                .to_vec(),
            &[("One", "/one"), ("Two", "http://127.0.0.1/two")],
        ),
        (
            "10.rdf",
            b"<?xml version='1.0'?><rdf:RDF xmlns:rdf='http://www.w3.org/1999/02/22-rdf-syntax-ns#' \
              xmlns='http://purl.org/rss/1.0/' xmlns:dc='http://purl.org/dc/elements/1.1/'>\
              <channel rdf:about='http://h.example/'><title>Harbour</title><items><rdf:Seq>\
              <rdf:li rdf:resource='/one'/><rdf:li rdf:resource='/two'/></rdf:Seq></items></channel>\
              <item rdf:about='/one'><title>One</title><link>/one</link><dc:date>2026-01-05</dc:date></item>\
              <item rdf:about='/two'><title>Two</title><link>/two</link></item></rdf:RDF>"
                .to_vec(),
            &[("One", "/one"), ("Two", "/two")],
        ),
        (
            "10.atom",
            b"<?xml version='1.0' encoding='utf-8'?><feed xmlns='http://www.w3.org/2005/Atom'>\
              <title>Harbour</title><id>urn:h</id><updated>2026-01-05T12:00:00Z</updated>\
              <link rel='self' href='/feeds/10.atom'/><entry><title type='html'>&lt;em&gt;One&lt;/em&gt; ship</title>\
              <id>urn:1</id><updated>2026-01-05T12:00:00Z</updated><link rel='enclosure' href='/one.mp3'/>\
              <link rel='alternate' href='/one'/></entry><entry><title type='xhtml'>\
              <div xmlns='http://www.w3.org/1999/xhtml'>Two <b>ships</b></div></title><id>urn:2</id>\
              <updated>2026-01-05T12:00:00Z</updated><link href='/two'/></entry></feed>"
                .to_vec(),
            &[("One ship", "/one"), ("Two ships", "/two")],
        ),
        (
            "11.json",
            b"{\"version\":\"https://jsonfeed.org/version/1.1\",\"title\":\"Harbour\",\"items\":[\
              {\"id\":\"1\",\"url\":\"/one\",\"title\":\"One\",\"content_text\":\"x\"},\
              {\"id\":2,\"external_url\":\"/two\",\"content_html\":\"<p>\"}]}"
                .to_vec(),
            &[("One", "/one"), ("-", "/two")],
        ),
    ]
}

/// One item, in several encodings.
fn encodings() -> Vec<Dialect> {
    let text = |encoding: &str| {
        format!(
            "<?xml version='1.0' encoding='{encoding}'?><rss version='2.0'><channel>\
             <item><title>Zürich</title><link>/z</link></item></channel></rss>"
        )
    };
    let wide = |text: String, bytes: fn(u16) -> [u8; 2]| text.encode_utf16().flat_map(bytes).collect();
    // Only ü differs: it is one byte in Latin-1.
    let narrow = |text: String| text.chars().map(|c| u8::try_from(c).unwrap()).collect();
    const ITEM: &[(&str, &str)] = &[("Zürich", "/z")];
    vec![
        ("1252.rss", narrow(text("windows-1252")), ITEM),
        (
            "1252-quotes.rss",
            b"<?xml version='1.0' encoding='windows-1252'?><rss><channel><item><title>\x93Caf\xe9\x94 \x805</title>\
              <link>/c</link></item></channel></rss>"
                .to_vec(),
            &[("“Café” €5", "/c")],
        ),
        ("le.rss", wide(format!("\u{feff}{}", text("utf-16")), u16::to_le_bytes), ITEM),
        ("be.rss", wide(text("utf-16"), u16::to_be_bytes), ITEM),
        // The header is right and the declaration wrong.
        ("declared.latin1", narrow(text("utf-8")), ITEM),
        // It claims UTF-16 and has one byte per letter.
        ("utf-16-not.rss", text("utf-16").into_bytes(), ITEM),
        ("unknown.rss", text("no-such-thing").into_bytes(), ITEM),
    ]
}

fn oddities() -> Vec<Dialect> {
    let rss = |items: &str| format!("<rss version='2.0'><channel>{items}</channel></rss>").into_bytes();
    vec![
        (
            "cdata.rss",
            rss("<item><title><![CDATA[R&D <b>bold</b>]]> &nbsp;caf&eacute; &amp;amp; A & B &#8230;</title>\
                 <link>/a?b=1&amp;c=2</link></item>"),
            &[("R&D bold café & A & B …", "/a?b=1&c=2")],
        ),
        (
            "relative.rss",
            rss("<item><title>1</title><link>one</link></item><item><title>2</title><link>/two</link></item>\
                 <item><title>3</title><link>?id=3</link></item><item><title>4</title><link>../four</link></item>"),
            &[("1", "/feeds/one"), ("2", "/two"), ("3", "/feeds/relative.rss?id=3"), ("4", "/four")],
        ),
        (
            "base.atom",
            b"<feed xmlns='http://www.w3.org/2005/Atom' xml:base='/articles/'><entry xml:base='2026/'><title>1</title>\
              <link href='one'/></entry><entry><title>2</title><link href='two'/></entry></feed>"
                .to_vec(),
            &[("1", "/articles/2026/one"), ("2", "/articles/two")],
        ),
        (
            "no-guid.rss",
            rss("<item><title>First</title><link>/x?utm_source=feed</link></item>\
                 <item><title>The same</title><link>/x#comments</link></item>\
                 <item><title>Another</title><link>/x?page=2</link></item>"),
            &[("First", "/x?utm_source=feed"), ("Another", "/x?page=2")],
        ),
        (
            "guid-twice.rss",
            rss("<item><guid>g</guid><title>First</title><link>/1</link></item>\
                 <item><guid>g</guid><title>Second</title><link>/2</link></item>\
                 <item><guid>h</guid><title>Third</title><link>/1</link></item>"),
            &[("First", "/1"), ("Second", "/2"), ("Third", "/1")],
        ),
        ("nothing-yet.rss", rss("<title>Nothing yet</title>"), &[]),
    ]
}

/// B66: compressed feeds are requested and decompressed.
#[test]
fn feeds_may_be_compressed() {
    let (world, nginx) =
        (world(&[]), Nginx::start("location = /feed { gzip on; gzip_types *; gzip_min_length 1; }"));
    nginx.put("feed", rss(&[("One", "/one")]));
    add(&world, &(nginx.url() + "/feed"), &[]);
    let ran = run(&world, &["--no-scrape"], 0);
    assert_eq!(ran["items"]["new"], 1, "{ran}");
    let asked = nginx.asked();
    assert_eq!((asked.len(), &asked[0]["encoding"]), (1, &json!("gzip")));
    assert!(asked[0]["accept"].as_str().unwrap().contains("application/rss+xml"), "{asked:?}");
    assert!(asked[0]["user_agent"].as_str().unwrap().contains("ops@example.org"), "{asked:?}");
}

/// A truncated feed yields the items before the break, and is fetched again in full.
#[test]
fn a_truncated_feed_is_read_in_part() {
    let (world, nginx) = (world(&[]), Nginx::start(FEEDS));
    let whole = rss(&[("One", "/one"), ("Two", "/two"), ("Three", "/three")]);
    nginx.put("feeds/a.rss", &whole[..whole.find("/three").unwrap()]);
    let id = add(&world, &(nginx.url() + "/feeds/a.rss"), &[]);
    let ran = run(&world, &["--no-scrape"], 0);
    assert_eq!((&ran["sources"]["partial"], &ran["sources"]["failed"]), (&json!(1), &json!(0)), "{ran}");
    let why = detail(&ran, id)["why"].as_str().unwrap();
    assert!(why.starts_with("XML error at byte "), "{why}");
    assert!(why.ends_with("only the entries before it were read"), "{why}");
    let titles: Vec<Value> = items(&world).iter().map(|item| item["title"].clone()).collect();
    assert_eq!(titles, ["One", "Two"]);
    assert_eq!(count(&world, "SELECT count(*) FROM fetch_runs WHERE status = 'partial'"), 1);
    nginx.put("feeds/a.rss", &whole);
    assert_eq!(run(&world, &["--no-scrape"], 0)["items"]["new"], 1);
    let asked = nginx.asked();
    assert_eq!((&asked[1]["status"], &asked[1]["if_none_match"]), (&json!(200), &json!("")), "{asked:?}");
}

/// Whatever a server sends, the source fails with a reason, uses little memory, and the other sources are fetched.
#[test]
fn a_response_that_is_not_a_feed_is_a_clear_error() {
    let (world, nginx) = (world(&[]), Nginx::start(HOSTILE));
    let page =
        "<!doctype html><html><head><title>Log in</title></head><body><br><p>Who are you?</body></html>";
    let deep = format!("<rss><channel><item>{}", "<g>".repeat(100_000));
    let deep_json =
        format!("{{\"version\":\"https://jsonfeed.org/version/1.1\",\"items\":{}", "[".repeat(100_000));
    let mut random = fastrand::Rng::with_seed(4);
    let noise: Vec<u8> = (0..100_000).map(|_| random.u8(..)).collect();
    let flat: Vec<u8> = noise.iter().map(|byte| if *byte == b'<' { 0 } else { *byte }).collect();
    let cases: [(&str, &[u8], &str); 10] = [
        (
            "page.html",
            page.as_bytes(),
            "not a feed: the response is an HTML page titled \"Log in\"; comity sources add",
        ),
        (
            "page.rss",
            page.as_bytes(),
            "not a feed: the response is an HTML page titled \"Log in\"; comity sources add",
        ),
        ("empty.rss", b"", "empty response: expected a feed"),
        ("blank.rss", b" \r\n \n", "empty response: expected a feed"),
        ("noise.rss", &noise, "not a feed: "),
        ("flat.rss", &flat, "not a feed: the response is plain text; open its URL in a browser"),
        ("other.json", b"{\"items\":[1,2,3]}", "not a feed: the response is JSON, but not a JSON Feed"),
        (
            "cut.json",
            b"{\"version\":\"https://jsonfeed.org/version/1.1\",\"items\":[{",
            "not a feed: JSON error at byte ",
        ),
        ("deep.rss", deep.as_bytes(), "not a feed: XML error at byte "),
        ("deep.json", deep_json.as_bytes(), "recursion limit exceeded"),
    ];
    let url = |file: &str| format!("{}/feeds/{file}", nginx.url());
    nginx.put("feeds/good.rss", rss(&[("Good", "/good")]));
    nginx.put("feeds/last.rss", rss(&[("Last", "/last")]));
    let good = add(&world, &url("good.rss"), &[]);
    let mut wrong: Vec<(i64, &str)> = Vec::new();
    for (file, body, why) in cases {
        nginx.put(&format!("feeds/{file}"), body);
        wrong.push((add(&world, &url(file), &[]), why));
    }
    large(&nginx);
    for (file, why) in [
        ("huge.rss", "the body is larger than the limit of 16777216 bytes"),
        ("bomb.packed", "the body is larger than the limit of 16777216 bytes"),
        ("bomb.gz", "response of more than 52428800 bytes when decompressed: too large for a feed"),
    ] {
        wrong.push((add(&world, &url(file), &[]), why));
    }
    let last = add(&world, &url("last.rss"), &[]);
    let began = now_us();
    let mut running = world.start(&["--json", "run"]);
    let peak = running.peak_kb();
    let ran = running.wait().expect(1).json();
    assert!((1..300 * 1_024).contains(&peak), "{peak} kB");
    for (id, why) in &wrong {
        let detail = detail(&ran, *id);
        let said = detail["why"].as_str().unwrap();
        assert!(said.contains(why), "{detail}");
        assert!(!said.contains('\0') && said.len() < 500, "{detail}");
        assert_eq!(detail["outcome"], "failed");
        assert!(micros(&detail["again_at"]) >= began + 300_000_000, "{detail}");
    }
    let sources = &ran["sources"];
    assert_eq!((&sources["fetched"], &sources["failed"]), (&json!(2), &json!(wrong.len())), "{ran}");
    let kept: Vec<Value> = items(&world).iter().map(|item| item["source"].clone()).collect();
    assert_eq!(kept, [good, last]);
    assert_eq!(ran["tasks"]["fetched"], 2);
}

/// XML entities are neither expanded nor fetched.
#[test]
fn an_entity_bomb_is_not_expanded() {
    let (world, nginx) = (world(&[]), Nginx::start(FEEDS));
    let url = nginx.url();
    let mut bomb = format!(
        "<?xml version='1.0'?><!DOCTYPE rss [<!ENTITY l0 'lollollollol'><!ENTITY out SYSTEM '{url}/secret'>\
         <!ENTITY file SYSTEM 'file:///etc/passwd'>"
    );
    for nth in 1..10 {
        let ten = format!("&l{};", nth - 1).repeat(10);
        bomb += &format!("<!ENTITY l{nth} '{ten}'>");
    }
    bomb += "]><rss version='2.0'><channel><title>&l9;</title><item><guid>1</guid><link>/one</link>\
             <title>&l9;&out;&file;</title></item></channel></rss>";
    nginx.put("feeds/bomb.rss", &bomb);
    add(&world, &(url + "/feeds/bomb.rss"), &[]);
    let mut running = world.start(&["--json", "run"]);
    let peak = running.peak_kb();
    running.wait().expect(0);
    assert!((1..150 * 1_024).contains(&peak), "{peak} kB");
    assert_eq!(items(&world)[0]["title"], "&l9;&out;&file;");
    let log = nginx.log();
    assert!(log.iter().all(|hit| hit.path != "/secret"), "{}", to_text(&log));
}

/// B76: the operator chose the feed's own host, but not what it links to; a blocked item has an error.
#[test]
fn links_in_a_feed_reach_private_addresses_only_if_allowed() {
    let other = Nginx::start("");
    let port = other.url().rsplit(':').next().unwrap().to_owned();
    let away = format!("location = /away {{ return 302 {}/away; }}", other.url());
    let (world, nginx) = (world(&[("http.allow_private", "[]")]), Nginx::start(&format!("{FEEDS}{away}")));
    let links = [
        "/away".to_owned(),
        other.url() + "/other",
        format!("http://localhost:{port}/name"),
        format!("http://0x7f.1:{port}/hexadecimal"),
        format!("http://[::ffff:127.0.0.1]:{port}/mapped"),
        "http://169.254.169.254/latest/meta-data/".to_owned(),
        "/own".to_owned(),
    ];
    let named: Vec<(&str, &str)> = links.iter().map(|link| (&**link, &**link)).collect();
    nginx.put("feeds/a.rss", rss(&named));
    add(&world, &(nginx.url() + "/feeds/a.rss"), &[]);
    let redirected = add(&world, &(nginx.url() + "/away"), &[]);
    let ran = run(&world, &[], 1);
    assert_counts(&ran["tasks"], json!({ "fetched": 1, "failed": links.len() - 1, "skipped": 0 }));
    assert_eq!(detail(&ran, redirected)["outcome"], "failed");
    assert!(detail(&ran, redirected)["why"].as_str().unwrap().contains("allow_private"), "{ran}");
    assert_eq!(other.log().len(), 0, "{}", to_text(&other.log()));
    let mut paths: Vec<String> = nginx.log().into_iter().map(|hit| hit.path).collect();
    paths.sort();
    assert_eq!(paths, ["/away", "/away", "/feeds/a.rss", "/own"]);
    let (own, led_to): (Vec<Value>, Vec<Value>) =
        items(&world).into_iter().partition(|item| item["url"].as_str().unwrap().ends_with("/own"));
    assert_eq!((&own[0]["state"], &own[0]["lead"]), (&json!("done"), &json!("listed")));
    for item in led_to {
        assert_eq!(item["state"], "failed", "{item}");
        let error = item["error"].as_str().unwrap();
        assert!(error.contains("allow_private"), "{error}");
    }
}

/// Titles contain no control characters when they are printed.
#[test]
fn titles_are_shown_without_control_characters() {
    let (world, nginx) = (world(&[]), Nginx::start(FEEDS));
    let title = "&#27;]0;Mine&#7;&#x9b;31mred\u{1b}[2J &lt;script&gt;alert(1)&lt;/script&gt;";
    nginx.put("feeds/a.rss", rss(&[(title, "/one?&#27;[2J")]));
    nginx.put("feeds/b.rss", format!("<{0}>{0}</{0}>", "x\u{1b}[2J"));
    add(&world, &(nginx.url() + "/feeds/a.rss"), &[]);
    add(&world, &(nginx.url() + "/feeds/b.rss"), &[]);
    let ran = world.run(&["--log-level", "debug", "run", "--no-scrape"]).expect(1);
    let shown =
        [&["items", "list"][..], &["items", "show", "1"], &["sources", "list"], &["sources", "show", "2"]];
    let shown = shown.map(|args| world.run(args).expect(0));
    for done in shown.iter().chain([&ran]) {
        let acted_on = |c: char| c.is_control() && c != '\n';
        assert!(!done.stdout.contains(acted_on) && !done.stderr.contains(acted_on), "{done:?}");
    }
}

/// B75: user names and passwords are sent, but never shown.
#[test]
fn passwords_in_urls_are_never_shown() {
    let (world, nginx) = (
        world(&[("job.max_retries", "0")]),
        Nginx::start(&format!("{FEEDS} location = /five {{ return 500; }}")),
    );
    let with_user = |path: &str| nginx.url().replace("http://", "http://ann:hunter2@") + path;
    nginx.put("feeds/a.rss", rss(&[("One", &with_user("/one")), ("Five", &with_user("/five"))]));
    nginx.put("feeds/b.rss", "nothing");
    for path in ["/feeds/a.rss", "/feeds/b.rss", "/feeds/missing.rss", "/five"] {
        add(&world, &with_user(path), &[]);
    }
    let mut outputs = vec![world.run(&["--log-level", "debug", "run"]).expect(1)];
    outputs.push(world.run(&["--json", "--log-level", "debug", "run", "--force"]).expect(0));
    for args in
        [&["sources", "list"][..], &["sources", "show", "1"], &["items", "list"], &["items", "show", "2"]]
    {
        outputs.push(world.run(args).expect(0));
        outputs.push(world.run(&[&["--json"], args].concat()).expect(0));
    }
    outputs.push(world.run(&["--log-level", "debug", "scrape", "2"]).expect(1));
    for done in outputs {
        assert!(!done.stdout.contains("hunter2") && !done.stderr.contains("hunter2"), "{done:?}");
    }
}

/// Responses that are too large: 50 MB of items, and 200 MB compressed, as Content-Encoding and as a .gz file.
fn large(nginx: &Nginx) {
    let item =
        "<item><title>An item like any other, with a title of some length</title><link>/x</link></item>\n";
    let huge = format!("<rss><channel>{}", item.repeat(50_000_000 / item.len()));
    nginx.put("feeds/huge.rss", huge);
    let pack =
        "(printf '<rss><channel><title>'; head -c 200000000 /dev/zero | tr '\\0' x) | gzip -1 > bomb.gz";
    let packed =
        Command::new("sh").args(["-c", pack]).current_dir(nginx.www().join("feeds")).status().unwrap();
    assert!(packed.success());
    std::fs::copy(nginx.www().join("feeds/bomb.gz"), nginx.www().join("feeds/bomb.packed")).unwrap();
}

const HOSTILE: &str = r#"
    location = /feeds/bomb.packed { default_type application/rss+xml; add_header Content-Encoding gzip; }
    location /feeds/ {
        default_type application/octet-stream;
        types {
            application/rss+xml rss; application/feed+json json; text/html html; application/gzip gz;
        }
    }
"#;

/// An hour used to be exported as `60m`.
#[test]
fn a_cadence_of_an_hour_is_shown_as_such() {
    let world = World::new();
    let opml = "<opml version='2.0'><body><outline type='rss' text='A' xmlUrl='https://a.example/feed'/></body></opml>";
    world.write("l.opml", opml);
    world.run(&["sources", "import", "l.opml", "--cadence", "1h"]).expect(0);
    world.run(&["sources", "list"]).expect(0).shows("  1h  ");
    world.run(&["sources", "export"]).expect(0).shows("comityCadence=\"1h\"");
}
