use std::fmt;

use super::Monotonic;

/// Why a node abstains: what may have made it forget locks that are still held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// It was started, or the module was loaded.
    Start,
    /// It was a replica, and replication is asynchronous.
    Promotion,
    /// Two databases were swapped, and the locks in them.
    SwapDb,
    /// It is a replica, and grants nothing at all.
    Replica,
}

impl Reason {
    /// One word.
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

/// Whether, and until when, a node stays out of elections: until every lock that it may have forgotten has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Abstention {
    until: Option<(Monotonic, Reason)>,
    replica: bool,
}

impl Abstention {
    /// Begins, or goes on for longer. It is never cut short.
    pub(super) fn begin(&mut self, now: Monotonic, for_ms: u64, reason: Reason) {
        let until = now.plus_us(for_ms.saturating_mul(1000));
        if until > now && self.until.is_none_or(|(old, _)| old < until) {
            self.until = Some((until, reason));
        }
    }

    pub(super) fn set_replica(&mut self, replica: bool) {
        self.replica = replica;
    }

    /// Why the node abstains, and for how much longer; without end as long as it is a replica.
    pub(super) fn why(&self, now: Monotonic) -> Option<(Reason, Option<u64>)> {
        if self.replica {
            return Some((Reason::Replica, None));
        }
        self.until.map(|(until, reason)| (reason, Some(until.ms_since(now))))
    }

    /// When it is to be ended.
    pub(super) fn until(&self) -> Option<Monotonic> {
        self.until.map(|(until, _)| until)
    }

    /// Whether it goes on, or its end is due.
    pub(super) fn is_on(&self) -> bool {
        self.replica || self.until.is_some()
    }

    pub(super) fn is_replica(&self) -> bool {
        self.replica
    }

    /// Ends it, if its time is over.
    pub(super) fn end_if_due(&mut self, now: Monotonic) -> Option<Reason> {
        self.until.take_if(|(until, _)| *until <= now).map(|(_, reason)| reason)
    }
}
