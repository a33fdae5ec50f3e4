use std::time::Duration;

use super::{Heard, Majority};

/// The shortest pause: two clients on one machine are closer to each other than a sleep is exact.
const PAUSE_MIN: Duration = Duration::from_millis(1);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_millis(250);
/// How many round trips a node may take before others are asked instead,
const LATE_AFTER_ROUND_TRIPS: u32 = 4;
/// and how long at least: timers are not more exact.
const LATE_AFTER_MIN: Duration = Duration::from_millis(2);
/// How many times as long the nodes' time limit must be: the others need most of it.
const LIMIT_PER_LATE_AFTER: u32 = 4;

/// How one client goes after one lock: what to do first, and what after each move that has not won it.
///
/// Attempts that fail are not repeated in a loop. A client that was refused waits on one node, the first in the key's
/// [order](super::order) that refused it; there it is served in its turn. Random pauses are only for ties and for nodes
/// that do not answer.
#[derive(Clone, Debug)]
pub struct Pursuit {
    order: Vec<usize>,
    /// Whether the node that decides has granted before, and others have refused.
    tied: bool,
    /// Nodes that did not answer the last time.
    silent: Vec<usize>,
    pause: Duration,
    late_after: Duration,
    after_pause: Option<Move>,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    /// One attempt on all nodes.
    AskAll,
    /// Wait on this node, and when it grants take the others, as
    /// [after a wait](super::Acquisition::after_wait). Nothing is held meanwhile.
    WaitOn {
        /// The index of the node.
        node: usize,
    },
    /// Do nothing for a random time between half of this and all of it; then call [`Pursuit::resume`].
    Pause {
        /// The longest time.
        at_most: Duration,
    },
}

/// How a move ended that has not won the lock. Whatever it was granted has been released, and what is to be
/// [heard](Pursuit::to_hear) has been heard.
#[derive(Clone, Copy, Debug)]
pub enum Ended<'a> {
    /// All nodes were asked.
    Lost {
        /// What was heard of each, by index.
        heard: &'a [Heard],
    },
    /// This node granted after a wait, and the others were asked for the lock.
    LostAfterWait {
        /// The index of the node.
        node: usize,
        /// What was heard of each, by index.
        heard: &'a [Heard],
    },
    /// The node on which the client waited let it go without the lock, or did not let it wait.
    NotWaited,
    /// The node on which the client waited is gone.
    NodeGone,
}

impl Pursuit {
    /// How long a node that [was late](Self::late_after) is remembered.
    pub const LATE_FOR: Duration = Duration::from_secs(1);

    /// A pursuit over nodes in this order, of which those that are known to be away come last. A pause begins at about
    /// a `round_trip`.
    pub fn new(order: Vec<usize>, round_trip: Duration) -> Self {
        let pause = round_trip.clamp(PAUSE_MIN, PAUSE_MAX);
        let late_after = round_trip.saturating_mul(LATE_AFTER_ROUND_TRIPS).max(LATE_AFTER_MIN);
        Self { order, tied: false, silent: Vec::new(), pause, late_after, after_pause: None }
    }

    /// The first move. Who had to wait for this key the last time begins at the queue node: the key is contended, and
    /// an attempt on all nodes would most likely be in vain.
    pub fn first(&self, contended: bool) -> Move {
        match self.order.first() {
            Some(&node) if contended => Move::WaitOn { node },
            _ => Move::AskAll,
        }
    }

    /// To which nodes the attempt of a move [yields](super::Acquisition::that_yields_to). One on all nodes yields to the
    /// queue node, or newcomers would starve those who wait there. One that comes after a wait yields to all nodes before
    /// that: whoever holds an earlier node never waits for one who holds a later.
    pub fn yields_to(&self, a_move: Move) -> &[usize] {
        match a_move {
            Move::WaitOn { node } => self.before(node),
            Move::AskAll | Move::Pause { .. } => &self.order[..self.order.len().min(1)],
        }
    }

    /// Without whose answers an attempt that comes after a wait on this node [is not won](super::Acquisition::that_awaits):
    /// those to which it yields, but for those that did not answer the last time.
    pub fn awaits(&self, node: usize) -> Vec<usize> {
        self.before(node).iter().copied().filter(|node| !self.silent.contains(node)).collect()
    }

    /// Which nodes an attempt that comes after a wait on this node [asks](super::Acquisition::that_asks) at first. Who was
    /// granted by the queue node asks no more than it takes: whoever else comes is queued there, and asks the same. Nodes that
    /// were late a moment ago come last. Who waited elsewhere asks all; so does who has not the time to ask others after those.
    pub fn asks(
        &self,
        node: usize,
        majority: Majority,
        node_limit: Duration,
        was_late: impl Fn(usize) -> bool,
    ) -> Vec<usize> {
        let mut others: Vec<_> = self.order.iter().copied().filter(|&other| other != node).collect();
        let has_time = self.late_after.saturating_mul(LIMIT_PER_LATE_AFTER) <= node_limit;
        if has_time && self.before(node).is_empty() {
            others.sort_by_key(|&other| was_late(other));
            others.truncate(majority.size() - 1);
        }
        others
    }

    /// When those are late, and the others are to be [asked as well](super::Acquisition::hurry).
    pub fn late_after(&self) -> Duration {
        self.late_after
    }

    /// Of an attempt that was lost: which node's answer is to be heard first, for the nodes' time limit at most. It comes
    /// before those that have answered, and says where to wait.
    pub fn to_hear(&self, heard: &[Heard]) -> Option<usize> {
        let first = self.order.iter().copied().find(|&node| heard[node] != Heard::Silence)?;
        (heard[first] == Heard::Nothing && heard.contains(&Heard::Refusal)).then_some(first)
    }

    /// The move after one that has not won the lock.
    pub fn next(&mut self, ended: Ended<'_>) -> Move {
        let (heard, in_vain) = match ended {
            Ended::Lost { heard } => (heard, false),
            // Whoever refused to the end has a holder, unless it was lost to one who has an earlier node.
            Ended::LostAfterWait { node, heard } => {
                (heard, self.before(node).iter().all(|&node| heard[node] != Heard::Refusal))
            }
            Ended::NotWaited | Ended::NodeGone => return self.pause_before(Move::AskAll),
        };
        let first = |is: fn(Heard) -> bool| self.order.iter().copied().find(|&node| is(heard[node]));
        // The first that answers at all: all clients that reach the same nodes agree on it.
        let decider = first(|heard| matches!(heard, Heard::Grant | Heard::Refusal));
        let holder = first(|heard| heard == Heard::Refusal);
        self.silent = (0..heard.len()).filter(|&node| heard[node] == Heard::Silence).collect();
        let (Some(decider), Some(holder)) = (decider, holder) else {
            return self.pause_before(Move::AskAll);
        };
        if decider == holder {
            self.tied = false;
            Move::WaitOn { node: decider }
        } else if in_vain || self.tied {
            // Whoever holds the lock has not reached the decider, and its end will not be heard of there.
            self.pause_before(Move::WaitOn { node: holder })
        } else {
            // Two go after the lock at the same time, most likely: back to where their order is decided.
            self.tied = true;
            self.pause_before(Move::WaitOn { node: decider })
        }
    }

    /// The move after a pause.
    pub fn resume(&mut self) -> Move {
        self.after_pause.take().unwrap_or(Move::AskAll)
    }

    /// The nodes before this one.
    fn before(&self, node: usize) -> &[usize] {
        let place = self.order.iter().position(|&other| other == node).unwrap_or(0);
        &self.order[..place]
    }

    fn pause_before(&mut self, next: Move) -> Move {
        self.after_pause = Some(next);
        let at_most = self.pause;
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        Move::Pause { at_most }
    }
}
