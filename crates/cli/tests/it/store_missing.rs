//! Stores that don't exist: commands that need what is in one don't create it.

use crate::comity::World;

/// Commands that only look, or change what is already there.
const LOOKING: [&[&str]; 28] = [
    &["jobs", "list"],
    &["jobs", "show", "news"],
    &["jobs", "show", "news", "--failed"],
    &["jobs", "export", "news"],
    &["jobs", "cancel", "news"],
    &["jobs", "retry", "news"],
    &["jobs", "remove", "news"],
    &["domains", "list"],
    &["domains", "show", "a.example"],
    &["domains", "release", "a.example"],
    &["items", "list"],
    &["items", "show", "1"],
    &["items", "export"],
    &["sources", "list"],
    &["sources", "show", "1"],
    &["sources", "set", "1", "--enabled", "off"],
    &["sources", "remove", "1"],
    &["sources", "cadence", "clear", "--all"],
    &["sources", "export"],
    &["scrape", "1"],
    &["wiki", "status", "https://a.example/api.php"],
    &["wiki", "export", "https://a.example/api.php", "--out", "wiki.xml"],
    &["top", "--once"],
    &["top", "--json"],
    &["explain", "https://a.example/"],
    &["check", "--peek", "a.example"],
    &["prune", "--keep", "1d"],
    &["fetch", "--job", "news"],
];

/// A misspelled store used to be created, and was then empty.
#[test]
fn a_misspelled_store_is_reported_and_not_created() {
    let world = World::new();
    let more = [
        &["domains", "reset", "a.example"][..],
        &["backup", "copy.db"],
        &["fetch", "--refresh", "--out", "x"],
    ];
    for command in LOOKING.into_iter().chain(more) {
        let done = world.run(&[&["--store", "sqlite:typo/comitty.db"], command].concat()).expect(3);
        done.says("error: typo/comitty.db: there is no store here; check the name");
        done.says("comity fetch URL");
        std::fs::create_dir_all(world.path("typo")).unwrap();
        let done = world.run(&[&["--json", "--store", "sqlite:typo/comitty.db"], command].concat());
        assert_eq!((done.code, &done.json()["code"]), (Some(3), &3.into()), "{command:?}: {done:?}");
        let created: Vec<_> = std::fs::read_dir(world.path("typo")).unwrap().collect();
        assert!(created.is_empty(), "{command:?} created {created:?}");
        std::fs::remove_dir(world.path("typo")).unwrap();
    }
}

/// Before its first use, the default store is empty.
#[test]
fn the_default_store_is_empty_until_something_is_added() {
    let world = World::new();
    for command in LOOKING {
        let done = world.run(command);
        assert!(matches!(done.code, Some(0..=2)), "{command:?}: {done:?}");
        assert!(!done.stderr.contains("no store here"), "{command:?}: {}", done.stderr);
        assert!(!world.store().exists(), "{command:?} created it");
    }
    world.run(&["jobs", "list"]).expect(0).shows("No jobs yet");
    world.run(&["top", "--once"]).expect(0).shows("0 processes running on comity.db");
    world.run(&["fetch", "--job", "news"]).expect(2).says("no such job");
    world.run(&["backup", "copy.db"]).expect(3).says("comity.db: there is no store here");
    assert!(!world.store().exists() && !world.path("copy.db").exists());
    for (create, store) in [
        (&["check", "a.example"][..], "a.db"),
        (&["record", "a.example", "success"], "b.db"),
        (&["domains", "set", "a.example", "--pause", "1h"], "c.db"),
        (&["sources", "add", "http://127.0.0.1:9/feed.xml", "--kind", "feed"], "d.db"),
    ] {
        let url = format!("sqlite:{store}");
        world.run(&[&["--store", &url], create].concat());
        assert!(world.path(store).exists(), "{create:?}");
    }
}
