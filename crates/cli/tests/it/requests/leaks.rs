//! Credentials don't follow redirects to other hosts.

use crate::comity::World;
use crate::log::wait_until;

use super::hosts::{Host, Received, Speech, Town, moved, ok};
use super::{CANARY, assert_nowhere, base64, command, fetch};

const GIVEN: [&str; 6] = ["-H", "X-Key: ${KEY}", "--cookie", "c=${KEY}", "--auth-bearer-env", "KEY"];

/// B86: another host, another port, `www.`, and down from https to http.
#[test]
fn credentials_of_a_job_stay_with_the_listed_hosts() {
    let (world, town) = (World::new(), Town::new());
    world.write("comity.toml", "[http]\nallow_private = [\"127.0.0.0/8\", \"::1\"]\n");
    let elsewhere = town.host(Speech::Tls, |_, _| ok());
    let plain = town.host(Speech::Plain, |_, _| ok());
    let places = [
        elsewhere.url("other.localhost", "/other"),
        elsewhere.url("www.site.localhost", "/www"),
        elsewhere.url("site.localhost", "/port"),
        plain.url("site.localhost", "/down"),
        plain.url("127.0.0.1", "/down-too"),
    ];
    let to = places.clone();
    let site = town.host(Speech::Tls, move |request, _| {
        let nth: Option<usize> = request.path.strip_prefix("/go/").and_then(|nth| nth.parse().ok());
        match (nth, request.path.as_str()) {
            (Some(nth), _) => moved(302, &to[nth]),
            (None, "/same") => moved(302, "/here"),
            _ => ok(),
        }
    });
    let mut urls: Vec<String> =
        (0..places.len()).map(|nth| site.url("site.localhost", &format!("/go/{nth}"))).collect();
    urls.push(site.url("site.localhost", "/same"));
    let list = world.write("list", &urls.join("\n"));
    let args = ["--json", "fetch", "--input", list.to_str().unwrap(), "--format", "warc", "--out", "archive"];
    let mut given = command(&world, &town, &[&args[..], &GIVEN].concat());
    given.env("KEY", CANARY);
    let done = world.begin(given).wait().expect(0);
    assert_eq!(done.json()["fetched"], 6, "{}", done.stdout);
    assert_eq!((elsewhere.pages().len(), plain.pages().len()), (3, 2));
    for request in elsewhere.received().iter().chain(&plain.received()) {
        assert!(!request.head.contains(CANARY), "{}", request.head);
    }
    let here = site.pages();
    assert!(here.iter().any(|page| page.path == "/here"));
    assert!(here.iter().all(|page| page.has(&format!("x-key: {CANARY}"))), "{here:#?}");
    assert_nowhere(&world, &[]);
}

/// B86: the credentials of a section stay with its host, and are never sent in plain text after a redirect.
#[test]
fn credentials_of_a_section_stay_with_its_host() {
    let (world, town) = (World::new(), Town::new());
    let safe = town.host(Speech::Tls, |request, _| match request.path.as_str() {
        "/away" => moved(302, "/there"),
        _ => ok(),
    });
    let plain = town.host(Speech::Plain, |_, _| ok());
    let to = [
        safe.url("site.localhost", "/led"),
        plain.url("site.localhost", "/plain"),
        safe.url("www.site.localhost", "/www"),
    ];
    let leads = town.host(Speech::Plain, move |request, _| {
        let nth: Option<usize> = request.path.strip_prefix("/go/").and_then(|nth| nth.parse().ok());
        nth.map_or_else(ok, |nth| moved(302, &to[nth]))
    });
    world.write(
        "comity.toml",
        "[http]\nallow_private = [\"127.0.0.0/8\", \"::1\"]\n[domains.\"site.localhost\".request]\nbearer_env = \"KEY\"\n",
    );
    let urls: Vec<String> = (0..3).map(|nth| leads.url("127.0.0.1", &format!("/go/{nth}"))).collect();
    let list = world.write("list", &urls.join("\n"));
    let mut given =
        command(&world, &town, &["--json", "fetch", "--input", list.to_str().unwrap(), "--format", "none"]);
    given.env("KEY", CANARY);
    assert_eq!(world.begin(given).wait().expect(0).json()["fetched"], 3);
    let bearer = format!("authorization: Bearer {CANARY}");
    for page in safe.pages() {
        assert_eq!(page.has(&bearer), page.path == "/led", "{}", page.head);
    }
    assert!(plain.received().iter().chain(&leads.received()).all(|request| !request.head.contains(CANARY)));
    assert_nowhere(&world, &[]);
}

/// B76: two hosts that the operator listed may redirect to each other, even with private addresses; others may not.
#[test]
fn a_redirect_between_two_listed_hosts_is_followed() {
    let (world, town) = (World::new(), Town::new());
    let second = town.host(Speech::Plain, |_, _| ok());
    let third = town.host(Speech::Plain, |_, _| ok());
    let (to, astray) = (second.url("127.0.0.1", "/to"), third.url("127.0.0.1", "/astray"));
    let first = town.host(Speech::Plain, move |request, _| match request.path.as_str() {
        "/a" => moved(302, &to),
        "/b" => moved(302, &astray),
        _ => ok(),
    });
    let urls =
        [first.url("127.0.0.1", "/a"), first.url("127.0.0.1", "/b"), second.url("127.0.0.1", "/listed")];
    let args = [&urls[0], &urls[1], &urls[2], "--job", "j", "--format", "none", "-H", "X-Key: k1"];
    let done = fetch(&world, &town, &args.map(|arg| arg as &str)).expect(1);
    assert_eq!((&done.json()["fetched"], &done.json()["failed"]), (&2.into(), &1.into()), "{}", done.stdout);
    assert_eq!(third.received().len(), 0);
    assert_eq!(second.pages().len(), 2);
    assert!(second.pages().iter().all(|page| page.has("x-key: k1")));
}

/// B76: also if the process that followed it was killed.
#[test]
fn a_redirect_between_two_listed_hosts_survives_a_kill() {
    let (world, town) = (World::new(), Town::new());
    // It doesn't answer the first two requests.
    let second = town.host(Speech::Plain, |_, nth| if nth < 1 { None } else { ok() });
    let to = second.url("127.0.0.1", "/to");
    let first = town.host(Speech::Plain, move |_, _| moved(302, &to));
    let urls = [first.url("127.0.0.1", "/a"), second.url("127.0.0.1", "/to?listed")];
    let args =
        ["fetch", &urls[0], "--job", "j", "--format", "none", "--robots", "ignore", "-H", "X-Key: ${KEY}"];
    // The second host is listed in the second part of the job, before it receives any request.
    world.write("list", &format!("{}\n{}\n", urls[0], urls[1]));
    let mut begun = command(&world, &town, &[&args[..1], &["--input", "list"], &args[2..]].concat());
    begun.env("KEY", CANARY);
    let running = world.begin(begun);
    wait_until("the redirect is stored and the second host is requested", || {
        let moved = world.store_copy().is_some_and(|(_folder, sql)| {
            let sql = sql.query_row("SELECT count(*) FROM tasks WHERE at_url IS NOT NULL", [], |row| {
                row.get::<_, i64>(0)
            });
            sql.is_ok_and(|moved| moved == 1)
        });
        moved && !second.received().is_empty()
    });
    running.kill();
    assert_nowhere(&world, &[]);
    let mut resumed = command(&world, &town, &["--json", "fetch", "--job", "j"]);
    resumed.env("KEY", CANARY);
    let done = world.begin(resumed).wait().expect(0);
    assert_eq!(done.json()["fetched"], 2, "{}", done.stdout);
    assert_eq!(first.pages().len(), 1, "it resumes at the second host");
    assert!(second.pages().iter().all(|page| page.has(&format!("x-key: {CANARY}"))));
    assert_nowhere(&world, &[]);
}

/// B86: robots.txt is fetched without the user and password of the page, unless the site's section says otherwise.
#[test]
fn credentials_in_a_url_are_not_sent_with_robots_txt() {
    let (world, town) = (World::new(), Town::new());
    let moves = |request: &Received, _| match request.path.as_str() {
        "/robots.txt" => moved(302, "/moved/robots.txt"),
        _ => ok(),
    };
    let (plain, source, wanted) =
        (town.host(Speech::Plain, moves), town.host(Speech::Plain, moves), town.host(Speech::Plain, moves));
    let port = wanted.address.port();
    let section = format!("[domains.\"127.0.0.1:{port}\".request]\nrobots_credentials = true\n");
    world.write("comity.toml", &section);
    let with_user = |host: &Host| host.url(&format!("me:{CANARY}@127.0.0.1"), "/page");
    fetch(&world, &town, &[&with_user(&plain), &with_user(&wanted), "--format", "none"]).expect(0);
    // It need not be a feed.
    world.run(&["sources", "add", &with_user(&source)]);
    let sent = format!("authorization: Basic {}", base64(&format!("me:{CANARY}")));
    for (host, with_robots) in [(&plain, false), (&source, false), (&wanted, true)] {
        let requests = host.received();
        for path in ["/robots.txt", "/moved/robots.txt", "/page"] {
            let request = requests.iter().find(|request| request.path == path).expect(path);
            let expected = with_robots || path == "/page";
            assert_eq!(request.has(&sent), expected, "{}", request.head);
            assert!(expected || !request.head.contains("authorization"), "{}", request.head);
        }
    }
}
