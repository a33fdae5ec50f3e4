//! Handing a key over to its next waiter.

use super::acquire::FreeKeys;
use super::key_state::KeyState;
use super::node::PerKey;
use super::queues::{Lack, QueueScan};
use super::turn::{Budget, units};
use super::{Access, Keyspace, Mode, Node, Now};

impl Node {
    /// Hands a key over to its next waiter, or to all shared waiters at the head of its queue.
    ///
    /// Returns whether it granted the key. Opens the key unless `entry` is given. Shared waiters
    /// that are left when the budget is spent precede any newcomer.
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
            self.queues.check_by(queue, now.monotonic);
            return false;
        }
        let (db, hash, key) = self.queues.key(queue);
        let key = key.clone();
        let name = keyspace.name(&key);
        let mut entry = entry.unwrap_or_else(|| keyspace.open(db, &name, Access::Write));
        let (mut has_answered, mut granted) = (false, false);
        loop {
            self.handle_events(now, keyspace);
            // A queue is removed with its last waiter.
            let Some(queue) = self.queues.find(hash, db, &key) else { return granted };
            let state = self.key_state(now.monotonic, (hash, db, &key), keyspace, &entry);
            let joined = self.shared_lease(state);
            let lack = self.lack(now, state, keyspace, &entry);
            let next = match lack {
                None => {
                    self.queues.forget_foreign(queue);
                    self.next_waiter(now, queue, budget)
                }
                Some(_) if joined.is_some() => self.next_shared_waiter(now, queue, budget),
                Some(_) => QueueScan::NotFound,
            };
            let place = match next {
                QueueScan::Found(place) if !has_answered || !budget.is_spent() => place,
                QueueScan::Found(_) | QueueScan::Spent => {
                    // A job continues from here, in this turn or in the next.
                    self.queues.check_at(queue, now.monotonic);
                    return granted;
                }
                QueueScan::NotFound => {
                    match lack {
                        Some(lack) => self.queues.found_taken(queue, lack),
                        // If the key is kept for an older waiter, the departure of that waiter
                        // plans a check.
                        None => self.queues.cancel_check(queue),
                    }
                    return granted;
                }
            };
            if self.queues.is_single(place) {
                let is_shared = self.queues.waiter(place).mode == Mode::Shared;
                let free = FreeKeys {
                    db,
                    keys: std::slice::from_ref(&name),
                    hashes: &[hash],
                    entries: std::slice::from_mut(&mut entry),
                    have_ended: matches!(state, KeyState::Ended { .. }),
                    joined,
                };
                granted |= self.grant_waiter(now, place, free, budget, keyspace);
                if !is_shared {
                    return granted;
                }
                has_answered = true;
            } else {
                drop(entry);
                if let Some(granted) = self.hand_over_several(now, place, budget, keyspace) {
                    return granted;
                }
                entry = keyspace.open(db, &name, Access::Write);
            }
        }
    }

    /// The next waiter that is not known to lack another key, unless the key is kept for an older
    /// one. A waiter that is known to lack another key becomes a candidate for that key.
    fn next_waiter(&mut self, now: Now, queue: u32, budget: &mut Budget) -> QueueScan {
        loop {
            let next = self.queues.next_candidate(queue, now.monotonic, budget);
            let QueueScan::Found(place) = next else { return next };
            if self.queues.is_single(place) {
                return next;
            }
            if budget.is_spent() {
                return QueueScan::Spent;
            }
            let Some((other, lack)) = self.known_lack(now, place, queue, budget) else {
                return next;
            };
            budget.spend(1);
            self.queues.record_lack(place, other, lack);
        }
    }

    /// Another key that a waiter is known to lack, and why. Opens no key.
    fn known_lack(
        &self,
        now: Now,
        place: u32,
        queue: u32,
        budget: &mut Budget,
    ) -> Option<(u32, Lack)> {
        let others = self.queues.queues_of(place).iter().filter(|&&other| other != queue);
        for &other in others {
            budget.spend(1);
            let (db, hash, key) = self.queues.key(other);
            if let Some(lease) = self.leases.find(hash, db, key) {
                let lease = self.leases.get(lease);
                if self.leases.is_live(lease, now.monotonic) {
                    return Some((other, Lack::Held(lease.deadline)));
                }
            }
            if let Some(lack) = self.queues.foreign_lack(other, now.monotonic) {
                return Some((other, lack));
            }
            let rank = &self.queues.waiter(place).rank;
            if self.queues.is_behind(other, Some(rank), now.monotonic, budget) {
                return Some((other, Lack::Behind));
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
        let (db, ..) = self.queues.key(queues[0]);
        let keys = || queues.iter().map(|&queue| self.queues.key(queue));
        let hashes: PerKey<u64> = keys().map(|(_, hash, _)| hash).collect();
        let names: PerKey<K::Name> = keys().map(|(.., key)| keyspace.name(key)).collect();
        budget.spend(units(queues.len()).saturating_mul(2));
        let mut entries = self.open_all(now, db, &names, keyspace);
        for (index, &queue) in queues.iter().enumerate() {
            let key = (hashes[index], db, names[index].as_ref());
            let state = self.key_state(now.monotonic, key, keyspace, &entries[index]);
            if let Some(lack) = self.lack(now, state, keyspace, &entries[index]) {
                self.queues.record_lack(place, queue, lack);
                return None;
            }
        }
        let (keys, entries) = (&names[..], &mut entries[..]);
        let free = FreeKeys { db, keys, hashes: &hashes, entries, have_ended: true, joined: None };
        Some(self.grant_waiter(now, place, free, budget, keyspace))
    }
}
