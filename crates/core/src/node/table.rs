use std::hash::{BuildHasher, Hash, Hasher};

use foldhash::fast::FixedState;
use hashbrown::{HashMap, HashTable};
use slab::Slab;

use super::Monotonic;
use super::deadlines::Deadlines;
use crate::Fence;

/// A lock that somebody holds on this node, or whose mirror is still to be removed.
#[derive(Clone, Debug)]
pub(super) struct Lease<B> {
    pub(super) db: u32,
    pub(super) key: B,
    pub(super) token: B,
    pub(super) owner: Option<B>,
    pub(super) fence: Fence,
    pub(super) deadline: Monotonic,
    /// The lease of the next key of the same lock. Those of all its keys form a ring, in which a lock of one key is alone.
    next: u32,
    /// An accident took the mirror: whatever is under the key now is not about this lease.
    mirror_lost: bool,
    hash: u64,
}

/// The deadline of a lease that ended with the lease of another key of its lock, and only waits for its mirror to be
/// removed: before every moment there is.
const ENDED: Monotonic = Monotonic::from_us(0);

impl<B> Lease<B> {
    pub(super) fn mirror_lost(&self) -> bool {
        self.mirror_lost
    }

    pub(super) fn hash(&self) -> u64 {
        self.hash
    }

    /// Whether it ended with the lease of another key, before its deadline had come here.
    pub(super) fn has_ended(&self) -> bool {
        self.deadline == ENDED
    }
}

/// All of a lease: its key, the next key of its lock, and the time at which its mirror is to be looked after.
type Whole<'a> = (u32, &'a [u8], &'a [u8], &'a [u8], Option<&'a [u8]>, Fence, Monotonic, Option<Monotonic>);

/// What a new lock consists of, besides its keys.
pub(super) struct NewLock<B> {
    pub(super) db: u32,
    pub(super) token: B,
    pub(super) owner: Option<B>,
    pub(super) fence: Fence,
    pub(super) deadline: Monotonic,
}

/// All leases of a node, found by key and by deadline. Memory follows the number of leases, down as well as up.
#[derive(Clone, Debug)]
pub(super) struct Table<B> {
    hasher: FixedState,
    leases: Slab<Lease<B>>,
    /// The hash of each key, so that moving to a larger table does not look at every lease, and its slot.
    by_key: HashTable<(u64, u32)>,
    deadlines: Deadlines,
    /// When to look after the mirrors that accidents took: those of the leases whose mirror is lost.
    repairs: Deadlines,
}

/// Below this many leases memory is not given back.
const SHRINK_ABOVE: usize = 1024;

impl<B: AsRef<[u8]>> Table<B> {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            hasher: FixedState::with_seed(seed),
            leases: Slab::new(),
            by_key: HashTable::new(),
            deadlines: Deadlines::default(),
            repairs: Deadlines::default(),
        }
    }

    pub(super) fn hash(&self, db: u32, key: &[u8]) -> u64 {
        self.hasher.hash_one((db, key))
    }

    pub(super) fn find(&self, hash: u64, db: u32, key: &[u8]) -> Option<u32> {
        let leases = &self.leases;
        self.by_key
            .find(hash, |&(other, slot)| {
                other == hash && {
                    let lease = &leases[slot as usize];
                    lease.db == db && lease.key.as_ref() == key
                }
            })
            .map(|&(_, slot)| slot)
    }

    pub(super) fn get(&self, slot: u32) -> &Lease<B> {
        &self.leases[slot as usize]
    }

    /// The mirror is lost; it is to be looked after at that time. Also moves that time.
    pub(super) fn lose_mirror(&mut self, slot: u32, repair_at: Monotonic) {
        let lease = &mut self.leases[slot as usize];
        if lease.mirror_lost {
            self.repairs.change(slot, repair_at);
        } else {
            lease.mirror_lost = true;
            self.repairs.insert(slot, repair_at);
        }
    }

    /// The mirror is there again.
    pub(super) fn regain_mirror(&mut self, slot: u32) {
        let lease = &mut self.leases[slot as usize];
        if std::mem::take(&mut lease.mirror_lost) {
            self.repairs.remove(slot);
        }
    }

    /// All mirrors may be lost: they are to be looked after at that time.
    pub(super) fn lose_all_mirrors(&mut self, repair_at: Monotonic) {
        let slots: Vec<_> = self.by_key.iter().map(|&(_, slot)| slot).collect();
        for slot in slots {
            self.lose_mirror(slot, repair_at);
        }
    }

    /// The lease of the next key of the same lock; of a lock of one key that lease itself.
    pub(super) fn next(&self, slot: u32) -> u32 {
        self.get(slot).next
    }

    /// How many keys the lock has.
    pub(super) fn keys(&self, slot: u32) -> usize {
        let (mut keys, mut other) = (1, self.next(slot));
        while other != slot {
            (keys, other) = (keys + 1, self.next(other));
        }
        keys
    }

    /// Adds a lease, of a lock of this one key for now. The key has none yet.
    fn insert(&mut self, hash: u64, key: B, new: NewLock<B>) -> u32 {
        let NewLock { db, token, owner, fence, deadline } = new;
        debug_assert!(self.find(hash, db, key.as_ref()).is_none(), "a key has one lease");
        let entry = self.leases.vacant_entry();
        let slot = u32::try_from(entry.key()).expect("four thousand million leases do not fit in memory");
        entry.insert(Lease { db, key, token, owner, fence, deadline, next: slot, mirror_lost: false, hash });
        self.by_key.insert_unique(hash, (hash, slot), |&(hash, _)| hash);
        self.deadlines.insert(slot, deadline);
        slot
    }

    /// Sets when the lock ends, on all its keys.
    pub(super) fn set_deadline(&mut self, slot: u32, deadline: Monotonic) {
        self.each_of(slot, |lease| lease.deadline = deadline);
        self.deadlines.change(slot, deadline);
        let mut other = self.next(slot);
        while other != slot {
            self.deadlines.change(other, deadline);
            other = self.next(other);
        }
    }

    /// Does something to the leases of all keys of a lock.
    pub(super) fn each_of(&mut self, slot: u32, mut change: impl FnMut(&mut Lease<B>)) {
        let mut at = slot;
        loop {
            let lease = &mut self.leases[at as usize];
            change(lease);
            at = lease.next;
            if at == slot {
                return;
            }
        }
    }

    /// Ends the lock on its next key, whose lease stays until its mirror is gone: that lease. `None` for a lock that has no
    /// other key.
    pub(super) fn end_next(&mut self, slot: u32) -> Option<u32> {
        let next = self.next(slot);
        if next == slot {
            return None;
        }
        self.leases[slot as usize].next = self.next(next);
        self.leases[next as usize].next = next;
        self.set_deadline(next, ENDED);
        Some(next)
    }

    /// Removes the lease of a lock that has no other key, or none any more.
    pub(super) fn remove(&mut self, slot: u32) -> Lease<B> {
        debug_assert!(self.next(slot) == slot, "the keys of a lock end together");
        self.regain_mirror(slot);
        self.deadlines.remove(slot);
        let lease = self.leases.remove(slot as usize);
        if let Ok(entry) = self.by_key.find_entry(lease.hash, |&(_, other)| other == slot) {
            entry.remove();
        }
        lease
    }

    /// Moves the leases into tables of their size, when those they are in are much larger.
    pub(super) fn give_back_memory(&mut self) {
        if self.leases.capacity() > SHRINK_ABOVE && self.leases.len() < self.leases.capacity() / 8 {
            self.rebuild(|_| true);
        }
    }

    pub(super) fn soonest(&self) -> Option<(Monotonic, u32)> {
        self.deadlines.soonest()
    }

    pub(super) fn soonest_repair(&self) -> Option<(Monotonic, u32)> {
        self.repairs.soonest()
    }

    pub(super) fn len(&self) -> usize {
        self.leases.len()
    }

    /// Removes all leases but those that `keep` tells to keep, and says how many are gone.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(&Lease<B>) -> bool) -> usize {
        let before = self.len();
        self.rebuild(|lease| keep(lease));
        before - self.len()
    }

    /// All leases in the order of their keys, wherever they happen to be kept.
    fn in_order(&self) -> Vec<Whole<'_>> {
        let mut leases: Vec<_> = self
            .leases
            .iter()
            .map(|(slot, lease)| {
                let Lease { db, key, token, owner, fence, deadline, next, mirror_lost, hash: _ } = lease;
                let repair_at = mirror_lost.then(|| self.repairs.at(slot));
                let owner = owner.as_ref().map(AsRef::as_ref);
                let next = self.get(*next).key.as_ref();
                (*db, key.as_ref(), next, token.as_ref(), owner, *fence, *deadline, repair_at)
            })
            .collect();
        leases.sort_unstable();
        leases
    }

    /// Moves the leases that are kept into tables of their size. All of a lock are kept, or none.
    fn rebuild(&mut self, mut keep: impl FnMut(&Lease<B>) -> bool) {
        let old = std::mem::take(&mut self.leases);
        self.by_key = HashTable::new();
        self.deadlines = Deadlines::default();
        let repairs = std::mem::take(&mut self.repairs);
        let mut moved = HashMap::with_hasher(FixedState::default());
        let mut in_rings = Vec::new();
        for (old_slot, lease) in old {
            if !keep(&lease) {
                continue;
            }
            let Lease { db, key, token, owner, fence, deadline, next, mirror_lost, hash } = lease;
            let slot = self.insert(hash, key, NewLock { db, token, owner, fence, deadline });
            if mirror_lost {
                self.lose_mirror(slot, repairs.at(old_slot));
            }
            if next as usize != old_slot {
                moved.insert(old_slot, slot);
                in_rings.push((slot, next as usize));
            }
        }
        for (slot, next) in in_rings {
            self.leases[slot as usize].next = moved[&next];
        }
    }
}

impl<B: AsRef<[u8]> + Clone> Table<B> {
    /// Adds the leases of a lock, of whose keys none has one yet, in their order: the lease of the first.
    pub(super) fn insert_lock(
        &mut self,
        hashes: &[u64],
        mut keys: impl Iterator<Item = B>,
        new: NewLock<B>,
    ) -> u32 {
        let first = self.insert(hashes[0], keys.next().expect("a lock has a key"), new);
        if hashes.len() > 1 {
            self.insert_others(first, &hashes[1..], keys);
        }
        first
    }

    fn insert_others(&mut self, first: u32, hashes: &[u64], keys: impl Iterator<Item = B>) {
        let mut last = first;
        for (&hash, key) in hashes.iter().zip(keys) {
            let Lease { db, token, owner, fence, deadline, .. } = self.get(first);
            let (token, owner) = (token.clone(), owner.clone());
            let new = NewLock { db: *db, token, owner, fence: *fence, deadline: *deadline };
            let slot = self.insert(hash, key, new);
            self.leases[last as usize].next = slot;
            self.leases[slot as usize].next = first;
            last = slot;
        }
    }
}

impl<B: AsRef<[u8]>> PartialEq for Table<B> {
    fn eq(&self, other: &Self) -> bool {
        self.in_order() == other.in_order()
    }
}

impl<B: AsRef<[u8]>> Eq for Table<B> {}

impl<B: AsRef<[u8]>> Hash for Table<B> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.in_order().hash(state);
    }
}
