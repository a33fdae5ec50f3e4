//! Orders leases by the time at which they need attention.

#![expect(clippy::cast_possible_truncation, reason = "levels and buckets are few")]

use super::Monotonic;
use super::chunks::Chunks;
use super::leases::Lease;

/// A hierarchical timing wheel of leases.
///
/// A `BTreeSet` of deadlines would need four times the memory of the links, and a multiple of the
/// time for each lock.
///
/// Each bucket is a doubly linked list, whose links are stored in the leases themselves. Adding or
/// removing a lease changes only its two neighbours, however many leases there are. The lowest
/// level resolves single microseconds, so that a lease is due exactly at its time. In this file, a
/// slot is the index of a lease in its [`Chunks`].
#[derive(Clone, Debug)]
pub(super) struct Wheel {
    /// The time up to which all leases have been processed, in microseconds.
    cursor_us: u64,
    /// The head of the list of leases that were already due when they were added; the newest is the
    /// head. These leases come before all others.
    urgent: u32,
    levels: [Level; LEVELS],
}

/// The buckets of one level. Each bucket of level `n` covers `BUCKETS^n` microseconds.
#[derive(Clone, Copy, Debug)]
struct Level {
    /// One bit for each bucket that holds a lease.
    occupied: u64,
    /// The slot of the first lease in each bucket.
    heads: [u32; BUCKETS],
}

/// The neighbours of a lease in its list.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    /// The slot of the previous lease. The first lease of a list has no previous one, but a
    /// sentinel: `IS_HEAD` with the level and the bucket, or `URGENT_HEAD`.
    previous: u32,
    next: u32,
}

impl Default for Link {
    fn default() -> Self {
        Self { previous: NONE, next: NONE }
    }
}

const BITS: u32 = 6;
const BUCKETS: usize = 1 << BITS;
/// Enough for 570 years in microseconds.
const LEVELS: usize = 9;
const NONE: u32 = u32::MAX;
/// The flag of a sentinel, which is not a slot.
const IS_HEAD: u32 = 1 << 31;
/// The sentinel of the list of urgent leases. No bucket has this number.
const URGENT_HEAD: u32 = IS_HEAD | 1 << 30;

impl Default for Wheel {
    fn default() -> Self {
        let level = Level { occupied: 0, heads: [NONE; BUCKETS] };
        Self { cursor_us: 0, urgent: NONE, levels: [level; LEVELS] }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The lease in this slot is due. It stays in the wheel until it is removed or moved.
    Due(u32),
    /// One lease was moved to a finer level, or to the urgent list.
    Sorted,
    /// No lease is due.
    Idle,
}

impl Wheel {
    pub(super) fn insert(&mut self, leases: &mut Chunks<Lease>, slot: u32) {
        let at_us = leases[slot].attend_at.us();
        let (head, previous) = if at_us <= self.cursor_us {
            (&mut self.urgent, URGENT_HEAD)
        } else {
            let highest_bit = ((at_us ^ self.cursor_us) | 1).ilog2();
            let level = ((highest_bit / BITS) as usize).min(LEVELS - 1);
            let bucket = bucket_of(at_us, level);
            let Level { occupied, heads } = &mut self.levels[level];
            *occupied |= 1 << bucket;
            (&mut heads[bucket], head_sentinel(level, bucket))
        };
        let next = std::mem::replace(head, slot);
        leases[slot].link = Link { previous, next };
        if next != NONE {
            leases[next].link.previous = slot;
        }
    }

    pub(super) fn remove(&mut self, leases: &mut Chunks<Lease>, slot: u32) {
        let Link { previous, next } = std::mem::take(&mut leases[slot].link);
        if next != NONE {
            leases[next].link.previous = previous;
        }
        if previous & IS_HEAD == 0 {
            leases[previous].link.next = next;
            return;
        }
        if previous == URGENT_HEAD {
            self.urgent = next;
            return;
        }
        let number = (previous & !IS_HEAD) as usize;
        let (level, bucket) = (&mut self.levels[number / BUCKETS], number % BUCKETS);
        level.heads[bucket] = next;
        if next == NONE {
            level.occupied &= !(1 << bucket);
        }
    }

    /// Takes one step towards the first lease that is due by `now`.
    pub(super) fn step(&mut self, leases: &mut Chunks<Lease>, now: Monotonic) -> Step {
        if self.urgent != NONE {
            return Step::Due(self.urgent);
        }
        let due = self.first_bucket().filter(|(_, _, starts_us)| *starts_us <= now.us());
        let Some((level, bucket, starts_us)) = due else {
            self.cursor_us = self.cursor_us.max(now.us());
            return Step::Idle;
        };
        let slot = self.levels[level].heads[bucket];
        if level == 0 {
            self.cursor_us = self.cursor_us.max(starts_us);
            return Step::Due(slot);
        }
        self.remove(leases, slot);
        // A lease that is due at the very start of the bucket joins the urgent ones.
        self.cursor_us = self.cursor_us.max(starts_us);
        self.insert(leases, slot);
        Step::Sorted
    }

    /// Returns when to call [`Wheel::step`] next. No lease is due before then.
    pub(super) fn next_step_at(&self) -> Option<Monotonic> {
        if self.urgent != NONE {
            return Some(Monotonic::default());
        }
        self.first_bucket().map(|(_, _, starts_us)| Monotonic::from_us(starts_us))
    }

    /// The earliest occupied bucket: its level, its index, and when it starts.
    /// A bucket that contains the cursor counts as starting at the cursor.
    fn first_bucket(&self) -> Option<(usize, usize, u64)> {
        // An occupied bucket of a coarse level that contains the cursor comes first: its leases
        // have not all been moved to finer levels yet.
        for level in (1..LEVELS).rev() {
            let bucket = bucket_of(self.cursor_us, level);
            if self.levels[level].occupied & 1 << bucket != 0 {
                return Some((level, bucket, self.cursor_us));
            }
        }
        (0..LEVELS).find_map(|level| {
            let from = bucket_of(self.cursor_us, level);
            let occupied_ahead = self.levels[level].occupied >> from << from;
            if occupied_ahead == 0 {
                return None;
            }
            let bucket = occupied_ahead.trailing_zeros() as usize;
            let shift = shift_of(level);
            let cursor_prefix = self.cursor_us >> shift >> BITS << BITS;
            Some((level, bucket, (cursor_prefix | bucket as u64) << shift))
        })
    }
}

const fn bucket_of(at_us: u64, level: usize) -> usize {
    (at_us >> shift_of(level)) as usize % BUCKETS
}

/// Returns the index of the lowest bit of a time that a level distinguishes.
const fn shift_of(level: usize) -> u32 {
    BITS * level as u32
}

const fn head_sentinel(level: usize, bucket: usize) -> u32 {
    IS_HEAD | (level * BUCKETS + bucket) as u32
}
