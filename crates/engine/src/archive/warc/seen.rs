//! Which payloads are in the archive already, within bounded memory: the oldest are forgotten first, and what is
//! forgotten is written once more.

use std::collections::{HashMap, VecDeque};

use super::digest::Digest;
use super::exchange::Payload;
use super::record::Id;

/// A record that has a payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Original {
    pub(super) id: Id,
    pub(super) url: Box<str>,
    pub(super) date: Box<str>,
    /// What the record says the digest of its payload is.
    pub(super) digest: Digest,
}

/// The payloads that were seen.
#[derive(Debug)]
pub(super) struct Seen {
    originals: HashMap<Payload, Original>,
    /// The oldest first.
    order: VecDeque<Payload>,
    bytes: usize,
    bytes_max: usize,
}

impl Seen {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { originals: HashMap::new(), order: VecDeque::new(), bytes: 0, bytes_max }
    }

    pub(super) fn find(&self, payload: &Payload) -> Option<Original> {
        self.originals.get(payload).cloned()
    }

    /// Remembers a payload; what is known already stays as it is.
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
            let gone = self.originals.remove(&oldest);
            self.bytes -= gone.map_or(0, |gone| gone.size());
        }
    }

    /// Whether there is room for more.
    pub(super) fn has_room(&self) -> bool {
        self.bytes < self.bytes_max
    }
}

impl Original {
    /// About as much as it takes.
    fn size(&self) -> usize {
        self.url.len() + self.date.len() + 160
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_forgotten_when_there_is_no_room() {
        let mut seen = Seen::new(100 * 190);
        let payload = |nth: u32| Payload { digest: Digest::of(&nth.to_be_bytes()), is_chunked: false };
        let original = |nth: u32| Original {
            id: Id::random().unwrap(),
            url: format!("http://a.example/{nth:05}").into(),
            date: "now".into(),
            digest: payload(nth).digest,
        };
        (0..1_000).for_each(|nth| seen.add(payload(nth), original(nth)));
        let known = (0..1_000).filter(|nth| seen.find(&payload(*nth)).is_some()).count();
        assert!((90..=110).contains(&known), "{known}");
        assert!(seen.find(&payload(999)).is_some() && seen.find(&payload(0)).is_none());
        assert_eq!(seen.originals.len(), seen.order.len());
        // What is known stays what it was.
        let first = seen.find(&payload(999));
        seen.add(payload(999), original(999));
        assert_eq!(seen.find(&payload(999)), first);
    }
}
