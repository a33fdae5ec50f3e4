use std::future::poll_fn;
use std::pin::pin;
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
    let watch = lock.watch();
    let output = {
        let mut work = pin!(work(watch.clone()));
        let mut ended = pin!(watch.ended());
        poll_fn(|cx| {
            // Timers fire late in a process that was paused, so each poll reads the clock first.
            if let Err(end) = watch.validity_or_end() {
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
    match finish(lock).await {
        Ok(()) => Ok(output),
        Err(lost) => Err(RunError::Lost { lost, finished: true }),
    }
}

/// Releases a lock after the work under it. Returns the loss if the lock was not held until now, so
/// that it did not protect the whole work.
pub(crate) async fn finish(lock: Lock) -> Result<(), LostError> {
    if let Some(lost) = lock.loss() {
        return Err(lost);
    }
    let watch = lock.watch();
    match lock.release().await {
        Ok(Released::AlreadyOver) => Err(LostError::Ended { nodes: watch.report() }),
        // By this machine's clocks the lock was held, and they decide. A release that is not
        // confirmed continues in the background.
        Ok(Released::Released) | Err(_) => Ok(()),
    }
}
