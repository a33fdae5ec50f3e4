use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// A moment by the clock that all processes of a machine share, `CLOCK_MONOTONIC`: since the machine was started.
pub(crate) fn now() -> Duration {
    let time = clock_gettime(ClockId::Monotonic);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}
