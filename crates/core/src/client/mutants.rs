//! Rules of a client that a simulator breaks on purpose, to see that its checkers notice.
//!
//! Each broken rule asks [`is_broken`] at the place that decides. Without the feature `mutants`
//! that is the constant `false`. With it, a thread-local variable decides, which is empty until the
//! simulator sets it with [`break_rule`]: a build of the whole workspace, which unifies features,
//! has every rule in force as well.

use std::cell::Cell;

use super::{Context, Token};
use crate::quorum::Moment;

/// A rule of a client that is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutant {
    /// After a wait, only N/2 + 1 nodes are asked.
    BareMajorityAfterWait,
    /// A waiter never looks past the node on which it waits.
    NeverBypasses,
    /// A call that does not wait reports a contended key as held without asking.
    RefusesUnasked,
    /// A call whose turn never came in the local queue reports `Held` without asking.
    HeldOutOfTurn,
    /// A call without a seat on the queue node does not poll.
    NoPollWithoutSeat,
    /// A call without a seat stays in line for one on a node that is known to be silent.
    WaitsForSeatOfSilentNode,
    /// A call waits for slow nodes beyond its limit.
    NoDeadline,
    /// The winner of a tie does not repeat its request.
    NoTieRepeat,
    /// All attempts of a call use one token.
    ReusedToken,
    /// Nodes that have not answered are not told of a RELEASE.
    SilentNotReleased,
    /// A RELEASE may travel through another connection than its ACQUIRE.
    ReleaseElsewhere,
    /// A node that does not hold the lock is repaired before a majority has extended it.
    EarlyRepair,
    /// Clocks are taken to run at the same rate.
    NoDrift,
    /// The validity of a lock begins when the WAIT is answered.
    ValidFromAnswer,
    /// The largest fence of the grants is used at once.
    LargestFence,
    /// A refusal of the queue node is one vote among others.
    QueueNodeOutvoted,
    /// A client waits on the queue node, whether that refused it or not.
    WaitsOnQueueNode,
    /// A waiter goes to the end of the queue whenever it looks at the nodes.
    LeavesQueue,
    /// A refusal counts as another's although a token of the call itself may be its reason.
    HeldByItself,
    /// A RELEASE is not repeated although the WAIT may arrive after it.
    LostWaitForgotten,
    /// A node is repaired in the round in which it first says that it does not hold the lock.
    RepairOnFirstRefusal,
    /// A waiter asks the same node at each look past the queue node.
    InspectsOneNode,
    /// A node is repaired after a node has answered that the lock is revoked.
    RevokedRepaired,
    /// A node that refused a lock after it was won is not asked again.
    LateRefusalIsFinal,
    /// After a wait on a later node, the win awaits an earlier one, however slow that is.
    AwaitsSlowNode,
    /// Calls for several keys wait in the order of their first key, although no node is to spare.
    SetsWaitApart,
    /// A lock is lost if its wait was so long that its end is uncertain by more than the ttl.
    LongWaitIsLost,
    /// A waiter stays with a node although its server has restarted since.
    WaitsPastRestart,
    /// A reader has the lock before the node has answered on which a writer waits.
    ReaderOutrunsWriter,
    /// A slot that others hold without the node that decides is asked for again.
    TakenSlotAskedAgain,
    /// A lock that its holder downgrades counts as exclusive until a majority has confirmed it.
    ExclusiveUntilConfirmed,
}

impl Mutant {
    /// Every mutant whose harm exclusive locks show.
    pub const ALL: [Self; 25] = [
        Self::BareMajorityAfterWait,
        Self::NeverBypasses,
        Self::RefusesUnasked,
        Self::HeldOutOfTurn,
        Self::NoPollWithoutSeat,
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
        Self::WaitsOnQueueNode,
        Self::LeavesQueue,
        Self::HeldByItself,
        Self::LostWaitForgotten,
        Self::RepairOnFirstRefusal,
        Self::InspectsOneNode,
        Self::RevokedRepaired,
        Self::LateRefusalIsFinal,
        Self::AwaitsSlowNode,
        Self::SetsWaitApart,
    ];

    /// Every mutant whose harm shared locks, or those of one of several keys, show.
    pub const OF_KINDS: [Self; 5] = [
        Self::LongWaitIsLost,
        Self::WaitsPastRestart,
        Self::ReaderOutrunsWriter,
        Self::TakenSlotAskedAgain,
        Self::ExclusiveUntilConfirmed,
    ];
}

thread_local! {
    static BROKEN: Cell<Option<Mutant>> = const { Cell::new(None) };
}

/// Breaks a rule in the machines that this thread runs from now on, or none.
pub fn break_rule(mutant: Option<Mutant>) {
    BROKEN.set(mutant);
}

/// Whether this rule is broken in this thread.
#[cfg(feature = "mutants")]
pub(crate) fn is_broken(mutant: Mutant) -> bool {
    BROKEN.get() == Some(mutant)
}

/// No rule is broken outside simulators.
#[cfg(not(feature = "mutants"))]
pub(crate) const fn is_broken(_: Mutant) -> bool {
    false
}

/// A token for an attempt of the call that began at `call`.
pub(super) fn token(call: Moment, ctx: &mut Context<'_>) -> Option<Token> {
    if is_broken(Mutant::ReusedToken) {
        return Some(Token::of_bits(call.raw.as_nanos() << 64 | call.boot.as_nanos()));
    }
    ctx.token()
}
