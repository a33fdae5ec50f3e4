//! The place for the response to a request.

use std::sync::{Arc, Weak};

use quorlock_core::client::{NodeError, Response};

/// Receives the responses of a client.
pub(crate) trait Inbox: Send + Sync {
    /// Takes the response to the request of this shard with this number.
    fn put(self: Arc<Self>, shard: usize, number: u64, response: Response);
}

/// The place for one response. Reports a lost connection when it is dropped unanswered.
pub(crate) struct Ticket {
    inbox: Weak<dyn Inbox>,
    shard: usize,
    number: u64,
    is_answered: bool,
}

impl Ticket {
    pub(crate) fn new(inbox: Weak<dyn Inbox>, shard: usize, number: u64) -> Self {
        Self { inbox, shard, number, is_answered: false }
    }

    pub(crate) fn answer(mut self, response: Response) {
        self.put(response);
    }

    fn put(&mut self, response: Response) {
        self.is_answered = true;
        // Without a client, no call awaits the response.
        if let Some(inbox) = self.inbox.upgrade() {
            inbox.put(self.shard, self.number, response);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.is_answered {
            self.put(Response::Failed(NodeError::connection_lost()));
        }
    }
}
