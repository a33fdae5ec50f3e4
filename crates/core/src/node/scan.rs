//! SCAN: all locks of a database, slice by slice.

use super::chunks::Next;
use super::turn::{BYTES_PER_UNIT, Budget, units};
use super::{Holder, Inspected, Keyspace, Listed, Mode, Node, Now, Scan, Scanned};

/// The most leases that one call examines.
pub const COUNT_MAX: u32 = 1000;

/// How many vacant slots a call may pass for each lease that it may examine.
const VACANT_PER_LEASE: u32 = 10;
/// Units of work after which a call ends.
const SCAN_UNITS: u32 = 1000;
/// Units for a lease that a call examines, and for each further [`BYTES_PER_UNIT`] of its key.
const EXAMINE_UNITS: u32 = 1;
/// Units for opening a key and describing its lock.
const LIST_UNITS: u32 = 6;
/// Units for the holders of a shared lock, of which a description passes over some.
const HOLDERS_UNITS: u32 = 20;
/// Units for each waiter in a description, whose connection the server looks up.
const WAITER_UNITS: u32 = 6;
const KEYS_PER_UNIT: usize = 8;

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
        let (mut left, mut budget) = (count, Budget::units(SCAN_UNITS));
        let mut locks = Vec::new();
        // No slot is above `u32::MAX`.
        let mut from = u32::try_from(cursor).unwrap_or(u32::MAX);
        let cursor = loop {
            if left == 0 || budget.is_spent() {
                break from;
            }
            let slot = match self.leases.next_from(from, &mut vacant) {
                Next::Item(slot) => slot,
                Next::Spent(slot) => break slot,
                Next::End => break 0,
            };
            (left, from) = (left - 1, slot + 1);
            let lease = self.leases.get(slot);
            budget.spend(EXAMINE_UNITS + units(lease.key.len() / BYTES_PER_UNIT));
            let is_live = self.leases.is_live(lease, now.monotonic);
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
                budget.spend(list_units(&inspected));
                locks.push(Listed { key: key.as_slice().into(), inspected });
            }
        };
        Scanned { cursor: cursor.into(), locks }
    }
}

/// Units for describing a lock, and for the reply.
fn list_units(Inspected { queue, holder, .. }: &Inspected) -> u32 {
    let of_holders = match holder {
        Holder::Lease { mode: Mode::Shared, .. } => HOLDERS_UNITS,
        Holder::Lease { keys, .. } => units(keys / KEYS_PER_UNIT),
        Holder::Foreign { .. } => 0,
    };
    LIST_UNITS + of_holders + WAITER_UNITS * units(queue.len())
}
