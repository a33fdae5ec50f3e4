use super::fences::Fences;
use super::table::{Lease, NewLease, Table};
use super::{Event, Lend, Mirror, Monotonic, Now, Seen, Stats};
use crate::{Fence, Ttl};

/// The leases of one server.
///
/// A key is free when it has no live lease and no foreign string: a string that is not the mirror of a lease is a lock
/// that was restored, inherited or taken by a client without this module, and it is held by whoever knows its value.
///
/// Every command is decided here, and the caller carries it out: it looks at the key first, calls the method, and writes
/// what it is told. `B` is how a lease keeps bytes.
#[derive(Clone, Debug)]
pub struct Node<B> {
    table: Table<B>,
    fences: Fences,
    max_ttl: Ttl,
    /// When to look next whether memory is to be given back.
    memory_at: Monotonic,
    stats: Stats,
}

/// A key that expires by so little before its lease was not hit by a step of the wall clock.
const CLOCK_NOISE_US: u64 = 20_000;

/// How often it is looked whether memory is to be given back, in microseconds.
const MEMORY_EVERY_US: u64 = 1_000_000;

/// The limits of a node.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Bounds every grant, and so how long a node that forgot must stay silent.
    pub max_ttl: Ttl,
    /// How far ahead of the node's wall clock a proposed fence may lie, in milliseconds.
    pub max_clock_skew_ms: u64,
    /// How many fence counters there are.
    pub fence_stripes: usize,
    /// Makes the hash of this node unlike that of any other.
    pub hash_seed: u64,
}

/// `LOCK.ACQUIRE`, parsed.
#[derive(Clone, Copy, Debug)]
pub struct Acquire<'a, L> {
    /// The number of the database.
    pub db: u32,
    /// The key to lock.
    pub key: &'a L,
    /// What will prove who holds it.
    pub token: &'a L,
    /// For how long.
    pub ttl: Ttl,
    /// Who asks, for people to read.
    pub owner: Option<&'a L>,
    /// The fence that the client proposes.
    pub fence: Option<Fence>,
}

/// What becomes of an [`Acquire`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Acquired {
    /// The lock is the caller's: write the mirror (the token, expiring at `expires_at_ms`), then answer the fence.
    Granted {
        /// The fence of this grant.
        fence: Fence,
        /// When the mirror expires, in milliseconds of the wall clock.
        expires_at_ms: u64,
    },
    /// Somebody holds the key.
    Refused,
    /// The key holds something that is not a string.
    WrongType,
}

/// `LOCK.EXTEND`, parsed.
#[derive(Clone, Copy, Debug)]
pub struct Extend<'a, L> {
    /// The number of the database.
    pub db: u32,
    /// The locked key.
    pub key: &'a L,
    /// The token that holds it.
    pub token: &'a L,
    /// The lock is to last at least this long from now.
    pub ttl: Ttl,
    /// Raise the lease's fence to this.
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
        /// The lease's fence now.
        fence: Fence,
        /// What its mirror needs.
        mirror: MirrorWrite,
    },
    /// The token does not hold the lock: it never did, or does no more.
    NotHeld,
    /// The token holds the lock, and the proposed fence cannot be.
    BadFence(FenceError),
    /// The key holds something that is not a string.
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
        /// The label that its holder gave.
        owner: Option<&'a [u8]>,
        /// Its fence.
        fence: Fence,
        /// How much longer, in milliseconds.
        ttl_ms: u64,
    },
    /// A string that no lease is behind.
    Foreign {
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
    DeleteMirror,
    /// Nothing.
    Nothing,
}

/// A lease as a command finds it, once it has looked at the key.
enum Standing {
    /// Holds the key.
    Live(u32),
    /// Has ended by its deadline; its mirror may still be there.
    Over(u32),
    None,
}

impl<B: AsRef<[u8]>> Node<B> {
    /// A node without leases, which knows nothing of the time before.
    pub fn new(settings: Settings, now: Now) -> Self {
        let mut fences = Fences::new(settings.fence_stripes, settings.max_clock_skew_ms.saturating_mul(1000));
        fences.raise_all_to_ceiling(now.wall_us);
        Self {
            table: Table::new(settings.hash_seed),
            fences,
            max_ttl: settings.max_ttl,
            memory_at: Monotonic::default(),
            stats: Stats::default(),
        }
    }

    /// Takes the lock, if nobody has it. Strict: a held lock is refused even to its own token.
    pub fn acquire<L: Lend<Kept = B>>(
        &mut self,
        now: Now,
        ask: &Acquire<'_, L>,
        mirror: &impl Mirror,
    ) -> Acquired {
        let hash = self.table.hash(ask.db, ask.key.bytes());
        match self.standing(hash, ask.db, ask.key.bytes(), now.monotonic) {
            Standing::Live(slot) if self.overwritten(slot, mirror) => {
                self.end_by_operator(slot);
                if let Some(taken) = self.taken_by_another(mirror) {
                    return taken;
                }
            }
            Standing::Live(_) => {
                self.stats.refusals += 1;
                return Acquired::Refused;
            }
            Standing::Over(slot) => {
                let ours = self.owns_mirror(slot, mirror);
                self.end_by_deadline(slot);
                if !ours && let Some(taken) = self.taken_by_another(mirror) {
                    return taken;
                }
            }
            Standing::None => {
                if let Some(taken) = self.taken_by_another(mirror) {
                    return taken;
                }
            }
        }
        let fence = self.fences.next(hash, ask.fence, now.wall_us);
        self.table.insert(
            hash,
            NewLease {
                db: ask.db,
                key: ask.key.keep(),
                token: ask.token.keep(),
                owner: ask.owner.map(Lend::keep),
                fence,
                deadline: now.monotonic.plus_us(ask.ttl.us()),
            },
        );
        self.stats.grants += 1;
        Acquired::Granted { fence, expires_at_ms: now.wall_ms().saturating_add(ask.ttl.ms()) }
    }

    /// Moves the deadline forward, never back, and only while the token holds the lock. A foreign string with this
    /// value and an expiry becomes a lease.
    pub fn extend<L: Lend<Kept = B>>(
        &mut self,
        now: Now,
        ask: &Extend<'_, L>,
        mirror: &impl Mirror,
    ) -> Extended {
        let (db, key, token) = (ask.db, ask.key.bytes(), ask.token.bytes());
        let hash = self.table.hash(db, key);
        match self.standing(hash, db, key, now.monotonic) {
            Standing::Live(slot) => {
                if self.overwritten(slot, mirror) {
                    self.end_by_operator(slot);
                    // What is there instead may well be a lock of this token.
                    return self.adopt(now, hash, ask, mirror);
                }
                if self.table.get(slot).token.as_ref() != token {
                    return Extended::NotHeld;
                }
                self.extend_live(now, hash, slot, ask, mirror)
            }
            Standing::Over(_) if mirror.seen() == Seen::OtherType => Extended::WrongType,
            // A string that is not ours may still be a lock of this token; our own mirror is what has ended.
            Standing::Over(slot) if !self.owns_mirror(slot, mirror) && mirror.seen() == Seen::Text => {
                self.end_by_deadline(slot);
                self.adopt(now, hash, ask, mirror)
            }
            Standing::Over(_) => Extended::NotHeld,
            Standing::None => self.adopt(now, hash, ask, mirror),
        }
    }

    /// Gives the lock back. Safe to repeat.
    pub fn release(
        &mut self,
        now: Monotonic,
        db: u32,
        key: &[u8],
        token: &[u8],
        mirror: &impl Mirror,
    ) -> Released {
        let hash = self.table.hash(db, key);
        match self.standing(hash, db, key, now) {
            Standing::Live(slot) if self.overwritten(slot, mirror) => self.end_by_operator(slot),
            Standing::Live(slot) => {
                if self.table.get(slot).token.as_ref() != token {
                    return Released::NotHeld(false);
                }
                let ours = self.owns_mirror(slot, mirror);
                self.table.remove(slot);
                self.stats.releases += 1;
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

    /// Says who holds the key. Changes nothing.
    pub fn inspect(&self, now: Now, db: u32, key: &[u8], mirror: &impl Mirror) -> Inspected<'_> {
        let hash = self.table.hash(db, key);
        let foreign = || match mirror.seen() {
            Seen::Missing => Inspected::Free,
            Seen::OtherType => Inspected::WrongType,
            Seen::Text => Inspected::Foreign {
                ttl_ms: mirror.expires_at_ms().map(|at| at.saturating_sub(now.wall_ms())),
            },
        };
        match self.standing(hash, db, key, now.monotonic) {
            Standing::Live(slot) if !self.overwritten(slot, mirror) => {
                let lease = self.table.get(slot);
                Inspected::Lease {
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
        let hash = self.table.hash(db, key);
        let Some(slot) = self.table.find(hash, db, key) else { return };
        let lease = self.table.get_mut(slot);
        let live = now < lease.deadline;
        match event {
            Event::Expired | Event::Evicted if live && !lease.mirror_lost => {
                lease.mirror_lost = true;
                let early_us = lease.deadline.us_since(now);
                match event {
                    Event::Evicted => self.stats.saved_from_eviction += 1,
                    // The two clocks are read one after the other, and the server's is cut to milliseconds.
                    _ if early_us > CLOCK_NOISE_US => self.stats.saved_from_clock_step += 1,
                    _ => {}
                }
            }
            // What an accident left room for is not about the lease.
            Event::Removed | Event::Replaced | Event::Expired | Event::Evicted
                if live && lease.mirror_lost => {}
            _ if live => self.end_by_operator(slot),
            _ => self.end_by_deadline(slot),
        }
    }

    /// Learns that somebody emptied a database, or all of them.
    pub fn observe_flush(&mut self, db: Option<u32>) {
        let ended = self.table.retain(|lease| db.is_some_and(|db| lease.db != db));
        self.stats.ended_by_operator += ended as u64;
    }

    /// When the next lease ends.
    pub fn next_deadline(&self) -> Option<Monotonic> {
        self.table.soonest().map(|(at, _)| at)
    }

    /// The lease whose deadline came first, if it has come. To be looked at and passed to [`Node::settle`].
    pub fn due(&self, now: Monotonic) -> Option<Due<'_, B>> {
        let (at, slot) = self.table.soonest()?;
        (at <= now).then(|| {
            let Lease { db, key, .. } = self.table.get(slot);
            Due { db: *db, key }
        })
    }

    /// Removes a lease that has ended. Once it is told to delete the mirror, the caller must: a lease that is gone no
    /// longer keeps its mirror from being adopted.
    pub fn settle(&mut self, now: Monotonic, db: u32, key: &[u8], mirror: &impl Mirror) -> Adjusted {
        let hash = self.table.hash(db, key);
        match self.standing(hash, db, key, now) {
            Standing::Over(slot) => {
                let ours = self.owns_mirror(slot, mirror);
                self.end_by_deadline(slot);
                if ours { Adjusted::DeleteMirror } else { Adjusted::Nothing }
            }
            Standing::Live(_) | Standing::None => Adjusted::Nothing,
        }
    }

    /// Takes back a grant whose mirror could not be written.
    pub fn revoke(&mut self, db: u32, key: &[u8]) {
        let hash = self.table.hash(db, key);
        if let Some(slot) = self.table.find(hash, db, key) {
            self.table.remove(slot);
            self.stats.grants = self.stats.grants.saturating_sub(1);
        }
    }

    /// Ends every lease without a word: the keys are another server's now.
    pub fn forget_all(&mut self) {
        self.table.retain(|_| false);
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

    fn standing(&self, hash: u64, db: u32, key: &[u8], now: Monotonic) -> Standing {
        match self.table.find(hash, db, key) {
            None => Standing::None,
            Some(slot) if now < self.table.get(slot).deadline => Standing::Live(slot),
            Some(slot) => Standing::Over(slot),
        }
    }

    /// Whether what is under the key is this lease's own mirror.
    fn owns_mirror(&self, slot: u32, mirror: &impl Mirror) -> bool {
        let lease = self.table.get(slot);
        !lease.mirror_lost && mirror.seen() == Seen::Text && mirror.holds(lease.token.as_ref())
    }

    /// Whether somebody wrote over the mirror by a command.
    fn overwritten(&self, slot: u32, mirror: &impl Mirror) -> bool {
        let lease = self.table.get(slot);
        !lease.mirror_lost
            && match mirror.seen() {
                Seen::Missing => false,
                Seen::Text => !mirror.holds(lease.token.as_ref()),
                Seen::OtherType => true,
            }
    }

    /// Why a key without a lease cannot be granted, if it cannot.
    fn taken_by_another(&mut self, mirror: &impl Mirror) -> Option<Acquired> {
        match mirror.seen() {
            Seen::Missing => None,
            Seen::OtherType => Some(Acquired::WrongType),
            Seen::Text => {
                self.stats.refusals += 1;
                Some(Acquired::Refused)
            }
        }
    }

    fn extend_live<L: Lend<Kept = B>>(
        &mut self,
        now: Now,
        hash: u64,
        slot: u32,
        ask: &Extend<'_, L>,
        mirror: &impl Mirror,
    ) -> Extended {
        let current = self.table.get(slot).fence;
        if let Some(fence) = ask.fence {
            let largest = self.fences.ceiling(now.wall_us);
            if fence < current {
                return Extended::BadFence(FenceError::Below { current });
            }
            if fence > current && fence > largest {
                return Extended::BadFence(FenceError::TooFarAhead { largest });
            }
            self.fences.raise(hash, fence);
            self.table.get_mut(slot).fence = fence;
        }
        let handed_over = ask.new_token.map(Lend::keep);
        if let Some(token) = &handed_over
            && token.as_ref() != self.table.get(slot).token.as_ref()
        {
            let fence = self.fences.next(hash, ask.fence, now.wall_us);
            self.table.get_mut(slot).fence = fence;
        }
        let old = self.table.get(slot).deadline;
        let deadline = old.max(now.monotonic.plus_us(ask.ttl.us()));
        if deadline != old {
            self.table.set_deadline(slot, deadline);
        }
        self.stats.extends += 1;

        let expires_at_ms = now.wall_ms().saturating_add(deadline.ms_since(now.monotonic));
        let lease = self.table.get_mut(slot);
        let write = match mirror.seen() {
            // Nothing is under the key, so the mirror can be written again, and is ours again.
            Seen::Missing => {
                lease.mirror_lost = false;
                MirrorWrite::Set { expires_at_ms }
            }
            _ if lease.mirror_lost => MirrorWrite::Nothing,
            _ if handed_over.is_some() => MirrorWrite::Set { expires_at_ms },
            _ if deadline != old => MirrorWrite::Expire { expires_at_ms },
            _ => MirrorWrite::Nothing,
        };
        if let Some(token) = handed_over {
            lease.token = token;
        }
        Extended::Held { fence: lease.fence, mirror: write }
    }

    /// Makes a foreign string with this value and an expiry a lease. That is a grant.
    fn adopt<L: Lend<Kept = B>>(
        &mut self,
        now: Now,
        hash: u64,
        ask: &Extend<'_, L>,
        mirror: &impl Mirror,
    ) -> Extended {
        match mirror.seen() {
            Seen::Missing => return Extended::NotHeld,
            Seen::OtherType => return Extended::WrongType,
            Seen::Text => {}
        }
        // A string that never expires is data, whatever it says.
        let Some(old_expiry_ms) = mirror.expires_at_ms() else { return Extended::NotHeld };
        if !mirror.holds(ask.token.bytes()) {
            return Extended::NotHeld;
        }
        if let Some(fence) = ask.fence {
            let largest = self.fences.ceiling(now.wall_us);
            if fence > largest {
                return Extended::BadFence(FenceError::TooFarAhead { largest });
            }
        }
        let fence = self.fences.next(hash, ask.fence, now.wall_us);
        let remaining_ms =
            old_expiry_ms.saturating_sub(now.wall_ms()).max(ask.ttl.ms()).min(self.max_ttl.ms());
        let new = NewLease {
            db: ask.db,
            key: ask.key.keep(),
            token: ask.new_token.unwrap_or(ask.token).keep(),
            owner: None,
            fence,
            deadline: now.monotonic.plus_us(remaining_ms.saturating_mul(1000)),
        };
        self.table.insert(hash, new);
        self.stats.grants += 1;
        let expires_at_ms = now.wall_ms().saturating_add(remaining_ms);
        let mirror = match ask.new_token {
            Some(_) => MirrorWrite::Set { expires_at_ms },
            None if expires_at_ms != old_expiry_ms => MirrorWrite::Expire { expires_at_ms },
            None => MirrorWrite::Nothing,
        };
        Extended::Held { fence, mirror }
    }

    fn end_by_operator(&mut self, slot: u32) {
        self.table.remove(slot);
        self.stats.ended_by_operator += 1;
    }

    fn end_by_deadline(&mut self, slot: u32) {
        self.table.remove(slot);
        self.stats.ended_by_deadline += 1;
    }
}
