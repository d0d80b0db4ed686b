//! A file that is whole or not there: written beside its place, and moved there at the end. Whoever gives up on the
//! way leaves nothing behind.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// A file that is being written. Dropped unfinished, it leaves nothing behind.
#[derive(Debug)]
pub struct WholeFile {
    file: BufWriter<File>,
    part: PathBuf,
    path: PathBuf,
    is_moved: bool,
}

impl WholeFile {
    /// Begins a file that is to be at `path`.
    pub fn create(path: impl Into<PathBuf>) -> io::Result<Self> {
        let path = path.into();
        if path.file_name().is_none() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "expected the name of a file"));
        }
        // Others may write to the same place at once: each writes beside it, and the last one stays.
        let nth = BEGUN.fetch_add(1, Ordering::Relaxed);
        let part = path.with_added_extension(format!("{}-{nth}.part", std::process::id()));
        let file = BufWriter::new(File::create(&part)?);
        Ok(Self { file, part, path, is_moved: false })
    }

    /// Where it is until it is whole.
    pub fn part(&self) -> &Path {
        &self.part
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

    fn put(&mut self) -> io::Result<()> {
        fs::rename(&self.part, &self.path)?;
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
            let _ = fs::remove_file(&self.part);
        }
    }
}

/// Files begun by this process.
static BEGUN: AtomicU64 = AtomicU64::new(0);

#[cfg(test)]
mod tests {
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
}
