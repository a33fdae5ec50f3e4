use std::fmt;

/// A rule that is broken on purpose, which the checker must notice.
///
/// It is broken at a seam of the model, and not in the code that is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutant {
    /// A node takes the fence of a write-back from a token that does not hold the key.
    WriteBackFromAnybody,
    /// All nodes of an attempt are set to its fence, also nodes that have a larger one.
    WriteBackDownwards,
    /// The fence is agreed on by a majority of the nodes that granted, in place of N/2 + 1 nodes.
    MajorityOfGrants,
    /// The client uses the largest fence of the grants at once.
    LargestAtOnce,
    /// A client uses the same token for all its attempts.
    TokenUsedTwice,
    /// A node grants as soon as it has started again.
    NoAbstention,
    /// A node restarts with a wall clock that went back to the beginning.
    ClockBackAtRestart,
    /// EXTEND acquires a lock that has ended, if it is free.
    ExtendRevives,
    /// A client relies on a lock for its whole ttl.
    NoDrift,
    /// A client relies on a lock from the first answer, and not from before the first request.
    ValidFromAnswer,
    /// A node that does not hold the lock is asked to grant it, whatever the others say, and the
    /// grant counts as an extension.
    RepairAtOnce,
    /// A lock is repaired when a majority confirms it, where late grants count too.
    RepairOnLateGrant,
    /// Of several keys a node grants the free ones.
    SomeOfTheKeys,
    /// The fence of several keys is above the counter of the first alone.
    FenceOfTheFirstKey,
    /// REVOKE ends the lock at once, although its holder relies on it.
    RevokeFreesAtOnce,
    /// REVOKE leaves the token in the mirror.
    RevokeKeepsToken,
    /// EXTEND of a revoked lock extends it.
    ExtendOfRevoked,
    /// A shared lock is granted beside an exclusive one.
    ReaderBesideWriter,
    /// A shared lock has the fence that its client proposes, also below that of an earlier
    /// exclusive one.
    ReaderChoosesFence,
    /// The mirror of a shared lock holds the token of one of its holders.
    MirrorNamesReader,
}

impl fmt::Display for Mutant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::WriteBackFromAnybody => "a write-back without the token check",
            Self::WriteBackDownwards => "a write-back that may go down",
            Self::MajorityOfGrants => "a majority of the grants in place of N/2+1 nodes",
            Self::LargestAtOnce => "the largest of the grants, used at once",
            Self::TokenUsedTwice => "a token used for two attempts",
            Self::NoAbstention => "a restart without abstaining",
            Self::ClockBackAtRestart => "a restart with a wall clock that went back",
            Self::ExtendRevives => "an extension that revives",
            Self::NoDrift => "validity without drift",
            Self::ValidFromAnswer => "validity counted from the answer",
            Self::RepairOnLateGrant => "repair on the word of a late grant",
            Self::RepairAtOnce => "repair outside a majority of extends",
            Self::SomeOfTheKeys => "those of several keys that are free",
            Self::FenceOfTheFirstKey => "a fence above the first key's counter only",
            Self::RevokeFreesAtOnce => "a revocation that frees the key at once",
            Self::RevokeKeepsToken => "a revocation that leaves the token in the mirror",
            Self::ExtendOfRevoked => "an extension of a revoked lock",
            Self::ReaderBesideWriter => "a shared lock beside an exclusive one",
            Self::ReaderChoosesFence => "a fence of a shared lock that its client chooses",
            Self::MirrorNamesReader => "a mirror of a shared lock that names a holder",
        })
    }
}
