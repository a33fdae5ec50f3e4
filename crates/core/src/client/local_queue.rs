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
#[derive(Debug, Default)]
pub struct LocalQueue {
    /// The numbers of the callers, in the order in which they entered.
    callers: VecDeque<(u64, Mode)>,
    /// How many of them, from the front on, are at the head.
    at_head: usize,
}

/// The numbers of callers whose turn has just come.
pub type CalledNumbers = SmallVec<[u64; 1]>;

impl LocalQueue {
    /// Adds the caller with this number. Returns whether it has its turn now. Callers enter in the
    /// order of their numbers.
    pub fn enter(&mut self, number: u64, mode: Mode) -> bool {
        self.callers.push_back((number, mode));
        !self.call_next().is_empty()
    }

    /// Removes a caller if it is in the queue. Returns the numbers of the callers whose turn comes.
    pub fn leave(&mut self, number: u64) -> CalledNumbers {
        if let Ok(index) = self.callers.binary_search_by_key(&number, |&(caller, _)| caller) {
            self.callers.remove(index);
            self.at_head -= usize::from(index < self.at_head);
        }
        self.call_next()
    }

    /// Calls the next caller if the head is empty, and the callers that share the lock with it.
    fn call_next(&mut self) -> CalledNumbers {
        let mut called = CalledNumbers::new();
        while let Some(&(number, mode)) = self.callers.get(self.at_head)
            && let Some(&(_, mode_of_first)) = self.callers.front()
            && (self.at_head == 0 || [mode, mode_of_first] == [Mode::Shared; 2])
        {
            self.at_head += 1;
            called.push(number);
        }
        called
    }

    /// Whether no caller is in the queue.
    pub fn is_idle(&self) -> bool {
        self.callers.is_empty()
    }
}
