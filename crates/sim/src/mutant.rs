use std::fmt;

/// A rule of a model broken on purpose, which the checker must notice. Such a mutant changes the
/// code of this crate around the state machines. A [`fleet::Mutant`](crate::fleet::Mutant) changes
/// the state machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutant {
    /// A node stores an agreed fence for a token that does not hold the key.
    FenceStoredWithoutToken,
    /// All nodes of an attempt store its fence, even nodes that have a larger one.
    StoredFenceDecreases,
    /// A majority of the nodes that granted decides the fence, instead of N/2 + 1 of all nodes.
    MajorityOfGrants,
    /// The client uses the largest fence of the grants at once.
    LargestAtOnce,
    /// A client uses the same token for all its attempts.
    TokenUsedTwice,
    /// A node grants as soon as it has started again.
    NoAbstention,
    /// A node restarts with a wall clock that reads zero again.
    ClockBackAtRestart,
    /// EXTEND acquires a lock that has ended, if its key is free.
    ExtendRevives,
    /// A client relies on a lock for its whole ttl.
    NoDrift,
    /// A client counts the validity of a lock from the first answer instead of the first request.
    ValidFromAnswer,
    /// Before a majority has extended the lock, the client repairs a node that does not hold it,
    /// and counts the grant as an extension.
    RepairAtOnce,
    /// A node that grants the lock late, during a round of extensions, counts as a confirmation of
    /// that round. Only a round with a majority may repair nodes.
    RepairOnLateGrant,
    /// If some of the requested keys are free, a node grants these.
    SomeOfTheKeys,
    /// The fence of a lock of several keys exceeds only the counter of the first key.
    FenceOfTheFirstKey,
    /// REVOKE ends the lock at once, although its holder still relies on it.
    RevokeFreesAtOnce,
    /// REVOKE leaves the token in the mirror.
    RevokeKeepsToken,
    /// EXTEND of a revoked lock extends it.
    ExtendOfRevoked,
    /// A shared lock is granted beside an exclusive one.
    ReaderBesideWriter,
    /// A shared lock has the fence that its client proposes, even if an earlier exclusive lock had
    /// a larger one.
    ReaderChoosesFence,
    /// The mirror of a shared lock holds the token of one of its holders.
    MirrorNamesHolder,
}

impl fmt::Display for Mutant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::FenceStoredWithoutToken => "an agreed fence stored without a token check",
            Self::StoredFenceDecreases => "a stored fence that may decrease",
            Self::MajorityOfGrants => "a majority of the grants instead of N/2+1 nodes",
            Self::LargestAtOnce => "the largest of the grants, used at once",
            Self::TokenUsedTwice => "a token used for two attempts",
            Self::NoAbstention => "a restart without abstaining",
            Self::ClockBackAtRestart => "a restart with a wall clock that went back",
            Self::ExtendRevives => "an extension that revives",
            Self::NoDrift => "validity without drift",
            Self::ValidFromAnswer => "validity counted from the answer",
            Self::RepairOnLateGrant => "a repair that counts late grants as confirmations",
            Self::RepairAtOnce => "a repair before a majority has extended",
            Self::SomeOfTheKeys => "a grant of only the free ones of several keys",
            Self::FenceOfTheFirstKey => "a fence above the first key's counter only",
            Self::RevokeFreesAtOnce => "a revocation that frees the key at once",
            Self::RevokeKeepsToken => "a revocation that leaves the token in the mirror",
            Self::ExtendOfRevoked => "an extension of a revoked lock",
            Self::ReaderBesideWriter => "a shared lock beside an exclusive one",
            Self::ReaderChoosesFence => "a fence of a shared lock that its client chooses",
            Self::MirrorNamesHolder => "a mirror of a shared lock that names a holder",
        })
    }
}
