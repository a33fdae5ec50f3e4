//! What locks leave behind that nobody gives back.

use quorlock_faults::expire_unreleased;

#[test]
fn a_hundred_thousand_locks_that_expire_unreleased_leave_neither_leases_nor_keys_nor_memory() {
    let left = expire_unreleased(100_000).unwrap_or_else(|error| panic!("{error:#}"));
    assert_eq!((left.leases, left.keys), (0, 0));
    assert!(left.memory_bytes < left.peak_memory_bytes / 10, "{left:?}");
}
