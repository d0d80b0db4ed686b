//! `explain`: what robots.txt says about a URL, and what the rule of a new site asks for.

use crate::comity::World;
use crate::log::counts;
use crate::nginx::Nginx;
use crate::service::Service;

const ROBOTS: &str = r"location = /robots.txt { return 200 'User-agent: *\nDisallow: /private\n'; }";

/// B2, B81: nothing is fetched for it.
#[test]
fn a_url_that_robots_txt_forbids_is_reported_as_forbidden() {
    let (world, nginx) = (World::new(), Nginx::start(ROBOTS));
    let (page, private) = (nginx.url() + "/a0", nginx.url() + "/private/x");
    let unknown = world.run(&["--json", "explain", &private]).expect(0).json();
    assert!(unknown["robots"].is_null(), "{unknown}");
    let not_fetched = "robots.txt: not fetched yet; it may forbid this URL or ask for a delay";
    world.run(&["explain", &private]).expect(0).shows(not_fetched);
    world.run(&["fetch", &page, "--delay", "1ms", "--format", "none"]).expect(0);
    let first_line = |url: &str| {
        let done = world.run(&["explain", url]).expect(0);
        done.stdout.lines().next().unwrap().to_owned()
    };
    let forbidden = first_line(&private);
    assert!(forbidden.contains(": forbidden by robots.txt (known since 20"), "{forbidden}");
    assert!(!first_line(&page).contains("forbidden"));
    assert!(!world.run(&["explain", &page]).expect(0).stdout.contains("not fetched"), "it was fetched");
    let host = nginx.url().replace("http://", "");
    assert!(!first_line(&host).contains("forbidden"), "a domain has no path");
    let object = world.run(&["--json", "explain", &private]).expect(0).json();
    assert_eq!(object["robots"]["allowed"], false, "{object}");
    assert!(object["robots"]["fetched_at"].is_string(), "{object}");
    let object = world.run(&["--json", "explain", &page]).expect(0).json();
    assert_eq!(object["robots"]["allowed"], true, "{object}");
    // The service answers the same.
    let service = Service::start(&world);
    let remote = |url: &str| {
        world.run(&["--json", "explain", url, "--server", &service.url()]).expect(0).json()["robots"].clone()
    };
    assert_eq!((&remote(&private)["allowed"], &remote(&page)["allowed"]), (&false.into(), &true.into()));
    assert!(remote(&host).is_null());
    assert_eq!(counts(&nginx.log())["/robots.txt"], 1);
    // Whoever ignores robots.txt isn't told about it.
    world.write("comity.toml", "robots = \"ignore\"\n");
    assert!(world.run(&["--json", "explain", &private]).expect(0).json()["robots"].is_null());
}

/// B2
#[test]
fn the_rule_of_a_new_site_is_shown() {
    let world = World::new();
    let done = world.run(&["explain", "new.example"]).expect(0);
    done.shows("new.example: a request can be sent now");
    done.shows("rule     minimum delay 1s: no requests so far");
    let burst = world.run(&["explain", "new.example", "--profile", "collector"]).expect(0);
    burst.shows("burst 5 per 60s");
    let object = world.run(&["--json", "explain", "new.example"]).expect(0).json();
    let first = &object["constraints"][0];
    assert_eq!((&first["limit"], &first["binds"]), (&"min_delay".into(), &false.into()), "{object}");
    assert_eq!((&object["wait_ms"], &first["wait_ms"]), (&0.into(), &0.into()), "{object}");
}
