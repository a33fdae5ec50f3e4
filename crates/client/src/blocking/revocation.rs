use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::quorum::QuorumThread;
use crate::{RevocationReport, RevocationState};

/// The revocation of a lock: a [`crate::Revocation`] whose calls block.
///
/// Nodes that did not answer are asked again only during [`ended`](Self::ended).
#[must_use = "nodes that did not answer are asked again only during `ended`"]
pub struct Revocation {
    /// `None` during a call, which moves it to the thread of the quorum.
    revocation: Option<crate::Revocation>,
    thread: Arc<QuorumThread>,
}

impl Revocation {
    pub(super) fn new(revocation: crate::Revocation, thread: Arc<QuorumThread>) -> Self {
        Self { revocation: Some(revocation), thread }
    }

    /// Returns the progress of the revocation: see [`crate::Revocation::report`].
    pub fn report(&self) -> RevocationReport {
        self.inner().report()
    }

    /// Waits until the lock is over, for `limit` at most. Returns whether it is over.
    pub fn ended(&mut self, limit: Duration) -> bool {
        let mut revocation = self.take();
        let revocation = self.thread.block_on(async move {
            let _ = timeout(limit, revocation.ended()).await;
            revocation
        });
        let is_over = revocation.report().state == RevocationState::Over;
        self.revocation = Some(revocation);
        is_over
    }

    fn inner(&self) -> &crate::Revocation {
        self.revocation.as_ref().expect("an earlier call on this revocation panicked")
    }

    fn take(&mut self) -> crate::Revocation {
        self.revocation.take().expect("an earlier call on this revocation panicked")
    }
}
