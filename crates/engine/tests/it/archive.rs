//! Storing bodies as files with an index.

use std::fs;
use std::sync::Arc;

use comity::archive::{Archive, Files, PageHead, PageWriter, Reach, StoredPage};
use comity::jobs::StopReason;
use comity::results::Row;
use comity::store::tasks::{PageFacts, TaskView};
use comity_core::task::{JobState, TaskId};
use url::Url;

use crate::client::QUICK;
use crate::jobs::{Worker, fill};
use crate::support::{Asked, Site, at, reply, soon};

fn begin(archive: &Archive, url: &str) -> PageWriter {
    let url = Url::parse(url).unwrap();
    archive.begin(PageHead { final_url: &url, content_type: Some("text/html") }).unwrap()
}

/// The row of a stored page.
fn row(url: &str, kept: &StoredPage) -> Row {
    Row::of(&TaskView {
        id: TaskId(1),
        url: url.to_owned(),
        state: "done".to_owned(),
        status: Some(200),
        error: None,
        settled_at: Some(at(0)),
        attempts: 1,
        started_at: None,
        took: None,
        outcome: None,
        bytes: Some(kept.bytes),
        content_type: None,
        changed: Some(true),
        facts: Arc::new(PageFacts { file: kept.name.clone(), sha256: kept.sha256, ..PageFacts::default() }),
    })
}

/// The complete lines of the index.
fn index(folder: &std::path::Path) -> Vec<serde_json::Value> {
    let text = fs::read_to_string(folder.join("index.jsonl")).unwrap();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// All bodies in a folder and its subfolders.
fn files(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() {
            found.extend(files(&entry));
        } else if entry.file_name().unwrap() != "index.jsonl" {
            found.push(entry);
        }
    }
    found
}

/// B69: a line left incomplete by a kill does not affect others.
#[test]
fn an_incomplete_line_in_the_index_is_terminated() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("index.jsonl"), "{\"url\":\"http://a.example/1\"}\n{\"url\":\"http://a.exa")
        .unwrap();
    for round in 0..2 {
        let archive = Archive::Files(Files::open(folder.path()).unwrap());
        let url = format!("http://a.example/page{round}");
        let mut entry = begin(&archive, &url);
        entry.write(b"a body").unwrap();
        let kept = entry.finish().unwrap();
        assert_eq!(kept.bytes, 6);
        archive.add_rows(&[row(&url, &kept)]).unwrap();
    }
    let index = index(folder.path());
    let urls: Vec<&str> = index.iter().map(|line| line["url"].as_str().unwrap()).collect();
    assert_eq!(urls, ["http://a.example/1", "http://a.example/page0", "http://a.example/page1"]);
    let file = folder.path().join(index[1]["file"].as_str().unwrap());
    assert_eq!(fs::read(file).unwrap(), b"a body");
    assert_eq!(index[1]["bytes"], 6);
}

/// B82: no link inside the folder is followed.
#[cfg(unix)]
#[test]
fn links_inside_the_folder_are_not_followed() {
    use std::os::unix::fs::symlink;
    let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let victim = elsewhere.path().join("victim");
    fs::write(&victim, "untouched").unwrap();
    // The folder itself may be a link.
    let named = folder.path().join("named");
    symlink(folder.path().join("real"), &named).unwrap();
    fs::create_dir(folder.path().join("real")).unwrap();
    let open = || Files::open(&named);
    symlink(&victim, named.join("index.jsonl")).unwrap();
    let error = open().unwrap_err().to_string();
    assert!(error.contains("index.jsonl is a symbolic link"), "{error}");
    fs::remove_file(named.join("index.jsonl")).unwrap();
    let archive = Archive::Files(open().unwrap());
    // The folder of a host is a link.
    symlink(elsewhere.path(), named.join("a.example")).unwrap();
    let url = Url::parse("http://a.example/page").unwrap();
    let head = PageHead { final_url: &url, content_type: None };
    let error = archive.begin(head).unwrap_err().to_string();
    assert!(error.contains("a.example is a symbolic link"), "{error}");
    // The file of a page is a link.
    let first = begin(&archive, "http://b.example/page").finish().unwrap().file.unwrap();
    fs::remove_file(&first).unwrap();
    symlink(&victim, &first).unwrap();
    let mut entry = begin(&archive, "http://b.example/page");
    // A folder is replaced by a link while a page is being written.
    let mut late = begin(&archive, "http://c.example/page");
    late.write(b"a body").unwrap();
    fs::rename(named.join("c.example"), named.join("moved")).unwrap();
    symlink(elsewhere.path(), named.join("c.example")).unwrap();
    assert!(late.finish().is_err());
    entry.write(b"a body").unwrap();
    let kept = entry.finish().unwrap().file.unwrap();
    assert_eq!(fs::read(&kept).unwrap(), b"a body");
    assert!(fs::symlink_metadata(&kept).unwrap().is_file());
    assert!(fs::symlink_metadata(&first).unwrap().is_symlink(), "the existing link is not touched");
    assert_eq!(fs::read(&victim).unwrap(), b"untouched");
    assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 1);
}

/// B82: what is in the way of one page stops only that page, and says what to do.
#[tokio::test]
async fn a_page_whose_path_is_taken_fails_alone() {
    let site = Site::start(|asked: &Asked| reply(200).body(asked.path.as_str())).await;
    let other = Site::start(|asked: &Asked| reply(200).body(asked.path.as_str())).await;
    let folder = tempfile::tempdir().unwrap();
    let url = Url::parse(&site.url("/one")).unwrap();
    let host = format!("127.0.0.1_{}", url.port().unwrap());
    fs::write(folder.path().join(&host), "an operator's file").unwrap();
    let worker = Worker::start(QUICK).await;
    let pool = worker.pool(Archive::Files(Files::open(folder.path()).unwrap())).await;
    fill(&pool, &[site.url("/one"), other.url("/two"), other.url("/three")]).await;
    assert_eq!(soon("the job", pool.run()).await.unwrap(), StopReason::Job(JobState::Done));
    let index = index(folder.path());
    let failed: Vec<_> = index.iter().filter(|row| row["state"] == "failed").collect();
    assert_eq!((index.len(), failed.len()), (3, 1), "{index:?}");
    let error = failed[0]["error"].as_str().unwrap();
    assert!(error.starts_with("could not save the page: "), "{error}");
    assert!(error.ends_with(&format!("{host} is in the way: it isn't a folder; move it away")), "{error}");
    assert_eq!(fs::read_to_string(folder.path().join(host)).unwrap(), "an operator's file");
}

/// Without its folder, an archive can't save anything.
#[test]
fn an_archive_whose_folder_is_gone_is_not_the_fault_of_a_page() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let archive = Archive::Files(Files::open(&out).unwrap());
    let reach = || {
        let url = Url::parse("http://a.example/page").unwrap();
        archive.begin(PageHead { final_url: &url, content_type: None }).unwrap_err().reach
    };
    fs::write(out.join("a.example"), "").unwrap();
    assert_eq!(reach(), Reach::Page);
    fs::remove_dir_all(&out).unwrap();
    fs::write(&out, "").unwrap();
    assert_eq!(reach(), Reach::Archive);
}

#[test]
fn an_unfinished_body_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let archive = Archive::Files(Files::open(folder.path()).unwrap());
    let mut entry = begin(&archive, "http://a.example/page");
    entry.write(b"half a bo").unwrap();
    drop(entry);
    assert_eq!((files(folder.path()), index(folder.path()).len()), (vec![], 0));
}

/// Two listed URLs may redirect to the same page and be fetched at the same time.
#[test]
fn two_bodies_of_one_page_can_be_written_at_the_same_time() {
    let folder = tempfile::tempdir().unwrap();
    let archive = Archive::Files(Files::open(folder.path()).unwrap());
    let (mut one, mut two) =
        (begin(&archive, "http://a.example/page"), begin(&archive, "http://a.example/page"));
    one.write(b"the same body").unwrap();
    two.write(b"the same").unwrap();
    two.write(b" body").unwrap();
    let (one, two) = (one.finish().unwrap(), two.finish().unwrap());
    assert_eq!(one, two, "the same body is stored once");
    assert_eq!(fs::read(one.file.unwrap()).unwrap(), b"the same body");
    assert_eq!(files(folder.path()).len(), 1);
}

/// An older row points to the existing file, so it is not overwritten.
#[test]
fn a_different_body_of_a_page_gets_a_different_name() {
    let folder = tempfile::tempdir().unwrap();
    let archive = Archive::Files(Files::open(folder.path()).unwrap());
    let keep = |body: &[u8]| {
        let mut entry = begin(&archive, "http://a.example/page");
        entry.write(body).unwrap();
        entry.finish().unwrap().file.unwrap()
    };
    let kept: Vec<_> = [&b"one"[..], b"two", b"one", b"two", b"three"].map(keep).to_vec();
    assert_eq!((&kept[0], &kept[1]), (&kept[2], &kept[3]));
    for (file, body) in std::iter::zip(&kept, ["one", "two", "one", "two", "three"]) {
        assert_eq!(fs::read_to_string(file).unwrap(), body);
    }
    assert_eq!(files(folder.path()).len(), 3, "and nothing else is left behind");
}

/// B74: complete bodies are stored, and a body that is too large is not.
#[tokio::test]
async fn a_job_stores_the_pages_it_fetched() {
    let site = Site::start(|asked: &Asked| match asked.path.as_str() {
        "/large" => reply(200).body(vec![b'x'; 4_096]),
        path => reply(200).body(path),
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let worker = Worker::start(&format!("{QUICK}[http]\nbody_max = \"1KiB\"\n")).await;
    let pool = worker.pool(Archive::Files(Files::open(folder.path()).unwrap())).await;
    fill(&pool, &["/one", "/large", "/two"].map(|path| site.url(path))).await;
    assert_eq!(soon("the job", pool.run()).await.unwrap(), StopReason::Job(JobState::Done));
    let mut index = index(folder.path());
    assert_eq!((index.len(), files(folder.path()).len()), (3, 2), "failures have a row, too");
    index.retain(|line| line["state"] == "done");
    assert_eq!(index.len(), 2);
    for line in index {
        let url = Url::parse(line["url"].as_str().unwrap()).unwrap();
        let body = fs::read_to_string(folder.path().join(line["file"].as_str().unwrap())).unwrap();
        assert_eq!((body.as_str(), line["status"].as_u64()), (url.path(), Some(200)));
    }
}
