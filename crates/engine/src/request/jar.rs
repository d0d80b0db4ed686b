//! Stores the cookies that servers set in a file that only its owner can read. Several processes may share a jar: each
//! merges its own changes into the file.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use comity_core::time::Timestamp;
use http::HeaderMap;
use http::header::SET_COOKIE;
use url::Url;

use super::cookie::{Cookie, Key};
use super::netscape;
use crate::lock;

/// A cookie jar.
pub(crate) struct Jar {
    path: PathBuf,
    state: Mutex<JarState>,
}

#[derive(Default)]
struct JarState {
    cookies: BTreeMap<Key, Cookie>,
    /// What changed since the file was last written; `None` was removed.
    changes: BTreeMap<Key, Option<Cookie>>,
}

impl Jar {
    /// Opens a jar. A missing file counts as empty, and is created with the first cookie.
    pub(crate) fn open(path: &Path) -> Result<Self, String> {
        let cookies = read(path)?;
        // What a site sets after a login must not be lost at the end.
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if !folder.is_dir() {
            return Err(format!("expected a file in a folder that exists, not in {}", folder.display()));
        }
        match OpenOptions::new().append(true).open(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(format!("{error}")),
            _ => {}
        }
        Ok(Self { path: path.to_owned(), state: Mutex::new(JarState { cookies, ..JarState::default() }) })
    }

    /// The cookies for `url`, those with the longest path first.
    pub(crate) fn cookies(&self, url: &Url, now: Timestamp) -> Vec<(String, String)> {
        let state = lock(&self.state);
        let mut found: Vec<&Cookie> =
            state.cookies.values().filter(|cookie| cookie.matches(url, now)).collect();
        found.sort_by_key(|cookie| std::cmp::Reverse(cookie.path.len()));
        found.into_iter().map(|cookie| (cookie.name.clone(), cookie.value.clone())).collect()
    }

    /// Takes the cookies that a response from `url` sets, and returns whether anything changed.
    pub(crate) fn update(&self, url: &Url, headers: &HeaderMap, now: Timestamp) -> bool {
        let lines = headers.get_all(SET_COOKIE).iter().filter_map(|line| line.to_str().ok());
        let set: Vec<Cookie> =
            lines.take(PER_RESPONSE_MAX).filter_map(|line| Cookie::read(line, url, now)).collect();
        if set.is_empty() {
            return false;
        }
        let mut state = lock(&self.state);
        for cookie in set {
            let change = (!cookie.is_expired(now)).then_some(cookie.clone());
            state.change(cookie.key(), change);
        }
        state.limit(now);
        !state.changes.is_empty()
    }

    /// Merges the changes into the file. If that fails, it is retried with the next change.
    pub(crate) fn save(&self) -> io::Result<()> {
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        // Other processes write it too, so only one at a time may. The folder is locked, because the file is replaced.
        let guard = File::open(folder.unwrap_or(Path::new(".")))?;
        guard.lock()?;
        let mut state = lock(&self.state);
        let mut cookies = read(&self.path).map_err(io::Error::other)?;
        for (key, change) in &state.changes {
            match change {
                Some(cookie) => _ = cookies.insert(key.clone(), cookie.clone()),
                None => _ = cookies.remove(key),
            }
        }
        replace(&self.path, &netscape::write(cookies.values()))?;
        *state = JarState { cookies, ..JarState::default() };
        Ok(())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl JarState {
    fn change(&mut self, key: Key, cookie: Option<Cookie>) {
        if self.cookies.get(&key) == cookie.as_ref() {
            return;
        }
        match &cookie {
            Some(cookie) => _ = self.cookies.insert(key.clone(), cookie.clone()),
            None => _ = self.cookies.remove(&key),
        }
        self.changes.insert(key, cookie);
    }

    /// Limits the number of cookies, so that a server can't fill the memory: removes expired ones first, then the first
    /// by name.
    fn limit(&mut self, now: Timestamp) {
        while self.cookies.len() > COOKIES_MAX {
            let expired =
                self.cookies.iter().find(|(_, cookie)| cookie.is_expired(now)).map(|(key, _)| key.clone());
            let Some(key) = expired.or_else(|| self.cookies.keys().next().cloned()) else { return };
            self.change(key, None);
        }
    }
}

fn read(path: &Path) -> Result<BTreeMap<Key, Cookie>, String> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(netscape::read(&text)?.into_iter().map(|cookie| (cookie.key(), cookie)).collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(BTreeMap::new()),
        Err(error) => Err(format!("cannot be read: {error}")),
    }
}

/// Replaces the file by one that only its owner can read.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let draft = path.with_file_name(format!(".{name}.{}.new", std::process::id()));
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(&draft)?;
    file.write_all(text.as_bytes())?;
    file.sync_data()?;
    std::fs::rename(&draft, path)
}

/// How many cookies one response may set, as in browsers.
const PER_RESPONSE_MAX: usize = 50;
/// How many cookies a jar may contain, as in browsers.
const COOKIES_MAX: usize = 3_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn set(jar: &Jar, url: &str, line: &str) {
        let mut headers = HeaderMap::new();
        headers.insert(SET_COOKIE, line.parse().unwrap());
        jar.update(&Url::parse(url).unwrap(), &headers, Timestamp::from_secs(1_000));
        jar.save().unwrap();
    }

    fn cookies(jar: &Jar, url: &str) -> Vec<(String, String)> {
        jar.cookies(&Url::parse(url).unwrap(), Timestamp::from_secs(1_000))
    }

    #[test]
    fn a_jar_is_private_and_can_be_shared_by_processes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("jar");
        let (one, other) = (Jar::open(&path).unwrap(), Jar::open(&path).unwrap());
        set(&one, "https://a.example/", "one=1");
        set(&other, "https://a.example/", "other=2");
        set(&one, "https://a.example/", "one=3");
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        }
        let again = Jar::open(&path).unwrap();
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(cookies(&again, "https://a.example/"), [pair("one", "3"), pair("other", "2")]);
        assert_eq!(cookies(&again, "https://b.example/"), []);
        set(&again, "https://a.example/", "one=; Max-Age=0");
        assert_eq!(cookies(&Jar::open(&path).unwrap(), "https://a.example/"), [pair("other", "2")]);
    }

    #[test]
    fn a_site_cannot_fill_the_jar() {
        let folder = tempfile::tempdir().unwrap();
        let jar = Jar::open(&folder.path().join("jar")).unwrap();
        let url = Url::parse("https://a.example/").unwrap();
        for nth in 0..100 {
            let mut headers = HeaderMap::new();
            for more in 0..60 {
                headers.append(SET_COOKIE, format!("n{nth}-{more}=v").parse().unwrap());
            }
            jar.update(&url, &headers, Timestamp::from_secs(0));
        }
        assert_eq!(jar.cookies(&url, Timestamp::from_secs(0)).len(), COOKIES_MAX);
    }
}
