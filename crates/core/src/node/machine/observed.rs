//! What happens to a node besides commands: to the mirrors of its leases, to the whole keyspace, and to its server.

use super::{CLOCK_NOISE_US, Flushed, Node};
use crate::node::{Event, Monotonic, Now, Reason};

/// A mirror that was evicted is not written again at once: memory is short, and the server would evict it again.
const REPAIR_AFTER_EVICTION_US: u64 = 100_000;

impl<B: AsRef<[u8]> + Clone> Node<B> {
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

    pub(super) fn abstain(&mut self, now: Now, reason: Reason) {
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
}
