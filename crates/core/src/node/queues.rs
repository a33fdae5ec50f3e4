//! The queues of waiters.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, Hash, Hasher};

use foldhash::fast::FixedState;
use smallvec::SmallVec;

use super::chunks::Chunks;
use super::index::HashIndex;
use super::machine::PerKey;
use super::turn::Budget;
use super::{Key, Mode, Monotonic, ShownWaiter, Token};
use crate::{Fence, Ttl};

/// Names a blocked client. [`Keyspace::block`](super::Keyspace::block) makes each id once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockedId(pub u64);

/// A client that waits for one key, for several at once, or for one of several.
#[derive(Clone, Debug)]
pub(super) struct Waiter {
    pub(super) blocked_id: BlockedId,
    pub(super) token: Token,
    pub(super) owner: Option<Box<[u8]>>,
    pub(super) ttl: Ttl,
    pub(super) mode: Mode,
    pub(super) wants: Wants,
    /// The fence that it proposed.
    pub(super) fence: Option<Fence>,
    pub(super) since: Monotonic,
    /// When its wait times out.
    pub(super) until: Monotonic,
}

/// Whether a waiter waits for all of its keys or for any of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Wants {
    All,
    Any,
}

/// A waiter and its places in the queues.
#[derive(Clone, Debug)]
struct Place {
    waiter: Waiter,
    /// The sequence number of its arrival, which orders all waiters of the node.
    arrival: u64,
    /// The queues of its keys, in the order of the keys.
    queues: SmallVec<[u32; 2]>,
    /// The queue in which it is a candidate.
    ///
    /// A waiter for several keys is a candidate only for the key that it lacked when it was last
    /// considered. A waiter for any of several keys is a candidate in all its queues: this is the
    /// last of them.
    candidate_in: u32,
}

impl Place {
    /// Whether any one of its keys suffices: in each queue, it ranks with the single-key waiters.
    fn is_single(&self) -> bool {
        self.queues.len() == 1 || self.waiter.wants == Wants::Any
    }
}

/// The waiters of one key, by arrival.
#[derive(Clone, Debug)]
struct Queue {
    db: u32,
    key: Key,
    hash: u64,
    /// Waiters for this key alone, or for any of several.
    single: BTreeMap<u64, u32>,
    /// The latest time-out of all waiters that were ever in `single`.
    latest_time_out: Monotonic,
    /// Waiters for several keys that are candidates for this one.
    candidates: BTreeMap<u64, u32>,
    /// All waiters for several keys that include this one.
    several: BTreeMap<u64, u32>,
    /// Until this time, the key counts as taken by a value that is not the mirror of a lease.
    foreign_until: Monotonic,
    /// When to check whether the key has become free.
    check: Option<PlannedCheck>,
}

/// A planned check of a queue's key.
/// Of several keys with a check planned for the same time, the node first checks the key whose
/// first candidate arrived earliest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PlannedCheck {
    at: Monotonic,
    /// The arrival of the first candidate.
    arrival: u64,
}

/// All queues of a node.
///
/// A single-key waiter is a candidate for its key. A waiter for any of several keys is a candidate
/// for each of them. A waiter for several keys is a candidate for one key at a time, one that it
/// lacks. When a lock on a key ends, the node considers only the candidates for that key, however
/// many waiters there are. A queue frees its memory when its last waiter leaves.
#[derive(Clone, Debug)]
pub(super) struct Queues {
    hasher: FixedState,
    places: Chunks<Place>,
    items: Chunks<Queue>,
    by_key: HashIndex,
    /// Finds a waiter by one of its keys and its token. A token waits once on a key, so no two
    /// entries have the same hash for long.
    by_token: HashIndex,
    by_blocked_id: BTreeMap<BlockedId, u32>,
    time_outs: BTreeSet<(Monotonic, u32)>,
    /// The time, the arrival and the queue of each [`PlannedCheck`].
    checks: BTreeSet<(Monotonic, u64, u32)>,
    arrivals: u64,
    /// Waiters that have left their queues and need a refusal.
    dismissed: BTreeSet<BlockedId>,
    /// The index from which [`Queues::sweep`] goes on to plan checks.
    sweep_from: Option<u32>,
}

/// The next waiter to consider for a free key.
#[derive(Clone, Copy, Debug)]
pub(super) enum Candidate {
    /// Waits for this key alone, or for any of several.
    Single(u32),
    /// Waits for other keys as well.
    Several(u32),
}

#[derive(Clone, Copy, Debug)]
pub(super) enum QueueScan<T> {
    Found(T),
    NotFound,
    Spent,
}

/// The number of waiters that a scan passes for one unit of its budget.
const WAITERS_PER_UNIT: usize = 8;

/// A place in the order of all waiters of the node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival(u64);

/// A key that a new waiter waits for.
pub(super) struct Wanted<'k> {
    pub(super) hash: u64,
    pub(super) key: &'k [u8],
    /// Why the key is not free, if it is not.
    pub(super) lack: Option<Lack>,
}

/// Why a key is not free for a waiter.
#[derive(Clone, Copy, Debug)]
pub(super) enum Lack {
    /// It has a lease with this deadline.
    Held(Monotonic),
    /// It holds a value without a lease. The next check is at this time.
    Foreign(Monotonic),
    /// A waiter for which this key suffices arrived first.
    Behind,
}

impl Lack {
    /// The lack of a key that may be free: it is checked at once.
    pub(super) fn unknown() -> Self {
        Self::Foreign(Monotonic::default())
    }
}

impl Queues {
    pub(super) fn new(hash_seed: u64, shards: usize) -> Self {
        Self {
            hasher: FixedState::with_seed(hash_seed),
            places: Chunks::default(),
            items: Chunks::default(),
            by_key: HashIndex::new(shards),
            by_token: HashIndex::new(shards),
            by_blocked_id: BTreeMap::new(),
            time_outs: BTreeSet::new(),
            checks: BTreeSet::new(),
            arrivals: 0,
            dismissed: BTreeSet::new(),
            sweep_from: None,
        }
    }

    pub(super) fn waiters(&self) -> usize {
        self.places.len()
    }

    /// The queue of a key, if it has waiters.
    pub(super) fn find(&self, hash: u64, db: u32, key: &[u8]) -> Option<u32> {
        if self.items.is_empty() {
            return None;
        }
        self.by_key.find(hash, |slot| {
            let queue = &self.items[slot];
            queue.hash == hash && queue.db == db && queue.key[..] == *key
        })
    }

    /// The number of waiters for a key, including waiters for several keys.
    pub(super) fn len(&self, queue: u32) -> usize {
        let queue = &self.items[queue];
        queue.single.len() + queue.several.len()
    }

    /// The first `count` waiters for a key, in the order of their arrival.
    pub(super) fn first_waiters(&self, queue: u32, count: usize) -> Vec<ShownWaiter> {
        let Queue { single, several, .. } = &self.items[queue];
        let mut first: Vec<_> =
            single.iter().take(count).chain(several.iter().take(count)).collect();
        first.sort_unstable();
        first.truncate(count);
        let shown = first.into_iter().map(|(_, &place)| {
            let Waiter { blocked_id, owner, .. } = &self.places[place].waiter;
            ShownWaiter { blocked_id: *blocked_id, owner: owner.clone() }
        });
        shown.collect()
    }

    pub(super) fn key(&self, queue: u32) -> (u32, u64, &Key) {
        let Queue { db, hash, key, .. } = &self.items[queue];
        (*db, *hash, key)
    }

    pub(super) fn queues_of(&self, place: u32) -> &[u32] {
        &self.places[place].queues
    }

    /// Adds a waiter to the queue of each of its keys: at the end, or at the place of a waiter that
    /// has left.
    pub(super) fn push<'k>(
        &mut self,
        waiter: Waiter,
        db: u32,
        keys: impl Iterator<Item = Wanted<'k>>,
        left: Option<Arrival>,
    ) {
        let (blocked_id, until, is_any) =
            (waiter.blocked_id, waiter.until, waiter.wants == Wants::Any);
        let arrival = left.map_or(self.arrivals + 1, |left| left.0);
        self.arrivals = self.arrivals.max(arrival);
        let place =
            self.places.insert(Place { waiter, arrival, queues: SmallVec::new(), candidate_in: 0 });
        self.by_blocked_id.insert(blocked_id, place);
        self.time_outs.insert((until, place));
        let mut lacking = None;
        for Wanted { hash, key, lack } in keys {
            let queue = self
                .find(hash, db, key)
                .unwrap_or_else(|| self.open(hash, db, Key::from_slice(key)));
            self.places[place].queues.push(queue);
            let token = &self.places[place].waiter.token;
            debug_assert!(self.waiter_with(queue, token).is_none(), "a token waits once on a key");
            let token_hash = self.token_hash(hash, token);
            self.by_token.insert(token_hash, place);
            if is_any {
                self.add_single(place, queue);
                self.check_when_free(queue, lack.unwrap_or_else(Lack::unknown));
            } else if let (None, Some(lack)) = (lacking, lack) {
                lacking = Some((queue, lack));
            }
        }
        if is_any {
            return;
        }
        let Place { queues, .. } = &self.places[place];
        let (queue, lack) = lacking.unwrap_or_else(|| (queues[0], Lack::unknown()));
        if queues.len() == 1 {
            self.add_single(place, queue);
        } else {
            for index in 0..queues.len() {
                let queue = self.places[place].queues[index];
                self.items[queue].several.insert(arrival, place);
            }
            self.make_candidate(place, queue);
        }
        self.check_when_free(queue, lack);
    }

    fn open(&mut self, hash: u64, db: u32, key: Key) -> u32 {
        let slot = self.items.insert(Queue {
            db,
            key,
            hash,
            single: BTreeMap::new(),
            latest_time_out: Monotonic::default(),
            candidates: BTreeMap::new(),
            several: BTreeMap::new(),
            foreign_until: Monotonic::default(),
            check: None,
        });
        self.by_key.insert(hash, slot);
        slot
    }

    /// Adds a waiter to a queue whose key suffices for it.
    fn add_single(&mut self, place: u32, queue: u32) {
        let Place { waiter, arrival, .. } = &self.places[place];
        let (arrival, until) = (*arrival, waiter.until);
        let Queue { single, latest_time_out, .. } = &mut self.items[queue];
        single.insert(arrival, place);
        *latest_time_out = until.max(*latest_time_out);
        self.places[place].candidate_in = queue;
        self.rank_check(queue);
    }

    /// Makes a waiter for several keys a candidate in `queue` only.
    fn make_candidate(&mut self, place: u32, queue: u32) {
        let arrival = self.places[place].arrival;
        self.items[queue].candidates.insert(arrival, place);
        self.places[place].candidate_in = queue;
        self.rank_check(queue);
    }

    /// Makes a waiter for several keys a candidate for a key that it lacks, and for no other key.
    pub(super) fn record_lack(&mut self, place: u32, queue: u32, lack: Lack) {
        let &Place { arrival, candidate_in, .. } = &self.places[place];
        if candidate_in != queue {
            self.items[candidate_in].candidates.remove(&arrival);
            self.make_candidate(place, queue);
            self.rank_check(candidate_in);
        }
        self.check_when_free(queue, lack);
    }

    /// Why a key is known not to be free for a waiter. Opens no key, and considers no leases.
    pub(super) fn known_lack(
        &self,
        place: u32,
        queue: u32,
        now: Monotonic,
        budget: &mut Budget,
    ) -> Option<Lack> {
        let until = self.items[queue].foreign_until;
        if now < until {
            return Some(Lack::Foreign(until));
        }
        let arrival = self.places[place].arrival;
        let first = match self.first_single(queue, now, budget) {
            QueueScan::Found(first) => self.places[first].arrival,
            // All scanned waiters have timed out. A later one may have time left.
            QueueScan::Spent => 0,
            QueueScan::NotFound => return None,
        };
        (first < arrival).then_some(Lack::Behind)
    }

    /// Forgets that the key of this queue was known to hold a foreign value.
    pub(super) fn forget_foreign(&mut self, queue: u32) {
        self.items[queue].foreign_until = Monotonic::default();
    }

    /// Records that the key of this queue is not free. Plans a check for when it may be free.
    pub(super) fn found_taken(&mut self, queue: u32, lack: Lack) {
        let at = match lack {
            Lack::Held(until) => until,
            Lack::Foreign(until) => {
                self.items[queue].foreign_until = until;
                until
            }
            Lack::Behind => return,
        };
        self.postpone_check(queue, at);
    }

    /// The first candidate in this queue whose wait has not timed out.
    pub(super) fn next_candidate(
        &mut self,
        queue: u32,
        now: Monotonic,
        budget: &mut Budget,
    ) -> QueueScan<Candidate> {
        let single = match self.first_single(queue, now, budget) {
            QueueScan::Found(place) => Some(place),
            QueueScan::NotFound => None,
            QueueScan::Spent => return QueueScan::Spent,
        };
        let several = loop {
            let Some(&place) = self.items[queue].candidates.values().next() else { break None };
            if now < self.places[place].waiter.until {
                break Some(place);
            }
            if budget.is_spent() {
                return QueueScan::Spent;
            }
            budget.spend(1);
            // The waiter leaves its queues when a job refuses it.
            self.items[queue].candidates.pop_first();
            self.rank_check(queue);
        };
        match (single, several) {
            (Some(single), Some(several))
                if self.places[several].arrival < self.places[single].arrival =>
            {
                QueueScan::Found(Candidate::Several(several))
            }
            (Some(single), _) => QueueScan::Found(Candidate::Single(single)),
            (None, Some(several)) => QueueScan::Found(Candidate::Several(several)),
            (None, None) => QueueScan::NotFound,
        }
    }

    /// Whether a waiter for which this key suffices has time left, or may have.
    pub(super) fn has_waiter_ahead(&self, queue: u32, now: Monotonic, budget: &mut Budget) -> bool {
        !matches!(self.first_single(queue, now, budget), QueueScan::NotFound)
    }

    /// When the waiter that [`Self::first_single`] finds began to wait. `None` if there is none, or
    /// if too many waiters before it have timed out.
    pub(super) fn first_single_since(
        &self,
        queue: u32,
        now: Monotonic,
        budget: &mut Budget,
    ) -> Option<Monotonic> {
        match self.first_single(queue, now, budget) {
            QueueScan::Found(place) => Some(self.places[place].waiter.since),
            QueueScan::NotFound | QueueScan::Spent => None,
        }
    }

    pub(super) fn waiter(&self, place: u32) -> &Waiter {
        &self.places[place].waiter
    }

    /// The first waiter for which this key suffices and whose wait has not timed out.
    /// The waiters before it have timed out. A job refuses them.
    pub(super) fn first_single(
        &self,
        queue: u32,
        now: Monotonic,
        budget: &mut Budget,
    ) -> QueueScan<u32> {
        let Queue { single, latest_time_out, .. } = &self.items[queue];
        if *latest_time_out <= now {
            return QueueScan::NotFound;
        }
        for (scanned, &place) in single.values().enumerate() {
            if now < self.places[place].waiter.until {
                return QueueScan::Found(place);
            }
            if scanned % WAITERS_PER_UNIT == WAITERS_PER_UNIT - 1 {
                budget.spend(1);
                if budget.is_spent() {
                    return QueueScan::Spent;
                }
            }
        }
        QueueScan::NotFound
    }

    pub(super) fn next_time_out(&self) -> Option<(Monotonic, u32)> {
        self.time_outs.first().copied()
    }

    pub(super) fn by_blocked_id(&self, blocked_id: BlockedId) -> Option<u32> {
        self.by_blocked_id.get(&blocked_id).copied()
    }

    /// The waiter with this token in a queue, even after its time-out.
    pub(super) fn waiter_with(&self, queue: u32, token: &[u8]) -> Option<u32> {
        let hash = self.token_hash(self.items[queue].hash, token);
        self.by_token.find(hash, |slot| {
            let Place { waiter, queues, .. } = &self.places[slot];
            waiter.token[..] == *token && queues.contains(&queue)
        })
    }

    /// For each of these keys, the waiter with this token, even after its time-out.
    pub(super) fn waiters_with<'k>(
        &self,
        token: &[u8],
        db: u32,
        keys: impl Iterator<Item = (u64, &'k [u8])>,
    ) -> PerKey<Option<u32>> {
        keys.map(|(hash, key)| self.waiter_with(self.find(hash, db, key)?, token)).collect()
    }

    pub(super) fn arrival(&self, place: u32) -> Arrival {
        Arrival(self.places[place].arrival)
    }

    /// Removes a waiter from all its queues. A job refuses it.
    pub(super) fn dismiss(&mut self, place: u32) {
        let waiter = self.remove(place);
        self.dismissed.insert(waiter.blocked_id);
    }

    /// Removes and returns a waiter that has left its queues and needs a refusal.
    pub(super) fn pop_dismissed(&mut self) -> Option<BlockedId> {
        self.dismissed.pop_first()
    }

    /// Drops the refusal of a waiter. Returns false if there was none.
    pub(super) fn forget_dismissed(&mut self, blocked_id: BlockedId) -> bool {
        self.dismissed.remove(&blocked_id)
    }

    pub(super) fn has_dismissed(&self) -> bool {
        !self.dismissed.is_empty()
    }

    /// Plans a check of the key for when the given reason may be over.
    fn check_when_free(&mut self, queue: u32, lack: Lack) {
        match lack {
            Lack::Held(until) => self.check_by(queue, until),
            Lack::Foreign(until) => {
                self.items[queue].foreign_until = until;
                self.check_by(queue, until);
            }
            // `remove` plans a check when the waiter that arrived first leaves.
            Lack::Behind => {}
        }
    }

    /// Plans a check of the key by the time `at`, if the key has a candidate.
    pub(super) fn check_if_wanted(&mut self, queue: u32, at: Monotonic) {
        if self.has_candidates(queue) {
            self.check_by(queue, at);
        }
    }

    /// Plans a check of the key at the time `at` and not before, if the key has a candidate.
    pub(super) fn postpone_check(&mut self, queue: u32, at: Monotonic) {
        if self.has_candidates(queue) {
            self.check_at(queue, at);
        } else {
            self.cancel_check(queue);
        }
    }

    fn has_candidates(&self, queue: u32) -> bool {
        let Queue { single, candidates, .. } = &self.items[queue];
        !single.is_empty() || !candidates.is_empty()
    }

    /// Plans a check of the key at the time `at`, or keeps an earlier one.
    fn check_by(&mut self, queue: u32, at: Monotonic) {
        if self.items[queue].check.is_none_or(|planned| at < planned.at) {
            self.check_at(queue, at);
        }
    }

    /// Plans a check of the key at the time `at`, and not before.
    pub(super) fn check_at(&mut self, queue: u32, at: Monotonic) {
        let arrival = self.first_arrival(queue).unwrap_or(u64::MAX);
        if let Some(planned) = self.items[queue].check.replace(PlannedCheck { at, arrival }) {
            self.checks.remove(&(planned.at, planned.arrival, queue));
        }
        self.checks.insert((at, arrival, queue));
    }

    pub(super) fn cancel_check(&mut self, queue: u32) {
        if let Some(planned) = self.items[queue].check.take() {
            self.checks.remove(&(planned.at, planned.arrival, queue));
        }
    }

    /// Ranks the planned check again, because the candidates have changed.
    /// A queue without candidates needs no check.
    fn rank_check(&mut self, queue: u32) {
        let Some(planned) = self.items[queue].check else { return };
        match self.first_arrival(queue) {
            None => self.cancel_check(queue),
            Some(arrival) if arrival != planned.arrival => self.check_at(queue, planned.at),
            Some(_) => {}
        }
    }

    fn first_arrival(&self, queue: u32) -> Option<u64> {
        let Queue { single, candidates, .. } = &self.items[queue];
        let first =
            |waiters: &BTreeMap<u64, u32>| waiters.first_key_value().map(|(&arrival, _)| arrival);
        [first(single), first(candidates)].into_iter().flatten().min()
    }

    /// The first queue to check, and when.
    pub(super) fn next_check(&self) -> Option<(Monotonic, u32)> {
        self.checks.first().map(|&(at, _, queue)| (at, queue))
    }

    /// Starts a sweep over all queues, because any of their keys may have become free.
    pub(super) fn check_all(&mut self) {
        if !self.items.is_empty() {
            self.sweep_from = Some(0);
        }
    }

    pub(super) fn is_sweeping(&self) -> bool {
        self.sweep_from.is_some()
    }

    /// Examines the next `slots` slots, and plans a check of the key of each queue in them.
    /// Returns the number of these queues.
    pub(super) fn sweep(&mut self, slots: u32) -> usize {
        let Some(from) = self.sweep_from else { return 0 };
        let end = self.items.slots_end().min(from.saturating_add(slots));
        let mut queues = 0;
        for slot in from..end {
            if self.items.get(slot).is_some() {
                queues += 1;
                self.forget_foreign(slot);
                self.check_if_wanted(slot, Monotonic::default());
            }
        }
        self.sweep_from = (end < self.items.slots_end()).then_some(end);
        queues
    }

    /// Removes a waiter from all its queues.
    /// Plans a check of each key that may now be granted to a waiter behind the removed one.
    pub(super) fn remove(&mut self, place: u32) -> Waiter {
        let removed = self.places.remove(place);
        let is_single = removed.is_single();
        let Place { waiter, arrival, queues, candidate_in } = removed;
        self.time_outs.remove(&(waiter.until, place));
        self.by_blocked_id.remove(&waiter.blocked_id);
        for &slot in &queues {
            let token_hash = self.token_hash(self.items[slot].hash, &waiter.token);
            self.by_token.remove(token_hash, place);
            let queue = &mut self.items[slot];
            if is_single {
                queue.single.remove(&arrival);
            } else {
                queue.several.remove(&arrival);
                if slot == candidate_in {
                    queue.candidates.remove(&arrival);
                }
            }
            if queue.single.is_empty() && queue.several.is_empty() {
                self.close(slot);
            } else if is_single {
                if queues.len() == 1 || self.departure_may_free(slot) {
                    self.check_by(slot, Monotonic::default());
                }
                self.rank_check(slot);
            } else if slot == candidate_in {
                self.rank_check(slot);
            }
        }
        waiter
    }

    /// Whether the node may grant the key to a waiter just because a waiter before it has left.
    /// The node may if a waiter for several keys is a candidate, or if the first waiter wants to
    /// share the key. Other waiters need the end of a lock.
    fn departure_may_free(&self, queue: u32) -> bool {
        let Queue { single, candidates, .. } = &self.items[queue];
        let shares = |&place: &u32| self.places[place].waiter.mode == Mode::Shared;
        !candidates.is_empty() || single.values().next().is_some_and(shares)
    }

    fn close(&mut self, slot: u32) {
        self.cancel_check(slot);
        let queue = self.items.remove(slot);
        self.by_key.remove(queue.hash, slot);
    }

    fn token_hash(&self, key_hash: u64, token: &[u8]) -> u64 {
        self.hasher.hash_one((key_hash, token))
    }

    /// All queues in the order of their keys, each with its waiters in the order of their arrival.
    /// Then the pending refusals, and whether a sweep runs.
    fn in_order(&self) -> (Vec<QueueState<'_>>, &BTreeSet<BlockedId>, bool) {
        let mut queues: Vec<_> = self
            .items
            .iter()
            .map(|(slot, queue)| {
                let Queue {
                    db,
                    key,
                    hash: _,
                    single,
                    latest_time_out: _,
                    candidates: _,
                    several,
                    foreign_until,
                    check,
                } = queue;
                let mut waiters: Vec<_> = single.iter().chain(several).collect();
                waiters.sort_unstable();
                let waiters = waiters.into_iter().map(|(_, &place)| {
                    let Place { waiter, candidate_in, .. } = &self.places[place];
                    (waiter.state(), *candidate_in == slot)
                });
                (*db, &key[..], *foreign_until, check.map(|check| check.at), waiters.collect())
            })
            .collect();
        queues.sort_unstable();
        (queues, &self.dismissed, self.sweep_from.is_some())
    }
}

impl Waiter {
    fn state(&self) -> WaiterState<'_> {
        let Self { blocked_id, token, owner, ttl, mode, wants, fence, since, until } = self;
        ((*blocked_id, token, owner.as_deref()), (*ttl, *mode, *wants, *fence), (*since, *until))
    }
}

type WaiterState<'a> = (
    (BlockedId, &'a [u8], Option<&'a [u8]>),
    (Ttl, Mode, Wants, Option<Fence>),
    (Monotonic, Monotonic),
);

/// Everything about a queue that a decision depends on. The flag of a waiter says whether this is
/// the queue in which it last became a candidate.
type QueueState<'a> = (u32, &'a [u8], Monotonic, Option<Monotonic>, Vec<(WaiterState<'a>, bool)>);

impl PartialEq for Queues {
    fn eq(&self, other: &Self) -> bool {
        self.in_order() == other.in_order()
    }
}

impl Eq for Queues {}

impl Hash for Queues {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.in_order().hash(state);
    }
}
