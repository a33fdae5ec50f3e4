/// A property that must always hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Property {
    /// No two locks have the same fence, unless both are shared.
    FenceOnce,
    /// If the first request for a lock arrives after another lock was reported, the later lock has
    /// the larger fence, unless both are shared.
    FencesGrow,
    /// No two clients hold the lock at the same time, unless both share it. The clock of each
    /// client decides how long it holds the lock.
    OneHolder,
    /// After an operator has deleted the lock on all nodes, no later extension succeeds.
    LostStaysLost,
    /// After a majority of nodes have revoked a lock, no later extension succeeds.
    RevokedStaysRevoked,
}

impl Property {
    /// The name in a report.
    pub const fn name(self) -> &'static str {
        match self {
            Self::FenceOnce => "no fence is given twice",
            Self::FencesGrow => "fences grow in the order of grants",
            Self::OneHolder => "one holder at a time",
            Self::LostStaysLost => "what is lost stays lost",
            Self::RevokedStaysRevoked => "what is revoked stays revoked",
        }
    }
}
