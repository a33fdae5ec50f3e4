/// What a node did since it started. Each counts events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Locks granted, adoptions included.
    pub grants: u64,
    /// ACQUIREs that were refused because somebody holds the key.
    pub refusals: u64,
    /// ACQUIREs that were answered nothing else than that the node abstains.
    pub abstained: u64,
    /// Deadlines moved by their holders.
    pub extends: u64,
    /// Locks given back by their holders.
    pub releases: u64,
    /// Leases that ran out.
    pub ended_by_deadline: u64,
    /// Leases that somebody's explicit command ended.
    pub ended_by_operator: u64,
    /// Leases and foreign strings that an operator revoked.
    pub revoked: u64,
    /// Leases that outlived the expiry of their key, since the wall clock had been stepped.
    pub saved_from_clock_step: u64,
    /// Leases that outlived the eviction of their key.
    pub saved_from_eviction: u64,
    /// Locks granted to somebody who had waited for them.
    pub handovers: u64,
    /// The longest that anybody waited who was then granted the lock, in microseconds.
    pub longest_wait_us: u64,
}
