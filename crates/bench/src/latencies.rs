use std::time::Duration;

use hdrhistogram::Histogram;

/// The longest that is told apart, in nanoseconds: far more than any of this takes.
const LONGEST_NS: u64 = 60_000_000_000;
/// Enough to tell 1.01 from 1.00.
const SIGNIFICANT_DIGITS: u8 = 3;

/// How long something took, each time it was done.
pub(crate) struct Latencies(Histogram<u64>);

impl Latencies {
    /// Nothing was done yet.
    pub(crate) fn new() -> Self {
        Self(
            Histogram::new_with_max(LONGEST_NS, SIGNIFICANT_DIGITS)
                .expect("there are so many digits and so large numbers"),
        )
    }

    /// It was done once more, and took so long.
    pub(crate) fn record(&mut self, took: Duration) {
        self.0.saturating_record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
    }

    /// What half of them did not exceed.
    pub(crate) fn p50(&self) -> Duration {
        Duration::from_nanos(self.0.value_at_quantile(0.5))
    }

    /// What one in a hundred exceeded.
    pub(crate) fn p99(&self) -> Duration {
        Duration::from_nanos(self.0.value_at_quantile(0.99))
    }

    /// How long the longest took.
    pub(crate) fn max(&self) -> Duration {
        Duration::from_nanos(self.0.max())
    }

    /// How long it took on average.
    pub(crate) fn mean(&self) -> Duration {
        Duration::from_secs_f64(self.0.mean() / 1e9)
    }
}
