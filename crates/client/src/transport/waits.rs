use std::future::{Future as _, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};

use quorlock_core::client::{NodeError, RequestId, Response};
use tokio::sync::oneshot;

/// WAITs in flight, a few for each node at most.
#[derive(Default)]
pub(crate) struct Waits(Vec<(RequestId, oneshot::Receiver<Response>)>);

impl Waits {
    pub(crate) fn push(&mut self, id: RequestId, response: oneshot::Receiver<Response>) {
        self.0.push((id, response));
    }

    /// Removes these WAITs.
    pub(crate) fn take(&mut self, ids: impl Iterator<Item = RequestId>) -> Self {
        let ids: Vec<_> = ids.collect();
        Self(self.0.extract_if(.., |(id, _)| ids.contains(id)).collect())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Waits for a response. Never returns if no WAIT is in flight.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub(crate) async fn next(&mut self) -> (RequestId, Response) {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<(RequestId, Response)> {
        for index in 0..self.0.len() {
            let (id, response) = &mut self.0[index];
            if let Poll::Ready(response) = Pin::new(response).poll(cx) {
                let id = *id;
                self.0.swap_remove(index);
                // The sender is gone only if the runtime has ended.
                let failed = |_| Response::Failed(NodeError::connection_lost());
                return Poll::Ready((id, response.unwrap_or_else(failed)));
            }
        }
        Poll::Pending
    }
}
