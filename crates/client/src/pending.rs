use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use futures_util::future::BoxFuture;

/// A few futures that are waited for together: no more than there are nodes. All that are not done are polled whenever one of
/// them wakes the task, also when another one is done already: so what is asked is sent at the first poll, and in order.
/// For so few that costs less than to find out which of them it was.
pub(crate) struct Pending<T>(Vec<State<T>>);

enum State<T> {
    Open(BoxFuture<'static, T>),
    Done(T),
}

impl<T: Unpin> Pending<T> {
    /// Waits for nothing, and allocates nothing.
    pub(crate) const fn new() -> Self {
        Self(Vec::new())
    }

    /// Has room for so many.
    pub(crate) fn with_capacity(futures: usize) -> Self {
        Self(Vec::with_capacity(futures))
    }

    pub(crate) fn push(&mut self, future: impl Future<Output = T> + Send + 'static) {
        self.0.push(State::Open(Box::pin(future)));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The output of one that is done; `None` when there are none to wait for.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub(crate) async fn next(&mut self) -> Option<T> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// The output of one that is done already.
    pub(crate) fn take_done(&mut self) -> Option<T> {
        match self.poll_next(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(output) => output,
            Poll::Pending => None,
        }
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let mut done = None;
        for (index, state) in self.0.iter_mut().enumerate() {
            if let State::Open(future) = state
                && let Poll::Ready(output) = Pin::new(future).poll(cx)
            {
                *state = State::Done(output);
            }
            if done.is_none() && matches!(state, State::Done(_)) {
                done = Some(index);
            }
        }
        match done.map(|index| self.0.remove(index)) {
            Some(State::Done(output)) => Poll::Ready(Some(output)),
            // There was one, and it was done.
            Some(State::Open(_)) => unreachable!(),
            None if self.0.is_empty() => Poll::Ready(None),
            None => Poll::Pending,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn all_are_begun_in_order_when_the_first_is_done() {
        let begun = Arc::new(AtomicUsize::new(0));
        let mut pending = Pending::new();
        for place in 0..3 {
            let begun = Arc::clone(&begun);
            pending.push(async move { (place, begun.fetch_add(1, Ordering::Relaxed)) });
        }
        assert_eq!(pending.next().await, Some((0, 0)));
        assert_eq!(begun.load(Ordering::Relaxed), 3);
        assert_eq!((pending.next().await, pending.next().await), (Some((1, 1)), Some((2, 2))));
        assert!(pending.is_empty());
        assert_eq!(pending.next().await, None);
    }

    #[tokio::test]
    async fn an_output_is_there_whether_or_not_anybody_has_waited_for_it() {
        let (tell, told) = oneshot::channel();
        let mut pending = Pending::new();
        pending.push(told);
        assert!(pending.take_done().is_none());
        tell.send(7).unwrap();
        assert_eq!(pending.take_done(), Some(Ok(7)));
    }
}
