//! Finds out which process has a database locked, where the operating system shows it (`/proc/locks`).

use std::path::Path;

use super::files;

/// The process that is writing to the database right now, such as `sqlite3, pid 4711`. `None` if unknown.
pub(super) fn lock_owner(database: &Path) -> Option<String> {
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    let log = files::number_at(&files::beside(database, "-shm"));
    let database = files::number_at(database);
    let is_writers = |lock: &Lock| {
        let of_log = Some(lock.file) == log && lock.covers(WRITES_LOG);
        let of_database = Some(lock.file) == database && RESERVED.iter().any(|byte| lock.covers(*byte));
        lock.is_exclusive && (of_log || of_database)
    };
    let pid = locks.lines().filter_map(Lock::read).find(is_writers)?.pid;
    if pid == std::process::id() {
        return None;
    }
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name is in parentheses and may contain parentheses.
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    let stopped = if matches!(state, Some('T' | 't')) { ", stopped" } else { "" };
    let name = Some(name.trim()).filter(|name| !name.is_empty()).unwrap_or("a process");
    Some(format!("{name}, pid {pid}{stopped}"))
}

/// A line of `/proc/locks`: `1: POSIX  ADVISORY  WRITE 4711 08:01:1234 120 120`.
#[derive(Debug, PartialEq, Eq)]
struct Lock {
    is_exclusive: bool,
    pid: u32,
    file: u64,
    from: u64,
    to: u64,
}

impl Lock {
    fn read(line: &str) -> Option<Self> {
        let mut fields = line.split_whitespace().skip(3);
        let kind = fields.next()?;
        let pid = fields.next()?.parse().ok()?;
        let file = fields.next()?.rsplit(':').next()?.parse().ok()?;
        let from = fields.next()?.parse().ok()?;
        let to = fields
            .next()
            .map_or(Some(u64::MAX), |to| if to == "EOF" { Some(u64::MAX) } else { to.parse().ok() })?;
        Some(Self { is_exclusive: kind == "WRITE", pid, file, from, to })
    }

    fn covers(&self, byte: u64) -> bool {
        (self.from..=self.to).contains(&byte)
    }
}

/// The byte of the log's index that a writer locks (`WAL_WRITE_LOCK`).
const WRITES_LOG: u64 = 120;
/// The bytes of the database that a writer without a log locks: pending, reserved and shared.
const RESERVED: [u64; 3] = [0x4000_0000, 0x4000_0001, 0x4000_0002];

#[cfg(test)]
mod tests {
    use super::Lock;

    #[test]
    fn locks_are_parsed_as_linux_prints_them() {
        let line = "12: POSIX  ADVISORY  WRITE 4711 08:01:1234 120 120";
        let lock = Lock { is_exclusive: true, pid: 4711, file: 1234, from: 120, to: 120 };
        assert_eq!(Lock::read(line), Some(lock));
        let whole = Lock::read("3: FLOCK  ADVISORY  READ 9 00:2e:77 0 EOF").unwrap();
        assert!(!whole.is_exclusive && whole.covers(u64::MAX));
        // The first is waiting for a lock, and the second is of a process in another namespace.
        assert_eq!(Lock::read("3: -> POSIX  ADVISORY  WRITE 9 00:2e:77 0 EOF"), None);
        assert_eq!(Lock::read("4: OFDLCK ADVISORY  WRITE -1 00:2e:77 0 EOF"), None);
    }
}
