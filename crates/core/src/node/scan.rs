//! SCAN: all locks of a database, slice by slice.

use super::chunks::Next;
use super::{Holder, Keyspace, Listed, Node, Now, Scan, Scanned};

/// The most leases that one call examines.
pub const COUNT_MAX: u32 = 1000;

/// How many vacant slots a call may pass for each lease that it may examine.
const VACANT_PER_LEASE: u32 = 10;
/// A call ends after this many bytes of keys, because a long key takes long to match and open.
const KEY_BYTES_MAX: usize = 256 * 1024;

impl Node {
    /// Lists the locks of one slice of the lease table.
    /// The cursor is the next slot to examine. A lease keeps its slot for as long as it lives, so
    /// the scan lists every lease that lives from the first call to the last.
    pub(super) fn scan<K: Keyspace>(
        &mut self,
        now: Now,
        scan: &Scan<'_>,
        keyspace: &mut K,
    ) -> Scanned {
        let &Scan { db, cursor, pattern, count } = scan;
        let count = count.clamp(1, COUNT_MAX);
        let mut vacant = count * VACANT_PER_LEASE;
        let (mut left, mut key_bytes) = (count, 0);
        let mut locks = Vec::new();
        // No slot is above `u32::MAX`.
        let mut from = u32::try_from(cursor).unwrap_or(u32::MAX);
        let cursor = loop {
            if left == 0 || key_bytes > KEY_BYTES_MAX {
                break from;
            }
            let slot = match self.leases.next_from(from, &mut vacant) {
                Next::Item(slot) => slot,
                Next::Spent(slot) => break slot,
                Next::End => break 0,
            };
            (left, from) = (left - 1, slot + 1);
            let lease = self.leases.get(slot);
            key_bytes += lease.key.len();
            let is_live = now.monotonic < lease.deadline && !self.leases.is_stale(lease);
            if lease.db != db
                || !is_live
                || pattern.is_some_and(|pattern| !pattern.matches(&lease.key))
            {
                continue;
            }
            let key = lease.key.clone();
            let name = keyspace.name(&key);
            if let Ok(Some(inspected)) = self.inspect(now, db, &name, keyspace)
                && matches!(inspected.holder, Holder::Lease { .. })
            {
                locks.push(Listed { key: key.as_slice().into(), inspected });
            }
        };
        Scanned { cursor: cursor.into(), locks }
    }
}
