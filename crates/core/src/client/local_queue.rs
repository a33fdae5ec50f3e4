//! The local queue of a lock: calls of this program for the same keys wait here for their turn.

use std::collections::VecDeque;

use smallvec::SmallVec;

use super::{Mode, Random};
use crate::quorum::Moment;

/// The queue of the calls for one set of keys. At its head, one call uses the network, or several
/// adjacent calls that share. Calls that do not wait do not queue.
///
/// Calls that have only some keys in common compete on the servers. If they queued here, two of
/// them could wait for each other: one for the head of a queue here, the other for a lock on the
/// servers.
#[derive(Debug, Default)]
pub(super) struct LocalQueue {
    pub(super) calls: PlaceQueue,
    /// For locks on one of several keys.
    pub(super) slots: SlotMemory,
    /// When the last check began whether other clients give the semaphore more permits.
    pub(super) permits_checked_at: Option<Moment>,
}

/// A queue in this program for one place, first in, first out.
///
/// Each lock has one: of the calls that may wait, one at a time asks the nodes. Adjacent calls that
/// share the lock share the place.
#[derive(Debug)]
pub struct PlaceQueue {
    is_free: bool,
    /// How many callers share one taken place.
    sharing: usize,
    /// The numbers of the callers that wait.
    waiting: VecDeque<(u64, Mode)>,
}

/// The numbers of callers that have just been given the place.
pub type CalledNumbers = SmallVec<[u64; 1]>;

impl Default for PlaceQueue {
    fn default() -> Self {
        Self { is_free: true, sharing: 0, waiting: VecDeque::new() }
    }
}

impl PlaceQueue {
    /// Takes the place for the caller with this number, joins others that share theirs, or queues.
    /// Returns whether the caller has a place now. Callers enter in the order of their numbers.
    pub fn enter(&mut self, number: u64, mode: Mode) -> bool {
        self.waiting.push_back((number, mode));
        // While earlier callers wait, no place is free. So only this caller can be given a place.
        !self.give_places().is_empty()
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
        while let Some(&(number, mode)) = self.waiting.front() {
            let joins = mode == Mode::Shared && self.sharing > 0;
            if !joins {
                if !self.is_free {
                    break;
                }
                self.is_free = false;
            }
            self.sharing += usize::from(mode == Mode::Shared);
            self.waiting.pop_front();
            called.push(number);
        }
        called
    }

    /// Whether the place is free, and no caller waits.
    pub fn is_idle(&self) -> bool {
        self.is_free && self.waiting.is_empty()
    }
}

/// The slots that a program holds, and the one that it released last, which is likely free.
#[derive(Clone, Copy, Debug, Default)]
pub struct SlotMemory {
    held: u64,
    freed: Option<usize>,
}

impl SlotMemory {
    /// Proposes which of `slots` slots to ask for first: the one that was released last, or else a
    /// random one that this program does not hold, or any one if it holds all of them.
    pub fn propose(&mut self, slots: usize, random: &mut dyn Random) -> usize {
        let is_free = |slot: &usize| self.held & bit(*slot) == 0;
        let freed = self.freed.take().filter(|&slot| slot < slots && is_free(&slot));
        let free = freed.or_else(|| pick(random, &(0..slots).filter(is_free)));
        free.or_else(|| pick(random, &(0..slots))).unwrap_or(0)
    }

    /// Records that this program holds the slot.
    pub fn acquired(&mut self, slot: usize) {
        self.held |= bit(slot);
    }

    /// Records that this program released the slot.
    pub fn freed(&mut self, slot: usize) {
        self.held &= !bit(slot);
        self.freed = Some(slot);
    }
}

fn pick(random: &mut dyn Random, slots: &(impl Iterator<Item = usize> + Clone)) -> Option<usize> {
    let count = u64::try_from(slots.clone().count()).unwrap_or(0);
    if count == 0 {
        return None;
    }
    let nth = usize::try_from(random.below(count)).unwrap_or(0);
    slots.clone().nth(nth)
}

/// There are at most 64 slots: as many as a lock may have keys.
fn bit(slot: usize) -> u64 {
    u32::try_from(slot).ok().and_then(|slot| 1_u64.checked_shl(slot)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Largest;

    impl Random for Largest {
        fn bits(&mut self) -> Option<u128> {
            None
        }

        fn below(&mut self, end: u64) -> u64 {
            end - 1
        }
    }

    #[test]
    fn last_released_slot_is_proposed_once_before_other_free_slots() {
        let mut memory = SlotMemory::default();
        assert_eq!(memory.propose(64, &mut Largest), 63);
        memory.acquired(63);
        assert_eq!(memory.propose(64, &mut Largest), 62);
        memory.acquired(5);
        memory.freed(5);
        assert_eq!(memory.propose(64, &mut Largest), 5);
        assert_eq!(memory.propose(64, &mut Largest), 62, "the released slot is proposed once");
        (0..64).for_each(|slot| memory.acquired(slot));
        assert_eq!(memory.propose(64, &mut Largest), 63, "any slot, if the program holds all");
    }
}
