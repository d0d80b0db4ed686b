//! The files records are written to, one after the other: `JOB-20261116213000-00000.warc.gz` and so on.
//!
//! While it is written a file is called `….warc.gz.open` and locked by its process; it gets its name when it is full
//! or the work is over. So a `.warc.gz` is always whole, two processes never write into one file, and what a kill
//! left behind is found by whoever goes on: cut back to its last whole record, and given its name.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::digest::Digest;
use super::exchange::Payload;
use super::reading;
use super::record::{Header, Id};
use super::seen::Original;
use super::spool::Spool;
use crate::clock::Clock;

/// The files of one job in one folder, of which at most one is open.
#[derive(Debug)]
pub(super) struct Volumes {
    folder: PathBuf,
    /// What their names begin with.
    stem: String,
    /// What the first record of each says.
    about: String,
    file_max: u64,
    clock: Clock,
    begun: u32,
    open: Option<Volume>,
    is_closed: bool,
}

/// A file that is being written.
#[derive(Debug)]
struct Volume {
    file: File,
    /// Up to here it is whole.
    len: u64,
    draft: PathBuf,
    path: PathBuf,
}

impl Volumes {
    pub(super) fn new(folder: PathBuf, stem: String, about: String, file_max: u64, clock: Clock) -> Self {
        Self { folder, stem, about, file_max, clock, begun: 0, open: None, is_closed: false }
    }

    /// Gives what a process that is no more left behind its name, and tells the payloads in it.
    pub(super) fn recover(&self, mut tell: impl FnMut(Payload, Original)) -> io::Result<()> {
        for draft in self.files(OPEN)? {
            recover(&draft, &mut tell)?;
        }
        Ok(())
    }

    /// The files that have their names, the newest first.
    pub(super) fn named(&self) -> io::Result<Vec<PathBuf>> {
        let mut files = self.files("")?;
        files.sort_unstable_by(|one, other| other.cmp(one));
        Ok(files)
    }

    /// Adds records that belong together.
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

    /// Nothing is added any more; the last file gets its name.
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
            let name = format!("{}-{stamp}-{:05}{NAMED}", self.stem, self.begun);
            self.begun += 1;
            let (path, draft) = (self.folder.join(&name), self.folder.join(format!("{name}{OPEN}")));
            let file = match OpenOptions::new().read(true).write(true).create_new(true).open(&draft) {
                Ok(file) => file,
                // Another process of the job.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(error),
            };
            // One that took it for a left-over file, in the moment it was made.
            if file.try_lock().is_err() || !is_at(&file, &draft) {
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

    /// The files whose names have our form and end like this.
    fn files(&self, ending: &str) -> io::Result<Vec<PathBuf>> {
        let is_ours = |name: &str| {
            let numbers = name.strip_prefix(&*self.stem)?.strip_prefix('-')?;
            let (stamp, nth) = numbers.strip_suffix(ending)?.strip_suffix(NAMED)?.split_once('-')?;
            let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
            (stamp.len() == STAMP_LEN && nth.len() >= 5 && is_number(stamp) && is_number(nth)).then_some(())
        };
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            let name = entry.file_name();
            // A link may lead to a file of somebody else.
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
                // Half a record is none, on a full disk too.
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
        // Some file systems only say now that they could not keep all of it.
        self.file.sync_all()?;
        fs::rename(&self.draft, &self.path)
    }
}

/// Gives a left-over file its name, cut back to its last whole record; one that somebody is writing is left alone.
fn recover(draft: &Path, tell: &mut dyn FnMut(Payload, Original)) -> io::Result<()> {
    let file = match open_plain(draft) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if file.try_lock().is_err() || !is_at(&file, draft) {
        return Ok(());
    }
    let whole = reading::read(&file, tell);
    // The first record only says what would have followed.
    if whole.records < 2 {
        return fs::remove_file(draft);
    }
    let (bytes, cut) = (whole.bytes, file.metadata()?.len() - whole.bytes);
    file.set_len(bytes)?;
    let path = draft.with_extension("");
    fs::rename(draft, &path)?;
    tracing::info!(file = %path.display(), records = whole.records, cut, "a file that was left open is whole");
    Ok(())
}

/// Opens a file to be read and written, unless a link took its place.
fn open_plain(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(
        &mut options,
        rustix::fs::OFlags::NOFOLLOW.bits().cast_signed(),
    );
    options.read(true).write(true).open(path)
}

/// Whether the path still leads to this file: it may have been moved or removed before it was locked.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let identity = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    match (file.metadata(), fs::symlink_metadata(path)) {
        (Ok(one), Ok(other)) => identity(one) == identity(other),
        _ => false,
    }
}

#[cfg(not(unix))]
fn is_at(_: &File, path: &Path) -> bool {
    path.exists()
}

const NAMED: &str = ".warc.gz";
const OPEN: &str = ".open";
/// `YYYYMMDDhhmmss`
const STAMP_LEN: usize = 14;

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives some bytes, and then breaks.
    struct Breaks(usize);

    impl Read for Breaks {
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
    fn half_a_record_is_taken_back() {
        let folder = tempfile::tempdir().unwrap();
        let mut volumes = volumes(folder.path());
        volumes.append(spool(folder.path())).unwrap();
        let open = volumes.open.as_mut().unwrap();
        let len = open.len;
        assert!(open.append(Breaks(100_000)).is_err());
        assert_eq!(fs::metadata(&open.draft).unwrap().len(), len);
        volumes.append(spool(folder.path())).unwrap();
        volumes.close().unwrap();
        let file = volumes.named().unwrap().remove(0);
        let whole = reading::read(File::open(&file).unwrap(), |_, _| {});
        assert_eq!((whole.records, whole.bytes), (3, fs::metadata(&file).unwrap().len()));
        assert!(volumes.append(spool(folder.path())).is_err(), "it is closed");
    }

    #[test]
    fn a_file_that_is_written_is_not_taken_for_a_left_over_one() {
        let folder = tempfile::tempdir().unwrap();
        let (mut one, mut other) = (volumes(folder.path()), volumes(folder.path()));
        one.append(spool(folder.path())).unwrap();
        other.recover(|_, _| {}).unwrap();
        assert_eq!((one.files(OPEN).unwrap().len(), one.named().unwrap().len()), (1, 0));
        // In the same second, too.
        other.append(spool(folder.path())).unwrap();
        assert_eq!(one.files(OPEN).unwrap().len(), 2);
        // Without its process, the lock of a file is gone.
        drop(other.open.take());
        one.recover(|_, _| {}).unwrap();
        assert_eq!((one.files(OPEN).unwrap().len(), one.named().unwrap().len()), (1, 1));
        one.close().unwrap();
        assert_eq!((one.files(OPEN).unwrap().len(), one.named().unwrap().len()), (0, 2));
    }

    /// A link that looks like a left-over file does not have what it leads to cut, moved or removed.
    #[cfg(unix)]
    #[test]
    fn a_link_is_not_taken_for_a_left_over_file() {
        let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut theirs = volumes(elsewhere.path());
        theirs.append(spool(elsewhere.path())).unwrap();
        theirs.close().unwrap();
        let victim = theirs.named().unwrap().remove(0);
        // More than whole records: a left-over file would be cut.
        OpenOptions::new().append(true).open(&victim).unwrap().write_all(b"more").unwrap();
        let before = fs::read(&victim).unwrap();
        let name = victim.file_name().unwrap().to_str().unwrap();
        let link = folder.path().join(format!("{name}{OPEN}"));
        std::os::unix::fs::symlink(&victim, &link).unwrap();
        let mut ours = volumes(folder.path());
        ours.recover(|_, _| unreachable!("nothing is read")).unwrap();
        assert!(
            recover(&link, &mut |_, _| {}).is_err(),
            "not even when it took the place of a file just now"
        );
        ours.append(spool(folder.path())).unwrap();
        ours.close().unwrap();
        assert_eq!(fs::read(&victim).unwrap(), before);
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    }
}
