//! A scripted API, for responses that a real wiki doesn't give.

use serde_json::{Value, json};

use crate::comity::World;
use crate::log::TOLERANCE;
use crate::site::{Answer, Held, Site};

/// B67: whichever way an API asks to wait, the next request comes after that, and not sooner.
#[test]
fn errors_in_a_body_count_like_a_status() {
    let error = |code: &str| ok(&json!({ "error": { "code": code, "info": format!("about {code}") } }));
    let whole = json!({ "query": { "allrevisions": [] } }).to_string();
    // The response, and the minimum wait after it, in milliseconds.
    let refusals: Vec<(Answer, i64)> = vec![
        (error("maxlag").header("Retry-After", "1"), 1_000),
        (error("ratelimited"), 300),
        (error("readonly"), 300),
        (error("internal_api_error_DBQueryError"), 300),
        (Answer::status(429).header("Retry-After", "1"), 1_000),
        (Answer::status(503), 300),
        (text("<!DOCTYPE html><html><body>502 Bad Gateway</body></html>"), 300),
        (text(&whole[..whole.len() / 2]), 300),
        (text(""), 300),
        (text("{}"), 300),
        (text("{\"message\": \"maintenance\"}"), 300),
    ];
    let waits: Vec<i64> = refusals.iter().map(|(_, wait)| *wait).collect();
    let site = Site::start(move |asked| match asked.before {
        0 => ok(&site_info()),
        1 => ok(&json!({ "query": { "pages": [page(1, "A")] } })),
        nth if nth < 2 + refusals.len() => refusals[nth - 2].0.clone(),
        _ => ok(&revisions(&[(11, 1, "A")])),
    });
    let world = World::new();
    world.write("comity.toml", PACE);
    let object = world.run(&["--json", "wiki", "archive", &api(&site)]).expect(0).json();
    assert_eq!((&object["revisions"], &object["requests"]), (&1.into(), &14.into()), "{object}");
    assert_eq!(object["rate_limited"], 3, "{object}");
    let log = site.log();
    for (nth, wait) in waits.iter().enumerate() {
        let (refused, next) = (&log[nth + 2], &log[nth + 3]);
        let waited = next.start - refused.answered;
        assert!(
            waited >= wait * 1_000 - TOLERANCE,
            "response {nth}: {waited} µs\n{}",
            crate::log::to_text(&log)
        );
    }
}

/// B67: after a timeout, the request is retried with backoff.
#[test]
fn a_timeout_is_retried() {
    let never = Held::default();
    let site = Site::start(move |asked| match asked.before {
        0 => ok(&site_info()),
        1 => ok(&json!({ "query": { "pages": [page(1, "A")] } })),
        2 | 3 => ok(&revisions(&[(11, 1, "A")])).held(&never),
        _ => ok(&revisions(&[(11, 1, "A")])),
    });
    let world = World::new();
    world.write("comity.toml", &format!("{PACE}[http]\nfirst_byte_timeout = \"2s\"\n"));
    let object = world.run(&["--json", "wiki", "archive", &api(&site)]).expect(0).json();
    assert_eq!((&object["revisions"], &object["requests"]), (&1.into(), &5.into()), "{object}");
    let log = site.log();
    for nth in [3, 4] {
        let gap = log[nth].start - log[nth - 1].start;
        assert!(gap >= 2_300_000 - TOLERANCE, "2 s timeout and 300 ms backoff: {gap} µs");
    }
}

/// Errors that a retry can't fix are reported at once, with their code.
#[test]
fn permanent_errors_are_not_retried() {
    let denied = |code: &'static str| {
        Site::start(move |_| ok(&json!({ "error": { "code": code, "info": "You may not." } })))
    };
    let (world, other) = (World::new(), Site::start(|_| text("{\"status\": \"ok\"}")));
    world.run(&["wiki", "archive", &api(&other)]).expect(1).says("other JSON instead of the API's JSON");
    assert_eq!(other.log().len(), 1);
    for code in ["readapidenied", "assertuserfailed", "unknown_meta"] {
        let (world, site) = (World::new(), denied(code));
        world.run(&["wiki", "archive", &api(&site), "--assert", "user"]).expect(1).says(code);
        assert_eq!(site.log().len(), 1, "{code}");
        assert!(site.log()[0].path.contains("assert=user") && site.log()[0].path.contains("maxlag=5"));
    }
    let (world, page) = (World::new(), Site::start(|_| text("<html>a page</html>")));
    world
        .run(&["wiki", "archive", &api(&page)])
        .expect(1)
        .says("a page instead of the API's JSON; is this the URL of api.php?");
    assert_eq!(page.log().len(), 1);
    let moved = Site::start(|_| Answer::status(301).header("Location", "https://wiki.example/w/api.php"));
    world.run(&["wiki", "archive", &api(&moved)]).expect(1).says("https://wiki.example/w/api.php");
}

/// B67: `continue` is followed to its end, and sent back unchanged; if it is rejected, the list starts over.
#[test]
fn continuations_are_followed_to_their_end() {
    let site = Site::start(|asked| {
        let query = asked.path;
        let has = |what: &str| query.contains(what);
        if has("siteinfo") {
            return ok(&site_info());
        }
        if has("allpages") {
            return match has("gapcontinue=B%7C2&continue=gap") || has("continue=gap&gapcontinue=B%7C2") {
                true => ok(&json!({ "query": { "pages": [page(2, "B")] } })),
                false => ok(&json!({ "query": { "pages": [page(1, "A")] },
                    "continue": { "gapcontinue": "B|2", "continue": "gap" } })),
            };
        }
        match (has("arvcontinue=1"), has("arvcontinue=2"), asked.before) {
            (true, ..) => {
                let mut object = revisions(&[(12, 1, "A")]);
                object["continue"] = json!({ "arvcontinue": 2 });
                ok(&object)
            }
            // The first time, the wiki rejects its own `continue`.
            (_, true, ..6) => ok(&json!({ "error": { "code": "badcontinue", "info": "No such place." } })),
            (_, true, _) => ok(&revisions(&[(22, 2, "B")])),
            _ => {
                let mut object = revisions(&[(11, 1, "A")]);
                object["continue"] = json!({ "arvcontinue": "1", "continue": "-||" });
                object["warnings"] = json!({ "main": { "warnings": "Something is old." } });
                ok(&object)
            }
        }
    });
    let world = World::new();
    world.write("comity.toml", PACE);
    let done = world.run(&["--json", "wiki", "archive", &api(&site)]).expect(0);
    let object = done.json();
    assert_eq!(
        (&object["revisions"], &object["pages"], &object["lacking"]),
        (&3.into(), &2.into(), &0.into()),
        "{object}"
    );
    assert_eq!(done.stderr.matches("Something is old.").count(), 1, "{}", done.stderr);
}

/// B67: being asked to wait is not a failure, however often it happens.
#[test]
fn it_waits_for_a_lagging_wiki() {
    let lagging = json!({ "error": { "code": "maxlag", "info": "Waiting for a database", "lag": 7 } });
    let site = Site::start(move |asked| match asked.before {
        0 => ok(&site_info()),
        1 => ok(&json!({ "query": { "pages": [page(1, "A")] } })),
        2..42 => ok(&lagging).header("Retry-After", "0.05"),
        _ => ok(&revisions(&[(11, 1, "A")])),
    });
    let world = World::new();
    world.write("comity.toml", PACE);
    let object = world.run(&["--json", "wiki", "archive", &api(&site)]).expect(0).json();
    assert_eq!((&object["revisions"], &object["rate_limited"]), (&1.into(), &40.into()), "{object}");
}

/// An endless list is given up.
#[test]
fn an_endless_list_is_given_up() {
    for (answer, says) in [
        (
            json!({ "query": { "pages": [page(1, "A")] }, "continue": { "gapcontinue": "A" } }),
            "generator=allpages never ends",
        ),
        (json!({ "error": { "code": "badcontinue", "info": "No such place." } }), "badcontinue"),
    ] {
        let site = Site::start(move |asked| match asked.before {
            0 => ok(&site_info()),
            nth if nth % 2 == 1 => {
                ok(&json!({ "query": { "pages": [page(1, "A")] }, "continue": { "gapcontinue": "A" } }))
            }
            _ => ok(&answer),
        });
        let world = World::new();
        world.write("comity.toml", PACE);
        world.run(&["wiki", "archive", &api(&site)]).expect(1).says(says);
        assert!(site.log().len() < 20);
    }
}

/// A wiki that returned the same `continue` values again and again used to be queried forever.
#[test]
fn a_list_that_loops_ends_with_an_error() {
    let ring = |length: usize| {
        move |list: &str, nth: usize| match list {
            "pages" => json!({ "gapcontinue": format!("place {}", nth % length), "continue": "gap||" }),
            _ => json!({ "arvcontinue": format!("2026|{}", nth % length), "continue": "-||" }),
        }
    };
    for (length, list) in [(2, "pages"), (5, "pages"), (2, "revisions"), (3, "revisions")] {
        let rest = ring(length);
        let site = Site::start(move |asked| {
            let has = |what: &str| asked.path.contains(what);
            let mut object = match (has("siteinfo"), has("allpages")) {
                (true, _) => return ok(&site_info()),
                (_, true) => json!({ "query": { "pages": [page(1, "A")] } }),
                // The entries differ each time; only the `continue` values repeat.
                _ => revisions(&[(10 + asked.before as i64, 1, "A")]),
            };
            if has("allpages") == (list == "pages") {
                object["continue"] = rest(list, asked.before);
            }
            ok(&object)
        });
        let world = World::new();
        world.write("comity.toml", PACE);
        let says = match list {
            "pages" => "generator=allpages never ends: its continuation loops",
            _ => "list=allrevisions never ends: its continuation loops",
        };
        world
            .run(&["wiki", "archive", &api(&site)])
            .expect(1)
            .says(&format!("{}: the list {says}", api(&site)));
        let asked = site.log().len();
        assert!(asked <= 8 + 4 * length, "{asked} requests for a circle of {length}");
        let kept = "SELECT count(*) FROM wiki_pages";
        assert_eq!(world.sql().query_row(kept, [], |row| row.get::<_, i64>(0)).unwrap(), 1);
        // The next run resumes, and notices it at least as soon.
        world.run(&["wiki", "archive", &api(&site)]).expect(1).says("never ends");
        let again = site.log().len() - asked;
        assert!(again <= 2 + 2 * length, "{again} more requests for a circle of {length}");
        // A dry run can't count such a list either.
        if list == "pages" {
            world.run(&["wiki", "archive", &api(&site), "--dry-run"]).expect(1).says("never ends");
        }
    }
}

/// New `continue` values forever, with the same page every time.
#[test]
fn a_list_that_brings_nothing_new_ends_with_an_error() {
    let site = Site::start(move |asked| match asked.before {
        0 => ok(&site_info()),
        nth => ok(&json!({ "query": { "pages": [page(1, "A")] }, "continue": { "gapcontinue": nth } })),
    });
    let world = World::new();
    world.write("comity.toml", &PACE.replace("20ms", "1ms"));
    let says = "generator=allpages never ends: it returns the same entries again and again";
    world.run(&["wiki", "archive", &api(&site)]).expect(1).says(says);
    assert!(site.log().len() < 200);
}

/// MediaWiki before 1.32 has one content per revision; versions before 1.27 are not supported.
#[test]
fn old_wikis_are_read_or_rejected() {
    let answers = |generator: &'static str| {
        Site::start(move |asked| {
            let mut object = site_info();
            object["query"]["general"]["generator"] = generator.into();
            let mut old = revision(11);
            old.as_object_mut().unwrap().remove("slots");
            old["content"] = "test".into();
            old["contentmodel"] = "wikitext".into();
            let mut without = revision(12);
            without.as_object_mut().unwrap().remove("slots");
            let page_1 = json!({ "pageid": 1, "ns": 0, "title": "A", "revisions": [old, without] });
            match asked.before {
                0 => ok(&object),
                1 => ok(&json!({ "query": { "pages": [page(1, "A")] } })),
                _ => ok(&json!({ "query": { "allrevisions": [page_1] } })),
            }
        })
    };
    let (world, site) = (World::new(), answers("MediaWiki 1.31.0"));
    world.write("comity.toml", PACE);
    let done = world.run(&["--json", "wiki", "archive", &api(&site)]).expect(0);
    assert_eq!(
        (&done.json()["revisions"], &done.json()["without_text"]),
        (&2.into(), &1.into()),
        "{}",
        done.stdout
    );
    let sql = "SELECT bytes FROM wiki_slots JOIN wiki_contents ON id = content_id WHERE revision_id = 11";
    assert_eq!(world.sql().query_row(sql, [], |row| row.get::<_, Vec<u8>>(0)).unwrap(), b"test");
    world
        .run(&["wiki", "archive", &api(&answers("MediaWiki 1.19.2"))])
        .expect(1)
        .says("MediaWiki 1.27 or later is required");
    // However its URL is spelled, it is the same wiki.
    let typed = api(&site).replace("http://", "HTTP://user:secret@");
    world.run(&["wiki", "status", &typed]).expect(0).shows("Scripted");
    let unknown = world.run(&["wiki", "status", "http://user:secret@127.0.0.1:1/api.php"]).expect(2);
    assert!(!unknown.stderr.contains("secret"), "{}", unknown.stderr);
}

/// A wiki without a list of all revisions is archived page by page, and a long history is resumed.
#[test]
fn an_old_wiki_is_archived_page_by_page() {
    let site = Site::start(|asked| {
        let has = |what: &str| asked.path.contains(what);
        if has("siteinfo") {
            return ok(&site_info());
        }
        if has("allpages") {
            return ok(&json!({ "query": { "pages": [page(1, "A"), page(2, "B")] } }));
        }
        if has("allrevisions") {
            let warning = "Unrecognized value for parameter \"list\": allrevisions.";
            return ok(&json!({ "warnings": { "main": { "warnings": warning } }, "batchcomplete": true }));
        }
        let (id, title) = if has("pageids=1&") { (1, "A") } else { (2, "B") };
        let mut object = page(id, title);
        let newest = revision(if id == 1 { 11 } else { 22 });
        if !has("rvcontinue=later%7C1") {
            object["revisions"] = json!([revision(id * 10)]);
            let rest = json!({ "rvcontinue": "later|1", "continue": "||" });
            return ok(&json!({ "query": { "pages": [object] }, "continue": rest }));
        }
        object["revisions"] = json!([newest]);
        ok(&json!({ "query": { "pages": [object] } }))
    });
    let world = World::new();
    world.write("comity.toml", PACE);
    let object = world.run(&["--json", "wiki", "archive", &api(&site)]).expect(0).json();
    assert_eq!((&object["revisions"], &object["lacking"]), (&4.into(), &0.into()), "{object}");
    assert_eq!(object["requests"], 7, "two per page: {object}");
}

/// The operators of a wiki must be able to reach us.
#[test]
fn a_remote_wiki_requires_a_contact() {
    let world = World::new();
    world.run(&["wiki", "archive", "https://wiki.example/api.php"]).expect(2).says("http.contact");
    world.run(&["wiki", "archive", "wiki.example"]).expect(2).says("expected the URL of a wiki's api.php");
    world
        .run(&["wiki", "archive", "http://127.0.0.1:1/api.php", "-n", "foo"])
        .expect(2)
        .says("such as 0 or 4");
    let site = Site::start(|_| ok(&site_info()));
    world.run(&["wiki", "archive", &api(&site), "-n", "77"]).expect(2).says("0 (main), 4 (Project)");
}

/// With a broken store, an export used to exit with 1 and left a partial file behind.
#[test]
fn an_export_from_a_broken_store_fails_and_leaves_no_file() {
    let site = Site::start(move |asked| match asked.before {
        0 => ok(&site_info()),
        1 => ok(&json!({ "query": { "pages": [page(1, "A")] } })),
        _ => ok(&revisions(&[(11, 1, "A")])),
    });
    let world = World::new();
    world.write("comity.toml", PACE);
    world.run(&["wiki", "archive", &api(&site)]).expect(0);
    world.sql().execute_batch("ALTER TABLE wiki_contents RENAME TO elsewhere").unwrap();
    world.run(&["wiki", "export", &api(&site), "--out", "dump.xml"]).expect(3).says("wiki_contents");
    let left: Vec<_> =
        std::fs::read_dir(world.path(".")).unwrap().map(|file| file.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().contains("dump")), "{left:?}");
}

fn api(site: &Site) -> String {
    format!("{}/api.php", site.url())
}

fn text(body: &str) -> Answer {
    Answer { body: body.to_owned(), ..Answer::status(200) }
}

fn ok(body: &Value) -> Answer {
    text(&body.to_string())
}

fn site_info() -> Value {
    json!({
        "curtimestamp": "2026-11-16T14:00:00Z",
        "query": {
            "general": { "sitename": "Scripted", "generator": "MediaWiki 1.43", "case": "first-letter", "lang": "en" },
            "namespaces": {
                "0": { "id": 0, "name": "", "content": true, "case": "first-letter" },
                "4": { "id": 4, "name": "Project", "content": false, "case": "first-letter" },
            },
            "statistics": { "pages": 2, "edits": 3 },
            "userinfo": { "id": 0, "name": "127.0.0.1", "rights": ["read"] },
            "recentchanges": [],
        },
    })
}

fn page(id: i64, title: &str) -> Value {
    json!({ "pageid": id, "ns": 0, "title": title, "contentmodel": "wikitext", "lastrevid": if id == 1 { 11 } else { 22 } })
}

fn revision(id: i64) -> Value {
    json!({
        "revid": id, "parentid": 0, "user": "Somebody", "userid": 7, "timestamp": "2026-01-01T00:00:00Z", "size": 4,
        "comment": "", "tags": [], "sha1": "a94a8fe5ccb19ba61c4c0873d391e987982fbbd3",
        "slots": { "main": { "contentmodel": "wikitext", "contentformat": "text/x-wiki", "content": "test" } },
    })
}

fn revisions(each: &[(i64, i64, &str)]) -> Value {
    let pages: Vec<Value> = each
        .iter()
        .map(|(id, page, title)| json!({ "pageid": page, "ns": 0, "title": title, "revisions": [revision(*id)] }))
        .collect();
    json!({ "query": { "allrevisions": pages } })
}

const PACE: &str = "[default]\nmin_delay = \"20ms\"\nrequests_per_second = \"none\"\nbackoff_base = \"300ms\"\n\
    backoff_max = \"600ms\"\n";
