use std::collections::VecDeque;
use std::hash::{Hash, Hasher};

use foldhash::fast::FixedState;
use hashbrown::{HashMap, HashTable};
use slab::Slab;

use super::deadlines::Deadlines;
use super::{Lend, Monotonic};
use crate::{Fence, Ttl};

/// Names one who waits. The caller chooses it, and no two that wait at the same time have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// One who waits for a key, or for several at once.
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

/// All of a queue: its key, when to look at that, and who waits, with the key that keeps them from having this one.
type Line<'a> = (u32, &'a [u8], Monotonic, Vec<(WholeWaiter<'a>, Option<&'a [u8]>)>);

/// Those who wait for one key, first come first served.
#[derive(Clone, Debug)]
struct Queue<B> {
    db: u32,
    key: B,
    hash: u64,
    first: u32,
    last: u32,
    len: usize,
    /// How many of them wait for this key alone: those who come first whenever it is free.
    for_it_alone: usize,
}

/// One who waits, and where.
#[derive(Clone, Debug)]
struct Guest<B> {
    waiter: Waiter<B>,
    /// Its place in the queue of its first key, which leads to those in the queues of the others.
    first_place: u32,
    /// The queue of another of its keys, which was not free when it was last looked at: until that is free, its turns in the
    /// other queues pass.
    lacks: Option<u32>,
}

/// A waiter's place in the queue of one of its keys.
#[derive(Clone, Debug)]
struct Place {
    guest: u32,
    queue: u32,
    token_hash: u64,
    before: Option<u32>,
    behind: Option<u32>,
    /// The same waiter's place in the queue of its next key.
    next_key: Option<u32>,
}

/// All queues of a node, found by key, by ticket, by token, and by the time at which there is something to be done.
#[derive(Clone, Debug)]
pub(super) struct Queues<B> {
    hasher: FixedState,
    guests: Slab<Guest<B>>,
    places: Slab<Place>,
    rows: Slab<Queue<B>>,
    by_ticket: HashMap<Ticket, u32, FixedState>,
    /// The places of each token.
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
            guests: Slab::new(),
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
        self.guests.len()
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

    /// How many wait for the key, those included who wait for others with it.
    pub(super) fn len(&self, queue: u32) -> usize {
        self.rows[queue as usize].len
    }

    /// Whether somebody waits for the key who needs no other.
    pub(super) fn is_for_it_alone(&self, queue: u32) -> bool {
        self.rows[queue as usize].for_it_alone > 0
    }

    pub(super) fn key(&self, queue: u32) -> (u32, &B) {
        let Queue { db, key, .. } = &self.rows[queue as usize];
        (*db, key)
    }

    pub(super) fn hash(&self, queue: u32) -> u64 {
        self.rows[queue as usize].hash
    }

    /// Adds a waiter at the end of the queue of each of its keys, of which there is at least one, in their order. When it is
    /// the first in a queue, the key is to be looked at by the time that comes with it.
    pub(super) fn push<'k, L: Lend<Kept = B> + 'k>(
        &mut self,
        waiter: Waiter<B>,
        db: u32,
        keys: impl ExactSizeIterator<Item = (u64, &'k L, Monotonic)>,
    ) {
        let (ticket, until, is_for_one) = (waiter.ticket, waiter.until, keys.len() == 1);
        let guest = slot_of(self.guests.insert(Guest { waiter, first_place: 0, lacks: None }));
        self.by_ticket.insert(ticket, guest);
        self.time_outs.insert(guest, until);
        let mut last = None;
        for (hash, key, look_at) in keys {
            let queue = self.find(hash, db, key.bytes());
            let queue = queue.unwrap_or_else(|| self.open(hash, db, key.keep(), look_at));
            let place = self.stand(guest, queue);
            self.rows[queue as usize].for_it_alone += usize::from(is_for_one);
            match last.replace(place) {
                Some(last) => self.places[last as usize].next_key = Some(place),
                None => self.guests[guest as usize].first_place = place,
            }
        }
    }

    /// A queue in which nobody stands yet.
    fn open(&mut self, hash: u64, db: u32, key: B, look_at: Monotonic) -> u32 {
        let queue = Queue { db, key, hash, first: 0, last: 0, len: 0, for_it_alone: 0 };
        let new = slot_of(self.rows.insert(queue));
        let rows = &self.rows;
        self.by_key.insert_unique(hash, new, |&slot| rows[slot as usize].hash);
        self.looks.insert(new, look_at);
        new
    }

    /// Takes a place at the end of a queue.
    fn stand(&mut self, guest: u32, queue: u32) -> u32 {
        let token = self.guests[guest as usize].waiter.token.as_ref();
        let row = &self.rows[queue as usize];
        let token_hash = self.token_hash(row.hash, token);
        let before = (row.len > 0).then_some(row.last);
        let place = Place { guest, queue, token_hash, before, behind: None, next_key: None };
        let slot = slot_of(self.places.insert(place));
        let row = &mut self.rows[queue as usize];
        row.last = slot;
        row.len += 1;
        match before {
            Some(before) => self.places[before as usize].behind = Some(slot),
            None => row.first = slot,
        }
        let places = &self.places;
        self.by_token.insert_unique(token_hash, slot, |&slot| places[slot as usize].token_hash);
        slot
    }

    /// The first in the queue, behind that place, whose time is not over and whose turn has come as far as is known: it
    /// lacks no other key. Its place, and who it is. Those before it stay: some of them are to be told that their time is over.
    pub(super) fn next_in_turn(&self, queue: u32, after: Option<u32>, now: Monotonic) -> Option<(u32, u32)> {
        let first = match after {
            Some(place) => self.places[place as usize].behind,
            None => Some(self.rows[queue as usize].first),
        };
        let places = std::iter::successors(first, |&slot| self.places[slot as usize].behind);
        places.map(|slot| (slot, self.places[slot as usize].guest)).find(|&(_, guest)| {
            let Guest { waiter, lacks, .. } = &self.guests[guest as usize];
            now < waiter.until && lacks.is_none_or(|lacks| lacks == queue)
        })
    }

    /// Whether somebody comes before this waiter in a queue who waits for its key alone.
    pub(super) fn is_behind_one_alone(&self, guest: u32, queue: u32, now: Monotonic) -> bool {
        self.is_for_it_alone(queue) && {
            let first = Some(self.rows[queue as usize].first);
            let places = std::iter::successors(first, |&slot| self.places[slot as usize].behind);
            let ahead =
                places.map(|slot| self.places[slot as usize].guest).take_while(|&other| other != guest);
            let in_time = |&other: &u32| now < self.guests[other as usize].waiter.until;
            ahead.filter(in_time).any(|other| self.waits_for_one(other))
        }
    }

    /// The queues of the keys that somebody waits for, in the order of the keys.
    pub(super) fn queues_of(&self, guest: u32) -> impl Iterator<Item = u32> {
        let first = Some(self.guests[guest as usize].first_place);
        let places = std::iter::successors(first, |&slot| self.places[slot as usize].next_key);
        places.map(|slot| self.places[slot as usize].queue)
    }

    /// Whether somebody waits for one key alone.
    pub(super) fn waits_for_one(&self, guest: u32) -> bool {
        let first = self.guests[guest as usize].first_place;
        self.places[first as usize].next_key.is_none()
    }

    /// The key of this queue is not free, so that this waiter cannot have what it waits for.
    pub(super) fn lacks(&mut self, guest: u32, queue: u32) {
        self.guests[guest as usize].lacks = Some(queue);
    }

    pub(super) fn by_ticket(&self, ticket: Ticket) -> Option<u32> {
        self.by_ticket.get(&ticket).copied()
    }

    pub(super) fn ticket(&self, guest: u32) -> Ticket {
        self.guests[guest as usize].waiter.ticket
    }

    /// Takes out one who waits no more. False when it does not wait.
    pub(super) fn cancel(&mut self, ticket: Ticket) -> bool {
        let guest = self.by_ticket(ticket);
        guest.map(|guest| self.remove(guest)).is_some()
    }

    /// Takes out those that wait for the key with this token; they are to be told.
    pub(super) fn dismiss_token(&mut self, queue: u32, token: &[u8]) {
        let hash = self.token_hash(self.rows[queue as usize].hash, token);
        loop {
            let (places, guests) = (&self.places, &self.guests);
            let is_it = |&slot: &u32| {
                let place = &places[slot as usize];
                place.queue == queue && guests[place.guest as usize].waiter.token.as_ref() == token
            };
            let Some(slot) = self.by_token.find(hash, is_it).copied() else { return };
            let (guest, last) = (self.places[slot as usize].guest, self.rows[queue as usize].len == 1);
            self.dismiss(guest);
            if last {
                return;
            }
        }
    }

    /// Takes out everybody; they are to be told.
    pub(super) fn dismiss_all(&mut self) {
        let guests: Vec<_> = self.guests.iter().map(|(slot, _)| slot_of(slot)).collect();
        for guest in guests {
            self.dismiss(guest);
        }
    }

    /// One who is to be told that it waits no more: its time is over, or it was taken out.
    pub(super) fn pop_dismissed(&mut self, now: Monotonic) -> Option<Ticket> {
        if let Some((until, guest)) = self.time_outs.soonest()
            && until <= now
        {
            self.dismiss(guest);
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

    fn dismiss(&mut self, guest: u32) {
        let waiter = self.remove(guest);
        self.dismissed.push_back(waiter.ticket);
    }

    /// Takes a waiter out of all queues that it stands in.
    pub(super) fn remove(&mut self, guest: u32) -> Waiter<B> {
        self.time_outs.remove(guest);
        let Guest { waiter, first_place, .. } = self.guests.remove(guest as usize);
        self.by_ticket.remove(&waiter.ticket);
        let is_for_one = self.places[first_place as usize].next_key.is_none();
        let mut next = Some(first_place);
        while let Some(slot) = next {
            next = self.leave(slot, is_for_one);
        }
        waiter
    }

    /// Gives up a place. Returns the same waiter's place in the queue of its next key.
    fn leave(&mut self, slot: u32, is_for_one: bool) -> Option<u32> {
        let Place { queue, token_hash, before, behind, next_key, .. } = self.places.remove(slot as usize);
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
        let row = &mut self.rows[queue as usize];
        row.len -= 1;
        row.for_it_alone -= usize::from(is_for_one);
        if row.len == 0 {
            self.looks.remove(queue);
            let gone = self.rows.remove(queue as usize);
            if let Ok(entry) = self.by_key.find_entry(gone.hash, |&other| other == queue) {
                entry.remove();
            }
        }
        next_key
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
                let waiters = places.map(|slot| {
                    let Guest { waiter, lacks, .. } = &self.guests[self.places[slot as usize].guest as usize];
                    (waiter.whole(), lacks.map(|queue| self.key(queue).1.as_ref()))
                });
                (queue.db, queue.key.as_ref(), self.looks.at(slot), waiters.collect())
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
