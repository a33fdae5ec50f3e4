//! The error replies of the commands: a code for programs, and a sentence for people.

use std::fmt;

use quorlock_core::node::{
    self, KEY_BYTES_MAX, KEYS_MAX, PATTERN_BYTES_MAX, Reason, SCAN_COUNT_MAX,
};
use quorlock_core::{Fence, TtlError};

use crate::request::{OWNER_BYTES_MAX, TOKEN_BYTES_MAX, WAIT_MS_MAX};

/// Why a command was not carried out.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub(crate) enum CommandError {
    /// The reply is the server's own.
    #[error("ERR wrong number of arguments")]
    Arity,
    #[error("ERR value is not an integer or out of range")]
    NotAnInteger,
    #[error("ERR numkeys must be between 1 and {KEYS_MAX}: it says how many keys follow")]
    NumKeys,
    #[error("ERR {0} (lock.max-ttl)")]
    Ttl(#[from] TtlError),
    #[error(
        "ERR token must be 1 to {TOKEN_BYTES_MAX} bytes: use at least 16 random bytes, new for \
         every attempt"
    )]
    TokenLength,
    #[error("ERR OWNER must be at most {OWNER_BYTES_MAX} bytes: it is a label for people to read")]
    OwnerLength,
    #[error("ERR OWNER must be UTF-8: it is a label for people to read")]
    OwnerNotText,
    #[error("ERR FENCE must be between {min} and {}", Fence::MAX.get())]
    FenceRange { min: u64 },
    #[error("ERR WAIT must be between 0 and {WAIT_MS_MAX} milliseconds")]
    WaitRange,
    /// `after` is the argument after which options may follow.
    #[error("ERR syntax error: only {allowed} may follow the {after}")]
    UnknownOption { after: &'static str, allowed: &'static str },
    #[error("ERR invalid cursor: begin with 0, and continue with the cursor of the last reply")]
    Cursor,
    #[error("ERR MATCH must be at most {PATTERN_BYTES_MAX} bytes")]
    PatternLength,
    #[error("ERR COUNT must be between 1 and {SCAN_COUNT_MAX}")]
    CountRange,
    #[error("ERR syntax error: an option is repeated; name each once")]
    RepeatedOption,
    #[error(fmt = write_node_error)]
    Node(node::CommandError),
}

impl From<node::CommandError> for CommandError {
    fn from(error: node::CommandError) -> Self {
        Self::Node(error)
    }
}

fn write_node_error(error: &node::CommandError, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    use node::CommandError as Error;

    match error {
        Error::OtherKeys => f.write_str(
            "ERR the token holds these keys, but they are not all the keys of one lock: name each \
             key of the lock and no other (LOCK.MEXTEND)",
        ),
        Error::KeyLength => write!(f, "ERR a key of a lock must be at most {KEY_BYTES_MAX} bytes"),
        Error::WrongType => {
            f.write_str("WRONGTYPE Operation against a key holding the wrong kind of value")
        }
        Error::SeveralShared => f.write_str(
            "ERR only LOCK.ACQUIRE and LOCK.EXTEND take SHARED: a lock of several keys, or of any \
             of several, is exclusive",
        ),
        Error::TokenInUse => f.write_str(
            "ERR the new token already holds this lock: use at least 16 random bytes, new every \
             time",
        ),
        Error::AlreadyWaits => f.write_str(
            "ERR the token already waits for one of these keys: use a new token for every attempt, \
             or FENCE to repeat a request",
        ),
        Error::NoExpiry => f.write_str(
            "ERR the key holds a string without an expiry, which is data and not a lock: remove it \
             with DEL if it is not needed",
        ),
        Error::NotWritten => {
            f.write_str("ERR the server refused to write the key: nothing was locked or revoked")
        }
        Error::Held { number, is_older: true } => write!(
            f,
            "HELD {number} older: an older client holds the lock or waits for it; wait, or give up"
        ),
        Error::Held { number, is_older: false } => write!(
            f,
            "HELD {number} younger: only younger clients hold the lock or wait for it; wait, or \
             give up"
        ),
        Error::TicketTooFarAhead { largest } => write!(
            f,
            "ERR FENCE is more than twice lock.max-clock-skew ahead of this server's clock: set \
             the clocks right; the largest that it accepts now is {largest}"
        ),
        Error::BadFence(error) => write!(f, "BADFENCE {error}"),
        Error::QueueFull { max_waiters } => write!(
            f,
            "QUEUEFULL {max_waiters} clients already wait: try again later, or raise \
             lock.max-waiters"
        ),
        Error::Revoked { left_ms } => write!(
            f,
            "REVOKED {left_ms} an operator revoked this lock: finish within {left_ms} ms, it \
             cannot be extended"
        ),
        Error::Abstaining { reason, left_ms } => {
            write!(f, "ABSTAIN {left_ms} {reason}: this node ")?;
            let why = match reason {
                Reason::Start => "started recently",
                Reason::Promotion => "was a replica until recently",
                Reason::SwapDb => "swapped two databases recently",
                Reason::Replica => {
                    return f.write_str("is a replica and grants no locks; ask its master");
                }
            };
            write!(f, "{why}; it grants locks again in {left_ms} ms; ask the other nodes")
        }
    }
}
