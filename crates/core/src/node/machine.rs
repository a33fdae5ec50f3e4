use std::hash::{Hash, Hasher};

use super::abstention::Abstention;
use super::fences::Fences;
use super::queue::{Queues, Ticket, Waiter};
use super::table::{Lease, NewLock, Table};
use super::{Event, Lend, Mirror, Monotonic, Now, Reason, Seen, Stats};
use crate::{Fence, Ttl};

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

/// A mirror that was evicted is not written again at once: memory is short, and the server would evict it again.
const REPAIR_AFTER_EVICTION_US: u64 = 100_000;

/// How often it is looked whether the key of a lost mirror, taken by somebody else, is free again.
const REPAIR_AGAIN_US: u64 = 1_000_000;

/// How often a key that somebody waits for is looked at when it is not known when it becomes of use to them: it holds a
/// string without an expiry, or it is free and they lack another.
const LOOK_AGAIN_US: u64 = 1_000_000;
/// How often it is looked whether memory is to be given back, in microseconds.
const MEMORY_EVERY_US: u64 = 1_000_000;

/// The limits of a node.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Bounds every grant, and so how long a node that forgot must stay silent.
    pub max_ttl: Ttl,
    /// How long a node that has just started abstains, in milliseconds. Less than the largest ttl it ever granted is
    /// not safe.
    pub rejoin_delay_ms: u64,
    /// How far ahead of the node's wall clock a proposed fence may lie, in milliseconds.
    pub max_clock_skew_ms: u64,
    /// How many may wait, for all keys together.
    pub max_waiters: usize,
    /// How many fence counters there are.
    pub fence_stripes: usize,
    /// Makes the hash of this node unlike that of any other.
    pub hash_seed: u64,
}

/// The most keys that one lock may have.
pub const KEYS_MAX: usize = 64;

/// `LOCK.ACQUIRE` or `LOCK.MACQUIRE`, parsed.
#[derive(Clone, Copy, Debug)]
pub struct Acquire<'a, L> {
    /// The number of the database.
    pub db: u32,
    /// The keys to lock, at least one, each once and in the order of their bytes.
    pub keys: &'a [L],
    /// What will prove who holds it.
    pub token: &'a L,
    /// For how long.
    pub ttl: Ttl,
    /// Who asks, for people to read.
    pub owner: Option<&'a L>,
    /// The fence that the client proposes.
    pub fence: Option<Fence>,
    /// Whether the client may wait when somebody else holds the lock.
    pub may_wait: bool,
}

/// What becomes of an [`Acquire`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Acquired {
    /// The lock is the caller's: write the mirrors (the token, expiring at `expires_at_ms`), then answer the fence.
    Granted {
        /// The fence of this grant.
        fence: Fence,
        /// When the mirrors expire, in milliseconds of the wall clock.
        expires_at_ms: u64,
    },
    /// Somebody holds one of the keys, or waits for it.
    Refused,
    /// The same, and the client may wait: pass it to [`Node::enqueue`].
    MustWait,
    /// The same, and so many wait already that this one may not.
    QueueFull {
        /// How many may.
        max_waiters: usize,
    },
    /// The node may have forgotten who holds them.
    Abstaining {
        /// Why.
        reason: Reason,
        /// For how much longer, in milliseconds; a replica, which has no end of it, names the largest ttl.
        left_ms: u64,
    },
    /// One of the keys holds something that is not a string.
    WrongType,
}

/// `LOCK.EXTEND` or `LOCK.MEXTEND`, parsed.
#[derive(Clone, Copy, Debug)]
pub struct Extend<'a, L> {
    /// The number of the database.
    pub db: u32,
    /// The locked keys, at least one, each once and in the order of their bytes.
    pub keys: &'a [L],
    /// The token that holds them.
    pub token: &'a L,
    /// The lock is to last at least this long from now.
    pub ttl: Ttl,
    /// Raise the lock's fence to this.
    pub fence: Option<Fence>,
    /// Hand the lock over to this token.
    pub new_token: Option<&'a L>,
}

/// What is to be done to a mirror.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MirrorWrite {
    /// It is right as it is, or something else is there that is not ours to touch.
    Nothing,
    /// Write the token (the new one, if the lock was handed over) with this expiry.
    Set {
        /// In milliseconds of the wall clock.
        expires_at_ms: u64,
    },
    /// Only the expiry changes.
    Expire {
        /// In milliseconds of the wall clock.
        expires_at_ms: u64,
    },
}

/// What becomes of an [`Extend`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Extended {
    /// The token holds the lock.
    Held {
        /// Its fence now.
        fence: Fence,
    },
    /// The token does not hold the lock: it never did, or does no more.
    NotHeld,
    /// The token holds these keys, and they are not all keys of one lock.
    OtherKeys,
    /// The token holds the lock, and the proposed fence cannot be.
    BadFence(FenceError),
    /// One of the keys holds something that is not a string.
    WrongType,
}

/// Why a fence was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FenceError {
    /// A fence never goes down.
    #[error("FENCE is below the lock's fence {current}: propose a larger one")]
    Below {
        /// The lease's fence.
        current: Fence,
    },
    /// More ahead of the wall clock than any clock should be.
    #[error(
        "FENCE lies more than lock.max-clock-skew ahead of this server's clock: largest accepted now {largest}"
    )]
    TooFarAhead {
        /// The largest that would have been accepted.
        largest: Fence,
    },
}

/// What becomes of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Released {
    /// The token held the lock, and holds it no more.
    Released(
        /// Whether the key is to be deleted.
        DeleteMirror,
    ),
    /// The token did not hold the lock.
    NotHeld(
        /// Whether the key, left over from a lease of this token that has ended, is to be deleted.
        DeleteMirror,
    ),
    /// The key holds something that is not a string.
    WrongType,
}

type DeleteMirror = bool;

/// Who holds a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inspected<'a> {
    /// Nobody.
    Free,
    /// A lease.
    Lease {
        /// How many wait for it.
        waiters: usize,
        /// How many keys its lock has.
        keys: usize,
        /// The label that its holder gave.
        owner: Option<&'a [u8]>,
        /// Its fence.
        fence: Fence,
        /// How much longer, in milliseconds.
        ttl_ms: u64,
    },
    /// A string that no lease is behind.
    Foreign {
        /// How many wait for it.
        waiters: usize,
        /// How much longer, in milliseconds; `None` for a string that does not expire.
        ttl_ms: Option<u64>,
    },
    /// Something that is not a string.
    WrongType,
}

/// A lease whose deadline has come.
#[derive(Debug)]
pub struct Due<'a, B> {
    /// The number of the database.
    pub db: u32,
    /// Its key.
    pub key: &'a B,
}

/// What a settled lease leaves to be done: see [`Node::settle`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Adjusted {
    /// Delete the key: it carries the token of a lease that has ended.
    DeleteMirror {
        /// Whether by its deadline, and not with another key of its lock.
        expired: bool,
    },
    /// Nothing.
    Nothing,
}

/// What is to be done about a lost mirror: see [`Node::repair`].
#[derive(Debug)]
#[must_use]
pub enum Repair<'a, B> {
    /// Write it again.
    Set {
        /// The token.
        token: &'a B,
        /// In milliseconds of the wall clock.
        expires_at_ms: u64,
    },
    /// Nothing, for now.
    Nothing,
}

/// Who is next for a key: see [`Node::hand_over`].
#[derive(Debug)]
#[must_use]
pub enum Next<'a, B> {
    /// Nobody, for now.
    Nobody,
    /// This one, whose the lock is.
    Granted(HandOver<'a, B>),
    /// This one, if its other keys are free as well: look at all of them and call [`Node::hand_over_all`].
    Several {
        /// Who waits.
        ticket: Ticket,
        /// For which keys.
        keys: Vec<&'a B>,
    },
}

/// A lock that is handed over to the next in its queue: write the mirrors, then answer whoever has the ticket. When one
/// cannot be written, [`Node::revoke`] it.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct HandOver<'a, B> {
    /// Who waited.
    pub ticket: Ticket,
    /// The token that holds the lock now.
    pub token: &'a B,
    /// The fence of this grant.
    pub fence: Fence,
    /// How long it waited, in microseconds. The lock's time begins only now.
    pub waited_us: u64,
    /// When the mirrors expire, in milliseconds of the wall clock.
    pub expires_at_ms: u64,
}

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

    /// Learns that something happened to a key from outside. Unless there is a lease on it, that is nothing.
    pub fn observe(&mut self, now: Monotonic, db: u32, key: &[u8], event: Event) {
        if self.loading {
            return;
        }
        self.settle_flushes();
        let hash = self.table.hash(db, key);
        if let Some(queue) = self.queues.find(hash, db, key) {
            self.queues.look_at(queue, now);
        }
        let Some(slot) = self.table.find(hash, db, key) else { return };
        let lease = self.table.get(slot);
        if now >= lease.deadline {
            return self.end_by_deadline(slot);
        }
        // What an accident left room for is not about the lease.
        if lease.mirror_lost() {
            return;
        }
        match event {
            Event::Expired => {
                // The two clocks are read one after the other, and the server's is cut to milliseconds.
                if lease.deadline.us_since(now) > CLOCK_NOISE_US {
                    self.stats.saved_from_clock_step += 1;
                }
                self.table.lose_mirror(slot, now);
            }
            Event::Evicted => {
                self.stats.saved_from_eviction += 1;
                self.table.lose_mirror(slot, now.plus_us(REPAIR_AFTER_EVICTION_US));
            }
            Event::Removed | Event::Replaced => self.end_by_operator(slot),
        }
    }

    /// Learns that somebody emptied a database, or all of them. The leases in it end with the next that is done here,
    /// unless it turns out that the server was making room to load its data: see [`Node::loading_begins`].
    pub fn observe_flush(&mut self, db: Option<u32>) {
        if !self.loading {
            // Of several only the last can be that of a server which is about to load.
            self.settle_flushes();
            self.flushed = Some(db.map_or(Flushed::All, Flushed::Database));
        }
    }

    /// Learns that somebody swapped two databases: an operator's command, which ends the leases in both. They are found
    /// under other keys now, as strings, and others that were there before may have been forgotten.
    pub fn observe_swap(&mut self, now: Now, first: u32, second: u32) {
        self.settle_flushes();
        self.end_all_by_operator(|db| db == first || db == second);
        self.abstain(now, Reason::SwapDb);
    }

    /// The server begins to load its data. What happens to keys meanwhile is no command of anybody's.
    pub fn loading_begins(&mut self) {
        self.loading = true;
        self.flushed = None;
    }

    /// The server has loaded its data. Leases that were there before hold, whatever has become of their mirrors.
    pub fn loading_ends(&mut self, now: Monotonic) {
        self.loading = false;
        self.table.lose_all_mirrors(now);
        self.queues.look_soon(|_| true);
    }

    /// This node became a replica: its keys are its master's.
    pub fn demote(&mut self) {
        self.abstention.set_replica(true);
        self.flushed = None;
        self.table.retain(|_| false);
        self.queues.dismiss_all();
    }

    /// This node was a replica and is a master now. What its master granted last may not have reached it.
    pub fn promote(&mut self, now: Now) {
        self.abstention.set_replica(false);
        self.abstain(now, Reason::Promotion);
    }

    /// Why this node abstains, and for how many more milliseconds; a replica without end.
    pub fn abstains(&self, now: Monotonic) -> Option<(Reason, Option<u64>)> {
        self.abstention.why(now)
    }

    /// Ends the abstention when its time is over, and says what it had been for. Until then, nothing is granted.
    pub fn rejoin(&mut self, now: Now) -> Option<Reason> {
        let reason = self.abstention.end_if_due(now.monotonic)?;
        self.fences.raise_all_to_ceiling(now.wall_us);
        Some(reason)
    }

    /// Ends the leases in databases that were emptied, now that it is clear that an operator did it. Whatever is done
    /// to a key does this first; this is for when nothing is done.
    pub fn settle_flushes(&mut self) {
        let Some(flushed) = self.flushed.take() else { return };
        let is_flushed = |db| flushed == Flushed::All || flushed == Flushed::Database(db);
        self.end_all_by_operator(is_flushed);
        self.queues.look_soon(is_flushed);
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

    fn abstain(&mut self, now: Now, reason: Reason) {
        self.abstention.begin(now.monotonic, self.max_ttl.ms(), reason);
        self.queues.dismiss_all();
        self.fences.raise_all_to_ceiling(now.wall_us);
    }

    fn end_all_by_operator(&mut self, ended: impl Fn(u32) -> bool) {
        let mut count = 0;
        self.table.retain(|lease| {
            let ends = ended(lease.db);
            count += u64::from(ends && !lease.has_ended());
            !ends
        });
        self.stats.ended_by_operator += count;
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
