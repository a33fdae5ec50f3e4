//! The driver of a revocation.

use std::sync::Arc;

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use quorlock_core::client::{NodeError, Revocation, RevokeMode, RevokeReply, limits};
use quorlock_core::quorum::Moment;

use super::inspection::ask_in_time;
use super::shared::Shared;
use super::timers::sleep_until;
use crate::clock;

/// A node's answer, with the index of the node and the time of the request.
type PendingReply = BoxFuture<'static, (usize, Moment, Result<RevokeReply, NodeError>)>;

pub(crate) struct Revoking {
    pub(crate) shared: Arc<Shared>,
    pub(crate) machine: Revocation,
    key: Arc<[u8]>,
    pending: FuturesUnordered<PendingReply>,
}

impl Revoking {
    /// The first call of [`step`](Self::step) sends the first requests.
    pub(crate) fn start(shared: &Arc<Shared>, key: &[u8], mode: RevokeMode) -> Self {
        let machine = shared.with_context(|ctx| Revocation::new(mode, ctx));
        let mut this = Self {
            shared: Arc::clone(shared),
            machine,
            key: key.into(),
            pending: FuturesUnordered::new(),
        };
        this.act();
        this
    }

    fn act(&mut self) {
        while let Some(ask) = self.machine.poll() {
            let (shared, key) = (Arc::clone(&self.shared), Arc::clone(&self.key));
            self.pending.push(Box::pin(async move {
                let sent = clock::now();
                let command = ask.command;
                let route = (ask.node, ask.connection);
                let answer =
                    ask_in_time(&shared, route, limits::OPERATOR_TIMEOUT, async |connection| {
                        connection.revoke(&key, command).await
                    });
                (ask.node, sent, answer.await)
            }));
        }
    }

    /// Waits for the next answer, or for the time of the next request.
    ///
    /// # Cancel safety
    /// Dropping the future loses no answer.
    pub(crate) async fn step(&mut self) {
        let due = self.machine.poll_timeout();
        tokio::select! {
            biased;
            Some((node, sent, reply)) = self.pending.next() => {
                self.shared.with_context(|ctx| self.machine.handle_reply(node, sent, reply, ctx));
            }
            () = sleep_until(due), if due.is_some() || self.pending.is_empty() => {
                self.shared.with_context(|ctx| self.machine.handle_timeout(ctx));
            }
        }
        self.act();
    }
}
