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
            // Timers come late to a process that was paused: the clock is read before each poll.
            if let Err(end) = watch.remaining_or_end() {
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

/// Releases a lock when the work under it is finished. Only a lock that was held until now
/// protected the work.
pub(crate) async fn finish(lock: Lock) -> Result<(), LostError> {
    if let Some(lost) = lock.loss() {
        return Err(lost);
    }
    let watch = lock.watch();
    match lock.release().await {
        Ok(Released::AlreadyOver) => Err(LostError::Ended { nodes: watch.report() }),
        // The lock was held by this machine's clocks, which is what counts. The release continues
        // in the background.
        Ok(Released::Released) | Err(_) => Ok(()),
    }
}
