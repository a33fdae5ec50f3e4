//! What to do about a node that does not answer, or that a client does not count.

use quorlock_core::client::NodeError;
use quorlock_core::node::Unwritable;

/// Returns what a server refuses and what to do, for a word of [`Unwritable`]. A newer module may
/// report a word that this program does not know.
pub(crate) fn unwritable_advice(reason: &str) -> (&'static str, &'static str) {
    match Unwritable::ALL.into_iter().find(|known| known.word() == reason) {
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
    }
}

/// Returns one sentence that says what to do, if the error itself does not.
pub(crate) fn advice(error: &NodeError) -> Option<&'static str> {
    match error {
        NodeError::Down { reason } if reason.contains("refused") => {
            Some("start the server, or correct its address")
        }
        NodeError::Down { reason } if reason.contains("lookup") || reason.contains("resolve") => {
            Some("correct the host name, or its entry in the DNS")
        }
        NodeError::Down { reason } if reason.contains("No such file") => {
            Some("start the server, or correct the path of its socket")
        }
        NodeError::Down { .. } => Some("check that the server runs, and the network to it"),
        NodeError::TimedOut { .. } => {
            Some("check that the server is not stopped or overloaded, or raise --node-timeout")
        }
        NodeError::ErrorReply(words) if words.starts_with("LOADING") => {
            Some("wait until the server has loaded its data")
        }
        NodeError::UnexpectedReply => {
            Some("check that the address is that of a Redis or Valkey server")
        }
        NodeError::Misconfigured { reason } if reason.contains("certificate") => {
            Some("check the node's certificate, and --cacert")
        }
        _ => None,
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
            let advice = advice(&NodeError::Down { reason: reason.into() }).unwrap();
            assert!(advice.contains(hint), "{reason}: {advice}");
        }
        assert_eq!(advice(&NodeError::NoModule), None, "the error itself says what to do");
    }
}
