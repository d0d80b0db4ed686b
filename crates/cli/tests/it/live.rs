//! The live view in a real terminal, and `comity top`.

use std::time::Duration;

use crate::comity::{World, list};
use crate::log::wait_until;
use crate::site::{Answer, Site};
use crate::terminal::Terminal;

/// A site that answers `pages` requests, then 429 with a Retry-After of an hour.
fn closing(pages: usize) -> Site {
    Site::start(move |asked| match asked.before < pages {
        true => Answer::page(asked.path),
        false => Answer::status(429).header("Retry-After", "3600"),
    })
}

fn fetch(world: &World, site: &Site, more: &str) -> String {
    world.write("urls", &list(&site.url(), "page/", 30));
    format!("comity fetch --input urls --job news --robots ignore --delay 10ms --format none {more}")
}

/// B80: a job that waits for another caller's permit says so.
#[test]
fn a_wait_for_a_permit_is_shown_with_its_reason() {
    let (world, site) = (World::new(), Site::start(|asked| Answer::page(asked.path)));
    world.run(&["check", &site.url(), "--lease", "10m"]).expect(0);
    let terminal = Terminal::open(&world, 120, 30, &[], &fetch(&world, &site, ""));
    terminal.until("a permit has not been recorded");
    let shown = terminal.until("30 waiting").join("\n");
    let host = site.url().replace("http://", "");
    let line = shown.lines().find(|line| line.starts_with(&format!("  {host}"))).unwrap();
    assert!(line.contains("9m ") || line.contains("10m"), "a countdown: {line}");
    wait_until("top shows it", || {
        world.run(&["top", "--once"]).expect(0).stdout.contains("a permit has not been recorded")
    });
    world.run(&["domains", "release", &host]).expect(0).shows("1 permit released");
    terminal.until("ended 0");
}

/// The reader of a pipe prints to the same terminal, and the view overwrote it.
#[test]
fn rows_piped_into_another_program_stay_visible() {
    let (world, site) = (World::new(), Site::start(|asked| Answer::page(asked.path)));
    let urls: Vec<String> = (0..5).map(|page| format!("{}/{page}", site.url())).collect();
    let line = format!(
        "comity fetch {} --robots ignore --delay 200ms --out - | while read -r row; do echo \"row: $row\" | cut -c1-50; done",
        urls.join(" ")
    );
    let terminal = Terminal::open(&world, 110, 40, &[], &line);
    let shown = terminal.until("ended 0").join("\n");
    assert_eq!(shown.matches("row: {").count(), 5, "{shown}");
    assert!(!shown.contains("━"), "{shown}");
}

#[test]
fn the_live_view_shows_what_waits_why_and_how_long() {
    let (world, site) = (World::new(), closing(7));
    let terminal = Terminal::open(&world, 100, 30, &[], &fetch(&world, &site, ""));
    terminal.until("7 of 30 pages");
    terminal.until("the server asked to wait");
    let shown = terminal.until("23 waiting").join("\n");
    let host = site.url().replace("http://", "");
    let line = shown.lines().find(|line| line.starts_with(&format!("  {host}"))).unwrap();
    assert!(line.contains("59m 5") || line.contains(" 1h "), "a countdown: {line}");
    assert!(line.ends_with("23 waiting"), "{line}");
    assert!(shown.contains("━"), "{shown}");
    terminal.until("about 1h");
    let shown = terminal.until("1 rate limited (429) · 1 retry").join("\n");
    // The log is above the view, with whole lines.
    let warned = shown.lines().position(|line| line.contains("WARN backing off")).unwrap();
    let head = shown.lines().position(|line| line.starts_with("news")).unwrap();
    assert!(warned < head, "{shown}");
    assert_eq!(shown.matches("of 30 pages").count(), 1, "it is drawn in place:\n{shown}");
    assert!(terminal.history().contains('\u{1b}'), "in colours");

    // In another terminal.
    let top = world.run(&["top"]).expect(0);
    top.shows("1 process running on");
    top.shows("fetch news, pid");
    wait_until("top shows its progress", || {
        let top = world.run(&["top", "--once"]).expect(0).stdout;
        top.contains("7 of 30 pages")
            && top.contains("the server asked to wait")
            && top.contains("23 waiting")
    });
    let object = world.run(&["top", "--json"]).expect(0).json();
    let status = &object["processes"][0]["status"];
    let work = &status["work"];
    // Both names of the number of 429s: scripts may rely on the older one.
    assert_eq!((&work["rate_limited"], &work["refused"]), (&1.into(), &1.into()), "{work}");
    assert_eq!(work["name"], "news");
    assert_eq!(status["held_back"][0]["origin"], "server");
    let looking = Terminal::open(&world, 90, 30, &[], "comity top");
    looking.until("the server asked to wait");
    looking.press("C-c");
    looking.until("ended 0");
    q_quits_top(&world);
    // Elsewhere, reasons aren't shortened, and on a narrow terminal they are.
    let narrow = Terminal::open(&world, 50, 30, &[], "comity top --once");
    let shown = narrow.until("ended 0");
    assert!(shown.iter().all(|line| line.chars().count() < 50), "{shown:?}");

    terminal.press("C-c");
    let shown = terminal.until("ended 130").join("\n");
    assert!(shown.contains("Stopping… (0 requests in flight; press Ctrl-C again to quit now)"), "{shown}");
    assert!(shown.contains("job news: stopped, 7 of 30 fetched"), "{shown}");
    assert!(!shown.contains("of 30 pages"), "the view was not erased:\n{shown}");
    let top = world.run(&["top"]).expect(0);
    top.shows("0 processes running on");
    top.shows("job news is stopped");
}

/// The terminal afterwards shows what is typed, as before.
fn q_quits_top(world: &World) {
    let line = "comity top; echo left $?; stty -a | grep -o -e ' echo ' -e ' icanon '";
    let looking = Terminal::open(world, 90, 30, &[], line);
    looking.until("(q quits)");
    looking.press("x");
    looking.press("q");
    looking.until("left 0");
    let shown = looking.until("ended 0").join("\n");
    assert!(shown.contains("\n echo") && shown.contains("\n icanon"), "{shown}");
    assert!(!shown.contains("q quits"), "the view was not erased:\n{shown}");
}

#[test]
fn the_live_view_survives_a_resize() {
    let (world, site) = (World::new(), closing(7));
    let terminal = Terminal::open(&world, 100, 30, &[], &fetch(&world, &site, "--log-level error"));
    terminal.until("the server asked to wait");
    for (columns, rows) in [(60, 30), (34, 30), (20, 12), (34, 9), (120, 30), (80, 24)] {
        terminal.resize(columns, rows);
        let head = if columns >= 60 { "7 of 30 pages" } else { "7 of 30" };
        wait_until(&format!("it is drawn for {columns} columns"), || {
            let lines = terminal.lines();
            // The view is at the bottom: progress, counts, the domain.
            let block = &lines[lines.len().saturating_sub(3)..];
            let fits = block.iter().all(|line| line.chars().count() < columns as usize);
            let wide = columns < 60 || block[0].contains('━') && block[2].contains("the server");
            fits && wide && block.len() == 3 && block[0].contains(head) && block[2].starts_with("  ")
        });
    }
    let shown = terminal.lines().join("\n");
    assert_eq!(shown.matches("the server asked to wait").count(), 1, "nothing is left behind:\n{shown}");
    terminal.press("C-c");
    terminal.until("ended 130");
}

#[test]
fn the_live_view_works_without_color_and_utf_8() {
    let (world, site) = (World::new(), closing(7));
    let plain = [("NO_COLOR", "1"), ("LC_ALL", "C")];
    let terminal = Terminal::open(&world, 100, 30, &plain, &fetch(&world, &site, ""));
    terminal.until("the server asked to wait");
    let shown = terminal.until("7 of 30 pages").join("\n");
    assert!(shown.contains("news  [======"), "{shown}");
    terminal.until("about 1h");
    let history = terminal.history();
    let ours: String = history.lines().filter(|line| !line.trim().is_empty()).collect();
    assert!(ours.is_ascii() && !ours.contains('\u{1b}'), "{ours:?}");
    terminal.press("C-c");
    terminal.until("ended 130");
    // A dumb terminal gets lines.
    let (world, site) = (World::new(), closing(7));
    let terminal = Terminal::open(&world, 100, 30, &[("TERM", "dumb")], &fetch(&world, &site, "-v"));
    terminal.until("/30 pages");
    let history = terminal.history();
    // Its log used to have colors.
    assert!(history.contains("INFO job started") && !history.contains('\u{1b}'), "{history:?}");
    terminal.press("C-c");
    terminal.until("ended 130");
}

/// Without a terminal, a line is printed at the start and every ten seconds.
#[test]
fn without_a_terminal_progress_is_printed_as_lines() {
    let (world, site) = (World::new(), closing(100));
    world.write("urls", &list(&site.url(), "page/", 30));
    let args = ["fetch", "--input", "urls", "--robots", "ignore", "--delay", "20ms", "--format", "none"];
    let done = world.run(&args).expect(0);
    assert!(!done.stderr.contains('\u{1b}') && !done.stdout.contains('\u{1b}'), "{}", done.stderr);
    let quiet = world.run(&[&args[..], &["--quiet", "--job", "quiet"]].concat()).expect(0);
    assert_eq!((quiet.stdout.as_str(), quiet.stderr.as_str()), ("", ""));
}

#[test]
fn log_lines_do_not_break_the_live_view() {
    // Every page is logged, and every line must be complete.
    let world = World::new();
    let site = Site::start(|asked| Answer::page(asked.path).after(Duration::from_millis(5)));
    let line = fetch(&world, &site, "--log-level debug");
    let terminal = Terminal::open(&world, 200, 50, &[("NO_COLOR", "1")], &line);
    terminal.until("ended 0");
    let history = terminal.history();
    let logged = history.lines().filter(|line| line.contains("DEBUG") && line.contains("fetched"));
    let logged: Vec<&str> = logged.collect();
    assert_eq!(logged.len(), 30, "{history}");
    // In local time, without microseconds.
    let is_time = |line: &&str| {
        line.len() > 9
            && line[..9].chars().enumerate().all(|(nth, c)| match nth {
                2 | 5 => c == ':',
                8 => c == ' ',
                _ => c.is_ascii_digit(),
            })
    };
    assert!(logged.iter().all(|line| is_time(line) && !line.contains("of 30")), "{logged:#?}");
    assert!(!history.lines().any(|line| line.starts_with("news")), "the view was not erased:\n{history}");
}

/// B72: next to a live view only warnings are logged, unless -v asks for more; without a terminal, everything from info
/// on.
#[test]
fn a_terminal_shows_warnings_and_a_pipe_shows_info() {
    let (world, site) = (World::new(), Site::start(|asked| Answer::page(asked.path)));
    let terminal = Terminal::open(&world, 120, 30, &[], &fetch(&world, &site, ""));
    terminal.until("ended 0");
    let history = terminal.history();
    assert!(!history.contains("INFO"), "{history}");
    assert!(history.contains("no contact is set"), "a warning: {history}");
    let world = World::new();
    let terminal = Terminal::open(&world, 120, 30, &[], &fetch(&world, &site, "-v"));
    terminal.until("ended 0");
    let history = terminal.history();
    assert!(history.contains("job started") && !history.contains("DEBUG"), "{history}");
    let args = ["fetch", "--input", "urls", "--robots", "ignore", "--delay", "10ms", "--format", "none"];
    let piped = world.run(&args).expect(0).stderr;
    let line = piped.lines().find(|line| line.contains("job started")).unwrap();
    assert!(line.starts_with("20") && line.contains("Z  INFO") && line.contains('.'), "UTC, in full: {line}");
}

/// For a site that doesn't respond, the time left is an upper bound.
#[test]
fn the_time_left_for_a_hanging_site_is_an_upper_bound() {
    let world = World::new();
    let site = Site::start(|asked| Answer::page(asked.path).after(Duration::from_secs(3_600)));
    world.write("comity.toml", "[http]\nfirst_byte_timeout = \"20s\"\n");
    let line = format!("comity fetch {}/page --robots ignore --format none --max-retries 1", site.url());
    let terminal = Terminal::open(&world, 120, 30, &[], &line);
    // Two attempts of twenty seconds, and five seconds between them.
    let shown = terminal.until("up to ").join("\n");
    assert!(shown.contains("up to 4") || shown.contains("up to 3"), "{shown}");
    terminal.until("ended 1");
}

/// A site whose robots.txt could not be fetched is not tried again for five minutes.
#[test]
fn the_time_left_includes_the_wait_for_robots_txt() {
    let world = World::new();
    let site = Site::start(|asked| match asked.path {
        "/robots.txt" => Answer::status(503).header("Retry-After", "1"),
        path => Answer::page(path),
    });
    let line = format!("comity fetch {}/page --format none --delay 10ms --max-retries 1", site.url());
    let terminal = Terminal::open(&world, 120, 30, &[], &line);
    let shown = terminal.until("about 4m").join("\n");
    assert!(!shown.contains("about 1s left"), "{shown}");
    terminal.press("C-c");
    terminal.until("ended 130");
}

/// B80: the lease of another caller's permit is part of the time left.
#[test]
fn the_time_left_includes_the_lease_of_a_permit() {
    let (world, site) = (World::new(), Site::start(|asked| Answer::page(asked.path)));
    world.run(&["check", &site.url(), "--lease", "10m"]).expect(0);
    let terminal = Terminal::open(&world, 120, 30, &[], &fetch(&world, &site, ""));
    // Ten minutes, less what it took to get here.
    let minutes = (5..=10).map(|minutes| format!("about {minutes}m")).collect::<Vec<_>>();
    wait_until("the lease is part of the time left", || {
        terminal.lines().iter().any(|line| minutes.iter().any(|left| line.contains(left)))
    });
    terminal.press("C-c");
    terminal.until("ended 130");
}
