use std::collections::HashMap;

use quorlock_core::client::{CalledNumbers, Entry, Mode, PlaceQueue};
use tokio::sync::oneshot;

/// A queue for places whose callers await their turn.
pub(super) struct Turns {
    places: PlaceQueue,
    waiting: HashMap<u64, oneshot::Sender<()>>,
}

/// The position of a caller in the queue; `None` once it has its place and knows it.
pub(super) type Position = Option<(u64, oneshot::Receiver<()>)>;

impl Turns {
    pub(super) fn new(places: usize) -> Self {
        Self { places: PlaceQueue::new(places), waiting: HashMap::new() }
    }

    /// Takes a place, or queues for one. Callers that share a lock may share a place.
    pub(super) fn enter(&mut self, mode: Mode) -> Position {
        let entry = match mode {
            Mode::Exclusive => self.places.enter(),
            Mode::Shared => self.places.enter_to_share(),
        };
        match entry {
            Entry::Place => None,
            Entry::Queued(number) => {
                let (notify, notified) = oneshot::channel();
                self.waiting.insert(number, notify);
                Some((number, notified))
            }
        }
    }

    /// Leaves the place or the queue.
    pub(super) fn leave(&mut self, position: &Position) {
        if let Some((number, _)) = position {
            self.waiting.remove(number);
            if let Some(next) = self.places.give_up(*number) {
                return self.notify(next);
            }
            // The caller has a place, and has not noticed it.
        }
        let next = self.places.leave();
        self.notify(next);
    }

    /// Whether all of the queue's `places` are free, and no caller waits.
    pub(super) fn is_idle(&self, places: usize) -> bool {
        self.places.is_idle(places)
    }

    fn notify(&mut self, numbers: CalledNumbers) {
        for number in numbers {
            if let Some(notify) = self.waiting.remove(&number) {
                // The receiver exists: its caller leaves only through `leave`.
                let _ = notify.send(());
            }
        }
    }
}
