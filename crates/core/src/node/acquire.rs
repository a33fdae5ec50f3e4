//! ACQUIRE of one key or of several, and the grant itself.

use super::answers::Grant;
use super::key_state::KeyState;
use super::leases::NewLock;
use super::machine::PerKey;
use super::queues::{Lack, Waiter, Wanted, Wants};
use super::turn::{Budget, COMMAND_UNITS, write_units};
use super::{
    Acquire, Author, Change, CommandError, Key, Keyspace, Kind, Mode, Node, Now, Reply, Token,
};
use crate::{Fence, Ttl};

/// The free keys of a lock that is about to be granted.
pub(super) struct FreeKeys<'k, K: Keyspace> {
    pub(super) db: u32,
    pub(super) keys: &'k [K::Name],
    pub(super) hashes: &'k [u64],
    pub(super) entries: &'k mut [K::Entry],
    /// Whether some of them may have a lease that has ended.
    pub(super) have_ended: bool,
}

pub(super) struct Terms<'a, N> {
    pub(super) token: &'a N,
    pub(super) owner: Option<&'a [u8]>,
    pub(super) ttl: Ttl,
    /// The fence that the client proposed.
    pub(super) fence: Option<Fence>,
    pub(super) author: Author,
}

impl Node {
    /// Acquires the lock if all its keys are free. Refuses a held lock even to its own token.
    pub(super) fn acquire<K: Keyspace>(
        &mut self,
        now: Now,
        acquire: &Acquire<'_, K::Name>,
        keyspace: &mut K,
    ) -> Result<Reply, CommandError> {
        if acquire.mode == Mode::Shared {
            return self.acquire_shared(now, acquire, keyspace);
        }
        self.refuse_while_abstaining(now)?;
        let &Acquire { db, keys, token, ttl, mode: _, owner, fence, wait_ms: _ } = acquire;
        let mut entries = self.open_all(now, db, keys, keyspace);
        let mut hashes: PerKey<u64> = PerKey::new();
        let mut lacks: PerKey<Option<Lack>> = PerKey::new();
        let (mut have_ended, mut budget) = (false, Budget::units(COMMAND_UNITS));
        for (key, entry) in keys.iter().zip(&entries) {
            let key = key.as_ref();
            let hash = self.leases.hash(db, key);
            let state = self.key_state(now.monotonic, (hash, db, key), keyspace, entry);
            if state == KeyState::WrongType {
                return Err(CommandError::WrongType);
            }
            let mut behind =
                || self.has_waiter_ahead(now, hash, db, key, &mut budget).then_some(Lack::Behind);
            lacks.push(self.lack(now, state, keyspace, entry).or_else(&mut behind));
            have_ended |= matches!(state, KeyState::Ended { .. });
            hashes.push(hash);
        }
        if lacks.iter().all(Option::is_none) {
            let free = FreeKeys { db, keys, hashes: &hashes, entries: &mut entries, have_ended };
            let terms = Terms { token, owner, ttl, fence, author: Author::Client };
            return self.grant(now, free, &terms, keyspace).map(Reply::Granted);
        }
        self.wait_or_refuse(now, acquire, Wants::All, &hashes, &lacks, keyspace)
    }

    /// Refuses the command if the node abstains, and counts that.
    pub(super) fn refuse_while_abstaining(&mut self, now: Now) -> Result<(), CommandError> {
        let Some(error) = self.abstention_error(now.monotonic) else { return Ok(()) };
        self.stats.abstained += 1;
        Err(error)
    }

    /// Queues the client if it asked to wait and the server can block it. Refuses it otherwise.
    ///
    /// A token waits once on a key. A request with a FENCE may be a repeated one: it takes over the
    /// place of the older one if both name the same keys, and the older one is refused.
    pub(super) fn wait_or_refuse<K: Keyspace>(
        &mut self,
        now: Now,
        acquire: &Acquire<'_, K::Name>,
        wants: Wants,
        hashes: &[u64],
        lacks: &[Option<Lack>],
        keyspace: &mut K,
    ) -> Result<Reply, CommandError> {
        let &Acquire { db, keys, token, ttl, mode, owner, fence, wait_ms } = acquire;
        self.stats.refusals += 1;
        if wait_ms == 0 || !keyspace.may_block() {
            return Ok(Reply::Refused);
        }
        let named = keys.iter().zip(hashes).map(|(key, &hash)| (hash, key.as_ref()));
        let older = self.queues.waiters_with(token.as_ref(), db, named);
        let has_time_left = |place| now.monotonic < self.queues.waiter(place).until;
        if fence.is_none() && older.iter().flatten().any(|&place| has_time_left(place)) {
            return Err(CommandError::AlreadyWaits);
        }
        // This check precedes `block`, so that the server blocks no client above the limit.
        let replaces = older.iter().any(Option::is_some);
        if !replaces && self.queues.waiters() >= self.max_waiters {
            return Err(CommandError::QueueFull { max_waiters: self.max_waiters });
        }
        let Some(blocked_id) = keyspace.block() else { return Ok(Reply::Refused) };
        self.stats.refusals -= 1;
        let repeated = older[0].filter(|&place| {
            let is_of_all_keys = older.iter().all(|&other| other == Some(place));
            let has_same_keys = self.queues.queues_of(place).len() == keys.len();
            let has_same_wants = self.queues.waiter(place).wants == wants;
            is_of_all_keys && has_same_keys && has_same_wants && has_time_left(place)
        });
        let left = repeated.map(|place| self.queues.arrival(place));
        let mut older: PerKey<u32> = older.into_iter().flatten().collect();
        older.sort_unstable();
        older.dedup();
        older.into_iter().for_each(|place| self.queues.dismiss(place));
        let waiter = Waiter {
            blocked_id,
            token: Token::from_slice(token.as_ref()),
            owner: owner.map(Into::into),
            ttl,
            mode,
            wants,
            fence,
            since: now.monotonic,
            until: now.monotonic.plus_us(wait_ms.saturating_mul(1000)),
        };
        let keys = keys.iter().zip(hashes).zip(lacks);
        let wanted = keys.map(|((key, &hash), &lack)| {
            // The waiter ahead may have been the older one.
            let is_unknown = replaces && matches!(lack, Some(Lack::Behind));
            let lack = if is_unknown { Some(Lack::unknown()) } else { lack };
            Wanted { hash, key: key.as_ref(), lack }
        });
        self.queues.push(waiter, db, wanted, left);
        Ok(Reply::Waits)
    }

    /// Whether a waiter precedes all newcomers, also between the end of a lock and its handover.
    pub(super) fn has_waiter_ahead(
        &self,
        now: Now,
        hash: u64,
        db: u32,
        key: &[u8],
        budget: &mut Budget,
    ) -> bool {
        let queue = self.queues.find(hash, db, key);
        queue.is_some_and(|queue| self.queues.has_waiter_ahead(queue, now.monotonic, budget))
    }

    /// Grants free keys: writes their mirrors, adds their leases, and publishes the changes.
    ///
    /// # Errors
    /// If the server refuses one of the mirrors. Then nothing is granted.
    pub(super) fn grant<K: Keyspace>(
        &mut self,
        now: Now,
        free: FreeKeys<'_, K>,
        terms: &Terms<'_, K::Name>,
        keyspace: &mut K,
    ) -> Result<Fence, CommandError> {
        let FreeKeys { db, keys, hashes, entries, have_ended } = free;
        let &Terms { token, owner, ttl, fence, author } = terms;
        for (&hash, key) in hashes.iter().zip(keys).filter(|_| have_ended) {
            // The grant overwrites the mirror of a lease that has ended.
            if let Some(lease) = self.find_lease(hash, db, key.as_ref()) {
                self.end_by_deadline(lease);
            }
        }
        let expires_at_ms = now.wall_ms_after(ttl.us());
        let written =
            entries.iter_mut().try_for_each(|entry| keyspace.set(entry, token, expires_at_ms));
        if written.is_err() {
            for (key, entry) in keys.iter().zip(entries) {
                let has_value = keyspace.kind(entry) != Kind::Missing;
                if has_value {
                    keyspace.delete(entry);
                }
                // A refused write has deleted the mirror of a lease that had ended.
                if has_value || have_ended {
                    self.publish(keyspace, key, Change::Delete, author);
                }
            }
            return Err(CommandError::NotWritten);
        }
        let fence = self.fences.next(hashes, fence, now.wall_us);
        let deadline = now.monotonic.plus_us(ttl.us());
        let new =
            NewLock { db, token: token.as_ref(), owner, fence, granted: now.monotonic, deadline };
        self.insert(hashes, keys.iter().map(AsRef::as_ref), &new);
        // All mirrors are written first: a listener of one event may change the other keys.
        for key in keys {
            self.publish(keyspace, key, Change::Set { value: token, expires_at_ms }, author);
        }
        Ok(fence)
    }

    /// Adds the leases of a granted lock, and returns the lease of the first key.
    pub(super) fn insert<'k>(
        &mut self,
        hashes: &[u64],
        keys: impl Iterator<Item = &'k [u8]>,
        new: &NewLock<'_>,
    ) -> u32 {
        let first = self.leases.insert(hashes, keys, new);
        self.stats.grants += hashes.len() as u64;
        if self.queues.waiters() > 0 {
            let mut lease = first;
            for _ in hashes {
                self.check_at_deadline(lease);
                lease = self.leases.next_key(lease);
            }
        }
        first
    }

    /// Plans a check of the lease's key at its deadline, for the key's waiters.
    pub(super) fn check_at_deadline(&mut self, lease: u32) {
        let lease = self.leases.get(lease);
        let deadline = lease.deadline;
        if let Some(queue) = self.queues.find(lease.hash(), lease.db, &lease.key) {
            self.queues.forget_foreign(queue);
            self.queues.postpone_check(queue, deadline);
        }
    }

    /// Grants free keys to a waiter. Returns whether the server accepted the writes.
    pub(super) fn grant_waiter<K: Keyspace>(
        &mut self,
        now: Now,
        place: u32,
        free: FreeKeys<'_, K>,
        budget: &mut Budget,
        keyspace: &mut K,
    ) -> bool {
        self.spend_on_leaving(place, budget);
        free.keys.iter().for_each(|key| budget.spend(write_units(key.as_ref())));
        let waiter = self.queues.remove(place);
        let Waiter { token, owner, ttl, fence, .. } = &waiter;
        let (db, key) = (free.db, Key::from_slice(free.keys[0].as_ref()));
        let name = keyspace.name(token);
        let (ttl, fence) = (*ttl, *fence);
        let terms =
            Terms { token: &name, owner: owner.as_deref(), ttl, fence, author: Author::Other };
        let granted = self.grant(now, free, &terms, keyspace);
        self.answer_granted(now, waiter, db, key, granted, keyspace)
    }

    /// Sends a waiter its grant, or the error of a refused write. Returns whether it was granted.
    pub(super) fn answer_granted<K: Keyspace>(
        &mut self,
        now: Now,
        waiter: Waiter,
        db: u32,
        key: Key,
        granted: Result<Fence, CommandError>,
        keyspace: &mut K,
    ) -> bool {
        let Waiter { blocked_id, token, wants, since, .. } = waiter;
        match granted {
            Ok(fence) => {
                let waited_us = now.monotonic.us_since(since);
                self.stats.handovers += 1;
                self.stats.longest_wait_us = self.stats.longest_wait_us.max(waited_us);
                let grant = Grant { db, key, token, fence, waited_us, wants };
                self.answers.grant(blocked_id, grant, keyspace);
                true
            }
            Err(error) => {
                self.answers.refuse(blocked_id, Some(error), keyspace);
                false
            }
        }
    }
}
