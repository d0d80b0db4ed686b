//! Reads the machine's clocks: the wall clock, the time since boot, and which boot that was. It is a trait so that
//! tests can supply clocks; everybody else uses [`ThisMachine`].

use std::fmt::Debug;
use std::sync::LazyLock;
use std::time::SystemTime;

use comity_core::time::{Span, Timestamp};
use comity_core::timeline::ClockReading;

/// The clocks that a process can read.
pub trait Machine: Debug + Send + Sync {
    /// Identifies the machine and its current boot; empty if the platform does not provide that.
    fn boot(&self) -> String;

    /// The time since boot, including suspend. It never steps.
    fn up(&self) -> Span;

    /// The wall clock, which may be set at any time.
    fn wall(&self) -> Timestamp;

    /// Reads all clocks.
    fn read(&self) -> ClockReading {
        ClockReading { boot: self.boot(), up: self.up(), wall: self.wall() }
    }
}

/// The machine this process runs on.
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

/// The time namespace is included, because a namespace may have its own time since boot.
fn boot() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let namespace = std::fs::read_link("/proc/self/ns/time").unwrap_or_default();
    format!("{} {}", id.trim(), namespace.display()).trim().to_owned()
}

#[cfg(all(unix, feature = "boot-clock"))]
fn up() -> Span {
    use rustix::time::{ClockId, clock_gettime};
    #[cfg(target_os = "linux")]
    const SINCE_BOOT: ClockId = ClockId::Boottime;
    #[cfg(not(target_os = "linux"))]
    const SINCE_BOOT: ClockId = ClockId::Monotonic;
    let up = clock_gettime(SINCE_BOOT);
    Span::from_secs(up.tv_sec.max(0) as u64) + Span::from_micros(up.tv_nsec.max(0) as u64 / 1_000)
}

/// Platforms without a clock since boot fall back to the wall clock.
#[cfg(all(not(unix), feature = "boot-clock"))]
fn up() -> Span {
    ThisMachine.wall().since(Timestamp::from_secs(0))
}

/// Nobody else has to agree with this process: it may count from its own start. What it waits for gets longer if the
/// machine is suspended, never shorter.
#[cfg(not(feature = "boot-clock"))]
#[expect(clippy::disallowed_methods, reason = "this is what clocks are made of")]
fn up() -> Span {
    static START: LazyLock<std::time::Instant> = LazyLock::new(std::time::Instant::now);
    START.elapsed().into()
}
