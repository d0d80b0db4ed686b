//! Remembers which payloads are in the archive already, within bounded memory: the oldest are forgotten first, and then
//! written again when they occur.

use std::collections::{HashMap, VecDeque};

use super::digest::Digest;
use super::exchange::Payload;
use super::record::Id;

/// A record that revisits can refer to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Original {
    pub(super) id: Id,
    pub(super) url: Box<str>,
    pub(super) date: Box<str>,
    /// The payload digest in the record.
    pub(super) digest: Digest,
}

/// The payloads in the archive.
#[derive(Debug)]
pub(super) struct KnownPayloads {
    originals: HashMap<Payload, Original>,
    /// The oldest first.
    order: VecDeque<Payload>,
    bytes: usize,
    bytes_max: usize,
}

impl KnownPayloads {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { originals: HashMap::new(), order: VecDeque::new(), bytes: 0, bytes_max }
    }

    pub(super) fn find(&self, payload: &Payload) -> Option<Original> {
        self.originals.get(payload).cloned()
    }

    /// Adds a payload, unless it is known already.
    pub(super) fn add(&mut self, payload: Payload, original: Original) {
        if self.originals.contains_key(&payload) {
            return;
        }
        self.bytes += original.size();
        self.originals.insert(payload, original);
        self.order.push_back(payload);
        while self.bytes > self.bytes_max
            && let Some(oldest) = self.order.pop_front()
        {
            let removed = self.originals.remove(&oldest);
            self.bytes -= removed.map_or(0, |removed| removed.size());
        }
    }

    /// Whether there is room for more.
    pub(super) fn has_room(&self) -> bool {
        self.bytes < self.bytes_max
    }
}

impl Original {
    /// The approximate size in memory.
    fn size(&self) -> usize {
        self.url.len() + self.date.len() + 160
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_are_forgotten_when_there_is_no_room() {
        let mut known = KnownPayloads::new(100 * 190);
        let payload = |nth: u32| Payload { digest: Digest::of(&nth.to_be_bytes()), is_chunked: false };
        let original = |nth: u32| Original {
            id: Id::random().unwrap(),
            url: format!("http://a.example/{nth:05}").into(),
            date: "now".into(),
            digest: payload(nth).digest,
        };
        (0..1_000).for_each(|nth| known.add(payload(nth), original(nth)));
        let count = (0..1_000).filter(|nth| known.find(&payload(*nth)).is_some()).count();
        assert!((90..=110).contains(&count), "{count}");
        assert!(known.find(&payload(999)).is_some() && known.find(&payload(0)).is_none());
        assert_eq!(known.originals.len(), known.order.len());
        // A known payload is not replaced.
        let first = known.find(&payload(999));
        known.add(payload(999), original(999));
        assert_eq!(known.find(&payload(999)), first);
    }
}
