use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use crate::{Lock, LockWatch, LostError, Released, RunError};

/// See [`crate::LockBuilder::run`].
pub(crate) async fn run<T, F>(
    mut lock: Lock,
    work: impl FnOnce(LockWatch) -> F,
) -> Result<T, RunError>
where
    F: Future<Output = T>,
{
    lock.renew();
    let inner = Arc::clone(lock.inner());
    let output = {
        let mut work = pin!(work(lock.watch()));
        let mut ended = pin!(inner.ended());
        poll_fn(|cx| {
            // Timers fire late in a process that was paused, so each poll reads the clock first.
            if let Err(end) = inner.validity_or_end() {
                return Poll::Ready(Err(end));
            }
            if let Poll::Ready(end) = ended.as_mut().poll(cx) {
                return Poll::Ready(Err(end));
            }
            work.as_mut().poll(cx).map(Ok)
        })
        .await
        // The work is dropped here, before the lock is released.
    };
    let output = match output {
        Ok(output) => output,
        Err(Some(lost)) => return Err(RunError::Lost { lost, finished: false }),
        Err(None) => unreachable!("only this function releases the lock"),
    };
    finish(lock).await.map_err(|lost| RunError::Lost { lost, finished: true })?;
    Ok(output)
}

/// Releases a lock after the work under it. Fails if the lock did not protect the whole work.
pub(crate) async fn finish(lock: Lock) -> Result<(), LostError> {
    if let Some(lost) = lock.loss() {
        return Err(lost);
    }
    let inner = Arc::clone(lock.inner());
    match lock.release().await {
        Ok(Released::AlreadyOver) => Err(LostError::Ended { nodes: inner.report() }),
        // By the local clocks, the lock was held. An unconfirmed release continues.
        Ok(Released::Released) | Err(_) => Ok(()),
    }
}
