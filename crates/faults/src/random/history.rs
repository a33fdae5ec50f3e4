use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A time in which a client believed that it held a lock: by the one monotonic clock of the machine that all of them
/// run on, and never longer than the lock itself said.
#[derive(Clone, Debug)]
pub struct Interval {
    /// The lock.
    pub key: String,
    /// Which client.
    pub client: usize,
    /// Its fence, to find it in what the masters say.
    pub fence: u64,
    /// When it had been granted, since the run began.
    pub from: Duration,
    /// When its holder began to give it back, or could not be certain any more, whichever was first.
    pub to: Duration,
}

/// Two clients believed at the same time that they held the same lock.
#[derive(Clone, Debug)]
pub struct Overlap(pub Interval, pub Interval);

/// All intervals of a run.
pub(super) struct History {
    began: Instant,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    intervals: Vec<Interval>,
    overlaps: Vec<Overlap>,
    last_grant: Duration,
    longest_gap: Duration,
}

impl History {
    pub(super) fn new() -> Self {
        Self { began: Instant::now(), inner: Mutex::default() }
    }

    /// A lock has been granted now.
    pub(super) fn grant(&self) {
        self.inner().end_gap(self.began.elapsed());
    }

    /// A client has held a lock.
    pub(super) fn held(&self, key: &str, client: usize, fence: u64, from: Instant, to: Instant) {
        let (from, to) = (from.duration_since(self.began), to.duration_since(self.began));
        self.inner().add(Interval { key: key.into(), client, fence, from, to });
    }

    pub(super) fn has_overlap(&self) -> bool {
        !self.inner().overlaps.is_empty()
    }

    pub(super) fn overlaps(&self) -> Vec<Overlap> {
        self.inner().overlaps.clone()
    }

    /// The longest time without a grant, the one that lasts until now included.
    pub(super) fn longest_gap(&self, now: Instant) -> Duration {
        let mut inner = self.inner();
        inner.end_gap(now.duration_since(self.began));
        inner.longest_gap
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn end_gap(&mut self, now: Duration) {
        self.longest_gap = self.longest_gap.max(now.saturating_sub(self.last_grant));
        self.last_grant = self.last_grant.max(now);
    }

    fn add(&mut self, new: Interval) {
        let overlapping = self.intervals.iter().filter(|old| old.overlaps(&new));
        self.overlaps.extend(overlapping.map(|old| Overlap(old.clone(), new.clone())));
        self.intervals.push(new);
    }
}

impl Interval {
    fn overlaps(&self, other: &Self) -> bool {
        self.key == other.key && self.from < other.to && other.from < self.to
    }
}

impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, client, fence, from, to } = self;
        let (from, to) = (from.as_micros(), to.as_micros());
        write!(f, "client {client} held {key} from {from} to {to} µs (fence {fence})")
    }
}

impl fmt::Display for Overlap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.0, self.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(intervals: &[(&str, u64, u64)]) -> History {
        let history = History::new();
        let at = |ms| history.began + Duration::from_millis(ms);
        for (client, &(key, from, to)) in intervals.iter().enumerate() {
            history.held(key, client, 1, at(from), at(to));
        }
        history
    }

    #[test]
    fn two_at_once_are_found_in_any_order() {
        for intervals in
            [[("a", 0, 10), ("a", 9, 20)], [("a", 9, 20), ("a", 0, 10)], [("a", 0, 30), ("a", 9, 20)]]
        {
            let history = history(&intervals);
            assert!(history.has_overlap(), "{intervals:?}");
            assert_eq!(history.overlaps().len(), 1);
        }
    }

    #[test]
    fn one_after_the_other_and_different_locks_are_no_overlap() {
        assert!(!history(&[("a", 0, 10), ("a", 10, 20), ("b", 5, 15)]).has_overlap());
    }

    #[test]
    fn the_longest_gap_may_be_the_one_that_lasts() {
        let history = history(&[]);
        history.grant();
        assert!(history.longest_gap(history.began + Duration::from_secs(5)) > Duration::from_secs(4));
    }
}
