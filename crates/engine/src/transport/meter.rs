//! How much a server says that is no part of an answer: interim answers, pings, settings, frames nobody knows.
//!
//! Each of them is small and allowed, and a flood of them would keep a core busy for as long as a request may take,
//! or a connection at rest. Limits on what is an answer are kept in [`super::body`] and by hyper.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What came over a connection since the last head of an answer.
#[derive(Default)]
pub(super) struct Meter {
    arrived: AtomicU64,
    /// As much of it as was handed out as a body.
    bodies: AtomicU64,
    overrun: AtomicBool,
}

impl Meter {
    /// The head of an answer arrived.
    pub(super) fn answered(&self) {
        self.arrived.store(0, Ordering::Relaxed);
        self.bodies.store(0, Ordering::Relaxed);
    }

    /// So much of a body was handed out.
    pub(super) fn handed_out(&self, bytes: usize) {
        self.bodies.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Whether the connection was given up because of what it said.
    pub(super) fn is_overrun(&self) -> bool {
        self.overrun.load(Ordering::Relaxed)
    }

    /// So much arrived; an error when that is too much.
    pub(super) fn arrived(&self, bytes: usize) -> io::Result<()> {
        let arrived = self.arrived.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64;
        let bodies = self.bodies.load(Ordering::Relaxed);
        if arrived > bodies.saturating_mul(OVERHEAD_MAX).saturating_add(NOISE_MAX) {
            self.overrun.store(true, Ordering::Relaxed);
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(())
    }
}

/// So much may come that is no body. The 5 MiB that HTTP/2 buffers for readers that are slow fit into it.
pub(super) const NOISE_MAX: u64 = 8 << 20;
/// So many bytes may come for each one of a body: a frame or chunk of one byte takes a dozen.
const OVERHEAD_MAX: u64 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_never_too_much_and_noise_soon_is() {
        let meter = Meter::default();
        for _ in 0..10_000 {
            meter.arrived(1 << 20).unwrap();
            meter.handed_out(1 << 20);
        }
        meter.answered();
        (0..8).for_each(|_| meter.arrived(1 << 20).unwrap());
        assert!(!meter.is_overrun() && meter.arrived(1).is_err() && meter.is_overrun());
    }
}
