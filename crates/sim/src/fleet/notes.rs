//! What a process reports to the checkers.

use std::ops::Deref;
use std::sync::Arc;

use quorlock_core::client::{Failure, Hold, Spec, Token};
use quorlock_core::quorum::{ExtensionVerdict, Moment, Ownership};

use super::claims::MachineId;
use super::clock::Ns;

/// A call of a program, and what its process knows of it.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) spec: Arc<Spec>,
    pub(super) key_set: usize,
    pub(super) started: Ns,
    /// When the call must have ended, unless it waits without a limit.
    pub(super) due: Option<Moment>,
    /// For each node: when the last request that it refused was sent.
    pub(super) asked_at: Vec<Ns>,
    /// For each node: when the last request of any kind was sent to it.
    pub(super) sent_at: Vec<Ns>,
    /// Whether the call has sent any request.
    pub(super) has_asked: bool,
    pub(super) renews: bool,
    /// The token of the detached lock, if the call attaches one.
    pub(super) attaches: Option<Token>,
}

/// A lock that a call acquired. It may have ended since.
pub(super) struct Lock<'a> {
    pub(super) id: MachineId,
    pub(super) hold: &'a Hold,
    pub(super) facts: &'a HeldLock,
}

#[derive(Clone, Debug)]
pub(super) struct HeldLock {
    pub(super) call: Call,
    /// The keys that the lock took of the set, as indexes of `Plan::names`.
    pub(super) keys: Vec<usize>,
    /// When the process acquired the lock.
    pub(super) since: Ns,
    /// The round of extensions for whose verdict the caller waits.
    pub(super) awaited_round: Option<u32>,
    pub(super) round_began: Ns,
}

/// A fact about an event, for the checkers.
#[derive(Clone, Debug)]
pub(super) enum Note {
    Granted(MachineId),
    Extended { id: MachineId, verdict: ExtensionVerdict, round_began: Ns },
    Released { id: MachineId, lock: HeldLock, ownership: Ownership },
    Failed { id: MachineId, call: Call, failure: Failure },
}

impl Call {
    pub(super) fn new(key_set: usize, spec: Arc<Spec>, now: Ns, nodes: usize) -> Self {
        Self {
            spec,
            key_set,
            started: now,
            due: None,
            asked_at: vec![now; nodes],
            sent_at: vec![now; nodes],
            has_asked: false,
            renews: false,
            attaches: None,
        }
    }
}

impl Deref for Lock<'_> {
    type Target = HeldLock;

    fn deref(&self) -> &HeldLock {
        self.facts
    }
}
