use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context as _, Error, Result};

/// A lock that was reported to a client while it was certainly held.
///
/// The instant is on the one monotonic clock of the machine that all clients run on. Displayed, it is a line that can be
/// read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Which lock.
    pub key: usize,
    /// When the client had it.
    pub reported: Duration,
    /// Its fence.
    pub fence: u64,
}

/// A fence that is not larger than that of the lock that was reported before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disorder {
    /// The lock before.
    pub earlier: Grant,
    /// The lock whose fence is too small.
    pub later: Grant,
}

/// What breaks the order. As each of them was held when it was reported, they were held one after the other, in the
/// order in which they were reported. So each fence is compared with the largest before it.
pub(super) fn disorders(grants: &[Grant]) -> Vec<Disorder> {
    let mut disorders = Vec::new();
    for of_one_key in by_key(grants) {
        let mut largest: Option<Grant> = None;
        for later in of_one_key {
            match largest {
                Some(earlier) if later.fence <= earlier.fence => disorders.push(Disorder { earlier, later }),
                _ => largest = Some(later),
            }
        }
    }
    disorders
}

/// The longest time without a grant of any key, from the beginning of the run to its end.
pub(super) fn longest_gap(grants: &[Grant], began: Duration, ended: Duration) -> Duration {
    let mut reported: Vec<_> = grants.iter().map(|grant| grant.reported).collect();
    reported.extend([began, ended]);
    reported.sort_unstable();
    reported.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).max().unwrap_or_default()
}

/// The grants of each key, in the order in which they were reported.
fn by_key(grants: &[Grant]) -> Vec<Vec<Grant>> {
    let mut sorted = grants.to_vec();
    sorted.sort_unstable_by_key(|grant| (grant.key, grant.reported));
    sorted.chunk_by(|one, other| one.key == other.key).map(<[Grant]>::to_vec).collect()
}

impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.key, self.reported.as_nanos(), self.fence)
    }
}

impl FromStr for Grant {
    type Err = Error;

    fn from_str(line: &str) -> Result<Self> {
        let mut words = line.split(' ');
        let mut number = || words.next().and_then(|word| word.parse::<u64>().ok()).context("three numbers");
        let (key, ns, fence) = (number()?, number()?, number()?);
        Ok(Self { key: usize::try_from(key)?, reported: Duration::from_nanos(ns), fence })
    }
}

impl fmt::Display for Disorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { earlier, later } = self;
        let after = later.reported.saturating_sub(earlier.reported).as_micros();
        let (key, before, fence) = (later.key, earlier.fence, later.fence);
        write!(f, "lock {key}: fence {fence}, {after} µs after fence {before}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Key, time and fence of each.
    fn found(grants: &[(usize, u64, u64)]) -> Vec<(u64, u64)> {
        let grant = |&(key, ms, fence)| Grant { key, reported: Duration::from_millis(ms), fence };
        let grants: Vec<_> = grants.iter().map(grant).collect();
        disorders(&grants).iter().map(|disorder| (disorder.earlier.fence, disorder.later.fence)).collect()
    }

    #[test]
    fn fences_that_grow_are_in_order_whoever_tells_of_them_first() {
        assert_eq!(found(&[(0, 2, 20), (0, 1, 10), (0, 3, 21)]), []);
        assert_eq!(found(&[(0, 1, 10), (1, 2, 10), (0, 3, 11), (1, 4, 11)]), [], "each key has its own");
    }

    #[test]
    fn a_fence_that_comes_twice_or_falls_is_found() {
        assert_eq!(found(&[(0, 1, 10), (0, 2, 10)]), [(10, 10)]);
        assert_eq!(found(&[(0, 1, 10), (0, 2, 30), (0, 3, 20), (0, 4, 30)]), [(30, 20), (30, 30)]);
    }

    #[test]
    fn a_grant_that_was_told_is_read_again() {
        let grant = Grant { key: 1, reported: Duration::from_nanos(1_234_567_890_123), fence: 42 };
        assert_eq!(grant.to_string().parse::<Grant>().ok(), Some(grant));
        assert!("1 2".parse::<Grant>().is_err());
    }
}
