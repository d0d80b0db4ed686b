//! A file that is complete or absent: it is written under a temporary name and renamed at the end. If that is aborted,
//! no file is left behind. Symbolic links are not followed.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use ring::digest::{Context, SHA256};

use super::confined::ConfinedFolder;

/// A file being written. If it is dropped before it is finished, it leaves no file behind.
#[derive(Debug)]
pub struct AtomicFile {
    file: BufWriter<File>,
    folder: ConfinedFolder,
    part: OsString,
    name: OsString,
    is_moved: bool,
}

/// The result of moving a file to its final name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PutResult {
    /// The file was moved, or an identical file exists already.
    Done,
    /// A different file has this name, and is kept.
    NameTaken,
}

impl AtomicFile {
    /// Starts writing the file at `path`. Its folder must exist.
    pub fn create(path: impl AsRef<Path>) -> io::Result<Self> {
        let path = path.as_ref();
        let invalid = || io::Error::new(io::ErrorKind::InvalidInput, "expected a file name");
        let name = path.file_name().ok_or_else(invalid)?;
        Self::begin(ConfinedFolder::new(path.parent().unwrap_or(Path::new("")), &[]), name)
    }

    /// Starts writing the file at `name`, a path with `/` inside the folder `root`. Missing folders are created; links
    /// inside `root` are not followed.
    pub fn create_in(root: &Path, name: &str) -> io::Result<Self> {
        let mut folders: Vec<&str> = name.split('/').collect();
        let name = folders.pop().unwrap_or_default();
        let folder = ConfinedFolder::new(root, &folders);
        folder.create_all()?;
        Self::begin(folder, name.as_ref())
    }

    fn begin(folder: ConfinedFolder, name: &OsStr) -> io::Result<Self> {
        loop {
            // Others may write the same file at the same time: each has its own temporary file, and the last one wins.
            let nth = CREATED.fetch_add(1, Ordering::Relaxed);
            let mut part = name.to_owned();
            part.push(format!(".{}-{nth}.part", std::process::id()));
            match folder.create(&part) {
                // A killed process with the same id left it behind, or somebody put it there.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                created => {
                    let file = created?;
                    // Shows others, also in other containers, that it is being written; see `remove_abandoned`.
                    let _ = file.try_lock();
                    let (file, name) = (BufWriter::new(file), name.to_owned());
                    return Ok(Self { file, folder, part, name, is_moved: false });
                }
            }
        }
    }

    /// The path of the temporary file.
    pub fn part(&self) -> PathBuf {
        self.folder.path().join(&self.part)
    }

    /// Completes the file. It survives the end of this process, but not necessarily a power failure.
    pub fn finish(mut self) -> io::Result<()> {
        self.file.flush()?;
        self.put()
    }

    /// Completes the file and syncs it to disk.
    pub fn finish_synced(mut self) -> io::Result<()> {
        self.file.flush()?;
        self.file.get_ref().sync_all()?;
        self.put()
    }

    /// Completes the file under `name` in its folder, unless a different file has that name.
    pub(super) fn put_as(&mut self, name: &str, sha256: &[u8; 32]) -> io::Result<PutResult> {
        self.file.flush()?;
        match self.folder.rename_new(&self.part, name) {
            Ok(()) => {
                self.is_moved = true;
                Ok(PutResult::Done)
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let bytes = self.file.get_ref().metadata()?.len();
                // The temporary file is removed on drop.
                Ok(if self.is_same(name, bytes, sha256) { PutResult::Done } else { PutResult::NameTaken })
            }
            Err(error) => Err(error),
        }
    }

    /// Whether the file `name` in its folder has this content. A file that can't be read counts as different.
    fn is_same(&self, name: &str, bytes: u64, sha256: &[u8; 32]) -> bool {
        let read = || -> io::Result<bool> {
            let mut existing = self.folder.open(name)?;
            if existing.metadata()?.len() != bytes {
                return Ok(false);
            }
            let (mut hash, mut buffer) = (Context::new(&SHA256), vec![0; READ]);
            loop {
                match existing.read(&mut buffer)? {
                    0 => return Ok(hash.finish().as_ref() == sha256),
                    read => hash.update(&buffer[..read]),
                }
            }
        };
        read().unwrap_or(false)
    }

    fn put(&mut self) -> io::Result<()> {
        self.folder.rename(&self.part, &self.name)?;
        self.is_moved = true;
        Ok(())
    }
}

/// Removes temporary files that killed processes left in `folder`, a subfolder of `root`: only files with a name of
/// ours whose process is gone and that nobody has locked.
pub(super) fn remove_abandoned(root: &Path, folder: &str) {
    let folder = ConfinedFolder::new(root, &[folder]);
    let Ok(entries) = std::fs::read_dir(folder.path()) else { return };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    for name in names.filter(|name| writer_of(name).is_some_and(is_gone)) {
        if folder.open(&name).is_ok_and(|file| file.try_lock().is_ok()) {
            let _ = folder.remove(&name);
        }
    }
}

/// Whether a file with this name may be a temporary one.
pub(super) fn is_temporary(name: &str) -> bool {
    writer_of(name).is_some()
}

/// The process that a temporary file is named after.
fn writer_of(name: &str) -> Option<i32> {
    let (name, suffix) = name.strip_suffix(".part")?.rsplit_once('.')?;
    let (process, nth) = suffix.split_once('-')?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    (!name.is_empty() && is_number(process) && is_number(nth)).then(|| process.parse().ok())?
}

#[cfg(unix)]
fn is_gone(process: i32) -> bool {
    use rustix::process::{Pid, test_kill_process};
    Pid::from_raw(process).is_some_and(|pid| test_kill_process(pid) == Err(rustix::io::Errno::SRCH))
}

/// Elsewhere nobody knows.
#[cfg(not(unix))]
fn is_gone(_process: i32) -> bool {
    false
}

impl Write for AtomicFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        if !self.is_moved {
            let _ = self.folder.remove(&self.part);
        }
    }
}

/// The size of the read buffer.
const READ: usize = 64 << 10;
/// The number of files created by this process.
static CREATED: AtomicU64 = AtomicU64::new(0);

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_is_complete_or_absent() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.txt");
        let names = || {
            let mut names: Vec<_> =
                fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
            names.sort();
            names
        };
        let (mut first, mut second) =
            (AtomicFile::create(&path).unwrap(), AtomicFile::create(&path).unwrap());
        first.write_all(b"first").unwrap();
        second.write_all(b"second").unwrap();
        assert_eq!((names().len(), path.exists()), (2, false));
        first.finish_synced().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"first");
        drop(second);
        assert_eq!(names(), std::slice::from_ref(&path), "the aborted file left nothing behind");
        let third = AtomicFile::create(&path).unwrap();
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(third.finish().is_err(), "there is a folder with its name");
        assert_eq!(names(), [path]);
        assert!(AtomicFile::create("..").is_err());
    }

    #[test]
    fn only_temporary_files_of_processes_that_are_gone_are_removed() {
        let root = tempfile::tempdir().unwrap();
        let host = root.path().join("host");
        fs::create_dir(&host).unwrap();
        // No system has a process with this number.
        let (gone, alive) = (i32::MAX, std::process::id());
        let kept = [
            format!("page.html.{alive}-1.part"),
            format!("page.html.{gone}-1.part.html"),
            format!("page.{gone}.part"),
            format!(".{gone}-1.part"),
            "page.html.+7-1.part".to_owned(),
            "page.html.part".to_owned(),
            "page.html".to_owned(),
        ];
        let (left, locked) = (format!("page.html.{gone}-1.part"), format!("page.html.{gone}-2.part"));
        kept.iter().chain([&left, &locked]).for_each(|name| fs::write(host.join(name), "x").unwrap());
        let writer = fs::File::open(host.join(&locked)).unwrap();
        writer.lock().unwrap();
        remove_abandoned(root.path(), "host");
        assert!(!host.join(&left).exists());
        assert!(kept.iter().all(|name| host.join(name).exists()));
        assert!(host.join(&locked).exists(), "a process in another container writes it");
        drop(writer);
        remove_abandoned(root.path(), "host");
        assert!(!host.join(&locked).exists());
        remove_abandoned(root.path(), "nowhere");
    }

    /// A link at the final name is replaced, a link at the temporary name is avoided, and a link as a folder is
    /// refused.
    #[cfg(unix)]
    #[test]
    fn symbolic_links_are_not_followed() {
        use std::os::unix::fs::symlink;
        let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let victim = elsewhere.path().join("victim");
        fs::write(&victim, "untouched").unwrap();
        fs::create_dir(folder.path().join("host")).unwrap();
        symlink(&victim, folder.path().join("host/page")).unwrap();
        // Other tests create files at the same time, so the next number is one of these.
        let next = CREATED.load(Ordering::Relaxed);
        for nth in next..next + 1_000 {
            let part = format!("host/page.{}-{nth}.part", std::process::id());
            symlink(&victim, folder.path().join(part)).unwrap();
        }
        let mut file = AtomicFile::create_in(folder.path(), "host/page").unwrap();
        file.write_all(b"page").unwrap();
        file.finish().unwrap();
        let page = folder.path().join("host/page");
        assert!(fs::symlink_metadata(&page).unwrap().is_file());
        assert_eq!(fs::read(&page).unwrap(), b"page");
        symlink(elsewhere.path(), folder.path().join("other")).unwrap();
        assert!(AtomicFile::create_in(folder.path(), "other/page").is_err());
        assert_eq!(fs::read(&victim).unwrap(), b"untouched");
        assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 1);
    }
}
