//! The clocks that a validity is measured on, here and in the client.

use std::time::Duration;

use quorlock_core::quorum::Moment;
use rustix::time::{ClockId, clock_gettime};
use tokio::time::sleep;

/// How often the clocks are read while waiting: timers stop while a machine sleeps, and a validity
/// does not.
const RECHECK_INTERVAL: Duration = Duration::from_millis(200);

pub(crate) fn now() -> Moment {
    Moment { boot: read(ClockId::Boottime), raw: read(ClockId::MonotonicRaw) }
}

/// Waits until either clock has reached `moment`.
pub(crate) async fn reach(moment: Moment) {
    loop {
        let left = now().until(moment);
        if left.is_zero() {
            return;
        }
        sleep(left.min(RECHECK_INTERVAL)).await;
    }
}

fn read(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}
