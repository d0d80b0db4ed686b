//! B10: sites that accept connections and never respond, or respond very slowly, don't delay a job's other sites.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::comity::World;
use crate::follow::{add, rss};
use crate::log::{Hit, now_us, wait_until};
use crate::site::{Answer, Site};

/// Hosts that accept every connection and send nothing, or one byte now and then. They use all loopback addresses.
struct Quiet {
    port: u16,
    seen: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    /// The maximum number of connections open at once.
    most: AtomicUsize,
    hosts: Mutex<BTreeSet<IpAddr>>,
}

#[derive(Clone, Copy, PartialEq)]
enum Behavior {
    Silent,
    /// Sends a head, and then a byte now and then.
    Drips,
}

impl Quiet {
    fn start(behavior: Behavior) -> Self {
        let listener = TcpListener::bind("0.0.0.0:0").unwrap();
        let (port, seen) = (listener.local_addr().unwrap().port(), Arc::<Counts>::default());
        let counts = seen.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                counts.hosts.lock().unwrap().insert(stream.local_addr().unwrap().ip());
                std::thread::spawn(move || linger(stream, behavior));
            }
        });
        // Reading the kernel's table may take long, so it happens in the background.
        let counts = Arc::downgrade(&seen);
        std::thread::spawn(move || {
            while let Some(counts) = counts.upgrade() {
                counts.most.fetch_max(open_at_least(port), Ordering::SeqCst);
                drop(counts);
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        Self { port, seen }
    }

    fn url(&self, nth: usize) -> String {
        format!("http://127.1.{}.{}:{}/page", nth / 200, nth % 200 + 1, self.port)
    }

    fn hosts(&self) -> usize {
        self.seen.hosts.lock().unwrap().len()
    }

    fn most(&self) -> usize {
        self.seen.most.load(Ordering::SeqCst)
    }
}

/// The kernel's table isn't read atomically: a connection that closes and one that opens meanwhile may both be in it. But
/// those that are in it twice were all open between the two readings.
fn open_at_least(port: u16) -> usize {
    let first = open(port);
    first.intersection(&open(port)).count()
}

/// Connections to this port that the client has not closed: their addresses and inodes, as the kernel lists them.
fn open(port: u16) -> BTreeSet<[String; 3]> {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let remote = format!(":{port:04X}");
    let open = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let is_open = words.get(2)?.ends_with(&remote) && words.get(3) == Some(&"01");
        is_open.then(|| {
            [words[1].to_owned(), words[2].to_owned(), words.get(9).copied().unwrap_or_default().to_owned()]
        })
    };
    table.lines().filter_map(open).collect()
}

/// Keeps a connection open until the client closes it.
fn linger(mut stream: TcpStream, behavior: Behavior) {
    let mut buffer = [0; 4_096];
    if behavior == Behavior::Silent {
        while stream.read(&mut buffer).is_ok_and(|read| read > 0) {}
        return;
    }
    let _ = stream.read(&mut buffer);
    let head: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 100000\r\n\r\n";
    let mut written = stream.write_all(head);
    while written.is_ok() {
        std::thread::sleep(Duration::from_millis(200));
        written = stream.write_all(b"#");
    }
}

/// A site without a robots.txt on all loopback addresses.
fn good() -> Site {
    Site::on("0.0.0.0", |asked| match asked.path {
        "/robots.txt" => Answer::status(404),
        path => Answer::page(path),
    })
}

fn good_url(site: &Site, nth: usize) -> String {
    let authority = site.authority();
    let port = authority.rsplit(':').next().unwrap();
    format!("http://127.2.0.{}:{port}/good{nth}", nth + 1)
}

fn pages(log: &[Hit]) -> usize {
    log.iter().filter(|hit| hit.path.starts_with("/good")).count()
}

/// Runs a job over the unresponsive hosts and then good ones, until all good pages were requested.
fn fetch(quiet: &Quiet, hosts: usize, args: &[&str]) {
    let (world, site) = (World::new(), good());
    let urls = (0..hosts).map(|nth| quiet.url(nth)).chain((0..40).map(|nth| good_url(&site, nth)));
    let input = world.write("list", &urls.collect::<Vec<_>>().join("\n"));
    let args = [
        &["--json", "fetch", "--input", input.to_str().unwrap(), "--format", "none", "--concurrency", "16"],
        args,
    ];
    let running = world.start(&args.concat());
    wait_until("all good pages were requested", || pages(&site.log()) == 40);
    let took = (now_us() - running.started_us) as f64 / 1e6;
    println!(
        "{hosts} quiet hosts {args:?}: 40 good pages after {took:.1} s, at most {} connections",
        quiet.most()
    );
    wait_until("more hosts were tried than the concurrency allows", || quiet.hosts() > 16);
    assert!(quiet.most() <= 64, "{} connections at once", quiet.most());
    let counted =
        || world.sql().query_row("SELECT count(*) FROM tasks WHERE state = 'done'", [], |row| row.get(0));
    wait_until("all good pages are settled", || counted() == Ok(40));
    drop(running);
}

/// B10. A list that started with a hundred unresponsive hosts used to fetch nothing else.
#[test]
fn a_hundred_unresponsive_hosts_do_not_delay_forty_good_pages() {
    let quiet = Quiet::start(Behavior::Silent);
    fetch(&quiet, 100, &[]);
}

/// B10
#[test]
fn unresponsive_hosts_do_not_delay_others_without_robots_txt() {
    let quiet = Quiet::start(Behavior::Silent);
    fetch(&quiet, 100, &["--robots", "ignore"]);
}

/// B10
#[test]
fn slow_bodies_do_not_delay_others() {
    let quiet = Quiet::start(Behavior::Drips);
    fetch(&quiet, 100, &["--robots", "ignore"]);
}

/// B10: a sitemap that lists others on an unresponsive host delays neither its own host nor its other entries.
#[test]
fn sitemaps_on_an_unresponsive_host_do_not_delay_others() {
    let (world, quiet) = (World::new(), Quiet::start(Behavior::Silent));
    world
        .write("comity.toml", "[http]\nallow_private = [\"127.0.0.0/8\"]\n[default]\nmin_delay = \"20ms\"\n");
    let part = "<urlset><url><loc>http://127.0.0.1/page</loc></url></urlset>";
    let other = Site::on("127.0.0.1", move |asked| match asked.path {
        "/robots.txt" => Answer::status(404),
        _ => Answer { status: 200, body: part.to_owned(), ..Answer::default() },
    });
    let index = Arc::new(Mutex::new(String::new()));
    let served = index.clone();
    let site = Site::start(move |asked| match asked.path {
        "/robots.txt" => Answer::status(404),
        "/index.xml" => Answer { status: 200, body: served.lock().unwrap().clone(), ..Answer::default() },
        "/second.xml" | "/own.xml" => Answer { status: 200, body: part.to_owned(), ..Answer::default() },
        _ => Answer::status(404),
    });
    let named = (0..5).map(|nth| format!("{}{nth}", quiet.url(0)));
    let named = named.chain([other.url() + "/other.xml", site.url() + "/own.xml"]);
    let named: String = named.map(|url| format!("<sitemap><loc>{url}</loc></sitemap>")).collect();
    *index.lock().unwrap() = format!("<sitemapindex>{named}</sitemapindex>");
    for path in ["/index.xml", "/second.xml"] {
        world.run(&["sources", "add", &(site.url() + path), "--kind", "sitemap"]).expect(0);
    }
    let running = world.start(&["--json", "run", "--no-scrape"]);
    let asked = |site: &Site, path: &str| site.log().iter().any(|hit| hit.path == path);
    wait_until("the unresponsive host was tried", || quiet.hosts() == 1);
    wait_until("everything else was requested", || {
        asked(&other, "/other.xml") && asked(&site, "/own.xml") && asked(&site, "/second.xml")
    });
    let took = (now_us() - running.started_us) as f64 / 1e6;
    println!("a host that hangs among the sitemaps of an index: the rest after {took:.1} s");
    assert!(took < 25.0, "before any of them timed out");
    drop(running);
}

/// B10: a source whose items are all on unresponsive hosts, next to another source.
#[test]
fn a_source_with_unresponsive_items_does_not_delay_another() {
    let (world, quiet, site) = (World::new(), Quiet::start(Behavior::Silent), good());
    let config = "[http]\nallow_private = [\"127.0.0.0/8\"]\n[job]\nconcurrency = 16\n[scrape]\nmin_interval = 0\nmax_bulk_batch_size = 1000\n";
    world.write("comity.toml", config);
    let feed = |urls: Vec<String>| {
        let items: Vec<(String, String)> =
            urls.into_iter().enumerate().map(|(nth, url)| (format!("n{nth}"), url)).collect();
        rss(&items.iter().map(|(title, url)| (title.as_str(), url.as_str())).collect::<Vec<_>>())
    };
    let hangs = feed((0..400).map(|nth| quiet.url(nth)).collect());
    let fine = feed((0..10).map(|nth| good_url(&site, nth)).collect());
    let feeds = Site::start(move |asked| {
        let body = match asked.path {
            "/hangs.rss" => hangs.clone(),
            "/fine.rss" => fine.clone(),
            _ => return Answer::status(404),
        };
        Answer { status: 200, body, ..Answer::default() }.header("Content-Type", "application/rss+xml")
    });
    // The unresponsive one comes first.
    add(&world, &(feeds.url() + "/hangs.rss"), &[]);
    add(&world, &(feeds.url() + "/fine.rss"), &[]);
    let running = world.start(&["--json", "run"]);
    wait_until("the items of the other source were requested", || pages(&site.log()) == 10);
    let took = (now_us() - running.started_us) as f64 / 1e6;
    println!("400 items that hang: the other source after {took:.1} s, at most {} connections", quiet.most());
    assert!(quiet.most() <= 64, "{} connections at once", quiet.most());
    assert!(quiet.hosts() > 16, "they were tried before: {}", quiet.hosts());
    drop(running);
}
