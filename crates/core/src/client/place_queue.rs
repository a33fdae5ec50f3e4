use std::collections::VecDeque;

use smallvec::SmallVec;

use super::Mode;

/// A queue for a fixed number of places in this program, first come, first served.
///
/// A client has two kinds: one place for each lock, so that at most one of its calls asks the nodes
/// for that lock, or any number of adjacent calls that [share](Self::enter_to_share) it; and
/// [`SEATS_MAX`](super::limits::SEATS_MAX) places for blocking connections to each node.
#[derive(Debug)]
pub struct PlaceQueue {
    free: usize,
    /// How many callers share one taken place.
    sharing: usize,
    waiting: VecDeque<(u64, Mode)>,
    next: u64,
}

/// The result of entering a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// The caller has a place. Return it with [`PlaceQueue::leave`].
    Place,
    /// The caller waits. [`PlaceQueue::leave`] or [`PlaceQueue::give_up`] of another caller returns
    /// this number once it has a place.
    Queued(u64),
}

/// The numbers of callers that have just been given a place.
pub type Called = SmallVec<[u64; 1]>;

impl PlaceQueue {
    /// Makes a queue for `places` places. A queue whose callers share has one place.
    pub fn new(places: usize) -> Self {
        Self { free: places, sharing: 0, waiting: VecDeque::new(), next: 0 }
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
        self.next += 1;
        self.waiting.push_back((self.next, mode));
        // While others wait, no place is free.
        if self.call().is_empty() { Entry::Queued(self.next) } else { Entry::Place }
    }

    /// Returns a place. The result has the numbers that are given one.
    pub fn leave(&mut self) -> Called {
        self.sharing = self.sharing.saturating_sub(1);
        if self.sharing == 0 {
            self.free += 1;
        }
        self.call()
    }

    /// Leaves the queue without a place. The result has the numbers that are given one; `None` if
    /// `number` itself has been given one before.
    pub fn give_up(&mut self, number: u64) -> Option<Called> {
        let place = self.waiting.iter().position(|&(waiting, _)| waiting == number)?;
        self.waiting.remove(place);
        Some(self.call())
    }

    /// Gives places to the head of the queue.
    fn call(&mut self) -> Called {
        let mut called = Called::new();
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
