//! The offset between a node's wall clock and this machine's.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// This machine's wall clock in microseconds since 1970.
pub(super) fn wall_us() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

/// Returns how far a remote clock is ahead of this machine's. Takes the remote clock as read in the
/// middle of the round trip, so the result is wrong by at most half a round trip.
pub(super) fn offset_us(sent_us: i64, round_trip: Duration, remote_us: i64) -> i64 {
    let half = i64::try_from(round_trip.as_micros() / 2).unwrap_or(i64::MAX);
    remote_us.saturating_sub(sent_us.saturating_add(half))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remote_clock_counts_as_read_half_a_round_trip_after_the_request() {
        assert_eq!(offset_us(1_000_000, Duration::from_micros(400), 1_000_200), 0);
        assert_eq!(offset_us(1_000_000, Duration::from_micros(400), 4_000_200), 3_000_000);
        assert_eq!(offset_us(1_000_000, Duration::ZERO, 500_000), -500_000);
    }
}
