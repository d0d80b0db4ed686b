//! Limits the bytes a server sends that are not part of a response: interim responses, pings, settings, unknown frames.
//!
//! Each of them is small and legal, but a flood of them would keep a CPU core busy for as long as a request or an idle
//! connection lasts. Limits on responses themselves are enforced in [`super::body`] and by hyper.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Counts the bytes received on a connection since the last response headers.
#[derive(Default)]
pub(super) struct NoiseMeter {
    arrived: AtomicU64,
    /// How many of them were part of a body.
    bodies: AtomicU64,
    overrun: AtomicBool,
}

impl NoiseMeter {
    /// Resets the count when response headers have arrived.
    pub(super) fn answered(&self) {
        self.arrived.store(0, Ordering::Relaxed);
        self.bodies.store(0, Ordering::Relaxed);
    }

    /// Counts bytes of a body.
    pub(super) fn handed_out(&self, bytes: usize) {
        self.bodies.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Stops counting: what arrives from now on isn't HTTP.
    pub(super) fn stop(&self) {
        self.bodies.store(u64::MAX, Ordering::Relaxed);
    }

    /// Whether the limit was exceeded.
    pub(super) fn is_overrun(&self) -> bool {
        self.overrun.load(Ordering::Relaxed)
    }

    /// Counts received bytes; an error if the limit is exceeded.
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

/// How many bytes may arrive that aren't part of a body. Includes the 5 MiB that HTTP/2 buffers for slow readers.
pub(super) const NOISE_MAX: u64 = 8 << 20;
/// How many bytes may arrive per byte of a body: a frame or chunk with a single byte takes a dozen.
const OVERHEAD_MAX: u64 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_never_exceed_the_limit_but_noise_soon_does() {
        let noise = NoiseMeter::default();
        for _ in 0..10_000 {
            noise.arrived(1 << 20).unwrap();
            noise.handed_out(1 << 20);
        }
        noise.answered();
        (0..8).for_each(|_| noise.arrived(1 << 20).unwrap());
        assert!(!noise.is_overrun() && noise.arrived(1).is_err() && noise.is_overrun());
    }
}
