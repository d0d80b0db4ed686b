//! B82: invalid names and links in feeds, redirects and requests: at worst, that one URL fails.

use serde_json::json;

use crate::comity::World;
use crate::follow::{add, assert_counts, rss, run, world};
use crate::log::{counts, to_text};
use crate::service::{Service, post};
use crate::site::{Answer, Site};

/// Hosts that a URL parser accepts although they are not valid host names.
const HOSTS: [&str; 10] =
    ["a..b", ".a", ".", "*", "a*b", "www..a", "foo.09..", "victim.localhost..", "a:0", "127.0.0.1:0"];

/// B82. One feed entry with such a link used to end every later run.
#[test]
fn invalid_hosts_in_a_feed_fail_only_their_items() {
    let world = world(&[("job.max_retries", "0")]);
    let mut links: Vec<(String, String)> =
        HOSTS.iter().map(|host| (format!("bad {host}"), format!("http://{host}/page"))).collect();
    links.extend([("good".to_owned(), "/good".to_owned())]);
    let named: Vec<(&str, &str)> = links.iter().map(|(title, link)| (&**title, &**link)).collect();
    let feed = rss(&named);
    let site = Site::start(move |asked| match asked.path {
        "/feed" => Answer { status: 200, body: feed.clone(), ..Answer::default() },
        path => Answer::page(path),
    });
    add(&world, &(site.url() + "/feed"), &[]);
    let ran = run(&world, &[], 0);
    assert_counts(&ran["tasks"], json!({ "fetched": 1, "failed": 0, "skipped": 0 }));
    let why = ran["details"][0]["why"].as_str().unwrap_or_default();
    assert!(why.contains("and 9 more problems"), "{ran}");
    run(&world, &["--force"], 0);
    assert_eq!(counts(&site.log())["/good"], 1, "{}", to_text(&site.log()));
}

/// B82: a redirect to another spelling of a site's name doesn't reset the wait that the site asked for.
#[test]
fn a_redirect_to_another_spelling_of_a_host_does_not_reset_its_pace() {
    let world = World::new();
    world.write("comity.toml", "robots = \"ignore\"\n[http]\nallow_private = [\"127.0.0.0/8\"]\n");
    let victim = Site::start(|_| Answer::status(429).header("Retry-After", "120"));
    let port = victim.authority().rsplit(':').next().unwrap().to_owned();
    let page = |spelling: &str| format!("http://{spelling}:{port}/page");
    let fetch = |url: &str, job: &str| {
        let args = [
            "--json",
            "fetch",
            url,
            "--job",
            job,
            "--max-retries",
            "0",
            "--format",
            "none",
            "--delay",
            "10ms",
        ];
        world.run(&args).expect(1).json()
    };
    assert_eq!(fetch(&page("victim.localhost"), "first")["rate_limited"], 1);

    let there = page("victim.localhost..");
    let third = Site::start(move |_| Answer::status(302).header("Location", &there));
    for nth in 0..5 {
        let url = format!("{}/{nth}", third.url());
        assert_eq!(fetch(&url, &format!("job {nth}"))["failed"], 1);
    }
    world.run(&["jobs", "show", "job 0"]).expect(0).shows("isn't a valid http or https URL");
    world.run(&["check", &page("victim.localhost..")]).expect(2).says("expected");
    world.run(&["record", "victim.localhost..", "success"]).expect(2).says("expected");

    for spelling in ["victim.localhost", "VICTIM.localhost.", "www.victim.localhost"] {
        let asked = world.run(&["--json", "check", &page(spelling)]).expect(1).json();
        assert!(asked["wait_ms"].as_u64().unwrap() > 20_000, "{spelling}: {asked}");
    }
    assert_eq!(victim.log().len(), 1, "{}", to_text(&victim.log()));
}

/// B82: the service rejects such a name, and serves everyone else.
#[test]
fn the_service_rejects_invalid_host_names() {
    let world = World::new();
    let service = Service::start(&world);
    for host in HOSTS {
        let url = format!("http://{host}/page");
        post(service.address, "/v1/check", &json!({ "url": url })).expect(422);
        post(service.address, "/v1/acquire", &json!({ "url": url, "max_wait_ms": 0 })).expect(422);
        post(service.address, "/v1/check", &json!({ "domain": host })).expect(422);
        post(service.address, "/v1/record", &json!({ "domain": host, "outcome": "success" })).expect(422);
        post(service.address, "/v1/jobs", &json!({ "name": host, "urls": [url] })).expect(422);
    }
    assert_eq!(service.post("/v1/check", &json!({ "url": "https://good.example/" }))["proceed"], true);
    assert_eq!(service.stop().code, Some(0));
    let names: i64 = world.sql().query_row("SELECT count(*) FROM domains", [], |row| row.get(0)).unwrap();
    assert_eq!(names, 1, "it is not in the store");
}

/// B82: rows that are already in a store fail alone.
#[test]
fn invalid_rows_of_an_older_version_do_not_stop_the_store() {
    let world = World::new();
    let site = Site::start(|asked| Answer::page(asked.path));
    let other = Site::on("127.0.0.2", |asked| Answer::page(asked.path));
    let urls: String = (0..4).map(|nth| format!("{}/{nth}\n{}/{nth}\n", site.url(), other.url())).collect();
    let input = world.write("list", &urls);
    let args = ["--json", "fetch", "--input", input.to_str().unwrap(), "--job", "one", "--format", "none"];
    let quick = ["--robots", "ignore", "--max-retries", "0"];
    let mut paused = world.start(&[&args[..], &quick, &["--delay", "1h"]].concat());
    site.wait_for(1);
    other.wait_for(1);
    crate::log::wait_until("the list is in", || {
        assert!(!paused.is_over(), "{}", paused.said());
        let waiting = "SELECT count(*) FROM tasks";
        world.sql().query_row(waiting, [], |row| row.get::<_, i64>(0)).unwrap() == 8
    });
    paused.signal("INT");
    paused.wait().expect(130);
    world.sql().execute("UPDATE domains SET domain = 'victim.' WHERE domain LIKE '127.0.0.2:%'", []).unwrap();
    let done = world.run(&["--json", "fetch", "--job", "one", "--delay", "10ms"]).expect(1);
    let object = done.json();
    assert_eq!(
        (object["fetched"].as_u64(), object["failed"].as_u64()),
        (Some(5), Some(3)),
        "{}",
        done.stderr
    );
    world.run(&["jobs", "show", "one"]).expect(0).shows("cannot be read");
    done.says("could not be read");
}
