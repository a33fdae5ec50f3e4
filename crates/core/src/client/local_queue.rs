//! The local queue of a lock: calls of this program for the same keys wait here for their turn.

use std::collections::VecDeque;

use smallvec::SmallVec;

use super::Mode;

/// The queue of the calls for one set of keys, first in, first out.
///
/// At its head, one call uses the network, or several adjacent calls that share the lock. Calls
/// that do not wait do not queue.
///
/// Calls that have only some keys in common compete on the servers. If they queued here, two of
/// them could wait for each other: one for the head of a queue here, the other for a lock on the
/// servers.
#[derive(Debug)]
pub struct LocalQueue {
    is_free: bool,
    /// How many callers share one taken place.
    sharing: usize,
    /// The numbers of the callers that wait.
    waiting: VecDeque<(u64, Mode)>,
}

/// The numbers of callers that have just been given the place.
pub type CalledNumbers = SmallVec<[u64; 1]>;

impl Default for LocalQueue {
    fn default() -> Self {
        Self { is_free: true, sharing: 0, waiting: VecDeque::new() }
    }
}

impl LocalQueue {
    /// Takes the place for the caller with this number, joins others that share theirs, or queues.
    /// Returns whether the caller has a place now. Callers enter in the order of their numbers.
    pub fn enter(&mut self, number: u64, mode: Mode) -> bool {
        let has_place = self.waiting.is_empty() && self.take_place(mode);
        if !has_place {
            self.waiting.push_back((number, mode));
        }
        has_place
    }

    /// Leaves the place or the queue. Returns the numbers of the callers that get a place.
    pub fn leave(&mut self, number: u64) -> CalledNumbers {
        if let Ok(index) = self.waiting.binary_search_by_key(&number, |&(waiting, _)| waiting) {
            self.waiting.remove(index);
        } else {
            self.sharing = self.sharing.saturating_sub(1);
            self.is_free = self.sharing == 0;
        }
        self.give_places()
    }

    fn give_places(&mut self) -> CalledNumbers {
        let mut called = CalledNumbers::new();
        while let Some(&(number, mode)) = self.waiting.front()
            && self.take_place(mode)
        {
            self.waiting.pop_front();
            called.push(number);
        }
        called
    }

    fn take_place(&mut self, mode: Mode) -> bool {
        let joins = mode == Mode::Shared && self.sharing > 0;
        if !joins && !self.is_free {
            return false;
        }
        self.is_free = false;
        self.sharing += usize::from(mode == Mode::Shared);
        true
    }

    /// Whether the place is free, and no caller waits.
    pub fn is_idle(&self) -> bool {
        self.is_free && self.waiting.is_empty()
    }
}
