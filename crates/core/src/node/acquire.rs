//! ACQUIRE of several keys, and what all kinds of ACQUIRE share: the wait, and the grant itself.

use super::answers::Grant;
use super::key_state::KeyState;
use super::leases::NewLock;
use super::mutants::{NodeRule, is_broken};
use super::node::PerKey;
use super::queues::{Lack, Waiter, Wanted, Wants};
use super::rank::{Rank, later_ticket};
use super::turn::{ANSWER_UNITS, Budget, COMMAND_UNITS, write_units};
use super::{Acquire, Change, CommandError, Extend, Key, Keyspace, Kind, Node, Now, Reply};
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
    /// The ticket that the client gave. It is also the fence that the client proposes.
    pub(super) ticket: Option<Fence>,
}

impl Node {
    /// Acquires the lock if all its keys are free. Without FENCE, refuses a held lock even to its
    /// own token.
    pub(super) fn acquire_several<K: Keyspace>(
        &mut self,
        now: Now,
        acquire: &Acquire<'_, K::Name>,
        keyspace: &mut K,
    ) -> Result<Reply, CommandError> {
        self.admit(now, acquire)?;
        let &Acquire { db, keys, token, ttl, owner, .. } = acquire;
        let hashes = self.hashes(db, keys);
        if let Some(fence) = self.ask_again(now, acquire, hashes[0], keyspace)? {
            return Ok(Reply::Granted(fence));
        }
        let mut entries = self.open_all(now, db, keys, keyspace);
        let rank = self.rank(acquire, &hashes)?;
        let place = place_in_line(acquire, rank.as_ref(), keyspace);
        let mut lacks: PerKey<Option<Lack>> = PerKey::new();
        let (mut have_ended, mut budget) = (false, Budget::units(COMMAND_UNITS));
        for ((key, &hash), entry) in keys.iter().zip(&hashes).zip(&entries) {
            let key = (hash, db, key.as_ref());
            let state = self.key_state(now.monotonic, key, keyspace, entry);
            if state == KeyState::WrongType {
                return Err(CommandError::WrongType);
            }
            let lack = self.lack(now, state, keyspace, entry);
            lacks.push(lack.or_else(|| {
                let is_behind = self.is_behind_in_line(now, key, place, &mut budget);
                is_behind.then_some(Lack::Behind)
            }));
            have_ended |= matches!(state, KeyState::Ended { .. });
        }
        if lacks.iter().all(Option::is_none) {
            self.leave_line(acquire, &hashes);
            let free = FreeKeys { db, keys, hashes: &hashes, entries: &mut entries, have_ended };
            let ticket = rank.map(|rank| rank.ticket);
            let terms = Terms { token, owner, ttl, ticket };
            return self.grant(now, free, &terms, keyspace).map(Reply::Granted);
        }
        if is_broken(NodeRule::SomeOfTheKeys) && lacks.iter().any(Option::is_none) {
            drop(entries);
            let free = keys.iter().zip(&lacks).filter(|(_, lack)| lack.is_none());
            let free: PerKey<_> = free.map(|(key, _)| keyspace.name(key.as_ref())).collect();
            return self.acquire_several(now, &Acquire { keys: &free, ..*acquire }, keyspace);
        }
        self.wait_or_refuse(now, acquire, Wants::All, rank, &hashes, &lacks, keyspace)
    }

    /// Refuses the command if the node abstains, or if its ticket is too far ahead of the clock.
    pub(super) fn admit<N>(
        &mut self,
        now: Now,
        acquire: &Acquire<'_, N>,
    ) -> Result<(), CommandError> {
        if let Some(error) = self.abstention_error(now.monotonic) {
            self.stats.abstained += 1;
            return Err(error);
        }
        let largest = self.fences.ticket_ceiling(now.wall_us);
        if acquire.fence.is_some_and(|ticket| ticket > largest) {
            return Err(CommandError::TicketTooFarAhead { largest });
        }
        Ok(())
    }

    /// The rank of a request with FENCE. A token that stands in line keeps a larger ticket.
    ///
    /// A request can take over one place only: each place is in up to 64 queues.
    pub(super) fn rank<N: AsRef<[u8]>>(
        &self,
        acquire: &Acquire<'_, N>,
        hashes: &[u64],
    ) -> Result<Option<Rank>, CommandError> {
        let in_line = self.in_line(acquire, hashes);
        let mut places = in_line.into_iter().flatten();
        let first = places.next();
        if places.any(|place| Some(place) != first) {
            return Err(CommandError::AlreadyWaits);
        }
        let in_line = first.map(|place| self.queues.waiter(place).rank.ticket);
        let of_ticket = |ticket| in_line.map_or(ticket, |in_line| later_ticket(ticket, in_line));
        Ok(acquire.fence.map(|ticket| Rank::new(of_ticket(ticket), acquire.token.as_ref())))
    }

    /// For each key of the request, the waiter with its token. Empty if no client waits at all.
    fn in_line<N: AsRef<[u8]>>(
        &self,
        acquire: &Acquire<'_, N>,
        hashes: &[u64],
    ) -> PerKey<Option<u32>> {
        if self.queues.waiters() == 0 {
            return PerKey::new();
        }
        let waiter_of = |(key, &hash): (&N, &u64)| {
            let queue = self.queues.find(hash, acquire.db, key.as_ref())?;
            self.queues.waiter_with(queue, acquire.token.as_ref())
        };
        acquire.keys.iter().zip(hashes).map(waiter_of).collect()
    }

    /// Removes the token's waiter from its queues, because the token is granted one of these keys.
    /// Without FENCE, a token that waits is refused instead.
    pub(super) fn leave_line<N: AsRef<[u8]>>(&mut self, acquire: &Acquire<'_, N>, hashes: &[u64]) {
        if self.queues.waiters() > 0 {
            let in_line = self.in_line(acquire, hashes);
            if let Some(place) = in_line.into_iter().flatten().next() {
                self.queues.dismiss(place);
            }
        }
    }

    /// Answers a request with FENCE whose token already holds the lock: moves the deadline forward
    /// and keeps the fence. Returns `None` if the token does not hold the lock. `hash` is that of
    /// the first key.
    pub(super) fn ask_again<K: Keyspace>(
        &mut self,
        now: Now,
        acquire: &Acquire<'_, K::Name>,
        hash: u64,
        keyspace: &mut K,
    ) -> Result<Option<Fence>, CommandError> {
        let &Acquire { db, keys, token, ttl, mode, fence, .. } = acquire;
        let Some(ticket) = fence else { return Ok(None) };
        let key = keys[0].as_ref();
        if !self.may_hold(hash, db, key, token.as_ref()) {
            return Ok(None);
        }
        let extend = Extend { db, keys, token, ttl, mode, fence: None, new_token: None };
        let Reply::Extended(fence) = self.extend(now, &extend, keyspace)? else { return Ok(None) };
        if let Some(lease) = self.leases.find(hash, db, key) {
            self.leases.ask_again(lease, token.as_ref(), ticket);
        }
        Ok(Some(fence))
    }

    /// Whether the lease of a key names this token as a holder. It may have ended.
    fn may_hold(&self, hash: u64, db: u32, key: &[u8], token: &[u8]) -> bool {
        self.leases.find(hash, db, key).is_some_and(|lease| {
            let group = self.leases.group(lease);
            self.leases.get(lease).is_held_by(token)
                || group.is_some_and(|group| self.leases.holders().find(group, token).is_some())
        })
    }

    /// Queues the client if it asked to wait and the server can block it. Refuses it otherwise.
    ///
    /// A token waits once on a key. A request with a FENCE may be a repeated one: it takes over the
    /// place of the older one, and the older one is refused.
    #[expect(clippy::too_many_arguments, reason = "a request, and what is known of its keys")]
    pub(super) fn wait_or_refuse<K: Keyspace>(
        &mut self,
        now: Now,
        acquire: &Acquire<'_, K::Name>,
        wants: Wants,
        rank: Option<Rank>,
        hashes: &[u64],
        lacks: &[Option<Lack>],
        keyspace: &mut K,
    ) -> Result<Reply, CommandError> {
        let &Acquire { db, keys, token, ttl, mode, owner, wait_ms, .. } = acquire;
        self.stats.refusals += 1;
        let named = || {
            let keys = keys.iter().zip(hashes).zip(lacks);
            keys.map(|((key, &hash), &lack)| (hash, key.as_ref(), lack))
        };
        let refused = |node: &Self| match &rank {
            Some(rank) => Err(node.held(now, db, named(), rank, wants)),
            None => Ok(Reply::Refused),
        };
        if wait_ms == 0 || !keyspace.may_block() {
            return refused(self);
        }
        let in_line = self.in_line(acquire, hashes);
        let older = in_line.iter().copied().flatten().next();
        let has_time_left = |place| now.monotonic < self.queues.waiter(place).until;
        if rank.is_none() && older.is_some_and(has_time_left) {
            return Err(CommandError::AlreadyWaits);
        }
        // This check precedes `block`, so that the server blocks no client above the limit.
        let is_full = older.is_none() && self.queues.waiters() >= self.max_waiters;
        // A full line keeps the oldest waiters of a key.
        let displaced = rank.as_ref().filter(|_| is_full).and_then(|rank| {
            let younger = |(hash, key, _)| self.queues.youngest_after(rank, hash, db, key);
            named().find_map(younger)
        });
        if is_full && (displaced.is_none() || is_broken(NodeRule::FullLineKeepsYoungest)) {
            return Err(CommandError::QueueFull { max_waiters: self.max_waiters });
        }
        let Some(blocked_id) = keyspace.block() else { return refused(self) };
        self.stats.refusals -= 1;
        let repeated = older.filter(|&place| {
            let is_of_all_keys = in_line.iter().all(|&other| other == Some(place));
            let has_same_keys = self.queues.queues_of(place).len() == keys.len();
            let has_same_wants = self.queues.waiter(place).wants == wants;
            is_of_all_keys && has_same_keys && has_same_wants && has_time_left(place)
        });
        let keeps_keys = repeated.is_some_and(|place| self.queues.keeps_keys(place));
        let repeated = repeated.map(|place| self.queues.waiter(place));
        let in_line_since = repeated.map_or(now.monotonic, |waiter| waiter.in_line_since);
        // A repeated request never asks for more than the first one did.
        let mode = repeated.map_or(mode, |waiter| waiter.mode.max(mode));
        let waiter = Waiter {
            blocked_id,
            has_ticket: rank.is_some(),
            rank: rank.filter(|_| !is_broken(NodeRule::OrderByArrival)).unwrap_or_else(|| {
                let ticket = self.last_in_line(now, db, named().map(|(hash, key, _)| (hash, key)));
                Rank::new(ticket, token.as_ref())
            }),
            owner: owner.map(Into::into),
            ttl,
            mode,
            wants,
            since: now.monotonic,
            in_line_since,
            until: now.monotonic.plus_us(wait_ms.saturating_mul(1000)),
        };
        older.into_iter().chain(displaced).for_each(|place| self.queues.dismiss(place));
        let wanted = named().map(|(hash, key, lack)| {
            // The waiter ahead may have been the older one.
            let is_unknown = older.is_some() && matches!(lack, Some(Lack::Behind));
            let lack = if is_unknown { Some(Lack::unknown()) } else { lack };
            Wanted { hash, key, lack }
        });
        let place = self.queues.push(waiter, db, wanted);
        if keeps_keys {
            self.queues.keep_keys(place);
        }
        Ok(Reply::Waits)
    }

    /// The ticket of a waiter without FENCE: one above the largest fence and ticket of its keys,
    /// and above the wall clock. So clients that use only this node are served in the order of
    /// arrival.
    fn last_in_line<'k>(
        &self,
        now: Now,
        db: u32,
        keys: impl Iterator<Item = (u64, &'k [u8])>,
    ) -> Fence {
        let largest = keys.fold(Fence::of_wall_us(now.wall_us), |largest, (hash, key)| {
            let queue = self.queues.find(hash, db, key);
            let in_line = queue.map(|queue| self.queues.largest_other(queue, &[]));
            largest.max(self.fences.last(hash)).max(in_line.unwrap_or_default())
        });
        largest.next()
    }

    /// Whether an older waiter precedes the newcomer, also between the end of a lock and its
    /// handover.
    pub(super) fn is_behind_in_line(
        &self,
        now: Now,
        (hash, db, key): (u64, u32, &[u8]),
        rank: Option<&Rank>,
        budget: &mut Budget,
    ) -> bool {
        let queue = self.queues.find(hash, db, key);
        queue.is_some_and(|queue| self.queues.is_behind(queue, rank, now.monotonic, budget))
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
        let &Terms { token, owner, ttl, ticket } = terms;
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
                    self.publish(keyspace, key, Change::Delete);
                }
            }
            return Err(CommandError::NotWritten);
        }
        let fence = self.fences.next(hashes, ticket, now.wall_us);
        let (granted, deadline) = (now.monotonic, now.monotonic.plus_us(ttl.us()));
        let (token_bytes, ticket) = (token.as_ref(), ticket.unwrap_or_default());
        let new = NewLock { db, token: token_bytes, owner, fence, ticket, granted, deadline };
        self.insert(hashes, keys.iter().map(AsRef::as_ref), &new);
        // All mirrors are written first: a listener of one event may change the other keys.
        for key in keys {
            self.publish(keyspace, key, Change::Set { value: token, expires_at_ms });
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
        let deadline = self.leases.get(lease).deadline;
        if let Some(queue) = self.queue_of(lease) {
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
        budget.spend(ANSWER_UNITS);
        self.spend_on_leaving(place, budget);
        free.keys.iter().for_each(|key| budget.spend(write_units(key.as_ref())));
        let waiter = self.queues.remove(place);
        let (db, key) = (free.db, Key::from_slice(free.keys[0].as_ref()));
        let name = keyspace.name(&waiter.rank.token);
        let (owner, ttl, ticket) = (waiter.owner.as_deref(), waiter.ttl, waiter.proposed());
        let terms = Terms { token: &name, owner, ttl, ticket };
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
        let Waiter { blocked_id, rank: Rank { token, .. }, wants, since, .. } = waiter;
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

/// The rank of a request among the waiters; `None` if it comes after all of them.
///
/// A request that cannot wait comes last, whatever its ticket. If it is granted, it hears of no
/// ticket, so its own may be smaller than those of calls that began earlier. It is refused, and
/// then stands in line with a ticket above theirs. A repair stands in front.
pub(super) fn place_in_line<'r, K: Keyspace>(
    acquire: &Acquire<'_, K::Name>,
    rank: Option<&'r Rank>,
    keyspace: &K,
) -> Option<&'r Rank> {
    let may_wait = acquire.wait_ms > 0 && keyspace.may_block();
    rank.filter(|rank| may_wait || rank.ticket == Fence::ZERO || is_broken(NodeRule::PassesUnheard))
}
