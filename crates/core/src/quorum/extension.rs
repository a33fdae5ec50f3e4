use super::tally::{Ballot, Lost, Tally};
use super::{Lifetime, Majority, Moment};
use crate::Ttl;
use crate::client::mutants::{Mutant, is_broken};

/// One attempt to keep a lock: EXTEND to all nodes that were ever asked for it, and a majority decides. Those that were not do
/// not hold it, and have [answered](Self::answer) so before any other does.
///
/// A node that answers that it does not hold the lock can be repaired, by an ACQUIRE with the same token, but only when a
/// majority of *extends* succeeded in this same round, on nodes that were known to hold the lock before it began: a lock
/// that is lost is never turned back into a held one. What a repair is answered is no vote. Nor does a node count for it
/// whose grant came late: that may have come after the lock was lost. And a node is repaired only if it was known not to
/// hold the lock before the round began: one whose answer is late may say what an operator did after the others answered.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Extension {
    tally: Tally<()>,
    sent: Moment,
    ttl: Ttl,
    verdict: Option<ExtensionVerdict>,
    /// Nodes that were known to hold the lock before the round began.
    known: Vec<bool>,
    /// Nodes that were known not to hold it.
    missing: Vec<bool>,
    /// Nodes that are being repaired.
    repaired: Vec<bool>,
}

/// What an extension came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExtensionVerdict {
    /// A majority extended the lock, which is now certainly held for this long.
    Extended(Lifetime),
    /// A majority says that the token does not hold the lock any more.
    Lost,
    /// Too few nodes answered to know, or they answered too late to be of use. What was known before still holds.
    Uncertain,
}

impl Extension {
    /// An extension whose first byte has not been sent before `sent`.
    pub fn new(majority: Majority, sent: Moment, ttl: Ttl) -> Self {
        let none = vec![false; majority.nodes()];
        let (known, missing, repaired) = (none.clone(), none.clone(), none);
        Self { tally: Tally::new(majority), sent, ttl, verdict: None, known, missing, repaired }
    }

    /// The same, which repairs nodes that missed the lock. These are known to hold it: their last answer, to whatever
    /// they were asked, came before the round begins. A node must not be asked to repair a lock while an earlier ACQUIRE
    /// for it may still be on its way there.
    #[must_use]
    pub fn known_to_hold(mut self, nodes: impl IntoIterator<Item = usize>) -> Self {
        for node in nodes {
            self.known[node] = true;
        }
        self
    }

    /// These were known not to hold it, likewise: they can be repaired in this round.
    #[must_use]
    pub fn known_to_miss(mut self, nodes: impl IntoIterator<Item = usize>) -> Self {
        for node in nodes {
            self.missing[node] = true;
        }
        self
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

    /// Decides without those that have not answered, if it is not decided yet: the nodes' time is over.
    pub fn time_is_up(&mut self) -> Option<ExtensionVerdict> {
        if self.verdict.is_some() {
            return None;
        }
        self.verdict = Some(ExtensionVerdict::Uncertain);
        self.verdict
    }

    /// The next node to be repaired: send it ACQUIRE with the same token, and with the fence of the lock. Each is named
    /// once if it was [known to miss](Self::known_to_miss) the lock, and none unless a majority of extends succeeded in
    /// this round on nodes that were [known to hold](Self::known_to_hold) it.
    pub fn next_repair(&mut self) -> Option<usize> {
        let early = is_broken(Mutant::EarlyRepair);
        if !early && !matches!(self.verdict, Some(ExtensionVerdict::Extended(_))) {
            return None;
        }
        let confirmed = self.tally.yes().filter(|&(node, ())| self.known[node]).count();
        if !early && confirmed < self.tally.majority().size() {
            return None;
        }
        let early = early || is_broken(Mutant::RepairOnFirstRefusal);
        let is_due = |&node: &usize| !self.repaired[node] && (early || self.missing[node]);
        let node = self.tally.no().find(is_due)?;
        self.repaired[node] = true;
        Some(node)
    }

    /// Whether a majority extended the lock, and a node that was not known to miss it says that it does
    /// not hold it: begin another round, in which it can be repaired.
    pub fn has_found_missing(&self) -> bool {
        !is_broken(Mutant::RepairOnFirstRefusal)
            && matches!(self.verdict, Some(ExtensionVerdict::Extended(_)))
            && self.tally.no().any(|node| !self.missing[node])
    }

    /// On how many nodes the lock is known to be held.
    pub fn coverage(&self) -> usize {
        self.tally.yes().count()
    }
}
