//! The clocks by which the node decides.

use std::sync::atomic::{AtomicI64, Ordering};

use nix::time::{ClockId, clock_gettime};
use quorlock_core::node::{Monotonic, Now};
use redis_module::raw;

use super::api;

/// The wall clock minus the monotonic clock, in microseconds, read once in each turn of the loop.
///
/// The wall clock computed from it advances during a long script, in which the server's own time
/// stands still. So a mirror and its lease agree even then.
static WALL_OFFSET_US: AtomicI64 = AtomicI64::new(UNKNOWN);
const UNKNOWN: i64 = i64::MIN;

/// Reads `CLOCK_MONOTONIC_RAW`: it does not step, and unlike `CLOCK_MONOTONIC` it is not slewed.
pub(crate) fn monotonic() -> Monotonic {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC_RAW).expect("Linux has this clock");
    Monotonic::from_us(
        now.tv_sec().unsigned_abs() * 1_000_000 + now.tv_nsec().unsigned_abs() / 1000,
    )
}

/// Reads the monotonic clock, and computes the wall clock from it.
pub(crate) fn now() -> Now {
    let monotonic = monotonic();
    let monotonic_us = i64::try_from(monotonic.us()).unwrap_or(i64::MAX);
    let mut offset_us = WALL_OFFSET_US.load(Ordering::Relaxed);
    if offset_us == UNKNOWN {
        offset_us = wall_us() - monotonic_us;
        WALL_OFFSET_US.store(offset_us, Ordering::Relaxed);
    }
    Now { monotonic, wall_us: (monotonic_us + offset_us).unsigned_abs() }
}

/// Reads the wall clock through the server.
///
/// Not through the C library: a test can replace that library's clock for the server, but the calls
/// of a module in Valkey bypass the replacement.
fn wall_us() -> i64 {
    // SAFETY: the static is written only while the module is being loaded; neither function has
    // preconditions. Redis 7.0 has milliseconds only.
    unsafe {
        match raw::RedisModule_Microseconds {
            Some(microseconds) => microseconds(),
            None => api!(RedisModule_Milliseconds()) * 1000,
        }
    }
}

/// Forgets the offset at the start of a turn: the wall clock may have been stepped since.
pub(super) fn turn_begins() {
    WALL_OFFSET_US.store(UNKNOWN, Ordering::Relaxed);
}
