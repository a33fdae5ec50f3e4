//! What the server reports about its keys, its role, and its data as a whole.

use super::leases::MirrorState;
use super::turn::CLOCK_NOISE_US;
use super::{BlockedId, KEY_BYTES_MAX, Key, Monotonic, Node, Now, Reason};

/// An event that the server reports.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ServerEvent {
    /// A client or the server, and not this node, changed a key.
    Key {
        /// The number of the database.
        db: u32,
        /// The key.
        key: KeyBytes,
        /// What happened.
        event: KeyEvent,
    },
    /// A database is about to be emptied; `None` for all of them.
    Flush(Option<u32>),
    /// The server saves its data to a file.
    Saves,
    /// Two databases were swapped.
    Swap(u32, u32),
    /// The server begins to load its data. While it loads, changes of keys come from that data.
    LoadingBegins,
    /// The server has loaded its data, or failed to.
    LoadingEnds,
    /// The server became a replica: its master decides about its keys.
    Demoted,
    /// The server became a master.
    ///
    /// The last grants of its old master may not have reached it.
    Promoted,
    /// The [`Listeners`](super::Listeners) may have changed: the server forked, a replica came
    /// online, or an operator switched the append-only file on or off.
    ListenersChanged,
    /// Another module was loaded.
    ModuleLoaded,
    /// A client that waited is gone.
    Disconnected(BlockedId),
}

/// The bytes of a key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KeyBytes(pub(super) Key);

impl KeyBytes {
    /// Copies a key.
    pub fn new(key: &[u8]) -> Self {
        Self(Key::from_slice(key))
    }

    /// The key.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// What happened to a key.
///
/// On Redis, a plain SET reports no event. `key_state` notices the new value when a command or a
/// job next uses the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeyEvent {
    /// The server removed the key because it had expired, by the wall clock.
    Expired,
    /// The server removed the key to save memory.
    Evicted,
    /// A command removed, renamed or moved the key.
    Removed,
    /// A command wrote the key as the target of a RENAME, RESTORE, COPY or MOVE.
    Replaced,
    /// A command set the expiry or the value of the key: EXPIRE, or SET with an expiry. On Valkey,
    /// any overwrite.
    ExpirySet {
        /// The length of its string now, or of the one that is removed; `None` if that is unknown.
        value_bytes: Option<usize>,
    },
}

/// A FLUSH of one database, or of all of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flush {
    db: Option<u32>,
}

/// How soon to write an evicted mirror again, in microseconds.
/// While memory is short, the server would evict a mirror that is written at once.
const MIRROR_AFTER_EVICTION_US: u64 = 100_000;

impl Node {
    /// Processes an event that the server reports.
    pub fn handle_event(&mut self, now: Now, event: &ServerEvent) {
        match *event {
            ServerEvent::Key { db, ref key, event } => {
                self.handle_key_event(now.monotonic, db, &key.0, event);
            }
            ServerEvent::Flush(db) => self.handle_flush(db),
            // A server that emptied its databases to load its data loads it without a save before.
            ServerEvent::Saves => self.settle_flush(),
            // The append-only file that is being loaded may contain an old SWAPDB.
            ServerEvent::Swap(..) if self.loading => {}
            ServerEvent::Swap(first, second) => {
                self.settle_flush();
                self.leases.end_all(Some(first));
                self.leases.end_all(Some(second));
                self.abstain(now, Reason::SwapDb);
            }
            ServerEvent::LoadingBegins => {
                self.loading = true;
                // The server emptied its databases to load its data.
                self.flushed = None;
                self.propagation.doubt();
            }
            ServerEvent::LoadingEnds => {
                self.loading = false;
                self.propagation.doubt();
                self.leases.doubt_all_mirrors();
                self.queues.check_all();
            }
            ServerEvent::Demoted => {
                self.abstention.is_replica = true;
                self.flushed = None;
                self.leases.end_all(None);
                self.answers.undelivered.clear();
                self.propagation.doubt();
            }
            ServerEvent::Promoted => {
                self.abstention.is_replica = false;
                self.abstain(now, Reason::Promotion);
                self.propagation.doubt();
            }
            ServerEvent::ListenersChanged => self.propagation.doubt(),
            ServerEvent::ModuleLoaded => self.propagation.add_other_module(),
            ServerEvent::Disconnected(blocked_id) => {
                let _ = self.disconnect(blocked_id);
            }
        }
    }

    /// Whether any key has a lease or a waiter. If none has, events about keys do not matter.
    pub fn has_keys(&self) -> bool {
        !self.leases.is_empty() || self.queues.waiters() > 0
    }

    /// Whether there is a lease on this key, or a waiter for it.
    pub fn concerns(&self, db: u32, key: &[u8]) -> bool {
        // A longer key is not hashed: its name may have megabytes, and it is no lock.
        if !self.has_keys() || key.len() > KEY_BYTES_MAX {
            return false;
        }
        let hash = self.leases.hash(db, key);
        self.leases.find(hash, db, key).is_some() || self.queues.find(hash, db, key).is_some()
    }

    /// Processes an event about a key. Ignores a key without a lease or a waiter.
    pub fn handle_key_event(&mut self, now: Monotonic, db: u32, key: &[u8], event: KeyEvent) {
        if self.loading || !self.has_keys() {
            return;
        }
        self.settle_flush();
        let hash = self.leases.hash(db, key);
        if let Some(queue) = self.queues.find(hash, db, key) {
            self.queues.forget_foreign(queue);
            self.queues.check_by(queue, Monotonic::default());
        }
        let Some(slot) = self.find_lease(hash, db, key) else { return };
        let lease = self.leases.get(slot);
        if now >= lease.deadline {
            // After a change of the expiry, a job checks what is under the key.
            if !matches!(event, KeyEvent::ExpirySet { .. }) {
                self.end_by_deadline(slot);
            }
            return;
        }
        // The mirror was lost before, so an event about another value does not end the lease.
        if lease.mirror() == MirrorState::Lost {
            return;
        }
        match event {
            KeyEvent::Expired => {
                // A smaller difference is noise: the node reads its two clocks one after the other,
                // and the server expires keys by milliseconds.
                if lease.deadline.us_since(now) > CLOCK_NOISE_US {
                    self.stats.saved_from_clock_step += 1;
                }
                self.leases.set_mirror(slot, MirrorState::Lost, Monotonic::default());
            }
            KeyEvent::Evicted => {
                self.stats.saved_from_eviction += 1;
                let rewrite_at = now.plus_us(MIRROR_AFTER_EVICTION_US);
                self.leases.set_mirror(slot, MirrorState::Lost, rewrite_at);
            }
            KeyEvent::Removed | KeyEvent::Replaced => self.end_by_operator(slot),
            // A job checks the mirror before the turn ends. Later the mirror may have expired, and
            // that would look like an accident.
            KeyEvent::ExpirySet { value_bytes } => {
                if value_bytes.is_some_and(|bytes| bytes != lease.mirror_value().len()) {
                    self.end_by_operator(slot);
                } else {
                    self.leases.set_mirror(slot, MirrorState::Doubted, Monotonic::default());
                }
            }
        }
    }

    /// Records a FLUSH. The leases of the database end with the node's next action.
    /// The leases do not end if the server next loads its data: then it emptied its databases only
    /// to load.
    fn handle_flush(&mut self, db: Option<u32>) {
        // The file that is being loaded may contain an old FLUSH.
        if !self.loading {
            // Only the last of several flushes can come from a server that is about to load.
            self.settle_flush();
            self.flushed = Some(Flush { db });
        }
    }

    /// Ends the leases of emptied databases, now that an operator is known to have emptied them.
    pub(super) fn settle_flush(&mut self) {
        let Some(Flush { db }) = self.flushed.take() else { return };
        self.leases.end_all(db);
        self.queues.check_all();
    }
}
