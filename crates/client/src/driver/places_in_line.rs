//! The places for calls of one client that stand in line. Each has one wait connection to each
//! node, so a call takes its turn on all nodes together.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quorlock_core::client::{CalledNumbers, Entry, PlaceQueue, limits};
use tokio::sync::oneshot;

pub(crate) struct PlacesInLine {
    state: Mutex<State>,
}

struct State {
    places: PlaceQueue,
    waiting: HashMap<u64, oneshot::Sender<()>>,
}

/// A place, or a position in the queue for one.
pub(super) struct Place {
    places: Arc<PlacesInLine>,
    /// `None` once the call has its place and knows it.
    in_queue: Option<(u64, oneshot::Receiver<()>)>,
}

impl Default for PlacesInLine {
    fn default() -> Self {
        let places = PlaceQueue::new(limits::WAIT_CONNECTIONS_MAX);
        Self { state: Mutex::new(State { places, waiting: HashMap::new() }) }
    }
}

impl PlacesInLine {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn take(self: &Arc<Self>) -> Place {
        let mut state = self.state();
        let in_queue = match state.places.enter() {
            Entry::Place => None,
            Entry::Queued(number) => {
                let (notify, notified) = oneshot::channel();
                state.waiting.insert(number, notify);
                Some((number, notified))
            }
        };
        drop(state);
        Place { places: Arc::clone(self), in_queue }
    }
}

impl Place {
    /// Whether the call has its place.
    pub(super) fn is_taken(&self) -> bool {
        self.in_queue.is_none()
    }

    /// Waits for the place. Never returns if the call knows that it has it.
    ///
    /// # Cancel safety
    /// Dropping the future keeps the position in the queue.
    pub(super) async fn taken(&mut self) {
        match &mut self.in_queue {
            Some((_, notified)) => {
                // Cannot fail, since `self` keeps the sender alive.
                let _ = notified.await;
                self.in_queue = None;
            }
            None => std::future::pending().await,
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.places.state();
        if let Some((number, _)) = &self.in_queue {
            state.waiting.remove(number);
            if let Some(next) = state.places.give_up(*number) {
                return state.notify(&next);
            }
        }
        let next = state.places.leave();
        state.notify(&next);
    }
}

impl State {
    fn notify(&mut self, numbers: &CalledNumbers) {
        for number in numbers {
            if let Some(notify) = self.waiting.remove(number) {
                let _ = notify.send(());
            }
        }
    }
}
