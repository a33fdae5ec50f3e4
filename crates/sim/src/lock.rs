use std::time::Duration;

use quorlock_core::quorum::{Extension, ExtensionVerdict, Moment, OwnershipState, Validity};

use crate::Mutant;
use crate::agreement::Rules;
use crate::message::{Effect, Request};

/// A lock that a client holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Lock {
    state: OwnershipState,
    /// When the first byte of the attempt, or of the last successful extension, was sent.
    sent: Moment,
    round: Option<Round>,
    /// Nodes whose last answer was that the token holds the key. Only repairs use them.
    known: Nodes,
    /// Nodes that were asked to repair the lock and have not answered.
    ///
    /// Such a node is not asked again: both requests could take effect, the second one after the
    /// lock was lost.
    repairing: Nodes,
}

/// The last round of extensions.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Round {
    number: u8,
    sent: Moment,
    extension: Extension,
}

/// Some of the nodes, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Nodes(u8);

/// Longer than any client of a model holds a lock.
const MAX_HOLD: Duration = Duration::from_secs(1 << 32);

impl Lock {
    pub(crate) fn new(validity: Validity, sent: Moment, known: Nodes, now: Moment) -> Self {
        let state = OwnershipState::new(validity, now, MAX_HOLD);
        Self { state, sent, round: None, known, repairing: Nodes::default() }
    }

    /// Whether the lock is held, as far as its holder knows.
    pub(crate) fn is_held(&self, rules: Rules, now: Moment) -> bool {
        match rules.mutant {
            Some(Mutant::NoDrift) => now.since(self.sent) < rules.ttl.duration(),
            _ => self.state.remaining(now).is_some(),
        }
    }

    /// The number of rounds of extensions that have begun.
    pub(crate) fn rounds(&self) -> u8 {
        self.round.as_ref().map_or(0, |round| round.number + 1)
    }

    /// Returns whether an answer to this round would be used.
    pub(crate) fn expects(&self, round: u8) -> bool {
        self.round.as_ref().is_some_and(|last| last.number == round)
    }

    pub(crate) fn extend(&mut self, rules: Rules, now: Moment) -> Effect {
        let number = self.rounds();
        let counts_late_grants = rules.mutant == Some(Mutant::RepairOnLateGrant);
        let nodes = 0..rules.majority.nodes();
        let known = nodes.clone().filter(|&node| counts_late_grants || self.known.has(node));
        // The model also repairs nodes that have not answered, which the client does not. So it
        // explores more than may happen.
        let missing = nodes.filter(|&node| !self.known.has(node));
        let extension = Extension::new(rules.majority, now, rules.ttl)
            .known_to_hold(known)
            .known_to_miss(missing);
        self.round = Some(Round { number, sent: now, extension });
        Effect::AskAll(Request::Extend(number))
    }

    pub(crate) fn handle_extension(
        &mut self,
        rules: Rules,
        node: usize,
        held: Option<bool>,
        now: Moment,
    ) -> Vec<Effect> {
        if rules.repair {
            self.record_answer(node, held);
        }
        let Some(round) = &mut self.round else { return vec![] };
        if rules.mutant == Some(Mutant::RepairAtOnce) && held == Some(false) {
            return vec![Effect::Ask(node, Request::Repair(round.number))];
        }
        let mut effects = Vec::new();
        if let Some(verdict) = round.extension.answer(node, held, now) {
            self.state.settle(verdict, now);
            if matches!(verdict, ExtensionVerdict::Extended(_)) {
                self.sent = round.sent;
                effects.push(Effect::Extended(round.number));
            }
        }
        while rules.repair
            && let Some(node) = round.extension.next_repair()
        {
            if !self.repairing.has(node) {
                self.repairing.set(node, true);
                effects.push(Effect::Ask(node, Request::Repair(round.number)));
            }
        }
        effects
    }

    pub(crate) fn handle_repair(
        &mut self,
        rules: Rules,
        node: usize,
        round: u8,
        held: Option<bool>,
        now: Moment,
    ) -> Vec<Effect> {
        if rules.mutant == Some(Mutant::RepairAtOnce) {
            let held = if held == Some(true) { held } else { None };
            return if self.expects(round) {
                self.handle_extension(rules, node, held, now)
            } else {
                vec![]
            };
        }
        self.repairing.set(node, false);
        self.record_answer(node, held);
        vec![]
    }

    pub(crate) fn record_answer(&mut self, node: usize, held: Option<bool>) {
        self.known.set(node, held == Some(true));
    }
}

impl Nodes {
    pub(crate) fn set(&mut self, node: usize, on: bool) {
        self.0 = self.0 & !(1 << node) | u8::from(on) << node;
    }

    fn has(self, node: usize) -> bool {
        self.0 & 1 << node != 0
    }
}
