//! The clocks that measure validities, and the wall clock from which fences are proposed.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use quorlock_core::quorum::Moment;

/// Returns the time on the clocks that measure validities.
///
/// Not part of the API: the program `quorlock` reads the same clocks.
pub fn now() -> Moment {
    let moment = platform::now();
    #[cfg(test)]
    let moment = tests::adjust(moment);
    moment
}

/// Microseconds since 1970, for proposals of fences. A wrong wall clock endangers no lock.
pub(crate) fn wall_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(any(target_os = "linux", target_os = "android"))]
mod platform {
    use super::{Duration, Moment};
    use rustix::time::{ClockId, clock_gettime};

    /// The first clock counts the time in which the machine sleeps, and the second is never slewed.
    /// No clock does both.
    pub(super) fn now() -> Moment {
        Moment { boot: read(ClockId::Boottime), raw: read(ClockId::MonotonicRaw) }
    }

    fn read(clock: ClockId) -> Duration {
        let time = clock_gettime(clock);
        Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
    }
}

#[cfg(target_os = "macos")]
mod platform {
    use super::{Duration, Moment};
    use nix::libc::CLOCK_MONOTONIC_RAW;
    use nix::time::ClockId;

    /// On macOS, this clock is not slewed, and counts the time in which the machine sleeps.
    pub(super) fn now() -> Moment {
        let now = ClockId::from_raw(CLOCK_MONOTONIC_RAW).now();
        let now = Duration::from(now.expect("macOS has had this clock since 10.12"));
        Moment { boot: now, raw: now }
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android", target_os = "macos")))]
compile_error!(
    "quorlock-client needs a clock that counts the time that the machine sleeps: Linux, Android and \
     macOS have one"
);

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        static SLEPT: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    }

    pub(super) fn adjust(moment: Moment) -> Moment {
        Moment { boot: moment.boot + SLEPT.get(), ..moment }
    }

    /// For this thread, only the clock that counts sleep advances: no other clock, no timer.
    pub(crate) fn sleep_through(time: Duration) {
        SLEPT.set(SLEPT.get() + time);
    }

    #[test]
    fn both_clocks_run() {
        let first = now();
        std::thread::sleep(Duration::from_millis(5));
        let later = now();
        // Less than the sleep, since clocks run at slightly different rates.
        let passed = Duration::from_millis(4);
        assert!(later.boot.saturating_sub(first.boot) >= passed, "{first:?} {later:?}");
        assert!(later.raw.saturating_sub(first.raw) >= passed, "{first:?} {later:?}");
    }
}
