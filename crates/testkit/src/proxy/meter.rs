use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::lane::Direction;

/// The traffic of all connections of a proxy.
#[derive(Debug, Default)]
pub(super) struct Meter {
    /// The number of open connections.
    open: Mutex<usize>,
    closed: Condvar,
    /// By direction.
    waiting_bytes: [AtomicU64; 2],
    pub(super) round_trips: AtomicU64,
}

/// Whether bytes of a connection went to the server, and no bytes to the client since.
#[derive(Debug, Default)]
pub(super) struct RoundTrip {
    is_open: AtomicBool,
}

impl Meter {
    pub(super) fn open_connections(&self) -> usize {
        *self.lock_open()
    }

    pub(super) fn open(&self) {
        *self.lock_open() += 1;
    }

    pub(super) fn close(&self) {
        *self.lock_open() -= 1;
        self.closed.notify_all();
    }

    /// Waits until no connection is open. Returns false if that takes longer than `limit`.
    pub(super) fn wait_until_closed(&self, limit: Duration) -> bool {
        let waited = self.closed.wait_timeout_while(self.lock_open(), limit, |open| *open > 0);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    pub(super) fn waiting_bytes(&self, direction: Direction) -> &AtomicU64 {
        &self.waiting_bytes[direction as usize]
    }

    /// Counts a chunk before it is written, so that a client that has an answer finds it counted.
    pub(super) fn pass(&self, direction: Direction, bytes: usize, round_trip: &RoundTrip) {
        self.waiting_bytes(direction).fetch_sub(bytes as u64, Relaxed);
        let was_open = round_trip.is_open.swap(direction == Direction::ToServer, Relaxed);
        if was_open && direction == Direction::ToClient {
            self.round_trips.fetch_add(1, Relaxed);
        }
    }

    fn lock_open(&self) -> MutexGuard<'_, usize> {
        // The number is consistent even if another thread panicked.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
