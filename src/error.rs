//! The text of every error reply: a code for programs, and a sentence for people.

use std::fmt;

use quorlock_core::node::{self, FenceError, KEYS_MAX, PATTERN_BYTES_MAX, Reason, SCAN_COUNT_MAX};
use quorlock_core::{Fence, TtlError};

use crate::request::{OWNER_BYTES_MAX, TOKEN_BYTES_MAX, WAIT_MS_MAX};

/// Why a command was not carried out.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CommandError {
    /// The server words this error itself.
    Arity,
    NotAnInteger,
    NumKeys,
    OtherKeys,
    Ttl(TtlError),
    TokenLength,
    OwnerLength,
    OwnerNotText,
    FenceRange,
    WaitRange,
    QueueFull {
        max_waiters: usize,
    },
    Fence(FenceError),
    UnknownOption {
        /// The argument after which options may follow.
        after: &'static str,
        /// The options that the command accepts.
        takes: &'static str,
    },
    Cursor,
    PatternLength,
    CountRange,
    RepeatedOption,
    WrongType,
    Abstaining {
        reason: Reason,
        left_ms: u64,
    },
    Revoked {
        left_ms: u64,
    },
    SeveralShared,
    TokenInUse,
    NoExpiry,
    NotWritten,
}

impl From<TtlError> for CommandError {
    fn from(error: TtlError) -> Self {
        Self::Ttl(error)
    }
}

impl From<node::CommandError> for CommandError {
    fn from(error: node::CommandError) -> Self {
        match error {
            node::CommandError::Abstaining { reason, left_ms } => {
                Self::Abstaining { reason, left_ms }
            }
            node::CommandError::WrongType => Self::WrongType,
            node::CommandError::OtherKeys => Self::OtherKeys,
            node::CommandError::BadFence(error) => Self::Fence(error),
            node::CommandError::QueueFull { max_waiters } => Self::QueueFull { max_waiters },
            node::CommandError::Revoked { left_ms } => Self::Revoked { left_ms },
            node::CommandError::SeveralShared => Self::SeveralShared,
            node::CommandError::TokenInUse => Self::TokenInUse,
            node::CommandError::NoExpiry => Self::NoExpiry,
            node::CommandError::NotWritten => Self::NotWritten,
        }
    }
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Arity => write!(f, "ERR wrong number of arguments"),
            Self::NotAnInteger => write!(f, "ERR value is not an integer or out of range"),
            Self::NumKeys => {
                write!(
                    f,
                    "ERR numkeys must be between 1 and {KEYS_MAX}: it says how many keys follow"
                )
            }
            Self::OtherKeys => write!(
                f,
                "ERR the token holds these keys, but not as one lock: name exactly the keys of the lock \
                 (LOCK.MEXTEND)"
            ),
            Self::Ttl(error) => write!(f, "ERR {error} (lock.max-ttl)"),
            Self::TokenLength => {
                write!(
                    f,
                    "ERR token must be 1 to {TOKEN_BYTES_MAX} bytes: use at least 16 random \
                     bytes, new for every attempt"
                )
            }
            Self::OwnerLength => {
                write!(
                    f,
                    "ERR OWNER must be at most {OWNER_BYTES_MAX} bytes: it is a label for \
                     people to read"
                )
            }
            Self::OwnerNotText => {
                write!(f, "ERR OWNER must be UTF-8: it is a label for people to read")
            }
            Self::FenceRange => write!(f, "ERR FENCE must be between 1 and {}", Fence::MAX.get()),
            Self::WaitRange => {
                write!(f, "ERR WAIT must be between 0 and {WAIT_MS_MAX} milliseconds")
            }
            Self::QueueFull { max_waiters } => write!(
                f,
                "QUEUEFULL {max_waiters} clients already wait: try again later, or raise lock.max-waiters"
            ),
            Self::Fence(error) => write!(f, "BADFENCE {error}"),
            Self::UnknownOption { after, takes } => {
                write!(f, "ERR syntax error: only {takes} may follow the {after}")
            }
            Self::Cursor => {
                write!(
                    f,
                    "ERR invalid cursor: begin with 0, and continue with the cursor of the last reply"
                )
            }
            Self::PatternLength => write!(f, "ERR MATCH must be at most {PATTERN_BYTES_MAX} bytes"),
            Self::CountRange => write!(f, "ERR COUNT must be between 1 and {SCAN_COUNT_MAX}"),
            Self::RepeatedOption => {
                write!(f, "ERR syntax error: an option is repeated; name each once")
            }
            Self::WrongType => {
                write!(f, "WRONGTYPE Operation against a key holding the wrong kind of value")
            }
            Self::Abstaining { reason, left_ms } => {
                let why = match reason {
                    Reason::Start => "started recently",
                    Reason::Promotion => "was a replica until recently",
                    Reason::SwapDb => "swapped two databases recently",
                    Reason::Replica => {
                        return write!(
                            f,
                            "ABSTAIN {left_ms} {reason}: this node is a replica and grants no locks; ask its master"
                        );
                    }
                };
                write!(
                    f,
                    "ABSTAIN {left_ms} {reason}: this node {why}; it grants locks again in {left_ms} ms; ask the other nodes"
                )
            }
            Self::Revoked { left_ms } => write!(
                f,
                "REVOKED {left_ms} an operator revoked this lock: finish within {left_ms} ms, it cannot be extended"
            ),
            Self::SeveralShared => {
                write!(
                    f,
                    "ERR a lock of several keys is exclusive: use SHARED with LOCK.ACQUIRE or LOCK.EXTEND"
                )
            }
            Self::TokenInUse => {
                write!(
                    f,
                    "ERR the new token already holds this lock: use at least 16 random bytes, new every time"
                )
            }
            Self::NoExpiry => write!(
                f,
                "ERR the key holds a string without an expiry, which is data and not a lock: remove it with DEL"
            ),
            Self::NotWritten => {
                write!(f, "ERR the server refused to write the key; nothing was locked or revoked")
            }
        }
    }
}
