use std::ops::RangeInclusive;
use std::time::Duration;

use super::Rule;

/// Who goes after the one key that there is.
#[derive(Clone, Debug)]
pub struct Scene {
    /// What the random delays and times come from.
    pub seed: u64,
    /// For how long it is played.
    pub lasts: Duration,
    /// How many nodes there are.
    pub nodes: usize,
    /// How many clients there are, each a process of its own that takes the lock again and again.
    pub clients: usize,
    /// How many of them, the first, cannot reach the key's queue node.
    pub cut_off: usize,
    /// Within which time they begin, in microseconds.
    pub begin_within_us: u64,
    /// How much longer a message to or from the queue node takes, in microseconds.
    pub queue_node_farther_us: u64,
    /// How long a lock is held, in microseconds.
    pub hold_us: RangeInclusive<u64>,
    /// How long after that a client wants it again, in microseconds.
    pub rest_us: RangeInclusive<u64>,
    /// How many of them, the first, do not remember that they had to wait: each time it is a process that has just begun.
    pub newcomers: usize,
    /// The rule that is left out.
    pub without: Option<Rule>,
}

impl Scene {
    /// The same scene without a rule.
    #[must_use]
    pub fn without(&self, rule: Rule) -> Self {
        Self { without: Some(rule), ..self.clone() }
    }

    pub(super) fn leaves_out(&self, rule: Rule) -> bool {
        self.without == Some(rule)
    }
}
