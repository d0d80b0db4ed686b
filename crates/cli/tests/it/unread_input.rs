//! Sitemaps and lists that can't be read, and lines that aren't URLs: what the exit code, the summary and `--json` say.

use serde_json::Value;

use crate::comity::World;
use crate::site::{Answer, Asked, Site};

const QUICK: [&str; 6] = ["--delay", "1ms", "--robots", "ignore", "--max-retries", "0"];

/// `/404`, `/503` and so on answer with that status; `/ok.xml` is a sitemap of one page.
fn answer(asked: &Asked<'_>) -> Answer {
    let host =
        asked.headers.lines().find_map(|line| line.to_lowercase().strip_prefix("host: ").map(str::to_owned));
    match asked.path.trim_start_matches('/').parse::<u16>() {
        Ok(status) => Answer::status(status),
        Err(_) if asked.path == "/ok.xml" => {
            let page = format!("<url><loc>http://{}/page</loc></url>", host.unwrap_or_default());
            Answer { body: format!("<urlset>{page}</urlset>"), ..Answer::status(200) }
        }
        Err(_) => Answer::page(asked.path),
    }
}

fn fetch(world: &World, args: &[&str]) -> crate::comity::Done {
    world.run(&[&["--json", "fetch", "--format", "none"], args, &QUICK].concat())
}

fn message(object: &Value) -> &str {
    object["message"].as_str().unwrap_or_default()
}

/// It used to be 0, or 2, and `"message":null`.
#[test]
fn a_sitemap_that_cannot_be_read_is_a_failure() {
    let (world, site) = (World::new(), Site::start(answer));
    let at = |path: &str| format!("{}/{path}", site.url());
    let dead = "http://127.0.0.1:9/sitemap.xml".to_owned();
    let page = at("page");
    for (nth, sitemap, problem) in
        [(1, at("404"), "/404: answered 404"), (2, at("503"), "/503: answered 503"), (3, dead, "127.0.0.1:9")]
    {
        let job = format!("only-{nth}");
        let alone = fetch(&world, &["--sitemap", &sitemap, "--job", &job]).expect(1);
        let object = alone.json();
        assert!(message(&object).contains(problem), "{object}");
        assert_eq!((&object["state"], &object["tasks"]), (&"stopped".into(), &0.into()), "{object}");
        alone.says(&format!("To resume: comity fetch --job {job}\n"));
        let again = fetch(&world, &["--job", &job]).expect(1).json();
        assert!(message(&again).contains(problem), "the sitemap is read again: {again}");

        let job = format!("with-page-{nth}");
        let object = fetch(&world, &[&page, "--sitemap", &sitemap, "--job", &job]).expect(1).json();
        assert_eq!(object["fetched"], 1, "{object}");
        assert!(message(&object).contains(problem), "{object}");
    }
}

/// The daily recipe must not go quiet when the sitemap moves.
#[test]
fn a_refresh_without_its_sitemap_is_a_failure() {
    let (world, site) = (World::new(), Site::start(answer));
    let (good, bad) = (format!("{}/ok.xml", site.url()), format!("{}/404", site.url()));
    let object = fetch(&world, &["--sitemap", &good, "--job", "site"]).expect(0).json();
    assert_eq!((&object["fetched"], &object["message"]), (&1.into(), &Value::Null), "{object}");
    let lost = fetch(&world, &["--sitemap", &bad, "--job", "site", "--refresh"]).expect(1);
    assert!(message(&lost.json()).contains("answered 404"), "{}", lost.stdout);
    let both = fetch(&world, &["--sitemap", &good, "--sitemap", &bad, "--job", "both"]).expect(1).json();
    assert_eq!((&both["state"], &both["fetched"]), (&"done".into(), &1.into()), "{both}");
    let found = fetch(&world, &["--sitemap", &good, "--job", "site", "--refresh"]).expect(0).json();
    assert_eq!(found["state"], "done", "{found}");
}

#[test]
fn the_summary_of_a_job_without_its_sitemap_says_stopped() {
    let (world, site) = (World::new(), Site::start(answer));
    let sitemap = format!("{}/503", site.url());
    let done = world.run(&[&["fetch", "--sitemap", &sitemap, "--job", "one"][..], &QUICK].concat()).expect(1);
    done.shows("job one: stopped, 0 of 0 fetched");
    assert!(!done.stderr.contains("--input"), "{}", done.stderr);
}

/// `url<TAB>title` used to become the URL `…/urltitle`.
#[test]
fn invalid_lines_are_counted_and_say_what_is_wrong() {
    let (world, site) = (World::new(), Site::start(answer));
    let base = site.url();
    let lines = [
        format!("{base}/a"),
        format!("{base}/b\tTitle of b"),
        format!("{base}/c title"),
        "http://127.0.0.1:99999/".to_owned(),
        format!("{base}/{}", "x".repeat(100_000)),
        "www.example.org".to_owned(),
    ];
    let input = world.write("list", &lines.join("\n"));
    let done = fetch(&world, &["--input", input.to_str().unwrap()]).expect(0);
    let object = done.json();
    assert_eq!((&object["invalid"], &object["fetched"]), (&4.into(), &2.into()), "{object}");
    for (line, why) in [
        (2, "contains a tab"),
        (4, "is not a valid URL: invalid port number"),
        (5, "is too long for a URL; the maximum is 65535 bytes"),
        (6, "is not an http or https URL with a host"),
    ] {
        let told = done.stderr.lines().find(|told| told.starts_with(&format!("line {line}: "))).unwrap();
        assert!(told.contains(why), "{told}");
    }
    let paths: Vec<String> = site.log().into_iter().map(|hit| hit.path).collect();
    assert_eq!(paths, ["/a", "/c%20title"]);
    let args = ["fetch", "--input", input.to_str().unwrap(), "--format", "none"];
    world.run(&[&args[..], &QUICK].concat()).expect(0).shows("2 of 2 fetched, 4 invalid lines");

    let input = world.write("list", "one\ntwo\n");
    let object = fetch(&world, &["--input", input.to_str().unwrap()]).expect(2).json();
    assert_eq!((&object["invalid"], message(&object)), (&2.into(), "The list has no valid line"), "{object}");
    world.run(&["fetch", &format!("{base}/d\tTitle")]).expect(2).says("argument 1 contains a tab");
}

/// A folder used to leave a job behind, which could only be removed.
#[test]
fn a_folder_is_not_a_list() {
    let world = World::new();
    world.run(&["fetch", "--input", "."]).expect(2).says("--input .: expected a file with one URL per line");
    assert_eq!(world.run(&["--json", "jobs", "list"]).expect(0).json()["jobs"], Value::Array(Vec::new()));
}

/// A script with an unset variable used to put everything into one job without a name.
#[test]
fn job_names_are_not_empty_and_have_no_control_characters() {
    let (world, site) = (World::new(), Site::start(answer));
    let url = format!("{}/a", site.url());
    for name in ["", "  ", "new\nline", "tab\there", "esc\u{1b}[31m"] {
        world.run(&["fetch", "--job", name, &url]).expect(2).says("--job ");
    }
    assert_eq!(site.log().len(), 0);
    world.run(&[&["fetch", "--job", "größe 2", &url][..], &QUICK].concat()).expect(0);
}
