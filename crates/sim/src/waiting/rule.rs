use std::fmt;

/// A rule about who waits where, to be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// nil from the queue node decides a first attempt, whatever the others said.
    NewcomersYield,
    /// Who was refused waits on the first node of the order that refused. Left out, it waits on the first of the order.
    WaitWhereRefused,
    /// Where to wait is decided when the queue node has answered, also if others refused before. Left out, it is decided by
    /// what was heard.
    HearTheQueueNode,
    /// Who waited on a later node hears the earlier ones before it has the lock. Left out, any majority is a lock unless one
    /// of those has refused by then.
    EarlierNodesFirst,
    /// Who was granted by the queue node asks no more nodes than it takes. Left out, it asks all at once.
    AskNoMoreThanItTakes,
    /// Who waits stays in the queue. Left out, it leaves after a second and enters again.
    StayQueued,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NewcomersYield => "nil from the queue node decides a first attempt",
            Self::WaitWhereRefused => "one waits on the first node that refused",
            Self::HearTheQueueNode => "where to wait is decided when the queue node has answered",
            Self::EarlierNodesFirst => {
                "who waited on a later node hears the earlier ones before it has the lock"
            }
            Self::AskNoMoreThanItTakes => "who was granted asks no more nodes than it takes",
            Self::StayQueued => "who waits stays in the queue",
        })
    }
}
