use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const GROWTH_PART: u64 = 8;
const ESTIMATE_MAX_US: u64 = 10_000_000;
const UNKNOWN_US: u64 = 1000;

/// The smoothed round trip of each node, from which [`limits`](super::limits) derive how long a
/// node has to answer.
///
/// A shorter sample replaces the estimate, and a longer one raises it by an eighth of the
/// difference, because delays outside the network only lengthen a sample. Each time-out doubles
/// the estimate. Late answers are samples too, so the estimate follows a path that becomes slow.
/// Waits are not sampled.
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
        Duration::from_micros(self.estimate_us(node))
    }

    fn estimate_us(&self, node: usize) -> u64 {
        match self.estimates_us[node].load(Ordering::Relaxed) {
            0 => UNKNOWN_US,
            us => us,
        }
    }

    /// The longest estimate of all nodes.
    pub fn longest(&self) -> Duration {
        (0..self.estimates_us.len()).map(|node| self.of(node)).max().unwrap_or_default()
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
        let took = u64::try_from(took.as_micros()).unwrap_or(u64::MAX).clamp(1, ESTIMATE_MAX_US);
        let before = self.estimates_us[node].load(Ordering::Relaxed);
        let after = if before == 0 {
            took
        } else {
            before.min(took) + took.saturating_sub(before) / GROWTH_PART
        };
        // A concurrent sample may be lost, which changes little.
        self.estimates_us[node].store(after, Ordering::Relaxed);
    }

    /// Records that a node did not answer in time.
    pub fn timed_out(&self, node: usize) {
        let doubled = (self.estimate_us(node) * 2).min(ESTIMATE_MAX_US);
        self.estimates_us[node].store(doubled, Ordering::Relaxed);
    }
}
