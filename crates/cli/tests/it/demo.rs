//! `comity demo` and `comity playground`: what a new user tries first.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::Value;

use crate::comity::World;
use crate::log::wait_until;
use crate::terminal::Terminal;

#[test]
fn the_demo_fetches_everything_and_never_too_early() {
    let world = World::new();
    let mut command = world.command(&["demo", "--json", "--keep", "--stay"]);
    command.env("TMPDIR", world.path(""));
    let running = world.begin(command);
    // The first thing it says is where to look.
    wait_until("it says where the dashboard is", || running.said().contains('\n'));
    let said = running.said();
    let address =
        said.lines().next().unwrap().strip_prefix("Dashboard: ").unwrap().trim_end_matches('/').to_owned();
    wait_until("the dashboard shows the job", || {
        get(&address, "/jobs/demo").contains("URLs wait to be fetched")
    });
    // It is still there when the demo has ended.
    wait_until("the demo has ended", || running.said().contains("The dashboard stays up"));
    assert!(get(&address, "/jobs/demo").contains("The job is done."));
    running.signal("INT");
    let done = running.wait().expect(0);
    let object = done.json();
    assert_eq!(object["early"], 0, "{object:#}");
    assert_eq!(object["pages"], 161, "{object:#}");
    let elapsed = object["elapsed_ms"].as_u64().unwrap();
    assert!((30_000..300_000).contains(&elapsed), "about a minute: {elapsed} ms");
    let site = |name: &str| {
        let sites = object["sites"].as_array().unwrap();
        sites.iter().find(|site| site["name"] == name).unwrap().clone()
    };
    assert_eq!(site("strict")["refused"], 5, "one 429 per ten pages");
    assert_eq!(site("hidden")["refused"], 1, "after one 429 the delay is known");
    assert_eq!(site("robots")["requests"], 11, "robots.txt and ten pages, nothing disallowed");
    let learned = object["learned"].as_array().unwrap();
    assert!(learned.iter().any(|one| one["domain"].as_str().unwrap().starts_with("hidden.")), "{learned:?}");
    // It prints where it kept everything.
    let kept = std::fs::read_dir(world.path("")).unwrap().flatten();
    let kept = kept.map(|entry| entry.path()).find(|path| path.to_string_lossy().contains("comity-demo-"));
    let kept = kept.expect("the folder is kept");
    assert!(done.stderr.contains(kept.to_str().unwrap()), "{}", done.stderr);
    let store = format!("sqlite:{}", kept.join("demo.db").display());
    let jobs = world.run(&["jobs", "list", "--store", &store, "--json"]).expect(0).json();
    assert_eq!(jobs["jobs"].as_array().unwrap().len(), 2);
}

#[test]
fn a_demo_whose_terminal_closes_leaves_nothing_behind() {
    let world = World::new();
    std::fs::create_dir(world.path("tmp")).unwrap();
    let place = world.path("tmp");
    let env = [("TMPDIR", place.to_str().unwrap())];
    let terminal = Terminal::open(&world, 110, 40, &env, "comity demo");
    terminal.until("the server asked to wait");
    assert_eq!(std::fs::read_dir(&place).unwrap().count(), 1);
    terminal.close();
    wait_until("its folder is gone", || std::fs::read_dir(&place).unwrap().count() == 0);
}

#[test]
fn a_demo_that_is_stopped_leaves_nothing_behind() {
    for presses in [1, 2] {
        let world = World::new();
        std::fs::create_dir(world.path("tmp")).unwrap();
        let place = world.path("tmp");
        let env = [("TMPDIR", place.to_str().unwrap())];
        let terminal = Terminal::open(&world, 110, 40, &env, "comity demo");
        let shown = terminal.until("the server asked to wait").join("\n");
        assert!(shown.contains("strict   a site that answers 10 requests"), "{shown}");
        for _ in 0..presses {
            terminal.press("C-c");
        }
        let shown = terminal.until("ended 130").join("\n");
        assert!(!shown.contains("To resume"), "its store is gone: {shown}");
        assert_eq!(std::fs::read_dir(&place).unwrap().count(), 0);
    }
}

#[test]
fn the_playground_counts_early_requests() {
    let world = World::new();
    let running = world.start(&["playground", "--listen", "127.0.0.1:0", "--json"]);
    wait_until("it is listening", || running.shown().contains("listening"));
    let listing: Value = serde_json::from_str(running.shown().lines().next().unwrap()).unwrap();
    let find = |name: &str, key: &str| {
        let sites = listing["sites"].as_array().unwrap();
        sites.iter().find(|site| site["name"] == name).unwrap()[key].as_str().unwrap().to_owned()
    };
    // By name, politely.
    let pages: Vec<String> = (1..=12).map(|page| format!("{}/page/{page}", find("strict", "url"))).collect();
    let pages: Vec<&str> = pages.iter().map(String::as_str).collect();
    let polite =
        ["fetch", "--format", "none", "--delay", "20ms", "--learning", "off", "--robots", "ignore", "--json"];
    let done = world.run(&[&polite[..], &pages[..]].concat()).expect(0).json();
    assert_eq!((&done["fetched"], &done["rate_limited"]), (&12.into(), &1.into()));
    // By port, impolitely.
    let port = find("strict", "port_url");
    let statuses: Vec<String> = (0..12).map(|_| status(&port)).collect();
    assert_eq!(statuses.iter().filter(|status| *status == "429").count(), 4, "{statuses:?}");
    let list = get(listing["listening"].as_str().unwrap(), "/");
    assert!(list.contains("<td>a site that answers 10 requests"), "{list}");
    running.signal("INT");
    let done = running.wait().expect(0);
    let sites = done.json();
    let strict =
        sites["sites"].as_array().unwrap().iter().find(|site| site["name"] == "strict").unwrap().clone();
    assert_eq!((&strict["pages"], &strict["refused"], &strict["early"]), (&20.into(), &5.into(), &3.into()));

    let refused = world.run(&["playground", "--listen", "192.0.2.1:80"]).expect(2);
    refused.says("--listen = \"192.0.2.1:80\": expected a loopback address");
}

/// What people try first: a feed found via a front page, a sitemap, a refresh, a 404.
#[test]
fn the_playground_has_a_feed_a_sitemap_etags_and_a_404() {
    let world = World::new();
    let settings = "robots = \"ignore\"\n[default]\nmin_delay = \"10ms\"\n[scrape]\nmin_interval = 0\n\
                    [http]\ncontact = \"ops@example.org\"\n";
    world.write("comity.toml", settings);
    let running = world.start(&["playground", "--listen", "127.0.0.1:0"]);
    wait_until("it is listening", || running.shown().contains("Request counts"));
    let shown = running.shown();
    let url = |name: &str| {
        let line = shown.lines().find(|line| line.starts_with(&format!("http://{name}."))).unwrap();
        line.split("/page/1").next().unwrap().to_owned()
    };
    for line in [
        format!("  comity sources add {}/ && comity run", url("harbour")),
        format!("  comity fetch --sitemap {}/sitemap.xml --job garden", url("garden")),
        "  comity fetch --job garden --refresh".to_owned(),
        format!("  comity fetch {}/missing", url("garden")),
    ] {
        assert!(shown.contains(&line), "{line}\n{shown}");
    }
    let added = world.run(&["sources", "add", &format!("{}/", url("harbour"))]).expect(0);
    added.shows("Added source 1: News of the harbour (feed, ");
    let ran = world.run(&["--json", "run", "--format", "none"]).expect(0).json();
    assert_eq!((&ran["items"]["new"], &ran["tasks"]["fetched"]), (&6.into(), &6.into()), "{ran}");
    let sitemap = format!("{}/sitemap.xml", url("garden"));
    let fetch = ["--json", "fetch", "--job", "garden", "--out", "pages"];
    let fetched = world.run(&[&fetch[..], &["--sitemap", &sitemap]].concat()).expect(0).json();
    assert_eq!(fetched["fetched"], 12, "{fetched}");
    let again = world.run(&[&fetch[..], &["--refresh"]].concat()).expect(0).json();
    assert_eq!((&again["fetched"], &again["unchanged"]), (&12.into(), &12.into()), "{again}");
    let missing = world.run(&["fetch", &format!("{}/missing", url("garden")), "--format", "none"]).expect(1);
    missing.says("404");
}

fn status(base: &str) -> String {
    get(base, "/page/1").split(' ').nth(1).unwrap().to_owned()
}

fn get(base: &str, path: &str) -> String {
    let host = base.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(host).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}
