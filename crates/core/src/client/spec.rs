use std::sync::Arc;
use std::time::Duration;

use super::{Context, Keys, Mode, limits};
use crate::{NodeError, Ttl};

/// Describes a lock to acquire. [`Spec::check`] says whether it is valid.
#[derive(Clone, Debug)]
pub struct Spec {
    /// The keys of the lock. See also [`any`](Self::any).
    pub keys: Keys,
    /// How long the lock lasts unless it is extended.
    pub ttl: Ttl,
    /// The keys of which the lock takes any one; `None` for a lock of all `keys`. If set, `keys`
    /// are those of them that the present request allows a node to grant, and in a held lock the
    /// key that was granted.
    pub any: Option<Keys>,
    /// Whether other clients that share the lock may hold it at the same time.
    pub mode: Mode,
    /// The least validity at the grant. A lock with less counts as not granted.
    pub min_validity: Duration,
    /// How long one node may take to answer; `None` to derive it from round trip and ttl.
    pub node_timeout: Option<Duration>,
    /// How long the lock is held at most, if there is a limit.
    pub max_hold: Option<Duration>,
    /// A label for people.
    pub owner: Option<Arc<str>>,
}

/// Why a [`Spec`] is not valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSpec {
    /// The longest validity, which is the ttl less the drift, is not longer than the time limit per
    /// node, or is shorter than the least validity.
    #[error(
        "with a ttl of {ttl:?}, a lock is certainly held for only {lasts:?}, because clocks drift: \
         raise the ttl until this time is more than the time limit per node ({node_timeout:?}) and \
         at least min_validity ({min_validity:?})"
    )]
    TtlTooShort {
        /// The ttl.
        ttl: Duration,
        /// What drift leaves of it.
        lasts: Duration,
        /// The time limit per node.
        node_timeout: Duration,
        /// The least validity.
        min_validity: Duration,
    },
    /// The lock would be lost before its least validity is over.
    #[error("max_hold ({max_hold:?}) is less than min_validity ({min_validity:?}): raise max_hold")]
    MaxHoldTooShort {
        /// The longest time to hold it.
        max_hold: Duration,
        /// The least validity.
        min_validity: Duration,
    },
    /// Only a lock of one key can be shared.
    #[error(
        "a lock of several keys, or of any one of several, cannot be shared: use one key, or an \
         exclusive lock"
    )]
    SeveralShared,
    /// The keys cannot be locked.
    #[error(transparent)]
    Keys(#[from] super::InvalidKeys),
    /// The label is longer than a node accepts.
    #[error("the owner label must be at most {max} bytes", max = Spec::OWNER_BYTES_MAX)]
    OwnerTooLong,
}

impl Spec {
    /// The longest owner label that a node accepts, in bytes.
    pub const OWNER_BYTES_MAX: usize = 256;

    /// Returns the spec of an exclusive lock on all of these keys, without any option.
    pub fn exclusive(keys: Keys, ttl: Ttl) -> Self {
        Self {
            keys,
            ttl,
            any: None,
            mode: Mode::Exclusive,
            min_validity: Duration::ZERO,
            node_timeout: None,
            max_hold: None,
            owner: None,
        }
    }

    /// Checks that the description is valid.
    ///
    /// # Errors
    /// [`InvalidSpec`] says what is wrong and what to do.
    pub fn check(&self) -> Result<(), InvalidSpec> {
        let (ttl, min_validity) = (self.ttl.duration(), self.min_validity);
        let lasts = crate::quorum::longest_validity(self.ttl);
        let shortest = limits::node_timeout(Duration::ZERO, self.ttl);
        let node_timeout = self.node_timeout.unwrap_or(shortest);
        if lasts <= node_timeout || lasts < min_validity {
            return Err(InvalidSpec::TtlTooShort { ttl, lasts, node_timeout, min_validity });
        }
        if let Some(max_hold) = self.max_hold.filter(|max_hold| *max_hold < min_validity) {
            return Err(InvalidSpec::MaxHoldTooShort { max_hold, min_validity });
        }
        if self.owner.as_ref().is_some_and(|owner| owner.len() > Self::OWNER_BYTES_MAX) {
            return Err(InvalidSpec::OwnerTooLong);
        }
        if self.mode == Mode::Shared && (self.keys.len() > 1 || self.any.is_some()) {
            return Err(InvalidSpec::SeveralShared);
        }
        Ok(self.keys.check()?)
    }

    /// The keys that identify the lock, and its local queue, within a program.
    pub fn name(&self) -> &Keys {
        self.any.as_ref().unwrap_or(&self.keys)
    }

    /// The index among [`any`](Self::any) of the first of `keys`; `None` for a lock of all `keys`.
    pub fn slot(&self) -> Option<usize> {
        self.any.as_ref()?.iter().position(|key| key == self.keys.first())
    }

    /// The same lock, of these keys.
    pub(super) fn with_keys(&self, keys: Keys) -> Arc<Self> {
        Arc::new(Self { keys, ..self.clone() })
    }

    /// The locks of all keys but its own, of a lock of any one of several.
    pub(super) fn of_other_slots(&self) -> Option<Arc<Self>> {
        let others = self.any.as_ref()?.iter().filter(|key| *key != self.keys.first());
        let others: Keys = others.collect();
        (!others.is_empty()).then(|| self.with_keys(others))
    }

    /// The locks of all keys of a lock of any one of several; the same lock otherwise.
    pub(super) fn of_all_slots(self: &Arc<Self>) -> Arc<Self> {
        self.any.as_ref().map_or_else(|| Arc::clone(self), |all| self.with_keys(all.clone()))
    }

    /// How long a node may take to answer a request about this lock.
    pub(super) fn node_timeout(&self, node: usize, ctx: &Context<'_>) -> Duration {
        let derived = || limits::node_timeout(ctx.client_state.round_trips.of(node), self.ttl);
        self.node_timeout.unwrap_or_else(derived)
    }

    /// The longest time that any node may take to answer.
    pub(super) fn longest_timeout(&self, ctx: &Context<'_>) -> Duration {
        let timeouts = (0..ctx.topology.nodes.len()).map(|node| self.node_timeout(node, ctx));
        timeouts.max().unwrap_or_default()
    }

    /// The error of a node that has not answered within `limit`.
    pub(super) fn timed_out(&self, node: usize, limit: Duration, ctx: &Context<'_>) -> NodeError {
        let round_trip = ctx.client_state.round_trips.of(node);
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        match limits::ttl_needed(round_trip, self.ttl) {
            Some(ttl) if self.node_timeout.is_none() => NodeError::TooFar {
                limit_ms: ms(limit),
                round_trip_ms: ms(round_trip),
                ttl_needed_ms: ms(ttl),
            },
            _ => NodeError::timed_out(limit),
        }
    }
}
