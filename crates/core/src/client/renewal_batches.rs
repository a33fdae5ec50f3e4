use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::Duration;

use crate::quorum::Moment;

/// The schedule of a client's extensions. Locks that are due at about the same time share a batch.
#[derive(Debug, Default)]
pub struct RenewalBatches {
    /// When each lock is due, and how much earlier it may be extended.
    due: HashMap<u64, (Moment, Duration)>,
    /// Locks by due time. An entry that no longer matches `due` is skipped.
    order: BinaryHeap<Reverse<((Duration, Duration), u64)>>,
}

impl RenewalBatches {
    /// Schedules the extension of a lock at `at`, or up to `window` earlier if another lock is due.
    pub fn schedule(&mut self, lock: u64, at: Moment, window: Duration) {
        self.due.insert(lock, (at, window));
        self.order.push(Reverse(((at.raw, at.boot), lock)));
    }

    /// Removes a lock from the schedule.
    pub fn forget(&mut self, lock: u64) {
        self.due.remove(&lock);
        if self.due.is_empty() {
            self.order.clear();
        }
    }

    /// When the next lock is due.
    pub fn next_due(&mut self) -> Option<Moment> {
        while let Some(Reverse((at, lock))) = self.order.peek() {
            match self.due.get(lock) {
                Some((due, _)) if (due.raw, due.boot) == *at => return Some(*due),
                _ => self.order.pop(),
            };
        }
        None
    }

    /// Removes and returns the locks that are due now. If at least one is, also the next ones whose
    /// windows have begun.
    pub fn take_due(&mut self, now: Moment) -> Vec<u64> {
        let mut due = Vec::new();
        while let Some(at) = self.next_due() {
            let Some(&Reverse((_, lock))) = self.order.peek() else { break };
            let window = self.due.get(&lock).map(|(_, window)| *window).unwrap_or_default();
            let may_be_early = !due.is_empty() && now.plus(window).has_reached(at);
            if !now.has_reached(at) && !may_be_early {
                break;
            }
            self.order.pop();
            self.due.remove(&lock);
            due.push(lock);
        }
        due
    }
}
