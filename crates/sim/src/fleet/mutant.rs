//! Rules of clients, nodes and the fleet itself that are broken on purpose.

pub use quorlock_core::ClientRule;
use quorlock_core::node;
pub use quorlock_core::node::NodeRule;

use super::LockKind;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutant {
    /// A node grants as soon as it has restarted.
    NoAbstention,
    Client(ClientRule),
    Node(NodeRule),
}

impl Mutant {
    /// Every mutant whose harm a fleet shows.
    pub fn all() -> impl Iterator<Item = Self> {
        let own = [Self::NoAbstention];
        let of_clients =
            ClientRule::OF_EXCLUSIVE_LOCKS.into_iter().chain(ClientRule::OF_OTHER_KINDS);
        let of_nodes = NodeRule::ALL.into_iter().map(Self::Node);
        own.into_iter().chain(of_clients.map(Self::Client)).chain(of_nodes)
    }

    /// Returns the kind of lock whose fleets show the harm.
    pub fn kind(self) -> LockKind {
        match self {
            Self::Client(ClientRule::ExclusiveUntilConfirmed)
            | Self::Node(
                NodeRule::SharedPassesQueue
                | NodeRule::MirrorNamesHolder
                | NodeRule::RevokedAdmitsHolders
                | NodeRule::SharedBesideExclusive
                | NodeRule::SharedChoosesFence,
            ) => LockKind::Shared,
            Self::Node(NodeRule::AnyWaitsForFirst) => LockKind::Permits,
            Self::NoAbstention | Self::Client(_) | Self::Node(_) => LockKind::Exclusive,
        }
    }

    pub fn name(self) -> String {
        match self {
            Self::Client(rule) => format!("{rule:?}"),
            Self::Node(rule) => format!("{rule:?}"),
            Self::NoAbstention => "NoAbstention".to_owned(),
        }
    }
}

/// Breaks a rule in all state machines of this thread until the value is dropped.
pub(crate) struct Broken(());

impl Broken {
    pub(crate) fn new(mutant: Option<Mutant>) -> Self {
        match mutant {
            Some(Mutant::Client(rule)) => quorlock_core::break_rule(Some(rule)),
            Some(Mutant::Node(rule)) => node::break_rule(Some(rule)),
            Some(Mutant::NoAbstention) | None => {}
        }
        Self(())
    }
}

impl Drop for Broken {
    fn drop(&mut self) {
        quorlock_core::break_rule(None);
        node::break_rule(None);
    }
}
