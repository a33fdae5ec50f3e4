use quorlock_core::node::Monotonic;

/// Reads `CLOCK_MONOTONIC_RAW`: it does not step, and unlike `CLOCK_MONOTONIC` nobody slews it.
pub(crate) fn monotonic() -> Monotonic {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a place for the result; this clock is there since Linux 2.6.28.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_RAW, &raw mut now) };
    Monotonic::from_us(now.tv_sec.unsigned_abs() * 1_000_000 + now.tv_nsec.unsigned_abs() / 1000)
}
