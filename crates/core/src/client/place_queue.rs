use std::collections::VecDeque;

use smallvec::SmallVec;

use super::Mode;

/// A queue in this program for a fixed number of places, first in, first out.
///
/// - For each lock, a queue for one place: of the calls that may wait, one at a time asks the
///   nodes. Adjacent calls that [share](Self::enter_to_share) the lock share the place.
/// - For each node, a queue for [`WAIT_CONNECTIONS_MAX`](super::limits::WAIT_CONNECTIONS_MAX)
///   places: its wait connections.
#[derive(Debug)]
pub struct PlaceQueue {
    free: usize,
    /// How many callers share one taken place.
    sharing: usize,
    waiting: VecDeque<(u64, Mode)>,
    /// The number of the last caller.
    last: u64,
}

/// The result of entering a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// The caller has a place. It leaves it with [`PlaceQueue::leave`].
    Place,
    /// The caller waits under this number, which another caller's [`PlaceQueue::leave`] or
    /// [`PlaceQueue::give_up`] returns once this caller has a place.
    Queued(u64),
}

/// The numbers of callers that have just been given a place.
pub type CalledNumbers = SmallVec<[u64; 1]>;

impl PlaceQueue {
    /// Makes a queue for `places` places. A queue whose callers share has one place.
    pub fn new(places: usize) -> Self {
        Self { free: places, sharing: 0, waiting: VecDeque::new(), last: 0 }
    }

    /// Takes a place, or queues for one.
    pub fn enter(&mut self) -> Entry {
        self.enter_as(Mode::Exclusive)
    }

    /// Takes a place, joins other callers that share theirs, or queues.
    pub fn enter_to_share(&mut self) -> Entry {
        self.enter_as(Mode::Shared)
    }

    fn enter_as(&mut self, mode: Mode) -> Entry {
        self.last += 1;
        self.waiting.push_back((self.last, mode));
        // While earlier callers wait, no place is free. So only this caller can be given a place.
        if self.give_places().is_empty() { Entry::Queued(self.last) } else { Entry::Place }
    }

    /// Leaves a place. Returns the numbers of the callers that get one.
    pub fn leave(&mut self) -> CalledNumbers {
        self.sharing = self.sharing.saturating_sub(1);
        if self.sharing == 0 {
            self.free += 1;
        }
        self.give_places()
    }

    /// Leaves the queue without a place. Returns the numbers of the callers that get one; `None` if
    /// caller `number` has a place already.
    pub fn give_up(&mut self, number: u64) -> Option<CalledNumbers> {
        let index = self.waiting.iter().position(|&(waiting, _)| waiting == number)?;
        self.waiting.remove(index);
        Some(self.give_places())
    }

    fn give_places(&mut self) -> CalledNumbers {
        let mut called = CalledNumbers::new();
        while let Some(&(number, mode)) = self.waiting.front() {
            let joins = mode == Mode::Shared && self.sharing > 0;
            if !joins {
                if self.free == 0 {
                    break;
                }
                self.free -= 1;
            }
            self.sharing += usize::from(mode == Mode::Shared);
            self.waiting.pop_front();
            called.push(number);
        }
        called
    }

    /// Whether all of the queue's `places` are free, and no caller waits.
    pub fn is_idle(&self, places: usize) -> bool {
        self.free == places && self.waiting.is_empty()
    }
}
