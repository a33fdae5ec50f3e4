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
