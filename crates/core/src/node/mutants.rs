//! Rules of a node that tests break on purpose, to show the harm.
//!
//! Code that follows such a rule calls [`is_broken`] first. No rule is broken without the feature
//! `mutants`, or in a thread that has not called `break_rule`.

use std::cell::Cell;

/// A rule of a node that a test breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NodeRule {
    /// A client that requests a shared lock overtakes waiters.
    SharedPassesQueue,
    /// A lock becomes shared without a check of its queue.
    ShareForgetsQueue,
    /// The mirror of a shared lock holds the token of its first holder.
    MirrorNamesHolder,
    /// A revoked shared lock admits new holders.
    RevokedAdmitsHolders,
    /// A client that waits for any of several keys is queued only for the first.
    AnyWaitsForFirst,
    /// Waiters are served in the order of their arrival, whatever their tickets.
    OrderByArrival,
    /// A request that a holder repeats sets the deadline, even to an earlier time.
    RepeatShortens,
    /// YIELD answers a token without the lock that it still holds the lock.
    YieldClaimsToHold,
    /// YIELD gives a lock up to a younger waiter.
    YieldsToYounger,
    /// A request that cannot wait passes waiters with larger tickets.
    PassesUnheard,
    /// A node with as many waiters as it may have refuses older ones.
    FullLineKeepsYoungest,
    /// Younger waiters may pass a waiter for several keys for ever.
    NeverKeepsKeys,
    /// A node stores an agreed fence for a token that does not hold the key.
    FenceOfAnyToken,
    /// A stored fence may decrease.
    FenceDecreases,
    /// EXTEND acquires a lock that has ended, if its keys are free.
    ExtendRevives,
    /// EXTEND of a revoked lock extends it.
    ExtendsRevoked,
    /// REVOKE ends the lock at once, although its holder still relies on it.
    RevokeFreesAtOnce,
    /// REVOKE leaves the token in the mirror.
    RevokeKeepsToken,
    /// A request for several keys acquires the free ones of them.
    SomeOfTheKeys,
    /// The fence of a lock of several keys exceeds only the counter of the first key.
    FenceOfFirstKey,
    /// A shared lock is granted beside an exclusive one.
    SharedBesideExclusive,
    /// A shared lock has the fence that its client proposes, even if an earlier exclusive lock had
    /// a larger one.
    SharedChoosesFence,
}

impl NodeRule {
    /// Every mutant whose harm a simulated fleet shows.
    ///
    /// Tests of one node catch the others, and the model of the agreement on fences catches
    /// [`Self::FenceOfAnyToken`].
    pub const ALL: [Self; 10] = [
        Self::SharedPassesQueue,
        Self::RevokedAdmitsHolders,
        Self::AnyWaitsForFirst,
        Self::PassesUnheard,
        Self::ExtendRevives,
        Self::RevokeFreesAtOnce,
        Self::SomeOfTheKeys,
        Self::FenceOfFirstKey,
        Self::SharedBesideExclusive,
        Self::SharedChoosesFence,
    ];
}

thread_local! {
    static BROKEN: Cell<Option<NodeRule>> = const { Cell::new(None) };
}

/// Breaks a rule in the nodes that this thread runs from now on; `None` breaks no rule.
pub fn break_rule(mutant: Option<NodeRule>) {
    BROKEN.set(mutant);
}

#[cfg(feature = "mutants")]
pub(super) fn is_broken(mutant: NodeRule) -> bool {
    BROKEN.get() == Some(mutant)
}

#[cfg(not(feature = "mutants"))]
pub(super) const fn is_broken(_: NodeRule) -> bool {
    false
}
