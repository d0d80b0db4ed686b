//! The files of a store: the database, its log and the log's index, and the folder of its holders. Who may read them,
//! and whether they are still the ones that were opened.
//!
//! The database file itself is never opened here once SQLite may have it open: closing it again would drop the locks of
//! every connection this process has on it.

use std::fmt;
use std::fs::{File, Metadata};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// Which file this is: its number on its disk, which no other file has while somebody has it open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark(u64);

impl Mark {
    /// The file at `path`, if there is one.
    pub(super) fn of(path: &Path) -> Option<Self> {
        std::fs::metadata(path).ok().map(|file| Self::read(&file))
    }

    pub(super) fn read(file: &Metadata) -> Self {
        Self(number(file))
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Which file this is, among all that ever had its name: a copy is another one. A number may be given out again once
/// nobody has the file open, but not at the same moment. Empty where file systems do not say when a file was made: there
/// numbers do not last either.
pub(super) fn birth(path: &Path) -> String {
    let Ok(file) = std::fs::metadata(path) else { return String::new() };
    let made = file.created().ok().and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok());
    made.map(|made| format!("{}.{}", number(&file), made.as_nanos())).unwrap_or_default()
}

/// The files of a database that is open. SQLite keeps all three for as long as anybody has it open.
#[derive(Debug)]
pub(super) struct Opened {
    files: [(PathBuf, Option<Mark>); 3],
    /// Which file the database is in, as [`birth`] says it.
    pub(super) birth: String,
}

impl Opened {
    pub(super) fn at(database: &Path, birth: String) -> Self {
        let files = [database.to_owned(), beside(database, "-wal"), beside(database, "-shm")];
        Self { files: files.map(|path| (path.clone(), Mark::of(&path))), birth }
    }

    /// The first of them that is gone, or another one by now.
    pub(super) fn replaced(&self) -> Option<Replaced> {
        let nth = self.files.iter().position(|(path, mark)| Mark::of(path) != *mark)?;
        let path = self.files[nth].0.clone();
        Some(Replaced { is_missing: is_missing(&path), path, is_log: nth > 0 })
    }
}

impl Opened {
    /// The log that was opened, or its index, if that is still there.
    pub(super) fn log_left(&self) -> Option<&Path> {
        let left = self.files[1..].iter().find(|(path, mark)| mark.is_some() && Mark::of(path) == *mark);
        left.map(|(path, _)| path.as_path())
    }
}

/// A file that is gone, or another one by now.
pub(super) struct Replaced {
    pub(super) path: PathBuf,
    /// Nothing is in its place.
    pub(super) is_missing: bool,
    /// The database itself is there.
    pub(super) is_log: bool,
}

/// The number of the file at `path` on its disk.
pub(super) fn number_at(path: &Path) -> Option<u64> {
    std::fs::metadata(path).ok().map(|file| number(&file))
}

/// The path of a file that belongs to a database.
pub(super) fn beside(database: &Path, ending: &str) -> PathBuf {
    let mut path = database.as_os_str().to_owned();
    path.push(ending);
    path.into()
}

/// Where a link leads, also when nothing is there.
pub(super) fn follow(path: &Path) -> PathBuf {
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        let Ok(target) = std::fs::read_link(&path) else { break };
        path = path.parent().map_or(target.clone(), |folder| folder.join(target));
    }
    path
}

/// Whether nothing is at `path`, not even a link that leads nowhere.
pub(super) fn is_missing(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_err_and(|error| error.kind() == ErrorKind::NotFound)
}

/// Whether nothing is in the file at `path`, or nothing is there.
pub(super) fn is_empty(path: &Path) -> bool {
    is_missing(path) || std::fs::metadata(path).is_ok_and(|file| file.is_file() && file.len() == 0)
}

/// Whether there is something in the file at `path`.
pub(super) fn has_content(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|file| file.len() > 0)
}

/// How many names a file has.
#[cfg(unix)]
pub(super) fn names(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).ok().filter(Metadata::is_file).map_or(0, |file| file.nlink())
}

#[cfg(not(unix))]
pub(super) fn names(_path: &Path) -> u64 {
    1
}

/// Makes an empty file that only its owner may read, unless there is one. SQLite gives its log the same permissions.
pub(super) fn create(path: &Path) -> io::Result<()> {
    match new_file(path, 0o600) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        made => made.map(drop),
    }
}

/// Makes a file with the permissions of `database`, or opens the one that is there.
pub(super) fn create_like(path: &Path, database: &Path) -> io::Result<File> {
    match new_file(path, mode_like(database)) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => File::options().write(true).open(path),
        made => {
            belong_to(path, database);
            made
        }
    }
}

/// Makes a folder with the permissions of `database`, unless there is one. A link to one does not do: what it leads to
/// is not ours.
pub(super) fn create_folder_like(folder: &Path, database: &Path) -> io::Result<()> {
    let mode = mode_like(database);
    // Whoever may read may also enter.
    match new_folder(folder, mode | (mode & 0o440) >> 2) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => match is_own_folder(folder) {
            true => Ok(()),
            false => Err(io::Error::new(
                ErrorKind::NotADirectory,
                format!("{} is in the way, and is no folder: move it away", folder.display()),
            )),
        },
        made => {
            belong_to(folder, database);
            made
        }
    }
}

/// Whether there is a folder at `path`, and no link to one.
pub(super) fn is_own_folder(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|file| file.is_dir())
}

/// What the permissions of files that were there before should be: nobody else reads them. A group that may write was
/// let in by somebody; one that may only read was not, since a store that cannot be written cannot be used.
fn private(mode: u32) -> u32 {
    let keeps = if mode & 0o020 == 0 { 0o7700 } else { 0o7770 };
    mode & keeps
}

/// Takes away what others may do with a store that an older version, or a copy, left open to everybody. What was
/// changed or has to be, for people.
#[cfg(unix)]
pub(super) fn tighten(database: &Path) -> Vec<String> {
    let folder = beside(database, "-holders");
    // Only what is ours: others may have put links and files of their own there.
    let is_ours = |name: &std::ffi::OsStr| name.to_str().is_some_and(|name| name.parse::<i64>().is_ok());
    let inside = Some(&folder)
        .filter(|folder| is_own_folder(folder))
        .and_then(|folder| std::fs::read_dir(folder).ok());
    let inside = inside.into_iter().flatten().flatten().filter(|file| is_ours(&file.file_name()));
    let inside = inside.map(|file| file.path());
    let companions = ["-wal", "-shm"].map(|ending| beside(database, ending));
    let mut paths = vec![database.to_owned()];
    paths.extend(companions.into_iter().chain([folder.clone()]).chain(inside));
    let mut notes = Vec::new();
    for path in paths {
        use std::os::unix::fs::PermissionsExt;
        let Ok(file) = std::fs::symlink_metadata(&path) else { continue };
        if file.is_symlink() {
            continue;
        }
        let (mode, private) =
            (file.permissions().mode() & 0o7777, private(file.permissions().mode() & 0o7777));
        if mode == private {
            continue;
        }
        let changed = std::fs::set_permissions(&path, PermissionsExt::from_mode(private));
        // The rest goes with the database and need not be said.
        if path != database {
            continue;
        }
        let shown = path.display();
        notes.push(match changed {
            Ok(()) => {
                format!("{shown} was open to other users (mode {mode:04o}); its mode is {private:04o} now")
            }
            Err(_) => format!(
                "{shown} can be read by other users, and secrets are in it; its owner should run: \
                 chmod {private:o} {shown}"
            ),
        });
    }
    notes
}

#[cfg(not(unix))]
pub(super) fn tighten(_database: &Path) -> Vec<String> {
    Vec::new()
}

#[cfg(unix)]
pub(super) fn new_file(path: &Path, mode: u32) -> io::Result<File> {
    use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
    let file = File::options().write(true).create_new(true).mode(mode).open(path)?;
    // A umask may have taken more away than nobody else's rights.
    file.set_permissions(PermissionsExt::from_mode(mode))?;
    Ok(file)
}

#[cfg(not(unix))]
pub(super) fn new_file(path: &Path, _mode: u32) -> io::Result<File> {
    File::options().write(true).create_new(true).open(path)
}

#[cfg(unix)]
fn new_folder(path: &Path, mode: u32) -> io::Result<()> {
    use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
    std::fs::DirBuilder::new().mode(mode).create(path)?;
    // The bit by which a folder passes its group on stays.
    let inherited = std::fs::metadata(path)?.mode() & 0o7000;
    std::fs::set_permissions(path, PermissionsExt::from_mode(inherited | mode))
}

#[cfg(not(unix))]
fn new_folder(path: &Path, _mode: u32) -> io::Result<()> {
    std::fs::create_dir(path)
}

/// What the owner of a database and its group may do with the files beside it.
#[cfg(unix)]
fn mode_like(database: &Path) -> u32 {
    use std::os::unix::fs::MetadataExt;
    let mode = std::fs::metadata(database).map_or(0, |file| file.mode());
    private(mode & 0o660) | 0o600
}

#[cfg(not(unix))]
fn mode_like(_database: &Path) -> u32 {
    0o600
}

/// What root makes beside the store of somebody else is that somebody's.
#[cfg(unix)]
fn belong_to(path: &Path, database: &Path) {
    use std::os::unix::fs::{MetadataExt, chown};
    let (Ok(file), Ok(owner)) = (std::fs::metadata(path), std::fs::metadata(database)) else { return };
    if (file.uid(), file.gid()) != (owner.uid(), owner.gid()) {
        let _ = chown(path, Some(owner.uid()), Some(owner.gid()))
            .or_else(|_| chown(path, None, Some(owner.gid())));
    }
}

#[cfg(not(unix))]
fn belong_to(_path: &Path, _database: &Path) {}

#[cfg(unix)]
fn number(file: &Metadata) -> u64 {
    use std::os::unix::fs::MetadataExt;
    file.ino()
}

#[cfg(not(unix))]
fn number(_file: &Metadata) -> u64 {
    0
}

/// Links that are followed.
const LINKS_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::private;

    #[test]
    fn others_are_shut_out_and_a_group_that_may_write_stays() {
        for (mode, expected) in
            [(0o644, 0o600), (0o600, 0o600), (0o640, 0o600), (0o660, 0o660), (0o664, 0o660), (0o666, 0o660)]
        {
            assert_eq!(private(mode), expected, "{mode:o}");
        }
        assert_eq!((private(0o755), private(0o2770), private(0o775)), (0o700, 0o2770, 0o770));
    }
}
