//! Rules of a client that a simulator breaks on purpose, to see that its checkers notice.
//!
//! The code that decides by a rule asks [`is_broken`]. Without the feature `mutants`, the answer is
//! constant. With it, a rule is broken only in a thread that calls [`break_rule`], because a build
//! of the whole workspace enables the feature for all programs.

use std::cell::Cell;

/// A client in which one rule is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClientRule {
    /// A call whose turn in the local queue did not come reports `Held` without asking the nodes.
    HeldOutOfTurn,
    /// A call waits for slow nodes beyond its limit.
    NoDeadline,
    /// A call stands in line with the ticket with which it first asked.
    TicketNotRaised,
    /// A grant counts while a YIELD to its node is unanswered.
    YieldingCounts,
    /// A call that some nodes have granted never offers to give way.
    NeverYields,
    /// A call holds some nodes for as long as it waits.
    NeverGivesBack,
    /// A call leaves the line of a node when its first slice ends there.
    SliceNotRenewed,
    /// A YIELD that was never answered counts as refused.
    LostYieldForgotten,
    /// A new holder does not stand in line on the nodes that miss its lock.
    NoFrontRepair,
    /// All attempts of a call use one token.
    ReusedToken,
    /// A client sends no RELEASE to nodes that have not answered.
    SilentNotReleased,
    /// A RELEASE may travel through another connection than its ACQUIRE.
    ReleaseElsewhere,
    /// A release begins late, so its client may send an ACQUIRE before it.
    LateRelease,
    /// A node that does not hold the lock is repaired before a majority has extended it.
    EarlyRepair,
    /// A call keeps a ticket that no majority accepts.
    RejectedTicketKept,
    /// A client assumes that all clocks run at the same rate.
    NoDrift,
    /// The validity of a lock begins when the WAIT is answered.
    ValidFromAnswer,
    /// A lock has the largest fence of its grants, although no majority stores that fence.
    LargestFence,
    /// A majority of the nodes that granted decides the fence, instead of N/2 + 1 of all nodes.
    MajorityOfGrants,
    /// A refusal counts as another client's, although the call's earlier token may be the cause.
    HeldByItself,
    /// A RELEASE is not repeated although the WAIT may arrive after it.
    LostWaitForgotten,
    /// A RELEASE that failed is not repeated once the WAIT has ended without a grant.
    FailedReleaseForgotten,
    /// A node is repaired in the round in which it first says that it does not hold the lock.
    RepairOnFirstRefusal,
    /// Nodes are repaired after one of them has answered that the lock is revoked.
    RevokedRepaired,
    /// A grant whose validity a long wait has used up is not extended, so the lock is lost.
    LongWaitIsLost,
    /// A timer that fires late expires requests before the answers in the sockets are read.
    PauseIsSilence,
    /// The end of a round without a majority is final, although a majority answers later.
    LateMajorityForgotten,
    /// A node that granted late counts in an extension at once.
    LateGrantCounts,
    /// A lock that its holder downgrades counts as exclusive until a majority confirms that.
    ExclusiveUntilConfirmed,
}

impl ClientRule {
    /// The mutants whose harm shows in simulated fleets of exclusive locks.
    ///
    /// Tests of the state machines catch the mutants that are neither here nor in
    /// [`OF_OTHER_KINDS`](Self::OF_OTHER_KINDS): their harm is too rare for fleets. The model of
    /// the agreement on fences catches [`MajorityOfGrants`](Self::MajorityOfGrants).
    pub const OF_EXCLUSIVE_LOCKS: [Self; 16] = [
        Self::HeldOutOfTurn,
        Self::NoDeadline,
        Self::TicketNotRaised,
        Self::YieldingCounts,
        Self::NeverYields,
        Self::SliceNotRenewed,
        Self::ReusedToken,
        Self::SilentNotReleased,
        Self::ReleaseElsewhere,
        Self::LateRelease,
        Self::EarlyRepair,
        Self::NoDrift,
        Self::ValidFromAnswer,
        Self::LargestFence,
        Self::RevokedRepaired,
        Self::PauseIsSilence,
    ];

    /// The mutants whose harm shows only in simulated fleets of shared locks, or of locks of any
    /// one of several keys.
    pub const OF_OTHER_KINDS: [Self; 1] = [Self::ExclusiveUntilConfirmed];
}

thread_local! {
    static BROKEN: Cell<Option<ClientRule>> = const { Cell::new(None) };
}

/// Breaks one rule in all machines that this thread runs from now on; `None` breaks none.
pub fn break_rule(mutant: Option<ClientRule>) {
    BROKEN.set(mutant);
}

/// Whether this rule is broken in this thread.
#[cfg(feature = "mutants")]
pub(crate) fn is_broken(mutant: ClientRule) -> bool {
    BROKEN.get() == Some(mutant)
}

/// Returns `false`: only simulators break rules.
#[cfg(not(feature = "mutants"))]
pub(crate) const fn is_broken(_: ClientRule) -> bool {
    false
}
