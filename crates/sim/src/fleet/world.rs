//! The state that all parts of a run share: the time, the network, the nodes, the trace, and the
//! facts for the checkers.

use std::sync::Arc;

use quorlock_core::client::{Spec, Token};

use super::Report;
use super::claims::Claims;
use super::clock::Ns;
use super::events::Events;
use super::host::Host;
use super::network::Network;
use super::notes::Note;
use super::plan::Plan;

/// Writes a line of the trace, if it was requested.
macro_rules! trace {
    ($world:expr, $($line:tt)*) => {
        if $world.is_traced {
            use std::fmt::Write as _;
            let (now, ms) = ($world.now, $crate::fleet::clock::MS);
            let _ = write!($world.report.trace, "{:>8}.{:06} ", now / ms, now % ms);
            let _ = writeln!($world.report.trace, $($line)*);
        }
    };
}

pub(super) struct World {
    pub(super) now: Ns,
    pub(super) plan: Arc<Plan>,
    pub(super) events: Events,
    pub(super) network: Network,
    pub(super) hosts: Vec<Host>,
    pub(super) claims: Claims,
    pub(super) report: Report,
    /// Whether the report gets a line for each important event.
    pub(super) is_traced: bool,
    /// Facts about the present event. The checkers take them at its end.
    pub(super) notes: Vec<Note>,
    /// Locks that no caller has attached yet: their set of keys, token and description.
    pub(super) detached: Vec<(usize, Token, Arc<Spec>)>,
    /// Tokens of locks that an operator has ended on at least one node.
    pub(super) ended_by_operator: Vec<Token>,
    /// Tokens of locks that an operator has ended on a majority, and when.
    pub(super) ended_on_majority: Vec<(Token, Ns)>,
    /// The revocations by an operator: the node, the key, and the time.
    pub(super) revocations: Vec<(usize, usize, Ns)>,
    /// For a token and a node: when the node first answered that the lock is revoked.
    pub(super) revoked_answers: Vec<(Token, usize, Ns)>,
    /// When callers stopped making new calls; `None` before that.
    pub(super) ended_at: Option<Ns>,
    /// Number of timers of processes that fired, and of messages that arrived at hosts.
    pub(super) activity: u64,
    pub(super) last_lease_at: Ns,
}

impl World {
    pub(super) fn new(
        plan: &Arc<Plan>,
        hosts: Vec<Host>,
        network: Network,
        is_traced: bool,
    ) -> Self {
        Self {
            now: 0,
            events: Events::default(),
            hosts,
            network,
            claims: Claims::new(plan.nodes, plan.names.len()),
            report: Report { seed: plan.seed, ..Report::default() },
            is_traced,
            notes: Vec::new(),
            detached: Vec::new(),
            ended_by_operator: Vec::new(),
            ended_on_majority: Vec::new(),
            revocations: Vec::new(),
            revoked_answers: Vec::new(),
            ended_at: None,
            activity: 0,
            last_lease_at: 0,
            plan: Arc::clone(plan),
        }
    }

    pub(super) fn record_revoked_answer(&mut self, token: Token, node: usize) {
        if !self.revoked_answers.iter().any(|&(of, by, _)| (of, by) == (token, node)) {
            self.revoked_answers.push((token, node, self.now));
        }
    }

    /// Records a violation if it is the first one.
    pub(super) fn violate(&mut self, what: String) {
        trace!(self, "VIOLATION: {what}");
        self.report.violation.get_or_insert(what);
    }

    /// Formats a token for a trace: its process, its call, and its first characters.
    pub(super) fn short(&self, token: Token) -> String {
        let call = self.claims.call_of(token).unwrap_or_default();
        format!("{call}:{}", &token.as_str()[..4])
    }
}
