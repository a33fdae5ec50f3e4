//! Wakes the server's event loop at a moment of the monotonic clock. The server's own timers run on
//! the wall clock.

use std::ffi::{c_int, c_void};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use quorlock_core::node::Monotonic;
use redis_module::raw;

use super::api;

/// A timer whose only effect is another turn of the event loop.
///
/// The node's jobs run at the end of that turn (`before_sleep`). The timer's callback cannot run
/// them, because the callback of a file descriptor must not write keys.
pub(crate) struct Timer {
    fd: TimerFd,
    /// The moment for which the timer was set last; `None` if it is not set.
    armed: Option<Monotonic>,
}

impl Timer {
    /// Returns `None` if the system has no file descriptor left, or the event loop refuses this
    /// one.
    pub(crate) fn new() -> Option<Self> {
        let flags = TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC;
        let fd = TimerFd::new(ClockId::CLOCK_MONOTONIC, flags).ok()?;
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
        let once = Expiration::OneShot(Duration::from_micros(after_us).into());
        let set = self.fd.set(once, TimerSetTimeFlags::empty());
        self.armed = set.is_ok().then_some(at);
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
    // Without a read, the loop would wake at once again. The number of expirations does not matter.
    let _ = nix::unistd::read(fd, &mut [0; size_of::<u64>()]);
}
