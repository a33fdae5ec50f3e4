//! Rules that are broken on purpose.

/// A rule that is broken, to see that the checkers notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutant {
    /// A node grants as soon as it has started again.
    NoAbstention,
}
