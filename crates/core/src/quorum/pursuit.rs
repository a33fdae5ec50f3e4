use std::time::Duration;

use super::Heard;

/// The shortest pause: two clients on one machine are closer to each other than a sleep is exact.
const PAUSE_MIN: Duration = Duration::from_millis(1);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_millis(250);

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
    pause: Duration,
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
    /// Wait for what this node answers to the attempt that was lost, for the nodes' time limit at most; then say so with
    /// [`Ended::Lost`] once more. It comes before those that have answered, and what it says decides where to wait.
    Hear {
        /// The index of the node.
        node: usize,
    },
    /// Do nothing for a random time between half of this and all of it; then call [`Pursuit::resume`].
    Pause {
        /// The longest time.
        at_most: Duration,
    },
}

/// How a move ended that has not won the lock. Whatever it was granted has been released.
#[derive(Clone, Copy, Debug)]
pub enum Ended<'a> {
    /// Nodes were asked: all of them.
    Lost {
        /// What was heard of each, by index.
        heard: &'a [Heard],
    },
    /// One node granted after a wait there. The others were asked again and again for their time limit, or one to which the
    /// attempt yielded has refused.
    LostAfterWait {
        /// What was heard of each, by index.
        heard: &'a [Heard],
    },
    /// The node on which the client waited let it go without the lock, or did not let it wait.
    NotWaited,
    /// The node on which the client waited is gone.
    NodeGone,
}

impl Pursuit {
    /// A pursuit over nodes in this order, of which those that are known to be away come last. A pause begins at about
    /// a `round_trip`.
    pub fn new(order: Vec<usize>, round_trip: Duration) -> Self {
        Self { order, tied: false, pause: round_trip.clamp(PAUSE_MIN, PAUSE_MAX), after_pause: None }
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
        let place = match a_move {
            Move::WaitOn { node } => self.order.iter().position(|&other| other == node).unwrap_or(0),
            Move::AskAll | Move::Hear { .. } | Move::Pause { .. } => self.order.len().min(1),
        };
        &self.order[..place]
    }

    /// The move after one that has not won the lock.
    pub fn next(&mut self, ended: Ended<'_>) -> Move {
        let (heard, is_tie) = match ended {
            Ended::Lost { heard } => (heard, !self.tied),
            // Whoever refused for so long has a holder.
            Ended::LostAfterWait { heard } => (heard, false),
            Ended::NotWaited | Ended::NodeGone => return self.pause_before(Move::AskAll),
        };
        // The first that answers at all: all clients that reach the same nodes agree on it.
        let decider = self.order.iter().copied().find(|&node| heard[node] != Heard::Silence);
        let holder = self.order.iter().copied().find(|&node| heard[node] == Heard::Refusal);
        let (Some(decider), Some(holder)) = (decider, holder) else {
            return self.pause_before(Move::AskAll);
        };
        match heard[decider] {
            Heard::Nothing => Move::Hear { node: decider },
            Heard::Refusal => {
                self.tied = false;
                Move::WaitOn { node: decider }
            }
            // Two go after the lock at the same time, most likely: back to where their order is decided.
            Heard::Grant if is_tie => {
                self.tied = true;
                self.pause_before(Move::WaitOn { node: decider })
            }
            // Whoever holds the lock has not reached that node, and its end will not be heard of there.
            Heard::Grant | Heard::Silence => self.pause_before(Move::WaitOn { node: holder }),
        }
    }

    /// The move after a pause.
    pub fn resume(&mut self) -> Move {
        self.after_pause.take().unwrap_or(Move::AskAll)
    }

    fn pause_before(&mut self, next: Move) -> Move {
        self.after_pause = Some(next);
        let at_most = self.pause;
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        Move::Pause { at_most }
    }
}
