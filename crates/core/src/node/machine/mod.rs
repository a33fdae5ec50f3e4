//! The node itself: what each command does.
//!
//! - [`observed`]: what happens to it besides commands

mod observed;

use std::hash::{Hash, Hasher};

use super::abstention::Abstention;
use super::fences::Fences;
use super::queue::{Queues, Ticket, Waiter};
use super::table::{Lease, NewLock, Table};
use super::verbs::{
    Acquire, Acquired, Adjusted, Due, Extend, Extended, FenceError, HandOver, Inspected, MirrorWrite, Next,
    Released, Repair, Settings,
};
use super::{Lend, Mirror, Monotonic, Now, Reason, Seen, Stats};
use crate::Ttl;

/// The leases of one server.
///
/// A key is free when it has no live lease and no foreign string: a string that is not the mirror of a lease is a lock
/// that was restored, inherited or taken by a client without this module, and it is held by whoever knows its value.
///
/// Every command is decided here, and the caller carries it out: it looks at the key first, calls the method, and writes
/// what it is told. `B` is how a lease keeps bytes.
///
/// Two nodes that were made with the same settings are equal when they decide alike from here on: in whatever order
/// their leases came, and whatever they counted or tidied up.
#[derive(Clone, Debug)]
pub struct Node<B> {
    table: Table<B>,
    queues: Queues<B>,
    max_waiters: usize,
    fences: Fences,
    max_ttl: Ttl,
    abstention: Abstention,
    /// What was emptied, and whose leases have yet to end.
    flushed: Option<Flushed>,
    loading: bool,
    /// When to look next whether memory is to be given back.
    memory_at: Monotonic,
    stats: Stats,
}

/// A key that expires by so little before its lease was not hit by a step of the wall clock.
const CLOCK_NOISE_US: u64 = 20_000;

/// How often it is looked whether the key of a lost mirror, taken by somebody else, is free again.
const REPAIR_AGAIN_US: u64 = 1_000_000;

/// How often a key that somebody waits for is looked at when it is not known when it becomes of use to them: it holds a
/// string without an expiry, or it is free and they lack another.
const LOOK_AGAIN_US: u64 = 1_000_000;
/// How often it is looked whether memory is to be given back, in microseconds.
const MEMORY_EVERY_US: u64 = 1_000_000;

/// What an operator emptied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Flushed {
    Database(u32),
    All,
}

/// A lease as a command finds it, once it has looked at the key.
enum Standing {
    /// Holds the key.
    Live(u32),
    /// Has ended by its deadline; its mirror may still be there.
    Over(u32),
    None,
}

/// A key, as it looks to who wants it.
enum Sight {
    /// Nobody holds it. There may be a lease that is over, whose mirror is to be written over.
    Free(Option<u32>),
    Taken,
    WrongType,
}

/// What a token has of a key.
enum Share {
    /// This lease.
    Lease(u32),
    /// A foreign string with its value and an expiry.
    Foreign,
    Nothing,
    WrongType,
}

impl<B: AsRef<[u8]> + Clone> Node<B> {
    /// A node without leases, which knows nothing of the time before and abstains for it.
    pub fn new(settings: Settings, now: Now) -> Self {
        let mut fences = Fences::new(settings.fence_stripes, settings.max_clock_skew_ms);
        fences.raise_all_to_ceiling(now.wall_us);
        let mut abstention = Abstention::default();
        abstention.begin(now.monotonic, settings.rejoin_delay_ms, Reason::Start);
        Self {
            table: Table::new(settings.hash_seed),
            queues: Queues::new(settings.hash_seed),
            max_waiters: settings.max_waiters,
            fences,
            max_ttl: settings.max_ttl,
            abstention,
            flushed: None,
            loading: false,
            memory_at: Monotonic::default(),
            stats: Stats::default(),
        }
    }

    /// Takes the lock, if nobody has any of its keys. Strict: a held lock is refused even to its own token.
    pub fn acquire<L: Lend<Kept = B>, M: Mirror>(
        &mut self,
        now: Now,
        ask: &Acquire<'_, L>,
        mirrors: &[M],
    ) -> Acquired {
        self.settle_flushes();
        if let Some((reason, left_ms)) = self.abstention.why(now.monotonic) {
            self.stats.abstained += 1;
            return Acquired::Abstaining { reason, left_ms: left_ms.unwrap_or(self.max_ttl.ms()) };
        }
        if let ([key], [mirror]) = (ask.keys, mirrors) {
            let hash = self.table.hash(ask.db, key.bytes());
            return match self.look(now.monotonic, hash, ask.db, key.bytes(), mirror) {
                Sight::Free(_) if self.is_spoken_for(hash, ask.db, key.bytes()) => self.refuse(ask.may_wait),
                Sight::Free(over) => {
                    self.end_over(over);
                    self.grant_acquire(now, ask, &[hash])
                }
                Sight::Taken => self.refuse(ask.may_wait),
                Sight::WrongType => Acquired::WrongType,
            };
        }
        let mut hashes = Vec::with_capacity(ask.keys.len());
        let mut free = true;
        for (key, mirror) in ask.keys.iter().zip(mirrors) {
            let hash = self.table.hash(ask.db, key.bytes());
            free &= match self.look(now.monotonic, hash, ask.db, key.bytes(), mirror) {
                Sight::Free(_) => !self.is_spoken_for(hash, ask.db, key.bytes()),
                Sight::Taken => false,
                Sight::WrongType => return Acquired::WrongType,
            };
            hashes.push(hash);
        }
        if !free {
            return self.refuse(ask.may_wait);
        }
        // Only now, when all their mirrors are going to be written over.
        for (&hash, key) in hashes.iter().zip(ask.keys) {
            self.end_over(self.table.find(hash, ask.db, key.bytes()));
        }
        self.grant_acquire(now, ask, &hashes)
    }

    /// Puts a client that [must wait](Acquired::MustWait) at the end of the queue of each of its keys, for `wait_ms`.
    pub fn enqueue<L: Lend<Kept = B>, M: Mirror>(
        &mut self,
        now: Now,
        ask: &Acquire<'_, L>,
        wait_ms: u64,
        ticket: Ticket,
        mirrors: &[M],
    ) {
        let waiter = Waiter {
            ticket,
            token: ask.token.keep(),
            owner: ask.owner.map(Lend::keep),
            ttl: ask.ttl,
            fence: ask.fence,
            since: now.monotonic,
            until: now.monotonic.plus_us(wait_ms.saturating_mul(1000)),
        };
        let (table, queues) = (&self.table, &mut self.queues);
        let keys = ask.keys.iter().zip(mirrors).map(|(key, mirror)| {
            let hash = table.hash(ask.db, key.bytes());
            (hash, key, free_at(table, hash, ask.db, key.bytes(), now, mirror))
        });
        queues.push(waiter, ask.db, keys);
    }

    /// Hands a key that is free over to the next who waits for it, if the node may grant.
    ///
    /// Those who wait for it alone have it in the order of their coming. Who needs other keys, too, has them all when they
    /// are free, and is passed otherwise: nobody keeps a key from others while it waits for another.
    pub fn hand_over(&mut self, now: Now, db: u32, key: &[u8], mirror: &impl Mirror) -> Next<'_, B> {
        let hash = self.table.hash(db, key);
        let Some(queue) = self.queues.find(hash, db, key) else { return Next::Nobody };
        self.settle_flushes();
        let Sight::Free(over) = self.look(now.monotonic, hash, db, key, mirror) else {
            let look_at = free_at(&self.table, hash, db, key, now, mirror);
            self.queues.look_at(queue, look_at);
            return Next::Nobody;
        };
        if self.abstention.why(now.monotonic).is_none() && !self.loading {
            let mut place = None;
            while let Some((next, guest)) = self.queues.next_in_turn(queue, place, now.monotonic) {
                if self.queues.waits_for_one(guest) {
                    self.end_over(over);
                    let key = self.queues.key(queue).1.clone();
                    return Next::Granted(self.grant_guest(now, guest, db, &[hash], [key].into_iter()));
                }
                let Some(lacking) = self.lacking(guest, queue, now.monotonic) else {
                    let ticket = self.queues.ticket(guest);
                    let keys = self.queues.queues_of(guest).map(|queue| self.queues.key(queue).1);
                    return Next::Several { ticket, keys: keys.collect() };
                };
                self.queues.lacks(guest, lacking);
                place = Some(next);
            }
        }
        // Whoever lacks another key has its turn when that is free; whoever is out of time will be told so.
        self.queues.look_at(queue, now.monotonic.plus_us(LOOK_AGAIN_US));
        Next::Nobody
    }

    /// Hands all keys that somebody waits for over to it, if they are free. `None` when one is not; then somebody else may
    /// be [next](Self::hand_over) for the key that was.
    pub fn hand_over_all<M: Mirror>(
        &mut self,
        now: Now,
        ticket: Ticket,
        mirrors: &[M],
    ) -> Option<HandOver<'_, B>> {
        let guest = self.queues.by_ticket(ticket)?;
        let queues: Vec<_> = self.queues.queues_of(guest).collect();
        let (mut hashes, mut keys) = (Vec::with_capacity(queues.len()), Vec::with_capacity(queues.len()));
        let mut in_db = 0;
        for (&queue, mirror) in queues.iter().zip(mirrors) {
            let (db, key) = self.queues.key(queue);
            let (hash, key) = (self.queues.hash(queue), key.clone());
            if !matches!(self.look(now.monotonic, hash, db, key.as_ref(), mirror), Sight::Free(_)) {
                self.queues.look_at(queue, free_at(&self.table, hash, db, key.as_ref(), now, mirror));
                self.queues.lacks(guest, queue);
                return None;
            }
            hashes.push(hash);
            keys.push(key);
            in_db = db;
        }
        for (&hash, key) in hashes.iter().zip(&keys) {
            self.end_over(self.table.find(hash, in_db, key.as_ref()));
        }
        Some(self.grant_guest(now, guest, in_db, &hashes, keys.into_iter()))
    }

    /// A key that somebody waits for and that may have become free: to be passed to [`Node::hand_over`].
    pub fn due_for_hand_over(&self, now: Monotonic) -> Option<Due<'_, B>> {
        let (at, queue) = self.queues.soonest_look()?;
        (at <= now).then(|| {
            let (db, key) = self.queues.key(queue);
            Due { db, key }
        })
    }

    /// Whether anybody waits for the key.
    pub fn has_queue(&self, db: u32, key: &[u8]) -> bool {
        self.waiters() > 0 && self.queues.find(self.table.hash(db, key), db, key).is_some()
    }

    /// One who waits no more, without the lock: its time is over, its token was released, or the node abstains.
    pub fn pop_dismissed(&mut self, now: Monotonic) -> Option<Ticket> {
        self.queues.pop_dismissed(now)
    }

    /// Takes one who has gone out of its queue. False when it does not wait.
    pub fn cancel(&mut self, ticket: Ticket) -> bool {
        self.queues.cancel(ticket)
    }

    /// How many wait, for all keys together.
    pub fn waiters(&self) -> usize {
        self.queues.waiters()
    }

    /// Moves the deadline forward, never back, and only while the token holds all keys of the lock. Foreign strings with
    /// this value and an expiry become a lease. What is to be done to each mirror is put into `writes`.
    pub fn extend<L: Lend<Kept = B>, M: Mirror>(
        &mut self,
        now: Now,
        ask: &Extend<'_, L>,
        mirrors: &[M],
        writes: &mut [MirrorWrite],
    ) -> Extended {
        self.settle_flushes();
        // The leases of a lock's keys lead to one another in the order of the keys, and from the last to the first.
        let (mut first, mut last) = (None, None);
        let (mut foreign, mut in_order) = (false, true);
        for (key, mirror) in ask.keys.iter().zip(mirrors) {
            match self.share(now.monotonic, ask.db, key.bytes(), ask.token.bytes(), mirror) {
                Share::Lease(slot) => {
                    in_order &= last.is_none_or(|last| self.table.next(last) == slot);
                    first = first.or(Some(slot));
                    last = Some(slot);
                }
                Share::Foreign => foreign = true,
                Share::Nothing => return Extended::NotHeld,
                Share::WrongType => return Extended::WrongType,
            }
        }
        match (first, last) {
            (Some(first), Some(last)) if !foreign && in_order && self.table.next(last) == first => {
                self.extend_live(now, first, ask, mirrors, writes)
            }
            (None, None) => self.adopt(now, ask, mirrors, writes),
            _ => Extended::OtherKeys,
        }
    }

    /// Gives the lock back that the token holds on this key: on all its keys. Those of the others are removed by [`Node::settle`].
    /// Where the token holds nothing, it does not wait any more either. Safe to repeat.
    pub fn release(
        &mut self,
        now: Monotonic,
        db: u32,
        key: &[u8],
        token: &[u8],
        mirror: &impl Mirror,
    ) -> Released {
        self.settle_flushes();
        let hash = self.table.hash(db, key);
        let released = self.give_back(now, hash, db, key, token, mirror);
        // Before the key is handed over, or it might be handed to the one that gives it up.
        if !matches!(released, Released::Released(_))
            && let Some(queue) = self.queues.find(hash, db, key)
        {
            self.queues.dismiss_token(queue, token);
        }
        released
    }

    /// Says who holds the key.
    pub fn inspect(&mut self, now: Now, db: u32, key: &[u8], mirror: &impl Mirror) -> Inspected<'_> {
        self.settle_flushes();
        let hash = self.table.hash(db, key);
        let waiters = self.queues.find(hash, db, key).map_or(0, |queue| self.queues.len(queue));
        let foreign = || match mirror.seen() {
            Seen::Missing => Inspected::Free,
            Seen::OtherType => Inspected::WrongType,
            Seen::Text => Inspected::Foreign {
                waiters,
                ttl_ms: mirror.expires_at_ms().map(|at| at.saturating_sub(now.wall_ms())),
            },
        };
        match self.standing(hash, db, key, now.monotonic) {
            Standing::Live(slot) if !self.overwritten(slot, mirror) => {
                let lease = self.table.get(slot);
                Inspected::Lease {
                    waiters,
                    keys: self.table.keys(slot),
                    owner: lease.owner.as_ref().map(AsRef::as_ref),
                    fence: lease.fence,
                    ttl_ms: lease.deadline.ms_since(now.monotonic),
                }
            }
            Standing::Over(slot) if self.owns_mirror(slot, mirror) => Inspected::Free,
            _ => foreign(),
        }
    }

    /// When there is something to be done next without anybody asking: a lease ends, a mirror is to be written, one who
    /// waits is to be answered, or an abstention ends. Nothing is, while the server is loading.
    pub fn next_wake(&self) -> Option<Monotonic> {
        if self.loading {
            return None;
        }
        let soonest =
            [self.table.soonest(), self.table.soonest_repair()].into_iter().flatten().map(|(at, _)| at);
        soonest.chain(self.abstention.until()).chain(self.queues.next_wake()).min()
    }

    /// A lease whose lost mirror is to be looked at and passed to [`Node::repair`].
    pub fn due_for_repair(&self, now: Monotonic) -> Option<Due<'_, B>> {
        let (at, slot) = self.table.soonest_repair()?;
        (at <= now).then(|| self.due_lease(slot))
    }

    /// Looks after a lost mirror. What it is told to write the caller must try to write; a failure does no harm.
    pub fn repair(&mut self, now: Now, db: u32, key: &[u8], mirror: &impl Mirror) -> Repair<'_, B> {
        let hash = self.table.hash(db, key);
        let Standing::Live(slot) = self.standing(hash, db, key, now.monotonic) else {
            if let Some(slot) = self.table.find(hash, db, key) {
                // It is over, and will be settled as such.
                self.table.lose_mirror(slot, now.monotonic.plus_us(REPAIR_AGAIN_US));
            }
            return Repair::Nothing;
        };
        let left_us = self.table.get(slot).deadline.us_since(now.monotonic);
        if mirror.holds(self.table.get(slot).token.as_ref()) {
            self.table.regain_mirror(slot);
            return Repair::Nothing;
        }
        if mirror.seen() != Seen::Missing || left_us <= CLOCK_NOISE_US {
            self.table.lose_mirror(slot, now.monotonic.plus_us(REPAIR_AGAIN_US));
            return Repair::Nothing;
        }
        self.table.regain_mirror(slot);
        let expires_at_ms = self.expires_at_ms(slot, now);
        Repair::Set { token: &self.table.get(slot).token, expires_at_ms }
    }

    /// Whether some live lease has no mirror: then the keyspace alone does not tell who holds what.
    pub fn lacks_mirrors(&self) -> bool {
        self.table.soonest_repair().is_some()
    }

    /// The lease whose deadline came first, if it has come. To be looked at and passed to [`Node::settle`].
    pub fn due(&self, now: Monotonic) -> Option<Due<'_, B>> {
        let (at, slot) = self.table.soonest()?;
        (at <= now).then(|| self.due_lease(slot))
    }

    /// Removes a lease that has ended. Once it is told to delete the mirror, the caller must: a lease that is gone no
    /// longer keeps its mirror from being adopted.
    pub fn settle(&mut self, now: Monotonic, db: u32, key: &[u8], mirror: &impl Mirror) -> Adjusted {
        let hash = self.table.hash(db, key);
        match self.standing(hash, db, key, now) {
            Standing::Over(slot) => {
                let ours = self.owns_mirror(slot, mirror);
                let expired = !self.table.get(slot).has_ended();
                self.end_by_deadline(slot);
                if ours { Adjusted::DeleteMirror { expired } } else { Adjusted::Nothing }
            }
            Standing::Live(_) | Standing::None => Adjusted::Nothing,
        }
    }

    /// Takes back a grant of which a mirror could not be written. Those of its other keys are to be deleted.
    pub fn revoke(&mut self, db: u32, key: &[u8]) {
        let hash = self.table.hash(db, key);
        let Some(slot) = self.table.find(hash, db, key) else { return };
        let mut keys = 1;
        while let Some(other) = self.table.end_next(slot) {
            self.look_soon(other);
            self.table.remove(other);
            keys += 1;
        }
        self.look_soon(slot);
        self.table.remove(slot);
        self.stats.grants = self.stats.grants.saturating_sub(keys);
    }

    /// Lets memory follow the number of leases down, once a second at most: it is not for the commands to pay for.
    pub fn give_back_memory(&mut self, now: Monotonic) {
        if now >= self.memory_at {
            self.memory_at = now.plus_us(MEMORY_EVERY_US);
            self.table.give_back_memory();
        }
    }

    /// How many leases there are.
    pub fn leases(&self) -> usize {
        self.table.len()
    }

    /// What was done so far.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// The largest ttl that is granted.
    pub fn max_ttl(&self) -> Ttl {
        self.max_ttl
    }

    /// How many may wait, from now on. Those who wait already go on.
    pub fn set_max_waiters(&mut self, max_waiters: usize) {
        self.max_waiters = max_waiters;
    }

    /// How far ahead of the wall clock a proposed fence may lie, from now on, in milliseconds.
    pub fn set_max_clock_skew_ms(&mut self, ms: u64) {
        self.fences.set_max_clock_skew_ms(ms);
    }

    fn give_back(
        &mut self,
        now: Monotonic,
        hash: u64,
        db: u32,
        key: &[u8],
        token: &[u8],
        mirror: &impl Mirror,
    ) -> Released {
        match self.standing(hash, db, key, now) {
            Standing::Live(slot) if self.overwritten(slot, mirror) => self.end_by_operator(slot),
            Standing::Live(slot) => {
                if self.table.get(slot).token.as_ref() != token {
                    return Released::NotHeld(false);
                }
                let ours = self.owns_mirror(slot, mirror);
                self.stats.releases += self.end(slot);
                return Released::Released(ours);
            }
            Standing::Over(slot) => {
                let ours = self.owns_mirror(slot, mirror);
                if ours {
                    let expired_token = self.table.get(slot).token.as_ref() == token;
                    if expired_token {
                        self.end_by_deadline(slot);
                    }
                    return Released::NotHeld(expired_token);
                }
                self.end_by_deadline(slot);
            }
            Standing::None => {}
        }
        match mirror.seen() {
            Seen::OtherType => Released::WrongType,
            Seen::Text if mirror.holds(token) => {
                self.stats.releases += 1;
                Released::Released(true)
            }
            Seen::Text | Seen::Missing => Released::NotHeld(false),
        }
    }

    fn due_lease(&self, slot: u32) -> Due<'_, B> {
        let Lease { db, key, .. } = self.table.get(slot);
        Due { db: *db, key }
    }

    fn expires_at_ms(&self, slot: u32, now: Now) -> u64 {
        now.wall_ms().saturating_add(self.table.get(slot).deadline.ms_since(now.monotonic))
    }

    fn standing(&self, hash: u64, db: u32, key: &[u8], now: Monotonic) -> Standing {
        match self.table.find(hash, db, key) {
            None => Standing::None,
            Some(slot) if now < self.table.get(slot).deadline => Standing::Live(slot),
            Some(slot) => Standing::Over(slot),
        }
    }

    /// Whether what is under the key is this lease's own mirror: nobody else writes its token.
    fn owns_mirror(&self, slot: u32, mirror: &impl Mirror) -> bool {
        mirror.seen() == Seen::Text && mirror.holds(self.table.get(slot).token.as_ref())
    }

    /// Whether somebody wrote over the mirror by a command.
    fn overwritten(&self, slot: u32, mirror: &impl Mirror) -> bool {
        let lease = self.table.get(slot);
        !lease.mirror_lost()
            && match mirror.seen() {
                Seen::Missing => false,
                Seen::Text => !mirror.holds(lease.token.as_ref()),
                Seen::OtherType => true,
            }
    }

    /// Looks at a key for who wants it. A lease that somebody has written over has ended; one that is over stays until its
    /// mirror is removed or written over.
    fn look(&mut self, now: Monotonic, hash: u64, db: u32, key: &[u8], mirror: &impl Mirror) -> Sight {
        let over = match self.standing(hash, db, key, now) {
            Standing::Live(slot) if self.overwritten(slot, mirror) => {
                self.end_by_operator(slot);
                None
            }
            Standing::Live(_) => return Sight::Taken,
            Standing::Over(slot) if mirror.seen() == Seen::Missing || self.owns_mirror(slot, mirror) => {
                return Sight::Free(Some(slot));
            }
            Standing::Over(slot) => {
                self.end_by_deadline(slot);
                None
            }
            Standing::None => None,
        };
        match mirror.seen() {
            Seen::Missing => Sight::Free(over),
            Seen::Text => Sight::Taken,
            Seen::OtherType => Sight::WrongType,
        }
    }

    /// Whether somebody waits for a key who can have it as soon as it is free: they come first, also in the moment between
    /// the end of a lock and its handover. Who lacks another key does not keep this one from anybody.
    fn is_spoken_for(&self, hash: u64, db: u32, key: &[u8]) -> bool {
        self.queues.find(hash, db, key).is_some_and(|queue| self.queues.is_for_it_alone(queue))
    }

    /// A waiter's turn has come in this queue: the queue of another of its keys that it cannot have yet, as far as can be
    /// told without a look at the key. That is leased, or somebody comes first who waits for it alone.
    fn lacking(&self, guest: u32, queue: u32, now: Monotonic) -> Option<u32> {
        self.queues.queues_of(guest).filter(|&other| other != queue).find(|&other| {
            let (db, key) = self.queues.key(other);
            let standing = self.standing(self.queues.hash(other), db, key.as_ref(), now);
            matches!(standing, Standing::Live(_)) || self.queues.is_behind_one_alone(guest, other, now)
        })
    }

    /// What a token has of a key. A lease of it that has ended by its deadline is nothing.
    fn share(&mut self, now: Monotonic, db: u32, key: &[u8], token: &[u8], mirror: &impl Mirror) -> Share {
        let hash = self.table.hash(db, key);
        match self.standing(hash, db, key, now) {
            // What is there instead may well be a lock of this token.
            Standing::Live(slot) if self.overwritten(slot, mirror) => self.end_by_operator(slot),
            Standing::Live(slot) if self.table.get(slot).token.as_ref() == token => {
                return Share::Lease(slot);
            }
            Standing::Live(_) => return Share::Nothing,
            // A string that is not ours may still be a lock of this token; our own mirror is what has ended.
            Standing::Over(slot) if !self.owns_mirror(slot, mirror) && mirror.seen() == Seen::Text => {
                self.end_by_deadline(slot);
            }
            Standing::Over(_) if mirror.seen() != Seen::OtherType => return Share::Nothing,
            Standing::Over(_) | Standing::None => {}
        }
        match mirror.seen() {
            Seen::OtherType => Share::WrongType,
            // A string that never expires is data, whatever it says.
            Seen::Text if mirror.expires_at_ms().is_some() && mirror.holds(token) => Share::Foreign,
            Seen::Text | Seen::Missing => Share::Nothing,
        }
    }

    fn refuse(&mut self, may_wait: bool) -> Acquired {
        if !may_wait {
            self.stats.refusals += 1;
            Acquired::Refused
        } else if self.waiters() >= self.max_waiters {
            self.stats.refusals += 1;
            Acquired::QueueFull { max_waiters: self.max_waiters }
        } else {
            Acquired::MustWait
        }
    }

    /// Grants free keys to who asks for them.
    fn grant_acquire<L: Lend<Kept = B>>(
        &mut self,
        now: Now,
        ask: &Acquire<'_, L>,
        hashes: &[u64],
    ) -> Acquired {
        let fence = self.fences.next(hashes, ask.fence, now.wall_us);
        let new = NewLock {
            db: ask.db,
            token: ask.token.keep(),
            owner: ask.owner.map(Lend::keep),
            fence,
            deadline: now.monotonic.plus_us(ask.ttl.us()),
        };
        self.insert(hashes, ask.keys.iter().map(Lend::keep), new);
        Acquired::Granted { fence, expires_at_ms: now.wall_ms().saturating_add(ask.ttl.ms()) }
    }

    /// Grants free keys to somebody who waits for them.
    fn grant_guest(
        &mut self,
        now: Now,
        guest: u32,
        db: u32,
        hashes: &[u64],
        keys: impl Iterator<Item = B>,
    ) -> HandOver<'_, B> {
        let Waiter { ticket, token, owner, ttl, fence: hint, since, .. } = self.queues.remove(guest);
        let fence = self.fences.next(hashes, hint, now.wall_us);
        let deadline = now.monotonic.plus_us(ttl.us());
        let slot = self.insert(hashes, keys, NewLock { db, token, owner, fence, deadline });
        let waited_us = now.monotonic.us_since(since);
        self.stats.handovers += 1;
        self.stats.longest_wait_us = self.stats.longest_wait_us.max(waited_us);
        let expires_at_ms = self.expires_at_ms(slot, now);
        HandOver { ticket, token: &self.table.get(slot).token, fence, waited_us, expires_at_ms }
    }

    /// Adds the leases of a lock that is granted: that of the first key.
    fn insert(&mut self, hashes: &[u64], keys: impl Iterator<Item = B>, new: NewLock<B>) -> u32 {
        let deadline = new.deadline;
        let first = self.table.insert_lock(hashes, keys, new);
        self.stats.grants += hashes.len() as u64;
        if self.waiters() > 0 {
            let mut slot = first;
            for _ in hashes {
                self.look_at(slot, deadline);
                slot = self.table.next(slot);
            }
        }
        first
    }

    fn extend_live<L: Lend<Kept = B>, M: Mirror>(
        &mut self,
        now: Now,
        first: u32,
        ask: &Extend<'_, L>,
        mirrors: &[M],
        writes: &mut [MirrorWrite],
    ) -> Extended {
        let current = self.table.get(first).fence;
        if let Some(fence) = ask.fence {
            let largest = self.fences.ceiling(now.wall_us);
            if fence < current {
                return Extended::BadFence(FenceError::Below { current });
            }
            if fence > current && fence > largest {
                return Extended::BadFence(FenceError::TooFarAhead { largest });
            }
            let fences = &mut self.fences;
            self.table.each_of(first, |lease| {
                fences.raise(lease.hash(), fence);
                lease.fence = fence;
            });
        }
        if let Some(token) = ask.new_token
            && token.bytes() != self.table.get(first).token.as_ref()
        {
            let mut hashes = Vec::with_capacity(ask.keys.len());
            self.table.each_of(first, |lease| hashes.push(lease.hash()));
            let fence = self.fences.next(&hashes, ask.fence, now.wall_us);
            self.table.each_of(first, |lease| lease.fence = fence);
        }
        let old = self.table.get(first).deadline;
        let deadline = old.max(now.monotonic.plus_us(ask.ttl.us()));
        if deadline != old {
            self.table.set_deadline(first, deadline);
        }
        self.stats.extends += ask.keys.len() as u64;

        let expires_at_ms = self.expires_at_ms(first, now);
        let mut slot = first;
        for (mirror, write) in mirrors.iter().zip(writes) {
            if self.owns_mirror(slot, mirror) || mirror.seen() == Seen::Missing {
                // Nothing else is under the key, so the mirror is ours again, or can be written again.
                self.table.regain_mirror(slot);
            }
            *write = match mirror.seen() {
                Seen::Missing => MirrorWrite::Set { expires_at_ms },
                _ if self.table.get(slot).mirror_lost() => MirrorWrite::Nothing,
                _ if ask.new_token.is_some() => MirrorWrite::Set { expires_at_ms },
                _ if deadline != old => MirrorWrite::Expire { expires_at_ms },
                _ => MirrorWrite::Nothing,
            };
            slot = self.table.next(slot);
        }
        if let Some(token) = ask.new_token {
            self.table.each_of(first, |lease| lease.token = token.keep());
        }
        Extended::Held { fence: self.table.get(first).fence }
    }

    /// Makes foreign strings with this value and an expiry the lease of one lock. That is a grant.
    fn adopt<L: Lend<Kept = B>, M: Mirror>(
        &mut self,
        now: Now,
        ask: &Extend<'_, L>,
        mirrors: &[M],
        writes: &mut [MirrorWrite],
    ) -> Extended {
        if let Some(fence) = ask.fence {
            let largest = self.fences.ceiling(now.wall_us);
            if fence > largest {
                return Extended::BadFence(FenceError::TooFarAhead { largest });
            }
        }
        let hashes: Vec<_> = ask.keys.iter().map(|key| self.table.hash(ask.db, key.bytes())).collect();
        let fence = self.fences.next(&hashes, ask.fence, now.wall_us);
        let last_expiry_ms = mirrors.iter().filter_map(Mirror::expires_at_ms).max().unwrap_or_default();
        let remaining_ms =
            last_expiry_ms.saturating_sub(now.wall_ms()).max(ask.ttl.ms()).min(self.max_ttl.ms());
        let new = NewLock {
            db: ask.db,
            token: ask.new_token.unwrap_or(ask.token).keep(),
            owner: None,
            fence,
            deadline: now.monotonic.plus_us(remaining_ms.saturating_mul(1000)),
        };
        self.insert(&hashes, ask.keys.iter().map(Lend::keep), new);
        let expires_at_ms = now.wall_ms().saturating_add(remaining_ms);
        for (mirror, write) in mirrors.iter().zip(writes) {
            *write = match ask.new_token {
                Some(_) => MirrorWrite::Set { expires_at_ms },
                None if mirror.expires_at_ms() != Some(expires_at_ms) => {
                    MirrorWrite::Expire { expires_at_ms }
                }
                None => MirrorWrite::Nothing,
            };
        }
        Extended::Held { fence }
    }

    /// A key's mirror is about to be written over: its lease that is over, if there is one, has ended by its deadline.
    fn end_over(&mut self, over: Option<u32>) {
        if let Some(slot) = over {
            self.end_by_deadline(slot);
        }
    }

    fn end_by_operator(&mut self, slot: u32) {
        self.stats.ended_by_operator += self.end(slot);
    }

    fn end_by_deadline(&mut self, slot: u32) {
        self.stats.ended_by_deadline += self.end(slot);
    }

    /// Removes a lease, and ends its lock on the other keys: their leases stay until their mirrors are gone. How many keys
    /// have ended by it.
    fn end(&mut self, slot: u32) -> u64 {
        let mut keys = u64::from(!self.table.get(slot).has_ended());
        while let Some(other) = self.table.end_next(slot) {
            self.look_soon(other);
            keys += 1;
        }
        self.look_soon(slot);
        self.table.remove(slot);
        keys
    }

    /// Whoever waits for the key of this lease may have it soon.
    fn look_soon(&mut self, slot: u32) {
        self.look_at(slot, Monotonic::default());
    }

    fn look_at(&mut self, slot: u32, at: Monotonic) {
        if self.waiters() == 0 {
            return;
        }
        let lease = self.table.get(slot);
        if let Some(queue) = self.queues.find(lease.hash(), lease.db, lease.key.as_ref()) {
            self.queues.look_at(queue, at);
        }
    }
}

/// When a key may become free at the earliest, unless somebody frees it.
fn free_at<B: AsRef<[u8]>>(
    table: &Table<B>,
    hash: u64,
    db: u32,
    key: &[u8],
    now: Now,
    mirror: &impl Mirror,
) -> Monotonic {
    if let Some(slot) = table.find(hash, db, key)
        && now.monotonic < table.get(slot).deadline
    {
        return table.get(slot).deadline;
    }
    match mirror.expires_at_ms() {
        // A millisecond more: the server expires a key only when its time is past.
        Some(at) => now.monotonic.plus_us((at.saturating_sub(now.wall_ms()) + 1).saturating_mul(1000)),
        None if mirror.seen() == Seen::Missing => now.monotonic,
        None => now.monotonic.plus_us(LOOK_AGAIN_US),
    }
}

impl<B: AsRef<[u8]>> Node<B> {
    /// All that a decision depends on.
    fn whole(&self) -> Whole<'_, B> {
        let Self {
            table,
            queues,
            max_waiters,
            fences,
            max_ttl,
            abstention,
            flushed,
            loading,
            memory_at: _,
            stats: _,
        } = self;
        (table, queues, *max_waiters, fences, *max_ttl, *abstention, *flushed, *loading)
    }
}

type Whole<'a, B> = (&'a Table<B>, &'a Queues<B>, usize, &'a Fences, Ttl, Abstention, Option<Flushed>, bool);

impl<B: AsRef<[u8]>> PartialEq for Node<B> {
    fn eq(&self, other: &Self) -> bool {
        self.whole() == other.whole()
    }
}

impl<B: AsRef<[u8]>> Eq for Node<B> {}

impl<B: AsRef<[u8]>> Hash for Node<B> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.whole().hash(state);
    }
}
