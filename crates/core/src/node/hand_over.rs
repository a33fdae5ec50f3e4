//! Handing a key over to its next waiter.

use super::acquire::FreeKeys;
use super::key_state::KeyState;
use super::machine::PerKey;
use super::queues::{Candidate, Lack, Scan};
use super::shared::{GRANT_UNITS, GRANTED_TOGETHER_MAX, SharedKey};
use super::turn::Budget;
use super::{Access, Keyspace, Mode, Node, Now};

impl Node {
    /// Hands the key of a queue over to its next waiter, if it is free, or to all those at its head
    /// that share it. Returns whether it did.
    ///
    /// Single-key waiters are served first in, first out. A waiter for several keys is granted
    /// only when all are free; until then it is skipped and reserves nothing.
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
        let (db, hash, key) = self.queues.key(queue);
        let key = key.clone();
        let name = keyspace.name(&key);
        let mut entry = entry.unwrap_or_else(|| keyspace.open(db, &name, Access::Write));
        loop {
            self.hear_all(now, keyspace);
            let state = self.key_state(now.monotonic, (hash, db, &key), keyspace, &entry);
            if self.shared_lease(state).is_some() {
                let shared = SharedKey { db, hash, name: &name, entry: &mut entry, state };
                return self.hand_over_shared(now, queue, shared, budget, keyspace) > 0;
            }
            if let Some(lack) = self.lack(now, state, keyspace, &entry) {
                self.queues.saw_taken(queue, lack);
                return false;
            }
            self.queues.saw_no_foreign(queue);
            let place = match self.next_in_turn(now, queue, budget) {
                None => return false,
                Some(Candidate::Several(place)) => place,
                Some(Candidate::Single(place)) if self.queues.waiter(place).mode == Mode::Shared => {
                    let shared = SharedKey { db, hash, name: &name, entry: &mut entry, state };
                    return self.hand_over_shared(now, queue, shared, budget, keyspace) > 0;
                }
                Some(Candidate::Single(place)) => {
                    let free = FreeKeys {
                        db,
                        keys: std::slice::from_ref(&name),
                        hashes: &[hash],
                        entries: std::slice::from_mut(&mut entry),
                        have_ended: matches!(state, KeyState::Ended { .. }),
                    };
                    return self.grant_waiter(now, place, free, keyspace);
                }
            };
            drop(entry);
            if let Some(granted) = self.hand_over_several(now, place, budget, keyspace) {
                return granted;
            }
            entry = keyspace.open(db, &name, Access::Write);
        }
    }

    /// Grants a key that is free, or shared by others, to the shared waiters at the head of its
    /// queue. Returns how many. The rest has its turn before any newcomer.
    fn hand_over_shared<K: Keyspace>(
        &mut self,
        now: Now,
        mut queue: u32,
        mut key: SharedKey<'_, K>,
        budget: &mut Budget,
        keyspace: &mut K,
    ) -> u32 {
        let mut granted = 0;
        loop {
            match self.next_shared_waiter(now, queue, budget) {
                Scan::Found(_) if granted == GRANTED_TOGETHER_MAX || granted > 0 && budget.is_spent() => {
                    self.queues.look_at(queue, now.monotonic);
                    return granted;
                }
                Scan::Found(place) => {
                    budget.spend(GRANT_UNITS);
                    granted += u32::from(self.grant_shared_waiter(now, place, &mut key, keyspace));
                }
                Scan::Nobody => {
                    let lack = self.lack(now, key.state, keyspace, key.entry);
                    if let Some(lack) = lack {
                        self.queues.saw_taken(queue, lack);
                    }
                    return granted;
                }
                Scan::Spent => {
                    self.queues.look_at(queue, now.monotonic);
                    return granted;
                }
            }
            // The queue is gone with its last waiter.
            let Some(left) = self.queues.find(key.hash, key.db, key.name.as_ref()) else { return granted };
            queue = left;
            let place = (key.hash, key.db, key.name.as_ref());
            key.state = self.key_state(now.monotonic, place, keyspace, key.entry);
        }
    }

    /// The waiter that may have the key of this queue now, as far as is known without a look at
    /// its other keys. Those that lack one become candidates for that one.
    fn next_in_turn(&mut self, now: Now, queue: u32, budget: &mut Budget) -> Option<Candidate> {
        loop {
            match self.queues.next_candidate(queue, now.monotonic, budget) {
                Scan::Nobody => {
                    self.queues.forget_look(queue);
                    return None;
                }
                Scan::Found(Candidate::Several(place)) if !budget.is_spent() => {
                    match self.known_lack(now, place, queue, budget) {
                        Some((other, lack)) => self.queues.lacks(place, other, lack),
                        None => return Some(Candidate::Several(place)),
                    }
                }
                Scan::Found(Candidate::Several(_)) | Scan::Spent => {
                    // A job goes on from here, in this turn or in the next.
                    self.queues.look_at(queue, now.monotonic);
                    return None;
                }
                Scan::Found(single) => return Some(single),
            }
        }
    }

    /// Another key that a waiter lacks, as far as is known without a look at it.
    fn known_lack(&mut self, now: Now, place: u32, queue: u32, budget: &mut Budget) -> Option<(u32, Lack)> {
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
                if now.monotonic < lease.deadline && !self.leases.is_stale(lease) {
                    return Some((other, Lack::Held(lease.deadline)));
                }
            }
            if let Some(lack) = self.queues.known_lack(place, other, now.monotonic, budget) {
                return Some((other, lack));
            }
        }
        None
    }

    /// Grants all keys of a waiter for several, if they are free. `None` when one of them is not:
    /// the waiter is a candidate for that one now. Otherwise whether the server took the keys.
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
        budget.spend(2 * u32::try_from(queues.len()).unwrap_or(u32::MAX));
        let mut entries = self.open_all(now, in_db, &names, keyspace);
        for (index, &queue) in queues.iter().enumerate() {
            let key = (hashes[index], in_db, names[index].as_ref());
            let state = self.key_state(now.monotonic, key, keyspace, &entries[index]);
            if let Some(lack) = self.lack(now, state, keyspace, &entries[index]) {
                self.queues.lacks(place, queue, lack);
                return None;
            }
        }
        let free =
            FreeKeys { db: in_db, keys: &names, hashes: &hashes, entries: &mut entries, have_ended: true };
        Some(self.grant_waiter(now, place, free, keyspace))
    }
}
