//! Result rows: `fetch --jsonl`, `--out -` and `index.jsonl` have the same ones.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::comity::{World, list};
use crate::log::wait_until;
use crate::site::{Answer, Site};

/// A site with a page, a redirect to it, a 404, and a page that fails.
fn site() -> Site {
    Site::start(|asked| match asked.path {
        "/moved" => Answer::status(302).header("Location", "/page"),
        "/gone" => Answer::status(410),
        "/broken" => Answer::status(500),
        "/robots.txt" => {
            Answer { body: "User-agent: *\nDisallow: /private".to_owned(), ..Answer::status(200) }
        }
        path => Answer::page(path).header("Set-Cookie", "id=hidden").header("X-Served-By", "a test"),
    })
}

/// The last row of each URL, by its path.
fn by_path(rows: &[Value]) -> BTreeMap<String, Value> {
    let path = |row: &Value| row["url"].as_str().unwrap().rsplit('/').next().unwrap().to_owned();
    rows.iter().map(|row| (path(row), row.clone())).collect()
}

/// B75
#[test]
fn every_url_has_a_row_on_stdout_and_in_the_index() {
    let (world, site) = (World::new(), site());
    let with_password = site.url().replace("http://", "http://alice:secret@");
    let urls = ["page", "moved", "gone", "broken", "private"].map(|path| format!("{with_password}/{path}"));
    let mut args = vec!["--json", "fetch", "--jsonl", "--with-headers", "--out", "pages", "--job", "one"];
    args.extend(["--delay", "20ms", "--max-retries", "0"]);
    args.extend(urls.iter().map(String::as_str));
    let done = world.run(&args).expect(1);
    let mut printed = done.objects();
    let summary = printed.pop().unwrap();
    assert_eq!(
        (&summary["job"], &summary["failed"], &summary["skipped"]),
        (&"one".into(), &2.into(), &1.into())
    );
    let rows = by_path(&printed);
    assert_eq!((printed.len(), rows.len()), (5, 5), "{}", done.stdout);
    assert_eq!(printed, world.rows("pages"), "the index has the same rows");
    let exported = world.run(&["jobs", "export", "one"]).expect(0).objects();
    for row in &exported {
        let mut live =
            by_path(std::slice::from_ref(row)).into_keys().map(|path| rows[&path].clone()).next().unwrap();
        live.as_object_mut().unwrap().remove("headers");
        assert_eq!(&live, row, "the store has the same rows");
    }

    let page = &rows["page"];
    let url = format!("{}/page", site.url());
    assert_eq!((&page["url"], &page["final_url"]), (&url.as_str().into(), &url.as_str().into()));
    assert_eq!(
        (&page["state"], &page["status"], &page["outcome"]),
        (&"done".into(), &200.into(), &"success".into())
    );
    assert_eq!((&page["error"], &page["attempts"], &page["bytes"]), (&Value::Null, &1.into(), &11.into()));
    assert_eq!(page["content_type"], "text/plain");
    let file = world.path("pages").join(page["file"].as_str().unwrap());
    let summed = Command::new("sha256sum").arg(&file).output().unwrap();
    assert!(String::from_utf8_lossy(&summed.stdout).starts_with(page["sha256"].as_str().unwrap()));
    assert!(
        page["elapsed_ms"].is_u64() && page["started_at"].is_string() && page["fetched_at"].is_string(),
        "{page}"
    );
    assert_eq!(page["headers"]["x-served-by"], "a test");
    assert_eq!(page["headers"]["set-cookie"], "(redacted)");

    let moved = &rows["moved"];
    assert_eq!((&moved["final_url"], &moved["attempts"]), (&url.as_str().into(), &2.into()));
    assert_eq!(moved["file"], page["file"], "the same body is saved once");
    assert_eq!(
        (&rows["gone"]["state"], &rows["gone"]["status"], &rows["gone"]["outcome"]),
        (&"failed".into(), &410.into(), &"answered".into())
    );
    assert_eq!(
        (&rows["broken"]["outcome"], &rows["broken"]["error"]),
        (&"server_error".into(), &"status 500".into())
    );
    let private = &rows["private"];
    assert_eq!(
        (&private["state"], &private["attempts"], &private["outcome"]),
        (&"skipped".into(), &0.into(), &Value::Null)
    );
    assert_eq!(private["error"], "forbidden by robots.txt");

    let index = std::fs::read_to_string(world.path("pages/index.jsonl")).unwrap();
    for text in [&done.stdout, &done.stderr, &index] {
        assert!(!text.contains("secret") && !text.contains("alice") && !text.contains("hidden"), "{text}");
    }
}

/// Only rows go to stdout; everything else goes to stderr.
#[test]
fn out_dash_prints_rows_and_saves_no_pages() {
    let (world, site) = (World::new(), site());
    let url = format!("{}/page", site.url());
    let done = world.run(&["fetch", &url, "--out", "-", "--job", "one", "--robots", "ignore"]).expect(0);
    let rows = done.objects();
    assert_eq!((rows.len(), &rows[0]["file"], rows[0]["sha256"].is_string()), (1, &Value::Null, true));
    assert!(rows[0].get("headers").is_none(), "only with --with-headers: {}", rows[0]);
    done.says("job one: done");
    assert!(!world.path("comity-pages").exists() && !world.path("-").exists());
    world.run(&["fetch", &url, "--out", "-", "--format", "warc"]).expect(2).says("--out -");
    let plain = world.run(&["fetch", &url, "--jsonl", "--job", "two", "--robots", "ignore"]).expect(0);
    let file = plain.objects()[0]["file"].as_str().unwrap().to_owned();
    assert!(world.path("comity-pages").join(file).exists(), "--jsonl alone saves pages as usual");
}

#[test]
fn a_closed_pipe_ends_the_fetch_cleanly() {
    let (world, site) = (World::new(), site());
    world.write("list", &list(&site.url(), "p", 300));
    let line = format!(
        "{} fetch --input list --job one --jsonl --out pages --delay 10ms --robots ignore | head -n 2; exit ${{PIPESTATUS[0]}}",
        env!("CARGO_BIN_EXE_comity")
    );
    let done = Command::new("bash")
        .args(["-c", &line])
        .current_dir(world.path("."))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(130), "{said}");
    assert_eq!(String::from_utf8_lossy(&done.stdout).lines().count(), 2);
    assert!(
        !said.to_lowercase().contains("broken pipe") && said.contains("comity fetch --job one"),
        "{said}"
    );
    let listed = world.run(&["--json", "jobs", "list"]).expect(0).json();
    assert_eq!(listed["jobs"][0]["state"], "stopped");
    world.run(&["fetch", "--job", "one", "--input", "list", "--delay", "1ms"]).expect(0);
    assert_eq!(by_path(&world.rows("pages")).len(), 300);
}

/// The file of an older row never changes.
#[test]
fn fetching_again_into_a_folder_overwrites_nothing() {
    let world = World::new();
    let site = Site::start(|asked| match asked.before {
        0 => Answer::page("first"),
        _ => Answer::page("second"),
    });
    let url = format!("{}/page", site.url());
    for _ in 0..3 {
        world.run(&["fetch", &url, "--out", "pages", "--robots", "ignore"]).expect(0);
    }
    let rows = world.rows("pages");
    let files: Vec<&str> = rows.iter().map(|row| row["file"].as_str().unwrap()).collect();
    for (file, body) in std::iter::zip(&files, ["page first\n", "page second\n", "page second\n"]) {
        assert_eq!(std::fs::read_to_string(world.path("pages").join(file)).unwrap(), body);
    }
    assert_ne!(files[0], files[1]);
    assert_eq!(files[1], files[2], "the same body is saved once");
}

/// B74: the next command writes rows that are missing after a kill, also if the job has ended by then.
#[test]
fn missing_rows_are_written_later() {
    let (world, site) = (World::new(), site());
    let urls = [format!("{}/a", site.url()), format!("{}/gone", site.url())];
    let args = [
        "fetch", &urls[0], &urls[1], "--job", "one", "--out", "pages", "--delay", "20ms", "--robots",
        "ignore",
    ];
    world.run(&args).expect(1);
    let rows = world.rows("pages");
    // As if the process had been killed after its last commit and before it wrote the rows.
    std::fs::write(world.path("pages/index.jsonl"), "").unwrap();
    world.sql().execute("INSERT INTO workers (job_id, holder, told_us) VALUES (1, 999999, 0)", []).unwrap();
    let again = world.run(&["fetch", "--job", "one", "--jsonl"]).expect(1);
    assert_eq!(by_path(&world.rows("pages")), by_path(&rows));
    assert_eq!(by_path(&again.objects()[..2]).len(), 2, "{}", again.stdout);
    world.run(&["fetch", "--job", "one"]).expect(1);
    assert_eq!(world.rows("pages").len(), 2, "once");

    // As if it had been killed after it wrote the first row: what the index has is not written again, but printed.
    let text = std::fs::read_to_string(world.path("pages/index.jsonl")).unwrap();
    let first = text.lines().next().unwrap().to_owned() + "\n{\"url\":\"htt";
    for mark in ["NULL", "0", "999999"] {
        std::fs::write(world.path("pages/index.jsonl"), &first).unwrap();
        let row = format!("INSERT INTO workers VALUES (1, 999999, 0, {mark})");
        world.sql().execute(&row, []).unwrap();
        let again = world.run(&["fetch", "--job", "one", "--jsonl", "--with-headers"]).expect(1);
        assert_eq!(again.objects().len(), 2, "{}", again.stdout);
        let text = std::fs::read_to_string(world.path("pages/index.jsonl")).unwrap();
        assert_eq!(text.lines().count(), 3, "one row, a part of one, and the missing row:\n{text}");
    }
}

/// URLs that are skipped because the job ended have rows too.
#[test]
fn urls_skipped_with_their_job_have_rows() {
    let (world, site) = (World::new(), site());
    let input = world.write("list", &list(&site.url(), "p", 30));
    let fetch = world.start(&[
        "fetch",
        "--input",
        input.to_str().unwrap(),
        "--job",
        "one",
        "--out",
        "pages",
        "--delay",
        "300ms",
        "--robots",
        "ignore",
        "--jsonl",
    ]);
    site.wait_for(2);
    wait_until("a row is printed while it runs", || fetch.shown().contains("\"done\""));
    world.run(&["jobs", "cancel", "one"]).expect(0);
    let done = fetch.wait().expect(1);
    let rows = by_path(&done.objects());
    let count = |state: &str| rows.values().filter(|row| row["state"] == state).count();
    assert_eq!((rows.len(), count("done") + count("skipped")), (30, 30), "{}", done.stdout);
    assert!(count("skipped") > 10);
    assert_eq!(by_path(&world.rows("pages")), rows);
}

/// They used to count as printed.
#[test]
fn rows_that_could_not_be_printed_are_printed_again() {
    let (world, site) = (World::new(), site());
    let urls: Vec<String> = (0..5).map(|nth| format!("{}/p{nth}", site.url())).collect();
    let mut args =
        vec!["fetch", "--job", "one", "--jsonl", "--out", "pages", "--delay", "20ms", "--robots", "ignore"];
    args.extend(urls.iter().map(String::as_str));
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let lost = world.command(&args).stdout(full).stderr(Stdio::piped()).output().unwrap();
    let said = String::from_utf8_lossy(&lost.stderr);
    assert_eq!(lost.status.code(), Some(1), "{said}");
    assert!(said.contains("for all rows: comity jobs export one\n"), "{said}");
    let resume = ["fetch", "--job", "one", "--jsonl"];
    assert!(said.contains("comity fetch --job one --jsonl"), "{said}");
    // Another one that can't print them leaves them to the next.
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    world.command(&resume).stdout(full).stderr(Stdio::null()).status().unwrap();
    let printed = by_path(&world.run(&resume).expect(0).objects());
    assert_eq!(printed.len(), urls.len(), "{printed:?}");
    let index = world.rows("pages");
    assert_eq!((index.len(), by_path(&index)), (5, printed), "the index has each row once");
    let again = world.run(&resume).expect(0);
    assert!(!again.stdout.contains("\"url\""), "they were printed: {}", again.stdout);
}
