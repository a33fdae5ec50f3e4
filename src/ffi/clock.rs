//! The clocks that the node decides by.

use std::sync::atomic::{AtomicI64, Ordering};

use quorlock_core::node::{Monotonic, Now};
use redis_module::raw;

use super::api::api;

/// The wall clock less the monotonic clock, in microseconds, as it was when this turn of the event loop first asked.
static WALL_OFFSET_US: AtomicI64 = AtomicI64::new(UNKNOWN);
const UNKNOWN: i64 = i64::MIN;

/// Reads `CLOCK_MONOTONIC_RAW`: it does not step, and unlike `CLOCK_MONOTONIC` nobody slews it.
pub(crate) fn monotonic() -> Monotonic {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a place for the result; this clock is there since Linux 2.6.28.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_RAW, &raw mut now) };
    Monotonic::from_us(now.tv_sec.unsigned_abs() * 1_000_000 + now.tv_nsec.unsigned_abs() / 1000)
}

/// Both clocks. The wall clock is the server's own: some servers hide their idea of the time from the module's C library.
pub(crate) fn now() -> Now {
    let monotonic = monotonic();
    // SAFETY: the statics are written only while the module is being loaded; the functions need nothing.
    let wall_us = unsafe {
        if let Some(cached) = raw::RedisModule_CachedMicroseconds {
            // Read by the server before each command.
            cached()
        } else {
            // Redis 7.0 does not share it, and reading a clock is a good part of what a command costs: once in a turn.
            let since = i64::try_from(monotonic.us()).unwrap_or(i64::MAX);
            let mut offset = WALL_OFFSET_US.load(Ordering::Relaxed);
            if offset == UNKNOWN {
                offset = api!(RedisModule_Milliseconds()) * 1000 - since;
                WALL_OFFSET_US.store(offset, Ordering::Relaxed);
            }
            since + offset
        }
    };
    Now { monotonic, wall_us: wall_us.unsigned_abs() }
}

/// A new turn of the event loop: the wall clock may have been stepped since the last.
pub(super) fn turn_begins() {
    WALL_OFFSET_US.store(UNKNOWN, Ordering::Relaxed);
}
