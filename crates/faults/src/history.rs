//! Which client held which lock when, and the violations in it.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// Returns the time since the first call.
pub fn now() -> Duration {
    static FIRST_CALL: LazyLock<Instant> = LazyLock::new(Instant::now);
    FIRST_CALL.elapsed()
}

/// How a client held a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Alone: a writer, or the holder of a slot of a semaphore.
    Exclusive,
    /// Beside others: a reader, or in a baseline the holder of a permit.
    Shared,
    /// As a reader that was a writer before, with the fence of the writer.
    Downgraded,
}

/// A lock as its holder saw it, by the clock of [`now`]. `from` is before `to`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    pub key: String,
    pub mode: Mode,
    /// A number that tells clients apart.
    pub client: u32,
    /// When the client knew that it held the lock.
    pub from: Duration,
    /// When the client began to release the lock, or the lock's validity ended.
    pub to: Duration,
    pub fence: u64,
}

/// Returns the holds of a key that overlap an earlier one, unless both are shared. Each is compared
/// with the earlier exclusive hold and the earlier shared hold that end last.
pub fn overlaps(history: &[Hold]) -> Vec<String> {
    conflicts(history.iter().collect(), |hold| hold.to, |earlier, later| later.from < earlier.to)
}

/// Returns the holds of a key whose fences are out of order.
///
/// The fence of an exclusive hold must be larger than all earlier fences, and that of a shared hold
/// larger than those of earlier exclusive holds. Shared holds have no order among themselves. A
/// client holds the lock at `from`, so the order of `from` is the order of holders.
pub fn disorders(history: &[Hold]) -> Vec<String> {
    conflicts(
        history.iter().filter(|hold| hold.mode != Mode::Downgraded).collect(),
        |hold| hold.fence,
        |earlier, later| later.fence <= earlier.fence,
    )
}

/// Compares each hold with the earlier exclusive hold of the same key that is largest by `rank`,
/// and an exclusive hold also with such a shared hold. Describes the pairs that conflict.
fn conflicts<R: Ord>(
    mut holds: Vec<&Hold>,
    rank: impl Fn(&Hold) -> R,
    conflict: impl Fn(&Hold, &Hold) -> bool,
) -> Vec<String> {
    holds.sort_by_key(|hold| (&hold.key, hold.from));
    let mut found = Vec::new();
    for of_one_key in holds.chunk_by(|one, other| one.key == other.key) {
        let (mut exclusive, mut shared) = (None::<&Hold>, None::<&Hold>);
        for &later in of_one_key {
            let is_exclusive = later.mode == Mode::Exclusive;
            let earlier = [exclusive, shared.filter(|_| is_exclusive)].into_iter().flatten();
            let conflicting = earlier.filter(|earlier| conflict(earlier, later));
            found.extend(
                conflicting.map(|earlier| format!("{}; {}", described(earlier), described(later))),
            );
            let largest = if is_exclusive { &mut exclusive } else { &mut shared };
            if largest.is_none_or(|largest| rank(largest) < rank(later)) {
                *largest = Some(later);
            }
        }
    }
    found
}

fn described(Hold { key, mode, client, from, to, fence }: &Hold) -> String {
    let (from, to) = (from.as_micros(), to.as_micros());
    format!("client {client} held {key} ({mode:?}) from {from} to {to} µs with fence {fence}")
}

/// Returns the largest number of holds at the same time.
pub fn most_at_once<'a>(holds: impl Iterator<Item = &'a Hold>) -> usize {
    // Of changes at the same moment, ends come first: such holds do not overlap.
    let mut changes: Vec<_> =
        holds.flat_map(|hold| [(hold.from, true), (hold.to, false)]).collect();
    changes.sort_unstable();
    let (mut now, mut most) = (0_usize, 0);
    for (_, begins) in changes {
        now = if begins { now + 1 } else { now - 1 };
        most = most.max(now);
    }
    most
}

/// Returns the longest time within a run in which no hold began.
pub fn longest_gap(holds: &[Hold], began: Duration, ended: Duration) -> Duration {
    let moments = holds.iter().map(|hold| hold.from);
    let mut moments: Vec<_> = moments.filter(|from| (began..=ended).contains(from)).collect();
    moments.extend([began, ended]);
    moments.sort_unstable();
    moments.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).max().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use Mode::{Downgraded, Exclusive, Shared};

    /// Returns holds with these modes, times in milliseconds, and fences.
    fn holds(of: &[(&str, Mode, u64, u64, u64)]) -> Vec<Hold> {
        let hold = |&(key, mode, from, to, fence): &(&str, Mode, u64, u64, u64)| {
            let [from, to] = [from, to].map(Duration::from_millis);
            Hold { key: key.into(), mode, client: 1, from, to, fence }
        };
        of.iter().map(hold).collect()
    }

    #[test]
    fn exclusive_hold_beside_any_other_is_an_overlap() {
        for beside in [Shared, Downgraded, Exclusive] {
            for (one, other) in [((0, 10), (9, 20)), ((9, 20), (0, 10)), ((0, 30), (9, 20))] {
                let of = [("a", Exclusive, one.0, one.1, 1), ("a", beside, other.0, other.1, 2)];
                assert_eq!(overlaps(&holds(&of)).len(), 1, "{of:?}");
            }
        }
        // The reader that began last has ended, and the earlier reader has not.
        let of = [("a", Shared, 0, 30, 1), ("a", Shared, 1, 2, 1), ("a", Exclusive, 10, 20, 2)];
        assert_eq!(overlaps(&holds(&of)).len(), 1);
    }

    #[test]
    fn successive_holds_and_readers_and_different_keys_do_not_overlap() {
        let of = [
            ("a", Exclusive, 0, 5, 1),
            ("a", Shared, 5, 10, 1),
            ("a", Downgraded, 7, 15, 1),
            ("a", Exclusive, 15, 20, 2),
            ("b", Exclusive, 3, 18, 1),
        ];
        assert_eq!(overlaps(&holds(&of)), [""; 0]);
        assert_eq!(most_at_once(holds(&of[..4]).iter()), 2);
    }

    #[test]
    fn growing_fences_are_in_order_whatever_the_order_of_reports() {
        let of = [
            ("a", Downgraded, 1, 5, 10),
            ("a", Shared, 3, 5, 11),
            ("a", Shared, 2, 5, 12),
            ("a", Exclusive, 6, 7, 13),
            ("a", Exclusive, 0, 1, 10),
            ("b", Exclusive, 2, 2, 10),
        ];
        assert_eq!(disorders(&holds(&of)), [""; 0]);
    }

    #[test]
    fn fence_that_comes_twice_or_falls_is_found() {
        for of in [
            [("a", Exclusive, 0, 1, 10), ("a", Shared, 2, 3, 10)],
            [("a", Shared, 0, 1, 10), ("a", Exclusive, 2, 3, 10)],
            [("a", Exclusive, 0, 1, 10), ("a", Exclusive, 2, 3, 9)],
        ] {
            assert_eq!(disorders(&holds(&of)).len(), 1, "{of:?}");
        }
        let falling = [(1, 10), (2, 30), (3, 20), (4, 30)];
        let falling = falling.map(|(at, fence)| ("a", Exclusive, at, at, fence));
        assert_eq!(disorders(&holds(&falling)).len(), 2, "each is compared with the largest");
    }

    #[test]
    fn longest_gap_lies_within_the_run_and_may_be_the_last_one() {
        let at = |times: &[u64]| {
            holds(&times.iter().map(|&at| ("a", Exclusive, at, at, at)).collect::<Vec<_>>())
        };
        let ms = Duration::from_millis;
        assert_eq!(longest_gap(&at(&[0, 50, 54, 99]), ms(48), ms(58)), ms(4));
        assert_eq!(longest_gap(&at(&[0]), ms(0), ms(5000)), ms(5000));
    }
}
