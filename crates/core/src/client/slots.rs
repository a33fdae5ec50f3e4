//! Which of several keys a call asks for first.

use super::Random;

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
