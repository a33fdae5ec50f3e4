//! The answers of the nodes, prepared for the screen.

use std::time::{Duration, Instant};

use quorlock_client::{LeaseInfo, ListedLock, LockList, LockState, NodeError};

use crate::fleet::Report;
use crate::inspect::{Summary, Verdict, leases};
use crate::output::{escape_short, owner};

/// The nodes and their locks at one moment.
#[derive(Debug)]
pub(super) struct Snapshot {
    pub(super) at: Instant,
    /// The time from the start of this gathering to the start of the next.
    pub(super) interval: Duration,
    pub(super) report: Report,
    pub(super) locks: Locks,
}

#[derive(Debug, Default)]
pub(super) struct Locks {
    /// When the nodes listed them; `None` if no node answered.
    pub(super) at: Option<Instant>,
    pub(super) list: Vec<Lock>,
    /// Why some locks are missing, if any are.
    pub(super) problem: Option<String>,
}

/// All texts but those in `answers` are escaped for the terminal.
#[derive(Clone, Debug)]
pub(super) struct Lock {
    pub(super) key: String,
    pub(super) owner: String,
    pub(super) fence: Option<u64>,
    /// The time since the first node granted it; `None` if no node says.
    pub(super) held: Option<Duration>,
    /// How much longer it lasts at most; `None` if it has no known end.
    pub(super) left: Option<Duration>,
    pub(super) waiters: u64,
    /// The number of nodes that have a lease on the key.
    pub(super) nodes: usize,
    pub(super) verdict: Verdict,
    pub(super) is_shared: bool,
    /// The answer of each node, for the details.
    pub(super) answers: Vec<Result<Option<LeaseInfo>, NodeError>>,
}

impl Locks {
    pub(super) fn new(list: LockList) -> Self {
        let mut problems = Vec::new();
        if list.is_truncated {
            let shown = list.locks.len();
            problems.push(format!("only the first {shown} locks are shown: give a pattern"));
        }
        let failed = list.nodes.iter().filter_map(|(node, error)| Some((node, error.as_ref()?)));
        problems.extend(
            failed.map(|(node, error)| format!("{node}: {}", escape_short(error.to_string()))),
        );
        let problem = (!problems.is_empty()).then(|| problems.join("; "));
        Self {
            at: Some(Instant::now()),
            list: list.locks.into_iter().map(Lock::new).collect(),
            problem,
        }
    }

    pub(super) fn failed(problem: String) -> Self {
        Self { at: None, list: Vec::new(), problem: Some(problem) }
    }
}

impl Lock {
    fn new(listed: ListedLock) -> Self {
        let ListedLock { key, lock: inspection, .. } = listed;
        let summary = Summary::of(&inspection);
        let leases = || leases(&inspection);
        let label = match &inspection.state {
            LockState::Held(held) => held.owner.as_deref(),
            // A lock that is being acquired, or that was left behind.
            LockState::Free | LockState::Unclear => {
                leases().find_map(|lease| lease.owner.as_deref())
            }
        };
        Self {
            key: escape_short(&key),
            owner: match summary.held {
                Some(held) if held.holders > 1 => format!("{} +{}", owner(label), held.holders - 1),
                _ => owner(label),
            },
            fence: summary.held.map(|held| held.fence.get()),
            held: leases().filter_map(|lease| lease.held_for).max(),
            left: match summary.held {
                Some(held) => Some(held.at_most),
                None => leases().filter_map(|lease| lease.ttl).max(),
            },
            waiters: summary.waiters,
            nodes: leases().count(),
            verdict: summary.verdict,
            is_shared: summary.is_shared(),
            answers: inspection.nodes.into_iter().map(|node| node.lease).collect(),
        }
    }

    pub(super) fn state(&self) -> &'static str {
        match self.verdict {
            Verdict::Held if self.is_shared => "shared",
            Verdict::Held => "held",
            Verdict::Revoked => "revoked",
            Verdict::Foreign => "foreign",
            Verdict::Free => "minority",
            Verdict::NoMajority => "unknown",
            Verdict::Divided => "divided",
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::fleet::report::tests::voting;

    /// Makes a lock that was granted `held` s ago and has `left` s left.
    pub(in crate::top) fn lock(key: &str, owner: &str, held: u64, left: u64, waiters: u64) -> Lock {
        let mut lease = LeaseInfo::default();
        lease.owner = Some(owner.to_owned());
        lease.ttl = Some(Duration::from_secs(left));
        Lock {
            key: key.to_owned(),
            owner: owner.to_owned(),
            fence: Some(7),
            held: Some(Duration::from_secs(held)),
            left: Some(Duration::from_secs(left)),
            waiters,
            nodes: 2,
            verdict: Verdict::Held,
            is_shared: false,
            answers: vec![Ok(Some(lease.clone())), Ok(Some(lease)), Ok(None)],
        }
    }

    pub(in crate::top) fn snapshot(locks: Vec<Lock>) -> Snapshot {
        Snapshot {
            at: Instant::now(),
            interval: Duration::from_secs(1),
            report: Report::new(voting(3)),
            locks: Locks { at: Some(Instant::now()), list: locks, problem: None },
        }
    }
}
