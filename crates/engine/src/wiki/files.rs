//! The files that were uploaded to a wiki: every version that it shows, known by its SHA-1.
//!
//! They are listed like pages, and then fetched one after the other at the pace of the host they are on. A file is
//! written under another name, checked, flushed and renamed before it counts as kept: whatever happens, what lies there
//! is whole. What has the same SHA-1 lies there once.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use comity_core::time::Timestamp;
use comity_store::tasks::Lead;
use comity_store::wiki::{Batch, ListedFile, WikiFile};
use serde_json::json;

use super::answers::{Answered, Upload, Uploads, Version};
use super::content::{hex, sha1};
use super::error::WikiError;
use super::progress::{Files, Listing};
use super::round::{OVERLAP, Run};
use super::trail::Trail;
use crate::archive::{WholeFile, read_below};
use crate::attempt::redirected_lead;
use crate::client::{Ask, Client, ClientError};

/// Where files are kept, and how they are fetched.
pub struct Folder {
    /// The folder; it is made when it is not there.
    pub path: PathBuf,
    /// Who fetches them.
    pub client: Client,
}

impl Run<'_> {
    /// Lists the files, or those that are new.
    pub(super) async fn list_files(&mut self, incremental: bool, now: String) -> Result<(), WikiError> {
        if self.progress.files.listing.is_none() {
            let since = self.progress.files.since.as_deref().filter(|_| incremental);
            let from = since.and_then(|since| Timestamp::parse(since).ok());
            let from = from.map(|from| (from - OVERLAP).to_string());
            self.progress.files.listing =
                Some(Listing { began: now, from, rest: None, trail: Trail::default() });
        }
        while let Some(listing) = self.progress.files.listing.clone() {
            self.archive.tell(|stage| stage.doing = "listing files");
            let mut params = vec![("generator", "allimages"), ("gailimit", "max")];
            params.extend(VERSIONS);
            if let Some(from) = &listing.from {
                params.extend([("gaisort", "timestamp"), ("gaistart", from)]);
            }
            let (api, rest) = (&self.archive.api, listing.rest.as_ref());
            let mut trail = listing.trail.clone();
            let answered = match api.follow::<Uploads>(&params, rest, &mut trail).await {
                Err(error) if self.begins_anew(&error, listing.rest.as_ref()) => {
                    let listing = Some(Listing { rest: None, ..listing });
                    self.keep_files(Vec::new(), Files { listing, ..self.progress.files.clone() }).await?;
                    continue;
                }
                answered => answered?,
            };
            let files = versions(&answered);
            let progress = match answered.rest {
                Some(rest) => Files {
                    listing: Some(Listing { rest: Some(rest), trail, ..listing }),
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

    /// Files at these titles as they are now; those that came back or moved are not listed as new.
    pub(super) async fn look_at_files(&mut self, titles: &[String]) -> Result<(), WikiError> {
        for titles in titles.chunks(self.batch) {
            let titles = titles.join("|");
            let params = [&[("titles", &*titles)], &VERSIONS[..]].concat();
            let (mut rest, mut trail) = (None, Trail::default());
            loop {
                let api = &self.archive.api;
                let answered: Answered<Uploads> = api.follow(&params, rest.as_ref(), &mut trail).await?;
                let files = versions(&answered);
                self.keep(Batch { files, ..Batch::default() }).await?;
                rest = answered.rest;
                if rest.is_none() {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Fetches what is listed and not there, and writes down what there is.
    pub(super) async fn fetch_files(&mut self, folder: &Folder) -> Result<(), WikiError> {
        let broken = |cause| WikiError::Folder { folder: folder.path.display().to_string(), cause };
        std::fs::create_dir_all(&folder.path).map_err(broken)?;
        let store = self.archive.store.clone();
        self.look_after_files(folder).await?;
        let tally = store.tally_files(self.wiki.id).await?;
        self.archive.tell(|stage| {
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
                tracing::warn!(file = %listed.file.title, problem, "a file was not kept");
            }
            store.settle_file(self.hold, listed.id, problem).await?;
            self.archive.tell(|stage| stage.files += 1);
        }
        self.write_index(folder).await.map_err(broken)
    }

    /// What was kept and is not there any more, or in another folder, is fetched again.
    async fn look_after_files(&self, folder: &Folder) -> Result<(), WikiError> {
        let store = self.archive.store.clone();
        let mut after = 0;
        loop {
            let listed = store.wiki_files(self.wiki.id, after, 1_000).await?;
            let Some(last) = listed.last() else { return Ok(()) };
            after = last.id;
            for one in listed.iter().filter(|one| one.kept) {
                let Some(sum) = one.file.sha1.as_deref().filter(|sum| is_sha1(sum)) else { continue };
                let there = std::fs::symlink_metadata(folder.path.join(place(sum, &one.file.title)));
                if !there.is_ok_and(|there| there.len() == one.file.size) {
                    let problem = Some("it is not there".to_owned());
                    store.settle_file(self.hold, one.id, problem).await?;
                }
            }
        }
    }

    /// Fetches a version of a file; what is wrong with it otherwise.
    async fn fetch_file(&self, folder: &Folder, listed: &ListedFile) -> Result<Option<String>, WikiError> {
        let file = &listed.file;
        let Some(sum) = file.sha1.as_deref().filter(|sum| is_sha1(sum)) else {
            return Ok(Some("the wiki does not tell its SHA-1".to_owned()));
        };
        let name = place(sum, &file.title);
        let path = folder.path.join(&name);
        let broken = |cause| WikiError::Folder { folder: path.display().to_string(), cause };
        if is_there(&folder.path, &name, sum).await.map_err(broken)? {
            return Ok(None);
        }
        let api = self.archive.api.url();
        let Some(url) = file.url.as_deref().and_then(|url| api.join(url).ok()) else {
            return Ok(Some("the wiki does not tell where it is".to_owned()));
        };
        let ask = Ask {
            lead: redirected_lead(api, Lead::Listed, &url),
            retries_max: folder.client.retries_max(),
            stop: self.archive.api.options().stop.clone(),
            ..Ask::new(url, Lead::Remote)
        };
        let page = match folder.client.ask(&ask).await {
            Ok(page) => page,
            Err(ClientError::Stopped) => return Err(WikiError::Stopped),
            Err(ClientError::Gate(error)) => return Err(error.into()),
            Err(error) => return Ok(Some(error.to_string())),
        };
        if page.status != 200 {
            return Ok(Some(format!("{}: answered {}", crate::shown::url(&page.url), page.status)));
        }
        let found = hex(&sha1(&page.body));
        if found != *sum {
            return Ok(Some(format!("its SHA-1 is {found}, and the wiki says {sum}")));
        }
        write(&folder.path, &name, page.body).await.map_err(broken)?;
        Ok(None)
    }

    /// What there is, a line each, beside the files.
    async fn write_index(&self, folder: &Folder) -> io::Result<()> {
        let name = format!("{}.jsonl", slug(&self.wiki.api));
        let mut index = WholeFile::create_below(&folder.path, &name)?;
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

/// The versions of an answer. A wiki may know of some that are not there: they have no time.
fn versions(answered: &Answered<Uploads>) -> Vec<WikiFile> {
    let each =
        |page: &Upload| page.imageinfo.iter().filter_map(|said| version_of(&page.title, said)).collect();
    answered.query.pages.iter().flat_map(|page| -> Vec<WikiFile> { each(page) }).collect()
}

fn version_of(title: &str, said: &Version) -> Option<WikiFile> {
    let at = Timestamp::parse(said.timestamp.as_deref()?).ok()?;
    Some(WikiFile {
        title: title.to_owned(),
        at,
        sha1: said.sha1.clone(),
        size: said.size,
        mime: said.mime.clone().unwrap_or_default(),
        url: said.url.clone(),
        user: said.user.clone(),
        comment: said.comment.clone(),
        superseded: said.archivename.is_some(),
    })
}

fn line(listed: &ListedFile) -> String {
    let WikiFile { title, at, sha1, size, mime, url, user, comment, superseded } = &listed.file;
    let file = sha1.as_deref().filter(|sum| listed.kept && is_sha1(sum)).map(|sum| place(sum, title));
    json!({
        "title": title, "uploaded_at": at.to_string(), "file": file, "sha1": sha1, "bytes": size, "mime": mime,
        "url": url, "user": user, "comment": comment, "superseded": superseded, "deleted": listed.deleted,
        "problem": listed.problem,
    })
    .to_string()
}

/// Where a file lies in its folder. Nothing of it comes from the wiki but what is harmless.
fn place(sum: &str, title: &str) -> String {
    let ending = title.rsplit_once('.').map(|(_, ending)| ending.to_ascii_lowercase());
    let is_plain = |ending: &String| {
        (1..=8).contains(&ending.len()) && ending.bytes().all(|byte| byte.is_ascii_alphanumeric())
    };
    match ending.filter(is_plain) {
        Some(ending) => format!("{}/{sum}.{ending}", &sum[..2]),
        None => format!("{}/{sum}", &sum[..2]),
    }
}

fn is_sha1(sum: &str) -> bool {
    sum.len() == 40 && sum.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// An address as a name of a file.
fn slug(api: &str) -> String {
    let bare = api.split_once("://").map_or(api, |(_, bare)| bare);
    bare.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' }).collect()
}

/// Whether a file with this content lies there.
async fn is_there(folder: &Path, name: &str, sum: &str) -> io::Result<bool> {
    let (folder, name) = (folder.to_owned(), name.to_owned());
    let reading = tokio::task::spawn_blocking(move || read_below(&folder, &name));
    match reading.await.map_err(io::Error::other)? {
        Ok(bytes) => Ok(hex(&sha1(&bytes)) == sum),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Writes a file so that it is whole or not there.
async fn write(folder: &Path, name: &str, bytes: Bytes) -> io::Result<()> {
    let (folder, name) = (folder.to_owned(), name.to_owned());
    let written = tokio::task::spawn_blocking(move || {
        let mut file = WholeFile::create_below(&folder, &name)?;
        file.write_all(&bytes)?;
        file.finish_synced()
    });
    written.await.map_err(io::Error::other)?
}

/// Every version, and what is asked of it.
const VERSIONS: [(&str, &str); 3] = [
    ("prop", "imageinfo"),
    ("iilimit", "max"),
    ("iiprop", "timestamp|user|comment|url|size|sha1|mime|archivename"),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever a wiki calls its files, they lie where they should.
    #[test]
    fn names_of_files_are_harmless() {
        let sum = "5a660a9f9b991ef75625f7588361c22c67594fb6";
        for (title, expected) in [
            ("File:A.PNG", ".png"),
            ("File:../../etc/passwd", ""),
            ("File:x.p/../ng", ""),
            ("File:x.tar.gz", ".gz"),
            ("File:none", ""),
            ("File:x.averylongending", ""),
        ] {
            assert_eq!(place(sum, title), format!("5a/{sum}{expected}"), "{title}");
        }
        for wrong in
            ["", "../5a660a9f9b991ef75625f7588361c22c67594f", "5A660A9F9B991EF75625F7588361C22C67594FB6"]
        {
            assert!(!is_sha1(wrong), "{wrong}");
        }
        assert_eq!(slug("https://wiki.example/../w/api.php"), "wiki.example-..-w-api.php");
    }
}
