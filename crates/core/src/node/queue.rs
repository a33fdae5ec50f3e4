use std::collections::VecDeque;
use std::hash::{Hash, Hasher};

use foldhash::fast::FixedState;
use hashbrown::{HashMap, HashTable};
use slab::Slab;

use super::Monotonic;
use super::deadlines::Deadlines;
use crate::{Fence, Ttl};

/// Names one who waits. The caller chooses it, and no two that wait at the same time have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// One who waits for a key.
#[derive(Clone, Debug)]
pub(super) struct Waiter<B> {
    pub(super) ticket: Ticket,
    pub(super) token: B,
    pub(super) owner: Option<B>,
    pub(super) ttl: Ttl,
    /// The fence that it proposed.
    pub(super) fence: Option<Fence>,
    pub(super) since: Monotonic,
    /// When its time is over.
    pub(super) until: Monotonic,
}

impl<B: AsRef<[u8]>> Waiter<B> {
    fn whole(&self) -> WholeWaiter<'_> {
        let Self { ticket, token, owner, ttl, fence, since, until } = self;
        let owner = owner.as_ref().map(AsRef::as_ref);
        (*ticket, token.as_ref(), owner, *ttl, *fence, *since, *until)
    }
}

/// All of a waiter.
type WholeWaiter<'a> = (Ticket, &'a [u8], Option<&'a [u8]>, Ttl, Option<Fence>, Monotonic, Monotonic);

/// All of a queue: its key, when to look at that, and who waits.
type Line<'a> = (u32, &'a [u8], Monotonic, Vec<WholeWaiter<'a>>);

/// Those who wait for one key, first come first served.
#[derive(Clone, Debug)]
struct Queue<B> {
    db: u32,
    key: B,
    hash: u64,
    first: u32,
    last: u32,
    len: usize,
}

/// A waiter's place in its queue.
#[derive(Clone, Debug)]
struct Place<B> {
    waiter: Waiter<B>,
    queue: u32,
    token_hash: u64,
    before: Option<u32>,
    behind: Option<u32>,
}

/// All queues of a node, found by key, by ticket, by token, and by the time at which there is something to be done.
#[derive(Clone, Debug)]
pub(super) struct Queues<B> {
    hasher: FixedState,
    places: Slab<Place<B>>,
    rows: Slab<Queue<B>>,
    by_ticket: HashMap<Ticket, u32, FixedState>,
    by_token: HashTable<u32>,
    by_key: HashTable<u32>,
    /// When the time of each waiter is over.
    time_outs: Deadlines,
    /// When to look at each queue's key, because by then it may have become free.
    looks: Deadlines,
    /// Who left the queue and is to be told so.
    dismissed: VecDeque<Ticket>,
}

impl<B: AsRef<[u8]>> Queues<B> {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            hasher: FixedState::with_seed(seed),
            places: Slab::new(),
            rows: Slab::new(),
            by_ticket: HashMap::with_hasher(FixedState::with_seed(seed)),
            by_token: HashTable::new(),
            by_key: HashTable::new(),
            time_outs: Deadlines::default(),
            looks: Deadlines::default(),
            dismissed: VecDeque::new(),
        }
    }

    /// How many wait, in all queues.
    pub(super) fn waiters(&self) -> usize {
        self.places.len()
    }

    /// The queue of a key, if anybody waits for it.
    pub(super) fn find(&self, hash: u64, db: u32, key: &[u8]) -> Option<u32> {
        if self.places.is_empty() {
            return None;
        }
        let rows = &self.rows;
        let is_it = |&slot: &u32| {
            let queue = &rows[slot as usize];
            queue.hash == hash && queue.db == db && queue.key.as_ref() == key
        };
        self.by_key.find(hash, is_it).copied()
    }

    pub(super) fn len(&self, queue: u32) -> usize {
        self.rows[queue as usize].len
    }

    pub(super) fn key(&self, queue: u32) -> (u32, &B) {
        let Queue { db, key, .. } = &self.rows[queue as usize];
        (*db, key)
    }

    /// Adds a waiter at the end of the queue of its key, for which `new_key` is kept when it is the first.
    pub(super) fn push(
        &mut self,
        hash: u64,
        db: u32,
        key: &[u8],
        new_key: impl FnOnce() -> B,
        waiter: Waiter<B>,
        look_at: Monotonic,
    ) {
        let token_hash = self.token_hash(hash, waiter.token.as_ref());
        let (ticket, until) = (waiter.ticket, waiter.until);
        let found = self.find(hash, db, key);
        let place = Place { waiter, queue: 0, token_hash, before: None, behind: None };
        let slot = slot_of(self.places.insert(place));
        let queue = found.unwrap_or_else(|| {
            let queue = Queue { db, key: new_key(), hash, first: slot, last: slot, len: 0 };
            let new = slot_of(self.rows.insert(queue));
            let rows = &self.rows;
            self.by_key.insert_unique(hash, new, |&slot| rows[slot as usize].hash);
            self.looks.insert(new, look_at);
            new
        });
        if found.is_some() {
            let last = std::mem::replace(&mut self.rows[queue as usize].last, slot);
            self.places[last as usize].behind = Some(slot);
            self.places[slot as usize].before = Some(last);
        }
        self.rows[queue as usize].len += 1;
        self.places[slot as usize].queue = queue;
        let places = &self.places;
        self.by_token.insert_unique(token_hash, slot, |&slot| places[slot as usize].token_hash);
        self.by_ticket.insert(ticket, slot);
        self.time_outs.insert(slot, until);
    }

    /// Takes the first of the queue whose time is not over. Those before it stay: they are to be told that it is.
    pub(super) fn pop_in_time(&mut self, queue: u32, now: Monotonic) -> Option<Waiter<B>> {
        let mut next = Some(self.rows[queue as usize].first);
        while let Some(slot) = next {
            let place = &self.places[slot as usize];
            if now < place.waiter.until {
                return Some(self.remove(slot));
            }
            next = place.behind;
        }
        None
    }

    /// Takes out one who waits no more. False when it does not wait.
    pub(super) fn cancel(&mut self, ticket: Ticket) -> bool {
        let slot = self.by_ticket.get(&ticket).copied();
        slot.map(|slot| self.remove(slot)).is_some()
    }

    /// Takes out those that wait for the key with this token; they are to be told.
    pub(super) fn dismiss_token(&mut self, queue: u32, token: &[u8]) {
        let hash = self.token_hash(self.rows[queue as usize].hash, token);
        loop {
            let places = &self.places;
            let is_it = |&slot: &u32| {
                let place = &places[slot as usize];
                place.queue == queue && place.waiter.token.as_ref() == token
            };
            let Some(slot) = self.by_token.find(hash, is_it).copied() else { return };
            self.dismiss(slot);
        }
    }

    /// Takes out everybody; they are to be told.
    pub(super) fn dismiss_all(&mut self) {
        let slots: Vec<_> = self.places.iter().map(|(slot, _)| slot_of(slot)).collect();
        for slot in slots {
            self.dismiss(slot);
        }
    }

    /// One who is to be told that it waits no more: its time is over, or it was taken out.
    pub(super) fn pop_dismissed(&mut self, now: Monotonic) -> Option<Ticket> {
        if let Some((until, slot)) = self.time_outs.soonest()
            && until <= now
        {
            self.dismiss(slot);
        }
        self.dismissed.pop_front()
    }

    pub(super) fn look_at(&mut self, queue: u32, at: Monotonic) {
        self.looks.change(queue, at);
    }

    /// The keys of these databases may have become free.
    pub(super) fn look_soon(&mut self, of: impl Fn(u32) -> bool) {
        for (slot, queue) in &self.rows {
            if of(queue.db) {
                self.looks.change(slot_of(slot), Monotonic::default());
            }
        }
    }

    /// The queue whose key is to be looked at first, and when.
    pub(super) fn soonest_look(&self) -> Option<(Monotonic, u32)> {
        self.looks.soonest()
    }

    /// When somebody is to be told something, or a key to be looked at.
    pub(super) fn next_wake(&self) -> Option<Monotonic> {
        if !self.dismissed.is_empty() {
            return Some(Monotonic::default());
        }
        let time_out = self.time_outs.soonest().map(|(at, _)| at);
        let look = self.looks.soonest().map(|(at, _)| at);
        time_out.into_iter().chain(look).min()
    }

    fn dismiss(&mut self, slot: u32) {
        let waiter = self.remove(slot);
        self.dismissed.push_back(waiter.ticket);
    }

    fn remove(&mut self, slot: u32) -> Waiter<B> {
        self.time_outs.remove(slot);
        let Place { waiter, queue, token_hash, before, behind } = self.places.remove(slot as usize);
        self.by_ticket.remove(&waiter.ticket);
        if let Ok(entry) = self.by_token.find_entry(token_hash, |&other| other == slot) {
            entry.remove();
        }
        match before {
            Some(before) => self.places[before as usize].behind = behind,
            None => self.rows[queue as usize].first = behind.unwrap_or(slot),
        }
        match behind {
            Some(behind) => self.places[behind as usize].before = before,
            None => self.rows[queue as usize].last = before.unwrap_or(slot),
        }
        self.rows[queue as usize].len -= 1;
        if self.rows[queue as usize].len == 0 {
            self.looks.remove(queue);
            let gone = self.rows.remove(queue as usize);
            if let Ok(entry) = self.by_key.find_entry(gone.hash, |&other| other == queue) {
                entry.remove();
            }
        }
        waiter
    }

    /// Those who wait, in the order of their keys and then of their coming, wherever they happen to be kept; and those who
    /// are to be told that they do not.
    fn in_order(&self) -> (Vec<Line<'_>>, &VecDeque<Ticket>) {
        let mut lines: Vec<_> = self
            .rows
            .iter()
            .map(|(slot, queue)| {
                let places =
                    std::iter::successors(Some(queue.first), |&slot| self.places[slot as usize].behind);
                let waiters = places.map(|slot| self.places[slot as usize].waiter.whole()).collect();
                (queue.db, queue.key.as_ref(), self.looks.at(slot), waiters)
            })
            .collect();
        lines.sort_unstable();
        (lines, &self.dismissed)
    }

    fn token_hash(&self, key_hash: u64, token: &[u8]) -> u64 {
        use std::hash::BuildHasher as _;
        self.hasher.hash_one((key_hash, token))
    }
}

impl<B: AsRef<[u8]>> PartialEq for Queues<B> {
    fn eq(&self, other: &Self) -> bool {
        self.in_order() == other.in_order()
    }
}

impl<B: AsRef<[u8]>> Eq for Queues<B> {}

impl<B: AsRef<[u8]>> Hash for Queues<B> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.in_order().hash(state);
    }
}

fn slot_of(index: usize) -> u32 {
    u32::try_from(index).expect("waiters are far fewer: each is a connection")
}
