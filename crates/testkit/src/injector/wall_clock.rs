// The only module of this crate that shares memory with another process.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use quorlock_localserver::Server;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

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
    ahead_ns: Arc<SharedNumber>,
}

impl WallClock {
    /// # Panics
    ///
    /// When a temporary file cannot be written or mapped.
    #[track_caller]
    pub fn new() -> Self {
        let preload = Preload::write(OBJECT, "QUORLOCK_WALL_CLOCK", &0_i64.to_ne_bytes());
        match SharedNumber::map(&preload) {
            Ok(ahead_ns) => Self { preload: Arc::new(preload), ahead_ns: Arc::new(ahead_ns) },
            Err(error) => panic!("the file of a wall clock cannot be mapped: {error}"),
        }
    }

    /// Steps the clock ahead by `ms` milliseconds, or back when `ms` is negative.
    pub fn step_ms(&self, ms: i64) {
        self.ahead_ns.get().fetch_add(ms.saturating_mul(NS_PER_MS), Ordering::Relaxed);
    }

    /// Steps the clock to the right time again.
    pub fn correct(&self) {
        self.ahead_ns.get().store(0, Ordering::Relaxed);
    }

    /// Returns how many milliseconds the clock is ahead; negative when it is behind.
    pub fn ahead_ms(&self) -> i64 {
        self.ahead_ns.get().load(Ordering::Relaxed) / NS_PER_MS
    }

    /// Returns whether the server, if it runs, was started with this clock.
    pub fn is_read_by(&self, server: &Server) -> bool {
        !server.is_running() || self.preload.is_loaded_by(server.pid()).unwrap_or(false)
    }
}

impl Default for WallClock {
    fn default() -> Self {
        Self::new()
    }
}

/// A number in a file that other processes map too.
#[derive(Debug)]
struct SharedNumber(NonNull<AtomicI64>);

// SAFETY: threads may share the number: it is atomic, and mapped until this value is dropped.
unsafe impl Send for SharedNumber {}
// SAFETY: as above.
unsafe impl Sync for SharedNumber {}

impl SharedNumber {
    fn map(preload: &Preload) -> io::Result<Self> {
        let file = File::options().read(true).write(true).open(preload.data_file())?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the system chooses the address of the new mapping, which replaces none.
        let mapped = unsafe {
            mmap(ptr::null_mut(), size_of::<AtomicI64>(), access, MapFlags::SHARED, &file, 0)
        }?;
        NonNull::new(mapped.cast()).map(Self).ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
    }

    fn get(&self) -> &AtomicI64 {
        // SAFETY: the number is mapped, at the start of a page, until `self` is dropped. The file
        // has eight bytes and is never shortened. Other processes only read it.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for SharedNumber {
    fn drop(&mut self) {
        // SAFETY: `map` mapped this address with this length, and no reference outlives `self`.
        let unmapped = unsafe { munmap(self.0.as_ptr().cast(), size_of::<AtomicI64>()) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}
