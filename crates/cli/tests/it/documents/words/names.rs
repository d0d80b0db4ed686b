//! One name per thing in the prose of the pages for users: the names of GLOSSARY.md. Identifiers of commands, JSON and SQL may differ
//! from them; they are in code font or in code blocks, which are not checked.

use super::super::page::Page;
use super::text::{Text, prose};
use super::{assert_free_of, found};

#[test]
fn everything_has_one_name_on_the_pages_for_users() {
    let pages = Page::all().into_iter().filter(|page| page.name != GENERATED);
    let texts: Vec<Text> = pages.map(|page| Text { words: prose(&page), name: page.name }).collect();
    assert!(texts.len() > 15, "only {} pages were found", texts.len());
    assert_free_of(NAMES, NAMES_ALLOWED, texts);
}

#[test]
fn prose_is_checked_and_code_is_not() {
    let page = Page::parse(
        "a.md",
        "A `domain` of [a task](task.md), stored.\n\n```sh\ncomity domains list\n```\nTwo stores. The request\nleaves after 5 seconds.\n",
    );
    let texts = |name: &str| vec![Text { words: prose(&page), name: name.to_owned() }];
    let at = |findings: Vec<String>| -> Vec<String> {
        findings.iter().map(|finding| finding.split("; ").next().unwrap_or_default().to_owned()).collect()
    };
    let all = [
        "a.md:1: \"stored\"",
        "a.md:1: \"task\"",
        "a.md:6: \"request leaves\"",
        "a.md:7: \"5 seconds\"",
        "a.md:7: \"leaves after\"",
    ];
    assert_eq!(at(found(NAMES, &[], texts("a.md"))), all);
    // What is allowed is allowed in its place only, and not without need.
    let allowed = &[("a.md", "leaves after 5 seconds", ""), ("a.md", "request leaves for good", "")];
    let rest = ["a.md no longer says \"request leaves for good\"", all[0], all[1]];
    assert_eq!(at(found(NAMES, allowed, texts("a.md"))), rest);
    assert_eq!(found(NAMES, &[("b.md", "a task", "")], texts("a.md")).len(), all.len() + 1);
}

/// A page whose texts stand in the sources, with what they describe.
const GENERATED: &str = "docs/config.md";

/// Other names, and the one name.
const NAMES: &[(&str, &str)] = &[
    ("domain|domains", "site; the name in a URL is a host"),
    ("task|tasks", "URL"),
    ("pages in flight", "URLs in flight"),
    ("remaining|waiting|unfinished|other pages", "remaining URLs"),
    ("pages is|are|were skipped|retried|waiting|forbidden", "URLs are skipped"),
    ("pace|delay per host", "per site"),
    ("host|hosts is|are closed|paused|slow", "the site is closed"),
    ("stored|storing", "saved"),
    ("!two|several|many|other|all stores", "saves"),
    ("not|doesn't|don't|never|can|may store", "save"),
    (
        "hold|holds|held|holding",
        "a site is closed until …; a process is in charge of a site; a file contains",
    ),
    ("settle|settles|settled", "finished"),
    ("request|requests|attempt|attempts|fetch|search|retry|one leave|leaves|left", "is sent"),
    ("may|must|could|should leave", "may be sent"),
    ("just|already left", "was sent"),
    ("!time left before|after|at|just", "was sent"),
    ("leave|leaves early|late|before|after|at|as|in|within|together", "is sent"),
    ("last|previous|each|every|oldest start", "last request"),
    ("start to start", "from one request to the next"),
    ("# second|seconds|minute|minutes|millisecond|milliseconds", "2 s, 500 ms, 2 min"),
];

/// File, phrase, and why it stays.
const NAMES_ALLOWED: &[(&str, &str, &str)] = &[
    ("clients/python/README.md", "a cancelled task", "a task of asyncio"),
    ("clients/python/README.md", "a task that is cancelled", "a task of asyncio"),
    ("clients/python/README.md", "the tasks of one event loop", "tasks of asyncio"),
];
