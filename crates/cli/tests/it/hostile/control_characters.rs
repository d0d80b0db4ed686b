//! Feeds with control characters in their titles, which must not reach a terminal.

use super::assert_no_control_characters;
use crate::comity::World;
use crate::site::{Answer, Site};

/// Every command that shows a source or its items, as text and as JSON.
#[test]
fn control_characters_in_titles_reach_neither_terminal_nor_log() {
    let site = Site::start(|asked| match asked.path {
        "/feed" => {
            Answer { body: feed(), ..Answer::status(200).header("Content-Type", "application/rss+xml") }
        }
        "/robots.txt" => Answer::status(404),
        "/broken" => Answer { body: format!("<rss>{ODD}<{ODD}>"), ..Answer::status(200) },
        _ => Answer {
            body: format!(
                "<!doctype html><title>{ODD}</title><p>{}</p>",
                format!("{ODD}, and so on. ").repeat(40)
            ),
            ..Answer::status(200).header("X-Odd", "\u{9b}31m\u{202e}")
        },
    });
    let world = World::new();
    world.write("comity.toml", "[default]\nmin_delay = \"20ms\"\n[job]\nmax_retries = 0\n");
    let url = |path: &str| site.url() + path;
    let mut shown = vec![
        world.run(&["sources", "add", &url("/feed"), "--kind", "feed", "--name", ODD]),
        world.run(&["sources", "add", &url("/broken"), "--kind", "feed"]),
    ];
    for format in ["text", "json"] {
        shown.push(world.run(&["--log-level", "debug", "--log-format", format, "run", "--force"]));
        shown.push(world.run(&["--json", "--log-level", "trace", "--log-format", format, "run", "--force"]));
    }
    for args in [
        &["items", "list"][..],
        &["items", "show", "1"],
        &["items", "show", "1", "--text"],
        &["sources", "list"],
        &["sources", "show", "1"],
        &["sources", "show", "2"],
        &["jobs", "list"],
        &["jobs", "show", "scrape"],
        &["domains", "list"],
    ] {
        shown.push(world.run(args).expect(0));
        shown.push(world.run(&[&["--json"], args].concat()).expect(0));
    }
    shown.push(world.run(&["sources", "export"]).expect(0));
    shown.iter().for_each(assert_no_control_characters);
    let titled =
        |args: &[&str]| world.run(args).expect(0).json()["items"][0]["title"].as_str().unwrap().to_owned();
    assert!(titled(&["--json", "items", "list"]).contains("title"), "JSON has the title");
}

fn feed() -> String {
    format!(
        "<?xml version='1.0'?><rss version='2.0'><channel><title>{XML}</title>\
         <item><title>{XML}</title><link>/one?{XML}</link><guid isPermaLink='false'>{XML}</guid></item>\
         <item><title><![CDATA[{ODD}]]></title><link>/two</link></item></channel></rss>"
    )
}

/// Colors, a window title, an 8-bit sequence, a line break, right-to-left text.
const ODD: &str =
    "title \u{1b}[31m\u{1b}]0;mine\u{7}\u{9b}2J\u{8}\u{7f}\u{85}\u{202e}drow\u{2066}\u{200f}\u{61c}";
const XML: &str = "title &#27;[31m&#x9b;2J&#x85;&#x202e;drow&#x2066;&#x200f;&#127;";
