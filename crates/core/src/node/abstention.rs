use std::fmt;

#[cfg(doc)]
use super::ServerEvent;
use super::{Monotonic, Node, Now};

/// Why a node abstains: what may have made it forget locks that are still held.
///
/// The abstention lasts until every lock that the node may have forgotten has ended. A replica
/// abstains until it is promoted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The server started or loaded the module. The node abstains for `lock.rejoin-delay`, by
    /// default as long as `lock.max-ttl` ([`Node::new`]).
    Start,
    /// The node was a replica, and replication is asynchronous. The node abstains for
    /// `lock.max-ttl` ([`ServerEvent::Promoted`]).
    Promotion,
    /// An operator swapped two databases. The node ends the leases in both, and abstains for
    /// `lock.max-ttl` ([`ServerEvent::Swap`]).
    SwapDb,
    /// The node is a replica. It grants nothing until it is promoted.
    Replica,
}

impl Reason {
    /// The reason as one word, as INFO and error texts show it.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Promotion => "promotion",
            Self::SwapDb => "swapdb",
            Self::Replica => "replica",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// Whether a node abstains, and until when.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Abstention {
    until: Option<(Monotonic, Reason)>,
    pub(super) is_replica: bool,
}

impl Node {
    /// Abstains for `lock.max-ttl`.
    pub(super) fn abstain(&mut self, now: Now, reason: Reason) {
        self.abstention.begin(now.monotonic, self.max_ttl.ms(), reason);
        self.fences.raise_all_to_ceiling(now.wall_us);
    }
}

impl Abstention {
    /// The abstention of a node that starts now.
    pub(super) fn at_start(now: Monotonic, rejoin_delay_ms: u64) -> Self {
        let mut abstention = Self::default();
        abstention.begin(now, rejoin_delay_ms, Reason::Start);
        abstention
    }

    /// Begins an abstention, or prolongs it. Never shortens it.
    fn begin(&mut self, now: Monotonic, for_ms: u64, reason: Reason) {
        let until = now.plus_us(for_ms.saturating_mul(1000));
        if until > now && self.until.is_none_or(|(old, _)| old < until) {
            self.until = Some((until, reason));
        }
    }

    /// See [`Node::abstention`].
    pub(super) fn why(&self, now: Monotonic) -> Option<(Reason, Option<u64>)> {
        if self.is_replica {
            return Some((Reason::Replica, None));
        }
        self.until.map(|(until, reason)| (reason, Some(until.ms_since(now))))
    }

    /// When the abstention that [`begin`](Self::begin) began ends; `None` if there is none. A
    /// replica still abstains after that time.
    pub(super) fn until(&self) -> Option<Monotonic> {
        self.until.map(|(until, _)| until)
    }

    /// Whether the node abstains. Stays true until [`Self::end_if_due`] has ended the abstention.
    pub(super) fn is_on(&self) -> bool {
        self.is_replica || self.until.is_some()
    }

    /// Ends the abstention if its time is over, and returns its reason.
    pub(super) fn end_if_due(&mut self, now: Monotonic) -> Option<Reason> {
        self.until.take_if(|(until, _)| *until <= now).map(|(_, reason)| reason)
    }
}
