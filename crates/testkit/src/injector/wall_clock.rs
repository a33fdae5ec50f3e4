// The one place of this crate that shares memory with another process.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::process::Command;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use quorlock_localserver::StartHook as _;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::preload::Preload;

static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/wall_clock.so"));

const NS_PER_MS: i64 = 1_000_000;

/// The wall clock of the servers that are started with it, to be stepped while they run: what an administrator, NTP or
/// a virtual machine's host does to the real one.
///
/// It is right at first. A step is seen by whatever reads the clock next, and it holds over restarts of the server. All
/// servers with the same `WallClock`, and its clones, show the same time. A server may go on for a moment with what it
/// has read before: Valkey 9.1 reads the wall clock once a millisecond, and adds the processor's time stamp counter in
/// between. When its `TIME` shows the step, it has taken it.
///
/// What is stepped: what the program and the libraries that it was linked with are told by `clock_gettime` for
/// `CLOCK_REALTIME`, `CLOCK_REALTIME_COARSE` and `CLOCK_TAI`, by `gettimeofday`, `time` and `timespec_get`. What
/// is not: the monotonic clocks (`CLOCK_MONOTONIC`, `_RAW` and `_COARSE`, `CLOCK_BOOTTIME`), the processor's time stamp
/// counter, and what the kernel itself tells or waits for (the times of files, timers on `CLOCK_REALTIME`).
///
/// Some servers load modules in a way that gives them the C library itself (Valkey, with `RTLD_DEEPBIND`): such a module
/// sees the steps in what the server tells it, not in what the C library does.
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
    preload: Arc<Preload>,
    ahead_ns: Arc<SharedNumber>,
}

impl WallClock {
    /// A clock that is right.
    ///
    /// # Panics
    ///
    /// When the system has no place for a small file, or does not map it.
    #[track_caller]
    pub fn new() -> Self {
        let preload = Preload::write(OBJECT, "QUORLOCK_WALL_CLOCK", &0_i64.to_ne_bytes());
        match SharedNumber::map(&preload) {
            Ok(ahead_ns) => Self { preload: Arc::new(preload), ahead_ns: Arc::new(ahead_ns) },
            Err(error) => panic!("the file of a wall clock cannot be mapped: {error}"),
        }
    }

    /// Puts the clock that many milliseconds ahead of what it shows, or back when that is negative.
    pub fn step_ms(&self, ms: i64) {
        self.ahead_ns.get().fetch_add(ms.saturating_mul(NS_PER_MS), Ordering::Relaxed);
    }

    /// Sets the clock right again, which is a step too.
    pub fn set_right(&self) {
        self.ahead_ns.get().store(0, Ordering::Relaxed);
    }

    /// How far ahead of the right time it is, in milliseconds; negative when it is behind.
    pub fn ahead_ms(&self) -> i64 {
        self.ahead_ns.get().load(Ordering::Relaxed) / NS_PER_MS
    }

    /// Has a program that is not a [`Server`](crate::Server) tell the time by this clock. It must outlive the program's start.
    pub fn attach(&self, command: &mut Command) {
        self.preload.prepare(command);
    }

    pub(super) fn preload(&self) -> Arc<Preload> {
        Arc::clone(&self.preload)
    }
}

impl Default for WallClock {
    fn default() -> Self {
        Self::new()
    }
}

/// The number in a file that other processes have mapped too.
#[derive(Debug)]
struct SharedNumber(NonNull<AtomicI64>);

// SAFETY: it is a reference to an atomic number that stays where it is until this is dropped.
unsafe impl Send for SharedNumber {}
// SAFETY: as above.
unsafe impl Sync for SharedNumber {}

impl SharedNumber {
    fn map(preload: &Preload) -> io::Result<Self> {
        let file = File::options().read(true).write(true).open(preload.file())?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, where the system likes it; nothing that exists is replaced.
        let mapped =
            unsafe { mmap(ptr::null_mut(), size_of::<AtomicI64>(), access, MapFlags::SHARED, &file, 0) }?;
        NonNull::new(mapped.cast()).map(Self).ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
    }

    fn get(&self) -> &AtomicI64 {
        // SAFETY: mapped, at the beginning of a page, until this is dropped; the file has the eight bytes, and nobody
        // shortens it. Other processes only read.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for SharedNumber {
    fn drop(&mut self) {
        // SAFETY: what was mapped, of that length; no reference outlives this.
        let unmapped = unsafe { munmap(self.0.as_ptr().cast(), size_of::<AtomicI64>()) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}
