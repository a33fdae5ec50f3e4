//! What is wrong with a node, and what to do about it.

use quorlock_core::NodeError;
use quorlock_core::node::Unwritable;
use serde::Serialize;

use super::snapshot::State;
use crate::output::{escape, short_time};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Severity {
    /// Locks work, or will work soon, with less safety or capacity than they could have.
    Warning,
    /// A node never counts, refuses some requests of the programs, or is too far away for their
    /// ttl; or no majority votes.
    Error,
}

/// One fault, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    pub(crate) severity: Severity,
    /// The name of the check, for programs.
    pub(crate) check: &'static str,
    /// The nodes with this fault, in the order in which the user names them; empty if the fault
    /// concerns all nodes together.
    pub(crate) nodes: Vec<String>,
    pub(crate) what: String,
    pub(crate) todo: String,
}

impl Finding {
    /// Makes a finding with these texts, which are escaped: they may quote a server.
    pub(crate) fn error(
        check: &'static str,
        what: impl Into<String>,
        todo: impl Into<String>,
    ) -> Self {
        let (what, todo) = (escape(&what.into()), escape(&todo.into()));
        Self { severity: Severity::Error, check, nodes: Vec::new(), what, todo }
    }

    pub(crate) fn warning(
        check: &'static str,
        what: impl Into<String>,
        todo: impl Into<String>,
    ) -> Self {
        Self { severity: Severity::Warning, ..Self::error(check, what, todo) }
    }

    /// Makes this a finding about one node.
    pub(crate) fn about(self, node: &str) -> Self {
        Self { nodes: vec![node.to_owned()], ..self }
    }

    pub(crate) fn is_same_fault(&self, other: &Self) -> bool {
        *self == Self { nodes: self.nodes.clone(), ..other.clone() }
    }
}

impl State {
    /// Says why the node does not vote; `None` if it votes.
    pub(crate) fn finding(&self) -> Option<Finding> {
        match self {
            Self::Voting => None,
            Self::Abstaining(abstention) => {
                let left = abstention.left.map(|left| format!(" for {}", short_time(left)));
                let (reason, left) = (&abstention.reason, left.unwrap_or_default());
                Some(Finding::warning(
                    "abstaining",
                    format!("{reason}: it grants no locks{left}, since it may have forgotten some"),
                    "wait, and restart no other node until it votes again",
                ))
            }
            Self::Unwritable(reason) => Some(unwritable(reason)),
            Self::NotCounted(error) | Self::Down(error) => Some(of_error(error)),
        }
    }
}

/// Returns what a server refuses, for a word of [`Unwritable`]. A newer module may report a word
/// that this program does not know.
fn unwritable(reason: &str) -> Finding {
    let known = Unwritable::ALL.into_iter().find(|known| known.word() == reason);
    let (what, todo) = match known {
        Some(Unwritable::Loading) => {
            ("it loads its data, and answers no request", "wait until the server has loaded it")
        }
        Some(Unwritable::MemoryFull) => (
            "its memory is full: it refuses new locks, while held locks can be extended",
            "raise maxmemory, or remove what other programs store on this server",
        ),
        Some(Unwritable::SaveFailed) => (
            "its last save to disk failed: it refuses all writes, and extends no lock",
            "see the log of the server, correct its disk, and send BGSAVE",
        ),
        Some(Unwritable::TooFewReplicas) => (
            "it has fewer replicas than min-replicas-to-write: it refuses all writes, and extends \
             no lock",
            "connect its replicas, or CONFIG SET min-replicas-to-write 0: locks need no replica",
        ),
        Some(Unwritable::WritesPaused) => (
            "its writes are paused, by CLIENT PAUSE or FAILOVER: every request for a lock waits",
            "wait, or end the pause with CLIENT UNPAUSE",
        ),
        None => ("it refuses writes", "see the log of the server"),
    };
    let is_passing = matches!(known, Some(Unwritable::Loading | Unwritable::WritesPaused));
    let finding = if is_passing { Finding::warning } else { Finding::error };
    finding("unwritable", format!("{reason}: {what}"), todo)
}

fn of_error(error: &NodeError) -> Finding {
    let words = error.to_string();
    match error {
        NodeError::NoModule => Finding::error(
            "module-missing",
            "the lock module is not loaded",
            "add `loadmodule /path/to/libquorlock.so` to its redis.conf and restart it",
        ),
        NodeError::Replica => Finding::error(
            "replica",
            "it is a replica, and grants no locks",
            "name its master instead",
        ),
        NodeError::WrongMode { mode } => Finding::error(
            "cluster-or-sentinel",
            format!("it runs in {mode} mode"),
            "name servers that are independent masters",
        ),
        NodeError::SameServer { node } => Finding::error(
            "same-server",
            format!("it is the same server as {node}, and has no vote of its own"),
            "list each server once, or start another one in its place",
        ),
        NodeError::NotAdmitted { reason } => {
            let (what, todo) = reason.split_once("; ").unwrap_or((reason, "correct its lock.set"));
            Finding::error("set-differs", what, todo)
        }
        NodeError::Denied { reason } => Finding::error(
            "denied",
            format!("it does not accept the user: {reason}"),
            "correct user, password or ACL",
        ),
        NodeError::Misconfigured { reason } if reason.contains("certificate") => {
            let todo = "check the node's certificate, and --cacert";
            Finding::error("misconfigured", words, todo)
        }
        error if error.is_permanent() => {
            Finding::error("misconfigured", words, "correct the URL of the node")
        }
        error => Finding::warning("down", words, advice(error)),
    }
}

/// Returns what to do about a node that is down.
fn advice(error: &NodeError) -> &'static str {
    match error {
        NodeError::Down { reason } if reason.contains("refused") => {
            "start the server, or correct its address"
        }
        NodeError::Down { reason } if reason.contains("lookup") || reason.contains("resolve") => {
            "correct the host name, or its entry in the DNS"
        }
        NodeError::Down { reason } if reason.contains("No such file") => {
            "start the server, or correct the path of its socket"
        }
        NodeError::Down { .. } => "check that the server runs, and the network to it",
        NodeError::TimedOut { .. } => {
            "check that the server is not stopped or overloaded, or raise --node-timeout"
        }
        NodeError::ErrorReply(words) if words.starts_with("LOADING") => {
            "wait until the server has loaded its data"
        }
        NodeError::UnexpectedReply => "check that the address is that of a Redis or Valkey server",
        _ => "see the log of the server",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_of_a_down_node_has_its_advice() {
        for (reason, hint) in [
            ("Connection refused (os error 111)", "start the server"),
            ("failed to lookup address information", "host name"),
            ("No such file or directory (os error 2)", "socket"),
            ("broken pipe", "network"),
        ] {
            let advice = advice(&NodeError::Down { reason: reason.into() });
            assert!(advice.contains(hint), "{reason}: {advice}");
        }
    }
}
