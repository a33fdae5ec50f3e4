//! One of several keys: which of them a call asks for.

use std::sync::Arc;

use super::acquire::Spec;
use super::{Keys, Random};

/// The keys of which a call takes one.
#[derive(Debug)]
pub struct Slots {
    /// All of them.
    all: Arc<Spec>,
    keys: Keys,
    /// The one that the call asks for.
    slot: usize,
    /// Slots that others hold although the node that decides does not know: one bit each.
    left_out: u64,
    /// How often a node was asked for any of them.
    pub(super) probes: u8,
}

impl Slots {
    pub(super) fn new(all: &Arc<Spec>) -> Self {
        Self { all: Arc::clone(all), keys: all.name().clone(), slot: 0, left_out: 0, probes: 0 }
    }

    fn of(&self, is_in: impl Fn(usize) -> bool) -> Arc<Spec> {
        let chosen = self.keys.iter().enumerate().filter(|&(slot, _)| is_in(slot));
        let keys = chosen.map(|(_, key)| key).collect();
        Arc::new(Spec { keys, any: Some(self.keys.clone()), ..(*self.all).clone() })
    }

    /// The lock of the slot.
    pub(super) fn spec(&self) -> Arc<Spec> {
        self.of(|slot| slot == self.slot)
    }

    /// The slots that a WAIT asks for.
    pub(super) fn candidates(&self) -> Arc<Spec> {
        self.of(|slot| !self.is_left_out(slot))
    }

    /// The same without the present slot.
    pub(super) fn others(&self) -> Arc<Spec> {
        self.of(|slot| slot != self.slot && !self.is_left_out(slot))
    }

    pub(super) fn has_others(&self) -> bool {
        (0..self.keys.len()).any(|slot| slot != self.slot && !self.is_left_out(slot))
    }

    fn is_left_out(&self, slot: usize) -> bool {
        self.left_out & bit(slot) != 0
    }

    /// Whether some are left out.
    pub(super) fn is_partial(&self) -> bool {
        self.left_out != 0
    }

    /// Asks for this slot from now on.
    pub(super) fn take(&mut self, slot: usize) {
        self.slot = slot.min(self.keys.len().saturating_sub(1));
    }

    /// Asks for one at random that is not left out.
    pub(super) fn pick(&mut self, random: &mut dyn Random) {
        let of = |slot: &usize| !self.is_left_out(*slot);
        self.slot = pick(random, &(0..self.keys.len()).filter(of)).unwrap_or(0);
    }

    /// Leaves the present slot out. When none is left, all are asked for again.
    pub(super) fn leave_out(&mut self) {
        self.left_out |= bit(self.slot);
        if (0..self.keys.len()).all(|slot| self.is_left_out(slot)) {
            self.left_out = 0;
        }
    }

    /// Asks for all of them again.
    pub(super) fn allow_all(&mut self) {
        self.left_out = 0;
    }
}

/// Which slots a program holds, and which of them is likely free: the one that it released last.
#[derive(Clone, Copy, Debug, Default)]
pub struct SlotMemory {
    held: u64,
    freed: Option<usize>,
}

impl SlotMemory {
    /// A slot of so many to ask for first: the one that was released last, or else one at random
    /// that this program does not hold.
    pub fn propose(&mut self, slots: usize, random: &mut dyn Random) -> usize {
        let is_free = |slot: &usize| self.held & bit(*slot) == 0;
        let freed = self.freed.take().filter(|&slot| slot < slots && is_free(&slot));
        let free = freed.or_else(|| pick(random, &(0..slots).filter(is_free)));
        free.or_else(|| pick(random, &(0..slots))).unwrap_or(0)
    }

    /// This program holds the slot.
    pub fn acquired(&mut self, slot: usize) {
        self.held |= bit(slot);
    }

    /// This program has released it.
    pub fn freed(&mut self, slot: usize) {
        self.held &= !bit(slot);
        self.freed = Some(slot);
    }
}

/// One of these at random.
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

    struct Last;

    impl Random for Last {
        fn bits(&mut self) -> Option<u128> {
            None
        }

        fn below(&mut self, end: u64) -> u64 {
            end - 1
        }
    }

    #[test]
    fn the_slot_that_was_released_last_is_proposed_and_no_held_one() {
        let mut memory = SlotMemory::default();
        assert_eq!(memory.propose(64, &mut Last), 63);
        memory.acquired(63);
        assert_eq!(memory.propose(64, &mut Last), 62);
        memory.acquired(5);
        memory.freed(5);
        assert_eq!(memory.propose(64, &mut Last), 5);
        assert_eq!(memory.propose(64, &mut Last), 62, "it is proposed once");
        (0..64).for_each(|slot| memory.acquired(slot));
        assert_eq!(memory.propose(64, &mut Last), 63, "others may have it by now");
    }
}
