//! ACQUIRE of one key, of several, or of any one of several: the decision, the wait and the grant.

use super::answers::Grant;
use super::key_state::KeyState;
use super::leases::NewLock;
use super::mutants::{NodeRule, is_broken};
use super::node::PerKey;
use super::queues::{Lack, Waiter, Wanted};
use super::ticket::{Rank, later_ticket};
use super::turn::{ANSWER_UNITS, Budget, COMMAND_UNITS, write_units};
use super::{
    Acquire, Change, CommandError, Extend, Key, Keyspace, Kind, Mode, Node, Now, Reply, Wants,
};
use crate::{Fence, Ttl};

/// Keys that a lock is granted on if they are free, or the key of a shared lock that a reader
/// joins. For a request, [`Node::look`] finds that out and sets the last two fields.
pub(super) struct FreeKeys<'k, K: Keyspace> {
    pub(super) db: u32,
    pub(super) keys: &'k [K::Name],
    pub(super) hashes: &'k [u64],
    pub(super) entries: &'k mut [K::Entry],
    /// Whether some of them may have a lease that has ended.
    pub(super) have_ended: bool,
    /// The lease of the shared lock that the client may join.
    pub(super) joined: Option<u32>,
}

pub(super) struct Terms<'a, N> {
    pub(super) token: &'a N,
    pub(super) owner: Option<&'a [u8]>,
    pub(super) ttl: Ttl,
    pub(super) mode: Mode,
    /// The ticket that the client gave. It is also the fence that the client proposes.
    pub(super) ticket: Option<Fence>,
}

impl<N: AsRef<[u8]>> Terms<'_, N> {
    /// A lock that is granted now on these terms.
    pub(super) fn lock(&self, now: Now, db: u32, fence: Fence) -> NewLock<'_> {
        NewLock {
            db,
            token: self.token.as_ref(),
            owner: self.owner,
            fence,
            ticket: self.ticket.unwrap_or_default(),
            granted: now.monotonic,
            deadline: now.monotonic.plus_us(self.ttl.us()),
        }
    }
}

impl Node {
    /// Acquires the lock if all its keys are free, or if its holders share it and this client does
    /// so, too. For any one of several keys, tries one key after the other: the lock is then an
    /// ordinary lock of that key.
    ///
    /// Without FENCE, refuses a held lock even to its own token. A newcomer comes after each older
    /// waiter that needs no other key.
    pub(super) fn acquire<K: Keyspace>(
        &mut self,
        now: Now,
        acquire: &Acquire<'_, K::Name>,
        keyspace: &mut K,
    ) -> Result<Reply, CommandError> {
        let &Acquire { db, keys, wants, token, ttl, mode, owner, .. } = acquire;
        if acquire.has_long_key() {
            return Err(CommandError::KeyLength);
        }
        let is_shared = mode == Mode::Shared;
        if is_shared && keys.len() > 1 {
            return Err(CommandError::SeveralShared);
        }
        self.admit(now, acquire)?;
        let all_hashes = self.hashes(db, keys);
        let tries = if wants == Wants::All { keys.len().min(1) } else { keys.len() };
        // Where the keys of a try and their hashes are.
        let range = |index| if wants == Wants::All { 0..keys.len() } else { index..index + 1 };
        let granted = |fence, key| match wants {
            Wants::All => Reply::Granted(fence),
            Wants::Any => Reply::GrantedOne { fence, key },
        };
        for index in 0..tries {
            let one_try = Acquire { keys: &keys[range(index)], ..*acquire };
            if let Some(fence) = self.ask_again(now, &one_try, all_hashes[index], keyspace)? {
                return Ok(granted(fence, index));
            }
        }
        let ticket = self.ticket(acquire, &all_hashes)?;
        let rank = ticket.map(|ticket| Rank::new(ticket, token.as_ref()));
        let place = place_in_line(acquire, rank.as_ref(), keyspace);
        let mut lacks: PerKey<Option<Lack>> = PerKey::new();
        let mut budget = Budget::units(COMMAND_UNITS);
        for index in 0..tries {
            let (keys, hashes) = (&keys[range(index)], &all_hashes[range(index)]);
            let entries = &mut self.open_all(now, db, keys, keyspace)[..];
            let mut free = FreeKeys { db, keys, hashes, entries, have_ended: false, joined: None };
            let before = lacks.len();
            self.look(now, (acquire, place), &mut free, &mut lacks, &mut budget, keyspace)?;
            if free.joined.is_some_and(|lease| self.still_shares(now, lease, token.as_ref())) {
                // The client would wait for its own lock.
                self.stats.refusals += 1;
                return Ok(Reply::Refused);
            }
            let is_held = matches!(lacks[before..], [Some(Lack::Held(_))]);
            if is_held && is_shared && is_broken(NodeRule::SharedBesideExclusive) {
                return Ok(Reply::Granted(acquire.fence.unwrap_or_default()));
            }
            if lacks[before..].iter().all(Option::is_none) {
                self.leave_line(acquire, &all_hashes);
                let terms = Terms { token, owner, ttl, mode, ticket };
                let fence = self.grant(now, free, &terms, keyspace)?;
                return Ok(granted(fence, index));
            }
        }
        if is_broken(NodeRule::SomeOfTheKeys) && lacks.iter().any(Option::is_none) {
            let free = keys.iter().zip(&lacks).filter(|(_, lack)| lack.is_none());
            let free: PerKey<_> = free.map(|(key, _)| keyspace.name(key.as_ref())).collect();
            return self.acquire(now, &Acquire { keys: &free, ..*acquire }, keyspace);
        }
        if is_broken(NodeRule::AnyWaitsForFirst) && wants == Wants::Any {
            let first = Acquire { keys: &keys[..1], ..*acquire };
            return self.wait_or_refuse(now, &first, rank, &all_hashes[..1], &lacks[..1], keyspace);
        }
        self.wait_or_refuse(now, acquire, rank, &all_hashes, &lacks, keyspace)
    }

    /// Looks at keys that a request tries together: at one key, if the request shares it. Adds to
    /// `lacks` why each cannot be granted. With a `place` in line, only older waiters come before
    /// the request, and otherwise all do.
    fn look<K: Keyspace>(
        &mut self,
        now: Now,
        (acquire, place): (&Acquire<'_, K::Name>, Option<&Rank>),
        tried: &mut FreeKeys<'_, K>,
        lacks: &mut PerKey<Option<Lack>>,
        budget: &mut Budget,
        keyspace: &K,
    ) -> Result<(), CommandError> {
        let is_shared = acquire.mode == Mode::Shared;
        for ((key, &hash), entry) in tried.keys.iter().zip(tried.hashes).zip(&*tried.entries) {
            let key = (hash, tried.db, key.as_ref());
            let state = self.key_state(now.monotonic, key, keyspace, entry);
            if state == KeyState::WrongType {
                return Err(CommandError::WrongType);
            }
            tried.joined = self.shared_lease(state).filter(|_| is_shared);
            tried.have_ended |= matches!(state, KeyState::Ended { .. });
            let taken =
                if tried.joined.is_some() { None } else { self.lack(now, state, keyspace, entry) };
            lacks.push(taken.or_else(|| {
                let passes = is_shared && is_broken(NodeRule::SharedPassesQueue);
                let is_behind = self.is_behind_in_line(now, key, place, budget);
                (is_behind && !passes).then_some(Lack::Behind)
            }));
        }
        Ok(())
    }

    /// Refuses the command if the node abstains, or if its ticket is too far ahead of the clock.
    fn admit<N>(&mut self, now: Now, acquire: &Acquire<'_, N>) -> Result<(), CommandError> {
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

    /// The ticket of a request with FENCE. A token that stands in line keeps a larger one.
    ///
    /// A request can take over one place only: each place is in up to 64 queues.
    fn ticket<N: AsRef<[u8]>>(
        &self,
        acquire: &Acquire<'_, N>,
        hashes: &[u64],
    ) -> Result<Option<Fence>, CommandError> {
        let in_line = self.in_line(acquire, hashes);
        let mut places = in_line.into_iter().flatten();
        let first = places.next();
        if places.any(|place| Some(place) != first) {
            return Err(CommandError::AlreadyWaits);
        }
        let in_line = first.map(|place| self.queues.waiter(place).rank.ticket);
        let later = |ticket| in_line.map_or(ticket, |in_line| later_ticket(ticket, in_line));
        Ok(acquire.fence.map(later))
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
    fn leave_line<N: AsRef<[u8]>>(&mut self, acquire: &Acquire<'_, N>, hashes: &[u64]) {
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
    fn ask_again<K: Keyspace>(
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
    fn wait_or_refuse<K: Keyspace>(
        &mut self,
        now: Now,
        acquire: &Acquire<'_, K::Name>,
        rank: Option<Rank>,
        hashes: &[u64],
        lacks: &[Option<Lack>],
        keyspace: &mut K,
    ) -> Result<Reply, CommandError> {
        let &Acquire { db, keys, wants, token, ttl, mode, owner, wait_ms, .. } = acquire;
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
        let with_hash = || named().map(|(hash, key, _)| (hash, key));
        let displaced = match older {
            Some(_) => None,
            None => self.queues.displaced_by(rank.as_ref(), db, with_hash())?,
        };
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
                let ticket = self.last_in_line(now, db, with_hash());
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
    fn is_behind_in_line(
        &self,
        now: Now,
        (hash, db, key): (u64, u32, &[u8]),
        rank: Option<&Rank>,
        budget: &mut Budget,
    ) -> bool {
        let queue = self.queues.find(hash, db, key);
        queue.is_some_and(|queue| self.queues.is_behind(queue, rank, now.monotonic, budget))
    }

    /// Grants free keys: writes their mirrors, adds their leases, and publishes the changes. Adds a
    /// holder instead if the client joins a shared lock.
    ///
    /// # Errors
    /// If the server refuses one of the mirrors. Then nothing is granted.
    fn grant<K: Keyspace>(
        &mut self,
        now: Now,
        free: FreeKeys<'_, K>,
        terms: &Terms<'_, K::Name>,
        keyspace: &mut K,
    ) -> Result<Fence, CommandError> {
        let FreeKeys { db, keys, hashes, entries, have_ended, joined } = free;
        if let Some(lease) = joined {
            return Ok(self.join(now, lease, (&keys[0], &mut entries[0]), terms, keyspace));
        }
        for (&hash, key) in hashes.iter().zip(keys).filter(|_| have_ended) {
            // The grant overwrites the mirror of a lease that has ended.
            if let Some(lease) = self.find_lease(hash, db, key.as_ref()) {
                self.end_by_deadline(lease);
            }
        }
        let random_value = (terms.mode == Mode::Shared).then(|| {
            if is_broken(NodeRule::MirrorNamesHolder) {
                keyspace.name(terms.token.as_ref())
            } else {
                keyspace.random_value()
            }
        });
        let value = random_value.as_ref().unwrap_or(terms.token);
        let expires_at_ms = now.wall_ms_after(terms.ttl.us());
        let written =
            entries.iter_mut().try_for_each(|entry| keyspace.set(entry, value, expires_at_ms));
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
        let floor = random_value.as_ref().map(|_| self.fences.floor(hashes[0]));
        let fence = match floor {
            Some(floor) => self.fences.next_shared(hashes[0], terms.ticket, floor, now.wall_us),
            None => self.fences.next(hashes, terms.ticket, now.wall_us),
        };
        let names = keys.iter().map(AsRef::as_ref);
        let lease = self.insert(hashes, names, &terms.lock(now, db, fence));
        if let Some(floor) = floor {
            self.leases.share(lease, value.as_ref(), floor);
        }
        // All mirrors are written first: a listener of one event may change the other keys.
        for key in keys {
            self.publish(keyspace, key, Change::Set { value, expires_at_ms });
        }
        Ok(fence)
    }

    /// Adds the leases of a granted lock, and plans a check of each key with waiters at its
    /// deadline. Returns the lease of the first key.
    pub(super) fn insert<'k>(
        &mut self,
        hashes: &[u64],
        keys: impl Iterator<Item = &'k [u8]>,
        new: &NewLock<'_>,
    ) -> u32 {
        let first = self.leases.insert(hashes, keys, new);
        self.stats.grants += hashes.len() as u64;
        if self.queues.waiters() > 0 {
            for lease in self.leases.ring(first) {
                if let Some(queue) = self.queue_of(lease) {
                    self.queues.forget_foreign(queue);
                    self.queues.check_at(queue, self.leases.get(lease).deadline);
                }
            }
        }
        first
    }

    /// Grants keys to a waiter, or refuses it if its token already shares the lock. Returns whether
    /// the waiter was granted the lock.
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
        if free.joined.is_some_and(|lease| self.still_shares(now, lease, &waiter.rank.token)) {
            self.answers.refuse(waiter.blocked_id, None, keyspace);
            return false;
        }
        let (db, key) = (free.db, Key::from_slice(free.keys[0].as_ref()));
        let (token, ticket) = (keyspace.name(&waiter.rank.token), waiter.proposed());
        let Waiter { blocked_id, rank, owner, ttl, mode, wants, since, .. } = waiter;
        let terms = Terms { token: &token, owner: owner.as_deref(), ttl, mode, ticket };
        match self.grant(now, free, &terms, keyspace) {
            Ok(fence) => {
                let waited_us = now.monotonic.us_since(since);
                self.stats.handovers += 1;
                self.stats.longest_wait_us = self.stats.longest_wait_us.max(waited_us);
                let grant = Grant { db, key, token: rank.token, fence, waited_us, wants };
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
fn place_in_line<'r, K: Keyspace>(
    acquire: &Acquire<'_, K::Name>,
    rank: Option<&'r Rank>,
    keyspace: &K,
) -> Option<&'r Rank> {
    let may_wait = acquire.wait_ms > 0 && keyspace.may_block();
    rank.filter(|rank| may_wait || rank.ticket == Fence::ZERO || is_broken(NodeRule::PassesUnheard))
}
