//! Limits on open files. Running out of file descriptors is our own problem: it costs time, and no retries or backoff.
//! The command raises its soft limit to the hard limit.

use std::collections::BTreeSet;
use std::net::TcpStream;

use crate::comity::World;
use crate::follow::{self, FEEDS};
use crate::log::{to_text, wait_until};
use crate::nginx::Nginx;
use crate::service::{Service, ask};

/// B42, B82: more sites that keep connections open than there are descriptors.
#[test]
fn more_hosts_than_descriptors_lose_no_page() {
    let world = World::new();
    let (nginx, urls) = Nginx::on_hosts(300, "");
    let input = world.write("list", &urls.iter().map(|url| format!("{url}/page\n")).collect::<String>());
    let input = input.to_str().unwrap();
    let args =
        ["fetch", "--input", input, "--max-retries", "0", "--delay", "20ms", "--out", "pages", "--json"];
    let done = world.begin(world.limited("-n 128", &args)).wait().expect(0);
    let object = done.json();
    assert_eq!(
        (&object["fetched"], &object["failed"], &object["retries"]),
        (&300.into(), &0.into(), &0.into())
    );
    assert_eq!(world.index("pages").len(), 300);
    let log = nginx.log();
    assert_eq!(log.len(), 600, "robots.txt and one page per site:\n{}", to_text(&log));
}

/// B42: more requests at once than there are descriptors, and for longer than a request waits for one.
#[test]
fn without_a_descriptor_a_request_waits_and_uses_no_retry() {
    let world = World::new();
    // Each response takes three seconds.
    let (nginx, urls) = Nginx::on_hosts(24, "location = /slow { limit_rate 1k; }");
    nginx.put("/slow", vec![b'x'; 3 << 10]);
    let input = world.write("list", &urls.iter().map(|url| format!("{url}/slow\n")).collect::<String>());
    let mut args =
        vec!["fetch", "--input", input.to_str().unwrap(), "--robots", "ignore", "--max-retries", "0"];
    args.extend(["--concurrency", "24", "--out", "pages", "--json"]);
    let done = world.begin(world.limited("-n 60", &args)).wait().expect(0);
    let object = done.json();
    assert_eq!(
        (&object["fetched"], &object["failed"], &object["retries"]),
        (&24.into(), &0.into(), &0.into())
    );
    let log = nginx.log();
    assert_eq!(log.len(), 24, "{}", to_text(&log));
    // Logged every ten seconds, and not for every request that had to wait.
    done.says("out of file descriptors");
    let said = done.stderr.matches("out of file descriptors").count() as i64;
    assert!(said <= 1 + done.took_us / 10_000_000, "{}", done.stderr);
    // The sites are not blamed for it.
    let outcomes: BTreeSet<String> = {
        let sql = world.sql();
        let mut attempts = sql.prepare("SELECT DISTINCT outcome FROM attempts").unwrap();
        attempts.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    };
    assert_eq!(outcomes, BTreeSet::from(["success".to_owned()]));
}

/// B51, B42: the same for scrapes: a scrape that could not be sent has no row.
#[test]
fn without_a_descriptor_a_scrape_has_not_started() {
    let world = follow::world(&[]);
    let (nginx, urls) = Nginx::on_hosts(24, &format!("{FEEDS} location = /slow {{ limit_rate 1k; }}"));
    nginx.put("/slow", vec![b'x'; 3 << 10]);
    let links: Vec<String> = urls.iter().map(|url| format!("{url}/slow")).collect();
    let items: Vec<(&str, &str)> = links.iter().map(|link| (&**link, &**link)).collect();
    nginx.put("/feeds/all.rss", follow::rss(&items));
    follow::add(&world, &format!("{}/feeds/all.rss", nginx.url()), &[]);
    let args = ["--json", "run", "--concurrency", "24"];
    let done = world.begin(world.limited("-n 60", &args)).wait().expect(0);
    done.says("out of file descriptors");
    assert_eq!(follow::states(&world), vec!["done"; 24]);
    let scrapes = nginx.log().into_iter().filter(|hit| hit.path == "/slow").count();
    let rows: i64 = world.sql().query_row("SELECT count(*) FROM scrape_logs", [], |row| row.get(0)).unwrap();
    assert_eq!((scrapes, rows), (24, 24));
}

/// Clients that use up all descriptors neither end the service nor keep it from answering later.
#[test]
fn a_service_that_ran_out_of_descriptors_recovers() {
    let world = World::new();
    let limited = world.limited("-n 40", &["--json", "serve", "--listen", "127.0.0.1:0"]);
    let service = Service::begin(&world, world.begin(limited));
    let crowd: Vec<TcpStream> = (0..300).filter_map(|_| TcpStream::connect(service.address).ok()).collect();
    assert!(crowd.len() > 100, "{}", crowd.len());
    drop(crowd);
    wait_until("it answers", || {
        ask(service.address, "GET", "/healthz", "", "").is_ok_and(|answered| answered.status == 200)
    });
    service.stop().expect(0);
}
