//! `fetch --sitemap`: fetches every page in sitemaps.

use crate::comity::World;
use crate::log::wait_until;
use crate::site::{Answer, Held, Site};

fn sitemap(root: &str, part: &str, urls: &[String]) -> Answer {
    let entries: String = urls.iter().map(|url| format!("<{part}><loc>{url}</loc></{part}>")).collect();
    let body = format!(
        "<?xml version=\"1.0\"?><{root} xmlns=\"http://www.sitemaps.org/schemas/sitemap/0.9\">{entries}</{root}>"
    );
    Answer { body, ..Answer::status(200) }
}

/// A site whose robots.txt names an index of two sitemaps, the second of which is held.
fn site(held: &Held) -> Site {
    let held = held.clone();
    let base = std::sync::Arc::new(std::sync::OnceLock::<String>::new());
    let shared = base.clone();
    let site = Site::start(move |asked| {
        let base = shared.get().cloned().unwrap_or_default();
        let url = |path: &str| format!("{base}{path}");
        match asked.path {
            "/robots.txt" => Answer {
                body: format!("User-agent: *\nDisallow: /private\n\nSitemap: {}\n", url("/index.xml")),
                ..Answer::status(200)
            },
            "/index.xml" => {
                sitemap("sitemapindex", "sitemap", &[url("/one.xml"), url("/missing.xml"), url("/two.xml")])
            }
            "/one.xml" => {
                let elsewhere = base.replace("127.0.0.1", "127.0.0.2");
                sitemap(
                    "urlset",
                    "url",
                    &[url("/a"), url("/b#part"), url("/private/c"), format!("{elsewhere}/d")],
                )
            }
            "/two.xml" => sitemap("urlset", "url", &[url("/e"), url("/a")]).held(&held),
            "/missing.xml" => Answer::status(404),
            path => Answer::page(path),
        }
    });
    base.set(site.url()).unwrap();
    site
}

/// B76: links in a sitemap are not trusted, except to the host that was listed.
#[test]
fn every_page_in_the_sitemaps_is_fetched() {
    let held = Held::default();
    held.release();
    let (world, site) = (World::new(), site(&held));
    let root = format!("{}/", site.url());
    let done = world
        .run(&["--json", "fetch", "--sitemap", &root, "--job", "one", "--out", "pages", "--delay", "20ms"])
        .expect(1);
    let summary = done.json();
    assert_eq!(
        (&summary["tasks"], &summary["fetched"], &summary["skipped"], &summary["failed"]),
        (&5.into(), &3.into(), &1.into(), &1.into()),
        "{summary}"
    );
    done.says("/missing.xml: answered 404");
    let rows = world.rows("pages");
    let row = |path: &str| rows.iter().find(|row| row["url"].as_str().unwrap().ends_with(path)).unwrap();
    assert_eq!(row("/private/c")["error"], "forbidden by robots.txt");
    assert_eq!((&row("/d")["state"], &row("/d")["attempts"]), (&"failed".into(), &0.into()), "{}", row("/d"));
    assert_eq!(row("/b")["state"], "done", "without its fragment");
    let paths: Vec<String> = site.log().into_iter().map(|hit| hit.path).collect();
    assert_eq!(paths.iter().filter(|path| *path == "/robots.txt").count(), 1, "{paths:?}");
    crate::log::assert_spaced(&site.log(), 20);
}

#[test]
fn after_a_kill_sitemaps_are_read_again_and_no_page_is_fetched_twice() {
    let held = Held::default();
    let (world, site) = (World::new(), site(&held));
    let index = format!("{}/index.xml", site.url());
    let run = world.start(&[
        "fetch",
        "--sitemap",
        &index,
        "--job",
        "one",
        "--out",
        "pages",
        "--delay",
        "20ms",
        "--robots",
        "ignore",
    ]);
    let asked = |path: &str| site.log().iter().filter(|hit| hit.path == path).count();
    wait_until("the second sitemap is requested", || asked("/two.xml") == 1);
    run.kill().unwrap();
    held.release();
    let listed = world.run(&["--json", "jobs", "list"]).expect(0).json();
    assert_eq!(listed["jobs"][0]["state"], "stopped");
    let done = world.run(&["--json", "fetch", "--job", "one"]).expect(1).json();
    assert_eq!(
        (&done["state"], &done["tasks"], &done["fetched"]),
        (&"done".into(), &5.into(), &4.into()),
        "{done}"
    );
    assert_eq!((asked("/two.xml"), asked("/e")), (2, 1));
}

#[test]
fn a_response_that_is_not_a_sitemap_is_an_error() {
    let (world, site) = (World::new(), Site::start(|asked| Answer::page(asked.path)));
    let page = format!("{}/page", site.url());
    world
        .run(&["fetch", "--sitemap", &page, "--job", "one", "--robots", "ignore"])
        .expect(1)
        .says("not a sitemap");
    world.run(&["fetch", "--sitemap", "ftp://a.example/"]).expect(2).says("--sitemap");
}
