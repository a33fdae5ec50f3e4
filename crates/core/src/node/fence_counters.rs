use super::mutants::{NodeRule, is_broken};
use crate::Fence;

/// The fence counters of a node, striped by the hash of the key.
/// They take constant memory, whatever the number of keys. Keys that share a counter skip fences.
#[derive(Clone, Debug)]
pub(super) struct FenceCounters {
    counters: Box<[Fence]>,
    /// A lower bound of every counter: raising it raises them all.
    lower_bound: Fence,
    pub(super) max_clock_skew_us: u64,
}

impl FenceCounters {
    pub(super) fn new(stripes: usize, max_clock_skew_ms: u64) -> Self {
        let mut fences = Self {
            counters: vec![Fence::ZERO; stripes.max(1)].into(),
            lower_bound: Fence::ZERO,
            max_clock_skew_us: 0,
        };
        fences.set_max_clock_skew_ms(max_clock_skew_ms);
        fences
    }

    pub(super) fn set_max_clock_skew_ms(&mut self, ms: u64) {
        self.max_clock_skew_us = ms.saturating_mul(1000);
    }

    /// The fence of a new grant: the proposed one, or the next above all fences of these keys if
    /// that is larger.
    ///
    /// The wall clock replaces a proposal that is missing, or too far ahead of it. Otherwise one
    /// client could use up all fences.
    pub(super) fn next(&mut self, hashes: &[u64], proposed: Option<Fence>, wall_us: u64) -> Fence {
        let start = self.proposed_or_wall_clock(proposed, wall_us);
        let exceeded = if is_broken(NodeRule::FenceOfFirstKey) { &hashes[..1] } else { hashes };
        let fence = exceeded.iter().fold(start, |fence, &hash| fence.max(self.last(hash).next()));
        for &hash in hashes {
            *self.counter(hash) = fence;
        }
        fence
    }

    /// The fence of a shared grant: the proposed one, or `floor` if that is larger.
    /// `floor` is what [`FenceCounters::floor`] returned before the first of the shared grants.
    pub(super) fn next_shared(
        &mut self,
        hash: u64,
        proposed: Option<Fence>,
        floor: Fence,
        wall_us: u64,
    ) -> Fence {
        let floor = if is_broken(NodeRule::SharedChoosesFence) { Fence::ZERO } else { floor };
        let fence = self.proposed_or_wall_clock(proposed, wall_us).max(floor);
        self.raise(hash, fence);
        fence
    }

    /// The lowest fence that the next exclusive grant of a key can get.
    pub(super) fn floor(&self, hash: u64) -> Fence {
        self.last(hash).next()
    }

    fn proposed_or_wall_clock(&self, proposed: Option<Fence>, wall_us: u64) -> Fence {
        let accepted = proposed.filter(|&fence| fence <= self.ceiling(wall_us));
        accepted.unwrap_or_else(|| Fence::of_wall_us(wall_us))
    }

    /// Raises the counter of a key: no later exclusive lock of that key gets `fence` or less.
    pub(super) fn raise(&mut self, hash: u64, fence: Fence) {
        let counter = self.counter(hash);
        *counter = fence.max(*counter);
    }

    /// Raises all counters to the ceiling, because the node may have forgotten fences. No earlier
    /// fence is above the ceiling, unless the wall clock went back or the skew was lowered.
    pub(super) fn raise_all_to_ceiling(&mut self, wall_us: u64) {
        self.lower_bound = self.lower_bound.max(self.ceiling(wall_us));
    }

    /// The largest proposed fence that the node accepts now.
    pub(super) fn ceiling(&self, wall_us: u64) -> Fence {
        Fence::of_wall_us(wall_us).saturating_add(self.max_clock_skew_us)
    }

    pub(super) fn last(&self, hash: u64) -> Fence {
        self.counters[self.stripe(hash)].max(self.lower_bound)
    }

    fn counter(&mut self, hash: u64) -> &mut Fence {
        let stripe = self.stripe(hash);
        &mut self.counters[stripe]
    }

    fn stripe(&self, hash: u64) -> usize {
        // The low bits select a bucket in the index of leases, so the stripes use higher bits.
        (hash >> 24) as usize % self.counters.len()
    }
}
