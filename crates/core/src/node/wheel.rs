//! Orders leases by the time at which they need attention.

#![expect(clippy::cast_possible_truncation, reason = "levels and buckets are few")]

use super::Monotonic;
use super::chunks::Chunks;

/// A hierarchical timing wheel of links between leases.
///
/// Adding or removing a lease changes only its two neighbours, however many leases there are. The
/// lowest level resolves single microseconds, so that a lease is due exactly at its time.
#[derive(Clone, Debug)]
pub(super) struct Wheel {
    /// All times up to here have been processed, in microseconds.
    cursor_us: u64,
    /// The first item that was already due when it was added. Such items come before all others.
    urgent: u32,
    levels: [Level; LEVELS],
}

/// The buckets of one level: `BUCKETS` to the power of the level microseconds each.
#[derive(Clone, Copy, Debug)]
struct Level {
    /// One bit for each bucket that holds a lease.
    occupied: u64,
    /// The first lease in each bucket.
    heads: [u32; BUCKETS],
}

/// The place of a lease in the wheel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    /// The lease before this one; for the first in a bucket `FIRST` and the bucket's number.
    previous: u32,
    next: u32,
}

impl Default for Link {
    fn default() -> Self {
        Self { previous: NONE, next: NONE }
    }
}

/// An item that the wheel can order.
pub(super) trait Timed {
    /// When it needs attention.
    fn at(&self) -> Monotonic;
    fn link(&mut self) -> &mut Link;
}

const BITS: u32 = 6;
const BUCKETS: usize = 1 << BITS;
/// Enough for 570 years in microseconds.
const LEVELS: usize = 9;
const NONE: u32 = u32::MAX;
const FIRST: u32 = 1 << 31;
/// The place before the first urgent item. No bucket has this number.
const URGENT: u32 = FIRST | 1 << 30;

impl Default for Wheel {
    fn default() -> Self {
        let level = Level { occupied: 0, heads: [NONE; BUCKETS] };
        Self { cursor_us: 0, urgent: NONE, levels: [level; LEVELS] }
    }
}

/// The result of [`Wheel::step`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The item in this slot is due. It stays until it is removed or moved.
    Due(u32),
    /// One item was sorted into a finer level.
    Sorted,
    /// No item is due.
    Idle,
}

impl Wheel {
    pub(super) fn insert<T: Timed>(&mut self, items: &mut Chunks<T>, slot: u32) {
        let at_us = items[slot].at().us();
        if at_us <= self.cursor_us {
            return self.insert_urgent(items, slot);
        }
        let highest_bit = ((at_us ^ self.cursor_us) | 1).ilog2();
        let level = ((highest_bit / BITS) as usize).min(LEVELS - 1);
        let bucket = bucket_of(at_us, level);
        let heads = &mut self.levels[level];
        let next = std::mem::replace(&mut heads.heads[bucket], slot);
        heads.occupied |= 1 << bucket;
        *items[slot].link() = Link { previous: first(level, bucket), next };
        if next != NONE {
            items[next].link().previous = slot;
        }
    }

    fn insert_urgent<T: Timed>(&mut self, items: &mut Chunks<T>, slot: u32) {
        let next = std::mem::replace(&mut self.urgent, slot);
        *items[slot].link() = Link { previous: URGENT, next };
        if next != NONE {
            items[next].link().previous = slot;
        }
    }

    pub(super) fn remove<T: Timed>(&mut self, items: &mut Chunks<T>, slot: u32) {
        let Link { previous, next } = std::mem::take(items[slot].link());
        if next != NONE {
            items[next].link().previous = previous;
        }
        if previous & FIRST == 0 {
            items[previous].link().next = next;
            return;
        }
        if previous == URGENT {
            self.urgent = next;
            return;
        }
        let place = (previous & !FIRST) as usize;
        let level = &mut self.levels[place / BUCKETS];
        level.heads[place % BUCKETS] = next;
        if next == NONE {
            level.occupied &= !(1 << (place % BUCKETS));
        }
    }

    /// Takes one step towards the first item that is due by `now`.
    pub(super) fn step<T: Timed>(&mut self, items: &mut Chunks<T>, now: Monotonic) -> Step {
        if self.urgent != NONE {
            return Step::Due(self.urgent);
        }
        let Some((level, bucket, starts_us)) = self.first_bucket() else {
            self.cursor_us = self.cursor_us.max(now.us());
            return Step::Idle;
        };
        if starts_us > now.us() {
            self.cursor_us = self.cursor_us.max(now.us());
            return Step::Idle;
        }
        let slot = self.levels[level].heads[bucket];
        if level == 0 {
            self.cursor_us = self.cursor_us.max(starts_us);
            return Step::Due(slot);
        }
        self.remove(items, slot);
        // An item that is due at the very start of the bucket joins the urgent ones.
        self.cursor_us = self.cursor_us.max(starts_us);
        self.insert(items, slot);
        Step::Sorted
    }

    /// When to call [`Wheel::step`] next. No item is due before then.
    pub(super) fn next_step(&self) -> Option<Monotonic> {
        if self.urgent != NONE {
            return Some(Monotonic::default());
        }
        self.first_bucket().map(|(_, _, starts_us)| Monotonic::from_us(starts_us))
    }

    /// The first occupied bucket by time, and its time.
    fn first_bucket(&self) -> Option<(usize, usize, u64)> {
        // A bucket that contains the cursor is being sorted into finer levels.
        for level in (1..LEVELS).rev() {
            let bucket = bucket_of(self.cursor_us, level);
            if self.levels[level].occupied & 1 << bucket != 0 {
                return Some((level, bucket, self.cursor_us));
            }
        }
        (0..LEVELS).find_map(|level| {
            let from = bucket_of(self.cursor_us, level);
            let ahead = self.levels[level].occupied >> from << from;
            if ahead == 0 {
                return None;
            }
            let bucket = ahead.trailing_zeros() as usize;
            let shift = shift_of(level);
            let above = self.cursor_us >> shift >> BITS << BITS;
            Some((level, bucket, (above | bucket as u64) << shift))
        })
    }
}

const fn bucket_of(at_us: u64, level: usize) -> usize {
    (at_us >> shift_of(level)) as usize % BUCKETS
}

/// The lowest bit of a time that a level distinguishes.
const fn shift_of(level: usize) -> u32 {
    BITS * level as u32
}

const fn first(level: usize, bucket: usize) -> u32 {
    FIRST | (level * BUCKETS + bucket) as u32
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    struct Item(u64, Link);

    impl Timed for Item {
        fn at(&self) -> Monotonic {
            Monotonic::from_us(self.0)
        }

        fn link(&mut self) -> &mut Link {
            &mut self.1
        }
    }

    /// Removes and returns all due items, in the order in which the wheel returns them.
    fn due(wheel: &mut Wheel, items: &mut Chunks<Item>, now: Monotonic) -> Vec<u32> {
        let mut due = Vec::new();
        loop {
            match wheel.step(items, now) {
                Step::Due(slot) => {
                    wheel.remove(items, slot);
                    due.push(slot);
                }
                Step::Sorted => {}
                Step::Idle => return due,
            }
        }
    }

    proptest! {
        #[test]
        fn item_is_due_exactly_when_its_time_has_come(
            steps in prop::collection::vec((0..5_u32, 0..1_u64 << 40, 0..1_u64 << 36), 1..200),
        ) {
            let (mut wheel, mut items) = (Wheel::default(), Chunks::default());
            let mut model: BTreeSet<(u64, u32)> = BTreeSet::new();
            let mut now_us = 0_u64;
            for (action, ahead_us, passed_us) in steps {
                let ahead_us = ahead_us >> (ahead_us % 40);
                match action {
                    0..=2 => {
                        let at = now_us + ahead_us;
                        let slot = items.insert(Item(at, Link::default()));
                        wheel.insert(&mut items, slot);
                        model.insert((at, slot));
                    }
                    3 => if let Some(&(at, slot)) = model.iter().nth(ahead_us as usize % (model.len() + 1)) {
                        wheel.remove(&mut items, slot);
                        items.remove(slot);
                        model.remove(&(at, slot));
                    },
                    _ => {
                        now_us += passed_us >> (passed_us % 36);
                        let slots: BTreeSet<_> = due(&mut wheel, &mut items, Monotonic::from_us(now_us))
                            .into_iter()
                            .collect();
                        let expected: BTreeSet<_> =
                            model.iter().filter(|(at, _)| *at <= now_us).map(|&(_, slot)| slot).collect();
                        prop_assert_eq!(&slots, &expected);
                        model.retain(|(at, _)| *at > now_us);
                        for slot in slots {
                            items.remove(slot);
                        }
                    }
                }
                let soonest = model.first().map(|&(at, _)| at);
                let step = wheel.next_step().map(Monotonic::us);
                prop_assert_eq!(soonest.is_some(), step.is_some());
                prop_assert!(step <= soonest, "the wheel wakes no later than its first item");
            }
        }
    }
}
