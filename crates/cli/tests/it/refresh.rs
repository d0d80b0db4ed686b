//! `fetch --refresh`: fetches again what has changed.

use serde_json::Value;

use crate::comity::World;
use crate::site::{Answer, Site};

/// A site whose pages have validators: `/same` and `/dated` never change, `/new` changes every time, `/moved` redirects
/// to `/same`.
fn site() -> Site {
    Site::start(|asked| match asked.path {
        "/same" if asked.headers.to_lowercase().contains("if-none-match: \"caf\u{e9}\"") => {
            Answer::status(304)
        }
        "/same" if asked.headers.to_lowercase().contains("if-modified-since: about noon") => {
            Answer::status(304)
        }
        "/same" => Answer::page("same").header("ETag", "\"caf\u{e9}\"").header("Last-Modified", "about noon"),
        "/dated" if asked.headers.to_lowercase().contains("if-modified-since: about noon") => {
            Answer::status(304)
        }
        "/dated" => Answer::page("dated").header("Last-Modified", "about noon"),
        "/moved" => Answer::status(301).header("Location", "/same"),
        "/new" => {
            Answer::page(&format!("new {}", asked.before)).header("ETag", &format!("\"{}\"", asked.before))
        }
        path => Answer::page(path),
    })
}

fn rows(world: &World, path: &str) -> Vec<Value> {
    world.rows("pages").into_iter().filter(|row| row["url"].as_str().unwrap().ends_with(path)).collect()
}

/// B74: only `--refresh` fetches a finished task again; validators are sent back unchanged.
#[test]
fn refresh_fetches_what_changed_and_keeps_other_files() {
    let (world, site) = (World::new(), site());
    let urls = ["/same", "/dated", "/moved", "/new", "/plain"].map(|path| format!("{}{path}", site.url()));
    let mut args = vec!["fetch", "--job", "news", "--out", "pages", "--delay", "20ms", "--robots", "ignore"];
    args.extend(urls.iter().map(String::as_str));
    world.run(&args).expect(0);
    let asked = site.log().len();
    world.run(&["fetch", "--job", "news"]).expect(0).shows("is already done");
    assert_eq!(site.log().len(), asked);

    let again = world.run(&["--json", "fetch", "--job", "news", "--refresh"]).expect(0).json();
    assert_eq!((&again["state"], &again["fetched"], &again["tasks"]), (&"done".into(), &5.into(), &5.into()));
    for path in ["/same", "/dated", "/moved"] {
        let rows = rows(&world, path);
        let (first, last) = (&rows[0], &rows[1]);
        assert_eq!(
            (&last["status"], &last["outcome"], &last["state"]),
            (&304.into(), &"unchanged".into(), &"done".into())
        );
        for key in ["file", "sha256", "bytes", "content_type", "final_url"] {
            assert_eq!(last[key], first[key], "{path} {key}");
        }
    }
    let new = rows(&world, "/new");
    assert_eq!((&new[1]["status"], new.len()), (&200.into(), 2));
    let changed =
        |path: &str| rows(&world, path).into_iter().map(|row| row["changed"].clone()).collect::<Vec<_>>();
    assert_eq!(changed("/new"), [true, true], "it is new, and then it is another one");
    for path in ["/same", "/moved", "/plain"] {
        assert_eq!(changed(path), [true, false], "{path}");
    }
    let exported = world.run(&["jobs", "export", "news"]).expect(0).objects();
    let last = |row: &Value| rows(&world, row["url"].as_str().unwrap()).pop().unwrap();
    assert!(exported.iter().all(|row| *row == last(row)), "the store has the same rows: {exported:?}");
    assert_ne!(new[0]["file"], new[1]["file"], "the file of the older row is kept");
    assert_eq!(rows(&world, "/plain")[1]["file"], rows(&world, "/plain")[0]["file"], "the same body");

    // A page whose file is gone is fetched without its validators.
    let same = rows(&world, "/same");
    std::fs::remove_file(world.path("pages").join(same[0]["file"].as_str().unwrap())).unwrap();
    world.run(&["fetch", "--out", "pages", "--refresh"]).expect(0).shows("job news");
    let same = rows(&world, "/same");
    assert_eq!((same.len(), &same[2]["status"]), (3, &200.into()));
    assert!(world.path("pages").join(same[2]["file"].as_str().unwrap()).exists());
}

/// A stopped refresh resumes by name, and fetches nothing twice.
#[test]
fn a_stopped_refresh_resumes() {
    let world = World::new();
    let site = Site::start(|asked| Answer::page(asked.path).header("ETag", "\"1\""));
    let input = world.write("list", &crate::comity::list(&site.url(), "p", 20));
    world
        .run(&[
            "fetch",
            "--input",
            input.to_str().unwrap(),
            "--job",
            "one",
            "--out",
            "pages",
            "--delay",
            "1ms",
            "--robots",
            "ignore",
        ])
        .expect(0);
    let run = world.start(&["fetch", "--job", "one", "--refresh", "--delay", "200ms"]);
    site.wait_for(23);
    run.signal("INT");
    run.wait().expect(130);
    world.run(&["fetch", "--job", "one", "--delay", "1ms"]).expect(0);
    assert_eq!(site.log().len(), 40);
}

/// It used to say "4 of 12 fetched" although all pages were there, and `jobs cancel` skipped the others.
#[test]
fn a_stopped_refresh_says_how_many_pages_are_there_and_a_cancelled_one_keeps_them() {
    let world = World::new();
    let site = Site::start(|asked| Answer::page(asked.path).header("ETag", "\"1\""));
    let input = world.write("list", &crate::comity::list(&site.url(), "p", 12));
    let quick = ["--delay", "1ms", "--robots", "ignore"];
    let first = ["fetch", "--input", input.to_str().unwrap(), "--job", "one", "--out", "pages"];
    world.run(&[&first[..], &quick].concat()).expect(0);
    let before = world.run(&["jobs", "export", "one"]).expect(0).objects();
    let run = world.start(&["fetch", "--job", "one", "--refresh", "--delay", "400ms"]);
    site.wait_for(14);
    run.signal("INT");
    let words = "(refresh of 12 pages fetched before)";
    run.wait().expect(130).shows(words);
    for command in [&["jobs", "list"][..], &["jobs", "show", "one"]] {
        world.run(command).expect(0).shows(words);
    }
    let shown = world.run(&["--json", "jobs", "show", "one"]).expect(0).json();
    assert_eq!(
        (&shown["refreshing"], &shown["options"]["refreshing"]),
        (&12.into(), &Value::Null),
        "{shown}"
    );
    // As docs/jobs.md says: all rows that have a page.
    let rows = world.run(&["jobs", "export", "one"]).expect(0).objects();
    assert!(rows.iter().all(|row| row["file"].is_string() && row["bytes"].is_u64()), "{rows:#?}");

    let cancelled = world.run(&["--json", "jobs", "cancel", "one"]).expect(0).json();
    assert_eq!((&cancelled["fetched"], &cancelled["skipped"]), (&12.into(), &0.into()), "{cancelled}");
    assert!(!world.run(&["jobs", "list"]).expect(0).stdout.contains("refresh"));
    let done = world.run(&["jobs", "export", "one", "--state", "done"]).expect(0).objects();
    assert_eq!(done.len(), 12);
    for (row, before) in done.iter().zip(&before) {
        for key in ["url", "status", "outcome", "error", "file", "bytes", "sha256", "content_type"] {
            assert_eq!(row[key], before[key], "{key}");
        }
    }

    world.run(&["jobs", "retry", "one"]).expect(0).shows("comity fetch --job one --refresh");
    let asked = site.log().len();
    let again =
        world.run(&["--json", "fetch", "--job", "one", "--refresh", "--delay", "1ms"]).expect(0).json();
    assert_eq!((&again["state"], &again["unchanged"]), (&"done".into(), &12.into()), "{again}");
    assert_eq!((&again["refreshing"], site.log().len()), (&Value::Null, asked + 12));
}

/// One bad night of a site takes nothing away, and the next refresh tries again.
#[test]
fn a_refresh_that_fails_keeps_the_pages_fetched_before() {
    let world = World::new();
    // The second request for each page fails.
    let site = Site::start(|asked| match asked.before {
        2 | 3 => Answer::status(404),
        _ => Answer::page(asked.path).header("ETag", "\"1\""),
    });
    let urls = ["a", "b"].map(|path| format!("{}/{path}", site.url()));
    let quick = ["--delay", "1ms", "--robots", "ignore"];
    world
        .run(&[&["fetch", &urls[0], &urls[1], "--job", "one", "--out", "pages"][..], &quick].concat())
        .expect(0);
    let first = world.rows("pages");
    let failed =
        world.run(&[&["fetch", "--job", "one", "--refresh", "--quiet"][..], &quick].concat()).expect(1);
    failed.says("failed: ");
    let exported = || world.run(&["jobs", "export", "one"]).expect(0).objects();
    for rows in [world.rows("pages")[2..].to_vec(), exported()] {
        assert_eq!(rows.len(), 2);
        for row in rows {
            let before = first.iter().find(|first| first["url"] == row["url"]).unwrap();
            assert_eq!(
                (&row["state"], &row["status"], &row["changed"]),
                (&"failed".into(), &404.into(), &Value::Null)
            );
            for key in ["file", "bytes", "content_type", "sha256"] {
                assert_eq!(row[key], before[key], "{key}");
            }
        }
    }
    let again =
        world.run(&[&["--json", "fetch", "--job", "one", "--refresh"][..], &quick].concat()).expect(0).json();
    assert_eq!((&again["fetched"], &again["failed"], &again["unchanged"]), (&2.into(), &0.into(), &2.into()));
    assert!(exported().iter().all(|row| row["state"] == "done"));
}

/// A refresh that can't fetch anything must not look like one that found nothing new.
#[test]
fn a_refresh_of_a_pruned_job_says_so() {
    let world = World::new();
    let site = Site::start(|asked| Answer::page(asked.path));
    let url = format!("{}/a", site.url());
    let quick = ["--delay", "1ms", "--robots", "ignore", "--format", "none"];
    world.run(&[&["fetch", &url, "--job", "one"][..], &quick].concat()).expect(0);
    world.sql().execute("UPDATE jobs SET ended_us = ended_us - 100000000", []).unwrap();
    world.run(&["prune", "--keep", "1s"]).expect(0);
    let refresh =
        world.run(&[&["fetch", "--job", "one", "--refresh", "--quiet"][..], &quick].concat()).expect(1);
    refresh.says("1 URL was not refreshed, because it was pruned");
    let object =
        world.run(&[&["--json", "fetch", "--job", "one", "--refresh"][..], &quick].concat()).expect(1).json();
    assert!(object["message"].as_str().unwrap().contains("not refreshed"), "{object}");
    assert_eq!(site.log().len(), 1);
}

/// Without its credentials, a refresh would turn every page into a failure.
#[test]
fn a_refresh_without_its_credentials_does_not_start() {
    let world = World::new();
    let site = Site::start(|asked| Answer::page(asked.path));
    let url = format!("{}/a", site.url());
    let quick = ["--delay", "1ms", "--robots", "ignore", "--format", "none"];
    world.run(&[&["fetch", &url, "--job", "one"][..], &quick].concat()).expect(0);
    let host = site.url().trim_start_matches("http://").to_owned();
    world.write("comity.toml", &format!("[domains.\"{host}\".request]\nbearer_env = \"UNSET_TOKEN\"\n"));
    world.run(&[&["fetch", "--job", "one", "--refresh"][..], &quick].concat()).expect(2).says("UNSET_TOKEN");
    world.run(&["jobs", "show", "one"]).expect(0).shows("1 of 1 fetched");
}

#[test]
fn refresh_requires_an_existing_job() {
    let world = World::new();
    world.run(&["fetch", "--refresh"]).expect(2).says("--refresh");
    world.run(&["fetch", "--refresh", "--out", "pages"]).expect(2).says("no job saves its pages in ");
    world.run(&["fetch", "--refresh", "--job", "none"]).expect(2).says("none");
}
