use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::time::{SystemTime, UNIX_EPOCH};

use quorlock_localserver::Server;

use super::Preload;

static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/wall_clock.so"));

const NS_PER_MS: i64 = 1_000_000;

/// A wall clock that can be stepped while the servers that were started with it run.
///
/// A step does what an administrator, NTP or the host of a virtual machine does to a real clock.
/// The clock is right at first. A step shows at the next reading, and outlasts restarts of the
/// server. All servers with the same `WallClock`, or a clone of it, show the same time.
///
/// A server may use an earlier reading for a moment: Valkey 9.1 reads the wall clock once a
/// millisecond, and adds the processor's time stamp counter in between. A server uses the new time
/// once its `TIME` shows it.
///
/// For the program and the libraries that it was linked with, a step changes the results of
/// `gettimeofday`, `time`, `timespec_get`, and of `clock_gettime` for `CLOCK_REALTIME`,
/// `CLOCK_REALTIME_COARSE` and `CLOCK_TAI`. A step does not change the monotonic clocks
/// (`CLOCK_MONOTONIC`, `_RAW` and `_COARSE`, `CLOCK_BOOTTIME`), the processor's time stamp counter,
/// or the clock inside the kernel (the times of files, timers on `CLOCK_REALTIME`).
///
/// Some servers, such as Valkey, load a module with `RTLD_DEEPBIND`, so that it calls the C library
/// directly. Such a module sees a step only in the times that the server gives it.
///
/// ```
/// use quorlock_testkit::{Inject as _, Server, WallClock};
///
/// let clock = WallClock::new();
/// let server = Server::builder().wall_clock(&clock).start()?;
/// clock.step_ms(60_000);
/// # Ok::<(), quorlock_testkit::StartError>(())
/// ```
#[derive(Clone, Debug)]
pub struct WallClock {
    pub(super) preload: Arc<Preload>,
    ahead_ms: Arc<AtomicI64>,
}

impl WallClock {
    /// # Panics
    ///
    /// When a temporary file cannot be written.
    #[track_caller]
    pub fn new() -> Self {
        let preload = Preload::write(OBJECT, "QUORLOCK_WALL_CLOCK", &0_i64.to_ne_bytes());
        Self { preload: Arc::new(preload), ahead_ms: Arc::default() }
    }

    /// Steps the clock ahead by `ms` milliseconds, or back when `ms` is negative.
    ///
    /// # Panics
    ///
    /// When the file that the servers read cannot be written.
    #[track_caller]
    pub fn step_ms(&self, ms: i64) {
        self.set_ahead_ms(self.ahead_ms.load(Relaxed).saturating_add(ms));
    }

    /// Steps the clock so that it is this many milliseconds ahead, or behind when `ms` is negative.
    ///
    /// # Panics
    ///
    /// When the file that the servers read cannot be written.
    #[track_caller]
    pub fn set_ahead_ms(&self, ms: i64) {
        let ns = ms.saturating_mul(NS_PER_MS).to_ne_bytes();
        // The servers have mapped the file, so it must not be truncated. One write of eight aligned
        // bytes replaces the number at once.
        let file = File::options().write(true).open(&self.preload.data_file);
        if let Err(error) = file.and_then(|file| file.write_all_at(&ns, 0)) {
            panic!("the file of a wall clock cannot be written: {error}");
        }
        self.ahead_ms.store(ms, Relaxed);
    }

    /// Returns the time that the clock shows, in microseconds since 1970.
    pub fn time_us(&self) -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let us = u64::try_from(since.as_micros()).unwrap_or(u64::MAX);
        us.saturating_add_signed(self.ahead_ms.load(Relaxed).saturating_mul(1000))
    }

    /// Returns whether the server, if it runs, was started with this clock.
    pub fn is_read_by(&self, server: &Server) -> bool {
        self.preload.is_loaded_by(server)
    }
}

impl Default for WallClock {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use quorlock_localserver::StartError;

    use super::*;
    use crate::Inject as _;

    #[test]
    fn clock_that_cannot_be_mapped_ends_the_server() {
        let clock = WallClock::new();
        let path = &clock.preload.data_file;
        std::fs::remove_file(path).unwrap();
        let error = Server::builder().wall_clock(&clock).start().unwrap_err();
        let StartError::Exited { log_tail, .. } = &error else { panic!("{error}") };
        let complaint = format!("wall_clock: cannot map {}: No such file", path.display());
        assert!(log_tail.contains(&complaint), "{log_tail}");
    }
}
