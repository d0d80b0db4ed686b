//! Archives of a real wiki.

use std::collections::BTreeSet;

use crate::comity::World;
use crate::log::{TOLERANCE, assert_spaced, wait_until};
use crate::mediawiki::MediaWiki;
use crate::nginx::Nginx;
use crate::wiki_archived::same;

/// B67, B69: the archive matches the wiki's own database, and no request was early.
#[test]
fn the_archive_matches_the_wiki() {
    let (world, wiki) = (World::new(), full());
    wiki.hide("Hidden text", 1);
    wiki.hide("Hidden words", 2 + 4);
    wiki.hide("Suppressed", 1 + 2 + 4 + 8);
    let front = in_front_of(&wiki, "");
    world.write("comity.toml", PACE);
    let api = format!("{}/api.php", front.url());
    let object = world.run(&["--json", "wiki", "archive", &api, "-n", "0", "-n", "4"]).expect(0).json();
    assert_eq!(object["lacking"], 0, "{object}");
    same(&world, &wiki, &[0, 4]);
    assert_eq!(
        object["revisions"].as_u64(),
        Some((wiki.revisions(0).len() + wiki.revisions(4).len()) as u64)
    );
    assert_spaced(&front.log(), 100);
    // In a few requests, however many pages there are.
    assert!(object["requests"].as_u64().unwrap() <= 8, "{object}");
    let shown = world.run(&["wiki", "status", &api]).expect(0);
    shown.shows("complete");
    let sql = "SELECT user, comment, hidden FROM wiki_revisions JOIN wiki_pages USING (wiki_id, page_id)
        WHERE title = 'Hidden words' AND parent_id = 0";
    let hidden: (Option<String>, Option<String>, i64) =
        world.sql().query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).unwrap();
    assert_eq!(hidden, (None, None, 6));
}

/// B69: ten kills lose nothing, and nothing is requested twice.
#[test]
fn ten_kills_lose_nothing() {
    let (world, wiki) = (World::new(), many(120));
    let front = in_front_of(&wiki, "limit_req zone=strict burst=1 nodelay; limit_req_status 429;");
    world.write("comity.toml", &PACE.replace("100ms", "260ms"));
    let api = format!("{}/api.php", front.url());
    let mut random = fastrand::Rng::with_seed(11);
    for _ in 0..10 {
        let run = world.start(&["wiki", "archive", &api]);
        std::thread::sleep(std::time::Duration::from_millis(random.u64(50..900)));
        run.kill();
    }
    let last = world.run(&["--json", "wiki", "archive", &api]);
    last.expect(0);
    same(&world, &wiki, &[0]);
    assert_spaced(&front.log(), 260);
    // What was archived is not requested again; what was in flight during a kill may be.
    let mut seen = BTreeSet::new();
    let of_content = front.asked().into_iter().filter(|asked| asked["status"] == 200);
    let of_content = of_content.filter(|asked| !asked["query"].as_str().unwrap().contains("siteinfo"));
    let twice = of_content.filter(|asked| !seen.insert(asked["query"].to_string())).count();
    assert!(twice <= 10, "{twice} of {}", seen.len());
}

/// B67: a 429 of a proxy in front of the wiki is respected, with and without Retry-After.
#[test]
fn a_429_of_a_proxy_in_front_of_the_wiki_is_respected() {
    for (header, wait_ms) in [("", 300), ("add_header Retry-After 1 always;", 1_000)] {
        let (world, wiki) = (World::new(), many(400));
        // A limit that any machine reaches.
        let limit = "limit_req zone=stricter; limit_req_status 429; error_page 429 @refused;";
        let front = in_front_of_with(&wiki, limit, &format!("location @refused {{ {header} return 429; }}"));
        world.write("comity.toml", PACE);
        let api = format!("{}/api.php", front.url());
        let summary = world.run(&["--json", "wiki", "archive", &api]).expect(0).json();
        same(&world, &wiki, &[0]);
        let log = front.log();
        let refused: Vec<usize> = (0..log.len()).filter(|nth| log[*nth].status == 429).collect();
        assert!(!refused.is_empty() && summary["rate_limited"] == refused.len(), "{summary}");
        for nth in refused {
            let waited = log[nth + 1].start - log[nth].answered;
            assert!(waited >= wait_ms * 1_000 - TOLERANCE, "{waited}\n{}", crate::log::to_text(&log));
        }
        assert_spaced(&log, 100);
    }
}

/// A bot gets more per request, and its password is never shown.
#[test]
fn a_bot_logs_in_and_needs_fewer_requests() {
    let (world, wiki) = (World::new(), many(300));
    let front = in_front_of(&wiki, "");
    let (user, password) = wiki.bot_password();
    world.write("comity.toml", PACE);
    let api = format!("{}/api.php", front.url());
    let archive = |password: Option<&str>| {
        let mut command = world.command(&["--json", "wiki", "archive", &api, "--user", &user]);
        command.envs(password.map(|password| ("COMITY_WIKI_PASSWORD", password)));
        world.begin(command).wait()
    };
    archive(None).expect(2).says("COMITY_WIKI_PASSWORD");
    archive(Some("wrong")).expect(2).says("login failed");
    let before = front.log().len();
    let done = archive(Some(&password)).expect(0);
    // A token, the login, the site, its pages, and all revisions in one request.
    assert_eq!(done.json()["requests"], 5, "{}", done.stdout);
    assert_eq!(front.log().len(), before + 5);
    same(&world, &wiki, &[0]);
    assert_spaced(&front.log(), 100);
    let said = format!("{}{}", done.stdout, done.stderr);
    assert!(
        !said.contains(&password) && !front.asked().iter().any(|one| one.to_string().contains(&password))
    );
    // To other hosts, the password is only sent over https.
    let args = ["wiki", "archive", "http://wiki.example/api.php", "--user", &user];
    let mut command = world.command(&args);
    command.env("COMITY_WIKI_PASSWORD", &password).env("COMITY_HTTP_CONTACT", "me@example.org");
    world.begin(command).wait().expect(2).says("not https");
}

/// Titles that are too long for a URL are sent with POST.
#[test]
fn long_titles_are_fetched_too() {
    let (world, wiki) = (World::new(), MediaWiki::start());
    let front = in_front_of_with(&wiki, "", "large_client_header_buffers 2 2k;");
    world.write("comity.toml", PACE);
    let api = format!("{}/api.php", front.url());
    let title = |nth: usize| format!("{} {nth}", "ü".repeat(100));
    (0..8).for_each(|nth| wiki.edit(&title(nth), "a long title"));
    world.run(&["wiki", "archive", &api]).expect(0);
    let list: String = (0..8).map(|nth| format!("{}|{}\n", title(nth), title(nth + 10))).collect();
    wiki.rename_all(&list);
    let object = world.run(&["--json", "wiki", "archive", &api, "--incremental"]).expect(0).json();
    assert_eq!((&object["way"], &object["moved"]), (&"recentchanges".into(), &8.into()), "{object}");
    same(&world, &wiki, &[0]);
    assert!(front.asked().iter().any(|one| one["method"] == "POST"));
}

/// Two archives at once would overwrite each other's progress, so the second one stops.
#[test]
fn a_wiki_is_archived_by_one_process_at_a_time() {
    let (world, wiki) = (World::new(), many(200));
    world.write("comity.toml", &PACE.replace("100ms", "400ms"));
    let first = world.start(&["wiki", "archive", &wiki.api()]);
    wait_until("it has started", || {
        let begun = "SELECT count(*) FROM wikis WHERE progress IS NOT NULL";
        world.store().exists()
            && world.sql().query_row(begun, [], |row| row.get::<_, i64>(0)).unwrap_or(0) > 0
    });
    world.run(&["wiki", "archive", &wiki.api()]).expect(1).says("another process is archiving this wiki");
    first.wait().expect(0);
    same(&world, &wiki, &[0]);
}

/// B69: changes are found in the wiki's recent changes, or by comparing all pages.
#[test]
fn incremental_archives_find_changes() {
    let (world, wiki) = (World::new(), full());
    world.write("comity.toml", PACE);
    let api = wiki.api();
    let archive = |more: &[&str]| {
        world
            .run(&[&["--json", "wiki", "archive", &api, "-n", "0", "-n", "4"], more].concat())
            .expect(0)
            .json()
    };
    archive(&[]);
    let again = archive(&["--incremental"]);
    assert_eq!((&again["way"], &again["new_revisions"]), (&"recentchanges".into(), &0.into()), "{again}");
    assert!(again["requests"].as_u64().unwrap() <= 5, "{again}");
    for way in ["recentchanges", "compared"] {
        wiki.edit("Plain", &format!("edited before {way}"));
        wiki.edit(&format!("New {way}"), "a new page");
        wiki.rename("Ünïcode ✓", &format!("Moved {way}"));
        wiki.delete("Redirect");
        let more: &[&str] = if way == "compared" { &[] } else { &["--incremental"] };
        let object = archive(more);
        assert_eq!(object["way"], way, "{object}");
        assert_eq!((&object["deleted"], &object["moved"]), (&1.into(), &1.into()), "{object}");
        same(&world, &wiki, &[0, 4]);
        wiki.restore("Redirect");
        wiki.rename(&format!("Moved {way}"), "Ünïcode ✓");
        let object = archive(more);
        assert_eq!(object["restored"].as_u64().unwrap(), 1, "{object}");
        same(&world, &wiki, &[0, 4]);
    }
}

/// B69: whatever happens to a page between two runs, its history is complete after the second.
#[test]
fn changes_between_two_runs_are_not_lost() {
    for way in ["recentchanges", "compared"] {
        let (world, wiki) = (World::new(), full());
        world.write("comity.toml", PACE);
        for title in ["Moved twice", "Protected", "Away", "Again", "Elsewhere"] {
            wiki.edit(title, &format!("the beginning of {title}"));
        }
        wiki.delete("Elsewhere");
        let api = wiki.api();
        let archive = |more: &[&str]| {
            let args = [&["--json", "wiki", "archive", &api, "-n", "0", "-n", "4"], more].concat();
            world.run(&args).expect(0).json()
        };
        archive(&[]);
        wiki.rename("Moved twice", "Moved once");
        wiki.rename("Moved once", "Moved again");
        wiki.edit("Moved again", "edited after two moves");
        wiki.protect("Protected");
        wiki.edit("Protected", "edited after that");
        wiki.rename("Away", "User:Away");
        wiki.edit("User:Away", "where nothing is archived");
        wiki.rename("User:Away", "Back");
        wiki.edit("Back", "edited when it was back");
        wiki.delete("Again");
        wiki.edit("Again", "made anew");
        wiki.restore("Again");
        wiki.edit("Elsewhere", "made anew");
        wiki.restore("Elsewhere");
        wiki.edit("Elsewhere", "edited after that");
        wiki.rename("Project:About", "About");
        if way == "compared" {
            // The wiki's recent changes don't reach back far enough.
            wiki.sql().execute("DELETE FROM recentchanges", []).unwrap();
            wiki.edit("Plain", "one change is known");
        }
        let object = archive(&["--incremental"]);
        assert_eq!((&object["way"], &object["lacking"]), (&way.into(), &0.into()), "{object}");
        same(&world, &wiki, &[0, 4]);
        // Changes that were handled are not fetched again, even recent ones.
        let again = archive(&["--incremental"]);
        assert_eq!(again["new_revisions"], 0, "{again}");
        assert!(again["requests"].as_u64().unwrap() <= 6, "{again}");
    }
}

/// B69: changes during the first run are not missed.
#[test]
fn changes_during_a_run_are_not_lost() {
    let (world, wiki) = (World::new(), many(200));
    (0..3).for_each(|nth| wiki.edit("User:Draft", &format!("draft {nth}")));
    wiki.edit("Doomed", "to be deleted");
    world.write("comity.toml", &PACE.replace("100ms", "1500ms"));
    let first = world.start(&["wiki", "archive", &wiki.api()]);
    wait_until("pages are listed", || {
        let sql = "SELECT count(*) FROM wikis WHERE progress LIKE '%\"revisions\":{%'";
        world.store().exists() && world.sql().query_row(sql, [], |row| row.get(0)) == Ok(1)
    });
    wiki.rename("User:Draft", "Published");
    wiki.edit("Published", "edited once it was");
    wiki.delete("Doomed");
    wiki.edit("Page 3", "edited meanwhile");
    first.wait().expect(0);
    let object = world.run(&["--json", "wiki", "archive", &wiki.api(), "--incremental"]).expect(0).json();
    assert_eq!(object["way"], "recentchanges", "{object}");
    same(&world, &wiki, &[0]);
}

/// A dump can be imported into another wiki without loss.
#[test]
fn a_dump_is_imported_without_a_warning() {
    let (world, wiki, other) = (World::new(), full(), MediaWiki::start());
    wiki.hide("Hidden text", 1);
    wiki.hide("Hidden words", 2 + 4);
    world.write("comity.toml", PACE);
    world.run(&["wiki", "export", &wiki.api(), "--out", "dump.xml"]).expect(2).says("not archived in");
    world.run(&["wiki", "archive", &wiki.api(), "-n", "0", "-n", "4"]).expect(0);
    for name in ["dump.xml", "dump.xml.gz", "dump.xml.zst"] {
        world.run(&["wiki", "export", &wiki.api(), "--out", name]).expect(0);
    }
    // Symbolic links are followed, and pipes can be written to.
    std::os::unix::fs::symlink("linked.xml", world.path("link.xml")).unwrap();
    world.write("linked.xml", "");
    world.run(&["wiki", "export", &wiki.api(), "--out", "link.xml"]).expect(0);
    assert!(world.path("link.xml").is_symlink());
    assert!(
        std::fs::read(world.path("linked.xml")).unwrap() == std::fs::read(world.path("dump.xml")).unwrap()
    );
    world.run(&["wiki", "export", &wiki.api(), "--out", "."]).expect(2).says("is a folder");
    world.run(&["wiki", "export", &wiki.api(), "--out", "/dev/full"]).expect(1).says("No space left");
    let said = other.import(&world.path("dump.xml"));
    assert!(!said.to_lowercase().contains("warning") && said.contains("Done!"), "{said}");
    let revisions = |wiki: &MediaWiki| -> BTreeSet<(String, String, String)> {
        let sql = "SELECT CAST(page_title AS TEXT), CAST(rev_timestamp AS TEXT), CAST(rev_sha1 AS TEXT)
            FROM revision JOIN page ON page_id = rev_page WHERE page_namespace IN (0, 4) AND NOT rev_deleted & 1";
        let connection = wiki.sql();
        let mut statement = connection.prepare(sql).unwrap();
        let row = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
        statement.query_map([], row).unwrap().map(Result::unwrap).collect()
    };
    let (here, there) = (revisions(&wiki), revisions(&other));
    let lost: Vec<_> = here.difference(&there).collect();
    assert!(lost.is_empty(), "{lost:?}");
    // Except for the new wiki's own main page, and the revision without text.
    assert_eq!(there.len(), here.len() + 2);
    let unpacked =
        std::process::Command::new("gzip").arg("-dc").arg(world.path("dump.xml.gz")).output().unwrap();
    let plain = std::fs::read(world.path("dump.xml")).unwrap();
    assert!(unpacked.stdout == plain);
    assert!(zstd::decode_all(std::fs::File::open(world.path("dump.xml.zst")).unwrap()).unwrap() == plain);
}

/// B70
#[test]
fn a_dry_run_counts_and_saves_nothing() {
    let (world, wiki) = (World::new(), full());
    let object = world.run(&["--json", "wiki", "archive", &wiki.api(), "--dry-run", "-n", "0", "-n", "4"]);
    let object = object.expect(0).json();
    assert_eq!(
        object["pages"].as_u64(),
        Some((wiki.pages(0).len() + wiki.pages(4).len()) as u64),
        "{object}"
    );
    assert_eq!((&object["spacing_ms"], &object["requests"]), (&1_000.into(), &4.into()), "{object}");
    assert_eq!(object["duration_ms"], 4_000, "{object}");
    world.run(&["wiki", "status", &wiki.api()]).expect(2).says("yet; start with: comity wiki archive http");
}

#[test]
fn after_ctrl_c_the_next_run_resumes() {
    let (world, wiki) = (World::new(), many(120));
    world.write("comity.toml", &PACE.replace("100ms", "300ms"));
    let mut run = world.start(&["--log-level", "debug", "wiki", "archive", &wiki.api()]);
    let revisions = || {
        let count =
            world.sql().query_row("SELECT count(*) FROM wiki_revisions", [], |row| row.get::<_, i64>(0));
        count.unwrap_or(0)
    };
    wait_until("a revision is archived", || run.is_over() || world.store().exists() && revisions() > 0);
    run.signal("INT");
    let ended = run.wait();
    assert_eq!(ended.code, Some(130), "{}", ended.stderr);
    let before = revisions();
    assert!(before > 0 && before < wiki.revisions(0).len() as i64, "{before}");
    world.run(&["wiki", "status", &wiki.api()]).expect(0).shows("under way");
    world
        .run(&["wiki", "export", &wiki.api(), "--out", "half.xml"])
        .expect(1)
        .says("The archive is incomplete");
    let object = world.run(&["--json", "wiki", "archive", &wiki.api()]).expect(0).json();
    assert_eq!(object["new_revisions"].as_i64(), Some(wiki.revisions(0).len() as i64 - before), "{object}");
    same(&world, &wiki, &[0]);
}

/// A wiki with everything that is difficult to archive.
fn full() -> MediaWiki {
    let wiki = MediaWiki::start();
    for nth in 0..5 {
        wiki.edit("Plain", &format!("edit {nth}"));
    }
    wiki.edit("Ünïcode ✓", "Grüße <b>&amp;</b> \"'\t\u{1f600}");
    wiki.edit("Emptied", "something");
    wiki.edit("Emptied", "");
    wiki.edit("Large", &"0123456789abcde\n".repeat(1 << 16));
    wiki.edit("Twice", "the same text");
    wiki.edit("Once more", "the same text");
    wiki.edit("Redirect", "#REDIRECT [[Plain]]");
    for title in ["Hidden text", "Hidden words", "Suppressed"] {
        wiki.edit(title, title);
        wiki.edit(title, "shown");
    }
    wiki.edit("Project:About", "in a namespace of its own");
    wiki
}

/// A wiki with this many revisions, on pages of ten each.
pub(crate) fn many(revisions: usize) -> MediaWiki {
    let wiki = MediaWiki::start();
    let pages: String = (0..revisions / 10)
        .map(|page| {
            let revision = |nth: usize| {
                format!(
                    "<revision><timestamp>2020-01-01T{:02}:{:02}:00Z</timestamp><contributor><username>Somebody</username>\
                     <id>0</id></contributor><model>wikitext</model><format>text/x-wiki</format>\
                     <text xml:space=\"preserve\">page {page}, revision {nth}</text></revision>",
                    page % 24,
                    nth
                )
            };
            let history: String = (0..10).map(revision).collect();
            format!("<page><title>Page {page}</title><ns>0</ns>{history}</page>")
        })
        .collect();
    let dump = format!(
        "<mediawiki xmlns=\"http://www.mediawiki.org/xml/export-0.11/\" version=\"0.11\">{pages}</mediawiki>"
    );
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("dump.xml");
    std::fs::write(&path, dump).unwrap();
    wiki.import(&path);
    assert!(wiki.revisions(0).len() >= revisions, "{}", wiki.revisions(0).len());
    wiki
}

/// nginx in front of a wiki, which logs when requests came.
pub(crate) fn in_front_of(wiki: &MediaWiki, limit: &str) -> Nginx {
    in_front_of_with(wiki, limit, "")
}

/// nginx in front of a wiki, with more configuration.
fn in_front_of_with(wiki: &MediaWiki, limit: &str, more: &str) -> Nginx {
    let port = wiki.port();
    Nginx::start(&format!(
        "{more} location /api.php {{ {limit} proxy_pass http://127.0.0.1:{port}; proxy_set_header Host 127.0.0.1:{port}; }}"
    ))
}

/// A tenth of a second between requests, so that tests are quick.
pub(crate) const PACE: &str =
    "[default]\nmin_delay = \"100ms\"\nrequests_per_second = \"none\"\nbackoff_base = \"300ms\"\n";
