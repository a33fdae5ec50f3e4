//! Wakes the server's event loop at a moment of the monotonic clock. The server's own timers run on
//! the wall clock.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use quorlock_core::node::Monotonic;
use redis_module::raw;

use super::api;

/// A timer whose only effect is another turn of the event loop.
///
/// The node's jobs run at the end of that turn (`before_sleep`). The timer's callback cannot run
/// them, because the callback of a file descriptor must not write keys.
pub(crate) struct Timer {
    fd: OwnedFd,
    /// The moment for which the timer was set last; `None` if it is not set.
    armed: Option<Monotonic>,
}

impl Timer {
    /// Returns `None` if the system has no file descriptor left, or the event loop refuses this
    /// one.
    pub(crate) fn new() -> Option<Self> {
        // SAFETY: needs nothing; a non-negative result is a descriptor that is ours.
        let fd = unsafe {
            let fd =
                libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_NONBLOCK | libc::TFD_CLOEXEC);
            (fd >= 0).then(|| OwnedFd::from_raw_fd(fd))
        }?;
        // SAFETY: an open descriptor, which is removed from the loop before it is closed.
        let added = unsafe {
            let mask = raw::REDISMODULE_EVENTLOOP_READABLE as c_int;
            api!(RedisModule_EventLoopAdd(
                fd.as_raw_fd(),
                mask,
                Some(handle_expiration),
                std::ptr::null_mut()
            ))
        };
        (added == raw::REDISMODULE_OK as c_int).then_some(Self { fd, armed: None })
    }

    /// Makes sure that the loop wakes at `at`, or soon after.
    ///
    /// Keeps the timer if it is set for an earlier moment. If nothing is due when it fires, the
    /// next call sets it again.
    pub(crate) fn wake_at(&mut self, now: Monotonic, at: Monotonic) {
        if HAS_FIRED.swap(false, Ordering::Relaxed) {
            // It may have fired early: its clock is not exactly the clock of `now`.
            self.armed = None;
        }
        if self.armed.is_some_and(|armed| now < armed && armed <= at) {
            return;
        }
        // A time of zero would disarm the timer.
        let after_us = at.us_since(now).max(1);
        let after = libc::timespec {
            tv_sec: libc::time_t::try_from(after_us / 1_000_000).unwrap_or(libc::time_t::MAX),
            tv_nsec: (after_us % 1_000_000 * 1000) as libc::c_long,
        };
        let once = libc::itimerspec {
            it_interval: libc::timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: after,
        };
        // SAFETY: an open timer and a time to set; the old time is not read.
        let set = unsafe {
            libc::timerfd_settime(self.fd.as_raw_fd(), 0, &raw const once, std::ptr::null_mut())
        };
        self.armed = (set == 0).then_some(at);
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        // SAFETY: the descriptor is open, and was added.
        unsafe {
            api!(RedisModule_EventLoopDel(
                self.fd.as_raw_fd(),
                raw::REDISMODULE_EVENTLOOP_READABLE as c_int
            ))
        };
    }
}

/// Whether the timer has fired since it was set last. A server has one timer.
static HAS_FIRED: AtomicBool = AtomicBool::new(false);

unsafe extern "C" fn handle_expiration(fd: c_int, _data: *mut c_void, _mask: c_int) {
    HAS_FIRED.store(true, Ordering::Relaxed);
    let mut expirations = 0_u64;
    // SAFETY: an open non-blocking descriptor, and a place for the eight bytes of a timer.
    unsafe { libc::read(fd, (&raw mut expirations).cast(), size_of::<u64>()) };
}
