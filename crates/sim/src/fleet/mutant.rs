//! Rules that are broken on purpose.

pub use quorlock_core::client::Mutant as ClientRule;
use quorlock_core::client::break_rule;

/// A rule broken on purpose, which the checkers must notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutant {
    /// A node grants as soon as it has restarted.
    NoAbstention,
    /// The RELEASE of a dropped lock is sent later than the next ACQUIRE of its process.
    LateRelease,
    /// A rule of the client machines.
    Client(ClientRule),
}

impl Mutant {
    /// Every mutant.
    pub fn all() -> impl Iterator<Item = Self> {
        let own = [Self::NoAbstention, Self::LateRelease];
        own.into_iter().chain(ClientRule::ALL.into_iter().map(Self::Client))
    }

    /// Returns the name of the rule.
    pub fn name(self) -> String {
        match self {
            Self::Client(rule) => format!("{rule:?}"),
            other => format!("{other:?}"),
        }
    }
}

/// Breaks a rule in the machines of this thread until it is dropped.
pub(super) struct Broken(());

impl Broken {
    pub(super) fn new(mutant: Option<Mutant>) -> Self {
        break_rule(match mutant {
            Some(Mutant::Client(rule)) => Some(rule),
            _ => None,
        });
        Self(())
    }
}

impl Drop for Broken {
    fn drop(&mut self) {
        break_rule(None);
    }
}
