//! The files that records are written to: `JOB-20261116213000-00000.warc.gz` and so on.
//!
//! While it is being written, a file is named `….warc.gz.open` and locked by its process; it gets its final name when
//! it is full or the job ends. So a `.warc.gz` is always complete, and two processes never write to the same file. If a
//! process was killed, the next one recovers its file: it truncates it after the last complete record and renames it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::digest::Digest;
use super::exchange::Payload;
use super::known_payloads::Original;
use super::reader;
use super::record::{Header, Id};
use super::spool::Spool;
use crate::clock::Clock;

/// The files of one job in one folder. At most one is open.
#[derive(Debug)]
pub(super) struct Volumes {
    folder: PathBuf,
    /// The start of their names.
    stem: String,
    /// The content of the first record of each file.
    about: String,
    file_max: u64,
    clock: Clock,
    begun: u32,
    open: Option<Volume>,
    is_closed: bool,
}

/// A file being written.
#[derive(Debug)]
struct Volume {
    file: File,
    /// The size of its complete records.
    len: u64,
    draft: PathBuf,
    path: PathBuf,
}

/// Whether a file with this name may be a WARC file, finished or being written.
pub(in crate::archive) fn is_warc_file(name: &str) -> bool {
    name.strip_suffix(OPEN).unwrap_or(name).ends_with(EXTENSION)
}

impl Volumes {
    pub(super) fn new(folder: PathBuf, stem: String, about: String, file_max: u64, clock: Clock) -> Self {
        Self { folder, stem, about, file_max, clock, begun: 0, open: None, is_closed: false }
    }

    /// Recovers the files that killed processes left open, and calls `on_payload` for the payloads in them.
    pub(super) fn recover(&self, mut on_payload: impl FnMut(Payload, Original)) -> io::Result<()> {
        for draft in self.files(OPEN)? {
            recover(&draft, &mut on_payload)?;
        }
        Ok(())
    }

    /// The finished files, newest first.
    pub(super) fn finished(&self) -> io::Result<Vec<PathBuf>> {
        let mut files = self.files("")?;
        files.sort_unstable_by(|one, other| other.cmp(one));
        Ok(files)
    }

    /// Appends records that belong together.
    pub(super) fn append(&mut self, packed: Spool) -> io::Result<()> {
        if self.is_closed {
            return Err(io::Error::other("the archive is closed"));
        }
        if self.open.as_ref().is_some_and(|open| open.len + packed.len() > self.file_max) {
            self.finish()?;
        }
        if self.open.is_none() {
            self.open = Some(self.begin()?);
        }
        match &mut self.open {
            Some(open) => open.append(packed.into_reader()?),
            None => Ok(()),
        }
    }

    /// Finishes the last file. Nothing can be appended after that.
    pub(super) fn close(&mut self) -> io::Result<()> {
        self.is_closed = true;
        self.finish()
    }

    fn finish(&mut self) -> io::Result<()> {
        self.open.take().map_or(Ok(()), Volume::finish)
    }

    fn begin(&mut self) -> io::Result<Volume> {
        let now = self.clock.now();
        let stamp: String = now.to_string().chars().filter(char::is_ascii_digit).take(STAMP_LEN).collect();
        loop {
            let name = format!("{}-{stamp}-{:05}{EXTENSION}", self.stem, self.begun);
            self.begun += 1;
            let (path, draft) = (self.folder.join(&name), self.folder.join(format!("{name}{OPEN}")));
            let file = match OpenOptions::new().read(true).write(true).create_new(true).open(&draft) {
                Ok(file) => file,
                // Another process of the job created it.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(error),
            };
            // Another process may have taken the new file for one left behind by a killed process.
            if file.try_lock().is_err() || !is_still_at(&file, &draft) {
                continue;
            }
            if path.symlink_metadata().is_ok() {
                fs::remove_file(&draft)?;
                continue;
            }
            let mut volume = Volume { file, len: 0, draft, path };
            let mut header = Header::new("warcinfo", Id::random()?, now);
            header.add("WARC-Filename", &name);
            header.add("WARC-Block-Digest", Digest::of(self.about.as_bytes()));
            header.add("Content-Type", "application/warc-fields");
            let mut packed = Vec::new();
            header.pack(self.about.len() as u64, &mut self.about.as_bytes(), &mut packed)?;
            volume.append(&packed[..])?;
            return Ok(volume);
        }
    }

    /// The files of this job whose names end with `ending`.
    fn files(&self, ending: &str) -> io::Result<Vec<PathBuf>> {
        let is_ours = |name: &str| {
            let numbers = name.strip_prefix(&*self.stem)?.strip_prefix('-')?;
            let (stamp, nth) = numbers.strip_suffix(ending)?.strip_suffix(EXTENSION)?.split_once('-')?;
            let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
            (stamp.len() == STAMP_LEN && nth.len() >= 5 && is_number(stamp) && is_number(nth)).then_some(())
        };
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            let name = entry.file_name();
            // Skip links, which may lead to somebody else's file.
            if entry.file_type()?.is_file() && name.to_str().is_some_and(|name| is_ours(name).is_some()) {
                files.push(self.folder.join(name));
            }
        }
        Ok(files)
    }
}

impl Volume {
    fn append(&mut self, mut packed: impl Read) -> io::Result<()> {
        let written = io::copy(&mut packed, &mut self.file).and_then(|written| {
            self.file.flush()?;
            Ok(written)
        });
        match written {
            Ok(written) => {
                self.len += written;
                Ok(())
            }
            Err(error) => {
                // Remove the partial record, which may also happen on a full disk.
                self.file.set_len(self.len)?;
                self.file.seek(SeekFrom::Start(self.len))?;
                Err(error)
            }
        }
    }

    fn finish(self) -> io::Result<()> {
        if self.file.metadata()?.len() != self.len {
            self.file.set_len(self.len)?;
        }
        // Some file systems report write errors only now.
        self.file.sync_all()?;
        fs::rename(&self.draft, &self.path)
    }
}

/// Truncates a file left behind after its last complete record and renames it. A file that is being written is skipped.
fn recover(draft: &Path, on_payload: &mut dyn FnMut(Payload, Original)) -> io::Result<()> {
    let file = match open_plain(draft) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if file.try_lock().is_err() || !is_still_at(&file, draft) {
        return Ok(());
    }
    let complete = reader::read(&file, on_payload);
    // The first record only describes the file.
    if complete.records < 2 {
        return fs::remove_file(draft);
    }
    let (bytes, cut) = (complete.bytes, file.metadata()?.len() - complete.bytes);
    file.set_len(bytes)?;
    let path = draft.with_extension("");
    fs::rename(draft, &path)?;
    tracing::info!(file = %path.display(), records = complete.records, cut, "recovered a WARC file that was left open");
    Ok(())
}

/// Opens a file for reading and writing, unless it is a link.
fn open_plain(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(
        &mut options,
        rustix::fs::OFlags::NOFOLLOW.bits().cast_signed(),
    );
    options.read(true).write(true).open(path)
}

/// Whether this file is still at `path`: it may have been moved or removed before it was locked.
#[cfg(unix)]
fn is_still_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let identity = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    match (file.metadata(), fs::symlink_metadata(path)) {
        (Ok(one), Ok(other)) => identity(one) == identity(other),
        _ => false,
    }
}

#[cfg(not(unix))]
fn is_still_at(_: &File, path: &Path) -> bool {
    path.exists()
}

const EXTENSION: &str = ".warc.gz";
const OPEN: &str = ".open";
/// `YYYYMMDDhhmmss`
const STAMP_LEN: usize = 14;

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads some bytes and then fails.
    struct FailingReader(usize);

    impl Read for FailingReader {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let count = into.len().min(self.0);
            self.0 -= count;
            if count == 0 { Err(io::ErrorKind::StorageFull.into()) } else { Ok(count) }
        }
    }

    fn volumes(folder: &Path) -> Volumes {
        let about = "software: test\r\n".to_owned();
        Volumes::new(folder.to_owned(), "job".to_owned(), about, 1 << 20, Clock::new())
    }

    fn spool(folder: &Path) -> Spool {
        let mut spool = Spool::new(folder);
        let header = Header::new("response", Id::random().unwrap(), Clock::new().now());
        header.pack(4, &mut &b"body"[..], &mut spool).unwrap();
        spool
    }

    #[test]
    fn a_partial_record_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let mut volumes = volumes(folder.path());
        volumes.append(spool(folder.path())).unwrap();
        let open = volumes.open.as_mut().unwrap();
        let len = open.len;
        assert!(open.append(FailingReader(100_000)).is_err());
        assert_eq!(fs::metadata(&open.draft).unwrap().len(), len);
        volumes.append(spool(folder.path())).unwrap();
        volumes.close().unwrap();
        let file = volumes.finished().unwrap().remove(0);
        let complete = reader::read(File::open(&file).unwrap(), |_, _| {});
        assert_eq!((complete.records, complete.bytes), (3, fs::metadata(&file).unwrap().len()));
        assert!(volumes.append(spool(folder.path())).is_err(), "it is closed");
    }

    #[test]
    fn a_file_being_written_is_not_recovered_by_another_process() {
        let folder = tempfile::tempdir().unwrap();
        let (mut one, mut other) = (volumes(folder.path()), volumes(folder.path()));
        one.append(spool(folder.path())).unwrap();
        other.recover(|_, _| {}).unwrap();
        assert_eq!((one.files(OPEN).unwrap().len(), one.finished().unwrap().len()), (1, 0));
        // This also works within the same second.
        other.append(spool(folder.path())).unwrap();
        assert_eq!(one.files(OPEN).unwrap().len(), 2);
        // Without its process, a file is no longer locked.
        drop(other.open.take());
        one.recover(|_, _| {}).unwrap();
        assert_eq!((one.files(OPEN).unwrap().len(), one.finished().unwrap().len()), (1, 1));
        one.close().unwrap();
        assert_eq!((one.files(OPEN).unwrap().len(), one.finished().unwrap().len()), (0, 2));
    }

    /// If a link looks like a file left behind, its target is not truncated, moved or removed.
    #[cfg(unix)]
    #[test]
    fn a_link_is_not_recovered() {
        let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut theirs = volumes(elsewhere.path());
        theirs.append(spool(elsewhere.path())).unwrap();
        theirs.close().unwrap();
        let victim = theirs.finished().unwrap().remove(0);
        // With an incomplete record at the end, a recovered file would be truncated.
        OpenOptions::new().append(true).open(&victim).unwrap().write_all(b"more").unwrap();
        let before = fs::read(&victim).unwrap();
        let name = victim.file_name().unwrap().to_str().unwrap();
        let link = folder.path().join(format!("{name}{OPEN}"));
        std::os::unix::fs::symlink(&victim, &link).unwrap();
        let mut ours = volumes(folder.path());
        ours.recover(|_, _| unreachable!("nothing is read")).unwrap();
        assert!(recover(&link, &mut |_, _| {}).is_err(), "not even if it just replaced a file");
        ours.append(spool(folder.path())).unwrap();
        ours.close().unwrap();
        assert_eq!(fs::read(&victim).unwrap(), before);
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    }
}
