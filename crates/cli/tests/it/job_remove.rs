//! `comity jobs remove`: several jobs, by name or by how and when they ended.

use serde_json::{Value, json};

use crate::comity::{World, list};
use crate::log::now_us;
use crate::site::{Answer, Site};

const QUICK: [&str; 8] = ["--delay", "1ms", "--robots", "ignore", "--format", "none", "--max-retries", "0"];

fn names(world: &World) -> Vec<String> {
    let listed = world.run(&["--json", "jobs", "list"]).expect(0).json();
    let name = |job: &Value| job["job"].as_str().unwrap().to_owned();
    listed["jobs"].as_array().unwrap().iter().map(name).collect()
}

#[test]
fn several_jobs_are_removed_by_name_or_none() {
    let world = World::new();
    let site = Site::start(|asked| Answer::page(asked.path));
    let url = format!("{}/a", site.url());
    for job in ["one", "two", "three"] {
        world.run(&[&["fetch", &url, "--job", job][..], &QUICK].concat()).expect(0);
    }
    world.run(&["jobs", "remove", "one", "nobody"]).expect(2).says("no such job");
    assert_eq!(names(&world), ["three", "two", "one"], "nothing was removed");
    let dry = world.run(&["jobs", "remove", "one", "two", "--dry-run"]).expect(0);
    assert_eq!(dry.stdout, "Would remove job one with 1 URL\nWould remove job two with 1 URL\n");
    assert_eq!(names(&world).len(), 3);
    world
        .run(&["jobs", "remove", "one", "two", "one"])
        .expect(0)
        .shows("Removed job two with 1 URL; its pages");
    assert_eq!(names(&world), ["three"]);
    let object = world.run(&["--json", "jobs", "remove", "three"]).expect(0).json();
    assert_eq!(object, json!({ "job": "three", "removed": true, "tasks": 1 }));
    world.run(&["jobs", "remove"]).expect(2);
    world.run(&["jobs", "remove", "one", "--state", "done"]).expect(2).says("--state");
}

/// Jobs without a name pile up.
#[test]
fn jobs_that_ended_long_ago_are_removed_together() {
    let world = World::new();
    let site = Site::start(|asked| match asked.path {
        "/bad" => Answer::status(500),
        path => Answer::page(path),
    });
    let (good, bad) = (format!("{}/a", site.url()), format!("{}/bad", site.url()));
    for _ in 0..2 {
        world.run(&[&["fetch", &good][..], &QUICK].concat()).expect(0);
    }
    world.write("comity.toml", "[job]\nfailure_threshold = 1\n");
    world.run(&[&["fetch", &good, "--job", "done"][..], &QUICK].concat()).expect(0);
    world.run(&[&["fetch", &bad, "--job", "failed"][..], &QUICK].concat()).expect(1);
    world.run(&[&["fetch", &good, "--job", "young"][..], &QUICK].concat()).expect(0);
    let input = world.write("list", &list(&site.url(), "p", 40));
    let run = world.start(&[
        "fetch",
        "--job",
        "stopped",
        "--input",
        input.to_str().unwrap(),
        "--delay",
        "300ms",
        "--robots",
        "ignore",
        "--format",
        "none",
    ]);
    let started = site.log().len();
    site.wait_for(started + 1);
    run.kill().unwrap();
    let before = now_us() - 100 * 86_400_000_000;
    let sql =
        "UPDATE jobs SET created_us = ?1, ended_us = iif(ended_us IS NULL, NULL, ?1) WHERE name <> 'young'";
    world.sql().execute(sql, [before]).unwrap();

    let remove = |args: &[&str]| world.run(&[&["--json", "jobs", "remove"], args].concat()).expect(0).json();
    let jobs = |object: &Value| object["jobs"].as_array().unwrap().len();
    let dry = remove(&["--older-than", "30d", "--dry-run"]);
    assert_eq!((&dry["dry_run"], jobs(&dry)), (&true.into(), 4), "{dry}");
    assert_eq!(jobs(&remove(&["--older-than", "101d"])), 0);
    assert_eq!(jobs(&remove(&["--older-than", "30d", "--match", "fetch-*"])), 2);
    assert_eq!(names(&world), ["stopped", "young", "failed", "done"]);
    let failed = remove(&["--state", "failed,cancelled"]);
    assert_eq!(failed, json!({ "dry_run": false, "jobs": [{ "job": "failed", "tasks": 1 }] }));
    remove(&["--older-than", "30d"]);
    assert_eq!(names(&world), ["stopped", "young"], "a stopped job is not over");
    world.run(&["jobs", "remove", "--match", "nothing-*"]).expect(0).shows("nothing was removed");
    world.run(&["jobs", "remove", "--older-than", "soon"]).expect(2).says("expected a duration");
    world.run(&["jobs", "remove", "--state", "stopped"]).expect(2);
    world.run(&["jobs", "remove", "stopped"]).expect(0).shows("Removed job stopped with 40 URLs");
}

/// B82. The service refused such names, and the command line didn't. Jobs that have one stay usable.
#[test]
fn new_jobs_have_plain_names_and_older_ones_keep_theirs() {
    let (world, site) = (World::new(), Site::start(|asked| Answer::page(asked.path)));
    let url = |path: &str| format!("{}/{path}", site.url());
    let quick = ["--delay", "1ms", "--robots", "ignore", "--out", "pages"];
    let fetch =
        |name: &str, path: &str| world.run(&[&["fetch", "--job", name, &url(path)][..], &quick].concat());
    let long = "n".repeat(300);
    let earlier = ["../../esc", "a/b", "..", &long];
    for name in earlier {
        let refused = fetch(name, "a").expect(2);
        refused.says("--job = ");
        refused.says("expected 1 to 200 letters, digits, spaces,");
    }
    assert_eq!((site.log().len(), world.store().exists()), (0, false));
    for name in earlier {
        fetch("earlier", "a").expect(0);
        world.sql().execute("UPDATE jobs SET name = ?1 WHERE name = 'earlier'", [name]).unwrap();
        world.run(&["jobs", "show", name]).expect(0);
        assert_eq!(names(&world), [name]);
        fetch(name, "b").expect(0);
        assert_eq!(world.run(&["jobs", "export", name]).expect(0).objects().len(), 2, "{name}");
        world.run(&["jobs", "remove", name]).expect(0);
        fetch(name, "c").expect(2);
    }
}
