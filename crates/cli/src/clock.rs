//! The clocks that measure a validity, here and in the client library.

use std::time::Duration;

use quorlock_core::quorum::Moment;
use rustix::time::{ClockId, clock_gettime};
use tokio::time::sleep;

/// The longest time for which [`reach`] sleeps before it reads the clocks again: timers stop while
/// the machine is suspended, validities do not.
const RECHECK_INTERVAL: Duration = Duration::from_millis(200);

pub(crate) fn now() -> Moment {
    Moment { boot: read(ClockId::Boottime), raw: read(ClockId::MonotonicRaw) }
}

/// Waits until one of the two clocks has reached `moment`.
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
