use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::limits;

/// The smoothed round trip of each node, from which [`limits`](super::limits) derive how long a
/// node has to answer.
///
/// A shorter sample replaces the estimate, and a longer one raises it by an eighth of the
/// difference, because delays outside the network only lengthen a sample. Each time-out doubles
/// the estimate, up to the time in which a node must connect. Late answers are samples too, so the
/// estimate follows a path that becomes slow. Waits are not sampled.
#[derive(Debug)]
pub struct RoundTrips {
    estimates_us: Box<[AtomicU64]>,
}

impl RoundTrips {
    /// Makes estimates for `nodes` nodes that have not been measured.
    pub fn new(nodes: usize) -> Self {
        Self { estimates_us: (0..nodes).map(|_| AtomicU64::new(0)).collect() }
    }

    /// The estimate for a node; 1 ms before the first sample.
    pub fn of(&self, node: usize) -> Duration {
        match self.estimates_us[node].load(Ordering::Relaxed) {
            0 => limits::ROUND_TRIP_UNKNOWN,
            us => Duration::from_micros(us),
        }
    }

    fn set(&self, node: usize, estimate: Duration) {
        let us = estimate.clamp(Duration::from_micros(1), limits::HANDSHAKE).as_micros();
        // A concurrent sample may be lost, which changes little.
        self.estimates_us[node].store(u64::try_from(us).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// The median of the estimates.
    pub fn typical(&self) -> Duration {
        let mut all: smallvec::SmallVec<[Duration; 8]> =
            (0..self.estimates_us.len()).map(|node| self.of(node)).collect();
        all.sort_unstable();
        all.get(all.len() / 2).copied().unwrap_or_default()
    }

    /// Records that a node answered after `took`, in time or late.
    pub fn sample(&self, node: usize, took: Duration) {
        let took = took.min(limits::HANDSHAKE);
        let before = match self.estimates_us[node].load(Ordering::Relaxed) {
            0 => took,
            us => Duration::from_micros(us),
        };
        let growth = took.saturating_sub(before) / 8;
        self.set(node, before.min(took) + growth);
    }

    /// Records that a node did not answer in time.
    pub fn timed_out(&self, node: usize) {
        self.set(node, self.of(node) * 2);
    }
}
