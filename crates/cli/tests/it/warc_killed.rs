//! WARC files of processes that are killed, interrupted, or share a job.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::time::Duration;

use crate::archive::{Archive, Record};
use crate::comity::{World, list};
use crate::log::wait_until;
use crate::site::{Answer, Site};

fn site() -> Site {
    // All pages differ, and are too large for one write.
    Site::start(|asked| {
        let body = format!("{}\n", asked.path).repeat(2_000);
        Answer { status: 200, body, ..Answer::default() }
    })
}

fn first(world: &World, site: &Site, pages: usize) -> Vec<String> {
    world.write("list", &list(&site.url(), "p", pages));
    let args =
        "fetch --input list --job one --format warc --out pages --delay 5ms --learning off --robots ignore";
    args.split(' ').map(str::to_owned).collect()
}

/// Asserts that each page is in the archive with its own body, and at most `again_max` of them twice.
#[track_caller]
fn assert_all_there(archive: &Archive, pages: usize, again_max: usize) {
    archive.assert_closed();
    let mut bodies: BTreeMap<String, Vec<Record>> = BTreeMap::new();
    for record in archive.records() {
        if matches!(record.kind.as_str(), "response" | "revisit") {
            let path = record.url.rsplit('/').next().unwrap().to_owned();
            bodies.entry(path).or_default().push(record);
        }
    }
    assert_eq!(bodies.len(), pages);
    for (path, records) in &bodies {
        // A page that was fetched twice may be a revisit record.
        let whole = records.iter().find(|record| record.kind == "response");
        assert_eq!(whole.unwrap().content, format!("/{path}\n").repeat(2_000));
    }
    let again = bodies.values().map(|records| records.len() - 1).sum::<usize>();
    assert!(again <= again_max, "{again} of {pages} were fetched again");
}

/// B74: a reader never finds a partial record, and nothing is lost.
#[test]
fn five_kills_leave_no_partial_record() {
    let (world, site) = (World::new(), site());
    let archive = Archive::at(world.path("pages"));
    world.write("comity.toml", "[warc]\nfile_max = \"128KiB\"\n");
    let args = first(&world, &site, PAGES);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let mut random = fastrand::Rng::with_seed(11);
    for nth in 0..KILLS {
        let before = site.log().len();
        let run = if nth == 0 { world.start(&args) } else { world.start(&["fetch", "--job", "one"]) };
        site.wait_for(before + random.usize(5..40));
        std::thread::sleep(Duration::from_micros(random.u64(0..5_000)));
        assert!(run.kill().is_some(), "it ended before it was killed");
        archive.check();
        assert_eq!(archive.open().len(), 1, "{:?}", archive.open());
    }
    world.run(&["fetch", "--job", "one", "--input", "list"]).expect(0);
    assert_all_there(&archive, PAGES, KILLS * 16);
}

/// A file that was left open is truncated to its last complete record, wherever it ended.
#[test]
fn a_file_left_open_is_repaired() {
    let (world, site) = (World::new(), site());
    let archive = Archive::at(world.path("pages"));
    let args = first(&world, &site, 3);
    world.run(&args.iter().map(String::as_str).collect::<Vec<_>>()).expect(0);
    let [file] = &archive.files()[..] else { panic!("{:?}", archive.files()) };
    let whole = std::fs::read(file).unwrap();
    let left = file.with_extension("gz.open");
    for (tail, name) in
        [(&whole[..whole.len() / 2], "half a record"), (&[0; 4_096][..], "zeros"), (b"", "nothing")]
    {
        std::fs::rename(file, &left).unwrap();
        // The start of a gzip member is an unfinished record.
        OpenOptions::new().append(true).open(&left).unwrap().write_all(&tail[..tail.len().min(300)]).unwrap();
        // The file is found even though the job has ended.
        world.run(&["fetch", "--job", "one"]).expect(0).shows("already done");
        assert_eq!(std::fs::read(file).unwrap(), whole[..], "{name}");
        assert_all_there(&archive, 3, 0);
    }
    // A file without any response is deleted, and files of other programs are left alone.
    std::fs::write(world.path("pages/one-20200101000000-00000.warc.gz.open"), &whole[..100]).unwrap();
    let others = world.path("pages/other-20200101000000-00000.warc.gz.open");
    std::fs::write(&others, &whole[..100]).unwrap();
    world.run(&["fetch", "--job", "one"]).expect(0);
    assert_eq!(archive.open(), std::slice::from_ref(&others));
    assert_eq!(std::fs::read(others).unwrap(), whole[..100]);
}

/// Ctrl-C finishes what is in flight and closes the file.
#[test]
fn an_interrupted_fetch_leaves_a_complete_file() {
    let (world, site) = (World::new(), site());
    let archive = Archive::at(world.path("pages"));
    let args = first(&world, &site, 200);
    let running = world.start(&args.iter().map(String::as_str).collect::<Vec<_>>());
    site.wait_for(20);
    assert_eq!((archive.files().len(), archive.open().len()), (0, 1));
    running.signal("INT");
    running.wait().expect(130);
    archive.assert_closed();
    assert_eq!(archive.files().len(), 1);
    world.run(&["fetch", "--job", "one", "--input", "list"]).expect(0);
    assert_all_there(&archive, 200, 0);
    assert_eq!(archive.files().len(), 2);
}

/// Two processes of a job write separate files, and neither mistakes the other's for a leftover.
#[test]
fn two_processes_write_two_files() {
    let world = World::new();
    let archive = Archive::at(world.path("pages"));
    let (one, other) = (site(), site());
    let args = first(&world, &one, 40);
    let args: Vec<&str> = args.iter().map(|arg| if arg == "5ms" { "100ms" } else { arg }).collect();
    let first = world.start(&args);
    wait_until("the first writes", || archive.open().len() == 1);
    // It works on the URLs that it adds to the job.
    world.write("more", &list(&other.url(), "q", 40));
    let second = world.start(&["fetch", "--job", "one", "--input", "more"]);
    wait_until("both write", || archive.open().len() == 2);
    first.wait().expect(0);
    second.wait().expect(0);
    assert_all_there(&archive, 80, 0);
    let [one, other] = &archive.files()[..] else { panic!("{:?}", archive.files()) };
    assert_ne!(one, other);
}

const PAGES: usize = 300;
const KILLS: usize = 5;
