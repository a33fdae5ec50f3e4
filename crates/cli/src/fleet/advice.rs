//! What to do about a node that does not answer, or that a client does not count.

use quorlock_core::client::NodeError;

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
