//! Rules of a node that tests break on purpose, to show the harm.
//!
//! Code that follows such a rule calls [`is_broken`] first. No rule is broken without the feature
//! `mutants`, or in a thread that has not called `break_rule`.

use std::cell::Cell;

/// A rule of a node that a test breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutant {
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
    /// Younger waiters may pass a waiter for several keys for ever.
    NeverKeepsKeys,
}

impl Mutant {
    /// Every mutant whose harm a simulated fleet shows.
    ///
    /// [`Self::MirrorNamesHolder`] is not among them. It does harm only on a restarted node that
    /// votes too early, and the model checker shows that. Nor are the others, which tests of one
    /// node catch.
    pub const ALL: [Self; 4] = [
        Self::SharedPassesQueue,
        Self::RevokedAdmitsHolders,
        Self::AnyWaitsForFirst,
        Self::PassesUnheard,
    ];
}

thread_local! {
    static BROKEN: Cell<Option<Mutant>> = const { Cell::new(None) };
}

/// Breaks a rule in the nodes that this thread runs from now on; `None` breaks no rule.
pub fn break_rule(mutant: Option<Mutant>) {
    BROKEN.set(mutant);
}

#[cfg(feature = "mutants")]
pub(super) fn is_broken(mutant: Mutant) -> bool {
    BROKEN.get() == Some(mutant)
}

#[cfg(not(feature = "mutants"))]
pub(super) const fn is_broken(_: Mutant) -> bool {
    false
}
