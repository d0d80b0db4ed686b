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
        match nth {
            1 => alone.says(&format!(
                "To read another sitemap: comity fetch --job {job} --sitemap URL; to give up: "
            )),
            _ => alone.says(&format!("To resume: comity fetch --job {job}\n")),
        }
        let shown = world.run(&["jobs", "show", &job]).expect(0);
        for text in [
            format!("sitemap {sitemap}: "),
            format!("to read them again: comity fetch --job {job}"),
            format!("comity fetch --job {job} --sitemap URL; to give up: comity jobs cancel {job}"),
        ] {
            shown.shows(&text);
        }
        assert!(message(&world.run(&["--json", "jobs", "show", &job]).expect(0).json()).contains(problem));
        let again = fetch(&world, &["--job", &job]).expect(1).json();
        assert!(message(&again).contains(problem), "the sitemap is read again: {again}");
        let told = alone.stderr.matches(&format!("sitemap {sitemap}: ")).count();
        assert_eq!(told, 1, "once: {}", alone.stderr);

        let job = format!("with-page-{nth}");
        let object = fetch(&world, &[&page, "--sitemap", &sitemap, "--job", &job]).expect(1).json();
        assert_eq!(object["fetched"], 1, "{object}");
        assert!(message(&object).contains(problem), "{object}");
    }
}

/// What kept a job from finishing is forgotten once it is fixed.
#[test]
fn another_sitemap_finishes_a_job_whose_sitemap_is_gone() {
    let (world, site) = (World::new(), Site::start(answer));
    let (good, bad) = (format!("{}/ok.xml", site.url()), format!("{}/404", site.url()));
    fetch(&world, &["--sitemap", &bad, "--job", "site"]).expect(1);
    let object = fetch(&world, &["--sitemap", &good, "--job", "site"]).expect(0).json();
    assert_eq!((&object["state"], &object["message"]), (&"done".into(), &Value::Null), "{object}");
    let shown = world.run(&["jobs", "show", "site"]).expect(0);
    assert!(!shown.stdout.contains("404") && !shown.stdout.contains("not read"), "{}", shown.stdout);
}

/// It used to be "done, 0 of 0", with exit code 0.
#[test]
fn a_sitemap_without_pages_is_a_failure() {
    let (world, site) = (
        World::new(),
        Site::start(|_| Answer { body: "<urlset></urlset>".to_owned(), ..Answer::status(200) }),
    );
    let sitemap = format!("{}/empty.xml", site.url());
    let done = fetch(&world, &["--sitemap", &sitemap, "--job", "site"]).expect(1);
    let expected = format!("No pages were found: {sitemap} lists none");
    assert_eq!(message(&done.json()), expected);
    done.says(&expected);
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
    done.says("To resume: comity fetch --job one\n");
    // A sitemap that is gone can't be read later either.
    let sitemap = format!("{}/404", site.url());
    let done = world.run(&[&["fetch", "--sitemap", &sitemap, "--job", "two"][..], &QUICK].concat()).expect(1);
    done.says(
        "To read another sitemap: comity fetch --job two --sitemap URL; to give up: comity jobs cancel two\n",
    );
    assert!(!done.stderr.contains("To resume"), "{}", done.stderr);
}

/// B75. `url<TAB>title` used to become the URL `…/urltitle`, and `url title` the URL `…/url%20title`.
#[test]
fn invalid_lines_are_counted_and_say_what_is_wrong() {
    let (world, site) = (World::new(), Site::start(answer));
    let base = site.url();
    let with_password = base.replace("http://", "http://me:hidden@");
    let lines = [
        format!("{base}/a"),
        format!("{with_password}/b?key=hidden\tTitle of b"),
        format!("{base}/c title, by me@home"),
        "http://127.0.0.1:99999/".to_owned(),
        format!("{base}/{}", "x".repeat(100_000)),
        "www.example.org\ttitle".to_owned(),
        format!("{base}/d,Title of d"),
        "not a url".to_owned(),
    ];
    let input = world.write("list", &lines.join("\n"));
    let done = fetch(&world, &["--input", input.to_str().unwrap()]).expect(0);
    let object = done.json();
    assert_eq!((&object["invalid"], &object["fetched"]), (&7.into(), &1.into()), "{object}");
    let more = "has text after the URL; expected one URL per line (a space in a URL is %20; to take the URLs out of a \
                table: cut -f1, or cut -d, -f1 for CSV)";
    for (line, told) in [
        (2, format!("\"{base}/b?…\\tTitle of b\" {more}")),
        (3, format!("\"{base}/c title, by home\" {more}")),
        (4, "is not a valid URL: invalid port number".to_owned()),
        (5, "is too long for a URL; the maximum is 65535 bytes".to_owned()),
        (6, "\"www.example.org\\ttitle\" contains a tab or a line break".to_owned()),
        (7, format!("\"{base}/d,Title of d\" {more}")),
        (8, "\"not a url\" is not an http or https URL with a host".to_owned()),
    ] {
        let shown = done.stderr.lines().find(|shown| shown.starts_with(&format!("line {line}: "))).unwrap();
        assert!(shown.contains(&told), "{shown}\n{told}");
    }
    assert!(!done.stderr.contains("hidden"), "{}", done.stderr);
    let paths: Vec<String> = site.log().into_iter().map(|hit| hit.path).collect();
    assert_eq!(paths, ["/a"]);
    let args = ["fetch", "--input", input.to_str().unwrap(), "--format", "none"];
    world.run(&[&args[..], &QUICK].concat()).expect(0).shows("1 of 1 fetched, 7 invalid lines");
    world.run(&["fetch", &format!("{base}/d\tTitle")]).expect(2).says("argument 1 contains a tab");
    world.run(&["fetch", &format!("{base}/d {base}/e")]).expect(2).says("argument 1 contains white space");
}

/// `url,title` used to become the URL `…/url,title`, unless the title had a space.
#[test]
fn a_table_is_not_a_list() {
    let (world, site) = (World::new(), Site::start(answer));
    let base = site.url();
    for (separator, hint) in [(',', "cut -d, -f1)"), (';', "cut -d';' -f1)"), ('|', "cut -d'|' -f1)")] {
        let rows = [("/1", "One"), ("/2", ""), ("/3", "Two words")];
        let rows = rows.map(|(path, title)| format!("{base}{path}{separator}{title}\n")).concat();
        for table in [format!("url{separator}title\n{rows}"), rows] {
            let input = world.write("table.csv", &table);
            let done = fetch(&world, &["--input", input.to_str().unwrap()]).expect(2);
            done.says("table.csv: there are no URLs in it, only ");
            done.says(&format!(
                "\"{base}/1{separator}One\" has text after the URL, as in a table; expected one URL"
            ));
            done.says(hint);
            let args = ["--json", "fetch", "--format", "none", "--job", "piped", "--input", "-"];
            let mut piped = world.command(&args);
            piped.stdin(std::fs::File::open(&input).unwrap());
            world.begin(piped).wait().expect(2).says(hint);
        }
    }
    assert_eq!(site.log().len(), 0);
    // A URL on the command line comes before the header. A row without a title is a URL.
    let table = format!("url,title\n{base}/1,One\n{base}/2,Two\n{base}/c\n");
    let input = world.write("table.csv", &table);
    let first = format!("{base}/0,0");
    let done = fetch(&world, &[&first, "--input", input.to_str().unwrap()]).expect(0);
    assert_eq!((&done.json()["invalid"], &done.json()["fetched"]), (&3.into(), &2.into()));
    done.says("line 1: \"url,title\" is not");
    // Commas are part of these URLs.
    let input = world.write("list", &format!("{base}/1,2.html\n{base}/3,4.html\n"));
    let done = fetch(&world, &["--input", input.to_str().unwrap()]).expect(0);
    assert_eq!(done.json()["invalid"], 0);
    let mut paths: Vec<String> = site.log().into_iter().map(|hit| hit.path).collect();
    paths.sort();
    assert_eq!(paths, ["/0,0", "/1,2.html", "/3,4.html", "/c"]);
}

/// They used to be shown as `x.org`, with a wrong suggestion, and with `%22`.
#[test]
fn invalid_lines_are_shown_as_they_are() {
    let (world, site) = (World::new(), Site::start(answer));
    let base = site.url();
    let row = format!("{base}/2,\"Two, with comma\"");
    let lines =
        [&format!("{base}/a"), "mailto:joe@x.org", "see joe@x.org", &row, "me:hidden@x.org", "a\u{7}\tb"];
    let input = world.write("list", &lines.join("\n"));
    let done = fetch(&world, &["--input", input.to_str().unwrap()]).expect(0);
    for line in [
        "line 2: \"mailto:joe@x.org\" is not an http or https URL with a host\n",
        "line 3: \"see joe@x.org\" is not an http or https URL with a host\n",
        &format!("line 4: \"{row}\" has text after the URL"),
        "line 5: \"x.org\" is not an http or https URL with a host\n",
        "line 6: \"a\\tb\" contains a tab",
    ] {
        done.says(line);
    }
    assert!(!done.stderr.contains("hidden"), "{}", done.stderr);
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
