//! Bytes on their way into a record: in memory while they are few, in a file without a name when they are many. A
//! record's header says how long it is and what its digest is, so its content has to wait until that is known.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Cursor, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that wait.
#[derive(Debug)]
pub(super) struct Spool {
    folder: PathBuf,
    memory: Vec<u8>,
    file: Option<File>,
    len: u64,
}

impl Spool {
    /// An empty one, whose file would be in `folder`.
    pub(super) fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), memory: Vec::new(), file: None, len: 0 }
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// The bytes, from the first on.
    pub(super) fn into_reader(self) -> io::Result<Box<dyn Read + Send>> {
        match self.file {
            None => Ok(Box::new(Cursor::new(self.memory))),
            Some(mut file) => {
                file.seek(SeekFrom::Start(0))?;
                Ok(Box::new(file))
            }
        }
    }
}

impl Write for Spool {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = match &mut self.file {
            Some(file) => file.write(bytes)?,
            None if self.memory.len() + bytes.len() <= MEMORY_MAX => {
                self.memory.extend_from_slice(bytes);
                bytes.len()
            }
            None => {
                let mut file = nameless(&self.folder)?;
                file.write_all(&std::mem::take(&mut self.memory))?;
                let written = file.write(bytes)?;
                self.file = Some(file);
                written
            }
        };
        self.len += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A file that nobody else finds, and that is gone with this process however that ends.
pub(super) fn nameless(folder: &Path) -> io::Result<File> {
    let nth = SPOOLS.fetch_add(1, Ordering::Relaxed);
    let path = folder.join(format!(".comity-{}-{nth}.spool", std::process::id()));
    // One that a kill in this very moment left behind.
    let _ = fs::remove_file(&path);
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
    fs::remove_file(&path)?;
    Ok(file)
}

/// Spool files of this process.
static SPOOLS: AtomicU64 = AtomicU64::new(0);
/// More than this is not kept in memory. As many exchanges may be under way as a job's concurrency allows.
pub(super) const MEMORY_MAX: usize = 256 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn little_stays_in_memory_and_much_leaves_no_file() {
        for len in [0, 10, MEMORY_MAX, MEMORY_MAX + 1, 3 * MEMORY_MAX] {
            let folder = tempfile::tempdir().unwrap();
            let mut spool = Spool::new(folder.path());
            let bytes: Vec<u8> = (0..len).map(|nth| (nth % 251) as u8).collect();
            bytes.chunks(1_000).for_each(|part| spool.write_all(part).unwrap());
            assert_eq!((spool.len(), spool.file.is_some()), (len as u64, len > MEMORY_MAX));
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
            let mut read = Vec::new();
            spool.into_reader().unwrap().read_to_end(&mut read).unwrap();
            assert!(read == bytes, "{len}");
        }
    }
}
