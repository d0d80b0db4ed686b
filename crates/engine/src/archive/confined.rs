//! Access to files inside a folder that can't escape from it through symbolic links.
//!
//! The root folder itself may be a symbolic link, because the user chose it. Links inside it are never followed: each
//! subfolder is opened relative to its parent, so a link in its place is an error, no matter when it was created.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// A root folder, or a subfolder of it.
#[derive(Debug, Clone)]
pub(super) struct ConfinedFolder {
    root: PathBuf,
    /// The names of the nested subfolders.
    inner: Vec<String>,
}

impl ConfinedFolder {
    /// The folder at `inner` inside `root`.
    pub(super) fn new(root: &Path, inner: &[&str]) -> Self {
        // The parent of a bare file name is the current folder.
        let root = if root.as_os_str().is_empty() { Path::new(".") } else { root };
        Self { root: root.to_owned(), inner: inner.iter().map(|name| (*name).to_owned()).collect() }
    }

    /// The path of the folder.
    pub(super) fn path(&self) -> PathBuf {
        self.inner.iter().fold(self.root.clone(), |path, name| path.join(name))
    }
}

/// The content of the file at `name`, a path with `/` inside the folder `root`.
pub(crate) fn read_confined(root: &Path, name: &str) -> io::Result<Vec<u8>> {
    let mut folders: Vec<&str> = name.split('/').collect();
    let name = folders.pop().unwrap_or_default();
    let mut bytes = Vec::new();
    ConfinedFolder::new(root, &folders).open(name)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(unix)]
mod system {
    use rustix::fs::{
        AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, mkdirat, openat, renameat, renameat_with, statat,
        unlinkat,
    };
    use rustix::io::Errno;

    use std::fs;
    use std::os::fd::{BorrowedFd, OwnedFd};
    use std::os::unix::fs::MetadataExt;

    use super::*;

    impl ConfinedFolder {
        /// Creates the folder and all its parents.
        pub(in super::super) fn create_all(&self) -> io::Result<()> {
            self.walk(IfMissing::Create).map(drop)
        }

        /// Creates a new file for writing.
        pub(in super::super) fn create(&self, name: impl AsRef<Path>) -> io::Result<File> {
            let folder = self.walk(IfMissing::Fail)?;
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            Ok(openat(folder, name.as_ref(), flags, Mode::from_raw_mode(0o666))?.into())
        }

        /// Opens a file for reading and appending, and creates it if it doesn't exist. A file that has another name (a hard
        /// link) is an error: it would be written under that name, too, wherever that is.
        pub(in super::super) fn append(&self, name: &str) -> io::Result<File> {
            let folder = self.walk(IfMissing::Fail)?;
            // Don't block on a named pipe.
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::APPEND;
            let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let opened = openat(&folder, name, flags, Mode::from_raw_mode(0o666));
            let file = File::from(opened.map_err(|errno| explained(&folder, name, errno))?);
            let about = file.metadata()?;
            let why = match (about.is_file(), about.nlink()) {
                (true, 0 | 1) => return Ok(file),
                (true, _) => {
                    "is a hard link: the file has another name, under which it would change too; replace it with a copy, or \
                     move it away"
                }
                (false, _) => "is not a regular file; move it away",
            };
            Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{name} {why}")))
        }

        /// Opens a file for reading. Anything but a regular file is an error of the kind `NotFound`.
        pub(in super::super) fn open(&self, name: &str) -> io::Result<File> {
            let folder = self.walk(IfMissing::Fail)?;
            // Don't block on a named pipe.
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let file = match openat(folder, name, flags, Mode::empty()) {
                Err(Errno::LOOP) => return Err(io::ErrorKind::NotFound.into()),
                opened => File::from(opened?),
            };
            if file.metadata()?.is_file() { Ok(file) } else { Err(io::ErrorKind::NotFound.into()) }
        }

        /// Renames a file. A file or link with the new name is replaced.
        pub(in super::super) fn rename(
            &self,
            from: impl AsRef<Path>,
            to: impl AsRef<Path>,
        ) -> io::Result<()> {
            let folder = self.walk(IfMissing::Fail)?;
            Ok(renameat(&folder, from.as_ref(), &folder, to.as_ref())?)
        }

        /// Renames a file unless the new name is taken, which is an error of the kind `AlreadyExists`.
        pub(in super::super) fn rename_new(
            &self,
            from: impl AsRef<Path>,
            to: impl AsRef<Path>,
        ) -> io::Result<()> {
            let folder = self.walk(IfMissing::Fail)?;
            let (from, to) = (from.as_ref(), to.as_ref());
            match renameat_with(&folder, from, &folder, to, RenameFlags::NOREPLACE) {
                // Not every file system supports this; then check first.
                Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {
                    match statat(&folder, to, AtFlags::SYMLINK_NOFOLLOW) {
                        Ok(_) => Err(io::ErrorKind::AlreadyExists.into()),
                        Err(Errno::NOENT) => Ok(renameat(&folder, from, &folder, to)?),
                        Err(errno) => Err(errno.into()),
                    }
                }
                renamed => Ok(renamed?),
            }
        }

        pub(in super::super) fn remove(&self, name: impl AsRef<Path>) -> io::Result<()> {
            Ok(unlinkat(self.walk(IfMissing::Fail)?, name.as_ref(), AtFlags::empty())?)
        }

        fn walk(&self, if_missing: IfMissing) -> io::Result<OwnedFd> {
            if if_missing == IfMissing::Create {
                fs::create_dir_all(&self.root)?;
            }
            let mut folder = openat(CWD, &self.root, FOLDER, Mode::empty())?;
            for name in &self.inner {
                if if_missing == IfMissing::Create {
                    match mkdirat(&folder, name, Mode::from_raw_mode(0o777)) {
                        Ok(()) | Err(Errno::EXIST) => {}
                        Err(errno) => return Err(errno.into()),
                    }
                }
                let next = openat(&folder, name, FOLDER | OFlags::NOFOLLOW, Mode::empty());
                folder = next.map_err(|errno| explained(&folder, name, errno))?;
            }
            Ok(folder)
        }
    }

    /// What to do about a missing folder.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum IfMissing {
        Create,
        Fail,
    }

    /// Explains the error if it is due to a link or to a file in place of a folder, because the errors of operating systems
    /// differ and are hard to understand.
    fn explained(folder: impl std::os::fd::AsFd, name: &str, errno: Errno) -> io::Error {
        let folder: BorrowedFd<'_> = folder.as_fd();
        let found = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW);
        match (found.map(|found| FileType::from_raw_mode(found.st_mode)), errno) {
            (Ok(FileType::Symlink), _) => io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{name} is a symbolic link; links inside the output folder are not followed"),
            ),
            (Ok(_), Errno::NOTDIR) => io::Error::new(
                io::ErrorKind::NotADirectory,
                format!("{name} is in the way: it isn't a folder; move it away"),
            ),
            _ => errno.into(),
        }
    }

    /// Folders on the way don't have to be readable.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    const FOLDER: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
}

/// Other systems, where creating links needs a special privilege.
#[cfg(not(unix))]
mod system {
    use std::fs::{self, OpenOptions};

    use super::*;

    impl ConfinedFolder {
        pub(in super::super) fn create_all(&self) -> io::Result<()> {
            fs::create_dir_all(self.path())
        }

        pub(in super::super) fn create(&self, name: impl AsRef<Path>) -> io::Result<File> {
            OpenOptions::new().write(true).create_new(true).open(self.path().join(name))
        }

        pub(in super::super) fn append(&self, name: &str) -> io::Result<File> {
            OpenOptions::new().create(true).read(true).append(true).open(self.path().join(name))
        }

        pub(in super::super) fn open(&self, name: &str) -> io::Result<File> {
            File::open(self.path().join(name))
        }

        pub(in super::super) fn rename(
            &self,
            from: impl AsRef<Path>,
            to: impl AsRef<Path>,
        ) -> io::Result<()> {
            fs::rename(self.path().join(from), self.path().join(to))
        }

        pub(in super::super) fn rename_new(
            &self,
            from: impl AsRef<Path>,
            to: impl AsRef<Path>,
        ) -> io::Result<()> {
            let to = self.path().join(to);
            if fs::symlink_metadata(&to).is_ok() {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            fs::rename(self.path().join(from), to)
        }

        pub(in super::super) fn remove(&self, name: impl AsRef<Path>) -> io::Result<()> {
            fs::remove_file(self.path().join(name))
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::fs;
    use std::io::Write;
    use std::os::unix::fs::symlink;

    use super::*;

    /// Nothing is created, written, moved or removed through a link inside the folder.
    #[test]
    fn links_cannot_be_used_to_escape() {
        let (inside, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(outside.path().join("kept"), "kept").unwrap();
        let named = inside.path().join("named");
        fs::create_dir(inside.path().join("real")).unwrap();
        symlink(inside.path().join("real"), &named).unwrap();
        symlink(outside.path(), named.join("host")).unwrap();
        for inner in [&["host"][..], &["host", "deeper"], &["..", "real", "host"]] {
            let confined = ConfinedFolder::new(&named, inner);
            assert!(confined.create_all().is_err(), "{inner:?}");
            assert!(confined.create("new").is_err() && confined.append("kept").is_err(), "{inner:?}");
            assert!(
                confined.rename("kept", "moved").is_err() && confined.remove("kept").is_err(),
                "{inner:?}"
            );
            assert!(confined.open("kept").is_err(), "{inner:?}");
        }
        let confined = ConfinedFolder::new(&named, &[]);
        symlink(outside.path().join("kept"), named.join("file")).unwrap();
        symlink(outside.path().join("made"), named.join("dangling")).unwrap();
        for name in ["file", "dangling"] {
            assert!(confined.create(name).is_err() && confined.append(name).is_err(), "{name}");
            assert!(confined.open(name).is_err(), "{name}");
        }
        let error = confined.append("file").unwrap_err().to_string();
        assert!(error.starts_with("file is a symbolic link"), "{error}");
        let names: Vec<_> =
            fs::read_dir(outside.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["kept"]);
        assert_eq!(fs::read(outside.path().join("kept")).unwrap(), b"kept");
    }

    /// A file with two names used to be written under both.
    #[test]
    fn nothing_is_appended_to_a_file_with_another_name() {
        let (inside, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(outside.path().join("victim"), "kept").unwrap();
        fs::hard_link(outside.path().join("victim"), inside.path().join("file")).unwrap();
        let confined = ConfinedFolder::new(inside.path(), &[]);
        let error = confined.append("file").unwrap_err().to_string();
        assert!(error.starts_with("file is a hard link"), "{error}");
        assert_eq!(fs::read(outside.path().join("victim")).unwrap(), b"kept");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            inside.path().join("pipe"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        let error = confined.append("pipe").unwrap_err().to_string();
        assert!(error.starts_with("pipe is not a regular file"), "{error}");
    }

    #[test]
    fn regular_files_work() {
        let folder = tempfile::tempdir().unwrap();
        let confined = ConfinedFolder::new(&folder.path().join("a/b"), &["c", "d"]);
        assert!(confined.create("one").is_err(), "the folder does not exist yet");
        confined.create_all().unwrap();
        confined.create_all().unwrap();
        assert_eq!(confined.path(), folder.path().join("a/b/c/d"));
        confined.create("one").unwrap().write_all(b"1").unwrap();
        assert_eq!(confined.create("one").unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        confined.rename("one", "two").unwrap();
        confined.append("two").unwrap().write_all(b"2").unwrap();
        let mut text = String::new();
        confined.open("two").unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "12");
        confined.remove("two").unwrap();
        assert_eq!(confined.open("two").unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
