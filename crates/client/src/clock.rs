use std::time::{Duration, SystemTime, UNIX_EPOCH};

use quorlock_core::quorum::Moment;
use rustix::time::{ClockId, clock_gettime};

/// Reads both clocks that a lock's validity is measured on.
pub(crate) fn now() -> Moment {
    let moment = Moment { boot: read(ClockId::Boottime), raw: read(ClockId::MonotonicRaw) };
    #[cfg(test)]
    let moment = Moment { boot: moment.boot + tests::SLEPT.get(), ..moment };
    moment
}

/// The wall clock in microseconds since 1970, which fences are proposed from. Nothing is unsafe if it is wrong.
pub(crate) fn wall_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

fn read(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::Cell;
    use std::time::Duration;

    thread_local! {
        pub(super) static SLEPT: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    }

    /// As if the machine had slept: one clock goes on, and timers do not. Of this thread only.
    pub(crate) fn sleep_through(time: Duration) {
        SLEPT.set(SLEPT.get() + time);
    }
}
