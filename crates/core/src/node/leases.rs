//! The lease table.

use std::collections::BTreeMap;
use std::hash::BuildHasher;

use foldhash::fast::FixedState;

use super::chunks::{Chunks, Next};
use super::holders::{Holders, NONE};
use super::index::HashIndex;
use super::node::PerKey;
use super::ticket::later_ticket;
use super::wheel::{Link, Step, Wheel};
use super::{Key, Monotonic, Token};
use crate::Fence;

/// One key of a lock that is held, or of an ended lock whose mirror is not removed yet.
#[derive(Clone, Debug, Default)]
pub(super) struct Lease {
    pub(super) key: Key,
    pub(super) token: Token,
    pub(super) owner: Option<Box<[u8]>>,
    pub(super) fence: Fence,
    /// The ticket of the holder; see [`Rank`](super::ticket::Rank).
    pub(super) ticket: Fence,
    pub(super) deadline: Monotonic,
    pub(super) granted: Monotonic,
    /// When the lease needs attention: at its deadline, or earlier for its mirror or for a holder.
    pub(super) attend_at: Monotonic,
    hash: u64,
    pub(super) db: u32,
    /// The epoch of the grant: see [`Leases::end_all`].
    epoch: u32,
    /// The lease of the next key of the same lock. The leases of a lock form a ring.
    next_key: u32,
    /// The [holders](Holders) of a shared lock; `NONE` for an exclusive one.
    group: u32,
    pub(super) link: Link,
    mirror: MirrorState,
    /// The value of the mirror of a revoked lock; `None` unless an operator revoked the lock.
    revoked: Option<Box<Token>>,
}

/// Whether other holders may share the key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mode {
    /// Only one holder has the key at a time.
    #[default]
    Exclusive,
    /// Any number of holders have the key at the same time.
    Shared,
}

/// What is known of the mirror of a lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum MirrorState {
    /// The mirror holds its [value](Lease::mirror_value), as far as the server has reported.
    #[default]
    Written,
    /// The mirror needs a check: a command may have changed it, or the server reloaded its data.
    Doubted,
    /// The mirror is missing: it expired early, was evicted, or could not be written. Another value
    /// under the key does not end the lease.
    Lost,
}

impl Lease {
    pub(super) fn mirror(&self) -> MirrorState {
        self.mirror
    }

    pub(super) fn hash(&self) -> u64 {
        self.hash
    }

    pub(super) fn mode(&self) -> Mode {
        if self.group == NONE { Mode::Exclusive } else { Mode::Shared }
    }

    /// Whether this token alone holds the key.
    /// Knowing the value of a shared lock's mirror does not make a client a holder.
    pub(super) fn is_held_by(&self, token: &[u8]) -> bool {
        self.group == NONE && self.token[..] == *token
    }

    pub(super) fn is_revoked(&self) -> bool {
        self.revoked.is_some()
    }

    /// Revokes the lock on this key. From now on the mirror holds `value`, which is no token.
    pub(super) fn revoke(&mut self, value: &[u8]) {
        self.revoked = Some(Box::new(Token::from_slice(value)));
    }

    /// The value of the mirror: the token, or the value that replaced it in a revoked lock.
    pub(super) fn mirror_value(&self) -> &[u8] {
        self.revoked.as_ref().map_or(&self.token[..], |value| &value[..])
    }

    /// Whether the lease ended with the lease of another key, before its own deadline.
    pub(super) fn ended_with_another(&self) -> bool {
        self.deadline == ENDED
    }
}

/// The deadline of a lease that ended with another key, and stays until its mirror is removed.
const ENDED: Monotonic = Monotonic::from_us(0);

/// What the leases of a new lock have in common, or a new holder of a shared lock.
pub(super) struct NewLock<'a> {
    pub(super) db: u32,
    pub(super) token: &'a [u8],
    pub(super) owner: Option<&'a [u8]>,
    pub(super) fence: Fence,
    pub(super) ticket: Fence,
    pub(super) granted: Monotonic,
    pub(super) deadline: Monotonic,
}

/// All leases of a node, found by key and by the time at which they need attention.
/// No operation moves more than one chunk or shard, however many leases there are. Memory grows and
/// shrinks with the number of leases.
#[derive(Clone, Debug)]
pub(super) struct Leases {
    hasher: FixedState,
    items: Chunks<Lease>,
    by_key: HashIndex,
    wheel: Wheel,
    holders: Holders,
    /// How many leases have a mirror that is missing, or may be.
    unmirrored: usize,
    ended: Ended,
    /// The next slot that [`Leases::sweep`] examines.
    sweep_from: Option<u32>,
    /// The next slot whose mirror [`Leases::doubt_next`] doubts.
    doubt_from: Option<u32>,
}

/// The leases that an operator ended all at once.
#[derive(Clone, Debug, Default)]
struct Ended {
    /// Increases each time [`Leases::end_all`] ends leases. A lease keeps the epoch of its grant.
    epoch: u32,
    /// Leases of an epoch before this one have ended, in all databases.
    before: u32,
    /// For each flushed or swapped database: its leases of an epoch before this one have ended.
    before_in: BTreeMap<u32, u32>,
}

impl Leases {
    pub(super) fn new(hash_seed: u64, shards: usize) -> Self {
        Self {
            hasher: FixedState::with_seed(hash_seed),
            items: Chunks::default(),
            by_key: HashIndex::new(shards),
            wheel: Wheel::default(),
            holders: Holders::new(hash_seed, shards),
            unmirrored: 0,
            ended: Ended::default(),
            sweep_from: None,
            doubt_from: None,
        }
    }

    pub(super) fn hash(&self, db: u32, key: &[u8]) -> u64 {
        self.hasher.hash_one((db, key))
    }

    /// The lease of a key, even if it is [stale](Leases::is_stale).
    pub(super) fn find(&self, hash: u64, db: u32, key: &[u8]) -> Option<u32> {
        self.by_key.find(hash, |slot| {
            let lease = &self.items[slot];
            lease.db == db && lease.key[..] == *key
        })
    }

    pub(super) fn get(&self, slot: u32) -> &Lease {
        &self.items[slot]
    }

    /// The number of leases. Each holder of a shared lock counts as one.
    pub(super) fn len(&self) -> usize {
        self.items.len() - self.holders.groups() + self.holders.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    #[cfg(feature = "memory")]
    pub(super) fn deadlines(&self) -> impl Iterator<Item = Monotonic> {
        self.items.iter().map(|(_, lease)| lease.deadline).chain(self.holders.deadlines())
    }

    pub(super) fn holders(&self) -> &Holders {
        &self.holders
    }

    /// The group of the holders of a shared lock; `None` for an exclusive one.
    pub(super) fn group(&self, slot: u32) -> Option<u32> {
        Some(self.items[slot].group).filter(|&group| group != NONE)
    }

    /// The first lease in `from` or a later slot, including stale ones.
    /// A lease stays in its slot until it is removed.
    pub(super) fn next_from(&self, from: u32, budget: &mut u32) -> Next {
        self.items.next_from(from, budget)
    }

    pub(super) fn lacks_mirrors(&self) -> bool {
        self.unmirrored > 0 || self.doubt_from.is_some()
    }

    /// Adds the leases of a lock whose keys have no lease yet. Returns the lease of the first key.
    pub(super) fn insert<'k>(
        &mut self,
        hashes: &[u64],
        keys: impl Iterator<Item = &'k [u8]>,
        new: &NewLock<'_>,
    ) -> u32 {
        let mut ring: Option<(u32, u32)> = None;
        for (&hash, key) in hashes.iter().zip(keys) {
            let slot = self.insert_one(hash, key, new);
            match &mut ring {
                None => ring = Some((slot, slot)),
                Some((first, last)) => {
                    self.items[*last].next_key = slot;
                    self.items[slot].next_key = *first;
                    *last = slot;
                }
            }
        }
        ring.expect("a lock has a key").0
    }

    fn insert_one(&mut self, hash: u64, key: &[u8], new: &NewLock<'_>) -> u32 {
        let &NewLock { db, token, owner, fence, ticket, granted, deadline } = new;
        debug_assert!(self.find(hash, db, key).is_none(), "a key has one lease");
        // Filled in its place: a copy of what was just written would wait for the writes.
        let slot = self.items.insert(Lease { group: NONE, ..Lease::default() });
        let lease = &mut self.items[slot];
        lease.key = Key::from_slice(key);
        lease.token = Token::from_slice(token);
        lease.owner = owner.map(Into::into);
        lease.fence = fence;
        lease.ticket = ticket;
        lease.deadline = deadline;
        lease.granted = granted;
        lease.attend_at = deadline;
        lease.hash = hash;
        lease.db = db;
        lease.epoch = self.ended.epoch;
        lease.next_key = slot;
        self.by_key.insert(hash, slot);
        self.wheel.insert(&mut self.items, slot);
        slot
    }

    /// Removes the lease of a lock without other keys.
    pub(super) fn remove(&mut self, slot: u32) {
        debug_assert!(self.items[slot].next_key == slot, "the keys of a lock end together");
        self.wheel.remove(&mut self.items, slot);
        let lease = self.items.remove(slot);
        debug_assert!(lease.group == NONE, "its holders end first");
        self.unmirrored -= usize::from(lease.mirror.is_unmirrored());
        self.by_key.remove(lease.hash, slot);
    }

    /// Turns the lease of one key into the lease of a shared lock, whose first holder is its own.
    /// From now on its mirror holds `value`, which no client knows.
    pub(super) fn share(&mut self, slot: u32, value: &[u8], floor: Fence) {
        debug_assert!(self.items[slot].next_key == slot, "a shared lock has one key");
        let group = self.holders.open(floor);
        let lease = &mut self.items[slot];
        let token = &std::mem::replace(&mut lease.token, Token::from_slice(value))[..];
        let owner = lease.owner.take();
        lease.group = group;
        let &mut Lease { db, fence, ticket, granted, deadline, .. } = lease;
        let owner = owner.as_deref();
        let holder = NewLock { db, token, owner, fence, ticket, granted, deadline };
        self.holders.insert(group, &holder);
        self.follow_holders(slot);
    }

    pub(super) fn join(&mut self, slot: u32, holder: &NewLock<'_>) {
        self.holders.insert(self.items[slot].group, holder);
        self.follow_holders(slot);
    }

    /// Removes a holder of a shared lock. Returns whether it was the last.
    /// If it was, the caller must [end the group](Self::end_holders) and then remove the lease.
    pub(super) fn leave(&mut self, slot: u32, holder: u32) -> bool {
        self.holders.remove(holder);
        let is_last = self.holders.count(self.items[slot].group) == 0;
        if !is_last {
            self.follow_holders(slot);
        }
        is_last
    }

    pub(super) fn extend_holder(&mut self, slot: u32, holder: u32, deadline: Monotonic) {
        self.holders.extend(holder, deadline);
        self.follow_holders(slot);
    }

    /// The holders of all shared locks, for any change except [of a deadline](Self::extend_holder).
    pub(super) fn holders_mut(&mut self) -> &mut Holders {
        &mut self.holders
    }

    /// Sets the deadline to the latest deadline of a holder. The lease needs attention at the
    /// earliest one.
    fn follow_holders(&mut self, slot: u32) {
        let lease = &mut self.items[slot];
        if let Some(deadline) = self.holders.last_end(lease.group) {
            lease.deadline = deadline;
        }
        let planned = (lease.mirror != MirrorState::Written).then_some(lease.attend_at);
        let first_end = self.first_end(slot);
        self.attend(slot, planned.map_or(first_end, |at| at.min(first_end)));
    }

    /// When the first holder of a shared lock ends. An exclusive lock has one holder.
    fn first_end(&self, slot: u32) -> Monotonic {
        let first_end = self.group(slot).and_then(|group| self.holders.first_end(group));
        first_end.map_or(self.items[slot].deadline, |(at, _)| at)
    }

    /// A holder whose deadline has passed, if others still share the lock.
    pub(super) fn ended_holder(&self, slot: u32, now: Monotonic) -> Option<u32> {
        let group = self.group(slot).filter(|_| now < self.items[slot].deadline)?;
        self.holders.first_end(group).filter(|(at, _)| *at <= now).map(|(_, holder)| holder)
    }

    /// Ends the holders of a shared lock that ends, and returns how many there were; `None` for an
    /// exclusive lock.
    pub(super) fn end_holders(&mut self, slot: u32) -> Option<u32> {
        let group = std::mem::replace(&mut self.items[slot].group, NONE);
        (group != NONE).then(|| self.holders.end(group))
    }

    /// Ends the lock on its next key and returns that key's lease.
    /// The lease stays until its mirror is removed. Returns `None` for a lock without other keys.
    pub(super) fn end_next(&mut self, slot: u32) -> Option<u32> {
        let next = self.next_key(slot);
        if next == slot {
            return None;
        }
        self.items[slot].next_key = self.next_key(next);
        self.items[next].next_key = next;
        self.items[next].deadline = ENDED;
        self.attend(next, ENDED);
        Some(next)
    }

    /// The lease of the next key of the same lock; for a lock of one key, the same lease.
    pub(super) fn next_key(&self, slot: u32) -> u32 {
        self.items[slot].next_key
    }

    /// The leases of all keys of a lock, from `first` on.
    pub(super) fn ring(&self, first: u32) -> impl Iterator<Item = u32> {
        std::iter::successors(Some(first), move |&lease| {
            Some(self.next_key(lease)).filter(|&next| next != first)
        })
    }

    /// Changes the leases of all keys of a lock, except for [their deadlines](Leases::extend).
    pub(super) fn change_all(&mut self, slot: u32, mut change: impl FnMut(&mut Lease)) {
        let leases: PerKey<u32> = self.ring(slot).collect();
        leases.into_iter().for_each(|lease| change(&mut self.items[lease]));
    }

    /// Records the ticket of a holder that asks again.
    pub(super) fn ask_again(&mut self, slot: u32, token: &[u8], ticket: Fence) {
        let group = self.items[slot].group;
        if group == NONE {
            self.change_all(slot, |lease| lease.ticket = later_ticket(lease.ticket, ticket));
        } else if let Some(holder) = self.holders.find(group, token) {
            let ticket = later_ticket(self.holders.get(holder).ticket(), ticket);
            self.holders.set_ticket(holder, ticket);
        }
    }

    /// Moves the deadline of a lock, on all its keys.
    pub(super) fn extend(&mut self, slot: u32, deadline: Monotonic) {
        let leases: PerKey<u32> = self.ring(slot).collect();
        for slot in leases {
            let lease = &mut self.items[slot];
            lease.deadline = deadline;
            // A planned check of the mirror keeps its time.
            if lease.mirror == MirrorState::Written {
                self.attend(slot, deadline);
            }
        }
    }

    /// Records that the mirror has the value that it should have.
    pub(super) fn regain_mirror(&mut self, slot: u32) {
        if self.items[slot].mirror != MirrorState::Written {
            let at = self.items[slot].deadline;
            self.set_mirror(slot, MirrorState::Written, at);
        }
    }

    /// Records the mirror state. Plans a check at `attend_at`, or at the first end if earlier.
    /// `Monotonic::default()` means at once.
    pub(super) fn set_mirror(&mut self, slot: u32, mirror: MirrorState, attend_at: Monotonic) {
        let lease = &mut self.items[slot];
        self.unmirrored -= usize::from(lease.mirror.is_unmirrored());
        lease.mirror = mirror;
        self.unmirrored += usize::from(mirror.is_unmirrored());
        let at = attend_at.min(self.first_end(slot));
        self.attend(slot, at);
    }

    /// Plans a check of every mirror, because all keys may have changed.
    ///
    /// Until [`Self::doubt_next`] reaches a lease, the lease is as safe as any other: every command
    /// and every job compares the mirror first.
    pub(super) fn doubt_all_mirrors(&mut self) {
        self.doubt_from = (!self.items.is_empty()).then_some(0);
    }

    pub(super) fn is_doubting(&self) -> bool {
        self.doubt_from.is_some()
    }

    /// Plans a check of the next mirror, or passes this number of vacant slots.
    pub(super) fn doubt_next(&mut self, mut vacant_slots: u32) {
        let Some(from) = self.doubt_from else { return };
        self.doubt_from = match self.items.next_from(from, &mut vacant_slots) {
            Next::Item(slot) => {
                // A reload does not restore a mirror that was lost before.
                let mirror = match self.items[slot].mirror {
                    MirrorState::Lost => MirrorState::Lost,
                    _ => MirrorState::Doubted,
                };
                self.set_mirror(slot, mirror, Monotonic::default());
                Some(slot + 1)
            }
            Next::Spent(slot) => Some(slot),
            Next::End => None,
        };
    }

    fn attend(&mut self, slot: u32, at: Monotonic) {
        if self.items[slot].attend_at == at {
            return;
        }
        self.wheel.remove(&mut self.items, slot);
        self.items[slot].attend_at = at;
        self.wheel.insert(&mut self.items, slot);
    }

    pub(super) fn step(&mut self, now: Monotonic) -> Step {
        self.wheel.step(&mut self.items, now)
    }

    /// When to call [`Self::step`] or a sweep next.
    pub(super) fn next_step_at(&self) -> Option<Monotonic> {
        if self.is_sweeping() || self.is_doubting() {
            return Some(Monotonic::default());
        }
        self.wheel.next_step_at()
    }

    /// Ends all leases of one database, or of every database, on behalf of an operator.
    /// They are [stale](Self::is_stale) from now on, and [`Leases::sweep`] removes them in steps.
    pub(super) fn end_all(&mut self, db: Option<u32>) {
        if self.items.is_empty() {
            return;
        }
        self.ended.epoch += 1;
        match db {
            None => self.ended.before = self.ended.epoch,
            Some(db) => {
                self.ended.before_in.insert(db, self.ended.epoch);
            }
        }
        self.sweep_from = Some(0);
    }

    /// Whether an operator ended the lease together with others, and it is not removed yet.
    pub(super) fn is_stale(&self, lease: &Lease) -> bool {
        let ended = &self.ended;
        lease.epoch != ended.epoch
            && (lease.epoch < ended.before
                || ended.before_in.get(&lease.db).is_some_and(|before| lease.epoch < *before))
    }

    /// Whether the lease holds its key now.
    pub(super) fn is_live(&self, lease: &Lease, now: Monotonic) -> bool {
        now < lease.deadline && !self.is_stale(lease)
    }

    /// Whether there may be stale leases, or holders of locks that have ended.
    pub(super) fn is_sweeping(&self) -> bool {
        self.sweep_from.is_some() || self.holders.is_sweeping()
    }

    /// Removes a holder of an ended lock, or examines the next `slots` slots for stale leases.
    /// Returns the first stale lease that it found.
    pub(super) fn sweep(&mut self, slots: u32) -> Option<u32> {
        if self.holders.is_sweeping() {
            self.holders.sweep();
            return None;
        }
        let from = self.sweep_from?;
        let end = self.items.slots_end().min(from.saturating_add(slots));
        for slot in from..end {
            if self.items.get(slot).is_some_and(|lease| self.is_stale(lease)) {
                self.sweep_from = Some(slot);
                return Some(slot);
            }
        }
        self.sweep_from = Some(end);
        if end == self.items.slots_end() {
            self.sweep_from = None;
            self.ended.before_in.clear();
        }
        None
    }
}

impl MirrorState {
    fn is_unmirrored(self) -> bool {
        self != Self::Written
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn insert(leases: &mut Leases, key: u32, at_us: u64) -> u32 {
        let (key, token, at) = (key.to_le_bytes(), b"t", Monotonic::from_us(at_us));
        let hash = leases.hash(0, &key);
        let (owner, fence, ticket) = (None, Fence::ZERO, Fence::ZERO);
        let new = NewLock { db: 0, token, owner, fence, ticket, granted: at, deadline: at };
        leases.insert(&[hash], std::iter::once(&key[..]), &new)
    }

    /// Removes and returns all due leases.
    fn due(leases: &mut Leases, now: Monotonic) -> BTreeSet<u32> {
        let mut due = BTreeSet::new();
        loop {
            match leases.step(now) {
                Step::Due(slot) => {
                    leases.remove(slot);
                    due.insert(slot);
                }
                Step::Sorted => {}
                Step::Idle => return due,
            }
        }
    }

    proptest! {
        #[test]
        fn lease_is_due_exactly_when_its_time_has_come(
            actions in prop::collection::vec((0..5_u32, 0..1_u64 << 40, 0..1_u64 << 36), 1..200),
        ) {
            let (mut leases, mut keys) = (Leases::new(7, 4), 0..);
            let mut model: BTreeSet<(u64, u32)> = BTreeSet::new();
            let mut now_us = 0_u64;
            for (action, ahead_us, passed_us) in actions {
                let ahead_us = ahead_us >> (ahead_us % 40);
                let index = usize::try_from(ahead_us).expect("a time fits");
                match action {
                    0..=2 => {
                        let at = now_us + ahead_us;
                        model.insert((at, insert(&mut leases, keys.next().expect("endless"), at)));
                    }
                    3 => if let Some(&(at, slot)) = model.iter().nth(index % (model.len() + 1)) {
                        leases.remove(slot);
                        model.remove(&(at, slot));
                    },
                    _ => {
                        now_us += passed_us >> (passed_us % 36);
                        let expected: BTreeSet<_> =
                            model.iter().filter(|(at, _)| *at <= now_us).map(|&(_, slot)| slot).collect();
                        prop_assert_eq!(due(&mut leases, Monotonic::from_us(now_us)), expected);
                        model.retain(|(at, _)| *at > now_us);
                    }
                }
                let soonest = model.first().map(|&(at, _)| at);
                let next_at = leases.next_step_at().map(Monotonic::us);
                prop_assert_eq!(soonest.is_some(), next_at.is_some());
                prop_assert!(next_at <= soonest, "the wheel wakes no later than its first lease");
            }
        }
    }

    #[test]
    fn doubt_after_a_reload_moves_one_lease_at_a_time() {
        let mut leases = Leases::new(7, 4);
        for key in 0..1000 {
            insert(&mut leases, key, 1000);
        }
        leases.doubt_all_mirrors();
        assert!(leases.lacks_mirrors() && leases.unmirrored == 0, "nothing is moved yet");
        for moved in 1..=1000 {
            leases.doubt_next(16);
            assert_eq!(leases.unmirrored, moved);
        }
        while leases.is_doubting() {
            leases.doubt_next(16);
        }
        assert_eq!(leases.unmirrored, 1000);
    }

    #[test]
    fn lease_and_holder_stay_small() {
        assert!(size_of::<Lease>() <= 176, "{} bytes", size_of::<Lease>());
        assert!(size_of::<super::super::holders::SharedHolder>() <= 112);
    }
}
