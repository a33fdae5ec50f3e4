//! A call for any one of several keys: which of them it asks for.

use std::sync::Arc;

use super::{Keys, Random, Spec};

/// The keys of a call that takes any one of them. A slot is the index of a key.
#[derive(Debug)]
pub struct Slots {
    /// The spec of the call, for all keys.
    all: Arc<Spec>,
    keys: Keys,
    /// The current key, which the call asks for.
    slot: usize,
    /// One bit for each key to skip: other clients hold it, but not on the deciding node.
    left_out: u64,
    /// The number of requests for any other key.
    pub(super) probes: u8,
    pub(super) wait_was_sent: bool,
}

impl Slots {
    pub(super) fn new(all: &Arc<Spec>) -> Self {
        Self {
            all: Arc::clone(all),
            keys: all.name().clone(),
            slot: 0,
            left_out: 0,
            probes: 0,
            wait_was_sent: false,
        }
    }

    fn spec_of(&self, is_chosen: impl Fn(usize) -> bool) -> Arc<Spec> {
        let chosen = self.keys.iter().enumerate().filter(|&(slot, _)| is_chosen(slot));
        let keys = chosen.map(|(_, key)| key).collect();
        Arc::new(Spec { keys, any: Some(self.keys.clone()), ..(*self.all).clone() })
    }

    /// The lock of the current key.
    pub(super) fn spec(&self) -> Arc<Spec> {
        self.spec_of(|slot| slot == self.slot)
    }

    /// The lock of any key that is not left out. A WAIT asks for it.
    pub(super) fn candidates(&self) -> Arc<Spec> {
        self.spec_of(|slot| !self.is_left_out(slot))
    }

    /// The lock of any key that is neither left out nor current.
    pub(super) fn others(&self) -> Arc<Spec> {
        self.spec_of(|slot| slot != self.slot && !self.is_left_out(slot))
    }

    pub(super) fn has_others(&self) -> bool {
        (0..self.keys.len()).any(|slot| slot != self.slot && !self.is_left_out(slot))
    }

    fn is_left_out(&self, slot: usize) -> bool {
        self.left_out & bit(slot) != 0
    }

    pub(super) fn is_partial(&self) -> bool {
        self.left_out != 0
    }

    pub(super) fn select(&mut self, slot: usize) {
        self.slot = slot.min(self.keys.len().saturating_sub(1));
    }

    /// Makes a random key that is not left out the current one.
    pub(super) fn pick(&mut self, random: &mut dyn Random) {
        let is_allowed = |slot: &usize| !self.is_left_out(*slot);
        self.slot = pick(random, &(0..self.keys.len()).filter(is_allowed)).unwrap_or(0);
    }

    /// Leaves the current key out. If no key remains, allows all again.
    pub(super) fn leave_out(&mut self) {
        self.left_out |= bit(self.slot);
        if (0..self.keys.len()).all(|slot| self.is_left_out(slot)) {
            self.left_out = 0;
        }
    }

    pub(super) fn allow_all(&mut self) {
        self.left_out = 0;
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
