//! The files of a store: the database, its log (`-wal`), the log's index (`-shm`), and the folder of holders' lock
//! files. Handles their permissions, and notices when they are replaced.
//!
//! The database file itself is never opened here once SQLite may have it open: closing it again would drop the locks of
//! all connections that this process has to it.

use std::fmt;
use std::fs::{File, Metadata};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// Identifies a file by its inode number, which no other file has while somebody has it open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileId(u64);

impl FileId {
    /// The id of the file at `path`, if there is one.
    pub(super) fn of(path: &Path) -> Option<Self> {
        std::fs::metadata(path).ok().map(|file| Self::read(&file))
    }

    pub(super) fn read(file: &Metadata) -> Self {
        Self(number(file))
    }
}

impl fmt::Display for FileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Identifies a file among all that ever had its name: inode number and creation time. An inode number may be reused
/// once nobody has the file open, but not with the same creation time. Empty on file systems without creation times,
/// where inode numbers are not stable either.
pub(super) fn birth(path: &Path) -> String {
    let Ok(file) = std::fs::metadata(path) else { return String::new() };
    let made = file.created().ok().and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok());
    made.map(|made| format!("{}.{}", number(&file), made.as_nanos())).unwrap_or_default()
}

/// The files of an open database. SQLite keeps all three while anybody has it open.
#[derive(Debug)]
pub(super) struct Opened {
    files: [(PathBuf, Option<FileId>); 3],
    /// Identifies the database file, as returned by [`birth`].
    pub(super) birth: String,
}

impl Opened {
    pub(super) fn at(database: &Path, birth: String) -> Self {
        let files = [database.to_owned(), beside(database, "-wal"), beside(database, "-shm")];
        Self { files: files.map(|path| (path.clone(), FileId::of(&path))), birth }
    }

    /// The first of the files that is missing or was replaced.
    pub(super) fn replaced(&self) -> Option<Replaced> {
        let nth = self.files.iter().position(|(path, mark)| FileId::of(path) != *mark)?;
        let path = self.files[nth].0.clone();
        Some(Replaced { is_missing: is_missing(&path), path, is_log: nth > 0 })
    }
}

impl Opened {
    /// The log that was opened, or its index, if it is still in place.
    pub(super) fn log_left(&self) -> Option<&Path> {
        let left = self.files[1..].iter().find(|(path, mark)| mark.is_some() && FileId::of(path) == *mark);
        left.map(|(path, _)| path.as_path())
    }
}

/// A file that is missing or was replaced.
pub(super) struct Replaced {
    pub(super) path: PathBuf,
    /// Nothing is in its place.
    pub(super) is_missing: bool,
    /// It is the log or its index; the database itself is in place.
    pub(super) is_log: bool,
}

/// The inode number of the file at `path`.
pub(super) fn number_at(path: &Path) -> Option<u64> {
    std::fs::metadata(path).ok().map(|file| number(&file))
}

/// The path of a file that belongs to a database.
pub(super) fn beside(database: &Path, ending: &str) -> PathBuf {
    let mut path = database.as_os_str().to_owned();
    path.push(ending);
    path.into()
}

/// Follows symbolic links, even to a target that does not exist.
pub(super) fn follow(path: &Path) -> PathBuf {
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        let Ok(target) = std::fs::read_link(&path) else { break };
        path = path.parent().map_or(target.clone(), |folder| folder.join(target));
    }
    path
}

/// Whether nothing is at `path`, not even a dangling link.
pub(super) fn is_missing(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_err_and(|error| error.kind() == ErrorKind::NotFound)
}

/// Whether the file at `path` is empty or missing.
pub(super) fn is_empty(path: &Path) -> bool {
    is_missing(path) || std::fs::metadata(path).is_ok_and(|file| file.is_file() && file.len() == 0)
}

/// Whether the file at `path` has content.
pub(super) fn has_content(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|file| file.len() > 0)
}

/// The number of hard links of a file.
#[cfg(unix)]
pub(super) fn names(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).ok().filter(Metadata::is_file).map_or(0, |file| file.nlink())
}

#[cfg(not(unix))]
pub(super) fn names(_path: &Path) -> u64 {
    1
}

/// Creates an empty file that only its owner may read, unless it exists. SQLite gives its log the same permissions.
pub(super) fn create(path: &Path) -> io::Result<()> {
    match new_file(path, 0o600) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        made => made.map(drop),
    }
}

/// Creates a file with the permissions of `database`, or opens the existing one.
pub(super) fn create_like(path: &Path, database: &Path) -> io::Result<File> {
    match new_file(path, mode_like(database)) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => File::options().write(true).open(path),
        made => {
            belong_to(path, database);
            made
        }
    }
}

/// Creates a folder with the permissions of `database`, unless it exists. A symbolic link to a folder is refused: its
/// target is not ours.
pub(super) fn create_folder_like(folder: &Path, database: &Path) -> io::Result<()> {
    let mode = mode_like(database);
    // Whoever may read the folder may also enter it.
    match new_folder(folder, mode | (mode & 0o440) >> 2) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => match is_own_folder(folder) {
            true => Ok(()),
            false => Err(io::Error::new(
                ErrorKind::NotADirectory,
                format!("{} is in the way: it isn't a folder; move it away", folder.display()),
            )),
        },
        made => {
            belong_to(folder, database);
            made
        }
    }
}

/// Whether there is a folder at `path`, not a link to one.
pub(super) fn is_own_folder(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|file| file.is_dir())
}

/// The permissions that existing files should have: nobody else may read them. A group with write access was let in on
/// purpose; one with read access only was not, because a store that cannot be written cannot be used.
fn private(mode: u32) -> u32 {
    let keeps = if mode & 0o020 == 0 { 0o7700 } else { 0o7770 };
    mode & keeps
}

/// Removes access for other users from a store that an older version or a copy left open. Returns notes for people
/// about what was changed, or has to be.
#[cfg(unix)]
pub(super) fn tighten(database: &Path) -> Vec<String> {
    let folder = beside(database, "-holders");
    // Only our own files: others may have put links and files there.
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
        // The other files follow the database; they are not worth a note.
        if path != database {
            continue;
        }
        let shown = path.display();
        notes.push(match changed {
            Ok(()) => {
                format!("{shown} was open to other users (mode {mode:04o}); its mode is {private:04o} now")
            }
            Err(_) => format!(
                "{shown} contains secrets and can be read by other users; its owner should run: \
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
    // A restrictive umask may have removed the owner's rights too.
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
    // Keep the setgid bit, by which a folder passes on its group.
    let inherited = std::fs::metadata(path)?.mode() & 0o7000;
    std::fs::set_permissions(path, PermissionsExt::from_mode(inherited | mode))
}

#[cfg(not(unix))]
fn new_folder(path: &Path, _mode: u32) -> io::Result<()> {
    std::fs::create_dir(path)
}

/// The permissions of files next to a database: those of its owner and group.
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

/// Files that root creates next to somebody else's store belong to the store's owner.
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

/// The maximum number of links to follow.
const LINKS_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::private;

    #[test]
    fn others_lose_access_and_a_group_with_write_access_keeps_it() {
        for (mode, expected) in
            [(0o644, 0o600), (0o600, 0o600), (0o640, 0o600), (0o660, 0o660), (0o664, 0o660), (0o666, 0o660)]
        {
            assert_eq!(private(mode), expected, "{mode:o}");
        }
        assert_eq!((private(0o755), private(0o2770), private(0o775)), (0o700, 0o2770, 0o770));
    }
}
