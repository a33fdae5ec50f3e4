use std::fmt;
use std::str::FromStr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Error, Result};
use rustix::time::{ClockId, clock_gettime};

/// Returns the time by `CLOCK_MONOTONIC`, which all processes of this machine share.
pub fn now() -> Duration {
    let time = clock_gettime(ClockId::Monotonic);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// A lock as its holder saw it, by the clock of [`now`].
///
/// `Display` writes a line that `FromStr` reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    pub key: String,
    /// A number that tells clients apart.
    pub client: u32,
    /// When the client knew that it held the lock.
    pub from: Duration,
    /// When the client began to release the lock, or the lock's validity ended. Equal to `from` in
    /// runs that check only the order of fences.
    pub to: Duration,
    pub fence: u64,
}

/// Two clients that held the same lock at the same time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overlap(pub Grant, pub Grant);

/// A fence that is not larger than that of an earlier grant of the same lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disorder {
    pub earlier: Grant,
    pub later: Grant,
}

/// The grants of a run, from all of its clients.
#[derive(Debug, Default)]
pub struct History(Mutex<Vec<Grant>>);

impl History {
    pub fn add(&self, grant: Grant) {
        self.lock().push(grant);
    }

    pub fn grants(&self) -> Vec<Grant> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Grant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns all pairs of grants of one lock that overlap.
pub fn overlaps(grants: &[Grant]) -> Vec<Overlap> {
    let mut overlaps = Vec::new();
    for of_one_key in by_key(grants) {
        for (index, earlier) in of_one_key.iter().enumerate() {
            let later = of_one_key[index + 1..].iter().take_while(|later| later.from < earlier.to);
            overlaps.extend(later.map(|&later| Overlap((*earlier).clone(), later.clone())));
        }
    }
    overlaps
}

/// Returns all grants whose fence is not larger than the largest earlier fence of the lock.
///
/// The client holds the lock at `from`, so the order of `from` is the order of holders.
pub fn disorders(grants: &[Grant]) -> Vec<Disorder> {
    let mut disorders = Vec::new();
    for of_one_key in by_key(grants) {
        let mut largest: Option<&Grant> = None;
        for later in of_one_key {
            match largest {
                Some(earlier) if later.fence <= earlier.fence => {
                    disorders.push(Disorder { earlier: earlier.clone(), later: later.clone() });
                }
                _ => largest = Some(later),
            }
        }
    }
    disorders
}

/// Returns the longest time within a run in which no grant began.
pub fn longest_gap(grants: &[Grant], began: Duration, ended: Duration) -> Duration {
    let during = |from: &Duration| (began..=ended).contains(from);
    let mut moments: Vec<_> = grants.iter().map(|grant| grant.from).filter(during).collect();
    moments.extend([began, ended]);
    moments.sort_unstable();
    moments.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).max().unwrap_or_default()
}

/// Returns the grants of each lock, in the order of `from`.
fn by_key(grants: &[Grant]) -> Vec<Vec<&Grant>> {
    let mut sorted: Vec<_> = grants.iter().collect();
    sorted.sort_by_key(|grant| (&grant.key, grant.from));
    sorted.chunk_by(|one, other| one.key == other.key).map(<[&Grant]>::to_vec).collect()
}

impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, client, from, to, fence } = self;
        write!(f, "{} {} {fence} {client} {key}", from.as_nanos(), to.as_nanos())
    }
}

impl FromStr for Grant {
    type Err = Error;

    fn from_str(line: &str) -> Result<Self> {
        let mut words = line.splitn(5, ' ');
        let mut number = || {
            words
                .next()
                .and_then(|word| word.parse::<u64>().ok())
                .context("a grant begins with four numbers")
        };
        let (from_ns, to_ns, fence, client) = (number()?, number()?, number()?, number()?);
        let [from, to] = [from_ns, to_ns].map(Duration::from_nanos);
        let key = words.next().context("a grant ends with a key")?.to_owned();
        Ok(Self { key, client: u32::try_from(client)?, from, to, fence })
    }
}

impl fmt::Display for Overlap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let one = |Grant { key, client, from, to, fence }: &Grant| {
            let (from, to) = (from.as_micros(), to.as_micros());
            format!("client {client} held {key} from {from} to {to} µs (fence {fence})")
        };
        write!(f, "{}; {}", one(&self.0), one(&self.1))
    }
}

impl fmt::Display for Disorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { earlier, later } = self;
        let after = later.from.saturating_sub(earlier.from).as_micros();
        let (key, before, fence) = (&later.key, earlier.fence, later.fence);
        write!(f, "{key}: fence {fence}, {after} µs after fence {before}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns grants with these keys, times in milliseconds, and fences.
    fn grants(grants: &[(&str, u64, u64, u64)]) -> Vec<Grant> {
        let grant = |(client, &(key, from, to, fence)): (u32, &(&str, u64, u64, u64))| Grant {
            key: key.into(),
            client,
            from: Duration::from_millis(from),
            to: Duration::from_millis(to),
            fence,
        };
        (0..).zip(grants).map(grant).collect()
    }

    fn fences_in_disorder(of: &[(&str, u64, u64, u64)]) -> Vec<(u64, u64)> {
        disorders(&grants(of))
            .iter()
            .map(|found| (found.earlier.fence, found.later.fence))
            .collect()
    }

    #[test]
    fn overlap_is_found_in_any_order() {
        for (one, other) in [((0, 10), (9, 20)), ((9, 20), (0, 10)), ((0, 30), (9, 20))] {
            let found = overlaps(&grants(&[("a", one.0, one.1, 1), ("a", other.0, other.1, 1)]));
            assert_eq!(found.len(), 1, "{one:?} {other:?}");
        }
    }

    #[test]
    fn successive_holders_and_different_locks_do_not_overlap() {
        assert_eq!(overlaps(&grants(&[("a", 0, 10, 1), ("a", 10, 20, 1), ("b", 5, 15, 1)])), []);
    }

    #[test]
    fn longest_gap_may_be_the_last_one() {
        let grants = grants(&[("a", 0, 10, 1)]);
        assert_eq!(
            longest_gap(&grants, Duration::ZERO, Duration::from_secs(5)),
            Duration::from_secs(5)
        );
    }

    #[test]
    fn longest_gap_lies_within_the_run() {
        let grants =
            grants(&[("a", 0, 1, 1), ("a", 50, 51, 2), ("a", 54, 55, 3), ("a", 99, 99, 4)]);
        let [began, ended] = [48, 58].map(Duration::from_millis);
        assert_eq!(longest_gap(&grants, began, ended), Duration::from_millis(4));
    }

    #[test]
    fn growing_fences_are_in_order_whatever_the_order_of_reports() {
        assert_eq!(fences_in_disorder(&[("a", 2, 2, 20), ("a", 1, 1, 10), ("a", 3, 3, 21)]), []);
        let of_two_keys = [("a", 1, 1, 10), ("b", 2, 2, 10), ("a", 3, 3, 11), ("b", 4, 4, 11)];
        assert_eq!(fences_in_disorder(&of_two_keys), [], "each key has fences of its own");
    }

    #[test]
    fn fence_that_comes_twice_or_falls_is_found() {
        assert_eq!(fences_in_disorder(&[("a", 1, 1, 10), ("a", 2, 2, 10)]), [(10, 10)]);
        let falling = [("a", 1, 1, 10), ("a", 2, 2, 30), ("a", 3, 3, 20), ("a", 4, 4, 30)];
        assert_eq!(fences_in_disorder(&falling), [(30, 20), (30, 30)]);
    }

    #[test]
    fn displayed_grant_is_parsed_again() {
        let at = Duration::from_nanos(1_234_567_890_123);
        let grant = Grant { key: "lock 1".into(), client: 7, from: at, to: at * 2, fence: 42 };
        assert_eq!(grant.to_string().parse::<Grant>().ok(), Some(grant));
        assert!("1 2".parse::<Grant>().is_err());
    }
}
