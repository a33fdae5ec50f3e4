//! The queues of waiters.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::BuildHasher;

use foldhash::fast::FixedState;
use smallvec::SmallVec;

use super::chunks::Chunks;
use super::index::HashIndex;
use super::mutants::{NodeRule, is_broken};
use super::ticket::Rank;
use super::turn::Budget;
use super::{CommandError, Key, Mode, Monotonic, ShownWaiter, Wants};
use crate::{Fence, Ttl};

/// Names a blocked client. [`Keyspace::block`](super::Keyspace::block) makes each id once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockedId(pub u64);

/// A client that waits for one key, for several at once, or for one of several.
#[derive(Clone, Debug)]
pub(super) struct Waiter {
    pub(super) blocked_id: BlockedId,
    pub(super) rank: Rank,
    /// Whether the client gave its ticket, and did not leave it to the node.
    pub(super) has_ticket: bool,
    pub(super) owner: Option<Box<[u8]>>,
    pub(super) ttl: Ttl,
    pub(super) mode: Mode,
    pub(super) wants: Wants,
    /// When the answered request arrived.
    pub(super) since: Monotonic,
    /// When its first request arrived. A repeated request takes over its place.
    pub(super) in_line_since: Monotonic,
    /// When its wait times out.
    pub(super) until: Monotonic,
}

/// A waiter and its places in the queues.
#[derive(Clone, Debug)]
struct Place {
    waiter: Waiter,
    /// The queues of its keys, in the order of the keys.
    queues: SmallVec<[u32; 2]>,
    /// The queue in which a waiter for several keys is a candidate: that of the key that it lacked
    /// when it was last considered. Other waiters are candidates in all their queues.
    candidate_in: u32,
    /// Whether its keys are kept for it; see [`Queues::keep_keys`].
    keeps: bool,
}

impl Place {
    /// Until when younger waiters may pass it; `None` unless it waits for several keys, and its
    /// keys are not kept yet.
    fn patient_until(&self) -> Option<Monotonic> {
        let is_passed = !self.is_single() && !self.keeps;
        is_passed.then(|| self.waiter.in_line_since.plus_us(PATIENCE_US))
    }

    /// Whether any one of its keys suffices: in each queue, it ranks with the single-key waiters.
    fn is_single(&self) -> bool {
        self.queues.len() == 1 || self.waiter.wants == Wants::Any
    }
}

/// The waiters of one key, the oldest first.
#[derive(Clone, Debug)]
struct Queue {
    db: u32,
    key: Key,
    hash: u64,
    /// Waiters for this key alone, or for any of several.
    single: BTreeMap<Rank, u32>,
    /// The latest time-out of all waiters that were ever in `single`.
    latest_time_out: Monotonic,
    /// Waiters for several keys that are candidates for this one.
    candidates: BTreeMap<Rank, u32>,
    /// All waiters for several keys that include this one.
    several: BTreeMap<Rank, u32>,
    /// Those of them for which this key is kept while it is free.
    keepers: BTreeMap<Rank, u32>,
    /// Until this time, the key counts as taken by a value that is not the mirror of a lease.
    foreign_until: Monotonic,
    /// When to check whether the key has become free; `None` if another event will tell, or if the
    /// key has no candidate.
    check: Option<PlannedCheck>,
}

/// A planned check of a queue's key.
///
/// Of several keys with a check planned for the same time, the node first checks the key with the
/// oldest candidate.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PlannedCheck {
    at: Monotonic,
    /// The rank of the first candidate.
    first: Rank,
}

/// All queues of a node.
///
/// A single-key waiter is a candidate for its key. A waiter for any of several keys is a candidate
/// for each of them. A waiter for several keys is a candidate for one key at a time, one that it
/// lacks. When a lock on a key ends, the node considers only the candidates for that key, however
/// many waiters there are. A queue frees its memory when its last waiter leaves.
#[derive(Clone, Debug)]
pub(super) struct Queues {
    /// `lock.max-waiters`. Waiters that already wait may be more.
    pub(super) max_waiters: usize,
    hasher: FixedState,
    places: Chunks<Place>,
    items: Chunks<Queue>,
    by_key: HashIndex,
    /// Finds a waiter by one of its keys and its token. A token waits once on a key, so no two
    /// entries have the same hash for long.
    by_token: HashIndex,
    by_blocked_id: BTreeMap<BlockedId, u32>,
    time_outs: BTreeSet<(Monotonic, u32)>,
    /// Until when each waiter for several keys may be passed.
    patience: BTreeSet<(Monotonic, u32)>,
    /// The time, the first candidate and the queue of each [`PlannedCheck`].
    checks: BTreeSet<(Monotonic, Rank, u32)>,
    /// Waiters that have left their queues and need a refusal.
    pub(super) dismissed: BTreeSet<BlockedId>,
    /// The index from which [`Queues::sweep`] goes on to plan checks.
    sweep_from: Option<u32>,
}

/// The result of a search for a waiter within a budget.
#[derive(Clone, Copy, Debug)]
pub(super) enum QueueScan {
    Found(u32),
    NotFound,
    Spent,
}

/// The number of waiters that a scan passes for one unit of its budget. A command passes more than
/// `lock.max-waiters` have timed out by default, so that none of them blocks a newcomer.
const WAITERS_PER_UNIT: usize = 24;
/// How long younger waiters may pass a waiter for several keys, in microseconds.
const PATIENCE_US: u64 = 50_000;

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
    /// An older waiter comes first.
    Behind,
}

impl Lack {
    /// The lack of a key that may be free: it is checked at once.
    pub(super) fn unknown() -> Self {
        Self::Foreign(Monotonic::default())
    }
}

impl Queues {
    pub(super) fn new(max_waiters: usize, hash_seed: u64, shards: usize) -> Self {
        Self {
            max_waiters,
            hasher: FixedState::with_seed(hash_seed),
            places: Chunks::default(),
            items: Chunks::default(),
            by_key: HashIndex::new(shards),
            by_token: HashIndex::new(shards),
            by_blocked_id: BTreeMap::new(),
            time_outs: BTreeSet::new(),
            patience: BTreeSet::new(),
            checks: BTreeSet::new(),
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

    /// The first `count` waiters for a key, the oldest first.
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

    /// Adds a waiter to the queue of each of its keys, and returns its place.
    pub(super) fn push<'k>(
        &mut self,
        waiter: Waiter,
        db: u32,
        keys: impl Iterator<Item = Wanted<'k>>,
    ) -> u32 {
        let (blocked_id, until, is_any) =
            (waiter.blocked_id, waiter.until, waiter.wants == Wants::Any);
        let rank = waiter.rank.clone();
        let queues = SmallVec::new();
        let place = self.places.insert(Place { waiter, queues, candidate_in: 0, keeps: false });
        self.by_blocked_id.insert(blocked_id, place);
        self.time_outs.insert((until, place));
        let mut lacking = None;
        for Wanted { hash, key, lack } in keys {
            let queue = self
                .find(hash, db, key)
                .unwrap_or_else(|| self.open(hash, db, Key::from_slice(key)));
            self.places[place].queues.push(queue);
            let token = &rank.token;
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
            return place;
        }
        let Place { queues, .. } = &self.places[place];
        let (queue, lack) = lacking.unwrap_or_else(|| (queues[0], Lack::unknown()));
        if queues.len() == 1 {
            self.add_single(place, queue);
        } else {
            for index in 0..queues.len() {
                let queue = self.places[place].queues[index];
                self.items[queue].several.insert(rank.clone(), place);
            }
            self.make_candidate(place, queue);
            self.patience.extend(self.places[place].patient_until().map(|at| (at, place)));
        }
        self.check_when_free(queue, lack);
        place
    }

    /// The next waiter that may be passed no longer, and when.
    pub(super) fn next_impatient(&self) -> Option<(Monotonic, u32)> {
        self.patience.first().copied()
    }

    #[cfg(feature = "memory")]
    pub(super) fn ends_of_patience(&self) -> impl Iterator<Item = Monotonic> {
        self.patience.iter().map(|&(at, _)| at)
    }

    /// Whether any one of its keys suffices for this waiter.
    pub(super) fn is_single(&self, place: u32) -> bool {
        self.places[place].is_single()
    }

    /// Whether the keys of this waiter are kept for it.
    pub(super) fn keeps_keys(&self, place: u32) -> bool {
        self.places[place].keeps
    }

    /// From now on, keeps the keys of a waiter for several keys: while they are free, no younger
    /// client is granted one of them. Of two waiters that want the same keys, the older one keeps
    /// them, so that they do not wait for each other.
    pub(super) fn keep_keys(&mut self, place: u32) {
        let Some(at) = self.places[place].patient_until() else { return };
        self.patience.remove(&(at, place));
        if is_broken(NodeRule::NeverKeepsKeys) {
            return;
        }
        let waiting = &mut self.places[place];
        waiting.keeps = true;
        for &queue in &waiting.queues {
            self.items[queue].keepers.insert(waiting.waiter.rank.clone(), place);
        }
    }

    /// The oldest waiter for which this key is kept, and whose wait has not timed out.
    fn first_keeper(&self, queue: u32, now: Monotonic, budget: &mut Budget) -> QueueScan {
        self.first_in_time(&self.items[queue].keepers, now, budget)
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
            keepers: BTreeMap::new(),
            foreign_until: Monotonic::default(),
            check: None,
        });
        self.by_key.insert(hash, slot);
        slot
    }

    /// Adds a waiter to a queue whose key suffices for it.
    fn add_single(&mut self, place: u32, queue: u32) {
        let Waiter { rank, until, .. } = &self.places[place].waiter;
        let Queue { single, latest_time_out, .. } = &mut self.items[queue];
        single.insert(rank.clone(), place);
        *latest_time_out = (*until).max(*latest_time_out);
        self.rank_check(queue);
    }

    /// Makes a waiter for several keys a candidate in `queue` only.
    fn make_candidate(&mut self, place: u32, queue: u32) {
        let rank = self.places[place].waiter.rank.clone();
        self.items[queue].candidates.insert(rank, place);
        self.places[place].candidate_in = queue;
        self.rank_check(queue);
    }

    /// Makes a waiter for several keys a candidate for a key that it lacks, and for no other key.
    pub(super) fn record_lack(&mut self, place: u32, queue: u32, lack: Lack) {
        let &Place { ref waiter, candidate_in, .. } = &self.places[place];
        if candidate_in != queue {
            self.items[candidate_in].candidates.remove(&waiter.rank);
            self.make_candidate(place, queue);
            self.rank_check(candidate_in);
        }
        self.check_when_free(queue, lack);
    }

    /// Forgets that the key of this queue was known to hold a foreign value.
    pub(super) fn forget_foreign(&mut self, queue: u32) {
        self.items[queue].foreign_until = Monotonic::default();
    }

    /// Records that the key of this queue is not free. Plans a check for when it may be free.
    pub(super) fn found_taken(&mut self, queue: u32, lack: Lack) {
        if let Some(at) = self.record_foreign(queue, lack) {
            self.check_at(queue, at);
        }
    }

    /// Records a foreign value, and returns when the given reason may be over.
    fn record_foreign(&mut self, queue: u32, lack: Lack) -> Option<Monotonic> {
        match lack {
            Lack::Held(until) => Some(until),
            Lack::Foreign(until) => {
                self.items[queue].foreign_until = until;
                Some(until)
            }
            // `remove` plans a check when the older waiter leaves.
            Lack::Behind => None,
        }
    }

    /// The first candidate in this queue whose wait has not timed out, unless the key is kept for
    /// an older waiter.
    pub(super) fn next_candidate(
        &mut self,
        queue: u32,
        now: Monotonic,
        budget: &mut Budget,
    ) -> QueueScan {
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
        let first = single.into_iter().chain(several).min_by_key(|place| &self.waiter(*place).rank);
        first.map_or(QueueScan::NotFound, |place| self.unless_kept(queue, place, now, budget))
    }

    /// Finds this waiter, unless the key is kept for an older one.
    pub(super) fn unless_kept(
        &self,
        queue: u32,
        place: u32,
        now: Monotonic,
        budget: &mut Budget,
    ) -> QueueScan {
        match self.first_keeper(queue, now, budget) {
            QueueScan::Found(keeper) if self.waiter(keeper).rank < self.waiter(place).rank => {
                QueueScan::NotFound
            }
            QueueScan::Found(_) | QueueScan::NotFound => QueueScan::Found(place),
            QueueScan::Spent => QueueScan::Spent,
        }
    }

    /// Whether an older waiter comes first, or may come first. A newcomer without a rank comes
    /// after all waiters.
    pub(super) fn is_behind(
        &self,
        queue: u32,
        rank: Option<&Rank>,
        now: Monotonic,
        budget: &mut Budget,
    ) -> bool {
        let precedes = |first| match first {
            QueueScan::Found(first) => rank.is_none_or(|rank| self.waiter(first).rank < *rank),
            // All scanned waiters have timed out. A later one may have time left.
            QueueScan::Spent => true,
            QueueScan::NotFound => false,
        };
        precedes(self.first_single(queue, now, budget))
            || precedes(self.first_keeper(queue, now, budget))
    }

    /// The largest ticket in line for a key, except that of one token.
    pub(super) fn largest_other(&self, queue: u32, token: &[u8]) -> Fence {
        let Queue { single, several, .. } = &self.items[queue];
        let last = |waiters: &BTreeMap<Rank, u32>| {
            let last = waiters.keys().rev().find(|rank| rank.token[..] != *token);
            last.map(|rank| rank.ticket).unwrap_or_default()
        };
        last(single).max(last(several))
    }

    /// The waiter that a newcomer displaces, because the line is full; `None` if there is room.
    ///
    /// # Errors
    /// If the line is full, and the newcomer would be the youngest waiter of each of its keys. A
    /// full line keeps the oldest waiters of a key.
    pub(super) fn displaced_by<'k>(
        &self,
        newcomer: Option<&Rank>,
        db: u32,
        mut keys: impl Iterator<Item = (u64, &'k [u8])>,
    ) -> Result<Option<u32>, CommandError> {
        if self.waiters() < self.max_waiters {
            return Ok(None);
        }
        let displaced = newcomer.and_then(|newcomer| {
            keys.find_map(|(hash, key)| {
                let Queue { single, several, .. } = &self.items[self.find(hash, db, key)?];
                let youngest = single.last_key_value().max(several.last_key_value());
                youngest.filter(|(last, _)| *last > newcomer).map(|(_, &place)| place)
            })
        });
        if displaced.is_none() || is_broken(NodeRule::FullLineKeepsYoungest) {
            return Err(CommandError::QueueFull { max_waiters: self.max_waiters });
        }
        Ok(displaced)
    }

    /// Another waiter of a key that is older than this rank, and has time left.
    /// With `exclusive`, passes over waiters that would share the key.
    pub(super) fn next_older(
        &self,
        queue: u32,
        rank: &Rank,
        exclusive: bool,
        now: Monotonic,
        budget: &mut Budget,
    ) -> Option<u32> {
        let Queue { single, several, .. } = &self.items[queue];
        let younger_too = is_broken(NodeRule::YieldsToYounger);
        for waiters in [single, several] {
            for (other, &place) in waiters {
                if budget.is_spent() || !(other < rank || younger_too) {
                    break;
                }
                let waiter = self.waiter(place);
                let is_other = other.token != rank.token;
                let is_passed = exclusive && waiter.mode == Mode::Shared;
                if is_other && now < waiter.until && !is_passed {
                    return Some(place);
                }
                budget.spend(1);
            }
        }
        None
    }

    /// Why the key is known to hold a value without a lease.
    pub(super) fn foreign_lack(&self, queue: u32, now: Monotonic) -> Option<Lack> {
        let until = self.items[queue].foreign_until;
        (now < until).then_some(Lack::Foreign(until))
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
    ) -> QueueScan {
        let Queue { single, latest_time_out, .. } = &self.items[queue];
        if *latest_time_out <= now {
            return QueueScan::NotFound;
        }
        self.first_in_time(single, now, budget)
    }

    fn first_in_time(
        &self,
        waiters: &BTreeMap<Rank, u32>,
        now: Monotonic,
        budget: &mut Budget,
    ) -> QueueScan {
        for (scanned, &place) in waiters.values().enumerate() {
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
            waiter.rank.token[..] == *token && queues.contains(&queue)
        })
    }

    /// Removes a waiter from all its queues. A job refuses it.
    pub(super) fn dismiss(&mut self, place: u32) {
        let waiter = self.remove(place);
        self.dismissed.insert(waiter.blocked_id);
    }

    /// Plans a check of the key for when the given reason may be over.
    fn check_when_free(&mut self, queue: u32, lack: Lack) {
        if let Some(at) = self.record_foreign(queue, lack) {
            self.check_by(queue, at);
        }
    }

    /// Plans a check of the key by the time `at`, if the key has a candidate.
    pub(super) fn check_by(&mut self, queue: u32, at: Monotonic) {
        if self.items[queue].check.as_ref().is_none_or(|planned| at < planned.at) {
            self.check_at(queue, at);
        }
    }

    /// Plans a check of the key at the time `at` and not before, if the key has a candidate.
    pub(super) fn check_at(&mut self, queue: u32, at: Monotonic) {
        self.cancel_check(queue);
        if let Some(first) = self.first_candidate(queue).cloned() {
            self.checks.insert((at, first.clone(), queue));
            self.items[queue].check = Some(PlannedCheck { at, first });
        }
    }

    pub(super) fn cancel_check(&mut self, queue: u32) {
        if let Some(planned) = self.items[queue].check.take() {
            self.checks.remove(&(planned.at, planned.first, queue));
        }
    }

    /// Ranks the planned check again, because the candidates have changed.
    fn rank_check(&mut self, queue: u32) {
        if let Some(planned) = &self.items[queue].check
            && self.first_candidate(queue) != Some(&planned.first)
        {
            self.check_at(queue, planned.at);
        }
    }

    /// The rank of the oldest candidate.
    fn first_candidate(&self, queue: u32) -> Option<&Rank> {
        let Queue { single, candidates, .. } = &self.items[queue];
        [single, candidates].into_iter().filter_map(|waiters| waiters.keys().next()).min()
    }

    /// The first queue to check, and when.
    pub(super) fn next_check(&self) -> Option<(Monotonic, u32)> {
        self.checks.first().map(|(at, _, queue)| (*at, *queue))
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
                self.check_by(slot, Monotonic::default());
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
        if let Some(at) = removed.patient_until() {
            self.patience.remove(&(at, place));
        }
        let Place { waiter, queues, candidate_in, keeps } = removed;
        self.time_outs.remove(&(waiter.until, place));
        self.by_blocked_id.remove(&waiter.blocked_id);
        for &slot in &queues {
            let token_hash = self.token_hash(self.items[slot].hash, &waiter.rank.token);
            self.by_token.remove(token_hash, place);
            let queue = &mut self.items[slot];
            if is_single {
                queue.single.remove(&waiter.rank);
            } else {
                queue.several.remove(&waiter.rank);
                queue.keepers.remove(&waiter.rank);
                if slot == candidate_in {
                    queue.candidates.remove(&waiter.rank);
                }
            }
            if queue.single.is_empty() && queue.several.is_empty() {
                self.close(slot);
            } else if is_single {
                if queues.len() == 1 || self.departure_may_free(slot) {
                    self.check_by(slot, Monotonic::default());
                }
                self.rank_check(slot);
            } else {
                self.rank_check(slot);
                if keeps {
                    self.check_by(slot, Monotonic::default());
                }
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
}

impl Waiter {
    /// The ticket that the client gave: the fence that it proposes.
    pub(super) fn proposed(&self) -> Option<Fence> {
        self.has_ticket.then_some(self.rank.ticket)
    }
}
