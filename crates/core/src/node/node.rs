//! The node itself.

use smallvec::SmallVec;

use super::abstention::Abstention;
use super::answers::Answers;
use super::fence_counters::FenceCounters;
use super::leases::Leases;
use super::propagation::Propagation;
use super::queues::Queues;
use super::server_events::Flush;
use super::turn::{Budget, COMMAND_UNITS};
use super::{Access, Command, CommandError, Keyspace, Monotonic, Now, Reason, Reply, Settings};
use crate::Ttl;

/// The leases and queues of one server.
///
/// A key is free when it has no live lease, no foreign string and no value of another type. A
/// foreign string has no lease: it was written with plain SET, restored from a dump, or loaded from
/// a file that an earlier server wrote. A client that knows the value of a foreign string can
/// release it like a lock, and extend it if it has an expiry.
#[derive(Clone, Debug)]
pub struct Node {
    pub(super) leases: Leases,
    pub(super) queues: Queues,
    pub(super) answers: Answers,
    pub(super) fences: FenceCounters,
    pub(super) max_ttl: Ttl,
    pub(super) abstention: Abstention,
    pub(super) propagation: Propagation,
    /// A FLUSH of unknown origin: by an operator, or by a server that is about to load its data.
    pub(super) flushed: Option<Flush>,
    pub(super) loading: bool,
    /// When to check again whether the server has resumed writes; `None` unless it paused them.
    pub(super) pause_check_at: Option<Monotonic>,
    pub(super) stats: Stats,
}

/// One item for each key of a command. Most commands have one key.
pub(super) type PerKey<T> = SmallVec<[T; 1]>;

/// What a node has done since it started. Each field counts events unless it names a unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Granted leases, including adoptions. Each key of a lock and each shared holder counts.
    pub grants: u64,
    /// ACQUIREs and ACQUIREANYs refused at once, because a key is held or waited for, or because
    /// too many clients wait.
    pub refusals: u64,
    /// ACQUIREs and ACQUIREANYs refused because the node abstains.
    pub abstained: u64,
    /// Leases that holders extended.
    pub extends: u64,
    /// Leases and foreign strings that clients released.
    pub releases: u64,
    /// Leases that reached their deadline.
    pub ended_by_deadline: u64,
    /// Leases that an operator ended: by an overwrite or a removal of the key, a flush, SWAPDB, a
    /// demotion, or REVOKE with NOW.
    pub ended_by_operator: u64,
    /// Leases and foreign strings that an operator revoked.
    pub revoked: u64,
    /// Leases that outlived their key, which a step of the wall clock or an EXPIRE ended early.
    pub saved_from_clock_step: u64,
    /// Leases that outlived the eviction of their key.
    pub saved_from_eviction: u64,
    /// Locks granted to waiters.
    pub handovers: u64,
    /// The longest wait that ended with a grant, in microseconds.
    pub longest_wait_us: u64,
}

impl Node {
    /// Creates a node without leases. It abstains, because it may have forgotten earlier locks.
    pub fn new(settings: Settings, now: Now) -> Self {
        let mut fences = FenceCounters::new(settings.fence_stripes, settings.max_clock_skew_ms);
        fences.raise_all_to_ceiling(now.wall_us);
        Self {
            leases: Leases::new(settings.hash_seed, settings.table_shards),
            queues: Queues::new(settings.max_waiters, settings.hash_seed, settings.table_shards),
            answers: Answers::new(settings.defer_wakes),
            fences,
            max_ttl: settings.max_ttl,
            abstention: Abstention::at_start(now.monotonic, settings.rejoin_delay_ms),
            propagation: Propagation::new(true),
            flushed: None,
            loading: false,
            pause_check_at: None,
            stats: Stats::default(),
        }
    }

    /// Carries out a command: reads its keys, decides, writes, and propagates. Returns the reply.
    ///
    /// # Errors
    /// If the command is not carried out.
    pub fn execute<K: Keyspace>(
        &mut self,
        now: Now,
        command: &Command<'_, K::Name>,
        keyspace: &mut K,
    ) -> Result<Reply, CommandError> {
        self.settle_flush();
        let reply = match command {
            Command::Acquire(acquire) => self.acquire(now, acquire, keyspace),
            Command::Extend(extend) => self.extend(now, extend, keyspace),
            Command::Release(release) => {
                self.release(now, release, &mut Budget::units(COMMAND_UNITS), keyspace)
            }
            Command::Yield(yields) => self.yield_lock(now, yields, keyspace),
            Command::Inspect(inspect) => {
                let inspected = self.inspect(now, inspect.db, inspect.key, keyspace);
                inspected.map(|inspected| Reply::Inspected(inspected.map(Box::new)))
            }
            Command::Revoke(revoke) => self.revoke(now, revoke, keyspace),
            Command::Scan(scan) => Ok(Reply::Scanned(Box::new(self.scan(now, scan, keyspace)))),
        };
        self.handle_events(now, keyspace);
        reply
    }

    pub(super) fn hashes<N: AsRef<[u8]>>(&self, db: u32, keys: &[N]) -> PerKey<u64> {
        let hash = |key: &N| self.leases.hash(db, key.as_ref());
        match keys {
            [key] => PerKey::from_buf([hash(key)]),
            keys => keys.iter().map(hash).collect(),
        }
    }

    /// Opens keys, and processes the events that this causes.
    pub(super) fn open_all<K: Keyspace>(
        &mut self,
        now: Now,
        db: u32,
        keys: &[K::Name],
        keyspace: &mut K,
    ) -> PerKey<K::Entry> {
        let mut open = |key| keyspace.open(db, key, Access::Write);
        let entries = match keys {
            [key] => PerKey::from_buf([open(key)]),
            keys => keys.iter().map(open).collect(),
        };
        self.handle_events(now, keyspace);
        entries
    }

    /// Processes the events that arrived while the node was busy.
    pub(super) fn handle_events<K: Keyspace>(&mut self, now: Now, keyspace: &mut K) {
        while let Some(event) = keyspace.next_event() {
            self.handle_event(now, &event);
        }
    }

    /// The error of a node that abstains; `None` if the node votes.
    pub(super) fn abstention_error(&self, now: Monotonic) -> Option<CommandError> {
        let (reason, left_ms) = self.abstention.why(now)?;
        let left_ms = left_ms.unwrap_or(self.max_ttl.ms());
        Some(CommandError::Abstaining { reason, left_ms })
    }

    /// Refuses a command if the node is a replica, because the master decides about its keys.
    pub(super) fn refuse_on_replica(&self, now: Monotonic) -> Result<(), CommandError> {
        match self.abstention_error(now) {
            Some(error) if self.abstention.is_replica => Err(error),
            _ => Ok(()),
        }
    }

    /// Why this node abstains, and for how many more milliseconds; `None` if the node votes. The
    /// milliseconds are `None` for a replica, whose abstention has no known end.
    pub fn abstention(&self, now: Monotonic) -> Option<(Reason, Option<u64>)> {
        self.abstention.why(now)
    }

    /// The number of leases; each holder of a shared lock counts as one.
    ///
    /// Includes ended leases whose mirrors are not removed yet.
    pub fn leases(&self) -> usize {
        self.leases.len()
    }

    /// The deadline of each lease, and of each holder of a shared lock; and for each waiter for
    /// several keys, when its keys begin to be kept for it.
    #[cfg(feature = "memory")]
    pub fn deadlines(&self) -> impl Iterator<Item = Monotonic> {
        self.leases.deadlines().chain(self.queues.ends_of_patience())
    }

    /// The number of clients that wait, for all keys together.
    pub fn waiters(&self) -> usize {
        self.queues.waiters()
    }

    /// What the node has done so far.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// The largest ttl that the node grants.
    pub fn max_ttl(&self) -> Ttl {
        self.max_ttl
    }

    /// Whether a mirror is missing or needs a check, so that the keyspace does not show its lease.
    pub fn lacks_mirrors(&self) -> bool {
        self.leases.lacks_mirrors()
    }

    /// Whether the module may be unloaded: the keyspace alone shows which token holds which key.
    ///
    /// False while
    /// - a mirror is missing or needs a check,
    /// - a lock is shared, because its mirror does not name its holders,
    /// - a lease is due for removal, or for a check,
    /// - a FLUSH has not ended its leases yet, or
    /// - a granted waiter must still be unblocked, or disconnected before it received the answer.
    pub fn can_unload(&self, now: Monotonic) -> bool {
        let is_due = self.leases.next_step_at().is_some_and(|at| at <= now);
        let has_shared = self.leases.holders().len() > 0;
        !self.lacks_mirrors()
            && !has_shared
            && !is_due
            && self.flushed.is_none()
            && !self.answers.has_work()
    }

    /// Sets how many clients may wait. Clients that already wait stay in their queues.
    pub fn set_max_waiters(&mut self, max_waiters: usize) {
        self.queues.max_waiters = max_waiters;
    }

    /// Sets how far ahead of the wall clock a proposed fence may lie, in milliseconds.
    pub fn set_max_clock_skew_ms(&mut self, ms: u64) {
        self.fences.set_max_clock_skew_ms(ms);
    }

    /// Declares that no other module is loaded, so that only clients can receive keyspace events.
    pub fn declare_only_module(&mut self) {
        self.propagation = Propagation::new(false);
    }
}
