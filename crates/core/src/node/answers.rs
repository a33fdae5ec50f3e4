//! Answers to clients that waited, from the decision until the client has received them.

use std::collections::BTreeMap;

use super::{BlockedId, CommandError, Key, KeyBytes, Keyspace, Node, Token, WaitReply, Wants};
use crate::Fence;

/// The answers that clients have not received yet.
///
/// The server delivers an answer some time after the node has decided it: the server first unblocks
/// the client, and then fetches the reply. If the client disconnects in between, the node must
/// release the lock that it granted.
#[derive(Clone, Debug)]
pub(super) struct Answers {
    by_blocked_id: BTreeMap<BlockedId, Answer>,
    /// Clients to unblock at the end of the turn.
    deferred: Vec<BlockedId>,
    /// Locks that were granted to clients that disconnected before they received the answer.
    pub(super) undelivered: Vec<Grant>,
    defer_wakes: bool,
}

#[derive(Clone, Debug)]
enum Answer {
    Granted {
        grant: Grant,
        /// Whether the node has told the server to unblock the client.
        woken: bool,
    },
    Refused(Option<CommandError>),
}

/// A lock that was handed over to a waiter.
#[derive(Clone, Debug)]
pub(super) struct Grant {
    pub(super) db: u32,
    /// One of the lock's keys. The end of the lease of one key ends the lock on all its keys.
    pub(super) key: Key,
    pub(super) token: Token,
    pub(super) fence: Fence,
    pub(super) waited_us: u64,
    pub(super) wants: Wants,
}

/// What to do with a client whose wait the server has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct WaitExit {
    /// The reply to the client, if it is still connected.
    pub reply: WaitReply,
    /// Whether the client still needs to be unblocked.
    pub wake: bool,
}

impl Answers {
    pub(super) fn new(defer_wakes: bool) -> Self {
        Self {
            by_blocked_id: BTreeMap::new(),
            deferred: Vec::new(),
            undelivered: Vec::new(),
            defer_wakes,
        }
    }

    pub(super) fn grant<K: Keyspace>(
        &mut self,
        blocked_id: BlockedId,
        grant: Grant,
        keyspace: &mut K,
    ) {
        let woken = !self.defer_wakes;
        self.by_blocked_id.insert(blocked_id, Answer::Granted { grant, woken });
        if woken {
            keyspace.wake(blocked_id);
        } else {
            self.deferred.push(blocked_id);
        }
    }

    pub(super) fn refuse<K: Keyspace>(
        &mut self,
        blocked_id: BlockedId,
        error: Option<CommandError>,
        keyspace: &mut K,
    ) {
        self.by_blocked_id.insert(blocked_id, Answer::Refused(error));
        keyspace.wake(blocked_id);
    }

    /// Unblocks the clients that were granted a lock in this turn.
    pub(super) fn wake_deferred<K: Keyspace>(&mut self, keyspace: &mut K) {
        for blocked_id in std::mem::take(&mut self.deferred) {
            if let Some(Answer::Granted { woken, .. }) = self.by_blocked_id.get_mut(&blocked_id)
                && !std::mem::replace(woken, true)
            {
                keyspace.wake(blocked_id);
            }
        }
    }

    /// Whether the node must still unblock a client, or release the lock of a disconnected client.
    pub(super) fn has_work(&self) -> bool {
        !self.deferred.is_empty() || !self.undelivered.is_empty()
    }
}

impl Answer {
    fn reply(&self) -> WaitReply {
        match self {
            Self::Granted { grant: Grant { fence, waited_us, key, wants, .. }, .. } => {
                let key = (*wants == Wants::Any).then(|| KeyBytes(key.clone()));
                WaitReply::Granted { fence: *fence, waited_us: *waited_us, key }
            }
            Self::Refused(None) => WaitReply::Refused,
            Self::Refused(Some(error)) => WaitReply::Failed(*error),
        }
    }
}

impl Node {
    /// Returns the answer to a client that was unblocked, and counts it as received.
    pub fn answer(&mut self, blocked_id: BlockedId) -> WaitReply {
        let answer = self.answers.by_blocked_id.remove(&blocked_id);
        answer.map_or(WaitReply::Refused, |answer| answer.reply())
    }

    /// Ends the wait of a client that `CLIENT UNBLOCK` named.
    ///
    /// A lock that the client was just granted stays granted.
    pub fn unblock(&mut self, blocked_id: BlockedId) -> WaitExit {
        let waited = self.cancel(blocked_id);
        let answer = self.answers.by_blocked_id.remove(&blocked_id);
        WaitExit {
            reply: answer.as_ref().map_or(WaitReply::Refused, Answer::reply),
            wake: waited || matches!(answer, Some(Answer::Granted { woken: false, .. })),
        }
    }

    /// Ends the wait of a client that has disconnected.
    ///
    /// If the client was granted a lock but has not received the answer, a [job](super::Job)
    /// releases that lock.
    pub fn disconnect(&mut self, blocked_id: BlockedId) -> WaitExit {
        let mut wake = self.cancel(blocked_id);
        if let Some(Answer::Granted { grant, woken }) =
            self.answers.by_blocked_id.remove(&blocked_id)
        {
            self.answers.undelivered.push(grant);
            wake |= !woken;
        }
        WaitExit { reply: WaitReply::Refused, wake }
    }

    /// Removes a waiter, or its pending refusal. Returns false if the waiter has its answer.
    fn cancel(&mut self, blocked_id: BlockedId) -> bool {
        let Some(place) = self.queues.by_blocked_id(blocked_id) else {
            return self.queues.dismissed.remove(&blocked_id);
        };
        self.queues.remove(place);
        true
    }
}
