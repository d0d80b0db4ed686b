//! `comity sources` and `comity items`.

use serde_json::{Value, json};

use crate::comity::{Done, World};
use crate::log::to_text;
use crate::nginx::Nginx;

/// A site with pages, feeds, a sitemap and a list.
fn site() -> Nginx {
    Nginx::start(
        r#"
        location = /robots.txt { return 404; }
        location = / { return 200 '<!doctype html><title>The page</title>
            <link rel=alternate type=application/rss+xml title="Harbour" href=feed.xml>
            <link rel=alternate type=application/atom+xml href=/comments.atom>'; }
        location = /plain { return 200 '<!doctype html><title>No feed here</title><p>text'; }
        location = /far { return 200 '<!doctype html><title>Far</title>
            <link rel=alternate type=application/atom+xml title="Atom" href="http://localhost:1/far.atom">'; }
        location = /feed.xml { default_type application/rss+xml; return 200 '<rss version="2.0"><channel>
            <title>Harbour news</title>
            <item><guid>1</guid><title>One</title><link>/one.html</link></item>
            <item><guid>2</guid><title>Two</title><link>/two.txt</link></item></channel></rss>'; }
        location = /one.html { return 200 '<!doctype html><title>One</title><nav>Menu</nav><article>
            <p>The harbour, which had been closed since the storm, opened again on Monday, and the first ships,
            laden with timber and with salt, came in before noon.</p><p>More was said, on Tuesday, by all of
            them, about the tide, the weather, and the price of salt, which is high.</p></article>'; }
        location = /two.txt { default_type text/plain; return 200 'plain text'; }
        location = /old { return 302 /feed.xml; }
        location = /sitemap.xml { default_type text/xml; return 200 '<urlset><url><loc>/a</loc></url></urlset>'; }
        location = /list.txt { default_type text/plain; return 200 'http://a.example/
            http://b.example/'; }
        location = /data.json { default_type application/json; return 200 '{"a":1}'; }
        location = /gone { return 404; }
        "#,
    )
}

fn world() -> World {
    let world = World::new();
    let config = "[default]\nmin_delay = \"20ms\"\n[http]\nallow_private = [\"127.0.0.1\"]\n\
                  contact = \"ops@example.org\"\n[scrape]\nmin_interval = 0\n";
    world.write("comity.toml", config);
    world
}

/// Adds sources without fetching them.
fn add(world: &World, urls: &[&str]) {
    for url in urls {
        world.run(&["sources", "add", url, "--kind", "feed"]).expect(0);
    }
}

fn source(world: &World, id: &str) -> Value {
    world.run(&["--json", "sources", "show", id]).expect(0).json()
}

fn sources(world: &World) -> Vec<Value> {
    let listed = world.run(&["--json", "sources", "list"]).expect(0).json();
    listed["sources"].as_array().unwrap().clone()
}

#[test]
fn a_page_is_followed_by_its_feed() {
    let (world, site) = (world(), site());
    let url = site.url() + "/";
    let added = world.run(&["--json", "sources", "add", &url, "--cadence", "8h"]).expect(0).json();
    let source = &added["source"];
    assert_eq!(
        (&added["added"], &source["kind"], &source["lead"]),
        (&json!(true), &json!("feed"), &json!("listed"))
    );
    assert_eq!((&source["url"], &source["name"]), (&json!(site.url() + "/feed.xml"), &json!("Harbour")));
    assert_eq!((&source["every_minutes"], &source["state"]), (&json!(480), &json!("new")));
    assert_eq!(added["others"], json!([site.url() + "/comments.atom"]));
    let paths: Vec<String> = site.log().into_iter().map(|hit| hit.path).collect();
    assert_eq!(paths, ["/robots.txt", "/"], "asked once");

    // Adding it again, by the page or by the feed, changes nothing, whatever other flags say.
    let again = world.run(&["--json", "sources", "add", &url]).expect(0).json();
    assert_eq!((&again["added"], &again["source"]["id"]), (&json!(false), &json!(1)));
    let feed = site.url() + "/feed.xml";
    let again = world.run(&["sources", "add", &feed, "--cadence", "1h", "--no-scrape"]).expect(0);
    again.shows("Source 1 already exists: Harbour");
    again.says("comity sources set 1 --cadence 1h --auto-scrape off");
    let same = world.run(&["sources", "add", &feed, "--cadence", "8h"]).expect(0);
    assert_eq!(same.stderr, "");
    assert_eq!(sources(&world).len(), 1);
    assert_eq!(sources(&world)[0]["every_minutes"], 480);
}

/// B76: a feed on another host was found via the page, not listed by the operator.
#[test]
fn the_kind_of_a_source_is_detected() {
    let (world, site) = (world(), site());
    for (path, kind, name, lead) in [
        ("/feed.xml", "feed", "Harbour news", "listed"),
        ("/old", "feed", "Harbour news", "listed"),
        ("/plain", "page", "No feed here", "listed"),
        ("/far", "feed", "Far", "remote"),
        ("/sitemap.xml", "sitemap", "127.0.0.1", "listed"),
        ("/list.txt", "urls", "127.0.0.1", "listed"),
    ] {
        let added = world.run(&["--json", "sources", "add", &(site.url() + path)]).expect(0).json();
        let source = &added["source"];
        assert_eq!((&source["kind"], &source["lead"]), (&json!(kind), &json!(lead)), "{path}: {added}");
        assert!(source["name"].as_str().unwrap().starts_with(name), "{path}: {added}");
        if path != "/far" {
            assert_eq!(source["url"], site.url() + path, "the URL that was given");
        }
    }
    let plain = site.url() + "/plain?x";
    world
        .run(&["sources", "add", &plain])
        .expect(0)
        .shows("The page links to no feed, so the page itself is followed");
}

#[test]
fn urls_that_cannot_be_fetched_are_not_added() {
    let (world, site) = (world(), site());
    for (url, said) in [
        (site.url() + "/gone", "/gone: answered 404"),
        (site.url() + "/data.json", "the response isn't a feed, page, sitemap or list of URLs"),
        ("http://127.0.0.1:1/".to_owned(), "connection refused by 127.0.0.1:1"),
    ] {
        let done = world.run(&["sources", "add", &url]).expect(1);
        done.says(said);
        done.says("to add it without fetching it, use --kind feed, page, sitemap or urls");
    }
    world.run(&["sources", "add", "http://127.0.0.1:1/", "--kind", "page"]).expect(0);
    assert_eq!(sources(&world).len(), 1);
}

/// B50, B62: reported before anything is fetched or written.
#[test]
fn invalid_arguments_are_reported_first() {
    let (world, site) = (world(), site());
    let url = site.url() + "/feed.xml";
    let wrong = |args: &[&str], said: &str| {
        let args = [&["sources"], args].concat();
        world.run(&args).expect(2).says(said);
    };
    for bad in ["example.org", "ftp://example.org/", "http://", "javascript:1"] {
        wrong(&["add", bad], "expected an http or https URL with a host");
    }
    wrong(&["add", "example.org/feed"], "did you mean https://example.org/feed ?");
    wrong(&["add", "http://user:secret@/x"], "URL = \"http:///x\": expected");
    for bad in ["0", "-5", "NaN", "soon", "0h", ""] {
        let said = format!("--cadence = {bad:?}: expected a duration above zero such as 8h");
        wrong(&["add", &url, "--cadence", bad], &said);
        wrong(&["cadence", "set", bad, "--all"], &said.replace("--cadence", "EVERY"));
        wrong(&["import", "none", "--cadence", bad], &said);
    }
    for bad in ["fast", "2.555", "1s", "123456789"] {
        let said = format!("--min-interval = {bad:?}: expected decimal seconds");
        wrong(&["add", &url, "--min-interval", bad], &said);
        wrong(&["set", "1", "--min-interval", bad], &said);
    }
    wrong(&["add", &url, "--name", " "], "--name = \" \": expected a name");
    wrong(&["add", &url, "--kind", "blog"], "--kind = \"blog\": expected one of \"feed\",");
    wrong(&["set", "1"], "required");
    wrong(&["cadence", "clear"], "required");
    for command in ["show", "remove"] {
        wrong(&[command, "7"], "source = 7: no such source; comity sources list shows all sources");
    }
    wrong(&["set", "7", "--name", "x"], "source = 7: no such source");
    wrong(&["cadence", "clear", "7"], "source = 7: no such source");
    assert_eq!(site.log().len(), 0, "{}", to_text(&site.log()));
    assert_eq!(sources(&world), [] as [Value; 0]);
}

#[test]
fn sources_are_listed_and_shown() {
    let world = world();
    world.run(&["sources", "list"]).expect(0).shows("No sources yet");
    add(&world, &["https://a.example/feed", "https://u:secret@b.example/feed?key=1"]);
    world
        .run(&["sources", "set", "1", "--name", "The 新聞 of a harbour that has a very long name indeed"])
        .expect(0);
    world
        .sql()
        .execute("UPDATE sources SET failures = 3, error = 'status\u{1b} 500' WHERE id = 2", [])
        .unwrap();
    let listed = world.run(&["sources", "list"]).expect(0);
    let lines: Vec<&str> = listed.stdout.lines().collect();
    assert_eq!(lines.len(), 3, "{}", listed.stdout);
    assert!(lines[1].starts_with("1   on  feed  The 新聞 of a harbour that has a very l…"), "{}", lines[1]);
    assert!(lines[1].ends_with("always   never       now       new"), "{}", lines[1]);
    assert!(lines[2].ends_with("failing, 3 times: status\u{fffd} 500"), "{}", lines[2]);
    let failing = world.run(&["--json", "sources", "list", "--failing"]).expect(0).json();
    assert_eq!((failing["sources"].as_array().unwrap().len(), &failing["sources"][0]["id"]), (1, &json!(2)));
    for (args, shown) in [
        (&["B.EXAMPLE"][..], "b.example/feed"),
        (&["harbour", "--kind", "feed"], "新聞"),
        (&["harbour", "--kind", "page"], "No matching sources"),
        (&["secret"], "No matching sources"),
    ] {
        world.run(&[&["sources", "list"], args].concat()).expect(0).shows(shown);
    }
    for args in
        [&["sources", "show", "2"][..], &["--json", "sources", "show", "2"], &["--json", "sources", "list"]]
    {
        let done = world.run(args).expect(0);
        done.shows("https://b.example/feed?key=1");
        assert!(!done.stdout.contains("secret"), "{}", done.stdout);
    }
    world.run(&["sources", "show", "2"]).expect(0).shows("min interval   none (scrape.min_interval)");
}

/// B50
#[test]
fn changes_to_a_source_are_printed_with_old_and_new_values() {
    let world = world();
    add(&world, &["https://a.example/feed", "https://b.example/feed"]);
    let set = |args: &[&str]| world.run(&[&["sources", "set", "1"], args].concat());
    let done = set(&["--name", "A", "--enabled", "off", "--scrape", "off", "--auto-scrape", "off"]).expect(0);
    for line in ["name: a.example/feed → A", "enabled: on → off", "scrape: on → off", "auto-scrape: on → off"]
    {
        done.shows(&format!("1 A: {line}"));
    }
    set(&["--enabled", "off"]).expect(0).shows("1 A: unchanged");
    for (typed, line, kept) in [
        ("2.5", "default → 2.5s", json!(2.5)),
        ("0", "2.5s → none", json!(0.0)),
        ("0.25", "none → 250ms", json!(0.25)),
        ("-1", "250ms → none", json!(0.0)),
        ("default", "none → default", Value::Null),
    ] {
        set(&["--min-interval", typed]).expect(0).shows(&format!("min-interval: {line}"));
        assert_eq!(source(&world, "1")["min_scrape_interval"], kept, "{typed}");
    }
    world.write("comity.toml", "[scrape]\nmin_interval = 3.5\n");
    assert_eq!(source(&world, "1")["interval_seconds"], 3.5, "the configured one");

    set(&["--cadence", "90m"]).expect(0).shows("cadence: always → 90m");
    set(&["--cadence", "none", "--kind", "page"]).expect(0).shows("cadence: 90m → always");
    set(&["--url", "https://b.example/feed"]).expect(2).says("source 2 already has that URL");
    set(&["--url", "https://c.example/"]).expect(0).shows("url: https://a.example/feed → https://c.example/");
    let changed = source(&world, "1");
    assert_eq!((&changed["kind"], &changed["enabled"]), (&json!("page"), &json!(false)));
    assert_eq!((&changed["url"], &changed["state"]), (&json!("https://c.example/"), &json!("off")));
}

#[test]
fn sources_are_removed_all_at_once_or_not_at_all() {
    let world = world();
    add(&world, &["https://a.example/", "https://b.example/", "https://c.example/"]);
    let item = "INSERT INTO items (source_id, identity, url, lead, content_hash, seen_us)
        VALUES (2, 'x', 'https://b.example/x', 'remote', 1, 1)";
    world.sql().execute(item, []).unwrap();
    world.run(&["sources", "remove", "1", "2", "9"]).expect(2).says("source = 9");
    assert_eq!(sources(&world).len(), 3);
    let done = world.run(&["sources", "remove", "2", "1", "2"]).expect(0);
    assert_eq!(
        done.stdout,
        "Removed source 1 a.example with 0 items\nRemoved source 2 b.example with 1 item\n"
    );
    let gone = world.run(&["--json", "sources", "remove", "3"]).expect(0).json();
    assert_eq!(gone["removed"], json!([{ "id": 3, "name": "c.example", "items": 0 }]));
    add(&world, &["https://a.example/1", "https://a.example/2", "https://b.example/1"]);
    let matching = ["sources", "remove", "--match", "https://a.example/*"];
    let dry = world.run(&[&matching[..], &["--dry-run"]].concat()).expect(0);
    dry.shows("a.example/1 with 0 items\n");
    dry.shows("Dry run: nothing was changed");
    world.run(&["sources", "remove", "--failing"]).expect(0).shows("No source matches; nothing was removed");
    assert_eq!(sources(&world).len(), 3);
    world.run(&matching).expect(0).shows("a.example/2 with 0 items\n");
    assert_eq!(sources(&world).len(), 1);
    world.run(&["sources", "remove"]).expect(2);
    world.run(&["sources", "remove", "6", "--failing"]).expect(2);
}

/// B59, B62, B65
#[test]
fn a_cadence_is_set_and_cleared_for_many_sources() {
    let world = world();
    let urls: Vec<String> = (1..=4).map(|nth| format!("https://site{nth}.example/feed")).collect();
    add(&world, &urls.iter().map(String::as_str).collect::<Vec<_>>());
    world.run(&["sources", "set", "4", "--kind", "page"]).expect(0);
    let cadence = |args: &[&str]| world.run(&[&["sources", "cadence"], args].concat());
    let kept = |id: u32| {
        let sql = format!("SELECT config_json FROM sources WHERE id = {id}");
        world.sql().query_row(&sql, [], |row| row.get::<_, String>(0)).unwrap()
    };
    world.sql().execute("UPDATE sources SET config_json = '{\"note\":\"mine\"}' WHERE id = 1", []).unwrap();

    let done = cadence(&["set", "8h", "--all", "--dry-run"]).expect(0);
    done.shows("1 site1.example/feed: always → every 8h\n");
    done.shows("Dry run: nothing was changed");
    assert_eq!((kept(1).as_str(), kept(2).as_str()), (r#"{"note":"mine"}"#, "{}"));

    cadence(&["set", "8h", "--kind", "feed", "--match", "SITE"]).expect(0);
    let eight_hours = json!({ "mode": "interval", "every_minutes": 480 });
    let with_note: Value = serde_json::from_str(&kept(1)).unwrap();
    assert_eq!(with_note, json!({ "note": "mine", "cadence": eight_hours }));
    assert_eq!((kept(2), kept(4)), (json!({ "cadence": eight_hours }).to_string(), "{}".to_owned()));
    let done = cadence(&["set", "8h", "1", "4", "1"]).expect(0);
    assert_eq!(
        done.stdout,
        "1 site1.example/feed: every 8h (unchanged)\n4 site4.example/feed: always → every 8h\n"
    );
    cadence(&["set", "1h", "--match", "nothing-like-it"])
        .expect(1)
        .says("no source matches, nothing was changed");
    cadence(&["set", "1h", "1", "9"]).expect(2).says("source = 9");
    cadence(&["set", "1h", "1", "--all"]).expect(2);
    assert_eq!(source(&world, "1")["every_minutes"], 480);

    // A source with unreadable configuration is reported, and the others are changed; an invalid cadence is replaced.
    world.sql().execute("UPDATE sources SET config_json = '{' WHERE id = 2", []).unwrap();
    let zero = json!({ "note": 1, "cadence": { "mode": "interval", "every_minutes": 0 } }).to_string();
    world.sql().execute("UPDATE sources SET config_json = ?1 WHERE id = 3", [zero]).unwrap();
    let listed = world.run(&["sources", "list", "--failing"]).expect(0);
    listed.shows("invalid: config_json is not valid JSON");
    listed.shows("invalid: config_json: cadence.every_minutes = 0");
    let done = cadence(&["clear", "--all"]).expect(1);
    done.says("2 site2.example/feed: config_json is not valid JSON");
    done.shows("1 site1.example/feed: every 8h → always");
    done.shows("4 site4.example/feed: every 8h → always");
    assert_eq!((kept(1).as_str(), kept(2).as_str()), (r#"{"note":"mine"}"#, "{"));
    assert_eq!((kept(3).as_str(), kept(4).as_str()), (r#"{"note":1}"#, "{}"));
    let again = world.run(&["--json", "sources", "cadence", "clear", "--all"]).expect(1).json();
    assert_eq!((&again["changed"], &again["unchanged"], &again["failed"]), (&json!(0), &json!(3), &json!(1)));
}

fn import(world: &World, file: &str, text: &str, args: &[&str]) -> Done {
    world.write(file, text);
    world.run(&[&["--json", "sources", "import", file], args].concat())
}

/// B50, B59, B62
#[test]
fn lists_of_every_format_are_imported() {
    let world = world();
    let opml = "<opml version='2.0'><body><outline text='Folder'>
        <outline type='rss' text='A &amp; B' xmlUrl='https://a.example/feed' htmlUrl='https://a.example/'/>
        <outline type='rss' text='Bad' xmlUrl='nowhere'/></outline></body></opml>";
    let dry = import(&world, "dry.opml", opml, &["--dry-run"]).expect(1).json();
    assert_eq!((&dry["added"], &dry["dry_run"], sources(&world).len()), (&json!(1), &json!(true), 0));
    let done = import(&world, "a.opml", opml, &["--cadence", "1d"]).expect(1);
    done.says("line 3: \"nowhere\" is not an http or https URL with a host");
    assert_eq!((&done.json()["added"], &done.json()["problems"][0]["line"]), (&json!(1), &json!(3)));
    let again = import(&world, "a.opml", opml, &[]).expect(1).json();
    assert_eq!((&again["added"], &again["already"]), (&json!(0), &json!(1)));

    let csv = "url,name,kind,cadence,min_interval\nhttps://c.example/map.xml,C,sitemap,8h,2.5\n\
               https://d.example/,D,page,soon,\nhttps://e.example/,E,page,,fast\nhttps://f.example/,F,,,0\n";
    let done = import(&world, "a.csv", csv, &["--cadence", "90m"]).expect(1);
    done.says("line 3: cadence = \"soon\": expected a duration above zero such as 8h");
    done.says("line 4: min_interval = \"fast\": expected decimal seconds");
    assert_eq!(done.json()["added"], 2);

    let list = "# pages\nhttps://g.example/\n\nhttps://g.example/#part\nhttps://a.example/feed\n";
    let done = import(&world, "list", list, &["--kind", "page"]).expect(0).json();
    assert_eq!((&done["added"], &done["already"], &done["repeated"]), (&json!(1), &json!(1), &json!(1)));
    let mut command = world.command(&["sources", "import", "-"]);
    command.stdin(std::fs::File::open(world.write("stdin", "https://h.example/\n")).unwrap());
    world.begin(command).wait().expect(0).shows("1 added as feeds");

    let found: Vec<Value> = sources(&world)
        .iter()
        .map(|source| {
            let keys = ["name", "kind", "every_minutes", "min_scrape_interval"];
            Value::from(keys.map(|key| source[key].clone()).to_vec())
        })
        .collect();
    let expected = json!([
        ["A & B", "feed", 1_440, null],
        ["C", "sitemap", 480, 2.5],
        ["F", "feed", 90, 0.0],
        ["g.example", "page", null, null],
        ["h.example", "feed", null, null],
    ]);
    assert_eq!(Value::from(found), expected);

    let bad = "not a url\n".repeat(30);
    let done = import(&world, "bad", &bad, &["--format", "list"]).expect(2);
    done.says("line 20: ");
    done.says("and 10 more problems");
    assert!(!done.stderr.contains("line 21:"), "{}", done.stderr);
    import(&world, "empty", "", &[]).expect(2).says("empty: no sources found");
    import(&world, "feed.xml", "<rss/>", &[]).expect(2).says("expected <opml>");
    world.run(&["sources", "import", "missing"]).expect(2).says("missing: No such file");
}

/// B75, B76: passwords are not exported, and how a source was found is.
#[test]
fn an_export_can_be_imported_elsewhere() {
    let (world, site) = (world(), site());
    world.run(&["sources", "add", &(site.url() + "/far")]).expect(0);
    add(&world, &["https://u:secret@a.example/feed?x=1&y=2"]);
    world.run(&["sources", "set", "2", "--name", "<A> & \"B\" 新聞"]).expect(0);
    world.run(&["sources", "add", "https://c.example/map.xml", "--kind", "sitemap"]).expect(0);
    let done = world.run(&["sources", "export"]).expect(0);
    assert!(!done.stdout.contains("secret"), "{}", done.stdout);
    done.says("Left out the user and password of 1 URL");
    world.write("out.opml", "something longer that stood there before");
    let object = world.run(&["--json", "sources", "export", "--out", "out.opml"]).expect(0).json();
    assert_eq!(object["exported"], 3);
    assert_eq!(std::fs::read_to_string(world.path("out.opml")).unwrap(), done.stdout);
    world.run(&["--json", "sources", "export"]).expect(2).says("--out FILE");
    world.run(&["sources", "export", "--out", "no/such/folder.opml"]).expect(2).says("no/such/folder.opml");
    let left: Vec<_> =
        std::fs::read_dir(world.path("")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().ends_with(".part")), "{left:?}");

    let elsewhere =
        |args: &[&str]| world.run(&[&["--json", "--store", "sqlite:other.db", "sources"], args].concat());
    assert_eq!(elsewhere(&["import", "out.opml"]).expect(0).json()["added"], 3);
    let listed = elsewhere(&["list"]).expect(0).json();
    for (there, here) in listed["sources"].as_array().unwrap().iter().zip(sources(&world)) {
        for key in ["name", "kind", "url", "lead"] {
            assert_eq!(there[key], here[key], "{key}");
        }
    }
    assert_eq!(listed["sources"][0]["lead"], "remote");
}

/// Folders, home pages and cadences used to be lost, and what was switched off was on again.
#[test]
fn an_export_keeps_folders_home_pages_cadences_and_intervals() {
    let world = world();
    let opml = "<opml version='2.0'><body><outline text='News'><outline text='Local &amp; near'>
        <outline type='rss' text='A' xmlUrl='https://a.example/feed' htmlUrl='https://u:secret@a.example/'/></outline>
        <outline type='rss' text='B' xmlUrl='https://b.example/feed' comityCadence='90m' comityMinInterval='2.5'/></outline>
        <outline type='rss' text='C' xmlUrl='https://c.example/feed' comityMinInterval='0'/></body></opml>";
    import(&world, "in.opml", opml, &["--cadence", "8h"]).expect(0);
    let configs = |sources: &[Value]| -> Vec<Value> {
        let keys = [
            "name",
            "url",
            "config",
            "every_minutes",
            "min_scrape_interval",
            "enabled",
            "scraping",
            "auto_scrape",
        ];
        sources.iter().map(|source| Value::from(keys.map(|key| source[key].clone()).to_vec())).collect()
    };
    world.run(&["sources", "set", "2", "--enabled", "off"]).expect(0);
    world.run(&["sources", "set", "3", "--auto-scrape", "off"]).expect(0);
    let here = configs(&sources(&world));
    let every = |minutes: u64| json!({ "mode": "interval", "every_minutes": minutes });
    assert_eq!(
        here[0][2],
        json!({ "cadence": every(480), "folder": ["News", "Local & near"], "html_url": "https://a.example/" })
    );
    assert_eq!(here[1][2], json!({ "cadence": every(90), "folder": ["News"] }));
    assert_eq!(here[2][2], json!({ "cadence": every(480) }));
    assert_eq!((&here[1][5], &here[2][7]), (&false.into(), &false.into()));
    let first = world.run(&["sources", "export"]).expect(0).stdout;
    assert!(!first.contains("secret"), "{first}");
    world.write("out.opml", &first);
    let elsewhere =
        |args: &[&str]| world.run(&[&["--json", "--store", "sqlite:other.db", "sources"], args].concat());
    elsewhere(&["import", "out.opml"]).expect(0);
    let there = elsewhere(&["list"]).expect(0).json();
    assert_eq!(configs(there["sources"].as_array().unwrap()), here);
    let second = world.run(&["--store", "sqlite:other.db", "sources", "export"]).expect(0).stdout;
    assert_eq!(second, first);
}

#[test]
fn items_are_listed_and_shown_with_their_text() {
    let (world, site) = (world(), site());
    world.run(&["items", "list"]).expect(0).shows("No matching items yet");
    world.run(&["items", "list", "--source", "3"]).expect(2).says("source = 3: no such source");
    world
        .run(&["items", "list", "--state", "odd"])
        .expect(2)
        .says("--state = \"odd\": expected one of \"none\", \"waiting\",");
    world
        .run(&["items", "show", "3"])
        .expect(2)
        .says("item = 3: no such item; comity items list shows all items");
    world.run(&["sources", "add", &(site.url() + "/feed.xml")]).expect(0);
    world.run(&["run", "--no-scrape"]).expect(0);
    world.run(&["items", "list"]).expect(0).shows("none   -          One    http://127.0.0.1");
    world
        .run(&["items", "show", "1", "--text"])
        .expect(1)
        .says("item 1 has not been scraped yet; run comity scrape 1");

    world.run(&["run", "--force"]).expect(0);
    let page =
        world.run(&["--json", "items", "list", "--state", "done", "--after", "0", "--limit", "1"]).expect(0);
    let item = &page.json()["items"][0];
    assert_eq!((&item["id"], &item["title"]), (&json!(1), &json!("One")));
    page.shows(&(site.url() + "/one.html"));
    world
        .run(&["items", "list", "--source", "1", "--state", "failed"])
        .expect(0)
        .shows("No matching items yet");
    let shown = world.run(&["--json", "items", "show", "1"]).expect(0).json();
    assert_eq!((&shown["status"], &shown["scrapes"][0]["status"]), (&json!(200), &json!("ok")));
    let text = world.run(&["items", "show", "1", "--text"]).expect(0);
    text.shows("One\n\nThe harbour, which had been closed");
    assert!(!text.stdout.contains("Menu") && !text.stdout.contains('<'), "{}", text.stdout);
    world.run(&["items", "show", "2", "--text"]).expect(0).shows("plain text\n");

    std::fs::write(shown["file"].as_str().unwrap(), [0, 255, 1, 254].repeat(100)).unwrap();
    world.run(&["items", "show", "1", "--text"]).expect(1).says("is neither HTML nor text");
    std::fs::remove_file(shown["file"].as_str().unwrap()).unwrap();
    world.run(&["items", "show", "1", "--text"]).expect(1).says("the file is gone");
    world.run(&["scrape", "1", "--format", "none"]).expect(0);
    world.run(&["items", "show", "1", "--text"]).expect(1).says("no file of its own (--format none or warc)");
    let counts = &source(&world, "1")["items"];
    assert_eq!((&counts["items"], &counts["done"]), (&json!(2), &json!(2)));
    world.run(&["sources", "show", "1"]).expect(0).shows("2 items, 2 new, 0 changed");
}
