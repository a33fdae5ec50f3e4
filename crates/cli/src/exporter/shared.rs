//! One gathering for all concurrent scrapes.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::OnceCell;

/// Makes a value on demand. Callers that arrive while a value is being made share it.
#[derive(Default)]
pub(super) struct SharedCall<T>(Mutex<Arc<OnceCell<T>>>);

impl<T: Clone> SharedCall<T> {
    /// Returns the value that is being made, or makes a new one.
    ///
    /// # Cancel safety
    /// When the caller that makes the value is dropped, another waiting caller makes it.
    pub(super) async fn get<F: Future<Output = T>>(&self, make: impl FnOnce() -> F) -> T {
        let current = Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let value = current.get_or_init(make).await.clone();
        let mut latest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if Arc::ptr_eq(&latest, &current) {
            // The next caller gets a fresh value.
            *latest = Arc::default();
        }
        value
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::{pending, ready};
    use std::pin::pin;

    use futures_util::{FutureExt as _, future::join};
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn concurrent_callers_share_one_value_and_later_ones_do_not() {
        let (shared, made) = (SharedCall::<u32>::default(), Cell::new(0));
        let (finish, may_finish) = oneshot::channel::<()>();
        let first = shared.get(async || {
            made.set(made.get() + 1);
            let _ = may_finish.await;
            made.get()
        });
        let second = shared.get(async || panic!("the first one is under way"));
        let both = join(first, second);
        tokio::pin!(both);
        assert!(both.as_mut().now_or_never().is_none());
        finish.send(()).unwrap();
        assert_eq!(both.await, (1, 1));
        assert_eq!(shared.get(|| ready(2)).await, 2);
    }

    #[tokio::test]
    async fn second_caller_continues_when_the_first_is_dropped() {
        let shared = SharedCall::<u32>::default();
        let mut first = Box::pin(shared.get(pending));
        assert!(first.as_mut().now_or_never().is_none());
        let mut second = pin!(shared.get(|| ready(7)));
        assert!(second.as_mut().now_or_never().is_none());
        drop(first);
        assert_eq!(second.now_or_never(), Some(7));
    }
}
