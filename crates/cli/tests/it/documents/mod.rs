//! The documentation is true: its commands run, its links lead somewhere, its reference is that of this version.
//!
//! - `page`: a page, its blocks and the prose around them
//! - `reader`: follows a page from top to bottom
//! - `script`, `shape`, `units`: blocks as scripts, what they show, what cron and systemd read
//! - `internet`, `sites`: the hosts that pages speak of
//! - `links`: where links lead
//!
//! A comment right before a block says how it is run. There are these, and no others:
//!
//! | mark | means |
//! |---|---|
//! | `<!-- exits: 1 -->` | the last command of the block ends with this code |
//! | `<!-- file: NAME -->` | the block is this file, not comity.toml |
//! | `<!-- runs: at the real pace -->` | delays are not made short |
//! | `<!-- not run: reason -->` | it cannot be run here |

mod internet;
mod links;
mod page;
mod reader;
mod script;
mod shape;
mod sites;
mod units;

use self::page::Page;
use self::reader::Reader;
pub(crate) use self::units::verify as verify_unit;
use crate::comity::World;

/// A test for each page that has something to run.
macro_rules! pages {
    ($($test:ident: $page:literal,)*) => {
        $(#[test]
        fn $test() {
            let took = Reader::new(Page::read($page)).follow();
            println!("{} took {took:?}", $page);
        })*

        /// The pages that are followed.
        const FOLLOWED: &[&str] = &[$($page,)*];
    };
}

pages! {
    config: "docs/config.md",
    decisions: "docs/decisions.md",
    guide: "docs/guide.md",
    jobs: "docs/jobs.md",
    readme: "README.md",
    recipes: "docs/recipes.md",
    requests: "docs/requests.md",
    rules: "docs/rules.md",
    service: "docs/service.md",
    sources: "docs/sources.md",
    troubleshooting: "docs/troubleshooting.md",
    warc: "docs/warc.md",
    wiki: "docs/wiki.md",
}

/// A page with commands that nobody follows might say anything.
#[test]
fn every_page_is_followed() {
    for page in Page::all() {
        let runs = page
            .blocks
            .iter()
            .any(|block| matches!(block.language.as_str(), "sh" | "console" | "toml" | "cron" | "ini"));
        let known = FOLLOWED.contains(&page.name.as_str()) || ELSEWHERE.contains(&page.name.as_str());
        assert!(!runs || known, "{}: add it to the list in {}", page.name, file!());
    }
}

/// What is not run has a reason, and there is little of it.
#[test]
fn little_is_not_run() {
    let mut reasons = Vec::new();
    for page in FOLLOWED.iter().map(|name| Page::read(name)) {
        for block in page.blocks.iter().filter(|block| block.language == "sh" && block.mark.is_empty()) {
            let built = block.text.lines().filter(|line| script::builds(line));
            reasons.extend(
                built.map(|line| format!("{}:{}: builds or installs: {line}", page.name, block.line)),
            );
        }
        for block in page.blocks.iter().filter(|block| !block.mark.is_empty()) {
            let known = ["exits: ", "file: ", "not run: "]
                .iter()
                .any(|mark| block.mark.len() > mark.len() && block.mark.starts_with(mark));
            assert!(
                known || block.mark == "runs: at the real pace",
                "{}:{}: {}",
                page.name,
                block.line,
                block.mark
            );
            if let Some(reason) = block.mark.strip_prefix("not run: ") {
                reasons.push(format!("{}:{}: {reason}", page.name, block.line));
            }
        }
    }
    println!("not run:\n{}", reasons.join("\n"));
    assert!(reasons.len() <= NOT_RUN_MAX, "{}", reasons.join("\n"));
}

/// The reference is written by the command.
#[test]
fn the_configuration_reference_is_that_of_this_version() {
    let world = World::new();
    let written = world.run(&["config", "reference", "--markdown"]).expect(0).stdout;
    let page = std::fs::read_to_string(page::root().join("docs/config.md")).unwrap_or_default();
    assert!(
        written == page,
        "docs/config.md is old; renew it with: comity config reference --markdown > docs/config.md"
    );
}

/// Pages whose commands build and install, or are run by tests of their own.
const ELSEWHERE: [&str; 3] = ["clients/python/README.md", "contrib/README.md", "docs/layers.md"];
const NOT_RUN_MAX: usize = 8;
