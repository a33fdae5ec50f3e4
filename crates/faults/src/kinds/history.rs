//! The holds of shared locks and permits, and the violations among them.

use std::fmt;
use std::time::Duration;

use crate::harness::{Grant, Overlap};

/// How a client held a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Alone: a writer, or the holder of a slot of the semaphore.
    Exclusive,
    /// Beside others: a reader, or in a baseline the holder of a permit.
    Shared,
    /// As a reader that was a writer before, with the fence of the writer.
    Downgraded,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    pub mode: Mode,
    pub grant: Grant,
}

/// A fence that must be larger than that of an earlier hold, and is not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SharedDisorder {
    pub(super) earlier: Hold,
    pub(super) later: Hold,
}

/// Returns pairs of holds of one key that overlap, and of which at least one is exclusive.
///
/// Compares each hold only with the earlier writer and the earlier reader that end last.
pub(super) fn intrusions(holds: &[Hold]) -> Vec<Overlap> {
    let (mut last_writer, mut last_reader) = (None::<&Hold>, None::<&Hold>);
    let mut intrusions = Vec::new();
    for hold in in_order(holds) {
        let is_writer = hold.mode == Mode::Exclusive;
        let others = [last_writer, last_reader.filter(|_| is_writer)].into_iter().flatten();
        let beside = others.filter(|other| hold.grant.from < other.grant.to);
        intrusions.extend(beside.map(|other| Overlap(other.grant.clone(), hold.grant.clone())));
        let last = if is_writer { &mut last_writer } else { &mut last_reader };
        if last.is_none_or(|last| last.grant.to < hold.grant.to) {
            *last = Some(hold);
        }
    }
    intrusions
}

/// Returns the largest number of holds at the same time. Skips empty holds.
pub(super) fn most_at_once<'a>(holds: impl Iterator<Item = &'a Hold>) -> usize {
    let holds = holds.filter(|hold| hold.grant.from < hold.grant.to);
    // Of changes at the same moment, ends come first: such holds do not overlap.
    let mut changes: Vec<_> =
        holds.flat_map(|hold| [(hold.grant.from, true), (hold.grant.to, false)]).collect();
    changes.sort_unstable();
    let (mut now, mut most) = (0_usize, 0);
    for (_, begins) in changes {
        now = if begins { now + 1 } else { now - 1 };
        most = most.max(now);
    }
    most
}

/// Returns holds of one key whose fences are out of order.
///
/// A writer's fence must be larger than all earlier fences, and a reader's larger than those of
/// earlier writers. The fences of readers have no order among themselves.
pub(super) fn shared_disorders(holds: &[Hold]) -> Vec<SharedDisorder> {
    let (mut writer, mut reader) = (None::<&Hold>, None::<&Hold>);
    let mut shared_disorders = Vec::new();
    for later in in_order(holds) {
        let is_writer = later.mode == Mode::Exclusive;
        if later.mode == Mode::Downgraded {
            continue;
        }
        let others = [writer, reader.filter(|_| is_writer)].into_iter().flatten();
        let not_below = others.filter(|other| other.grant.fence >= later.grant.fence);
        shared_disorders.extend(
            not_below
                .map(|earlier| SharedDisorder { earlier: earlier.clone(), later: later.clone() }),
        );
        let largest = if is_writer { &mut writer } else { &mut reader };
        if largest.is_none_or(|largest| largest.grant.fence < later.grant.fence) {
            *largest = Some(later);
        }
    }
    shared_disorders
}

/// Returns the number of holds that began at `from` or later, and before `to`.
pub(super) fn count_begun(holds: &[Hold], from: Duration, to: Duration) -> usize {
    holds.iter().filter(|hold| (from..to).contains(&hold.grant.from)).count()
}

fn in_order(holds: &[Hold]) -> Vec<&Hold> {
    let mut sorted: Vec<_> = holds.iter().collect();
    sorted.sort_by_key(|hold| hold.grant.from);
    sorted
}

impl fmt::Display for SharedDisorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let one = |Hold { mode, grant }: &Hold| {
            format!("client {}, {mode:?}, fence {}", grant.client, grant.fence)
        };
        write!(f, "{} came after {}", one(&self.later), one(&self.earlier))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Mode::{Downgraded, Exclusive, Shared};

    /// Returns holds with these modes, times in milliseconds, and fences.
    fn holds(holds: &[(Mode, u64, u64, u64)]) -> Vec<Hold> {
        let hold = |(client, &(mode, from, to, fence)): (u32, &(Mode, u64, u64, u64))| Hold {
            mode,
            grant: Grant {
                key: "k".into(),
                client,
                from: Duration::from_millis(from),
                to: Duration::from_millis(to),
                fence,
            },
        };
        (0..).zip(holds).map(hold).collect()
    }

    #[test]
    fn readers_side_by_side_are_no_intrusion() {
        let of = [(Shared, 0, 10, 1), (Downgraded, 5, 15, 1), (Exclusive, 15, 20, 2)];
        assert_eq!(intrusions(&holds(&of)), []);
        assert_eq!(most_at_once(holds(&of).iter()), 2);
    }

    #[test]
    fn empty_hold_is_not_counted() {
        let of = [(Downgraded, 5, 5, 1), (Shared, 6, 10, 2)];
        assert_eq!(most_at_once(holds(&of).iter()), 1);
    }

    #[test]
    fn writer_beside_any_other_is_an_intrusion() {
        for beside in [Shared, Downgraded, Exclusive] {
            for (one, other) in [((0, 10), (9, 20)), ((9, 20), (0, 10)), ((0, 30), (9, 20))] {
                let of = [(Exclusive, one.0, one.1, 1), (beside, other.0, other.1, 2)];
                assert_eq!(intrusions(&holds(&of)).len(), 1, "{of:?}");
            }
        }
        // The reader that began last has ended, and the earlier reader has not.
        let behind = [(Shared, 0, 30, 1), (Shared, 1, 2, 1), (Exclusive, 10, 20, 2)];
        assert_eq!(intrusions(&holds(&behind)).len(), 1);
    }

    #[test]
    fn fences_of_readers_lie_between_those_of_writers() {
        let right = [
            (Exclusive, 0, 1, 10),
            (Downgraded, 1, 5, 10),
            (Shared, 2, 5, 12),
            (Shared, 3, 5, 11),
            (Exclusive, 6, 7, 13),
        ];
        assert_eq!(shared_disorders(&holds(&right)), []);
        let wrong = [
            [(Exclusive, 0, 1, 10), (Shared, 2, 3, 10)],
            [(Shared, 0, 1, 10), (Exclusive, 2, 3, 10)],
            [(Exclusive, 0, 1, 10), (Exclusive, 2, 3, 9)],
        ];
        for pair in wrong {
            assert_eq!(shared_disorders(&holds(&pair)).len(), 1, "{pair:?}");
        }
    }
}
