//! `--out`: paths that can't be used, and another folder for a job that exists.

use std::fs;
use std::path::{Path, PathBuf};

use crate::comity::{World, list};
use crate::site::{Answer, Site};

const QUICK: [&str; 4] = ["--delay", "1ms", "--robots", "ignore"];

fn site() -> Site {
    Site::start(|asked| Answer::page(asked.path))
}

/// It used to say "File exists".
#[test]
fn a_file_in_place_of_the_folder_is_named() {
    let (world, site) = (World::new(), site());
    let url = format!("{}/a", site.url());
    let file = world.write("file", "kept");
    for (out, format) in [("file", "files"), ("file/below/it", "files"), ("file", "warc")] {
        let refused = world.run(&["fetch", &url, "--out", out, "--format", format]).expect(2);
        let (out, file) = (world.path(out), file.display());
        refused.says(&format!(
            "--out = {:?}: expected a folder, but {file} is a file",
            out.display().to_string()
        ));
    }
    assert_eq!((fs::read_to_string(&file).unwrap(), site.log().len()), ("kept".to_owned(), 0));
    assert_eq!(world.run(&["--json", "jobs", "list"]).expect(0).json()["jobs"], serde_json::json!([]));
}

/// Rows used to be written to the other file, too.
#[test]
fn an_index_that_is_a_hard_link_is_refused() {
    let (world, site) = (World::new(), site());
    let victim = world.write("victim", "kept\n");
    fs::create_dir(world.path("pages")).unwrap();
    fs::hard_link(&victim, world.path("pages/index.jsonl")).unwrap();
    let url = format!("{}/a", site.url());
    let refused = world.run(&["fetch", &url, "--out", "pages"]).expect(2);
    refused.says("index.jsonl: index.jsonl is a hard link");
    assert_eq!((fs::read_to_string(&victim).unwrap(), site.log().len()), ("kept\n".to_owned(), 0));
}

/// B82. The page was to be saved in a folder in place of the index, and the job could never be resumed.
#[test]
fn a_host_may_be_named_like_the_index() {
    let (world, proxy) = (World::new(), Site::start(|_| Answer::page("any")));
    let proxy = proxy.url();
    for url in ["http://index.jsonl/a", "http://INDEX.JSONL./b", "http://other.invalid/c"] {
        let args = ["fetch", url, "--job", "one", "--out", "pages", "--proxy", &proxy];
        world.run(&[&args[..], &QUICK].concat()).expect(0);
    }
    let files: Vec<PathBuf> = exported(&world, "pages");
    assert_eq!((bodies(&files), world.rows("pages").len()), (vec!["page any\n".to_owned(); 3], 3));
    assert!(files[0].starts_with(world.path("pages/index.jsonl_")), "{files:?}");
}

/// The files of a job's rows, as paths below `folder` unless they are named in full.
fn exported(world: &World, folder: &str) -> Vec<PathBuf> {
    let rows = world.run(&["jobs", "export", "one"]).expect(0).objects();
    rows.iter().map(|row| world.path(folder).join(row["file"].as_str().unwrap())).collect()
}

fn bodies(files: &[PathBuf]) -> Vec<String> {
    files.iter().map(|file| fs::read_to_string(file).unwrap()).collect()
}

/// It was used without a word, and exports said that all pages were in the new folder.
#[test]
fn another_folder_is_for_new_pages_and_earlier_ones_are_still_found() {
    let (world, site) = (World::new(), site());
    let urls = ["a", "b", "c"].map(|path| format!("{}/{path}", site.url()));
    let fetch = |args: &[&str]| world.run(&[&["fetch", "--job", "one"], args, &QUICK].concat());
    fetch(&[&urls[0], "--out", "first"]).expect(0);
    let moved = fetch(&[&urls[1], "--out", "second"]).expect(0);
    let second = world.path("second");
    moved.says(&format!(
        "From now on, job one saves its pages in {}; pages fetched earlier stay where they are\n",
        second.display()
    ));
    let again = fetch(&[&urls[2], "--out", "./second/"]).expect(0);
    assert!(!again.stderr.contains("From now on"), "it is the same folder: {}", again.stderr);
    let files = exported(&world, "second");
    assert_eq!(bodies(&files), ["page /a\n", "page /b\n", "page /c\n"]);
    let inside: Vec<bool> = files.iter().map(|file| file.starts_with(&second)).collect();
    assert_eq!(inside, [false, true, true]);
    assert_eq!((world.rows("first").len(), world.rows("second").len()), (1, 2));

    // A job that has nothing to fetch says so; a refresh downloads everything again.
    let ended = fetch(&["--out", "third"]).expect(0);
    ended.says(&format!(
        "--out changed nothing, because nothing was fetched; its pages are in {}\n",
        second.display()
    ));
    assert!(!world.path("third").exists());
    fetch(&["--refresh", "--out", "third"]).expect(0);
    let files = exported(&world, "third");
    assert_eq!(bodies(&files), ["page /a\n", "page /b\n", "page /c\n"]);
    assert!(files.iter().all(|file| file.starts_with(world.path("third"))), "{files:?}");

    // A folder that was moved is still the folder of the job.
    fs::rename(world.path("third"), world.path("fourth")).unwrap();
    let moved = fetch(&[&format!("{}/d", site.url()), "--out", "fourth"]).expect(0);
    moved.says("no longer exists, so pages fetched earlier are expected there, too");
    let files = exported(&world, "fourth");
    assert_eq!(bodies(&files), ["page /a\n", "page /b\n", "page /c\n", "page /d\n"]);
    assert!(files.iter().all(|file| file.starts_with(world.path("fourth"))), "{files:?}");
}

#[test]
fn another_format_is_for_new_pages() {
    let (world, site) = (World::new(), site());
    let urls = ["a", "b", "c"].map(|path| format!("{}/{path}", site.url()));
    let fetch = |args: &[&str]| world.run(&[&["fetch", "--job", "one"], args, &QUICK].concat());
    fetch(&[&urls[0], "--out", "pages"]).expect(0);
    let warc = fetch(&[&urls[1], "--format", "warc"]).expect(0);
    let pages = world.path("pages");
    warc.says(&format!(
        "From now on, job one saves its pages as warc in {}; pages fetched earlier stay where they are\n",
        pages.display()
    ));
    let none = fetch(&[&urls[2], "--out", "-"]).expect(0);
    none.says("From now on, job one saves no pages; pages fetched earlier stay where they are");
    fetch(&["--format", "files"]).expect(0).says("--format changed nothing, because nothing was fetched");
    let rows = world.run(&["jobs", "export", "one"]).expect(0).objects();
    let saved: Vec<bool> = rows.iter().map(|row| row["file"].is_string()).collect();
    assert_eq!(saved, [true, false, false]);
    let has_warc = |entry: fs::DirEntry| entry.path().extension().is_some_and(|name| name == "gz");
    assert!(fs::read_dir(&pages).unwrap().any(|entry| has_warc(entry.unwrap())));
}

/// Two processes would save the pages of one job in two places, and no row would say where.
#[test]
fn the_folder_of_a_running_job_stays() {
    let (world, site) = (World::new(), site());
    let input = world.write("list", &list(&site.url(), "p", 40));
    let run = world.start(&[
        "fetch",
        "--job",
        "one",
        "--input",
        input.to_str().unwrap(),
        "--out",
        "pages",
        "--delay",
        "300ms",
        "--robots",
        "ignore",
    ]);
    site.wait_for(2);
    let join = |args: &[&str]| world.run(&[&["fetch", "--job", "one"], args].concat());
    let refused = join(&["--out", "other"]).expect(2);
    refused
        .says(&format!("--out: job one is running and saves its pages in {}", world.path("pages").display()));
    join(&["--format", "warc"]).expect(2).says("--format: job one is running and saves its pages as files");
    assert!(!Path::new(&world.path("other")).exists());
    run.signal("INT");
    run.wait().expect(130);
    join(&["--out", "other", "--delay", "1ms"]).expect(0).says("From now on, job one saves its pages in ");
    assert!(exported(&world, "other").iter().all(|file| file.exists()));
}
