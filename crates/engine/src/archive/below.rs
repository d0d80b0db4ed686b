//! Files below a folder that somebody named, and nowhere else.
//!
//! The folder itself may be a symbolic link: whoever named it meant where it leads. Links that lie in it are never
//! followed: each folder below it is opened from the one above, so that a link in its place is an error and not a way
//! out, whenever it was put there.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// A folder, by the one that was named and the way from there.
#[derive(Debug, Clone)]
pub(super) struct Below {
    root: PathBuf,
    /// Plain names.
    inner: Vec<String>,
}

impl Below {
    /// The folder that was named, and folders below it.
    pub(super) fn new(root: &Path, inner: &[&str]) -> Self {
        // The folder of a bare name is the current one.
        let root = if root.as_os_str().is_empty() { Path::new(".") } else { root };
        Self { root: root.to_owned(), inner: inner.iter().map(|name| (*name).to_owned()).collect() }
    }

    /// Where it is.
    pub(super) fn path(&self) -> PathBuf {
        self.inner.iter().fold(self.root.clone(), |path, name| path.join(name))
    }
}

/// The bytes of the file at `name`, which has `/` between its parts, below the folder `root`.
pub(crate) fn read_below(root: &Path, name: &str) -> io::Result<Vec<u8>> {
    let mut way: Vec<&str> = name.split('/').collect();
    let name = way.pop().unwrap_or_default();
    let mut bytes = Vec::new();
    Below::new(root, &way).open(name)?.read_to_end(&mut bytes)?;
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

    use super::*;

    impl Below {
        /// Makes it, with all folders that lead there.
        pub(in super::super) fn make(&self) -> io::Result<()> {
            self.walk(Missing::IsMade).map(drop)
        }

        /// A new file in it, to be written.
        pub(in super::super) fn create(&self, name: impl AsRef<Path>) -> io::Result<File> {
            let folder = self.walk(Missing::IsAnError)?;
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            Ok(openat(folder, name.as_ref(), flags, Mode::from_raw_mode(0o666))?.into())
        }

        /// A file in it, to be read and added to; it is made when it is not there.
        pub(in super::super) fn append(&self, name: &str) -> io::Result<File> {
            let folder = self.walk(Missing::IsAnError)?;
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let opened = openat(&folder, name, flags, Mode::from_raw_mode(0o666));
            Ok(opened.map_err(|errno| explained(&folder, name, errno))?.into())
        }

        /// A file in it, to be read. What is no plain file is not there.
        pub(in super::super) fn open(&self, name: &str) -> io::Result<File> {
            let folder = self.walk(Missing::IsAnError)?;
            // Nobody waits for the other end of a pipe.
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let file = match openat(folder, name, flags, Mode::empty()) {
                Err(Errno::LOOP) => return Err(io::ErrorKind::NotFound.into()),
                opened => File::from(opened?),
            };
            if file.metadata()?.is_file() { Ok(file) } else { Err(io::ErrorKind::NotFound.into()) }
        }

        /// Gives a file in it another name. A link of that name is replaced.
        pub(in super::super) fn rename(
            &self,
            from: impl AsRef<Path>,
            to: impl AsRef<Path>,
        ) -> io::Result<()> {
            let folder = self.walk(Missing::IsAnError)?;
            Ok(renameat(&folder, from.as_ref(), &folder, to.as_ref())?)
        }

        /// Gives a file in it a name that nothing has; an error of the kind `AlreadyExists` if something does.
        pub(in super::super) fn rename_new(
            &self,
            from: impl AsRef<Path>,
            to: impl AsRef<Path>,
        ) -> io::Result<()> {
            let folder = self.walk(Missing::IsAnError)?;
            let (from, to) = (from.as_ref(), to.as_ref());
            match renameat_with(&folder, from, &folder, to, RenameFlags::NOREPLACE) {
                // Not every file system knows that: there it is looked first.
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
            Ok(unlinkat(self.walk(Missing::IsAnError)?, name.as_ref(), AtFlags::empty())?)
        }

        fn walk(&self, missing: Missing) -> io::Result<OwnedFd> {
            if missing == Missing::IsMade {
                fs::create_dir_all(&self.root)?;
            }
            let mut folder = openat(CWD, &self.root, FOLDER, Mode::empty())?;
            for name in &self.inner {
                if missing == Missing::IsMade {
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

    /// What becomes of a folder that is not there.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Missing {
        IsMade,
        IsAnError,
    }

    /// What the system says about a link depends on the system; here it is said what is wrong.
    fn explained(folder: impl std::os::fd::AsFd, name: &str, errno: Errno) -> io::Error {
        let folder: BorrowedFd<'_> = folder.as_fd();
        let is_link = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)
            .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink);
        match is_link {
            true => io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{name} is a symbolic link; links below the output folder are not followed"),
            ),
            false => errno.into(),
        }
    }

    /// A folder that only leads to others need not be readable.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    const FOLDER: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
}

/// Where links need a privilege that nobody has by accident.
#[cfg(not(unix))]
mod system {
    use std::fs::{self, OpenOptions};

    use super::*;

    impl Below {
        pub(in super::super) fn make(&self) -> io::Result<()> {
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

    /// Wherever a link lies below the folder, nothing is made, written, moved or removed beyond it.
    #[test]
    fn no_link_leads_out() {
        let (inside, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(outside.path().join("kept"), "kept").unwrap();
        let named = inside.path().join("named");
        fs::create_dir(inside.path().join("real")).unwrap();
        symlink(inside.path().join("real"), &named).unwrap();
        symlink(outside.path(), named.join("host")).unwrap();
        for way in [&["host"][..], &["host", "deeper"], &["..", "real", "host"]] {
            let below = Below::new(&named, way);
            assert!(below.make().is_err(), "{way:?}");
            assert!(below.create("new").is_err() && below.append("kept").is_err(), "{way:?}");
            assert!(below.rename("kept", "moved").is_err() && below.remove("kept").is_err(), "{way:?}");
            assert!(below.open("kept").is_err(), "{way:?}");
        }
        let below = Below::new(&named, &[]);
        symlink(outside.path().join("kept"), named.join("file")).unwrap();
        symlink(outside.path().join("made"), named.join("dangling")).unwrap();
        for name in ["file", "dangling"] {
            assert!(below.create(name).is_err() && below.append(name).is_err(), "{name}");
            assert!(below.open(name).is_err(), "{name}");
        }
        let error = below.append("file").unwrap_err().to_string();
        assert!(error.starts_with("file is a symbolic link"), "{error}");
        let names: Vec<_> =
            fs::read_dir(outside.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["kept"]);
        assert_eq!(fs::read(outside.path().join("kept")).unwrap(), b"kept");
    }

    #[test]
    fn what_is_plain_works() {
        let folder = tempfile::tempdir().unwrap();
        let below = Below::new(&folder.path().join("a/b"), &["c", "d"]);
        assert!(below.create("one").is_err(), "nobody made it");
        below.make().unwrap();
        below.make().unwrap();
        assert_eq!(below.path(), folder.path().join("a/b/c/d"));
        below.create("one").unwrap().write_all(b"1").unwrap();
        assert_eq!(below.create("one").unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        below.rename("one", "two").unwrap();
        below.append("two").unwrap().write_all(b"2").unwrap();
        let mut text = String::new();
        below.open("two").unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "12");
        below.remove("two").unwrap();
        assert_eq!(below.open("two").unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
