//! The paces of many domains, in a flat table: found by name once, and then by number.
//!
//! A name is hashed once; after that, a domain is an index. Slots are allocated in chunks, so that growing never copies
//! a million paces and wastes at most one chunk. Nothing is removed automatically: the owner of the table decides which
//! domains are idle.

use std::hash::{BuildHasher, Hasher};

use foldhash::fast::FixedState;
use hashbrown::HashTable;

use crate::domain::Domain;
use crate::pace::Pace;

/// The number of a domain in one table. Numbers of removed domains are reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DomainId(u32);

/// The paces of many domains.
#[derive(Debug)]
pub struct Paces {
    ids: HashTable<u32>,
    slots: Slots,
    free: Vec<u32>,
    hasher: FixedState,
}

#[derive(Debug, Default)]
struct Slots(Vec<Vec<Option<Slot>>>);

/// Two cache lines, so that one decision never touches three.
#[derive(Debug)]
#[repr(align(64))]
struct Slot {
    domain: Domain,
    pace: Pace,
}

impl Paces {
    /// An empty table. Names come from strangers and the core has no source of randomness, so the caller passes a
    /// `seed` that strangers don't know (hash flooding); in tests, any number will do.
    pub fn new(seed: u64) -> Self {
        let hasher = FixedState::with_seed(seed);
        Self { ids: HashTable::new(), slots: Slots::default(), free: Vec::new(), hasher }
    }

    /// The number of `domain`, if it is in the table.
    pub fn find(&self, domain: &Domain) -> Option<DomainId> {
        self.find_hashed(domain, hash(&self.hasher, domain))
    }

    /// The number of `domain`, which is added with a fresh pace if it is new.
    pub fn enter(&mut self, domain: &Domain) -> DomainId {
        self.enter_hashed(domain, hash(&self.hasher, domain))
    }

    /// Removes a domain and returns its pace.
    pub fn remove(&mut self, id: DomainId) -> Option<Pace> {
        let hash = hash(&self.hasher, &self.slots.get(id.0)?.domain);
        self.ids.find_entry(hash, |known| *known == id.0).ok()?.remove();
        self.free.push(id.0);
        self.slots.get_mut(id.0)?.take().map(|slot| slot.pace)
    }

    /// The pace of a domain; `None` if it was removed.
    pub fn pace(&self, id: DomainId) -> Option<&Pace> {
        self.slots.get(id.0).map(|slot| &slot.pace)
    }

    /// The pace of a domain, to change it.
    pub fn pace_mut(&mut self, id: DomainId) -> Option<&mut Pace> {
        self.slots.get_mut(id.0)?.as_mut().map(|slot| &mut slot.pace)
    }

    /// The name of a domain.
    pub fn domain(&self, id: DomainId) -> Option<&Domain> {
        self.slots.get(id.0).map(|slot| &slot.domain)
    }

    /// All domains with their paces, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (DomainId, &Domain, &Pace)> {
        let slots = self.slots.0.iter().flatten().zip(0..);
        slots.filter_map(|(slot, id)| slot.as_ref().map(|slot| (DomainId(id), &slot.domain, &slot.pace)))
    }

    /// The domains in a part of the table, as [`Self::iter`] returns them, and where the next part begins. Looking at one
    /// part after the other shows all domains, without looking at a million at once.
    pub fn part(&self, from: usize, slots: usize) -> (impl Iterator<Item = DomainId>, usize) {
        let end = from.saturating_add(slots).min(self.slots.len());
        let occupied = (from..end).filter_map(|id| self.slots.get(id as u32).map(|_| DomainId(id as u32)));
        (occupied, if end == self.slots.len() { 0 } else { end })
    }

    /// How many domains there are.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    #[inline]
    fn find_hashed(&self, domain: &Domain, hash: u64) -> Option<DomainId> {
        let same = |id: &u32| self.slots.get(*id).is_some_and(|slot| slot.domain == *domain);
        self.ids.find(hash, same).copied().map(DomainId)
    }

    #[inline]
    fn enter_hashed(&mut self, domain: &Domain, hash: u64) -> DomainId {
        self.find_hashed(domain, hash).unwrap_or_else(|| self.add(domain.clone(), hash))
    }

    fn add(&mut self, domain: Domain, hash: u64) -> DomainId {
        let slot = Some(Slot { domain, pace: Pace::default() });
        let id = match self.free.pop() {
            Some(id) => id,
            None => self.slots.push(),
        };
        if let Some(vacant) = self.slots.get_mut(id) {
            *vacant = slot;
        }
        let (slots, hasher) = (&self.slots, &self.hasher);
        let rehash = |id: &u32| slots.get(*id).map_or(0, |slot| self::hash(hasher, &slot.domain));
        self.ids.insert_unique(hash, id, rehash);
        DomainId(id)
    }
}

/// Hashes the bytes of the name.
#[inline]
fn hash(hasher: &FixedState, domain: &Domain) -> u64 {
    let mut hash = hasher.build_hasher();
    hash.write(domain.as_str().as_bytes());
    hash.finish()
}

impl Slots {
    #[inline]
    fn get(&self, id: u32) -> Option<&Slot> {
        self.0.get(id as usize / CHUNK)?.get(id as usize % CHUNK)?.as_ref()
    }

    #[inline]
    fn get_mut(&mut self, id: u32) -> Option<&mut Option<Slot>> {
        self.0.get_mut(id as usize / CHUNK)?.get_mut(id as usize % CHUNK)
    }

    /// Adds an empty slot and returns its number.
    fn push(&mut self) -> u32 {
        if self.0.last().is_none_or(|chunk| chunk.len() == CHUNK) {
            self.0.push(Vec::with_capacity(CHUNK));
        }
        let full = (self.0.len() - 1) * CHUNK;
        self.0.last_mut().map_or(0, |chunk| {
            chunk.push(None);
            (full + chunk.len() - 1) as u32
        })
    }

    /// How many slots there are, occupied or not.
    fn len(&self) -> usize {
        self.0.last().map_or(0, |last| (self.0.len() - 1) * CHUNK + last.len())
    }
}

/// Slots per chunk: 32 kB, and a power of two, so that finding a slot needs no division.
const CHUNK: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::intent::Intent;
    use crate::rule::Rule;
    use crate::time::Timestamp;

    fn domain(nth: usize) -> Domain {
        Domain::parse(&format!("host-{nth}.example")).unwrap()
    }

    #[test]
    fn a_domain_keeps_its_number_and_its_pace_while_the_table_grows() {
        let (mut paces, rule) = (Paces::new(1), Rule::default());
        let ids: Vec<DomainId> = (0..2_000).map(|nth| paces.enter(&domain(nth))).collect();
        for (nth, id) in ids.iter().enumerate() {
            let now = Timestamp::from_secs(nth as i64);
            paces.pace_mut(*id).unwrap().admit((&rule).into(), Intent::Fetch, now);
        }
        for (nth, id) in ids.iter().enumerate() {
            assert_eq!(paces.find(&domain(nth)), Some(*id));
            assert_eq!(paces.domain(*id), Some(&domain(nth)));
            assert_eq!(paces.pace(*id).unwrap().last_start(), Some(Timestamp::from_secs(nth as i64)));
        }
        assert_eq!((paces.len(), paces.iter().count()), (2_000, 2_000));
    }

    #[test]
    fn the_number_of_a_removed_domain_is_reused() {
        let mut paces = Paces::new(7);
        let [a, b] = [0, 1].map(|nth| paces.enter(&domain(nth)));
        assert_eq!(paces.remove(a), Some(Pace::default()));
        assert_eq!(paces.remove(a), None);
        assert_eq!((paces.find(&domain(0)), paces.pace(a), paces.domain(a)), (None, None, None));
        assert_eq!(paces.pace_mut(a), None);
        assert_eq!(paces.enter(&domain(2)), a);
        assert_eq!(paces.find(&domain(1)), Some(b));
        assert!(!paces.is_empty());
    }

    #[test]
    fn the_parts_of_the_table_show_every_domain_once() {
        let mut paces = Paces::new(3);
        assert_eq!(paces.part(0, 100).0.count(), 0);
        let ids: Vec<DomainId> = (0..1_000).map(|nth| paces.enter(&domain(nth))).collect();
        ids.iter().step_by(3).for_each(|id| drop(paces.remove(*id)));
        let (mut seen, mut from) = (Vec::new(), 0);
        loop {
            let (part, next) = paces.part(from, 300);
            seen.extend(part);
            from = next;
            if from == 0 {
                break;
            }
        }
        let left: Vec<DomainId> = paces.iter().map(|(id, ..)| id).collect();
        assert_eq!(seen, left);
        assert_eq!(left.len(), 666);
    }

    /// A million domains must fit: the limit is 200 bytes per domain with name and index, and the index takes up to 11.
    #[test]
    fn a_domain_takes_two_cache_lines() {
        assert_eq!((size_of::<Pace>(), size_of::<Option<Slot>>()), (104, 128));
    }
}
