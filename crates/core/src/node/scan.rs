//! SCAN: all locks of a database, slice by slice.

use super::chunks::Next;
use super::{Holder, Keyspace, Listed, Node, Now, Scan, Scanned};

/// The most leases that one call looks at.
pub const COUNT_MAX: u32 = 1000;

/// For each lease that a call may look at, it passes so many vacant places.
const VACANT_PER_LEASE: u32 = 10;
/// A call ends after keys of so many bytes: to match and to open a long one takes long.
const KEY_BYTES_MAX: usize = 256 * 1024;

impl Node {
    /// Lists the locks of one slice of the table of leases.
    ///
    /// The cursor is the next place of the table to look at. A lease stays in its place for as long
    /// as it lives, so one that lives from the first call to the last is listed.
    pub(super) fn scan<K: Keyspace>(&mut self, now: Now, scan: &Scan<'_>, keyspace: &mut K) -> Scanned {
        let &Scan { db, cursor, pattern, count } = scan;
        let count = count.clamp(1, COUNT_MAX);
        let mut vacant = count * VACANT_PER_LEASE;
        let (mut left, mut key_bytes) = (count, 0);
        let mut locks = Vec::new();
        // No place has a larger number.
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
            if lease.db != db || !is_live || pattern.is_some_and(|pattern| !pattern.matches(&lease.key)) {
                continue;
            }
            let key = lease.key.clone();
            let name = keyspace.name(&key);
            if let Ok(Some(inspected)) = self.inspect_key(now, db, &name, keyspace)
                && matches!(inspected.holder, Holder::Lease { .. })
            {
                locks.push(Listed { key: key.as_slice().into(), inspected });
            }
        };
        Scanned { cursor: cursor.into(), locks }
    }
}
