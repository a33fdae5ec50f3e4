//! Handing a key over to its next waiter.

use super::acquire::FreeKeys;
use super::key_state::KeyState;
use super::node::PerKey;
use super::queues::{Lack, QueueScan};
use super::shared::SharedKey;
use super::turn::{Budget, units};
use super::{Access, Keyspace, Mode, Node, Now};

impl Node {
    /// Hands a key over to its next waiter, or to all shared waiters at the head of its queue.
    ///
    /// Returns whether it granted the key. Opens the key unless `entry` is given.
    ///
    /// The oldest waiter is first. A waiter for several keys is granted only when all its keys are
    /// free. Until then it is passed at first, and later its free keys are kept for it: see
    /// [`keep_keys`](super::queues::Queues::keep_keys).
    pub(super) fn hand_over<K: Keyspace>(
        &mut self,
        now: Now,
        queue: u32,
        entry: Option<K::Entry>,
        budget: &mut Budget,
        keyspace: &mut K,
    ) -> bool {
        if self.loading || self.abstention.why(now.monotonic).is_some() {
            return false;
        }
        if budget.is_spent() {
            // Other keys of the command, or of the turn, took all of it. A job does the rest.
            self.queues.check_if_wanted(queue, now.monotonic);
            return false;
        }
        let (db, hash, key) = self.queues.key(queue);
        let key = key.clone();
        let name = keyspace.name(&key);
        let mut entry = entry.unwrap_or_else(|| keyspace.open(db, &name, Access::Write));
        loop {
            self.handle_events(now, keyspace);
            let state = self.key_state(now.monotonic, (hash, db, &key), keyspace, &entry);
            if self.shared_lease(state).is_some() {
                let shared = SharedKey { db, hash, name: &name, entry: &mut entry, state };
                return self.hand_over_shared(now, queue, shared, budget, keyspace) > 0;
            }
            if let Some(lack) = self.lack(now, state, keyspace, &entry) {
                self.queues.found_taken(queue, lack);
                return false;
            }
            self.queues.forget_foreign(queue);
            let Some(place) = self.next_waiter(now, queue, budget) else { return false };
            if self.queues.waiter(place).mode == Mode::Shared {
                let shared = SharedKey { db, hash, name: &name, entry: &mut entry, state };
                return self.hand_over_shared(now, queue, shared, budget, keyspace) > 0;
            }
            if self.queues.is_single(place) {
                let free = FreeKeys {
                    db,
                    keys: std::slice::from_ref(&name),
                    hashes: &[hash],
                    entries: std::slice::from_mut(&mut entry),
                    have_ended: matches!(state, KeyState::Ended { .. }),
                };
                return self.grant_waiter(now, place, free, budget, keyspace);
            }
            drop(entry);
            if let Some(granted) = self.hand_over_several(now, place, budget, keyspace) {
                return granted;
            }
            entry = keyspace.open(db, &name, Access::Write);
        }
    }

    /// Grants a free or shared key to the shared waiters at the head of its queue.
    /// Returns the number of grants. The waiters that are left precede any newcomer.
    fn hand_over_shared<K: Keyspace>(
        &mut self,
        now: Now,
        mut queue: u32,
        mut key: SharedKey<'_, K>,
        budget: &mut Budget,
        keyspace: &mut K,
    ) -> u32 {
        let (mut has_tried, mut granted) = (false, 0);
        loop {
            match self.next_shared_waiter(now, queue, budget) {
                QueueScan::Found(place) if !has_tried || !budget.is_spent() => {
                    has_tried = true;
                    let is_granted =
                        self.grant_shared_waiter(now, place, &mut key, budget, keyspace);
                    granted += u32::from(is_granted);
                }
                QueueScan::NotFound => {
                    if let Some(lack) = self.lack(now, key.state, keyspace, key.entry) {
                        self.queues.found_taken(queue, lack);
                    }
                    return granted;
                }
                QueueScan::Found(_) | QueueScan::Spent => {
                    self.queues.check_at(queue, now.monotonic);
                    return granted;
                }
            }
            // A queue is removed with its last waiter.
            let Some(left) = self.queues.find(key.hash, key.db, key.name.as_ref()) else {
                return granted;
            };
            queue = left;
            let hashed_key = (key.hash, key.db, key.name.as_ref());
            key.state = self.key_state(now.monotonic, hashed_key, keyspace, key.entry);
        }
    }

    /// The next waiter that is not known to lack another key, unless the key is kept for an older
    /// one. A waiter that is known to lack another key becomes a candidate for that key.
    fn next_waiter(&mut self, now: Now, queue: u32, budget: &mut Budget) -> Option<u32> {
        loop {
            match self.queues.next_candidate(queue, now.monotonic, budget) {
                QueueScan::Found(place) if self.queues.is_single(place) => return Some(place),
                QueueScan::Found(place) if !budget.is_spent() => {
                    let Some((other, lack)) = self.known_lack(now, place, queue, budget) else {
                        return Some(place);
                    };
                    budget.spend(1);
                    self.queues.record_lack(place, other, lack);
                }
                QueueScan::Found(_) | QueueScan::Spent => {
                    // A job continues from here, in this turn or in the next.
                    self.queues.check_at(queue, now.monotonic);
                    return None;
                }
                // If the key is kept for an older waiter, the departure of that waiter plans a
                // check.
                QueueScan::NotFound => {
                    self.queues.cancel_check(queue);
                    return None;
                }
            }
        }
    }

    /// Another key that a waiter is known to lack, and why. Opens no key.
    fn known_lack(
        &mut self,
        now: Now,
        place: u32,
        queue: u32,
        budget: &mut Budget,
    ) -> Option<(u32, Lack)> {
        let keys = self.queues.queues_of(place).len();
        for index in 0..keys {
            let other = self.queues.queues_of(place)[index];
            if other == queue {
                continue;
            }
            budget.spend(1);
            let (db, hash, key) = self.queues.key(other);
            if let Some(lease) = self.leases.find(hash, db, key) {
                let lease = self.leases.get(lease);
                if self.leases.is_live(lease, now.monotonic) {
                    return Some((other, Lack::Held(lease.deadline)));
                }
            }
            if let Some(lack) = self.queues.known_lack(place, other, now.monotonic, budget) {
                return Some((other, lack));
            }
        }
        None
    }

    /// Grants a waiter all of its keys if they are free.
    /// Returns `None` if a key is not free: the waiter is then a candidate for that key. Otherwise
    /// returns whether the server accepted the writes.
    fn hand_over_several<K: Keyspace>(
        &mut self,
        now: Now,
        place: u32,
        budget: &mut Budget,
        keyspace: &mut K,
    ) -> Option<bool> {
        let queues = PerKey::from_slice(self.queues.queues_of(place));
        let mut names: Vec<K::Name> = Vec::with_capacity(queues.len());
        let mut hashes = Vec::with_capacity(queues.len());
        let mut in_db = 0;
        for &queue in &queues {
            let (db, hash, key) = self.queues.key(queue);
            names.push(keyspace.name(key));
            hashes.push(hash);
            in_db = db;
        }
        budget.spend(units(queues.len()).saturating_mul(2));
        let mut entries = self.open_all(now, in_db, &names, keyspace);
        for (index, &queue) in queues.iter().enumerate() {
            let key = (hashes[index], in_db, names[index].as_ref());
            let state = self.key_state(now.monotonic, key, keyspace, &entries[index]);
            if let Some(lack) = self.lack(now, state, keyspace, &entries[index]) {
                self.queues.record_lack(place, queue, lack);
                return None;
            }
        }
        let free = FreeKeys {
            db: in_db,
            keys: &names,
            hashes: &hashes,
            entries: &mut entries,
            have_ended: true,
        };
        Some(self.grant_waiter(now, place, free, budget, keyspace))
    }
}
