//! Buffers the content of a record: in memory if it is small, in an anonymous temporary file if it is large. The header
//! of a record contains length and digest, so the content can only be written when these are known.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Cursor, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// A buffer that spills to disk.
#[derive(Debug)]
pub(super) struct Spool {
    folder: PathBuf,
    memory: Vec<u8>,
    file: Option<File>,
    len: u64,
}

impl Spool {
    /// An empty buffer, which creates its file in `folder` if it needs one.
    pub(super) fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), memory: Vec::new(), file: None, len: 0 }
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// A reader of all bytes.
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
                let mut file = anonymous_file(&self.folder)?;
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

/// A temporary file without a name, which disappears when this process ends for any reason.
pub(super) fn anonymous_file(folder: &Path) -> io::Result<File> {
    let nth = SPOOLS.fetch_add(1, Ordering::Relaxed);
    let path = folder.join(format!(".comity-{}-{nth}.spool", std::process::id()));
    // A process that was killed right after creating it may have left one behind.
    let _ = fs::remove_file(&path);
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
    fs::remove_file(&path)?;
    Ok(file)
}

/// The number of spool files created by this process.
static SPOOLS: AtomicU64 = AtomicU64::new(0);
/// The maximum size in memory. There may be as many buffers as the concurrency of a job allows.
pub(super) const MEMORY_MAX: usize = 256 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_content_is_spooled_and_leaves_no_file() {
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
