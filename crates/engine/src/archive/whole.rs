//! A file that is whole or not there: written beside its place, and moved there at the end. Whoever gives up on the
//! way leaves nothing behind, and no link that lies in the way is followed.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use ring::digest::{Context, SHA256};

use super::below::Below;

/// A file that is being written. Dropped unfinished, it leaves nothing behind.
#[derive(Debug)]
pub struct WholeFile {
    file: BufWriter<File>,
    folder: Below,
    part: OsString,
    name: OsString,
    is_moved: bool,
}

/// What became of putting a file in its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Put {
    /// It is there, or one with the same bytes was.
    There,
    /// Another file is there, and stays.
    Taken,
}

impl WholeFile {
    /// Begins a file that is to be at `path`, in a folder that is there.
    pub fn create(path: impl AsRef<Path>) -> io::Result<Self> {
        let path = path.as_ref();
        let wrong = || io::Error::new(io::ErrorKind::InvalidInput, "expected the name of a file");
        let name = path.file_name().ok_or_else(wrong)?;
        Self::begin(Below::new(path.parent().unwrap_or(Path::new("")), &[]), name)
    }

    /// Begins a file that is to be at `name`, which has `/` between its parts, below the folder `root`. Folders that are
    /// not there are made; links below `root` are not followed.
    pub fn create_below(root: &Path, name: &str) -> io::Result<Self> {
        let mut way: Vec<&str> = name.split('/').collect();
        let name = way.pop().unwrap_or_default();
        let folder = Below::new(root, &way);
        folder.make()?;
        Self::begin(folder, name.as_ref())
    }

    fn begin(folder: Below, name: &OsStr) -> io::Result<Self> {
        loop {
            // Others may write to the same place at once: each writes beside it, and the last one stays.
            let nth = BEGUN.fetch_add(1, Ordering::Relaxed);
            let mut part = name.to_owned();
            part.push(format!(".{}-{nth}.part", std::process::id()));
            match folder.create(&part) {
                // Somebody with our number was killed here, or put it in our way.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                created => {
                    let (file, name) = (BufWriter::new(created?), name.to_owned());
                    return Ok(Self { file, folder, part, name, is_moved: false });
                }
            }
        }
    }

    /// Where it is until it is whole.
    pub fn part(&self) -> PathBuf {
        self.folder.path().join(&self.part)
    }

    /// It is whole. It survives the end of this process, but perhaps not a power cut.
    pub fn finish(mut self) -> io::Result<()> {
        self.file.flush()?;
        self.put()
    }

    /// It is whole, and on the disk.
    pub fn finish_synced(mut self) -> io::Result<()> {
        self.file.flush()?;
        self.file.get_ref().sync_all()?;
        self.put()
    }

    /// It is whole, and put at `name` in its folder unless another file is there.
    pub(super) fn put_as(&mut self, name: &str, sha256: &[u8; 32]) -> io::Result<Put> {
        self.file.flush()?;
        match self.folder.rename_new(&self.part, name) {
            Ok(()) => {
                self.is_moved = true;
                Ok(Put::There)
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let bytes = self.file.get_ref().metadata()?.len();
                // What was begun is removed when this is dropped.
                Ok(if self.is_same(name, bytes, sha256) { Put::There } else { Put::Taken })
            }
            Err(error) => Err(error),
        }
    }

    /// Whether the file at `name` in its folder has these bytes. One that cannot be read has others.
    fn is_same(&self, name: &str, bytes: u64, sha256: &[u8; 32]) -> bool {
        let read = || -> io::Result<bool> {
            let mut there = self.folder.open(name)?;
            if there.metadata()?.len() != bytes {
                return Ok(false);
            }
            let (mut hash, mut buffer) = (Context::new(&SHA256), vec![0; READ]);
            loop {
                match there.read(&mut buffer)? {
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

impl Write for WholeFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for WholeFile {
    fn drop(&mut self) {
        if !self.is_moved {
            let _ = self.folder.remove(&self.part);
        }
    }
}

/// Bytes of a file that are compared at once.
const READ: usize = 64 << 10;
/// Files begun by this process.
static BEGUN: AtomicU64 = AtomicU64::new(0);

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_is_whole_or_not_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.txt");
        let names = || {
            let mut names: Vec<_> =
                fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
            names.sort();
            names
        };
        let (mut first, mut second) = (WholeFile::create(&path).unwrap(), WholeFile::create(&path).unwrap());
        first.write_all(b"first").unwrap();
        second.write_all(b"second").unwrap();
        assert_eq!((names().len(), path.exists()), (2, false));
        first.finish_synced().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"first");
        drop(second);
        assert_eq!(names(), std::slice::from_ref(&path), "whoever gave up left nothing behind");
        let third = WholeFile::create(&path).unwrap();
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(third.finish().is_err(), "a folder is in its place");
        assert_eq!(names(), [path]);
        assert!(WholeFile::create("..").is_err());
    }

    /// A link in its place is replaced, one at its temporary name avoided, and one on the way refused.
    #[cfg(unix)]
    #[test]
    fn links_in_its_way_are_not_followed() {
        use std::os::unix::fs::symlink;
        let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let victim = elsewhere.path().join("victim");
        fs::write(&victim, "untouched").unwrap();
        fs::create_dir(folder.path().join("host")).unwrap();
        symlink(&victim, folder.path().join("host/page")).unwrap();
        // Others write files at the same time: some of these are theirs, the next of ours is among the rest.
        let next = BEGUN.load(Ordering::Relaxed);
        for nth in next..next + 1_000 {
            let part = format!("host/page.{}-{nth}.part", std::process::id());
            symlink(&victim, folder.path().join(part)).unwrap();
        }
        let mut file = WholeFile::create_below(folder.path(), "host/page").unwrap();
        file.write_all(b"page").unwrap();
        file.finish().unwrap();
        let page = folder.path().join("host/page");
        assert!(fs::symlink_metadata(&page).unwrap().is_file());
        assert_eq!(fs::read(&page).unwrap(), b"page");
        symlink(elsewhere.path(), folder.path().join("other")).unwrap();
        assert!(WholeFile::create_below(folder.path(), "other/page").is_err());
        assert_eq!(fs::read(&victim).unwrap(), b"untouched");
        assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 1);
    }
}
