//! What the machine says of the time: the wall clock, the time since it booted, and which boot that was. A seam, so that
//! tests can say what a process sees; everybody else uses [`ThisMachine`].

use std::fmt::Debug;
use std::sync::LazyLock;
use std::time::SystemTime;

use comity_core::time::{Span, Timestamp};
use comity_core::timeline::Reading;

/// What a process can read of the time.
pub trait Machine: Debug + Send + Sync {
    /// Which boot of which machine this is; empty where nothing tells.
    fn boot(&self) -> String;

    /// The time since it booted, sleep included. It never steps.
    fn up(&self) -> Span;

    /// The wall clock, which may be set at any moment.
    fn wall(&self) -> Timestamp;

    /// All of it.
    fn read(&self) -> Reading {
        Reading { boot: self.boot(), up: self.up(), wall: self.wall() }
    }
}

/// The machine that this process runs on.
#[derive(Debug, Clone, Copy, Default)]
pub struct ThisMachine;

impl Machine for ThisMachine {
    fn boot(&self) -> String {
        static BOOT: LazyLock<String> = LazyLock::new(boot);
        BOOT.clone()
    }

    fn up(&self) -> Span {
        up()
    }

    #[expect(clippy::disallowed_methods, reason = "this is what clocks are made of")]
    fn wall(&self) -> Timestamp {
        SystemTime::now().into()
    }
}

/// A namespace of its own may have a time since boot of its own.
fn boot() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let namespace = std::fs::read_link("/proc/self/ns/time").unwrap_or_default();
    format!("{} {}", id.trim(), namespace.display()).trim().to_owned()
}

#[cfg(unix)]
fn up() -> Span {
    use rustix::time::{ClockId, clock_gettime};
    #[cfg(target_os = "linux")]
    const SINCE_BOOT: ClockId = ClockId::Boottime;
    #[cfg(not(target_os = "linux"))]
    const SINCE_BOOT: ClockId = ClockId::Monotonic;
    let up = clock_gettime(SINCE_BOOT);
    Span::from_secs(up.tv_sec.max(0) as u64) + Span::from_micros(up.tv_nsec.max(0) as u64 / 1_000)
}

/// Where nothing tells, the wall clock is all there is.
#[cfg(not(unix))]
fn up() -> Span {
    ThisMachine.wall().since(Timestamp::from_secs(0))
}
