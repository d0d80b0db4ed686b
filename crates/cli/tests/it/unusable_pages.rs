//! URLs whose site answers, but without a page: their rows.

use serde_json::Value;

use crate::comity::World;
use crate::site::{Answer, Site};

fn site() -> Site {
    Site::start(|asked| match asked.path {
        "/robots.txt" => {
            Answer { body: "User-agent: *\nDisallow: /private\n".to_owned(), ..Answer::status(200) }
        }
        "/loop" => Answer::status(302).header("Location", "/loop"),
        "/file" => Answer::status(302).header("Location", "file:///etc/passwd"),
        "/forbidden" => Answer::status(302).header("Location", "/private/x"),
        "/nowhere" => Answer::status(302),
        "/inside" => Answer::status(302).header("Location", "http://127.0.0.2:9/"),
        "/unasked" => Answer::status(304),
        "/choices" => Answer::status(300),
        "/large" => Answer { body: "x".repeat(5_000), ..Answer::status(200) },
        path => Answer::page(path),
    })
}

/// They used to have `"status":null` and `"outcome":"success"`; a redirect without a target was even `done`.
#[test]
fn urls_without_a_usable_page_fail_with_their_status() {
    let (world, site) = (World::new(), site());
    let paths = ["loop", "file", "inside", "nowhere", "unasked", "choices", "large", "forbidden"];
    let urls = paths.map(|path| format!("{}/{path}", site.url()));
    let mut args = vec!["fetch", "--job", "one", "--out", "pages", "--jsonl", "--delay", "20ms"];
    args.extend(urls.iter().map(String::as_str));
    let mut command = world.command(&args);
    command.env("COMITY_HTTP_BODY_MAX", "1KiB");
    let printed = world.begin(command).wait().expect(1).objects();
    let exported = world.run(&["jobs", "export", "one"]).expect(0).objects();
    for rows in [printed, world.rows("pages"), exported] {
        let row = |path: &str| rows.iter().find(|row| row["url"].as_str().unwrap().ends_with(path)).unwrap();
        for (path, status, error) in [
            ("/loop", 302, "redirected to itself"),
            ("/file", 302, "redirected to something that isn't a valid http or https URL"),
            ("/inside", 302, "blocked redirect or link to private address 127.0.0.2"),
            ("/nowhere", 302, "status 302 (redirect) without a Location header"),
            ("/unasked", 304, "status 304 (not modified), although the request was unconditional"),
            ("/choices", 300, "status 300"),
            ("/large", 200, "the body is larger than"),
        ] {
            let row = row(path);
            assert_eq!(
                (&row["state"], &row["status"], &row["outcome"], &row["file"]),
                (&"failed".into(), &status.into(), &"answered".into(), &Value::Null),
                "{row}"
            );
            assert!(row["error"].as_str().unwrap().contains(error), "{row}");
            assert_eq!(row["attempts"], 1, "a retry does not help: {row}");
        }
        let forbidden = row("/forbidden");
        assert_eq!(
            (&forbidden["state"], &forbidden["outcome"], &forbidden["error"]),
            (&"skipped".into(), &"answered".into(), &"forbidden by robots.txt".into()),
            "{forbidden}"
        );
    }
    let domain = site.authority();
    let shown = world.run(&["--json", "domains", "show", &domain]).expect(0).json();
    assert_eq!(shown["error_streak"], 0, "the site is not slowed down for it: {shown}");
}

/// Older versions stored another word.
#[test]
fn skipped_urls_of_older_stores_say_forbidden_by_robots_txt() {
    let (world, site) = (World::new(), site());
    world.run(&["fetch", &format!("{}/private/x", site.url()), "--job", "one", "--out", "pages"]).expect(0);
    world
        .sql()
        .execute("UPDATE tasks SET error = 'robots' WHERE error = 'forbidden by robots.txt'", [])
        .unwrap();
    world.run(&["jobs", "show", "one"]).expect(0).shows("(forbidden by robots.txt)");
    let rows = world.run(&["jobs", "export", "one"]).expect(0).objects();
    assert_eq!(rows[0]["error"], "forbidden by robots.txt");
}
