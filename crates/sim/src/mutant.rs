use std::fmt;

/// A rule that is broken on purpose, which the checker must notice.
///
/// The rule is broken in the code of this crate around the state machines, and not in the state
/// machines, which are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutant {
    /// A node stores the fence of a write-back from a token that does not hold the key.
    WriteBackFromAnybody,
    /// All nodes of an attempt store its fence, even nodes that have a larger one.
    WriteBackDownwards,
    /// A majority of the nodes that granted agrees on the fence, in place of N/2 + 1 nodes.
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
    /// A client counts the validity of a lock from the first answer, and not from before the first
    /// request.
    ValidFromAnswer,
    /// The client repairs a node that does not hold the lock before a majority has extended the
    /// lock, and counts the grant as an extension.
    RepairAtOnce,
    /// The client repairs a lock that a majority confirms, and counts late grants as confirmations.
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
            Self::MirrorNamesHolder => "a mirror of a shared lock that names a holder",
        })
    }
}
