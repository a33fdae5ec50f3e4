//! Rules of a client that a simulator breaks on purpose, to see that its checkers notice.
//!
//! The code that decides by a rule asks [`is_broken`]. Without the feature `mutants`, the answer is
//! constant. With it, a rule is broken only in a thread that calls [`break_rule`], because a build
//! of the whole workspace enables the feature for all programs.

use std::cell::Cell;

use super::{Context, Token};
use crate::quorum::Moment;

/// A client in which one rule is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutant {
    /// After a wait, the client acquires the lock on N/2 + 1 nodes only.
    BareMajorityAfterWait,
    /// A waiter never bypasses the node on which it waits.
    NeverBypasses,
    /// A call that does not wait reports `Held` for a contended key without asking the nodes.
    RefusesUnasked,
    /// A call whose turn in the local queue did not come reports `Held` without asking the nodes.
    HeldOutOfTurn,
    /// A call that waits for a wait connection makes no attempts meanwhile.
    NoPollWithoutWaitConnection,
    /// A call that waits for a wait connection bypasses no node but the one on which it waits.
    BypassesOnlyItsNode,
    /// A call continues to wait for a wait connection on a node that is known to be silent.
    WaitsForConnectionOfSilentNode,
    /// A call waits for slow nodes beyond its limit.
    NoDeadline,
    /// The winner of a tie does not repeat its request.
    NoTieRepeat,
    /// All attempts of a call use one token.
    ReusedToken,
    /// A client sends no RELEASE to nodes that have not answered.
    SilentNotReleased,
    /// A RELEASE may travel through another connection than its ACQUIRE.
    ReleaseElsewhere,
    /// A node that does not hold the lock is repaired before a majority has extended it.
    EarlyRepair,
    /// A client assumes that all clocks run at the same rate.
    NoDrift,
    /// The validity of a lock begins when the WAIT is answered.
    ValidFromAnswer,
    /// A lock has the largest fence of its grants, although no majority stores that fence.
    LargestFence,
    /// A refusal of the deciding node counts no more than a refusal of any other node.
    QueueNodeOutvoted,
    /// A client waits on the queue node, even if that node did not refuse.
    WaitsWhereNotRefused,
    /// A waiter goes to the end of the queue whenever it checks the node.
    LeavesQueue,
    /// A refusal counts as another client's, although the call's earlier token may be the cause.
    HeldByItself,
    /// A RELEASE is not repeated although the WAIT may arrive after it.
    LostWaitForgotten,
    /// A node is repaired in the round in which it first says that it does not hold the lock.
    RepairOnFirstRefusal,
    /// A waiter inspects the same other node each time.
    InspectsOneNode,
    /// Nodes are repaired after one of them has answered that the lock is revoked.
    RevokedRepaired,
    /// A new holder does not repeat its ACQUIRE on nodes that refused it.
    LateRefusalIsFinal,
    /// After a wait on a node that is not the first in the order, the client awaits the nodes
    /// before that one, however slow they are.
    AwaitsSlowNode,
    /// Each key has its own order of the nodes, although a majority needs every node that votes.
    KeysWaitApart,
    /// A grant whose validity a long wait has used up is not extended, so the lock is lost.
    LongWaitIsLost,
    /// A waiter stays with a node whose server has restarted since the WAIT was sent.
    WaitsPastRestart,
    /// A reader wins before the node on which a writer may wait has answered.
    ReaderOutrunsWriter,
    /// A call asks again for a slot that other clients hold on nodes other than the deciding one.
    TakenSlotAskedAgain,
    /// A timer that fires late expires requests before the answers in the sockets are read.
    PauseIsSilence,
    /// The end of a round without a majority is final, although a majority answers later.
    LateMajorityForgotten,
    /// A lock that its holder downgrades counts as exclusive until a majority confirms that.
    ExclusiveUntilConfirmed,
}

impl Mutant {
    /// The mutants whose harm shows in simulated fleets of exclusive locks.
    ///
    /// Tests of the state machines catch the mutants that are neither here nor in
    /// [`OF_OTHER_KINDS`](Self::OF_OTHER_KINDS): their harm is too rare for fleets.
    pub const OF_EXCLUSIVE_LOCKS: [Self; 22] = [
        Self::BareMajorityAfterWait,
        Self::NeverBypasses,
        Self::RefusesUnasked,
        Self::HeldOutOfTurn,
        Self::NoPollWithoutWaitConnection,
        Self::NoDeadline,
        Self::NoTieRepeat,
        Self::ReusedToken,
        Self::SilentNotReleased,
        Self::ReleaseElsewhere,
        Self::EarlyRepair,
        Self::NoDrift,
        Self::ValidFromAnswer,
        Self::LargestFence,
        Self::QueueNodeOutvoted,
        Self::LeavesQueue,
        Self::HeldByItself,
        Self::LostWaitForgotten,
        Self::RepairOnFirstRefusal,
        Self::RevokedRepaired,
        Self::KeysWaitApart,
        Self::PauseIsSilence,
    ];

    /// The mutants whose harm shows only in simulated fleets of shared locks, or of locks of any
    /// one of several keys.
    pub const OF_OTHER_KINDS: [Self; 4] = [
        Self::BypassesOnlyItsNode,
        Self::ReaderOutrunsWriter,
        Self::TakenSlotAskedAgain,
        Self::ExclusiveUntilConfirmed,
    ];
}

thread_local! {
    static BROKEN: Cell<Option<Mutant>> = const { Cell::new(None) };
}

/// Breaks one rule in all machines that this thread runs from now on; `None` breaks none.
pub fn break_rule(mutant: Option<Mutant>) {
    BROKEN.set(mutant);
}

/// Whether this rule is broken in this thread.
#[cfg(feature = "mutants")]
pub(crate) fn is_broken(mutant: Mutant) -> bool {
    BROKEN.get() == Some(mutant)
}

/// Returns `false`: only simulators break rules.
#[cfg(not(feature = "mutants"))]
pub(crate) const fn is_broken(_: Mutant) -> bool {
    false
}

/// A new token for a request of the call that began at `began`; `None` without random numbers.
pub(super) fn new_token(began: Moment, ctx: &mut Context<'_>) -> Option<Token> {
    if is_broken(Mutant::ReusedToken) {
        return Some(Token::of_bits(began.raw.as_nanos() << 64 | began.boot.as_nanos()));
    }
    ctx.token()
}
