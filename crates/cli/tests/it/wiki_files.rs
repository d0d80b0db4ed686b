//! Archives of the uploaded files of a real wiki.

use crate::comity::World;
use crate::mediawiki::MediaWiki;
use crate::nginx::Nginx;
use crate::wiki::PACE;
use crate::wiki_archived::same;

/// Every version of every file is downloaded once, complete and verified.
#[test]
fn files_are_archived_with_their_versions() {
    let (world, wiki) = (World::new(), MediaWiki::start());
    let front =
        Nginx::start(&format!("location /uploads {{ proxy_pass http://127.0.0.1:{}; }}", wiki.port()));
    wiki.take_uploads(Some(&front.url()));
    let noise = |seed: u64, size: usize| -> Vec<u8> {
        let mut random = fastrand::Rng::with_seed(seed);
        (0..size).map(|_| random.u8(..)).collect()
    };
    wiki.upload("One.png", &noise(1, 3_000));
    wiki.upload("One.png", &noise(2, 200_000));
    wiki.upload("Grüße_✓.png", b"small");
    wiki.upload("Broken.png", &noise(3, 100));
    world.write("comity.toml", &format!("{PACE}[http]\nallow_private = [\"127.0.0.1\"]\n"));
    let broken = find(&wiki.uploaded(), "Broken.png");
    let whole = std::fs::read(&broken).unwrap();
    std::fs::write(&broken, b"something else").unwrap();
    let api = wiki.api();
    let archive = || world.run(&["--json", "wiki", "archive", &api, "--files=kept"]);
    let first = archive().expect(1);
    first.says("SHA-1");
    assert_eq!(first.json()["files"], serde_json::json!({ "listed": 4, "kept": 3, "bytes": 203_005 }));
    world.run(&["wiki", "status", &api]).expect(0).shows("1 of 4 file versions are missing");
    // Files that exist are not downloaded again, even with a new store.
    std::fs::write(&broken, whole).unwrap();
    let asked = front.log().len();
    assert_eq!(archive().expect(0).json()["files"]["kept"], 4);
    assert_eq!(front.log().len(), asked + 1, "{}", crate::log::to_text(&front.log()));
    for file in ["comity.db", "comity.db-wal", "comity.db-shm"] {
        let _ = std::fs::remove_file(world.path(file));
    }
    assert_eq!(archive().expect(0).json()["files"]["kept"], 4);
    assert_eq!(front.log().iter().filter(|hit| hit.path != "/robots.txt").count(), 5);
    same(&world, &wiki, &[6]);
    let index =
        std::fs::read_to_string(world.path("kept").join(format!("127.0.0.1-{}-api.php.jsonl", wiki.port())));
    let index: Vec<serde_json::Value> =
        index.unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let content = |title: &str, superseded: bool| {
        let is_it = |line: &&serde_json::Value| line["title"] == title && line["superseded"] == superseded;
        let line = index.iter().find(is_it).unwrap_or_else(|| panic!("{title} in {index:?}"));
        std::fs::read(world.path("kept").join(line["file"].as_str().unwrap())).unwrap()
    };
    assert!(
        content("File:One.png", true) == noise(1, 3_000)
            && content("File:One.png", false) == noise(2, 200_000)
    );
    assert_eq!(content("File:Grüße ✓.png", false), b"small");
    // Files that are missing or were moved are downloaded again.
    let line =
        index.iter().find(|line| line["title"] == "File:One.png" && line["superseded"] == false).unwrap();
    std::fs::remove_file(world.path("kept").join(line["file"].as_str().unwrap())).unwrap();
    assert_eq!(archive().expect(0).json()["files"]["kept"], 4);
    assert!(content("File:One.png", false) == noise(2, 200_000));
    world.run(&["wiki", "archive", &api, "--files=other", "--incremental"]).expect(0);
    assert_eq!(walk(&world.path("other")).len(), 5);
    let left: Vec<_> = walk(&world.path("kept")).into_iter().filter(|path| path.ends_with(".part")).collect();
    assert!(left.is_empty(), "{left:?}");
}

/// B69: kills during downloads leave no partial files.
#[test]
fn kills_during_downloads_lose_nothing() {
    let (world, wiki) = (World::new(), MediaWiki::start());
    wiki.take_uploads(None);
    let content = |nth: usize| format!("file {nth} ").repeat(5_000 + nth).into_bytes();
    (0..6).for_each(|nth| wiki.upload(&format!("File_{nth}.png"), &content(nth)));
    world.write("comity.toml", &format!("robots = \"ignore\"\n{PACE}"));
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..6 {
        let run = world.start(&["wiki", "archive", &wiki.api(), "--files"]);
        std::thread::sleep(std::time::Duration::from_millis(random.u64(200..900)));
        run.kill();
    }
    let object = world.run(&["--json", "wiki", "archive", &wiki.api(), "--files"]).expect(0).json();
    assert_eq!((&object["files"]["kept"], &object["files"]["listed"]), (&6.into(), &6.into()), "{object}");
    let kept: Vec<String> = walk(&world.path("files"));
    let is_whole = |path: &String| (0..6).any(|nth| std::fs::read(path).unwrap() == content(nth));
    assert_eq!(kept.iter().filter(|path| is_whole(path)).count(), 6, "{kept:?}");
    assert_eq!(kept.len(), 7, "six files and their list: {kept:?}");
}

/// The paths of all files in a folder.
fn walk(folder: &std::path::Path) -> Vec<String> {
    let each = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let paths = each.flat_map(|path| match path.is_dir() {
        true => walk(&path),
        false => vec![path.display().to_string()],
    });
    paths.collect()
}

fn find(folder: &std::path::Path, name: &str) -> String {
    let found = walk(folder).into_iter().find(|path| path.ends_with(&format!("/{name}")));
    found.unwrap_or_else(|| panic!("{name} in {:?}", walk(folder)))
}
