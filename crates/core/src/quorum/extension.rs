use super::majority::{Majority, Tally};
use super::{Moment, Validity};
use crate::Ttl;
use crate::mutants::{ClientRule, is_broken};

/// One extension round: EXTEND to all nodes, decided by a majority.
///
/// A node that never granted the lock votes, too: it answers that the token does not hold the lock.
///
/// The client repairs a node that misses the lock: it sends ACQUIRE with the same token. A repair
/// needs a majority of *extensions* in this round, on nodes that were known to hold the lock
/// before the round began. Otherwise it could revive a lost lock. For the same reason:
///
/// - The client does not count the answer to a repair as a vote.
/// - The client does not count a node whose grant arrived after the round began: that node may have
///   granted the lock after it was lost.
/// - A majority that answers after the time of the nodes repairs nothing: an operator may have
///   ended the lock since those nodes answered.
/// - The client does not repair a node in the round in which the node first reports the lock
///   missing: an operator may have ended the lock there after the other nodes answered.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Extension {
    tally: Tally<()>,
    sent: Moment,
    ttl: Ttl,
    verdict: Option<ExtensionVerdict>,
    has_expired: bool,
    /// What was known of each node before the round began.
    before: Vec<KnownBefore>,
}

/// What an answer from before a round of extensions says of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KnownBefore {
    /// Neither that the node held the lock nor that it did not.
    Nothing,
    /// The node held the lock, so its extension counts for a repair.
    Held,
    /// The node did not hold the lock, so the round may repair it.
    Missing,
    /// The round has repaired the node.
    Repaired,
}

/// The verdict of an extension round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExtensionVerdict {
    /// A majority extended the lock, which is now certainly held for this long.
    Extended(Validity),
    /// The nodes that reported that the token does not hold the lock rule out a majority.
    Lost,
    /// Too few nodes answered in time to decide. The earlier validity still counts. Later answers
    /// may still decide the round.
    Uncertain,
}

impl Extension {
    /// Starts a round whose first byte is sent at `sent` or later. `before` says what was known of
    /// a node until then.
    pub fn new(
        majority: Majority,
        sent: Moment,
        ttl: Ttl,
        before: impl Fn(usize) -> KnownBefore,
    ) -> Self {
        let (tally, before) = (Tally::new(majority), (0..majority.nodes()).map(before).collect());
        Self { tally, sent, ttl, verdict: None, has_expired: false, before }
    }

    /// Records whether a node says that the token holds the lock; `None` if the node did not vote.
    ///
    /// Returns the verdict if this answer decides the round. An answer after
    /// [`expire`](Self::expire) can decide it, too: the validity counts from the moment of sending,
    /// so a late majority overstates nothing.
    pub fn answer(
        &mut self,
        node: usize,
        held: Option<bool>,
        now: Moment,
    ) -> Option<ExtensionVerdict> {
        self.tally.cast(node, held.into());
        match self.verdict {
            None => {}
            Some(ExtensionVerdict::Uncertain) if !is_broken(ClientRule::LateMajorityForgotten) => {}
            Some(_) => return None,
        }
        let verdict = if self.tally.has_majority() {
            let validity = Validity::new(self.sent, self.ttl)
                .filter(|validity| validity.remaining(now).is_some());
            validity.map_or(ExtensionVerdict::Uncertain, ExtensionVerdict::Extended)
        } else if self.tally.is_refused() {
            ExtensionVerdict::Lost
        } else if self.tally.is_out_of_reach() {
            ExtensionVerdict::Uncertain
        } else {
            return None;
        };
        (self.verdict.replace(verdict) != Some(verdict)).then_some(verdict)
    }

    /// Decides the round because the nodes' time is over. Returns the verdict, or `None` if an
    /// earlier call has returned it.
    pub fn expire(&mut self) -> Option<ExtensionVerdict> {
        if self.verdict.is_some() {
            return None;
        }
        self.has_expired = true;
        self.verdict = Some(ExtensionVerdict::Uncertain);
        self.verdict
    }

    /// The last verdict; `None` if the round is undecided.
    pub fn verdict(&self) -> Option<ExtensionVerdict> {
        self.verdict
    }

    /// Whether a majority has extended the lock.
    pub fn is_extended(&self) -> bool {
        matches!(self.verdict, Some(ExtensionVerdict::Extended(_)))
    }

    /// Returns the next node to repair: send it ACQUIRE with the lock's token and fence.
    ///
    /// Returns, once each, the nodes that were known to [miss](KnownBefore::Missing) the lock and
    /// refuse in this round. Returns `None` until a majority extends the lock on nodes that were
    /// known to [hold](KnownBefore::Held) it.
    ///
    /// The caller must not send a repair to a node while an earlier ACQUIRE for the lock may still
    /// be on its way there.
    pub fn next_repair(&mut self) -> Option<usize> {
        let early = is_broken(ClientRule::EarlyRepair);
        if !early && (!self.is_extended() || self.has_expired) {
            return None;
        }
        let was_held = |&(node, ()): &(usize, ())| self.before[node] == KnownBefore::Held;
        let confirmed = self.tally.yes().filter(was_held).count();
        if !early && confirmed < self.tally.majority().size() {
            return None;
        }
        let any_refusal = early || is_broken(ClientRule::RepairOnFirstRefusal);
        let is_due = |&node: &usize| match self.before[node] {
            KnownBefore::Missing => true,
            KnownBefore::Repaired => false,
            KnownBefore::Nothing | KnownBefore::Held => any_refusal,
        };
        let node = self.tally.no().find(is_due)?;
        self.before[node] = KnownBefore::Repaired;
        Some(node)
    }

    /// Whether a majority extended the lock, and a node reports it missing for the first time.
    ///
    /// Another round can then repair the node.
    pub fn has_found_missing(&self) -> bool {
        let is_new =
            |node: usize| matches!(self.before[node], KnownBefore::Nothing | KnownBefore::Held);
        !is_broken(ClientRule::RepairOnFirstRefusal)
            && self.is_extended()
            && self.tally.no().any(is_new)
    }
}
