//! The places for calls of one client that stand in line. Each has one wait connection to each
//! node, so a call takes its turn on all nodes together.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quorlock_core::client::{Mode, limits};

use super::turns::{Position, Turns};

pub(crate) struct PlacesInLine(Mutex<Turns>);

/// A place, or a position in the queue for one.
pub(super) struct Place {
    places: Arc<PlacesInLine>,
    position: Position,
}

impl Default for PlacesInLine {
    fn default() -> Self {
        Self(Mutex::new(Turns::new(limits::WAIT_CONNECTIONS_MAX)))
    }
}

impl PlacesInLine {
    fn turns(&self) -> MutexGuard<'_, Turns> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn take(self: &Arc<Self>) -> Place {
        let position = self.turns().enter(Mode::Exclusive);
        Place { places: Arc::clone(self), position }
    }
}

impl Place {
    /// Whether the call has its place.
    pub(super) fn is_taken(&self) -> bool {
        self.position.is_none()
    }

    /// Waits for the place. Never returns if the call knows that it has it.
    ///
    /// # Cancel safety
    /// Dropping the future keeps the position in the queue.
    pub(super) async fn taken(&mut self) {
        match &mut self.position {
            Some((_, notified)) => {
                // Cannot fail, since `self` keeps the sender alive.
                let _ = notified.await;
                self.position = None;
            }
            None => std::future::pending().await,
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.turns().leave(&self.position);
    }
}
