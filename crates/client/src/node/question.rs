use std::sync::Arc;
use std::time::Duration;

use ::redis::{Cmd, RedisError, Value};
use quorlock_core::{Fence, Ttl};

use crate::keys::Keys;
use crate::token::Token;
use crate::{Answer, NodeError};

/// A command and how to read its answer. Built once for all nodes.
#[derive(Clone)]
pub(crate) struct Question {
    pub(crate) command: Arc<Cmd>,
    yes: Yes,
}

/// What an integer means.
#[derive(Clone, Copy)]
enum Yes {
    /// A fence.
    Fence,
    /// 1, where 0 is no.
    One,
    /// A fence, and how long it was waited for.
    FenceAfterWait,
}

/// What a node answered.
#[derive(Clone, Debug)]
pub(crate) enum Reply {
    Yes(Option<Fence>),
    /// An ACQUIRE with WAIT was granted.
    Granted {
        fence: Fence,
        waited: Duration,
    },
    No,
    Failed(NodeError),
}

impl Question {
    pub(crate) fn acquire(keys: &Keys, token: &Token, ttl: Ttl, hint: Fence, owner: Option<&str>) -> Self {
        let command = Self::acquire_command(keys, token, ttl, hint, owner);
        Self { command: Arc::new(command), yes: Yes::Fence }
    }

    pub(crate) fn acquire_command(
        keys: &Keys,
        token: &Token,
        ttl: Ttl,
        hint: Fence,
        owner: Option<&str>,
    ) -> Cmd {
        let mut command = keys.command("LOCK.ACQUIRE", "LOCK.MACQUIRE");
        command.arg(token.as_str()).arg(ttl.ms()).arg("FENCE").arg(hint.get());
        if let Some(owner) = owner {
            command.arg("OWNER").arg(owner);
        }
        command
    }

    /// The longest wait that a node allows: a week.
    pub(crate) const WAIT_MAX: Duration = Duration::from_millis(Ttl::MAX_MS);

    pub(crate) fn wait(
        keys: &Keys,
        token: &Token,
        ttl: Ttl,
        wait: Duration,
        hint: Fence,
        owner: Option<&str>,
    ) -> Self {
        let mut command = keys.command("LOCK.ACQUIRE", "LOCK.MACQUIRE");
        // At least one, because zero is not to wait at all.
        let wait_ms = u64::try_from(wait.min(Self::WAIT_MAX).as_millis()).unwrap_or(Ttl::MAX_MS).max(1);
        command.arg(token.as_str()).arg(ttl.ms()).arg("WAIT").arg(wait_ms).arg("FENCE").arg(hint.get());
        if let Some(owner) = owner {
            command.arg("OWNER").arg(owner);
        }
        Self { command: Arc::new(command), yes: Yes::FenceAfterWait }
    }

    pub(crate) fn extend(keys: &Keys, token: &Token, ttl: Ttl, fence: Option<Fence>) -> Self {
        let command = Self::extend_command(keys, token, ttl, fence);
        Self { command: Arc::new(command), yes: Yes::Fence }
    }

    pub(crate) fn extend_command(keys: &Keys, token: &Token, ttl: Ttl, fence: Option<Fence>) -> Cmd {
        let mut command = keys.command("LOCK.EXTEND", "LOCK.MEXTEND");
        command.arg(token.as_str()).arg(ttl.ms());
        if let Some(fence) = fence {
            command.arg("FENCE").arg(fence.get());
        }
        command
    }

    /// Swaps the token: from then on only the new one holds the lock.
    pub(crate) fn take_over(keys: &Keys, old: &Token, new: &Token, ttl: Ttl) -> Self {
        let mut command = Self::extend_command(keys, old, ttl, None);
        command.arg("TOKEN").arg(new.as_str());
        Self { command: Arc::new(command), yes: Yes::Fence }
    }

    pub(crate) fn release(keys: &Keys, token: &Token) -> Self {
        let mut command = keys.command("LOCK.RELEASE", "LOCK.MRELEASE");
        command.arg(token.as_str());
        Self { command: Arc::new(command), yes: Yes::One }
    }

    pub(super) fn read(&self, value: Value) -> Reply {
        match (self.yes, value) {
            (Yes::Fence, value) => read_fence(value),
            (Yes::FenceAfterWait, value @ Value::Array(_)) => {
                let granted = ::redis::from_redis_value::<(u64, u64)>(value).ok();
                let fence = granted.and_then(|(fence, waited_us)| Some((Fence::new(fence)?, waited_us)));
                match fence {
                    Some((fence, us)) => Reply::Granted { fence, waited: Duration::from_micros(us) },
                    None => Reply::Failed(NodeError::Nonsense),
                }
            }
            (Yes::FenceAfterWait, Value::Nil) | (Yes::One, Value::Int(0)) => Reply::No,
            (Yes::One, Value::Int(1)) => Reply::Yes(None),
            (_, Value::ServerError(error)) => Reply::Failed(read_error(&error.into())),
            _ => Reply::Failed(NodeError::Nonsense),
        }
    }
}

/// The answer to ACQUIRE without WAIT, and to EXTEND.
pub(super) fn read_fence(value: Value) -> Reply {
    match value {
        Value::Int(fence) => match u64::try_from(fence).ok().and_then(Fence::new) {
            Some(fence) => Reply::Yes(Some(fence)),
            None => Reply::Failed(NodeError::Nonsense),
        },
        Value::Nil => Reply::No,
        Value::ServerError(error) => Reply::Failed(read_error(&error.into())),
        _ => Reply::Failed(NodeError::Nonsense),
    }
}

impl Reply {
    /// Whether the token holds the lock there; `None` for no answer.
    pub(crate) fn holds(&self) -> Option<bool> {
        match self {
            Self::Yes(_) | Self::Granted { .. } => Some(true),
            Self::No => Some(false),
            Self::Failed(_) => None,
        }
    }

    /// For people.
    pub(crate) fn answer(&self) -> Answer {
        match self {
            Self::Yes(fence) => Answer::Yes(*fence),
            Self::Granted { fence, .. } => Answer::Yes(Some(*fence)),
            Self::No => Answer::No,
            Self::Failed(error) => Answer::Failed(error.clone()),
        }
    }
}

/// What an error means. Servers quote the arguments of a command they do not know, the token among them, so that text
/// goes no further.
pub(super) fn read_error(error: &RedisError) -> NodeError {
    let detail = error.detail().unwrap_or_default();
    match error.code() {
        Some("ABSTAIN") => NodeError::Abstains { reason: detail.to_owned() },
        Some("BADFENCE") => NodeError::ClockBehind { reason: detail.to_owned() },
        _ if detail.starts_with("unknown command") => NodeError::NoModule,
        Some(code) => NodeError::Refused(format!("{code} {detail}").trim_end().to_owned()),
        None if error.is_io_error() || error.is_unrecoverable_error() => {
            NodeError::Down { reason: error.to_string() }
        }
        None => NodeError::Nonsense,
    }
}
