use super::tally::{Ballot, Lost, Tally};
use super::{Lifetime, Majority, Moment};
use crate::Ttl;

/// One attempt to keep a lock: EXTEND to all nodes, and a majority decides.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Extension {
    tally: Tally<()>,
    sent: Moment,
    ttl: Ttl,
    verdict: Option<ExtensionVerdict>,
}

/// What an extension came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExtensionVerdict {
    /// A majority extended the lock, which is now certainly held for this long.
    Extended(Lifetime),
    /// A majority says that the token does not hold the lock any more, or the answers came too late to be of use.
    Lost,
    /// Too few nodes answered to know. What was known before still holds.
    Uncertain,
}

impl Extension {
    /// An extension whose first byte has not been sent before `sent`.
    pub fn new(majority: Majority, sent: Moment, ttl: Ttl) -> Self {
        Self { tally: Tally::new(majority), sent, ttl, verdict: None }
    }

    /// Takes down a node's answer: whether the token holds the lock there, or `None` if there was no answer. Returns
    /// the verdict when this answer made it.
    pub fn answer(&mut self, node: usize, held: Option<bool>, now: Moment) -> Option<ExtensionVerdict> {
        self.tally.cast(
            node,
            match held {
                Some(true) => Ballot::Yes(()),
                Some(false) => Ballot::No,
                None => Ballot::Silent,
            },
        );
        if self.verdict.is_some() {
            return None;
        }
        self.verdict = if self.tally.has_majority() {
            let lifetime =
                Lifetime::new(self.sent, self.ttl).filter(|lifetime| lifetime.remaining(now).is_some());
            Some(lifetime.map_or(ExtensionVerdict::Uncertain, ExtensionVerdict::Extended))
        } else {
            self.tally.lost().map(|lost| match lost {
                Lost::Refused => ExtensionVerdict::Lost,
                Lost::Silence => ExtensionVerdict::Uncertain,
            })
        };
        self.verdict
    }

    /// On how many nodes the lock is known to be held.
    pub fn coverage(&self) -> usize {
        self.tally.yes().count()
    }
}
