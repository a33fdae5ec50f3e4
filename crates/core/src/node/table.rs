use std::hash::{BuildHasher, Hash, Hasher};

use foldhash::fast::FixedState;
use hashbrown::HashTable;
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
    /// An accident took the mirror: whatever is under the key now is not about this lease.
    mirror_lost: bool,
    hash: u64,
}

impl<B> Lease<B> {
    pub(super) fn mirror_lost(&self) -> bool {
        self.mirror_lost
    }
}

/// All of a lease, with the time at which its mirror is to be looked after.
type Whole<'a> = (u32, &'a [u8], &'a [u8], Option<&'a [u8]>, Fence, Monotonic, Option<Monotonic>);

/// What a new lease consists of.
pub(super) struct NewLease<B> {
    pub(super) db: u32,
    pub(super) key: B,
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

    pub(super) fn get_mut(&mut self, slot: u32) -> &mut Lease<B> {
        &mut self.leases[slot as usize]
    }

    /// Adds a lease. The key has none yet.
    pub(super) fn insert(&mut self, hash: u64, new: NewLease<B>) -> u32 {
        let NewLease { db, key, token, owner, fence, deadline } = new;
        debug_assert!(self.find(hash, db, key.as_ref()).is_none(), "a key has one lease");
        let lease = Lease { db, key, token, owner, fence, deadline, mirror_lost: false, hash };
        let slot = u32::try_from(self.leases.insert(lease))
            .expect("four thousand million leases do not fit in memory");
        self.by_key.insert_unique(hash, (hash, slot), |&(hash, _)| hash);
        self.deadlines.insert(slot, deadline);
        slot
    }

    pub(super) fn set_deadline(&mut self, slot: u32, deadline: Monotonic) {
        self.leases[slot as usize].deadline = deadline;
        self.deadlines.change(slot, deadline);
    }

    pub(super) fn remove(&mut self, slot: u32) -> Lease<B> {
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
                let Lease { db, key, token, owner, fence, deadline, mirror_lost, hash: _ } = lease;
                let repair_at = mirror_lost.then(|| self.repairs.at(slot));
                let owner = owner.as_ref().map(AsRef::as_ref);
                (*db, key.as_ref(), token.as_ref(), owner, *fence, *deadline, repair_at)
            })
            .collect();
        leases.sort_unstable();
        leases
    }

    /// Moves the leases that are kept into tables of their size.
    fn rebuild(&mut self, mut keep: impl FnMut(&Lease<B>) -> bool) {
        let old = std::mem::take(&mut self.leases);
        self.by_key = HashTable::new();
        self.deadlines = Deadlines::default();
        let repairs = std::mem::take(&mut self.repairs);
        for (old_slot, lease) in old {
            if !keep(&lease) {
                continue;
            }
            let Lease { db, key, token, owner, fence, deadline, mirror_lost, hash } = lease;
            let slot = self.insert(hash, NewLease { db, key, token, owner, fence, deadline });
            if mirror_lost {
                self.lose_mirror(slot, repairs.at(old_slot));
            }
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
