//! Archives the files that were uploaded to a wiki: every visible version, identified by its SHA-1.
//!
//! They are listed like pages, and then fetched one after the other at the pace of their host. A file is written under
//! a temporary name, checked, synced and renamed before it counts as stored, so files are always complete. Files with
//! the same SHA-1 are stored once.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use comity_core::time::Timestamp;
use comity_store::tasks::Lead;
use comity_store::wiki::{Batch, ListedFile, WikiFile};
use serde_json::json;

use super::content::{hex, sha1};
use super::error::WikiError;
use super::loop_detector::LoopDetector;
use super::progress::{Files, Listing};
use super::responses::{QueryResponse, Upload, Uploads, Version};
use super::round::{OVERLAP, Run};
use crate::archive::{AtomicFile, read_confined};
use crate::attempt::redirected_lead;
use crate::client::{Client, ClientError, FetchRequest};

/// Where files are stored, and how they are fetched.
pub struct Folder {
    /// The path of the folder, which is created if it doesn't exist.
    pub path: PathBuf,
    /// The client that fetches them.
    pub client: Client,
}

impl Run<'_> {
    /// Lists all files, or only new ones.
    pub(super) async fn list_files(&mut self, incremental: bool, now: String) -> Result<(), WikiError> {
        if self.progress.files.listing.is_none() {
            let since = self.progress.files.since.as_deref().filter(|_| incremental);
            let from = since.and_then(|since| Timestamp::parse(since).ok());
            let from = from.map(|from| (from - OVERLAP).to_string());
            self.progress.files.listing =
                Some(Listing { began: now, from, rest: None, loop_detector: LoopDetector::default() });
        }
        while let Some(listing) = self.progress.files.listing.clone() {
            self.archive.update_stage(|stage| stage.doing = "listing files");
            let mut params = vec![("generator", "allimages"), ("gailimit", "max")];
            params.extend(VERSIONS);
            if let Some(from) = &listing.from {
                params.extend([("gaisort", "timestamp"), ("gaistart", from)]);
            }
            let (api, rest) = (&self.archive.api, listing.rest.as_ref());
            let mut loop_detector = listing.loop_detector.clone();
            let response = match api.follow::<Uploads>(&params, rest, &mut loop_detector).await {
                Err(error) if self.should_restart(&error, listing.rest.as_ref()) => {
                    let listing = Some(Listing { rest: None, ..listing });
                    self.keep_files(Vec::new(), Files { listing, ..self.progress.files.clone() }).await?;
                    continue;
                }
                response => response?,
            };
            let files = versions(&response);
            let progress = match response.rest {
                Some(rest) => Files {
                    listing: Some(Listing { rest: Some(rest), loop_detector, ..listing }),
                    since: self.progress.files.since.clone(),
                },
                None => Files { listing: None, since: Some(listing.began) },
            };
            self.keep_files(files, progress).await?;
        }
        Ok(())
    }

    async fn keep_files(&mut self, files: Vec<WikiFile>, at: Files) -> Result<(), WikiError> {
        self.progress.files = at;
        self.keep(Batch { files, ..Batch::default() }).await
    }

    /// Refreshes the files with these titles; restored and moved files are not listed as new.
    pub(super) async fn refresh_files(&mut self, titles: &[String]) -> Result<(), WikiError> {
        for titles in titles.chunks(self.batch) {
            let titles = titles.join("|");
            let params = [&[("titles", &*titles)], &VERSIONS[..]].concat();
            let (mut rest, mut loop_detector) = (None, LoopDetector::default());
            loop {
                let api = &self.archive.api;
                let response: QueryResponse<Uploads> =
                    api.follow(&params, rest.as_ref(), &mut loop_detector).await?;
                let files = versions(&response);
                self.keep(Batch { files, ..Batch::default() }).await?;
                rest = response.rest;
                if rest.is_none() {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Fetches the files that are listed but not stored yet, and writes the index.
    pub(super) async fn fetch_files(&mut self, folder: &Folder) -> Result<(), WikiError> {
        let broken = |cause| WikiError::Folder { folder: folder.path.display().to_string(), cause };
        std::fs::create_dir_all(&folder.path).map_err(broken)?;
        let store = self.archive.store.clone();
        self.check_stored_files(folder).await?;
        let tally = store.tally_files(self.wiki.id).await?;
        self.archive.update_stage(|stage| {
            stage.doing = "fetching files";
            stage.files_expected = tally.files - tally.kept;
        });
        let mut after = 0;
        loop {
            let listed = store.files_to_fetch(self.wiki.id, after, 1).await?;
            let Some(listed) = listed.into_iter().next() else { break };
            after = listed.id;
            let problem = self.fetch_file(folder, &listed).await?;
            if let Some(problem) = &problem {
                tracing::warn!(file = %listed.file.title, problem, "could not archive a file");
            }
            store.settle_file(self.tenure, listed.id, problem).await?;
            self.archive.update_stage(|stage| stage.files += 1);
        }
        self.write_index(folder).await.map_err(broken)
    }

    /// Marks stored files that are missing from the folder, so that they are fetched again.
    async fn check_stored_files(&self, folder: &Folder) -> Result<(), WikiError> {
        let store = self.archive.store.clone();
        let mut after = 0;
        loop {
            let listed = store.wiki_files(self.wiki.id, after, 1_000).await?;
            let Some(last) = listed.last() else { return Ok(()) };
            after = last.id;
            for one in listed.iter().filter(|one| one.kept) {
                let Some(sum) = one.file.sha1.as_deref().filter(|sum| is_sha1(sum)) else { continue };
                let metadata = std::fs::symlink_metadata(folder.path.join(file_path(sum, &one.file.title)));
                if !metadata.is_ok_and(|metadata| metadata.len() == one.file.size) {
                    let problem = Some("missing from the folder".to_owned());
                    store.settle_file(self.tenure, one.id, problem).await?;
                }
            }
        }
    }

    /// Fetches a version of a file. Returns the problem if that fails.
    async fn fetch_file(&self, folder: &Folder, listed: &ListedFile) -> Result<Option<String>, WikiError> {
        let file = &listed.file;
        let Some(sum) = file.sha1.as_deref().filter(|sum| is_sha1(sum)) else {
            return Ok(Some("the wiki does not provide its SHA-1".to_owned()));
        };
        let name = file_path(sum, &file.title);
        let path = folder.path.join(&name);
        let broken = |cause| WikiError::Folder { folder: path.display().to_string(), cause };
        if is_stored(&folder.path, &name, sum).await.map_err(broken)? {
            return Ok(None);
        }
        let api = self.archive.api.url();
        let Some(url) = file.url.as_deref().and_then(|url| api.join(url).ok()) else {
            return Ok(Some("the wiki does not provide its URL".to_owned()));
        };
        let request = FetchRequest {
            lead: redirected_lead(api, Lead::Listed, &url),
            retries_max: folder.client.retries_max(),
            stop: self.archive.api.options().stop.clone(),
            ..FetchRequest::new(url, Lead::Remote)
        };
        let page = match folder.client.fetch(&request).await {
            Ok(page) => page,
            Err(ClientError::Stopped) => return Err(WikiError::Stopped),
            Err(ClientError::Gate(error)) => return Err(error.into()),
            Err(error) => return Ok(Some(error.to_string())),
        };
        if page.status != 200 {
            return Ok(Some(format!("{}: answered {}", crate::redact::url(&page.url), page.status)));
        }
        let found = hex(&sha1(&page.body));
        if found != *sum {
            return Ok(Some(format!("its SHA-1 is {found}, but the wiki says {sum}")));
        }
        write(&folder.path, &name, page.body).await.map_err(broken)?;
        Ok(None)
    }

    /// Writes the index: one line per file version.
    async fn write_index(&self, folder: &Folder) -> io::Result<()> {
        let name = format!("{}.jsonl", slug(&self.wiki.api));
        let mut index = AtomicFile::create_in(&folder.path, &name)?;
        let mut after = 0;
        loop {
            let listed = self.archive.store.wiki_files(self.wiki.id, after, 1_000).await;
            let listed = listed.map_err(io::Error::other)?;
            let Some(last) = listed.last() else { break };
            after = last.id;
            for one in &listed {
                writeln!(index, "{}", line(one))?;
            }
        }
        index.finish_synced()
    }
}

/// The file versions in a response. Versions without a timestamp, whose files are missing in the wiki, are skipped.
fn versions(response: &QueryResponse<Uploads>) -> Vec<WikiFile> {
    let each = |page: &Upload| page.imageinfo.iter().filter_map(|one| version_of(&page.title, one)).collect();
    response.query.pages.iter().flat_map(|page| -> Vec<WikiFile> { each(page) }).collect()
}

fn version_of(title: &str, version: &Version) -> Option<WikiFile> {
    let at = Timestamp::parse(version.timestamp.as_deref()?).ok()?;
    Some(WikiFile {
        title: title.to_owned(),
        at,
        sha1: version.sha1.clone(),
        size: version.size,
        mime: version.mime.clone().unwrap_or_default(),
        url: version.url.clone(),
        user: version.user.clone(),
        comment: version.comment.clone(),
        superseded: version.archivename.is_some(),
    })
}

fn line(listed: &ListedFile) -> String {
    let WikiFile { title, at, sha1, size, mime, url, user, comment, superseded } = &listed.file;
    let file = sha1.as_deref().filter(|sum| listed.kept && is_sha1(sum)).map(|sum| file_path(sum, title));
    json!({
        "title": title, "uploaded_at": at.to_string(), "file": file, "sha1": sha1, "bytes": size, "mime": mime,
        "url": url, "user": user, "comment": comment, "superseded": superseded, "deleted": listed.deleted,
        "problem": listed.problem,
    })
    .to_string()
}

/// The path of a file inside its folder. Only a harmless extension is taken from the title.
fn file_path(sum: &str, title: &str) -> String {
    let extension = title.rsplit_once('.').map(|(_, extension)| extension.to_ascii_lowercase());
    let is_plain = |extension: &String| {
        (1..=8).contains(&extension.len()) && extension.bytes().all(|byte| byte.is_ascii_alphanumeric())
    };
    match extension.filter(is_plain) {
        Some(extension) => format!("{}/{sum}.{extension}", &sum[..2]),
        None => format!("{}/{sum}", &sum[..2]),
    }
}

fn is_sha1(sum: &str) -> bool {
    sum.len() == 40 && sum.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// The URL of an API as a file name.
fn slug(api: &str) -> String {
    let bare = api.split_once("://").map_or(api, |(_, bare)| bare);
    bare.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' }).collect()
}

/// Whether a file with this name and SHA-1 exists.
async fn is_stored(folder: &Path, name: &str, sum: &str) -> io::Result<bool> {
    let (folder, name) = (folder.to_owned(), name.to_owned());
    let reading = tokio::task::spawn_blocking(move || read_confined(&folder, &name));
    match reading.await.map_err(io::Error::other)? {
        Ok(bytes) => Ok(hex(&sha1(&bytes)) == sum),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Writes a file atomically: it is complete or absent.
async fn write(folder: &Path, name: &str, bytes: Bytes) -> io::Result<()> {
    let (folder, name) = (folder.to_owned(), name.to_owned());
    let written = tokio::task::spawn_blocking(move || {
        let mut file = AtomicFile::create_in(&folder, &name)?;
        file.write_all(&bytes)?;
        file.finish_synced()
    });
    written.await.map_err(io::Error::other)?
}

/// Requests all versions and their fields.
const VERSIONS: [(&str, &str); 3] = [
    ("prop", "imageinfo"),
    ("iilimit", "max"),
    ("iiprop", "timestamp|user|comment|url|size|sha1|mime|archivename"),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever the titles of a wiki, files are stored inside the folder.
    #[test]
    fn file_names_are_harmless() {
        let sum = "5a660a9f9b991ef75625f7588361c22c67594fb6";
        for (title, expected) in [
            ("File:A.PNG", ".png"),
            ("File:../../etc/passwd", ""),
            ("File:x.p/../ng", ""),
            ("File:x.tar.gz", ".gz"),
            ("File:none", ""),
            ("File:x.averylongending", ""),
        ] {
            assert_eq!(file_path(sum, title), format!("5a/{sum}{expected}"), "{title}");
        }
        for wrong in
            ["", "../5a660a9f9b991ef75625f7588361c22c67594f", "5A660A9F9B991EF75625F7588361C22C67594FB6"]
        {
            assert!(!is_sha1(wrong), "{wrong}");
        }
        assert_eq!(slug("https://wiki.example/../w/api.php"), "wiki.example-..-w-api.php");
    }
}
