//! Rules of a node that tests break on purpose, to show the harm without them.
//!
//! Each broken rule asks [`is_broken`] at the place that decides. Without the feature `mutants` that
//! is the constant `false`. With it, a thread-local variable decides, which is empty until a test
//! sets it with `break_rule`.

use std::cell::Cell;

/// A rule of a node that is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutant {
    /// A client that asks for a shared lock passes those that wait.
    SharedPassesQueue,
    /// A lock becomes shared, and nobody looks at its queue.
    ShareForgetsQueue,
    /// The mirror of a shared lock holds the token of its first holder.
    MirrorNamesReader,
    /// A revoked shared lock lets others in.
    RevokedLetsIn,
    /// A client that waits for any of several keys stands in the queue of the first alone.
    AnyWaitsForFirst,
}

thread_local! {
    static BROKEN: Cell<Option<Mutant>> = const { Cell::new(None) };
}

/// Breaks a rule in the nodes that this thread runs from now on, or none.
pub fn break_rule(mutant: Option<Mutant>) {
    BROKEN.set(mutant);
}

/// Whether this rule is broken in this thread.
#[cfg(feature = "mutants")]
pub(super) fn is_broken(mutant: Mutant) -> bool {
    BROKEN.get() == Some(mutant)
}

/// No rule is broken outside tests.
#[cfg(not(feature = "mutants"))]
pub(super) const fn is_broken(_: Mutant) -> bool {
    false
}
